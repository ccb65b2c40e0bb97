"""Unsharded arrays that are written below the mount, on disk and in a bucket, and what is left for recovery."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.dataset import commit, planning
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import read_journal
from shardfs.dataset.journal.records import Shrink
from shardfs.dataset.journal.recovery import Recovery, replay
from shardfs.dataset.shard import NewShard
from shardfs.dataset.writer import ChunkWriter
from shardfs.stores.base import ANY, Store
from shardfs.stores.local.syscalls import open_directory
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.stores.s3.requests import Condition
from tests.support.commands import run
from tests.support.corpus import array, extension, sharding
from tests.support.fake_s3 import FakeS3
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_session, in_trio
from tests.support.s3_writing import writing

Coords = tuple[int, ...]
OWNER = {"mode": 0o644, "uid": 0, "gid": 0}


@dataclass
class Life:
    """One process that reads and writes the array `a` of *store*, with its journal in a directory."""

    source: Source
    writer: ChunkWriter
    recovery: Recovery

    @classmethod
    async def begin(cls, store: Store, directory: Path) -> Life:
        for name in ("journal", "conflicts"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        source = Source.of(store, ttl=0.0)
        source.hierarchy.takes_unsharded = True
        opened = open_directory(str(directory / "journal"))
        contents = read_journal(opened)
        journal = Journal(opened, QuickDisk(), contents)
        conflicts = Journal(open_directory(str(directory / "conflicts")), QuickDisk())
        writer = ChunkWriter(source, commit.GroupCommit(source, journal, conflicts))
        return cls(source, writer, await replay(source, contents, writer.commits))

    def kill(self) -> None:
        """Let go of the journal as it is."""
        self.writer.journal.close()

    async def array(self) -> Array:
        found = (await self.source.hierarchy.node("a")).any_array
        assert found is not None
        return found

    async def put(self, coords: Coords, data: bytes) -> None:
        await self.writer.put(await self.array(), coords, MemoryContent(memoryview(data)), ino=1, mtime_ns=1, **OWNER)

    async def erase(self, coords: Coords) -> None:
        await self.writer.erase(await self.array(), coords, mtime_ns=1)

    async def commit(self) -> None:
        await self.writer.commits.flush()
        assert not self.writer.commits.npending

    async def read(self, coords: Coords) -> bytes | None:
        extent = await (await self.array()).extent(coords)
        return None if extent is None else bytes(await extent.read(0, extent.nbytes))

    async def listed(self) -> dict[Coords, int]:
        """The sizes of all chunks, as a listing has them; each must be there once, in order."""
        found: list[tuple[Coords, int]] = []
        array = await self.array()
        async for prefix in array.rows((0,) * (array.grid.ndim - 1)):
            async for part in array.list_row(prefix, 0):
                assert part.damaged is None
                found += [((*prefix, n), size) for n, size in zip(part.numbers, part.sizes, strict=True)]
        assert [coords for coords, _ in found] == sorted({coords for coords, _ in found})
        return dict(found)


async def store_array(store: Store, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> None:
    """Store an unsharded array of opaque chunks."""
    document = array(shape, chunk_shape, extension("bytes"), extension("opaque"), data_type="uint8")
    await store.make_directories("a")
    await store.replace("a/zarr.json", json.dumps(document).encode(), ANY)


# Whatever is done to it


class Step(NamedTuple):
    what: str
    coords: Coords
    data: bytes


STEPS = st.builds(
    Step,
    st.sampled_from(["put", "put", "put", "erase", "erase", "commit", "commit", "kill", "behind", "gone behind"]),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
    st.sampled_from([b"", b"a", b"b", b"d" * 5000, b"e" * 5000]),
)


class NoConditionOnDelete(FakeS3):
    """A bucket that deletes whatever the condition says."""

    async def delete(self, key: str, *, condition: Condition | None = None) -> None:
        await super().delete(key)


async def on_disk(directory: Path) -> Store:
    (directory / "source").mkdir()
    return LocalStore(str(directory / "source"), QuickDisk())


async def on_s3(directory: Path) -> Store:
    return await writing(FakeS3(), directory / "s3")


async def on_s3_without_conditions_on_delete(directory: Path) -> Store:
    return await writing(NoConditionOnDelete(), directory / "s3")


async def check(life: Life, model: dict[Coords, bytes]) -> None:
    assert await life.listed() == {coords: len(data) for coords, data in model.items()}
    for coords in [(i, j) for i in range(2) for j in range(2)]:
        assert await life.read(coords) == model.get(coords)


async def take(store: Store, directory: Path, steps: list[Step]) -> None:
    await store_array(store, (3, 4), (2, 2))
    model: dict[Coords, bytes] = {}
    life = await Life.begin(store, directory)
    for step in [*steps, Step("commit", (), b"")]:
        layout, listing = (await life.array()).layout, (await life.array()).listing
        match step.what:
            case "put":
                await life.put(step.coords, step.data)
                model[step.coords] = step.data
            case "erase":
                await life.erase(step.coords)
                model.pop(step.coords, None)
            case "commit":
                await life.commit()
                for coords, data in model.items():
                    stored = await store.open(layout.shard_key(coords))
                    assert bytes(await stored.read(0, stored.size)) == data
            case "kill":
                life.kill()
                life = await Life.begin(store, directory)
                assert not life.recovery.conflicts
            case _ if step.coords not in layout.pending.changes(step.coords):  # by another program
                key = layout.shard_key(step.coords)
                if step.what == "behind":
                    await store.make_directories(key.rpartition("/")[0])
                    await store.replace(key, step.data, ANY)
                    model[step.coords] = step.data
                else:
                    if not await store.is_absent(key):
                        await store.unlink(key)
                    model.pop(step.coords, None)
                listing.forget()
        await check(life, model)
    assert {entry.name for entry in await store.list("")} <= {"a", ".shardfs"}
    assert not await store.is_absent("a/zarr.json")


@pytest.mark.slow
@pytest.mark.parametrize("begin", [on_disk, on_s3, on_s3_without_conditions_on_delete])
def test_an_unsharded_array_is_a_mapping_of_coordinates_to_bytes(begin: Callable[[Path], Awaitable[Store]]) -> None:
    @given(st.lists(STEPS, max_size=12))
    @settings(max_examples=25)
    def holds(steps: list[Step]) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as directory:
                await take(await begin(Path(directory)), Path(directory), steps)

        trio.run(in_session, main)

    holds()


# Two hosts


async def two_hosts(tmp_path: Path, *codecs: Any) -> list[Life]:
    """Two processes that write the same array: 8 chunks of 3000 bytes, and 4 in a shard."""
    bucket, lives = FakeS3(), []
    document = array((24_000,), (12_000,), *codecs, data_type="uint8")
    for name in ("one", "other"):
        store = await writing(bucket, tmp_path / name)
        await store.make_directories("a")
        await store.replace("a/zarr.json", json.dumps(document).encode(), ANY)
        lives.append(await Life.begin(store, tmp_path / name))
    return lives


@in_trio
async def test_a_chunk_stays_listed_when_it_is_committed_to_a_shard_that_another_host_has_made(tmp_path: Path) -> None:
    one, other = await two_hosts(tmp_path, sharding((3000,), extension("bytes")))
    other.source.shards.ttl = 60.0
    assert not await other.listed()
    await one.put((0,), b"0")
    await one.commit()
    await other.put((1,), b"1")
    await other.commit()
    assert await other.listed() == {(0,): 1, (1,): 1}


@in_trio
async def test_a_shard_that_another_host_replaces_while_a_commit_reads_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await two_hosts(tmp_path, sharding((6000,), sharding((3000,), extension("bytes"))))
    build, is_first = planning.build, True

    async def after_another_commit(*args: Any, **options: Any) -> NewShard:
        nonlocal is_first
        if is_first:
            is_first = False
            await one.commit()
        return await build(*args, **options)

    for number in range(3):
        await one.put((number,), b"old" * 1000)
    await one.commit()
    await other.put((1,), b"new" * 1000)
    await one.put((2,), b"new" * 1000)
    monkeypatch.setattr(planning, "build", after_another_commit)
    await other.commit()
    assert [await one.read((number,)) for number in range(3)] == [b"old" * 1000, b"new" * 1000, b"new" * 1000]


@in_trio
async def test_a_nested_shard_that_another_host_has_replaced_is_opened_again(tmp_path: Path) -> None:
    """Within the TTL too: nothing can be read of the version that is known."""
    one, other = await two_hosts(tmp_path, sharding((6000,), sharding((3000,), extension("bytes"))))
    other.source.shards.ttl = 60.0
    for number in range(0, 8, 2):
        await one.put((number,), b"old" * 1000)
    await one.commit()
    for number in (0, 4):  # the index of another inner shard
        assert await (await other.array()).find((number,))
        await one.put((number,), b"new" * 1000)
    await one.commit()
    _, extent = await (await other.array()).find((2,))
    assert extent is not None
    assert await extent.read(0, 9) == b"oldoldold"
    assert await other.listed() == dict.fromkeys([(0,), (2,), (4,), (6,)], 3000)


# On disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source with the array `a` of 8 chunks, of which 0, 1 and 5 are stored."""
    root = tmp_path / "source"
    root.mkdir()
    trio.run(store_array, LocalStore(str(root)), (8,), (1,))
    (root / "a/c").mkdir()
    for number, data in ((0, b"zero"), (1, b""), (5, b"five" * 1000)):
        (root / f"a/c/{number}").write_bytes(data)
    return root


def chunks_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "a/c").iterdir()}


@pytest.mark.slow
@in_trio
async def test_what_another_program_changed_since_is_replaced_only_by_recover(root: Path) -> None:
    state = root / ".shardfs"
    life = await Life.begin(LocalStore(str(root)), state)
    for number in range(3):
        await life.put((number,), b"ours")
    life.kill()
    for number in (0, 2):  # of the same size as what was there, or as ours
        (root / f"a/c/{number}").write_bytes(b"them")
    again = await Life.begin(LocalStore(str(root)), state)
    assert {change.coords for change, _ in again.recovery.conflicts if not isinstance(change, Shrink)} == {(0,), (2,)}
    await again.commit()
    again.kill()
    assert [chunks_of(root)[name] for name in "012"] == [b"them", b"ours", b"them"]
    for options in ((), ("--apply",)):
        shown = await trio.to_thread.run_sync(run, "recover", *options, str(root))
        assert ("put aside: the new bytes of chunk 0 of a: another program" in shown.stdout) == (not options)
    assert [chunks_of(root)[name] for name in "012"] == [b"ours"] * 3
