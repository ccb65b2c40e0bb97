"""Directories: complete in one pass however small the buffer, resumed right, `..`, rewinddir and seekdir."""

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Name:
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


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    source = tmp_path_factory.mktemp("source")
    codec = sharding((1, 1), extension("bytes"))
    for name, encoding in {
        "nested": extension("default", separator="/"),
        "flat": extension("default", separator="."),
        "flat-v2": extension("v2", separator="."),
        "nested-v2": extension("v2", separator="/"),
    }.items():
        document = array(SHAPE, (20, 30), codec, data_type="uint8", chunk_key_encoding=encoding)
        store(source / name, document, absent=ABSENT)
        for plain in PLAIN:
            (source / name / plain).write_bytes(b"plain")
    row = array((5200,), (700,), sharding((1,), extension("bytes")), data_type="uint8")
    store(source / "row", row, absent=[(0,), (699,), (5199,)])
    (source / "row/c/README").write_bytes(b"plain")
    return module_mount(source)


def expected(name: str) -> set[str]:
    """Names in the largest directory of an array."""
    if name == "row":
        return {"README"} | {str(column) for column in range(5200)} - {"0", "699", "5199"}
    prefix = {"flat": "c.", "flat-v2": ""}[name]
    chunks = {f"{prefix}{row}.{column}" for row in range(50) for column in range(104) if (row, column) not in ABSENT}
    return chunks | {"zarr.json", *PLAIN}


def directory(mounted: Mount, name: str) -> Path:
    return mounted.path / "row/c" if name == "row" else mounted.path / name


@pytest.mark.parametrize(("name", "size"), [("row", 48), ("flat", 256), ("flat-v2", 4096), ("row", 2**20)])
def test_a_listing_is_complete_and_without_repeats_with_any_buffer(mounted: Mount, name: str, size: int) -> None:
    fd = os.open(directory(mounted, name), os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = [entry.text for entry in rest(fd, size)]
    finally:
        os.close(fd)
    assert len(names) == len(set(names))
    assert set(names) == expected(name)


@pytest.mark.parametrize("name", ["row", "flat", "flat-v2"])
def test_a_listing_resumes_behind_any_name(mounted: Mount, name: str) -> None:
    fd = os.open(directory(mounted, name), os.O_RDONLY | os.O_DIRECTORY)
    held = [os.open(path, os.O_PATH) for path in directory(mounted, name).iterdir() if path.name in PLAIN]
    try:  # what the kernel does not know any more may have another number
        names = list(rest(fd, 2**16))
        for position in [*range(0, 40), *range(40, len(names), 397), len(names) - 2, len(names) - 1, 3, 0]:
            os.lseek(fd, names[position].cookie, os.SEEK_SET)
            resumed = getdents(fd, 256)
            assert resumed == names[position + 1 :][: len(resumed)]
            assert resumed or position == len(names) - 1
        os.lseek(fd, 0, os.SEEK_SET)
        assert list(rest(fd, 256)) == names
    finally:
        for each in (fd, *held):
            os.close(each)


@pytest.mark.parametrize("name", ["nested", "nested-v2"])
def test_nested_directories_list_rows_and_columns(mounted: Mount, name: str) -> None:
    root = mounted.path / name / ("c" if name == "nested" else "")
    rows = {entry for entry in os.listdir(root) if entry not in {"zarr.json", *PLAIN}}
    assert rows == {str(row) for row in range(50)}  # row 20 has directories of shards, and no chunk
    for row in range(50):
        columns = {str(column) for column in range(104) if (row, column) not in ABSENT}
        assert set(os.listdir(root / str(row))) == columns
    assert name == "nested" or {"zarr.json", *PLAIN} <= set(os.listdir(root))


def test_the_directories_of_chunks_that_no_shard_covers_are_found_but_not_listed(
    mount: Mounter, tmp_path: Path
) -> None:
    document = array((8, 12), (4, 6), sharding((2, 3)))
    store(tmp_path / "source", document, absent=[(row, column) for row in (0, 1) for column in range(4)])
    root = mount(tmp_path / "source").path
    assert sorted(os.listdir(root / "c")) == ["2", "3"]
    assert os.path.isdir(root / "c/0")  # any prefix within the grid, so that mkdir answers EEXIST
    assert os.listdir(root / "c/0") == []
    assert not os.path.exists(root / "c/4")


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_listing_neither_skips_nor_repeats_while_shards_come_and_go(
    mount: Mounter, tmp_path: Path, separator: str
) -> None:
    keys = extension("default", separator=separator)
    document = array((1000,), (50,), sharding((1,), extension("bytes")), data_type="uint8", chunk_key_encoding=keys)
    chunks = store(tmp_path / "source", document, absent=[(number,) for number in range(500, 550)])
    prefix = f"c{separator}"
    new = (tmp_path / "source" / f"{prefix}0").read_bytes()
    root = mount(tmp_path / "source", metadata_ttl=0).path
    fd = os.open(root / "c" if separator == "/" else root, os.O_RDONLY | os.O_DIRECTORY)
    found = [entry for _ in range(20) for entry in getdents(fd, 256)]
    for shard in (0, 2, 15):
        os.unlink(tmp_path / "source" / f"{prefix}{shard}")
    (tmp_path / "source" / f"{prefix}10").write_bytes(new)
    found += rest(fd, 256)
    names = [entry.text for entry in found if entry.text != "zarr.json"]
    assert len(names) == len(set(names))
    steady = {int(key[2:]) for key in chunks} - set(range(50)) - set(range(100, 150)) - set(range(750, 800))
    assert steady <= {int(name.removeprefix("c.")) for name in names}
    os.lseek(fd, 0, os.SEEK_SET)
    again = {int(entry.text.removeprefix("c.")) for entry in rest(fd, 4096) if entry.text != "zarr.json"}
    assert again == steady | set(range(500, 550))
    os.close(fd)
