"""What views show of nodes whose documents are changed while they are looked at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardfs.errors import RefusedError
from shardfs.stores.local.syscalls import Syscalls
from shardfs.vfs.handles import Owner
from tests.crash.harness import Process
from tests.support.opened import find, in_trio


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
