"""Tables of a source: what they hold at most, and how long it takes to forget what is below a directory."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset import array as array_module
from shardfs.dataset import consolidated, hierarchy, layout, node, path_table, shard_cache
from shardfs.dataset.path_table import PathTable, is_below
from shardfs.errors import StoreError
from shardfs.format.lens.v3 import V3
from shardfs.stores import cache
from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.opened import Opened, in_trio, open_source
from tests.support.steps import counted_steps

MODULES = (array_module, cache, consolidated, hierarchy, layout, node, path_table, shard_cache)
SHARDED = json.dumps(array((8,), (4,), sharding((2,))))
NOT_SHOWN = json.dumps(array((8,), (4,), extension("crc32c"), sharding((2,))))
PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map("/".join)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), PATHS)), PATHS)
def test_a_table_finds_what_is_below_a_directory(changes: list[tuple[bool, str]], directory: str) -> None:
    table, model = PathTable[int](), dict[str, int]()
    for number, (adds, path) in enumerate(changes):
        if adds:
            table[path] = model[path] = number
        else:
            assert table.pop(path, None) == model.pop(path, None)
    assert dict(table) == model
    found = table.below(directory)
    assert sorted(found) == sorted(path for path in model if is_below(path, directory))
    for path in [*table]:
        del table[path]
    assert not table._names


def store_arrays(root: Path, count: int, document: str = SHARDED) -> None:
    for number in range(count):
        (root / f"group/a{number}").mkdir(parents=True)
        (root / f"group/a{number}/zarr.json").write_text(document)


async def load(opened: Opened, count: int) -> list[object]:
    """Look at all arrays, and at a shard of each; returns what a mount keeps of them."""
    found: list[object] = []
    for number in range(count):
        known = await opened.hierarchy.node(f"group/a{number}")
        assert known.array is not None
        await known.array.find((0,))
        found.append(known)
    return found


FORGET: dict[str, Callable[[Opened], None]] = {
    "gone": lambda opened: opened.hierarchy.gone("group"),
    "moved": lambda opened: opened.hierarchy.moved("group", "other"),
}


@pytest.mark.slow
@pytest.mark.parametrize("forget", FORGET.values(), ids=FORGET)
@in_trio
async def test_thousands_of_arrays_are_forgotten_in_as_many_steps_each_as_a_few(
    tmp_path: Path, forget: Callable[[Opened], None]
) -> None:
    steps: list[float] = []
    for count in (100, 400):
        root = tmp_path / str(count)
        store_arrays(root, count)
        opened = open_source(root)
        kept = await load(opened, count)
        for number in range(0, count, 2):
            opened.hierarchy.show_as_stored(f"group/a{number}")
        for number in range(1, count, 2):
            assert opened.hierarchy.keep_removed(await opened.hierarchy.node(f"group/a{number}"))
        with counted_steps(*MODULES) as counted:
            forget(opened)
        steps.append(counted[0] / len(kept))
    assert steps[1] < 1.5 * steps[0]


@pytest.mark.slow
@in_trio
async def test_to_forget_one_array_takes_as_many_steps_however_many_others_are_known(tmp_path: Path) -> None:
    steps = []
    for count in (10, 500):
        root = tmp_path / str(count)
        store_arrays(root, 1)
        store(root / "large", array((500, 8), (500, 8), sharding((1, 1))))
        opened = open_source(root)
        large = (await opened.array("large")).layout
        for number in range(count):
            large.locate((number, 0))
        for number in range(count):
            opened.hierarchy.show_as_stored(f"other/a{number}")
            opened.hierarchy.copies.announce(f"other/a{number}")
        await opened.hierarchy.node("group/a0")
        with counted_steps(*MODULES) as counted:
            opened.hierarchy.gone("group/a0")
            await opened.hierarchy.node("group/a0")
        steps += counted
    assert steps[0] == steps[1]


@in_trio
async def test_of_what_was_logged_only_the_latest_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_LOGGED", 5)
    store_arrays(tmp_path, 20, NOT_SHOWN)
    opened = open_source(tmp_path, ttl=0.0)
    opened.hierarchy.show(V3(decodes=True))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for number in range(20):
                await opened.hierarchy.node(f"group/a{number}", fresh=True)
            opened.hierarchy.forget("")
        await opened.hierarchy.node("group/a19", fresh=True)
    assert opened.hierarchy._logged.count == 5
    assert sum("a19 " in record.message for record in caplog.records if "view" in record.message) == 2


@in_trio
async def test_half_a_document_is_no_verdict_on_any_array_however_many_were_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that have read the document would get shards for chunks."""
    monkeypatch.setattr(hierarchy, "_MAX_SEEN", 5)
    store_arrays(tmp_path, 20)
    opened = open_source(tmp_path, ttl=0.0)
    for number in range(20):
        await opened.hierarchy.node(f"group/a{number}")
    assert opened.hierarchy._seen_arrays._identities.count == 5
    opened.hierarchy.forget("")
    for number in (0, 19):
        path = tmp_path / f"group/a{number}/zarr.json"
        with path.open("r+b") as file:
            file.truncate(20)
        with pytest.raises(StoreError, match="is being written"):
            await opened.hierarchy.node(f"group/a{number}")
        os.utime(path, (time.time() - 60, time.time() - 60))
        assert (await opened.hierarchy.node(f"group/a{number}")).reason is not None
