"""Open directories: replies of any length, dropped tails, and seeking back and forth."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import StoreError
from shardfs.stores.base import Kind, Stat
from shardfs.vfs.handles import Attributes, Batch, DirectoryHandle, Row
from tests.support.opened import in_trio

STATUS = Stat(Kind.FILE, 0, None, None, 0, 0, 0, 0, 0, 0, 0, 0)


class Directory:
    """A listing of *cookies*, in batches of *sizes*, that counts how often it is started and what it yields."""

    def __init__(self, cookies: list[int], sizes: list[int]) -> None:
        self.cookies = cookies
        self.sizes = sizes
        self.starts: list[int] = []
        self.running = 0
        self.yielded = 0

    async def __call__(self, cookie: int) -> AsyncGenerator[Batch, None]:
        self.starts.append(cookie)
        self.running += 1
        try:
            rest = [row(each) for each in self.cookies if each > cookie]
            sizes = iter(self.sizes * len(rest))
            while rest:
                n = next(sizes)
                self.yielded += n
                yield Batch(Attributes(n, 0, 0.0, STATUS), rest[:n])
                rest = rest[n:]
        finally:
            self.running -= 1


def row(cookie: int) -> Row:
    return b"name %d" % cookie, cookie, 0, cookie


async def reply(handle: DirectoryHandle, cookie: int, room: int) -> list[int]:
    """One request of the kernel: as many names behind *cookie* as there is room for."""
    await handle.seek(cookie)
    taken: list[int] = []
    while (batch := await handle.next_batch()) is not None:
        for each in batch.rows:
            if len(taken) == room:
                return taken
            taken.append(each[3])
    return taken


cookie_lists = st.sets(st.integers(1, 60), max_size=25).map(sorted)
batch_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(cookie_lists, batch_sizes, st.lists(st.integers(1, 9), min_size=1))
def test_replies_of_any_length_make_one_listing(cookies: list[int], sizes: list[int], rooms: list[int]) -> None:
    async def main() -> None:
        directory = Directory(cookies, sizes)
        handle = DirectoryHandle(1, directory)
        found: list[int] = []
        for room in rooms * (len(cookies) + 1):
            taken = await reply(handle, found[-1] if found else 0, room)
            if not taken:
                break
            found += taken
        assert found == cookies
        assert directory.starts == [0], "a listing that is read on is started once"
        assert directory.yielded <= len(cookies) + max(sizes)
        await handle.close()
        assert directory.running == 0

    trio.run(main)


@given(cookie_lists, batch_sizes, st.lists(st.tuples(st.integers(0, 62), st.integers(0, 9)), max_size=12))
def test_every_request_is_answered_from_its_cookie(
    cookies: list[int], sizes: list[int], requests: list[tuple[int, int]]
) -> None:
    async def main() -> None:
        directory = Directory(cookies, sizes)
        handle = DirectoryHandle(1, directory)
        for cookie, room in requests:
            assert await reply(handle, cookie, room) == [each for each in cookies if each > cookie][:room]
        await handle.close()
        assert directory.running == 0

    trio.run(main)


@in_trio
async def test_a_dropped_tail_is_answered_again_without_a_new_listing() -> None:
    directory = Directory(list(range(1, 21)), [8])
    handle = DirectoryHandle(1, directory)
    assert await reply(handle, 0, 5) == [1, 2, 3, 4, 5]
    assert await reply(handle, 5, 2) == [6, 7]
    assert await reply(handle, 7, 3) == [8, 9, 10]
    assert await reply(handle, 7, 3) == [8, 9, 10], "the kernel may ask the same again"
    assert await reply(handle, 9, 20) == list(range(10, 21))
    assert directory.starts == [0]


@in_trio
async def test_rewinding_starts_again() -> None:
    directory = Directory([1, 2, 3], [2])
    handle = DirectoryHandle(1, directory)
    assert await reply(handle, 0, 9) == [1, 2, 3]
    directory.cookies = [2, 4]
    assert await reply(handle, 0, 9) == [2, 4]
    assert directory.starts == [0, 0]
    assert directory.running == 0


@in_trio
async def test_a_listing_that_failed_goes_on_where_it_failed() -> None:
    failures = [StoreError("the disk did not answer")]

    async def listing(cookie: int) -> AsyncGenerator[Batch, None]:
        for each in range(cookie + 1, 5):
            if each == 3 and failures:
                raise failures.pop()
            yield Batch(Attributes(each, 0, 0.0, STATUS), [row(each)])

    handle = DirectoryHandle(1, listing)
    await handle.seek(0)
    taken = [await handle.next_batch(), await handle.next_batch()]
    with pytest.raises(StoreError):
        await handle.next_batch()
    await handle.seek(2)
    while (batch := await handle.next_batch()) is not None:
        taken.append(batch)
    assert [batch.rows[0][3] for batch in taken if batch is not None] == [1, 2, 3, 4]
