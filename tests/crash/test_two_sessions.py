"""A session is killed, perhaps the one that recovers it too, and another one commits beside what they left.

The other one cannot take over what was left, as one of another user: it finds no more than the lock of the shard. What
it commits last counts, of the same size and in the same place as what was torn, whoever recovers what was left then.
"""

import errno
import gc
import os
import random
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import read_left
from shardfs.dataset.maintenance.others import SessionsBeside
from shardfs.errors import LockedError, StoreError
from shardfs.stores.base import Descriptor
from shardfs.stores.local import shards
from shardfs.stores.local.shards import LocalEdit
from shardfs.stores.local.syscalls import Syscalls, begin_to_write, end_change
from shardfs.stores.local.tree import LocalStore
from tests.crash.crashes import IS_LONG, Crashes
from tests.crash.harness import Process, stored
from tests.crash.histories import Operation, payload_of
from tests.support.lossy_disk import Killed, Machine, QuickDisk

op = Operation

KILLED, BESIDE = 10, 77
"""Seeds of what the killed session wrote, and of what the other one did."""


async def beside(root: Path, path: str) -> None:
    """Let another session commit the same chunks."""
    process = await Process.start(root, QuickDisk(), slot=1)
    for number in (1, 2):
        await process.write(path, number, payload_of(path, BESIDE + number))
    await process.commit()
    await process.finish()
    process.check_done()


@pytest.mark.parametrize("path", ["unchecked", "nested"])
def test_what_another_session_committed_is_never_taken_for_what_a_killed_one_has_torn(
    template: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(path)
    crashes = Crashes(tmp_path, template, [op("put", path, (1, 2), KILLED), op("commit")], chance)
    crashes.kind = {"at_once": False}  # as the other session appends, too: with the same sizes the index is the same
    machine, _ = crashes.whole()
    # A state that is built keeps inode numbers by second names.
    monkeypatch.setattr("shardfs.stores.local.shards._has_several_names", lambda _: False)

    def nobody(_: Any) -> list[Any]:
        return []

    def check(root: Path, where: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(SessionsBeside, "_slots", nobody)
            trio.run(beside, root, path)
        trio.run(recover_both, root)
        found = trio.run(stored, root, path, range(5))
        wanted = [payload_of(path, BESIDE + number) for number in (1, 2)]
        assert found[1:3] == wanted, where
        assert None not in (found[0], found[4]), where

    kills = crashes.kills(machine)
    for at in kills:
        root = crashes.after("killed")
        machine.after_kill(at, crashes.any_part()).build(root)
        second = Machine(root, **crashes.kind)
        assert not crashes.recover(root, second)
        stops = crashes.kills(second)
        for stop in stops if IS_LONG else chance.sample(stops, min(4, len(stops))):
            again = crashes.after("again")
            second.after_kill(stop, crashes.any_part()).build(again)
            check(again, f"killed at {at}, its recovery at {stop}")
        root = crashes.after("killed")
        machine.after_kill(at, crashes.any_part()).build(root)
        check(root, f"killed at {at}")


async def recover_both(root: Path) -> None:
    """Recover what was left; conflicts are fine, as both wrote the same chunks."""
    process = await Process.start(root, QuickDisk())
    await process.finish()


def test_what_was_published_beside_what_another_killed_session_has_torn_fits_once_that_is_undone(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, path = tmp_path / "source", "end"
    shutil.copytree(template, root)
    monkeypatch.setattr(SessionsBeside, "_slots", lambda _: [])

    async def publish_and_tear() -> None:
        published = await Process.start(root, QuickDisk())
        await published.write(path, 1, payload_of(path, BESIDE))
        torn = await Process.start(root, QuickDisk(), slot=1)
        await torn.write(path, 2, payload_of(path, KILLED))
        with monkeypatch.context() as patched:
            patched.setattr(LocalEdit, "splice", tear)
            with pytest.raises(StoreError):
                await torn.commit()

    async def tear(edit: LocalEdit, *_: object) -> None:
        with (root / edit.key).open("ab") as file:
            file.write(b"a part of it")
        raise StoreError("killed")

    async def recover() -> None:
        process = await Process.start(root, QuickDisk())
        await (await Process.start(root, QuickDisk(), slot=1)).finish()
        await process.finish()
        process.check_done()

    trio.run(publish_and_tear)
    trio.run(recover)
    wanted = [payload_of(path, BESIDE), payload_of(path, KILLED)]
    assert trio.run(stored, root, path, range(1, 3)) == wanted


FAILURES = {
    "the append failed": "",
    "so did noting that": "commit.disarmed",
    "so did noting it later": "undo.disarmed",
    "the journal could not be made durable": "announced",
}
"""What happens to a commit, and what fails besides."""


class FailingSyncs(QuickDisk):
    """A disk that may not be able to make files durable."""

    fails = False

    def sync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("beyond", FAILURES.values(), ids=FAILURES)
def test_what_is_committed_after_a_commit_of_another_failed_is_not_taken_for_that(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: str
) -> None:
    root, path = tmp_path / "source", "unchecked"
    shutil.copytree(template, root)
    append = shards._append_through_cache

    def fails(syscalls: Syscalls, fd: int, change: Any) -> None:
        append(syscalls, fd, change)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def cannot_be_noted(*_: object) -> None:
        raise StoreError("the journal cannot be written")

    async def commit_and_fail() -> None:
        journal = FailingSyncs()
        process = await Process.start(root, QuickDisk(), journal=journal)
        for number in (1, 2):
            await process.write(path, number, payload_of(path, KILLED + number))
        journal.fails = beyond == "announced"
        with monkeypatch.context() as patched:
            patched.setattr(shards, "_append_through_cache", fails)
            if beyond.endswith("disarmed"):
                patched.setattr("shardfs.dataset.commit.disarmed", cannot_be_noted)
            with pytest.raises(StoreError):
                await process.commit()
        if beyond == "undo.disarmed":
            (root / path / "c/0.__lock").unlink(missing_ok=True)  # a power cut may take it
            with monkeypatch.context() as patched:
                patched.setattr("shardfs.dataset.journal.undo.disarmed", cannot_be_noted)
                await Process.start(root, QuickDisk())

    trio.run(commit_and_fail)
    with monkeypatch.context() as patched:
        patched.setattr(SessionsBeside, "_slots", lambda _: [])
        trio.run(beside, root, path)
    trio.run(recover_both, root)
    wanted = [payload_of(path, BESIDE + number) for number in (1, 2)]
    assert trio.run(stored, root, path, range(1, 3)) == wanted
    assert not list(root.rglob("*.__lock"))


async def kill_before_append(root: Path, path: str) -> None:
    """Let a session be killed when its commit is announced, and the shard locked, but not changed."""

    async def dies(*_: object) -> None:
        raise Killed

    async def stays(*_: object) -> None:
        pass

    process = await Process.start(root, QuickDisk())
    for number in (1, 2):
        await process.write(path, number, payload_of(path, KILLED + number))
    with (
        patch.object(LocalEdit, "splice", dies),
        patch.object(LocalEdit, "release", stays),
        pytest.raises((Killed, BaseExceptionGroup)),
    ):
        await process.commit()


@pytest.mark.parametrize("is_open", [False, True], ids=["", "while a program has the shard open"])
def test_what_is_committed_after_a_session_was_killed_that_had_announced_it_stays(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """And what that one had published is kept, as a conflict."""
    root, path = tmp_path / "source", "unchecked"
    shutil.copytree(template, root)
    trio.run(kill_before_append, root, path)
    gc.collect()  # the lock of the file ends with its last reference
    assert (root / path / "c/0.__lock").exists()

    async def commit_beside() -> None:
        if is_open:
            file = Descriptor(os.open(root / path / "c/0", os.O_RDWR))
            begin_to_write(file.fd)
            source = Source.of(LocalStore(str(root)), ttl=0.0)
            with pytest.raises(LockedError):
                async with source.writable.edit(f"{path}/c/0"):
                    pass
            end_change(file.fd)
        await beside(root, path)

    monkeypatch.setattr(SessionsBeside, "_slots", lambda _: [])
    trio.run(commit_beside)
    trio.run(recover_both, root)
    wanted = [payload_of(path, BESIDE + number) for number in (1, 2)]
    assert trio.run(stored, root, path, range(1, 3)) == wanted
    assert len(read_left(str(root / ".shardfs/0/conflicts")).records) == 2


def test_what_is_published_before_an_earlier_commit_can_be_settled_is_not_taken_for_part_of_it(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the record of that commit is carried forward, behind what was published since."""
    root, path = tmp_path / "source", "unchecked"
    shutil.copytree(template, root)
    splice = LocalEdit.splice

    async def dies(edit: LocalEdit, *more: Any) -> None:
        await splice(edit, *more)
        raise Killed

    async def commit_and_die() -> None:
        process = await Process.start(root, QuickDisk())
        await process.write(path, 1, payload_of(path, KILLED))
        with patch.object(LocalEdit, "splice", dies), pytest.raises((Killed, BaseExceptionGroup)):
            await process.commit()

    async def publish() -> None:
        disk = FailingSyncs()
        disk.fails = True
        process = await Process.start(root, disk, journal=QuickDisk())
        await process.write(path, 3, payload_of(path, BESIDE))
        await process.clean()

    monkeypatch.setattr(SessionsBeside, "_slots", lambda _: [])
    for step in (commit_and_die, publish):
        trio.run(step)
        gc.collect()
    trio.run(recover_both, root)
    assert trio.run(stored, root, path, range(1, 4, 2)) == [payload_of(path, KILLED), payload_of(path, BESIDE)]


def test_what_was_stored_before_its_record_was_carried_forward_is_no_conflict_when_another_one_replaced_it(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, path = tmp_path / "source", "unchecked"
    shutil.copytree(template, root)
    splice = LocalEdit.splice

    async def dies(edit: LocalEdit, *more: Any) -> None:
        await splice(edit, *more)
        raise Killed

    async def commit_and_die() -> None:
        process = await Process.start(root, QuickDisk())
        for number in (1, 2):
            await process.write(path, number, payload_of(path, KILLED + number))
        with patch.object(LocalEdit, "splice", dies), pytest.raises((Killed, BaseExceptionGroup)):
            await process.commit()

    async def carry_forward() -> None:
        disk = FailingSyncs()
        disk.fails = True
        process = await Process.start(root, disk, journal=QuickDisk())
        await process.clean()

    monkeypatch.setattr(SessionsBeside, "_slots", lambda _: [])
    for step in (commit_and_die, carry_forward):
        trio.run(step)
        gc.collect()
    trio.run(beside, root, path)
    trio.run(recover_both, root)
    wanted = [payload_of(path, BESIDE + number) for number in (1, 2)]
    assert trio.run(stored, root, path, range(1, 3)) == wanted
    assert not read_left(str(root / ".shardfs/0/conflicts")).records
