"""The process beside the daemon, and what is shown of large documents by it."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset.worker import LARGE_NBYTES, Worker
from shardfs.errors import RefusedError, StoreError
from shardfs.stores.local.syscalls import Syscalls
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.views import View, ZarrV2, ZarrV3
from tests.crash.harness import Process
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.documents import GROUP, write
from tests.support.opened import in_trio, open_source


@pytest.mark.slow
@in_trio
async def test_one_that_dies_needs_much_memory_or_is_given_up_is_replaced() -> None:
    worker, pids = Worker(), []

    async def note() -> None:
        pids.append(await worker.call(os.getpid))

    try:
        await note()
        with pytest.raises(StoreError, match="died"):
            await worker.call(os._exit, 3)
        await note()
        assert len(await worker.call(bytes, 200 * 2**20)) == 200 * 2**20
        await note()
        with pytest.raises(StoreError, match="memory"):
            await worker.call(bytes, 2**32)
        await note()
        with trio.move_on_after(0.1) as scope:
            await worker.call(time.sleep, 1000)
        assert scope.cancelled_caught
        with pytest.raises(ProcessLookupError):
            os.kill(pids[-1], 0)
        await note()
    finally:
        await worker.end()
    assert os.getpid() not in pids
    assert len(set(pids)) >= 4


def large_group(root: Path) -> dict[str, Any]:
    copy = array((10, 10), (4, 4), sharding((2, 2), LITTLE, GZIP), attributes={"note": "x" * LARGE_NBYTES})
    write(root / "a", copy)
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"a": copy}}
    group = {**GROUP, "attributes": {"few": 1}, "consolidated_metadata": consolidated}
    write(root, group)
    return group


@pytest.mark.slow
@pytest.mark.parametrize("view", [ZarrV3(), ZarrV2()], ids=["v3", "v2"])
@in_trio
async def test_large_documents_are_shown_as_small_ones_are(view: View, tmp_path: Path) -> None:
    group = large_group(tmp_path)
    expected = [view.documents(await open_source(tmp_path).hierarchy.node(path)) for path in ("", "a")]
    opened = open_source(tmp_path)
    fs = Filesystem(opened.store, opened.hierarchy, view, ChunkCache(0, opened.statistics), ttl=1.0)
    try:
        await fs.start()
        nodes = [await fs.hierarchy.node(path) for path in ("", "a")]
        assert [view.documents(node) for node in nodes] == expected
        assert nodes[0].stored is not None
        assert json.dumps(nodes[0].stored.document) == json.dumps(group)
    finally:
        await fs.worker.end()


@pytest.mark.slow
@in_trio
async def test_a_large_document_of_a_group_is_written_as_a_small_one_is(tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    stored = large_group(root)
    process = await Process.start(root, Syscalls())

    def edit(document: Any) -> None:
        assert "sharding_indexed" not in json.dumps(document)
        document["attributes"]["edited"] = True

    def spoil(document: Any) -> None:
        document["consolidated_metadata"]["metadata"]["a"]["chunk_grid"]["configuration"]["chunk_shape"] = [5, 5]

    try:
        await process.edit("", edit)
        stored["attributes"]["edited"] = True
        assert json.loads((root / "zarr.json").read_bytes()) == stored
        with pytest.raises(RefusedError, match="the copy of 'a'"):
            await process.edit("", spoil)
        assert json.loads((root / "zarr.json").read_bytes()) == stored
    finally:
        await process.finish()
        await process.fs.worker.end()
