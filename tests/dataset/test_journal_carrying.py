"""Records that are carried forward, and journals that are read and written at the same time.

What a kill, a power cut or an error leaves of them is in `tests/crash/test_log.py`.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Erase, Put, Shrink
from shardfs.stores.local.syscalls import Syscalls
from tests.dataset.test_journal import (
    Scattered,
    contents_of,
    descriptor_of,
    intend,
    opened,
    plain,
    put,
    segments_of,
)
from tests.support.lossy_disk import LossyDisk, QuickDisk

PIECE = 2048


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content in pieces that a power cut can be tried on in many ways."""
    monkeypatch.setattr("shardfs.dataset.wal.log._PIECE_NBYTES", PIECE)


def assert_goes_on(path: Path) -> None:
    """A next journal in the same place takes over what there is, adds to it, and ends with nothing left."""
    contents = contents_of(path)
    journal = WriteAheadLog(descriptor_of(path), QuickDisk(), contents)
    record = put(journal, b"the next")
    both = [*contents.records, record]
    assert [plain(read) for read in contents_of(path).records] == [plain(known) for known in both]
    journal.finish(record.sequence for record in both)
    journal.close()
    assert segments_of(path) == []
    assert contents_of(path).records == []


def whole_story(path: Path, disk: LossyDisk) -> tuple[WriteAheadLog, list[Any]]:
    """Records of all kinds in several segments, the oldest of which is carried forward again and again."""
    journal = opened(path, disk, segment_nbytes=4096)
    shrink = journal.append(Shrink(0, "image/a", (4,)))
    first, large = put(journal, b"first", coords=(1,)), put(journal, Scattered(os.urandom(3 * PIECE)), coords=(2,))
    erase = journal.append(Erase(0, "image/a", (3,), b"f" * 16, (5, 6), 1))
    intent = intend(journal, [first.sequence, erase.sequence])
    done = [put(journal, os.urandom(1500)).sequence for _ in range(6)]
    journal.sync()
    kept = [shrink, first, large, erase, intent]
    journal.finish(done)
    for _ in range(journal.nsegments):
        journal.carry_forward({record.sequence: record.payload for record in (first, large)})
    return journal, kept


def test_one_old_record_keeps_no_more_than_itself(tmp_path: Path) -> None:
    journal, kept = whole_story(tmp_path, LossyDisk(tmp_path))
    said = [plain(record) for record in kept]
    assert "00000001.journal" not in segments_of(tmp_path)
    assert journal.dead_nbytes < 500 < journal.live_nbytes
    contents = contents_of(tmp_path)
    assert [plain(record) for record in contents.records] == said
    assert contents.damage == []
    assert_goes_on(tmp_path)


def test_what_was_carried_forward_is_done_as_it_would_have_been(tmp_path: Path) -> None:
    journal, kept = whole_story(tmp_path, LossyDisk(tmp_path))
    for number, record in enumerate(kept):
        journal.finish([record.sequence])
        assert [plain(found) for found in contents_of(tmp_path).records] == [plain(left) for left in kept[number + 1 :]]
    journal.close()
    assert segments_of(tmp_path) == []


def test_a_replacement_of_what_was_carried_forward_comes_after_it(tmp_path: Path) -> None:
    journal, kept = whole_story(tmp_path, LossyDisk(tmp_path))
    new = put(journal, b"new", coords=(1,))
    journal.forget(kept[1].sequence, new.sequence)
    journal.carry_forward({})
    left = [record.sequence for record in contents_of(tmp_path).records]
    journal.sync()
    journal.finish([])
    expected = [record.sequence for record in (*kept, new) if record is not kept[1]]
    assert left in (expected, sorted([*expected, kept[1].sequence]))
    assert [record.sequence for record in contents_of(tmp_path).records] == expected


def test_bytes_are_read_on_while_their_record_is_carried_forward(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=4096)
    content = os.urandom(3000)
    record = put(journal, content)
    stop = threading.Event()
    failures: list[object] = []

    def read() -> None:
        while not stop.is_set():
            if record.payload.read(0, len(content)) != content:
                failures.append("other bytes")

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(100):
        journal.carry_forward({record.sequence: record.payload})
    stop.set()
    thread.join()
    assert failures == []
    assert len(segments_of(tmp_path)) == 1


def test_what_survived_being_killed_survives_a_power_cut_after_the_next_sync(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    first = opened(path, Syscalls(), segment_nbytes=4096)
    records = [put(first, os.urandom(1500)) for _ in range(5)]
    del first
    disk = LossyDisk(path)
    journal = opened(path, disk)
    synced: list[int] = []
    original = disk.sync
    disk.sync = lambda fd: (synced.append(os.fstat(fd).st_ino), original(fd))[1]  # type: ignore[method-assign]
    journal.sync()
    assert sorted(synced) == sorted((path / name).stat().st_ino for name in segments_of(path))
    assert journal.synced_sequence == records[-1].sequence


def test_reads_and_syncs_run_beside_appends(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_nbytes=100_000)
    published: list[tuple[Put, bytes]] = []
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                action()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        for record, content in published[-20:]:
            assert record.payload.read(0, len(content)) == content

    def sync() -> None:
        before = journal.last_sequence
        journal.sync()
        assert journal.synced_sequence >= before

    threads = [threading.Thread(target=repeat, args=(action,)) for action in (read, sync, sync)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    for n in range(1500):
        content = chance.randbytes(chance.randrange(3000))
        published.append((put(journal, content), content))
        if n % 50 == 49:
            journal.finish(record.sequence for record, _ in published[n - 49 : n])
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [plain(record) for record in contents_of(tmp_path).records] == [
        plain(record) for n, (record, _) in enumerate(published) if n % 50 == 49
    ]
