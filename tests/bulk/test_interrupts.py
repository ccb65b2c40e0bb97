"""Ctrl-C, and a process that is killed: what runs is waited for, nothing else begins, and no process is left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import PATIENCE, environment


class Run:
    """Two processes that both wait for the lock of a directory, and the one that has them do tasks."""

    def __init__(self, where: Path) -> None:
        self._fd = os.open(where, os.O_RDONLY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        command = ["env", "--default-signal=INT", sys.executable, "-m", "tests.bulk.waiting", where]
        self.process = subprocess.Popen(
            command,
            env=environment(),
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # or `communicate` would miss what was read ahead of a line
        )
        self.said: list[list[str]] = []
        assert [self.read(), self.read()] == ["begun", "begun"]

    def read(self) -> str:
        """Return the first word of what is said next."""
        assert self.process.stdout is not None
        self.said.append(self.process.stdout.readline().decode().split())
        return self.said[-1][0]

    def press(self) -> None:
        """Press Ctrl-C, as a terminal does: all of its processes are told."""
        os.killpg(self.process.pid, signal.SIGINT)

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def end(self) -> int:
        """Return the status, when every process is gone that could say something."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        self.said += [line.split() for line in said.decode().splitlines()]
        return self.process.returncode

    def tasks(self, what: str) -> set[str]:
        return {words[1] for words in self.said if words[0] == what}

    def close(self) -> None:
        os.close(self._fd)
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    try:
        yield started
    finally:
        started.close()


def test_on_ctrl_c_what_runs_is_waited_for_and_nothing_else_begins(run: Run) -> None:
    run.press()
    assert run.read() == "waiting"
    run.unlock()
    assert run.end() == -signal.SIGINT
    assert run.tasks("begun") == run.tasks("done") == run.tasks("told")
    assert 2 <= len(run.tasks("told")) <= 5  # a pool is ahead of its processes by one more than there are


def test_a_second_ctrl_c_waits_for_nothing(run: Run) -> None:
    run.press()
    assert run.read() == "waiting"
    run.press()
    assert run.end() == -signal.SIGINT
    assert not run.tasks("done")


def test_no_process_outlives_the_one_that_started_it(run: Run) -> None:
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    assert not run.tasks("done")
