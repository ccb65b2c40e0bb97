"""Sources opened without a mount: store, shards, hierarchy and tree, under a clock that only a test moves."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import trio
from trio.testing import MockClock

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.shard_cache import ShardCache
from shardfs.dataset.statistics import Statistics
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.url import open_session
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import Attributes, ListingRow
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.views import ZarrV3
from tests.support.corpus import CASES, Case, write_case
from tests.support.datasets import age
from tests.support.encoder import Encoded

T = TypeVar("T")

_THREAD_SECONDS = 1.0
"""For how long threads work, at most, that wait for nothing that comes only when the clock jumps."""


def in_trio(test: Callable[..., Awaitable[None]], *, jump_after: float | None = None) -> Callable[..., None]:
    """Run an asynchronous test; with *jump_after* on a clock that jumps when nothing is done for so many seconds."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        main = partial(in_session, partial(test, *args, **kwargs))
        if jump_after is None:
            trio.run(main)
        else:
            run_in_leaps(main, jump_after=jump_after)

    return run


_SESSION: ContextVar[trio.Nursery] = ContextVar("_SESSION")


async def in_session(test: Callable[[], Awaitable[T]]) -> T:
    """Run *test* while there is a `session`."""
    async with open_session() as nursery:
        _SESSION.set(nursery)
        return await test()


def session() -> trio.Nursery:
    """The session in which the test that runs now opens its stores."""
    return _SESSION.get()


def run_in_leaps(main: Callable[[], Awaitable[None]], *, jump_after: float) -> None:
    """Run *main* on a clock that jumps when neither a task nor a thread has done anything for *jump_after* seconds."""
    clock, run_sync = MockClock(autojump_threshold=jump_after), trio.to_thread.run_sync
    jump, nworking, begun = clock._autojump, 0, 0.0

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal nworking, begun
        nworking, begun = nworking + 1, time.monotonic()
        try:
            return await run_sync(*args, **options)
        finally:
            nworking -= 1

    def jump_if_idle() -> None:
        if not nworking or time.monotonic() > begun + _THREAD_SECONDS:
            jump()

    clock._autojump = jump_if_idle  # type: ignore[method-assign]
    with patch.object(trio.to_thread, "run_sync", counted):
        trio.run(main, clock=clock)


class Clock:
    """Seconds, for `clock` arguments; they pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Opened:
    """A source below the mount."""

    store: LocalStore
    clock: Clock
    statistics: Statistics
    shards: ShardCache
    hierarchy: Hierarchy

    async def array(self, path: str = "") -> Array:
        array = (await self.hierarchy.node(path)).array
        assert array is not None
        return array


def open_source(root: Path, *, ttl: float = 1.0, store: Any = None, **limits: int) -> Opened:
    """Open *root*; *store* stands in for its `LocalStore`, *limits* are those of `ShardCache`."""
    store = store or LocalStore(str(root))
    clock, statistics = Clock(), Statistics()
    shards = ShardCache(store, ttl=ttl, statistics=statistics, clock=clock, **limits)
    return Opened(store, clock, statistics, shards, Hierarchy(store, shards, ttl=ttl, clock=clock))


async def open_tree(opened: Opened) -> Filesystem:
    fs = Filesystem(opened.store, opened.hierarchy, ZarrV3(), ChunkCache(0, Statistics()), ttl=1.0)
    await fs.start()
    return fs


def store_corpus(directory: Path) -> dict[str, Encoded]:
    """Write every case of the corpus below *directory*, aged."""
    encoded = {case.name: write_case(case, directory / case.name) for case in CASES}
    age(directory)
    return encoded


@dataclass(frozen=True)
class StoredCorpus:
    """The corpus on disk, not to be changed."""

    root: Path
    encoded: dict[str, Encoded]

    def path(self, case: Case) -> Path:
        return self.root / case.name


async def find(fs: Filesystem, path: str) -> Attributes:
    """Look *path* up, component by component; number 0 stands for nothing."""
    attributes = await fs.attributes(ROOT)
    for name in path.split("/"):
        attributes = await fs.lookup(attributes.ino, name.encode(errors="surrogateescape"))
        if not attributes.ino:
            break
    return attributes


async def read_file(fs: Filesystem, ino: int) -> bytes:
    """Open, read in pieces of 7 bytes and one of the rest, close."""
    number, handle = await fs.open(ino)
    size = handle.attributes.size
    data = b"".join([bytes(await handle.read(offset, 7)) for offset in range(0, min(size, 70), 7)])
    data += bytes(await handle.read(len(data), size + 1))
    fs.open_files.pop(number)
    return data


async def list_directory(fs: Filesystem, ino: int, cookie: int = 0) -> list[ListingRow]:
    """List a directory behind *cookie* with one handle, as a reply without end would."""
    return [row async for row, _ in rows(fs, ino, cookie)]


async def rows(fs: Filesystem, ino: int, cookie: int = 0) -> AsyncIterator[tuple[ListingRow, Attributes]]:
    """Yield the names of a directory, with the attributes that the listing gives each."""
    number = fs.open_directory(ino)
    handle = fs.open_directories[number]
    await handle.seek(cookie)
    while (batch := await handle.next_batch()) is not None:
        for row in batch.rows:
            fs.retain(row[1])
            yield row, batch.attributes._replace(ino=row[1], size=row[2])
    await fs.close_directory(number)
