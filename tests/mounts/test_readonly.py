"""A read-only mount: every way to write answers EROFS, on every kind of file, and nothing changes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mount, Mounter, refuses

FILES = ["image/c/0/0", "image/zarr.json", "plain", "image/notes"]
DIRECTORIES = ["", "image", "image/c", "image/c/0", "folder"]
TIMES = (10**18, 10**18)

WRITES: dict[str, Callable[[Path], object]] = {
    "open-w": lambda path: os.open(path, os.O_WRONLY),
    "open-rw": lambda path: os.open(path, os.O_RDWR),
    "open-append": lambda path: os.open(path, os.O_WRONLY | os.O_APPEND),
    "open-truncate": lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "open-truncate-read": lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "unlink": os.unlink,
    "truncate": lambda path: os.truncate(path, 0),
    "truncate-longer": lambda path: os.truncate(path, 10**9),
    "rename": lambda path: os.rename(path, path.with_name("renamed")),
    "rename-over": lambda path: os.rename(path, path.with_name("zarr.json")),
    "link": lambda path: os.link(path, path.with_name("linked")),
    "chmod": lambda path: os.chmod(path, 0o777),
    "chown": lambda path: os.chown(path, 1, 1),
    "utime": lambda path: os.utime(path, ns=TIMES),
    "setxattr": lambda path: os.setxattr(path, "user.new", b"x"),
    "setxattr-ours": lambda path: os.setxattr(path, "user.shardfs.offset", b"0"),
    "removexattr": lambda path: os.removexattr(path, "user.shardfs.offset"),
}
CREATES: dict[str, Callable[[Path], object]] = {
    "create": lambda path: os.open(path / "new", os.O_WRONLY | os.O_CREAT),
    "create-exclusive": lambda path: os.open(path / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL),
    "temporary": lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda path: os.mkdir(path / "new"),
    "symlink": lambda path: os.symlink("target", path / "new"),
    "mkfifo": lambda path: os.mkfifo(path / "new"),
    "mknod": lambda path: os.mknod(path / "new"),
    "chmod-directory": lambda path: os.chmod(path, 0o777),
    "chown-directory": lambda path: os.chown(path, 1, 1),
    "utime-directory": lambda path: os.utime(path, ns=TIMES),
    "setxattr-directory": lambda path: os.setxattr(path, "user.new", b"x"),
}


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    source = tmp_path_factory.mktemp("source")
    store(source / "image", array((8, 12), (4, 6), sharding((2, 3), LITTLE, GZIP)), absent=[(0, 1)])
    for name in ("plain", "image/notes"):
        (source / name).write_bytes(b"plain")
    (source / "folder").mkdir()
    (source / "link").symlink_to("plain")
    return module_mount(source)


def stored(mounted: Mount) -> dict[str, tuple[int, int, int, bytes]]:
    """Mode, time, owner and content of all that is stored."""
    found = {}
    for path in (mounted.source, *mounted.source.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_uid, content)
    return found


@pytest.mark.parametrize("name", [*WRITES, *CREATES])
def test_every_change_is_refused_and_nothing_reaches_the_source(mounted: Mount, name: str) -> None:
    before = stored(mounted)
    change, paths = (WRITES[name], FILES) if name in WRITES else (CREATES[name], DIRECTORIES)
    for path in paths:
        with refuses(errno.EROFS):
            change(mounted.path / path)
    assert stored(mounted) == before
