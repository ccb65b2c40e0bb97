"""What views show of nodes whose documents are changed while they are looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shardfs.dataset.hierarchy import Node
from shardfs.errors import RefusedError
from shardfs.stores.local.syscalls import Syscalls
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import Owner
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.views import ZarrV2
from tests.crash.harness import Process
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.opened import find, in_trio, list_directory, open_source


class Disturbed(ZarrV2):
    """A view that is told of a node just before it is another one."""

    disturb: Callable[[], object] | None = None

    def documents(self, node: Node) -> Mapping[str, bytes]:
        found = super().documents(node)
        disturb, self.disturb = self.disturb, None
        if disturb is not None:
            disturb()
        return found


@in_trio
async def test_a_node_that_is_replaced_while_it_is_listed_or_looked_up_shows_as_it_was(tmp_path: Path) -> None:
    document = array((8, 6), (4, 6), sharding((2, 3), LITTLE), attributes={"a": 1})
    store(tmp_path, document)
    opened, view = open_source(tmp_path, ttl=0.0), Disturbed()
    fs = Filesystem(opened.store, opened.hierarchy, view, ChunkCache(0, opened.statistics), ttl=0.0)
    await fs.start()

    def replace() -> None:
        (tmp_path / "new").write_text(json.dumps(document | {"attributes": {"a": "another one"}}))
        os.replace(tmp_path / "new", tmp_path / "zarr.json")

    view.disturb = replace
    listed = {name for name, *_ in await list_directory(fs, ROOT)}
    assert {b".zarray", b".zattrs"} < listed
    view.disturb = replace
    assert (await fs.lookup(ROOT, b".zattrs")).ino


@in_trio
async def test_an_array_that_gets_other_codecs_takes_what_is_written_for_these_and_nothing_else(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    before = await process.array("end")
    chunks, files, owner = await find(process.fs, "end/c"), process.writing.changes, Owner(0, 0)
    early, _, _ = await files.create(chunks.ino, b"1", 0o644, os.O_CREAT | os.O_WRONLY, owner)
    await files.fs.open_files[early].write(0, b"encoded as before")
    document = json.loads((root / "end/zarr.json").read_text())
    document["codecs"][0]["configuration"]["codecs"].append({"name": "gzip", "configuration": {"level": 1}})
    (root / "end/zarr.json").write_text(json.dumps(document))
    chunks = await find(process.fs, "end/c")
    number, _, _ = await files.create(chunks.ino, b"0", 0o644, os.O_CREAT | os.O_WRONLY, owner)
    await files.fs.open_files[number].write(0, b"encoded as now")
    await files.fs.open_files[number].flush()
    with pytest.raises(RefusedError, match="other codecs"):
        await files.fs.open_files[early].flush()
    await process.writing.commit()
    now = await process.array("end")
    assert now.layout is before.layout
    assert [(await now.find((n,)))[1] is not None for n in (0, 1)] == [True, False]
