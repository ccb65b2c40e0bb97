"""How sessions ask each other: a request, and an answer, is found whole or not at all."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from shardfs.dataset.commit import GroupCommit
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal import reading
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.records import Shrink
from shardfs.dataset.journal.recovery import open_journal
from shardfs.dataset.maintenance import others
from shardfs.dataset.maintenance.others import OtherSessions
from shardfs.dataset.state.asking import Answer, Asked, Question
from shardfs.dataset.state.directory import SEGMENT, StateDirectory
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.slots import Life, Slot
from shardfs.errors import StoreError
from tests.dataset.test_state import local
from tests.support.mounting import PATIENCE
from tests.support.opened import in_trio


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    """The slot of a session, which has something pending."""
    with hold(local(tmp_path)) as state:
        Path(state.journal, "1" + SEGMENT).touch()
        yield state


def slot_of(state: StateDirectory) -> Slot:
    return Slot(None, state, Life.LIVE, None, os.getuid(), is_ours=True, counts=True)


def question(state: StateDirectory, below: str) -> Question:
    return Question(slot_of(state), below)


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """Let no file have more than *nbytes* for the length of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("nbytes", [0, 3])
def test_a_request_that_the_disk_has_no_room_for_is_for_all(state: StateDirectory, nbytes: int) -> None:
    with room_for(nbytes):
        question(state, "array").ask()
    assert [*Asked(state).take(9).values()] == [None]
    question(state, "array").ask()
    assert [*Asked(state).take(9).values()] == ["array"]


def test_an_answer_that_the_disk_has_no_room_for_is_given_all_the_same(state: StateDirectory) -> None:
    asker, asked = question(state, "array"), Asked(state)
    asker.ask()
    with room_for(3):
        asked.answer([*asked.take(9)], "a shard is locked")
    with pytest.raises(StoreError, match="no space on its disk"):
        asker.look()


def test_requests_and_answers_are_written_and_closed_before_they_get_their_names(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other hosts see what is in a file when it is closed."""
    texts: list[str] = []

    def noting(call: Callable[..., None]) -> Callable[..., None]:
        def note(path: str, *arguments: Any, **options: Any) -> None:
            links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
            assert not any(os.path.dirname(link) == state.asked for link in links)
            texts.extend(file.read_text() for file in Path(state.asked).iterdir())
            call(path, *arguments, **options)

        return note

    asker, asked = question(state, "array"), Asked(state)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", noting(os.rename))
        patched.setattr(os, "unlink", noting(os.unlink))
        asker.ask()
        assert texts == ["/array"]
        asked.answer([*asked.take(9)], "a shard is locked")
    assert "a shard is locked" in texts
    assert "" not in texts
    with pytest.raises(StoreError, match="a shard is locked"):
        asker.look()


def nothing_pending() -> GroupCommit:
    pending, journal = SimpleNamespace(until_any=trio.lowlevel.checkpoint), SimpleNamespace(is_shared=False)
    return cast(GroupCommit, SimpleNamespace(pending=pending, journal=journal))


@in_trio
async def test_so_many_requests_are_answered_at_a_time_and_all_in_the_end(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "_MAX_ANSWERS", 3)
    askers = [question(state, f"array-{number}") for number in range(8)]
    at_once: list[int] = []
    nrunning = 0

    async def commit(below: str | None) -> None:
        nonlocal nrunning
        nrunning += 1
        at_once.append(nrunning)
        await trio.testing.wait_all_tasks_blocked()
        nrunning -= 1

    for asker in askers:
        asker.ask()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(OtherSessions(cast(Source, None), state).answer, nothing_pending(), commit)
            for asker in askers:
                assert await OtherSessions(cast(Source, None), state)._wait(asker) is Answer.DONE
            nursery.cancel_scope.cancel()
    assert len(at_once) == len(askers)
    assert max(at_once) <= 3


@in_trio
async def test_requests_for_different_arrays_are_answered_at_the_same_time(state: StateDirectory) -> None:
    askers, begun, both = [question(state, name) for name in ("a", "b")], list[str | None](), trio.Event()

    async def commit(below: str | None) -> None:
        begun.append(below)
        if len(begun) == 2:
            both.set()
        await both.wait()

    commits = nothing_pending()
    for asker in askers:
        asker.ask()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(OtherSessions(cast(Source, None), state).answer, commits, commit)
            for asker in askers:
                assert await OtherSessions(cast(Source, None), state)._wait(asker) is Answer.DONE
            nursery.cancel_scope.cancel()
    assert {*begun} == {"a", "b"}


def slot_with_a_record_of(state: StateDirectory, path: str) -> tuple[Slot, Journal]:
    Path(state.journal, "1" + SEGMENT).unlink()
    _, journal = open_journal(state.journal)
    journal.append(Shrink(0, path, (4,)))
    journal.sync()
    return slot_of(state), journal


def test_an_error_concerns_the_arrays_that_have_something_pending(state: StateDirectory) -> None:
    slot, _ = slot_with_a_record_of(state, "group/a")
    assert all(others._concerns(slot, below) for below in (None, "", "group", "group/a"))
    assert not others._concerns(slot, "group/b")


def test_an_error_may_concern_an_array_whose_record_is_carried_forward_while_it_is_looked_for(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, journal = slot_with_a_record_of(state, "a")
    read = reading._read_segment

    def carry_first(*arguments: Any) -> None:
        journal.carry_forward()
        read(*arguments)

    monkeypatch.setattr(reading, "_read_segment", carry_first)
    assert others._concerns(slot, "a")


def test_an_error_may_concern_any_array_if_the_journal_is_damaged(state: StateDirectory) -> None:
    slot, journal = slot_with_a_record_of(state, "a")
    (segment,) = Path(state.journal).iterdir()
    segment.rename(state.root + "/away")
    segment.mkdir()
    assert others._concerns(slot, "b")
    del journal
