"""The lock of a source: who is believed to have it, and that it goes with its process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardfs.dataset.state import StateDirectory, locked
from shardfs.errors import SourceError
from shardfs.stores.local import syscalls

LOCAL = [0xEF53, 0x9123683E, 0x2FC12FC1]
"""ext4, btrfs, ZFS"""
SHARED = [0x6969, 0xFF534D42, 0x65735546, 0xC36400, 0x47504653, 0x19830326, 0x7461636F, None]
"""NFS, CIFS, FUSE, Ceph, GPFS, BeeGFS, OCFS2, unknown"""


def left_by_another_host(root: Path) -> StateDirectory:
    state = StateDirectory(str(root))
    os.makedirs(state.path, exist_ok=True)
    holder = {"pid": 1, "host": "elsewhere", "boot": "another", "started": "1"}
    Path(state.lock).write_text(json.dumps(holder))
    return state


def test_the_lock_file_of_another_host_is_believed_unless_the_file_system_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = left_by_another_host(tmp_path)
    for number in SHARED:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _, number=number: number)
        with pytest.raises(SourceError, match="elsewhere"), locked(state):
            pass
    for number in LOCAL:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _, number=number: number)
        with locked(left_by_another_host(tmp_path)):
            pass


@pytest.mark.parametrize("text", ["[" * 4000, '{"pid": 1e999, "host": "x"}', '{"pid": "x", "host": "x"}', "7", "\0"])
def test_what_a_lock_file_says_keeps_nobody_from_locking_it(tmp_path: Path, text: str) -> None:
    state = left_by_another_host(tmp_path)
    Path(state.lock).write_text(text)
    with locked(state):
        pass
