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
BOTH = [*FILES, *DIRECTORIES]

WRITES: dict[str, tuple[list[str], Callable[[Path], object]]] = {
    "open-w": (FILES, lambda path: os.open(path, os.O_WRONLY)),
    "open-rw": (FILES, lambda path: os.open(path, os.O_RDWR)),
    "open-append": (FILES, lambda path: os.open(path, os.O_WRONLY | os.O_APPEND)),
    "open-truncate": (FILES, lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "open-truncate-read": (FILES, lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "unlink": (FILES, os.unlink),
    "truncate": (FILES, lambda path: os.truncate(path, 0)),
    "rename": (FILES, lambda path: os.rename(path, path.with_name("renamed"))),
    "rename-over": (FILES, lambda path: os.rename(path, path.with_name("zarr.json"))),
    "link": (FILES, lambda path: os.link(path, path.with_name("linked"))),
    "setxattr-ours": (FILES, lambda path: os.setxattr(path, "user.shardfs.offset", b"0")),
    "removexattr": (FILES, lambda path: os.removexattr(path, "user.shardfs.offset")),
    "create": (DIRECTORIES, lambda path: os.open(path / "new", os.O_WRONLY | os.O_CREAT)),
    "create-exclusive": (DIRECTORIES, lambda path: os.open(path / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL)),
    "temporary": (DIRECTORIES, lambda path: os.open(path, os.O_TMPFILE | os.O_RDWR)),
    "mkdir": (DIRECTORIES, lambda path: os.mkdir(path / "new")),
    "symlink": (DIRECTORIES, lambda path: os.symlink("target", path / "new")),
    "mkfifo": (DIRECTORIES, lambda path: os.mkfifo(path / "new")),
    "mknod": (DIRECTORIES, lambda path: os.mknod(path / "new")),
    "chmod": (BOTH, lambda path: os.chmod(path, 0o777)),
    "chown": (BOTH, lambda path: os.chown(path, 1, 1)),
    "utime": (BOTH, lambda path: os.utime(path, ns=(10**18, 10**18))),
    "setxattr": (BOTH, lambda path: os.setxattr(path, "user.new", b"x")),
}


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    source = tmp_path_factory.mktemp("source")
    store(source / "image", array((8, 12), (4, 6), sharding((2, 3), LITTLE, GZIP)), absent=[(0, 1)])
    for name in ("plain", "image/notes"):
        (source / name).write_bytes(b"plain")
    (source / "folder").mkdir()
    return module_mount(source)


def stored(mounted: Mount) -> dict[str, tuple[int, int, int, bytes]]:
    """Mode, time, owner and content of all that is stored."""
    found = {}
    for path in (mounted.source, *mounted.source.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_uid, content)
    return found


@pytest.mark.parametrize("name", WRITES)
def test_every_change_is_refused_and_nothing_reaches_the_source(mounted: Mount, name: str) -> None:
    before = stored(mounted)
    paths, change = WRITES[name]
    for path in paths:
        with refuses(errno.EROFS):
            change(mounted.path / path)
    assert stored(mounted) == before
