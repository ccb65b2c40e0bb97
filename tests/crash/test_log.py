"""What was published and is not in its shard yet, wherever the process or the machine stopped."""

import errno
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import zarr

from shardfs.errors import ShardfsError
from shardfs.stores.local.syscalls import Syscalls
from tests.crash.crashes import IS_LONG, Crashes, live
from tests.crash.harness import Process, apply
from tests.crash.histories import INNER, Operation
from tests.support.lossy_disk import Fault, Machine, QuickDisk, oldest

PATH = "unchecked"


def put(*chunks: int, seed: int) -> Operation:
    return Operation("put", PATH, chunks, seed)


def erase(*chunks: int) -> Operation:
    return Operation("erase", PATH, chunks)


SYNC, CLEAN, COMMIT = Operation("sync"), Operation("clean"), Operation("commit")

APART = [put(0, seed=10), put(1, 2, 3, seed=20), SYNC, put(0, seed=30), put(5, seed=40), SYNC, COMMIT]
REPLACED = [put(0, 1, 2, seed=10), SYNC, put(0, 1, 2, seed=20), put(0, seed=30), erase(1), CLEAN]
CARRIED = [put(0, 1, seed=10), erase(4), SYNC, put(1, 2, 3, seed=20), put(2, 3, seed=30), *3 * [CLEAN]]


def test_what_is_carried_forward_is_there_wherever_it_stops(template: Path, tmp_path: Path) -> None:
    cut_often(Crashes(tmp_path, template, CARRIED, random.Random(1)), CLEAN)


def test_an_old_version_does_not_come_back_when_the_newer_one_is_gone(template: Path, tmp_path: Path) -> None:
    cut_often(Crashes(tmp_path, template, APART, random.Random(2)), COMMIT)


def test_a_recovery_forgets_what_was_replaced_only_when_what_replaced_it_is_durable(
    template: Path, tmp_path: Path
) -> None:
    crashes = Crashes(tmp_path, template, [put(0, seed=10), SYNC, put(0, seed=20)], random.Random(0))
    written = crashes.whole()[1].past[-1][0]
    stop, is_killed = 0, True
    while is_killed:
        root, machine, book = crashes.begin()
        assert crashes.live(root, machine, book, written)
        is_killed = crashes.recover(root, machine, stop)
        for seed in range(8):
            state = machine.after_power_cut(random.Random(seed).randrange, len(machine.calls) - is_killed)
            crashes.check_state(state, book, power_cut=True)
        stop += 1


async def mount(root: Path, disk: Syscalls) -> None:
    await (await Process.start(root, disk)).finish()


@pytest.mark.parametrize("recover", [mount, apply])
def test_what_does_not_fit_any_more_is_kept_and_applied_wherever_a_recovery_stops(
    template: Path, tmp_path: Path, recover: Callable[[Path, Syscalls], Awaitable[None]]
) -> None:
    history = [put(0, 1, 5, seed=10), SYNC, put(0, seed=20), erase(2), SYNC]
    crashes = Crashes(tmp_path, template, history, random.Random(4))
    written = crashes.whole()[1].past[-1][0]
    root, machine, book = crashes.begin()
    assert crashes.live(root, machine, book, written)
    zarr.open_array(root / PATH, mode="r+")[: 3 * INNER] = 7
    machine = Machine(root)
    trio.run(recover, root, machine)
    for at in range(len(machine.calls) + 1):
        for is_cut in (False, True):
            if is_cut:
                state = machine.after_power_cut(crashes.any_choice(), at, keeps_inodes=True)
            else:
                state = machine.after_kill(at, crashes.any_part())
            crashes.check_state(state, book, power_cut=is_cut, first=apply)


def cut_often(crashes: Crashes, since: Operation, times: int = 12 if IS_LONG else 1) -> None:
    """Cut the power in many ways at every call from the first operation *since* on."""
    machine, book = crashes.whole()
    begun = next(call for call, then in book.past if then.started == since)
    for at in range(begun, len(machine.calls) + 1):
        for choose in (oldest, *times * [crashes.chance.randrange]):
            crashes.check_state(machine.after_power_cut(choose, at, keeps_inodes=True), book.at(at), power_cut=True)


def test_an_error_at_any_call_loses_nothing_that_was_published(template: Path, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path, template, REPLACED, random.Random(3))
    machine, _ = crashes.whole()
    for at in range(len(machine.calls)):
        root, machine, book = crashes.begin()
        number = (errno.ENOSPC, errno.EIO)[at % 2]
        machine.faults = {at: Fault(OSError(number, os.strerror(number)), 50)}
        try:
            trio.run(live, root, machine, crashes.history, book, False)
        except* ShardfsError:
            pass
        left = (".tmp", ".__lock") if machine.calls[at].name == "unlink" else ()  # what could not be removed
        crashes.check(root, book, power_cut=False, left=left)
        book.sync()
        trio.run(live, root, QuickDisk(), [put(7, seed=60)], book, False)
        crashes.check(root, book, power_cut=False, left=left)
