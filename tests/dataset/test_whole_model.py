"""An unsharded array that is read and written through `Array` and a journal is a mapping of coordinates to bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.stores.base import Store, join_key
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.s3.requests import Condition
from tests.support.fake_s3 import FakeS3
from tests.support.lossy_disk import QuickDisk
from tests.support.s3_writing import writing
from tests.support.whole import FLAT, PATH, Coords, Life, store_document, whole_document


class Step(NamedTuple):
    what: str
    coords: Coords
    data: bytes


SHAPE, CHUNK = (3, 4), (2, 2)
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


async def local(directory: Path) -> Store:
    (directory / "source").mkdir()
    return LocalStore(str(directory / "source"), QuickDisk())


async def s3(directory: Path) -> Store:
    return await writing(FakeS3(), directory / "s3")


async def s3_without_conditions_on_delete(directory: Path) -> Store:
    return await writing(NoConditionOnDelete(), directory / "s3")


BEGIN: list[Callable[[Path], Awaitable[Store]]] = [local, s3, s3_without_conditions_on_delete]


async def check(life: Life, model: dict[Coords, bytes]) -> None:
    assert await life.listed() == {coords: len(data) for coords, data in model.items()}
    for coords in [(i, j) for i in range(2) for j in range(2)]:
        assert await life.read(coords) == model.get(coords)


async def take(store: Store, directory: Path, members: dict[str, Any], steps: list[Step]) -> None:
    await store_document(store, whole_document(SHAPE, CHUNK, **members))
    model: dict[Coords, bytes] = {}
    life = await Life.begin(store, directory)
    for step in steps:
        key = (await life.array()).layout.shard_key(step.coords)
        match step.what:
            case "put":
                await life.put(step.coords, step.data)
                model[step.coords] = step.data
            case "erase":
                await life.erase(step.coords)
                model.pop(step.coords, None)
            case "commit":
                await life.writer.commits.flush()
                assert not life.writer.commits.npending
                for coords, data in model.items():
                    stored = await store.open((await life.array()).layout.shard_key(coords))
                    assert bytes(await stored.read(0, stored.size)) == data
            case "kill":
                life.kill()
                life = await Life.begin(store, directory)
                assert not life.recovery.conflicts
            case "behind" if step.coords not in (await life.array()).layout.pending.changes:
                await store.make_directories(key.rpartition("/")[0])
                await store.replace(key, step.data)
                (await life.array()).listing.forget()
                model[step.coords] = step.data
            case "gone behind" if step.coords not in (await life.array()).layout.pending.changes:
                if not await store.is_absent(key):
                    await store.unlink(key)
                (await life.array()).listing.forget()
                model.pop(step.coords, None)
        await check(life, model)
    await life.writer.commits.flush()
    await check(life, model)
    assert {name for name in [entry.name for entry in await store.list("")] if name != ".shardfs"} <= {PATH}
    assert not await store.is_absent(join_key(PATH, "zarr.json"))


@pytest.mark.parametrize(
    ("begin", "members"),
    [*((begin, {}) for begin in BEGIN), (local, FLAT)],
    ids=[*(f"{begin.__name__}-nested" for begin in BEGIN), "local-flat"],
)
def test_an_unsharded_array_is_a_mapping_of_coordinates_to_bytes(
    begin: Callable[[Path], Awaitable[Store]], members: dict[str, Any]
) -> None:
    @given(st.lists(STEPS, max_size=12))
    @settings(max_examples=25)
    def run(steps: list[Step]) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as directory:
                await take(await begin(Path(directory)), Path(directory), members, steps)

        trio.run(main)

    run()
