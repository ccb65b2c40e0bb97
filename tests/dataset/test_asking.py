"""How sessions ask each other: a request, and an answer, is found whole or not at all."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.state.asking import Asked, Question
from shardfs.dataset.state.directory import SEGMENT, StateDirectory
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.slots import Life, Slot
from shardfs.errors import StoreError
from tests.dataset.test_state import local


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateDirectory]:
    """The slot of a session, which has something pending."""
    with hold(local(tmp_path)) as state:
        Path(state.journal, "1" + SEGMENT).touch()
        yield state


def question(state: StateDirectory, below: str) -> Question:
    return Question(Slot(None, state, Life.LIVE, None, os.getuid(), is_ours=True, counts=True), below)


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
    assert [*Asked(state).take().values()] == [None]
    question(state, "array").ask()
    assert [*Asked(state).take().values()] == ["array"]


def test_an_answer_that_the_disk_has_no_room_for_is_given_all_the_same(state: StateDirectory) -> None:
    asker, asked = question(state, "array"), Asked(state)
    asker.ask()
    with room_for(3):
        asked.answer([*asked.take()], "a shard is locked")
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
        asked.answer([*asked.take()], "a shard is locked")
    assert "a shard is locked" in texts
    assert "" not in texts
    with pytest.raises(StoreError, match="a shard is locked"):
        asker.look()
