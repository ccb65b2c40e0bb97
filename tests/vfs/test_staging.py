"""Chunk files that an earlier mount put aside, when a mount begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from shardfs.dataset import committer
from shardfs.dataset.lock import StateDirectory
from shardfs.stores.durable import Disk
from tests.support.crashing import INNER, NCHUNKS, Process, make_source
from tests.support.opened import in_trio


@in_trio
async def test_more_than_may_be_pending_is_brought_into_shards_before_a_mount_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_MAX_PENDING", 3)
    root = tmp_path / "source"
    make_source(root)
    aside = root / StateDirectory(str(root)).staged_key / "unchecked/.chunks/c"
    aside.mkdir(parents=True)
    for number in range(NCHUNKS):
        (aside / str(number)).write_bytes(bytes([number]) * INNER)
    with trio.fail_after(10):
        process = await Process.start(root, Disk())
    array = await process.array("unchecked")
    for number in range(NCHUNKS):
        extent = await array.extent((number,))
        assert extent is not None
        assert await extent.read(0, INNER) == bytes([number]) * INNER
    assert not aside.exists()
