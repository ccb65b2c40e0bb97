"""Undo records in every state: damaged, of another shard or place, with numbers that mean nothing.

Recovery goes on, changes no other file, and cuts no byte of a version that was whole.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.journal.records import UndoRecord
from shardfs.dataset.journal.recovery import open_journal, read_left
from tests.crash.harness import Process, apply, make_state, stored
from tests.crash.histories import payload_of
from tests.dataset.test_committing import tear
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio

in_leaps = partial(in_trio, jump_after=0.001)

NUMBERS = (0, 1, 15, 64, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TIMES = (0, -2, 10**9, 2**63 - 1, 2**63, 2**64, 10**18 * 2**62, 2**127 - 1, -(2**127))
AXES = ((), (0, 0), (1,), (7,), (2**63,), (2**64 - 1,), (0,) * 100)
PLACES = (
    "../out/kept",
    "/etc/hostname",
    "link/kept",
    "other/c/0",
    "end/c/1",
    "end/zarr.json",
    "end",
    "",
    "a\0b",
    "d/" * 900,
)
TEMPORARIES = (
    "../out/kept",
    "end/c/1",
    "zarr.json",
    "end",
    ".shardfs/0/lock",
    "/etc/hostname",
    "link/kept",
    "x" * 5000,
)
HOSTILE: Mapping[str, tuple[Any, ...]] = {
    "inode": NUMBERS,
    "old_nbytes": NUMBERS,
    "planned_nbytes": NUMBERS,
    "checksum": NUMBERS,
    "old_mtime_ns": TIMES,
    "old_index_hash": (b"", b"x" * 16, b"\0" * 60_000),
    "new_index_hash": (b"", b"x" * 16),
    "shard": AXES,
    "path": PLACES,
    "key": PLACES,
    "temporary": TEMPORARIES,
}


def files_of(root: Path) -> dict[str, bytes]:
    """All files of a source but what is torn, and those beside it."""
    return {
        str(path): path.read_bytes()
        for path in sorted(root.parent.rglob("*"))
        if path.is_file() and ".shardfs" not in path.parts and path != root / "end/c/0"
    }


@pytest.mark.slow
@pytest.mark.parametrize("by_command", [False, True], ids=["mount", "recover"])
@pytest.mark.parametrize("name", HOSTILE)
@in_leaps
async def test_an_undo_record_whatever_it_says_changes_no_other_file_and_cuts_nothing_that_was_whole(
    arrays: Path, monkeypatch: pytest.MonkeyPatch, name: str, by_command: bool
) -> None:
    process = await Process.start(arrays, QuickDisk())
    await process.write("end", 4, payload_of("end", 44))
    await process.finish()
    (arrays.parent / "out").mkdir()
    (arrays.parent / "out/kept").write_bytes(b"kept")
    (arrays / "link").symlink_to(arrays.parent / "out")
    before = await tear(arrays, "end", monkeypatch)
    others, torn = files_of(arrays), (arrays / "end/c/0").read_bytes()
    [undo] = [one for one in read_left(str(arrays / ".shardfs/0/journal")).records if isinstance(one, UndoRecord)]
    saved = {path: path.read_bytes() for path in (arrays / ".shardfs").rglob("*") if path.is_file()}
    for value in HOSTILE[name]:
        with (arrays / "end/c/0").open("r+b") as file:  # the same file, as the record says
            file.truncate(0)
            file.write(torn)
        shutil.rmtree(arrays / ".shardfs", ignore_errors=True)
        make_state(arrays)
        for path, data in saved.items():
            path.write_bytes(data)
        _, journal = open_journal(str(arrays / ".shardfs/0/journal"))
        journal.append(replace(undo, **{name: value}))
        journal.close()
        if by_command:
            await apply(arrays, QuickDisk())
        else:
            process = await Process.start(arrays, QuickDisk())
            process.writing.journal.close()
            process.writing.conflicts.close()
        assert files_of(arrays) == others, value
        assert (arrays / "end/c/0").read_bytes().startswith(before), value
        assert os.listdir(arrays.parent / "out") == ["kept"]
        assert await stored(arrays, "end", range(4, 5)) == [payload_of("end", 44)]
