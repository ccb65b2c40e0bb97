"""Open inner chunks whose bytes went away between open and read."""

from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from shardfs.errors import StaleError
from shardfs.stores.base import Kind, Stat
from shardfs.vfs.handles import Attributes, ChunkHandle
from tests.support.opened import in_trio

ATTRIBUTES = Attributes(7, 4, 0.0, Stat(Kind.FILE, 4, None, None, 0, 0, 0, 0, 0, 0, 0, 0))


@dataclass
class Bytes:
    """Stands in for an extent; None are bytes that are gone."""

    data: bytes | None
    nbytes: int = 4

    async def read(self, offset: int, nbytes: int) -> bytes:
        if self.data is None:
            raise StaleError("the shard was replaced")
        return self.data[offset : offset + nbytes]


def handle(extent: Bytes, now: Bytes | None = None) -> ChunkHandle:
    async def reopen() -> ChunkHandle | None:
        return ChunkHandle(ATTRIBUTES, now) if now is not None else None  # type: ignore[arg-type]

    return ChunkHandle(ATTRIBUTES, extent, reopen)  # type: ignore[arg-type]


@in_trio
async def test_a_chunk_that_nobody_read_yet_is_read_as_it_is_now() -> None:
    opened = handle(Bytes(None), Bytes(b"new!"))
    assert await opened.read(0, 2) == b"ne"
    assert await opened.read(2, 2) == b"w!"


@pytest.mark.parametrize("now", [None, Bytes(None), Bytes(b"longer", 6)], ids=["removed", "gone again", "another size"])
@in_trio
async def test_a_chunk_that_cannot_be_read_as_it_was_told_is_stale(now: Any) -> None:
    with pytest.raises(StaleError):
        await handle(Bytes(None), now).read(0, 4)


@in_trio
async def test_a_chunk_of_which_the_kernel_may_have_pages_is_never_read_as_another_version() -> None:
    opened = handle(Bytes(None), Bytes(b"new!"))
    opened.get_pages()
    with pytest.raises(StaleError):
        await opened.read(0, 2)


@in_trio
async def test_two_versions_are_never_mixed() -> None:
    extent = Bytes(b"old!")
    opened = handle(extent, Bytes(b"new!"))
    assert await opened.read(0, 2) == b"ol"
    extent.data = None
    with pytest.raises(StaleError):
        await opened.read(2, 2)
    with pytest.raises(StaleError):
        await opened.read(0, 2)


@in_trio
async def test_a_reader_of_the_present_version_stays_with_it_too() -> None:
    now = Bytes(b"new!")
    opened = handle(Bytes(None), now)
    assert await opened.read(0, 2) == b"ne"
    now.data = None
    with pytest.raises(StaleError):
        await opened.read(2, 2)


class Late(Bytes):
    """An extent whose second half is in memory, and whose first half comes, or is found gone, when a test says so."""

    def __init__(self, data: bytes | None) -> None:
        super().__init__(data)
        self.answers = trio.Event()

    async def read(self, offset: int, nbytes: int) -> bytes:
        if offset >= 2:
            return b"old!"[offset : offset + nbytes]
        await self.answers.wait()
        return await super().read(offset, nbytes)


@pytest.mark.parametrize("first", [0, 2], ids=["gone found first", "cached bytes first"])
@in_trio
async def test_reads_at_the_same_time_never_return_two_versions(first: int) -> None:
    extent, found = Late(None), dict[int, bytes | None]()
    opened = handle(extent, Bytes(b"new!"))

    async def read(offset: int) -> None:
        try:
            found[offset] = await opened.read(offset, 2)
        except StaleError:
            found[offset] = None

    async with trio.open_nursery() as nursery:
        for offset in (first, 2 - first):
            nursery.start_soon(read, offset)
            await trio.testing.wait_all_tasks_blocked()
        extent.answers.set()
    assert found == {0: None, 2: b"d!"}
