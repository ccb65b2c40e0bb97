"""Drafts: where the bytes of files that are being written are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardfs.vfs import write_buffer
from shardfs.vfs.write_buffer import BufferBytes, BufferSpace


def test_many_open_drafts_take_no_more_memory_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "_MAX_MEMORY", 100)
    space = BufferSpace(str(tmp_path))
    opened = [BufferBytes(space) for _ in range(20)]
    for number, draft in enumerate(opened):
        draft.write(0, bytes([number]) * 10)
    assert space.memory <= 100
    for number, draft in enumerate(opened):
        assert bytes(draft.read(0, 11)) == bytes([number]) * 10
        draft.clear()
        assert draft.nbytes == 0
    assert space.memory == 0
