"""Nodes: what an edit of a document changes, and documents that cannot be read or change at the moment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset import hierarchy
from shardfs.errors import AccessDeniedError, ShardfsError, StoreError
from tests.support.corpus import BASE, GZIP, LITTLE, ZSTD, edited, extension, sharding, transpose
from tests.support.documents import write
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source


@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        (edited(("attributes",), {"note": "text"}), True),
        (edited(("fill_value",), 7), True),
        (edited(("codecs",), [sharding((2, 3), LITTLE, ZSTD)]), True),
        (edited(("chunk_key_encoding",), "default"), True),
        (edited(("shape",), [3, 11]), False),
        (edited(("chunk_grid",), extension("regular", chunk_shape=[4, 3])), False),
        (edited(("codecs",), [sharding((1, 3), LITTLE, GZIP)]), False),
        (edited(("codecs",), [sharding((2, 3), LITTLE, index_location="start")]), False),
        (edited(("codecs",), [sharding((2, 3), LITTLE, index_codecs=[LITTLE])]), False),
        (edited(("codecs",), [sharding((2, 3), LITTLE), GZIP]), False),
        (edited(("codecs",), [transpose(1, 0), sharding((3, 2), LITTLE)]), False),
        (edited(("chunk_key_encoding",), "v2"), False),
    ],
    ids=lambda value: json.dumps(value)[-60:],
)
@in_trio
async def test_the_arrangement_is_kept_while_chunks_lie_where_they_lay(root: Path, edit: Any, kept: bool) -> None:
    source = open_source(root)
    before = await source.array("a")
    write(root / "a", edit)
    source.clock.now += 1
    after = await source.array("a")
    assert (after.layout is before.layout) == kept
    assert [after.document[key] for key in ("shape", "fill_value")] == [edit[key] for key in ("shape", "fill_value")]


@in_trio
async def test_many_who_ask_for_a_node_at_once_get_the_same_one(root: Path) -> None:
    """Else each had chunks of its own, and the inodes of all but one were stale at once."""

    async def slow(key: str, offset: int, nbytes: int) -> None:
        await trio.lowlevel.checkpoint()

    async def ask() -> None:
        layouts.append((await source.array("a")).layout)

    source = open_source(root, store=GatedStore(root, slow))
    for change in ({}, {"shape": [8, 11]}):
        write(root / "a", BASE | change)
        source.clock.now += 1
        layouts: list[object] = []
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert layouts == layouts[:1] * 5


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "rewritten"])
@in_trio
async def test_a_document_that_changes_while_it_is_loaded_is_loaded_again(root: Path, is_replaced: bool) -> None:
    """Else its writer is shown what was there before, for the length of a TTL."""
    changed = edited(("attributes",), {"changed": 1})

    async def change(key: str, offset: int, nbytes: int) -> None:
        if key == "a/zarr.json" and not (root / "old").exists():
            (root / "old").touch()
            if is_replaced:
                write(root / "a", changed)
                source.hierarchy.forget("a")
            else:
                (root / key).write_text(json.dumps(changed))
                os.utime(root / key, (1e9, 1e9))

    source = open_source(root, ttl=60.0, store=GatedStore(root, change))
    for _ in range(2):
        assert (await source.array("a")).document["attributes"] == {"changed": 1}


@pytest.mark.parametrize(
    ("error", "is_known"),
    [(StoreError("no answer"), False), (StoreError("no answer"), True), (AccessDeniedError("not now"), True)],
)
@in_trio
async def test_a_document_that_cannot_be_read_at_the_moment_does_not_show_shards(
    root: Path, error: ShardfsError, is_known: bool
) -> None:
    async def fail(key: str, offset: int, nbytes: int) -> None:
        if key.endswith("zarr.json") and failing:
            raise error

    failing = False
    source = open_source(root, store=GatedStore(root, fail))
    if is_known:
        await source.array("a")
        os.utime(root / "a/zarr.json")
        source.clock.now += 1
    failing = True
    with pytest.raises(type(error)):
        await source.hierarchy.node("a")
    failing = False
    await source.array("a")


@pytest.mark.parametrize("max_nodes", [hierarchy._MAX_NODES, 1], ids=["known", "forgotten"])
@in_trio
async def test_a_document_that_is_being_written_in_place_does_not_show_shards(
    root: Path, monkeypatch: pytest.MonkeyPatch, max_nodes: int
) -> None:
    monkeypatch.setattr(hierarchy, "_MAX_NODES", max_nodes)
    source = open_source(root)
    array = await source.array("a")
    await source.hierarchy.node("")
    document = root / "a/zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    source.clock.now += 1
    with pytest.raises(StoreError):
        await source.hierarchy.node("a")
    document.write_text(text)
    source.clock.now += 1
    assert (await source.array("a")).layout is array.layout
