"""Modes and owners are those of the source and are enforced; names may be any bytes; every kind of file is shown."""

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.corpus import array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter, mounter, refuses
from tests.support.users import AS_NOBODY, shared_directory

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
SHARD, INSIDE = "c/0/0", ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
NAMES = [b"latin-\xe9", b"\xff\xfe", b"new\nline", b"a 'quote\"", "µ-日本".encode(), b"x" * 255, b"-rf", b"a\\b"]


# Modes and owners


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter."""
    with shared_directory() as directory:
        yield directory


def may_be_read_by_nobody(path: Path) -> bool:
    """Whether another user can read a file or list a directory."""
    done = subprocess.run([*AS_NOBODY, "ls" if path.is_dir() else "cat", path], capture_output=True, check=False)
    assert done.returncode == 0 or b"Permission denied" in done.stderr
    return done.returncode == 0


def test_mode_and_owner_of_a_chunk_are_the_shards(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source, DOCUMENT)
    os.chmod(source / SHARD, 0o640)
    os.chmod(source / "c/0/1", 0o755)
    os.chmod(source / "zarr.json", 0o604)
    if os.geteuid() == 0:
        os.chown(source / SHARD, 1234, 4321)
    root, stored = mount(source).path, os.stat(source / SHARD)
    for key in INSIDE:
        shown = os.stat(root / key)
        assert (shown.st_mode, shown.st_uid, shown.st_gid) == (stored.st_mode, stored.st_uid, stored.st_gid)
        assert shown.st_nlink == 1
    assert [stat.S_IMODE(os.stat(root / name).st_mode) for name in ("c/0/2", "zarr.json")] == [0o755, 0o604]
    assert os.stat(root / "c").st_mode == os.stat(source).st_mode


def test_another_user_reads_what_modes_allow_and_only_with_allow_other(public: Path) -> None:
    source = public / "source"
    store(source / "image", DOCUMENT)
    store(source / "private", DOCUMENT)
    (source / "private").chmod(0o700)
    (source / "secret").write_bytes(b"secret")
    for path, mode in ((source / "secret", 0o600), (source / "image" / SHARD, 0o600), (source / "image/c/0/1", 0o644)):
        path.chmod(mode)
    allowed = ["image/c/0/2", "image/zarr.json", "image/c/0"]
    refused = ["image/c/0/0", "secret", "private", "private/c/0/0"]
    with mounter(public) as mount:
        root, closed = mount(source, allow_other=True).path, mount(source).path
        assert [may_be_read_by_nobody(root / name) for name in allowed] == [True] * 3
        assert [may_be_read_by_nobody(root / name) for name in refused] == [False] * 4
        assert not any(may_be_read_by_nobody(closed / name) for name in (".", "image/c/0/2", "image/zarr.json"))


@pytest.mark.parametrize(
    "copy",
    [
        'cp -a "$0" image',
        'tar -C "$0" -c . | tar -C image -xp',
        'cp -r "$0" .; find image -type f -exec chmod 604 {} +',
        'cp -r "$0" .; for f in $(cd "$0" && find . -type f); do install -m 604 "$0/$f" image/$f; done',
    ],
    ids=["cp", "tar", "chmod", "install"],
)
def test_new_shards_and_documents_have_the_mode_that_programs_give(mount: Mounter, tmp_path: Path, copy: str) -> None:
    zarr.create_array(str(tmp_path / "image"), data=np.ones((4, 4)), chunks=(1, 1))
    for path in (tmp_path / "image").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o604)
    (tmp_path / "source").mkdir()
    mounted = mount(tmp_path / "source", write=True, shards="2,2")
    subprocess.run(["sh", "-euc", f"mkdir -p image; {copy}", tmp_path / "image"], cwd=mounted.path, check=True)
    for root, nfiles in ((mounted.path, 17), (tmp_path / "source", 5)):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in root.glob("image/**/*") if path.is_file()]
        assert modes == [0o604] * nfiles
        if root == mounted.path:
            mounted.unmount()


def test_files_of_another_user_have_the_owner_and_group_as_elsewhere(public: Path) -> None:
    source, elsewhere = public / "source", public / "elsewhere"
    for root in (source, elsewhere):
        (root / "group").mkdir(parents=True)
        os.chown(root / "group", 0, 4321)
        (root / "group").chmod(0o2777)
        root.chmod(0o777)
    zarr.create_array(str(public / "image"), data=np.ones((4, 4)), chunks=(1, 1))
    make = 'for d in . group; do cp -r "$0" $d/image; mkdir $d/new; echo x >$d/new/file; done'
    with mounter(public) as mount:
        mounted = mount(source, write=True, allow_other=True, shards="2,2")
        for root in (mounted.path, elsewhere):
            subprocess.run([*AS_NOBODY, "sh", "-euc", make, public / "image"], cwd=root, check=True)
        mounted.unmount()
    made = [path for path in source.glob("**/*") if ".shardfs" not in path.parts]
    assert {path.name for path in made} >= {"file", "new", "zarr.json", "c", "0", "1"}
    for path in made:
        found, expected = path.stat(), (elsewhere / path.relative_to(source)).stat()
        for name in ("st_uid", "st_gid", "st_mode"):
            assert getattr(found, name) == getattr(expected, name), (path, name)


# Names


def test_names_of_passed_through_files_may_be_any_bytes(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / "image", DOCUMENT)
    names = list(map(os.fsdecode, NAMES))
    expected = {}
    for directory in ["", "image/", "image/c/", "image/c/0/", *(f"dir-{name[:200]}/" for name in names)]:
        (source / directory).mkdir(exist_ok=True)
        for name in names:
            expected[directory + name] = os.fsencode(name)
            (source / directory / name).write_bytes(os.fsencode(name))
    found = files_below(mount(source).path)
    assert {path: data for path, data in found.items() if os.path.basename(path) in names} == expected


def test_a_name_that_is_no_coordinate_is_enoent_and_a_long_one_enametoolong(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    root = mount(tmp_path / "source").path
    no_coordinates = ["c/00/0", "c/0/00", "c/+1/0", "c/-1/0", "c/4/0", "c/0/4", "c/9999999999999999999999/0", "c/٣/0"]
    for name in ["x" * 255, *no_coordinates]:
        with pytest.raises(FileNotFoundError):
            os.stat(root / name)
    with refuses(errno.ENAMETOOLONG):
        os.stat(root / ("x" * 256))
    for path in ("c/0/0/0", "zarr.json/c", "c/0/0/zarr.json"):
        with pytest.raises(NotADirectoryError):
            os.stat(root / path)
    with pytest.raises(IsADirectoryError):
        (root / "c/0").read_bytes()


def test_hard_links_pipes_and_sockets_are_shown_as_they_are(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "first").write_bytes(b"linked")
    os.link(source / "first", source / "second")
    os.mkfifo(source / "pipe", 0o620)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(source, os.O_PATH)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    if os.geteuid() == 0:
        os.mknod(source / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    root = mount(source).path
    for name in os.listdir(source):
        shown, stored = os.lstat(root / name), os.lstat(source / name)
        for field in ("st_mode", "st_size", "st_mtime_ns", "st_uid", "st_rdev", "st_nlink"):
            assert getattr(shown, field) == getattr(stored, field), (name, field)
    assert (root / "first").read_bytes() == (root / "second").read_bytes() == b"linked"
    with pytest.raises(OSError, match="No such device"):
        os.open(root / "pipe", os.O_WRONLY | os.O_NONBLOCK)  # a pipe without a reader, like any other
