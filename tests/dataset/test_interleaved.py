"""Tasks that write, read, list, commit and resize at the same time, each let in between any two steps of the others.

What is read is the content that was published last, or one of a write that is under way; what was published is listed.
"""

import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset.array import Array
from shardfs.errors import NotFoundError, StaleError
from shardfs.stores.base import ANY
from shardfs.stores.local.reader import LocalReader, LocalSnapshot
from tests.crash.harness import Process
from tests.crash.histories import ARRAYS, INNER, NCHUNKS, PER_SHARD, SHAPE, make_source, payload_of
from tests.dataset.test_whole import Life
from tests.support.corpus import array
from tests.support.fake_s3 import FakeS3
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio
from tests.support.s3_writing import TTL, writing

NWRITES = 60


@dataclass
class Chance:
    """Who is next, by a seed."""

    seed: int
    is_on: bool = True
    numbers: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = random.Random(self.seed)

    async def let_others(self, nturns: int) -> None:
        """Give the other tasks up to *nturns* turns."""
        for _ in range(self.numbers.randrange(nturns) if self.is_on else 0):
            await trio.lowlevel.checkpoint()

    def slow(self, monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
        """Let others in before and after these methods."""
        for name in names:
            monkeypatch.setattr(owner, name, self._slowed(getattr(owner, name)))

    def _slowed(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def slowed(*args: Any, **options: Any) -> Any:
            await self.let_others(6)
            found = await method(*args, **options)
            await self.let_others(6)
            return found

        return slowed


@dataclass
class Told:
    """The contents of each chunk of each array, in the order in which they were to be published, and how many are."""

    chance: Chance
    contents: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    npublished: dict[tuple[str, int], int] = field(default_factory=dict)
    nwriting: int = 0

    async def write(self, numbers: list[int], paths: list[str], publish: Callable[..., Awaitable[None]]) -> None:
        """Write chunks whose *numbers* nobody else writes to, in arrays at *paths*."""
        self.nwriting += 1
        for _ in range(NWRITES):
            path, number = self.chance.numbers.choice(paths), self.chance.numbers.choice(numbers)
            contents = self.contents.setdefault((path, number), [])
            contents.append(payload_of(path, self.chance.numbers.randrange(1, 10**6)))
            await publish(path, number, contents[-1])
            self.npublished[path, number] = len(contents)
            await self.chance.let_others(20)
        self.nwriting -= 1

    async def read(self, path: str, number: int, read: Callable[[], Awaitable[bytes | None]]) -> None:
        """Read a chunk, and check what is there."""
        npublished = self.npublished.get((path, number), 0)
        found = await read()
        contents = self.contents.get((path, number), [])
        may_be = contents[max(0, npublished - 1) :]
        assert found in may_be or (found is None and not npublished), (path, number)

    async def list(self, path: str, numbers: range, shown: Array) -> None:
        """List an array of one axis, and check that those of *numbers* that are published are there."""
        published = {number for number in numbers if self.npublished.get((path, number))}
        listed: dict[int, int] = {}
        async for run in shown.list_row((), 0):
            assert run.damaged is None
            listed |= dict(zip(run.numbers, run.sizes, strict=True))
        assert published <= listed.keys(), path
        for number in numbers:
            sizes = {len(content) for content in self.contents.get((path, number), [])}
            assert number not in listed or listed[number] in sizes, (path, number)


async def again(publish: Callable[[], Awaitable[None]]) -> None:
    """Do as a program does that is told that its array has changed meanwhile."""
    for _ in range(100):
        with suppress(StaleError, NotFoundError):
            await publish()
            return
    await publish()


async def bytes_of(shown: Array, number: int, *, fresh: bool) -> bytes | None:
    _, extent = await shown.find((number,), fresh=fresh)
    return None if extent is None else bytes(await extent.read(0, extent.nbytes))


@pytest.fixture
def chances(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Chance]:
    def make(seed: int) -> Chance:
        chance = Chance(seed)
        chance.slow(monkeypatch, LocalSnapshot, "read", "is_current")
        chance.slow(monkeypatch, LocalReader, "list", "open", "stat_in", "is_absent")
        chance.slow(monkeypatch, FakeS3, "_pass")
        return chance

    return make


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@in_trio
async def test_what_is_published_is_read_and_listed_while_others_commit_and_resize(
    tmp_path: Path, chances: Callable[[int], Chance], seed: int
) -> None:
    root = tmp_path / "source"
    make_source(root)
    process = await Process.start(root, QuickDisk(), v2=True)
    chance = chances(seed)
    choose, told, paths = chance.numbers, Told(chance), [*ARRAYS]

    async def shown(path: str) -> Array:
        found = (await process.writing.source.hierarchy.node(path)).any_array
        assert found is not None
        return found

    async def publish(path: str, number: int, data: bytes) -> None:
        await again(lambda: process.write(path, number, data))

    async def read() -> None:
        while told.nwriting:
            path, number = choose.choice(paths), choose.randrange(NCHUNKS)
            found = await shown(path)
            fresh = choose.random() < 0.5
            await told.read(path, number, lambda: bytes_of(found, number, fresh=fresh))  # noqa: B023
            await trio.lowlevel.checkpoint()

    async def list_all() -> None:
        while told.nwriting:
            path = choose.choice(paths)
            await told.list(path, range(NCHUNKS), await shown(path))
            await trio.lowlevel.checkpoint()

    async def commit() -> None:
        while told.nwriting:
            await chance.let_others(60)
            await process.writing.commit()

    async def resize() -> None:
        """As another program does: chunks that are written to stay in the array."""
        while told.nwriting:
            await chance.let_others(200)
            document = root / choose.choice(paths) / "zarr.json"
            new = json.loads(document.read_text()) | {"shape": [INNER * choose.choice([8, 9, 12])]}
            document.with_suffix(".new").write_text(json.dumps(new))
            document.with_suffix(".new").rename(document)
            await trio.lowlevel.checkpoint()

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for first in range(3):
                nursery.start_soon(told.write, [*range(first, NCHUNKS, 3)], paths, publish)
            await trio.lowlevel.checkpoint()
            for task in (read, read, list_all, commit, resize):
                nursery.start_soon(task)
    chance.is_on = False
    await process.writing.commit()
    for (path, number), contents in told.contents.items():
        assert await bytes_of(await shown(path), number, fresh=True) == contents[-1]
    process.check_done()
    await process.finish()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in ARRAYS if kind != "unchecked"])
@in_trio
async def test_two_hosts_that_write_chunks_of_the_same_shards_lose_nothing(
    tmp_path: Path, chances: Callable[[int], Chance], kind: str
) -> None:
    fake, chance = FakeS3(), chances(1)
    chance.is_on = False
    hosts = []
    for name in ("first", "second"):
        store = await writing(fake, tmp_path / name)
        if not hosts:
            inner = INNER if kind == "unsharded" else INNER * PER_SHARD
            document = array([SHAPE], [inner], *ARRAYS[kind], data_type="uint8", attributes={})
            await store.make_directories("a")
            await store.replace("a/zarr.json", json.dumps(document).encode(), ANY)
        host = await Life.begin(store, tmp_path / f"{name} journal")
        host.source.shards.ttl = TTL
        hosts.append(host)
    chance.is_on = True
    told = Told(chance)

    async def work(host: Life, first: int) -> None:
        numbers = range(first, NCHUNKS, 2)

        async def publish(_: str, number: int, data: bytes) -> None:
            await host.put((number,), data)

        async def read() -> None:
            while told.nwriting:
                number, shown = chance.numbers.choice(numbers), await host.array()
                fresh = chance.numbers.random() < 0.5
                with suppress(StaleError):  # the other host was faster than the request
                    await told.read(kind, number, lambda: bytes_of(shown, number, fresh=fresh))  # noqa: B023
                await trio.lowlevel.checkpoint()

        async def list_all() -> None:
            while told.nwriting:
                await told.list(kind, numbers, await host.array())
                await trio.lowlevel.checkpoint()

        async def commit() -> None:
            while told.nwriting:
                await chance.let_others(100)
                await host.writer.commits.flush()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.write, [*numbers], [kind], publish)
            await trio.lowlevel.checkpoint()
            for task in (read, list_all, commit):
                nursery.start_soon(task)

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for first, host in enumerate(hosts):
                nursery.start_soon(work, host, first)
    for host in hosts:
        await host.commit()
    chance.is_on = False
    reader = await Life.begin(await writing(fake, tmp_path / "third"), tmp_path / "third journal")
    for (_, number), contents in told.contents.items():
        assert await reader.read((number,)) == contents[-1]
