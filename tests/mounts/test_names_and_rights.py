"""Modes and owners are those of the source and are enforced; names may be any bytes; every kind of file is shown."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter, mounter
from tests.support.users import AS_NOBODY, NOBODY

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
SHARD = "c/0/0"
CHUNKS = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
NAMES = [
    b"latin-\xe9",
    b"\xff\xfe",
    b"new\nline",
    b"space and 'quote\"",
    "µ-日本".encode(),
    b"x" * 255,
    b"-rf",
    b"a\\b",
]
TRY = """
import os, sys
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
for path in sys.argv[2:]:
    try:
        if os.path.isdir(path):
            print(len(os.listdir(path)))
        else:
            print(len(open(path, "rb").read()))
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def public(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="shardfs-test-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def as_nobody(*paths: Path) -> list[str]:
    """What another user is told about *paths*: the size, or the error."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY, str(NOBODY), *map(str, paths)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_mode_and_owner_of_a_chunk_are_the_shards(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source, DOCUMENT)
    os.chmod(source / SHARD, 0o640)
    os.chmod(source / "c/0/1", 0o755)
    os.chmod(source / "zarr.json", 0o604)
    if os.geteuid() == 0:
        os.chown(source / SHARD, 1234, 4321)
    root, stored = mount(source).path, os.stat(source / SHARD)
    for key in CHUNKS:
        shown = os.stat(root / key)
        assert (shown.st_mode, shown.st_uid, shown.st_gid) == (stored.st_mode, stored.st_uid, stored.st_gid)
        assert shown.st_nlink == 1
    assert stat.S_IMODE(os.stat(root / "c/0/2").st_mode) == 0o755
    assert stat.S_IMODE(os.stat(root / "zarr.json").st_mode) == 0o604
    assert os.stat(root / "c").st_mode == os.stat(source).st_mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reads_what_modes_allow_and_nothing_else(public: Path) -> None:
    source = public / "source"
    chunks = store(source / "image", DOCUMENT)
    store(source / "private", DOCUMENT)
    (source / "private").chmod(0o700)
    (source / "secret").write_bytes(b"secret")
    (source / "secret").chmod(0o600)
    os.chmod(source / "image" / SHARD, 0o600)
    os.chmod(source / "image/c/0/1", 0o644)
    with mounter(public) as mount:
        root = mount(source, allow_other=True).path
        told = as_nobody(
            *[root / "image" / key for key in ("c/0/2", "c/0/0", "zarr.json", "c/0")],
            *[root / "secret", root / "private", root / "private/c/0/0"],
        )
        assert told[0] == str(len(chunks["c/0/2"]))
        assert told[1] == os.strerror(errno.EACCES)
        assert int(told[2]) == os.path.getsize(root / "image/zarr.json")
        assert told[3:] == ["4", *[os.strerror(errno.EACCES)] * 3]


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
    assert {path.stat().st_mode & 0o777 for path in mounted.path.glob("image/**/*") if path.is_file()} == {0o604}
    mounted.unmount()
    stored = [path for path in (tmp_path / "source/image").rglob("*") if path.is_file()]
    assert len(stored) == 5
    assert {path.stat().st_mode & 0o777 for path in stored} == {0o604}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_what_another_user_makes_has_the_owner_and_group_that_it_has_anywhere(public: Path) -> None:
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
        assert (path, found.st_uid, found.st_gid, oct(found.st_mode)) == (
            *(path, expected.st_uid, expected.st_gid),
            oct(expected.st_mode),
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_without_allow_other_another_user_sees_nothing(public: Path) -> None:
    store(public / "source", DOCUMENT)
    with mounter(public) as mount:
        root = mount(public / "source").path
        assert as_nobody(root, root / "zarr.json") == [os.strerror(errno.EACCES)] * 2


def test_plain_names_may_be_any_bytes(mount: Mounter, tmp_path: Path) -> None:
    source = os.fsencode(tmp_path / "source")
    store(tmp_path / "source" / "image", DOCUMENT)
    for name in NAMES:
        for directory in (source, source + b"/image", source + b"/image/c", source + b"/image/c/0"):
            with open(directory + b"/" + name, "wb") as file:
                file.write(name)
        os.mkdir(source + b"/dir-" + name[:200])
        with open(source + b"/dir-" + name[:200] + b"/" + name, "wb") as file:
            file.write(name)
    root = mount(tmp_path / "source").path
    assert sorted(os.listdir(os.fsencode(root))) == sorted(
        [*NAMES, *(b"dir-" + name[:200] for name in NAMES), b"image"]
    )
    for directory in (b"", b"/image", b"/image/c", b"/image/c/0", *(b"/dir-" + name[:200] for name in NAMES)):
        for name in NAMES if not directory.startswith(b"/dir-") else [*filter(directory[5:].__eq__, NAMES)]:
            path = os.fsencode(root) + directory + b"/" + name
            with open(path, "rb") as file:
                assert file.read() == name
            assert name in os.listdir(os.fsencode(root) + directory)


def test_a_name_that_is_too_long_or_no_coordinate_is_enoent(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", DOCUMENT)
    root = mount(tmp_path / "source").path
    for name in [
        "x" * 255,
        "x" * 1000,
        "c/00/0",
        "c/0/00",
        "c/+1/0",
        "c/-1/0",
        "c/4/0",
        "c/0/4",
        "c/9999999999999999999999/0",
        "c/٣/0",
    ]:
        with pytest.raises(FileNotFoundError):
            os.stat(root / name)
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
    reader = os.open(root / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert os.read(reader, 10) == b""
    os.close(reader)
