"""Directories: complete in one pass however small the buffer, and resumed right, also while shards come and go."""

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.mounting import Mount, Mounter

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[os.uname().machine]
SHAPE = (50, 104)
"""5,200 inner chunks of one byte, a few of them absent."""
ABSENT = {(0, 0), (0, 103), (7, 50), (49, 103), *((20, column) for column in range(104))}
PLAIN = ["a-note", "README", "z", "0-not-a-coordinate"]
ONE = sharding((1,), extension("bytes"))


class Name(NamedTuple):
    """One record of getdents64."""

    text: str
    inode: int
    cookie: int
    kind: int


def getdents(fd: int, size: int) -> list[Name]:
    """One system call."""
    buffer = ctypes.create_string_buffer(size)
    count = LIBC.syscall(ctypes.c_long(SYS_GETDENTS64), fd, buffer, size)
    if count < 0:
        raise OSError(ctypes.get_errno(), "getdents64")
    names, position = [], 0
    while position < count:
        inode, cookie, length, kind = struct.unpack_from("<QqHB", buffer, position)
        text = buffer.raw[position + 19 : position + length].split(b"\0", 1)[0]
        names.append(Name(os.fsdecode(text), inode, cookie, kind))
        position += length
    return [name for name in names if name.text not in (".", "..")]


def rest(fd: int, size: int) -> Iterator[Name]:
    while names := getdents(fd, size):
        yield from names


@pytest.fixture
def opened() -> Iterator[Callable[..., int]]:
    """`opened(path)` opens what is closed at the end of the test."""
    fds = list[int]()

    def open_path(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> int:
        fds.append(os.open(path, flags))
        return fds[-1]

    yield open_path
    for fd in fds:
        os.close(fd)


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    source = tmp_path_factory.mktemp("source")
    for encoding in ("default", "v2"):
        for separator, name in (("/", "nested"), (".", "flat")):
            keys = extension(encoding, separator=separator)
            codec = sharding((1, 1), extension("bytes"))
            document = array(SHAPE, (20, 30), codec, data_type="uint8", chunk_key_encoding=keys)
            store(source / f"{name}-{encoding}", document, absent=ABSENT)
            for plain in PLAIN:
                (source / f"{name}-{encoding}" / plain).write_bytes(b"plain")
    store(source / "row", array((5200,), (700,), ONE, data_type="uint8"), absent=[(0,), (699,), (5199,)])
    (source / "row/c/README").write_bytes(b"plain")
    return module_mount(source)


def directory_of(mounted: Mount, name: str) -> tuple[Path, set[str]]:
    """The largest directory of an array, and the names in it."""
    if name == "row":
        return mounted.path / "row/c", {"README", *map(str, range(5200))} - {"0", "699", "5199"}
    prefix = {"flat-default": "c.", "flat-v2": ""}[name]
    chunks = {f"{prefix}{row}.{column}" for row in range(50) for column in range(104) if (row, column) not in ABSENT}
    return mounted.path / name, chunks | {"zarr.json", *PLAIN}


@pytest.mark.parametrize(("name", "size"), [("row", 48), ("flat-default", 256), ("flat-v2", 4096), ("row", 2**20)])
def test_a_listing_is_complete_and_without_repeats_with_any_buffer(
    mounted: Mount, opened: Callable[..., int], name: str, size: int
) -> None:
    path, expected = directory_of(mounted, name)
    names = [entry.text for entry in rest(opened(path), size)]
    assert len(names) == len(set(names))
    assert set(names) == expected


@pytest.mark.parametrize("name", ["row", "flat-default"])
def test_a_listing_resumes_behind_any_name(mounted: Mount, opened: Callable[..., int], name: str) -> None:
    path, _ = directory_of(mounted, name)
    fd = opened(path)
    for plain in path.iterdir():
        if plain.name in PLAIN:  # what the kernel does not know any more may have another number
            opened(plain, os.O_PATH)
    names = list(rest(fd, 2**16))
    for position in [*range(0, 40), *range(40, len(names), 397), len(names) - 2, len(names) - 1, 3, 0]:
        os.lseek(fd, names[position].cookie, os.SEEK_SET)
        resumed = getdents(fd, 256)
        assert resumed == names[position + 1 :][: len(resumed)]
        assert resumed or position == len(names) - 1
    os.lseek(fd, 0, os.SEEK_SET)
    assert list(rest(fd, 256)) == names


@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_nested_directories_list_rows_and_columns(mounted: Mount, encoding: str) -> None:
    root = mounted.path / f"nested-{encoding}" / ("c" if encoding == "default" else "")
    rows = {entry for entry in os.listdir(root) if entry not in {"zarr.json", *PLAIN}}
    assert rows == {str(row) for row in range(50)}  # row 20 has directories of shards, and no chunk
    for row in range(50):
        columns = {str(column) for column in range(104) if (row, column) not in ABSENT}
        assert set(os.listdir(root / str(row))) == columns
    assert encoding == "default" or {"zarr.json", *PLAIN} <= set(os.listdir(root))


def test_directories_that_no_shard_covers_exist_but_are_not_listed(mount: Mounter, tmp_path: Path) -> None:
    absent = [(row, column) for row in (0, 1) for column in range(4)]
    store(tmp_path / "source", array((8, 12), (4, 6), sharding((2, 3))), absent=absent)
    root = mount(tmp_path / "source").path
    assert sorted(os.listdir(root / "c")) == ["2", "3"]
    assert os.listdir(root / "c/0") == []
    assert not os.path.exists(root / "c/4")


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_listing_neither_skips_nor_repeats_while_shards_come_and_go(
    mount: Mounter, tmp_path: Path, opened: Callable[..., int], separator: str
) -> None:
    keys = extension("default", separator=separator)
    document = array((1000,), (50,), ONE, data_type="uint8", chunk_key_encoding=keys)
    store(tmp_path / "source", document, absent=[(number,) for number in range(500, 550)])
    root = mount(tmp_path / "source", metadata_ttl=0).path
    fd = opened(root / "c" if separator == "/" else root)
    found = [entry for _ in range(20) for entry in getdents(fd, 256)]
    shards = [tmp_path / "source" / f"c{separator}{number}" for number in range(20)]
    shards[10].write_bytes(shards[0].read_bytes())
    for shard in (0, 2, 15):
        os.unlink(shards[shard])
    found += rest(fd, 256)
    steady = {number for number in range(1000) if number // 50 not in (0, 2, 10, 15)}
    names = [int(entry.text.removeprefix("c.")) for entry in found if entry.text != "zarr.json"]
    assert len(names) == len(set(names))
    assert steady <= set(names)
    os.lseek(fd, 0, os.SEEK_SET)
    again = {int(entry.text.removeprefix("c.")) for entry in rest(fd, 4096) if entry.text != "zarr.json"}
    assert again == steady | set(range(500, 550))
