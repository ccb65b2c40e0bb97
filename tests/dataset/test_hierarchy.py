"""Nodes: which directories are what, and what an edit of a document changes."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.lens.show import V3Shower
from tests.support.corpus import BASE, GZIP, LITTLE, ZSTD, edited, extension, sharding, transpose
from tests.support.documents import later, write
from tests.support.gated import GatedStore
from tests.support.opened import in_trio, open_source


@in_trio
async def test_a_node_is_trusted_for_the_ttl_and_kept_while_nothing_changes(root: Path) -> None:
    source = open_source(root, ttl=5.0)
    node = await source.hierarchy.node("a")
    assert source.hierarchy.remaining("a") == 5.0
    assert source.hierarchy.remaining("never asked for") == 0.0
    write(root / "a", edited(("attributes",), {"changed": 1}))
    source.clock.now += 4
    assert await source.hierarchy.node("a") is node
    assert source.hierarchy.remaining("a") == 1.0
    source.clock.now += 1
    changed = await source.hierarchy.node("a")
    assert json.loads(changed.document or b"")["attributes"] == {"changed": 1}
    assert source.hierarchy.remaining("a") == 5.0
    source.clock.now += 100
    assert await source.hierarchy.node("a") is changed


@pytest.mark.parametrize(
    ("edit", "kept"),
    [
        (BASE, True),
        (edited(("attributes",), {"note": "text"}), True),
        (edited(("fill_value",), 7), True),
        (edited(("data_type",), "float32"), True),
        (edited(("dimension_names",), ["y", "x"]), True),
        (edited(("codecs",), [sharding((2, 3), LITTLE, ZSTD)]), True),
        (edited(("codecs",), [sharding((2, 3), "bytes", "gzip")]), True),
        (edited(("chunk_key_encoding",), "default"), True),
        (edited(("shape",), [8, 11]), False),
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
    after = (await later(source)).array
    assert after is not None
    assert (after.layout is before.layout) == kept
    assert after.document["attributes" if "attributes" in edit else "codecs"] is not None
    assert {key: after.document[key] for key in ("shape", "fill_value", "data_type")} == {
        key: edit[key] for key in ("shape", "fill_value", "data_type")
    }


@in_trio
async def test_many_who_ask_for_a_node_at_once_get_the_same_one(root: Path) -> None:
    """Else each had chunks of its own, and the inodes of all but one were stale at once."""

    async def slow(key: str, offset: int, nbytes: int) -> None:
        await trio.lowlevel.checkpoint()

    source = open_source(root, store=GatedStore(root, slow))
    found: set[int] = set()
    nodes = []

    async def ask() -> None:
        node = await source.hierarchy.node("a")
        assert node.array is not None
        nodes.append(node)
        found.add(id(node.array.layout))

    for change in ({}, {"shape": [8, 11]}):
        write(root / "a", BASE | change)
        source.clock.now += 1
        found.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len(found) == 1


@in_trio
async def test_few_of_very_many_nodes_are_kept(root: Path) -> None:
    source = open_source(root)
    for i in range(5000):
        (root / f"d{i}").mkdir()
        await source.hierarchy.node(f"d{i}")
    assert source.hierarchy.remaining("d0") == 0.0
    assert source.hierarchy.remaining("d4999") == 1.0


@in_trio
async def test_the_largest_document_is_kept_while_other_nodes_are_looked_at(root: Path) -> None:
    """To make what is shown of one can take ten seconds."""
    write(root / "a", edited(("attributes",), {"text": "x" * (MAX_DOCUMENT_NBYTES - 2**12)}))
    hierarchy = open_source(root).hierarchy
    hierarchy.show(V3Shower())
    node = await hierarchy.node("a")
    assert node.memory > 2 * (MAX_DOCUMENT_NBYTES - 2**12)
    await hierarchy.node("")
    assert await hierarchy.node("a") is node


@in_trio
async def test_a_document_that_is_replaced_while_it_is_loaded_is_loaded_again(root: Path) -> None:
    """Else its writer is shown what was there before, for the length of a TTL."""
    before = root / "a" / "zarr.json"

    async def replaced(key: str, offset: int, nbytes: int) -> None:
        if key == "a/zarr.json" and not (root / "old.json").exists():
            before.rename(root / "old.json")
            write(root / "a", edited(("attributes",), {"changed": 1}))
            hierarchy.forget("a")

    hierarchy = open_source(root, ttl=60.0, store=GatedStore(root, replaced)).hierarchy
    for _ in range(2):
        assert json.loads((await hierarchy.node("a")).document or b"")["attributes"] == {"changed": 1}


@in_trio
async def test_a_reason_is_logged_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = open_source(root)
    write(root / "a", b"{")
    for _ in range(5):
        await later(source)
        os.utime(root / "a")
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("a is shown as stored: ")
    write(root / "a", BASE)
    assert (await later(source)).array is not None
    write(root / "a", b"[]")
    await later(source)
    assert len(caplog.records) == 2


@in_trio
async def test_a_document_that_is_rewritten_while_it_is_read_is_read_again(root: Path) -> None:
    writes = 2

    async def rewrite(key: str, offset: int, nbytes: int) -> None:
        nonlocal writes
        if key == "a/zarr.json" and writes:
            writes -= 1
            os.utime(root / "a" / "zarr.json", ns=(writes, writes))

    node = await open_source(root, store=GatedStore(root, rewrite)).hierarchy.node("a")
    assert node.array is not None
