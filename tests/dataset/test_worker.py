"""The process beside the daemon, and what is shown of large documents by it."""

from __future__ import annotations

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
from shardfs.vfs.handles import Owner
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.views import View, ZarrV2, ZarrV3
from tests.crash.harness import Process
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.documents import write
from tests.support.opened import find, in_trio, open_source, read_file


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
    copy = array((10, 10), (4, 4), sharding((2, 2), LITTLE, GZIP), attributes={"note": "x" * 1000})
    copies = {"a": copy} | {f"b{i}": copy for i in range(200)}
    for name in copies:
        write(root / name, copy)
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"much": "y" * 1000},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": copies},
    }
    write(root, group)
    assert (root / "zarr.json").stat().st_size > LARGE_NBYTES
    return group


@pytest.mark.parametrize("view", [ZarrV3(), ZarrV2()], ids=["v3", "v2"])
@in_trio
async def test_large_documents_are_shown_as_small_ones_are_and_keep_nobody_waiting(view: View, tmp_path: Path) -> None:
    group = large_group(tmp_path)
    large = array((10, 10), (4, 4), sharding((2, 2), LITTLE), attributes={"_FillValue": 1, "much": "z" * LARGE_NBYTES})
    write(tmp_path / "large", large | {"dimension_names": ["y", "x"]})
    opened = open_source(tmp_path)
    expected = [view.documents(await opened.hierarchy.node(path)) for path in ("", "large")]
    opened = open_source(tmp_path)
    fs = Filesystem(opened.store, opened.hierarchy, view, ChunkCache(0, opened.statistics), ttl=1.0)
    turns = 0

    async def work(scope: trio.CancelScope) -> None:
        nonlocal turns
        while not scope.cancel_called:
            turns += 1
            await trio.sleep(0.001)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, nursery.cancel_scope)
            await fs.start()
            nodes = [await fs.hierarchy.node(path) for path in ("", "large")]
            nursery.cancel_scope.cancel()
        assert turns >= 20
        assert [view.documents(node) for node in nodes] == expected
        assert all(node.metadata is not None and "attributes" not in node.metadata.document for node in nodes)
        stored = nodes[0].stored
        assert stored is not None
        assert json.dumps(stored.document) == json.dumps(group)
        chunks = view.chunk_view(nodes[1])
        assert chunks is not None
        assert (chunks.missing is None) == isinstance(view, ZarrV3)
    finally:
        await fs.worker.end()


@in_trio
async def test_a_large_document_of_a_group_is_written_as_a_small_one_is(tmp_path: Path) -> None:
    root = tmp_path / "source"
    root.mkdir()
    stored = large_group(root)
    process = await Process.start(root, Syscalls())
    try:
        fs, files, owner = process.fs, process.writing.changes, Owner(os.geteuid(), os.getegid())
        ino = (await find(fs, "zarr.json")).ino
        edited = json.loads(await read_file(fs, (await find(fs, "zarr.json")).ino))
        assert "sharding_indexed" not in json.dumps(edited)
        edited["attributes"]["edited"] = True
        text = json.dumps(edited).encode()
        file, _, _ = await files.create(ROOT, b"zarr.json", 0o644, os.O_WRONLY | os.O_TRUNC, owner)
        await files.fs.open_files[file].write(0, text)
        await files.fs.open_files[file].flush()
        stored["attributes"]["edited"] = True
        assert json.loads((root / "zarr.json").read_bytes()) == stored
        assert await read_file(fs, (await find(fs, "zarr.json")).ino) == text
        assert (await find(fs, "zarr.json")).ino != ino

        edited["consolidated_metadata"]["metadata"]["a"]["chunk_grid"]["configuration"]["chunk_shape"] = [5, 5]
        await files.fs.open_files[file].write(0, json.dumps(edited).encode())
        with pytest.raises(RefusedError, match="the copy of 'a'"):
            await files.fs.open_files[file].flush()
        assert json.loads((root / "zarr.json").read_bytes()) == stored
    finally:
        await process.finish()
        await process.fs.worker.end()
