"""A source that can only be read needs no more than a `Reader`: trees and commands read it, and refuse to write."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import Any

import pytest
import trio

from shardfs.bulk.info import describe_source
from shardfs.bulk.refs import JsonReferences, write_references
from shardfs.bulk.verify import verify_source
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.recover import recover_source
from shardfs.errors import IsADirectoryHereError, NotFoundError, ReadOnlyError, SourceError
from shardfs.stores.base import Address, Buffer, Kind, ListedName, Reader, Snapshot, Stat
from shardfs.stores.memory import Slice
from shardfs.stores.objects.reader import ObjectReader
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import open_paths
from tests.support.corpus import CASES, write_case
from tests.support.opened import in_trio

DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}
CASE = next(
    case for case in CASES if len(case.encode().inner) > 3 and case.document["chunk_key_encoding"] == DEFAULT_KEYS
)


class Archive(ObjectReader):
    """Files that were read into memory once, as a source of another kind than those that there are."""

    url = "archive://x"
    address = Address(url)
    ttl = 60.0

    def __init__(self, directory: Path) -> None:
        files = (path for path in directory.rglob("*") if path.is_file())
        self._files = {str(path.relative_to(directory)): path.read_bytes() for path in files}

    def statistics(self) -> Mapping[str, object]:
        return {}

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}"

    async def check(self) -> Sequence[ListedName]:
        return await self.list("")

    async def stat(self, key: str) -> Stat:
        data = self._files.get(key)
        if data is not None:
            return Stat(Kind.FILE, len(data), hash(data), key, S_IFREG | 0o444, 0, 0, 1, 0, 0, 0, 0)
        if any(name.startswith(f"{key}/" if key else "") for name in self._files):
            return Stat(Kind.DIRECTORY, 0, "", key, S_IFDIR | 0o555, 0, 0, 2, 0, 0, 0, 0)
        raise NotFoundError(f"{key} does not exist")

    async def fresh(self, key: str) -> Stat:
        return await self.stat(key)

    def forget(self, key: str) -> None:
        pass

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        stat = await self.stat(key)
        if stat.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        return Bytes(self._files[key], stat)

    async def list(self, key: str) -> Sequence[ListedName]:
        start = f"{key}/" if key else ""
        names = {name[len(start) :].partition("/")[::2] for name in self._files if name.startswith(start)}
        return list({ListedName(name, Kind.DIRECTORY if below else Kind.FILE) for name, below in names})


class Bytes:
    """One version of a file."""

    def __init__(self, data: bytes, stat: Stat) -> None:
        self._data = data
        self.stat = stat
        self.size = len(data)

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        await trio.lowlevel.checkpoint()
        return self._data[offset : offset + nbytes]

    def content(self, offset: int, nbytes: int) -> Slice:
        return Slice(lambda start, count: self._data[start : start + count], offset, nbytes)

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        yield memoryview(self._data)

    def expect(self, offset: int, nbytes: int) -> None:
        pass

    async def distrust(self, offset: int, nbytes: int) -> bool:
        return False

    async def is_current(self) -> bool:
        return True

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        return False


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    encoded = write_case(CASE, tmp_path / "source")
    (tmp_path / "source" / "notes.txt").write_bytes(b"some notes")
    return encoded


@pytest.fixture
def reader(stored: Any, tmp_path: Path) -> Reader:
    return Archive(tmp_path / "source")


@in_trio
async def test_a_tree_shows_the_chunks_and_files_of_a_reader(stored: Any, reader: Reader) -> None:
    source = Source.of(reader, names=await reader.check())
    async with open_paths(source, TreeOptions()) as paths:
        assert {"zarr.json", "notes.txt"} <= {listed.name for listed in await paths.names("")}
        assert bytes(await paths.read("notes.txt")) == b"some notes"
        assert bytes(await paths.read("notes.txt", 5)) == b"notes"
        assert len(stored.inner) > 3
        for coords, chunk in stored.inner.items():
            assert bytes(await paths.read("/".join(["c", *map(str, coords)]))) == chunk


@in_trio
async def test_commands_read_a_reader(reader: Reader) -> None:
    source = Source.of(reader, names=await reader.check())
    report = await verify_source(source)
    assert (report.arrays, report.found) == (1, [])
    assert report.shards > 0
    assert [described["path"] for described in await describe_source(source)] == [""]
    assert await write_references(source, JsonReferences(StringIO())) == 0


@in_trio
async def test_a_reader_is_not_written_and_the_error_says_why(reader: Reader) -> None:
    source = Source.of(reader, names=await reader.check())
    with pytest.raises(SourceError, match="archive://x can only be read"):
        async with open_paths(source, TreeOptions(write=True)):
            pass
    with pytest.raises(SourceError, match="archive://x can only be read"):
        await recover_source(source, [], single_writer=False)
    async with open_paths(source, TreeOptions()) as paths:
        with pytest.raises(ReadOnlyError):
            await paths.publish("notes.txt", b"other")
    file = await reader.open_passthrough("notes.txt")
    with pytest.raises(ReadOnlyError):
        await file.write(0, b"x")
