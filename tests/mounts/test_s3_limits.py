"""What a mount of a bucket cannot keep, seen by programs: nothing of it is lost without being said in the documents."""

import errno
import os
import subprocess

from tests.support.hosts import PREFIX, Host
from tests.support.mounting import refuses


def test_modes_owners_and_times_of_objects_are_accepted_and_not_kept(host: Host) -> None:
    root = host.mount().path
    (root / "notes").write_bytes(b"plain")
    for name in ("notes", "zarr.json"):
        before = (root / name).stat()
        os.chmod(root / name, 0o600)
        os.chown(root / name, 1, 1)
        os.utime(root / name, (1, 1))
        after = (root / name).stat()
        assert (after.st_mode & 0o777, after.st_uid, after.st_gid) == (0o644, os.getuid(), os.getgid())
        assert after.st_mtime == before.st_mtime


def test_objects_have_one_name_and_no_attributes(host: Host) -> None:
    root = host.mount(expect=("link: ", "symlink: ")).path
    (root / "notes").write_bytes(b"plain")
    for make in (os.link, os.symlink):
        with refuses(errno.EPERM):
            make(root / "notes", root / "second")
    with refuses(errno.EOPNOTSUPP):
        os.setxattr(root / "notes", "user.x", b"1")


def test_a_directory_without_files_is_not_stored(host: Host) -> None:
    mounted = host.mount()
    (mounted.path / "made/within").mkdir(parents=True)
    assert os.listdir(mounted.path / "made") == ["within"]
    mounted.unmount()
    assert not (host.mount(write=False).path / "made").exists()
    assert not host.bucket.keys(f"{PREFIX}/made")


def test_a_directory_of_objects_is_moved_by_copying(host: Host) -> None:
    root = host.mount().path
    (root / "old").mkdir()
    (root / "old/notes").write_bytes(b"plain")
    with refuses(errno.EXDEV):
        os.rename(root / "old", root / "new")
    subprocess.run(["mv", root / "old", root / "new"], check=True)
    assert host.bucket.objects(f"{PREFIX}/new") == {f"{PREFIX}/new/notes": b"plain"}
    assert not host.bucket.keys(f"{PREFIX}/old")


def test_files_of_another_host_are_seen_after_the_metadata_ttl(host: Host) -> None:
    believing = host.mount(write=False)
    asking = host.mounter(host.url, state=host.state, env=host.bucket.environment, metadata_ttl=0.0)
    names = [sorted(os.listdir(mounted.path)) for mounted in (believing, asking)]
    assert names == [["c", "zarr.json"]] * 2
    host.bucket.put(f"{PREFIX}/notes", b"plain")
    assert not (believing.path / "notes").exists()
    assert (asking.path / "notes").read_bytes() == b"plain"
    assert "notes" not in os.listdir(believing.path)
    assert "notes" in os.listdir(asking.path)
