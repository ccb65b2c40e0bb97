"""Nodes: what an edit of a document changes, and documents that cannot be read or change at the moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardfs.dataset import hierarchy
from shardfs.errors import AccessDeniedError, ShardfsError, StoreError
from tests.support.corpus import edited
from tests.support.documents import write
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source


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
