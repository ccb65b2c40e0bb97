"""Journals whose process was killed, or whose machine lost power, at any call of the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.journal import Erase, Journal, JournalContents, Put, Shrink
from shardfs.errors import NoSpaceError, ReadOnlyError, StoreError
from shardfs.stores.durable import Disk
from tests.dataset.test_journal import (
    Scattered,
    contents_of,
    descriptor_of,
    intend,
    one_per_segment,
    opened,
    plain,
    put,
    segments_of,
)
from tests.support.crashing import QuickDisk
from tests.support.lossy_disk import Fault, Killed, LossyDisk, newest, oldest

PIECE = 2048


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content in pieces that a power cut can be tried on in many ways."""
    monkeypatch.setattr("shardfs.dataset.journal._PIECE_NBYTES", PIECE)


@dataclass
class Story:
    """What was done to a journal, and at which calls of its disk: that decides what may be read afterwards."""

    disk: LossyDisk
    journal: Journal
    tried: dict[int, tuple[int, Any]] = field(default_factory=dict)  # by sequence: call, what it says
    appended: dict[int, int] = field(default_factory=dict)  # the call before which it was complete
    synced: list[tuple[int, int]] = field(default_factory=list)  # call, up to which sequence
    done: dict[int, int] = field(default_factory=dict)  # the call from which on it may be gone
    replaced: dict[int, int] = field(default_factory=dict)  # by which
    keys: dict[int, Any] = field(default_factory=dict)
    newest: dict[Any, int] = field(default_factory=dict)

    @property
    def now(self) -> int:
        return len(self.disk.calls)

    def append(self, key: Any, action: Callable[[], Any]) -> None:
        call = self.now
        record = action()
        self.tried[record.sequence] = call, plain(record)
        self.appended[record.sequence] = self.now
        self.keys[record.sequence] = key
        if key in self.newest:
            self.replaced[self.newest[key]] = record.sequence
            self.journal.forget(self.newest[key], record.sequence)
        self.newest[key] = record.sequence

    def put(self, key: int, content: Any) -> None:
        self.append(key, lambda: put(self.journal, content, coords=(key,)))

    def erase(self, key: int) -> None:
        self.append(key, lambda: self.journal.append(Erase(0, "image/a", (key,), b"f" * 16, None, 1)))

    def sync(self) -> None:
        sequence = self.journal.last_sequence
        self.journal.sync()
        self.synced.append((self.now, sequence))

    def commit(self, keys: list[int]) -> None:
        """Do as a committer does: an intent, a sync, and then all of it is done."""
        sequences = [self.newest[key] for key in keys if key in self.newest]
        self.append("intent", lambda: intend(self.journal, sequences))
        self.sync()
        sequences.append(self.newest["intent"])
        for key in [*keys, "intent"]:
            self.newest.pop(key, None)
        self.done.update(dict.fromkeys(sequences, self.now))
        self.journal.finish(sequences)

    def carry_forward(self) -> None:
        self.journal.carry_forward({})

    def durable_at(self, call: int) -> int:
        return max((sequence for after, sequence in self.synced if after <= call), default=0)

    def may_be_gone(self, sequence: int, found: Any, call: int) -> bool:
        """Whether a record was done, or what replaced it is there or done."""
        if sequence in self.done:
            return self.done[sequence] <= call
        replacement = self.replaced.get(sequence)
        return replacement is not None and (replacement in found or self.may_be_gone(replacement, found, call))

    def check(self, contents: JournalContents, call: int, *, kept: int) -> None:
        """What was appended and not done is there, up to the sequence *kept*, and nothing is there that was not."""
        found = {record.sequence: plain(record) for record in contents.records}
        assert list(found) == sorted(found)
        for sequence, said in found.items():
            assert sequence in self.tried
            assert self.tried[sequence] == (self.tried[sequence][0], said)
        for sequence in self.tried:
            if sequence <= kept:
                assert sequence in found or self.may_be_gone(sequence, found, call)
        # No old record without the newer one that replaced it.
        for sequence in found:
            later = [s for s, key in self.keys.items() if key == self.keys[sequence] and sequence < s <= kept]
            assert not later or later[-1] in found


def story_of(disk: LossyDisk, path: Path, seed: int, steps: int = 25) -> Iterator[Story]:
    """Yield a story over and over again, after each of its steps."""
    chance = random.Random(seed)
    journal = Journal(descriptor_of(path), disk, segment_nbytes=8192)
    story = Story(disk, journal)
    yield story
    for _ in range(steps):
        key = chance.randrange(5)
        match chance.randrange(9):
            case 0 | 1 | 2:
                story.put(key, chance.randbytes(chance.choice([0, 10, 700, 3000, 9000])))
            case 3:
                story.put(key, Scattered(chance.randbytes(PIECE + chance.randrange(5000))))
            case 4:
                story.erase(key)
            case 5:
                story.sync()
            case 6:
                story.carry_forward()
            case _:
                story.commit([key, (key + 1) % 5])
        yield story
    if seed % 2:
        story.commit(list(range(5)))
    story.journal.close()
    yield story


def told(path: Path, seed: int, faults: dict[int, Fault] | None = None) -> Story:
    """Tell a story up to its end, or until its process is killed."""
    story = None
    with contextlib.suppress(Killed):
        for story in story_of(LossyDisk(path, faults), path, seed):  # noqa: B007
            pass
    assert story is not None
    return story


# Killed


@pytest.mark.parametrize("seed", range(3))
def test_what_was_appended_survives_being_killed_at_any_call(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    whole = told(path, seed)
    assert whole.now > 40
    chance = random.Random(seed)
    for call in range(whole.now):
        path = tmp_path / str(call)
        path.mkdir()
        written = chance.choice([0, 1, 30, 100, 5000])
        story = told(path, seed, {call: Fault(Killed(), written)})
        last = max(story.appended, default=0)
        interrupted = [record for record in contents_of(path).records if record.sequence > last]
        assert len(interrupted) <= 1  # it may have been complete in the file and yet not have returned
        for record in interrupted:
            story.tried[record.sequence] = call, plain(record)
            story.keys[record.sequence] = "interrupted"
        contents = contents_of(path)
        story.check(contents, call, kept=last)
        # A head in two halves, before its payload, cannot be told from damage; all else is seen to be unfinished.
        is_head = whole.disk.calls[call].offset < whole.disk.calls[call - 1].offset
        assert is_head or all(damage.is_torn for damage in contents.damage)
        assert_goes_on(path)


def assert_goes_on(path: Path) -> None:
    """A next journal in the same place takes over what there is, adds to it, and ends with nothing left."""
    contents = contents_of(path)
    journal = Journal(descriptor_of(path), QuickDisk(), contents)
    record = put(journal, b"the next")
    both = [*contents.records, record]
    assert [plain(read) for read in contents_of(path).records] == [plain(known) for known in both]
    journal.finish(record.sequence for record in both)
    journal.close()
    assert segments_of(path) == []
    assert contents_of(path).records == []


# Power cuts


def check_after_power_cut(story: Story, path: Path, call: int, choose: Callable[[int], int], **options: bool) -> None:
    story.disk.after_power_cut(path, choose, call, **options)
    contents = contents_of(path)
    story.check(contents, call, kept=story.durable_at(call))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sync_keeps_name", [False, True])
def test_what_was_synced_survives_a_power_cut_at_any_call(tmp_path: Path, seed: int, sync_keeps_name: bool) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    story = told(path, seed)
    chance = random.Random(seed)
    for call in range(story.now + 1):
        for choose in (oldest, newest, chance.randrange):
            cut = tmp_path / "cut"
            check_after_power_cut(story, cut, call, choose, sync_keeps_name=sync_keeps_name)
            assert_goes_on(cut)
            for name in os.listdir(cut):
                (cut / name).unlink()
            cut.rmdir()


def test_an_old_record_does_not_come_back_when_the_newer_one_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    disk = LossyDisk(path)
    journal, (old, new, other) = one_per_segment(path, 3, disk)
    journal.sync()
    journal.finish([old, new])
    for call in range(len(disk.calls) + 1):
        for number, choose in enumerate((oldest, newest, *(random.Random(n).randrange for n in range(8)))):
            cut = tmp_path / f"{call}-{number}"
            disk.after_power_cut(cut, choose, call)
            found = [record.sequence for record in contents_of(cut).records]
            assert found == sorted(found)
            if old in found and call > disk.names.index("sync_directory"):
                assert found == [old, new, other]


def test_a_replaced_record_survives_the_loss_of_its_replacement(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    disk = LossyDisk(path)
    journal = opened(path, disk)
    old, other = put(journal, b"old"), put(journal, b"committed")
    journal.sync()
    new = put(journal, b"x" * 5000)
    journal.forget(old.sequence, new.sequence)
    journal.finish([other.sequence])
    for seed in range(50):
        disk.after_power_cut(tmp_path / str(seed), random.Random(seed).randrange)
        found = [record.sequence for record in contents_of(tmp_path / str(seed)).records]
        assert old.sequence in found or new.sequence in found


def test_the_segment_of_a_replaced_record_goes_after_its_replacement_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    disk = LossyDisk(path)
    journal, (old,) = one_per_segment(path, 1, disk)
    journal.sync()
    new = put(journal, b"x" * 5000).sequence
    journal.forget(old, new)
    synced = len(disk.calls)
    journal.finish([])
    assert segments_of(path) == ["00000002.journal"]
    for call in range(synced, len(disk.calls) + 1):
        for seed in range(20):
            cut = tmp_path / f"{call}-{seed}"
            disk.after_power_cut(cut, random.Random(seed).randrange, call)
            assert {record.sequence for record in contents_of(cut).records} & {old, new}


def test_what_survived_being_killed_survives_a_power_cut_after_the_next_sync(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    first = opened(path, Disk(), segment_nbytes=4096)
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


# Carried forward


def whole_story(path: Path, disk: LossyDisk) -> tuple[Journal, list[Any]]:
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


def test_what_is_carried_forward_is_there_once_wherever_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    disk = LossyDisk(path)
    _, kept = whole_story(path, disk)
    said = [plain(record) for record in kept]
    synced = disk.names.index("sync_directory") + 1
    for call in range(synced, len(disk.calls) + 1):
        for number, choose in enumerate((oldest, newest, *(random.Random(n).randrange for n in range(4)))):
            cut = tmp_path / f"{call}-{number}"
            disk.after_power_cut(cut, choose, call)
            found = [plain(record) for record in contents_of(cut).records]
            assert [record for record in found if record in said] == said
            assert_goes_on(cut)
    for call in range(synced, len(disk.calls)):
        path = tmp_path / f"killed-{call}"
        path.mkdir()
        with pytest.raises(Killed):
            whole_story(path, LossyDisk(path, {call: Fault(Killed(), call % 3 * 100)}))
        records = contents_of(path).records
        assert [type(record) for record in records][: len(kept)] == [type(record) for record in kept]
        assert_goes_on(path)


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


# Errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("seed", range(3))
def test_an_error_at_any_call_loses_nothing_that_was_published(tmp_path: Path, seed: int, number: int) -> None:
    path = tmp_path / "whole"
    path.mkdir()
    whole = told(path, seed)
    for call in range(whole.now):
        path = tmp_path / str(call)
        path.mkdir()
        disk = LossyDisk(path, {call: Fault(OSError(number, os.strerror(number)), 50)})
        story = None
        steps = story_of(disk, path, seed)
        with contextlib.suppress(NoSpaceError, StoreError):
            for story in steps:  # noqa: B007
                pass
        assert story is not None
        story.check(contents_of(path), story.now, kept=max(story.appended, default=0))
        if not story.journal.is_failed:
            story.put(99, b"it goes on")
            story.sync()
            story.check(contents_of(path), story.now, kept=max(story.appended))
        elif disk.names[call] not in ("sync", "sync_directory"):
            with pytest.raises(ReadOnlyError, match="is closed"):
                story.journal.sync()


# Threads


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
