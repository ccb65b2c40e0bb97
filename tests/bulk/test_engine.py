"""The engine: every task is done or named, whoever dies over it; Ctrl-C waits for what runs, and no process is left."""

import fcntl
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.bulk.engine import each, run_tasks
from shardfs.errors import CorruptionError, StoreError
from tests.bulk.tasks import Corrupt, Deadly, Faulty, Result, Task
from tests.support.mounting import PATIENCE, environment


def run(tasks: Iterable[Task], **how: Any) -> list[Result]:
    """What became of *tasks*."""
    results: list[Result] = []

    async def main() -> None:
        await run_tasks(each(tasks), results.extend, **how)

    trio.run(main)
    return results


@pytest.mark.slow
def test_what_fails_is_told_of_each_task_and_stops_no_other() -> None:
    for how in ({"jobs": 1}, {"jobs": 2}, {"executor": ThreadPoolExecutor(2)}):
        results = run([Task(("a",)), Corrupt(("x",)), Task(("b",)), Faulty(("y",)), Task(("c",))], **how)
        assert sorted(result.name for result in results) == ["a", "b", "c", "x", "y"]
        errors = {result.name: result.error for result in results if result.error is not None}
        assert (type(errors["x"]), str(errors["x"])) == (CorruptionError, "x is damaged")
        assert isinstance(errors["y"], StoreError)
        assert str(errors.pop("y")).startswith("ZeroDivisionError: y, in tasks.py, line ")
        assert errors.keys() == {"x"}


@pytest.mark.slow
def test_what_a_pool_had_when_a_process_died_is_named_and_all_others_are_done(tmp_path: Path) -> None:
    tasks = [Task((str(n),)) for n in range(100)]
    tasks[2] = Deadly(("first",), where=tmp_path)
    tasks[60] = Deadly(("second",), where=tmp_path)
    results = run(tasks, jobs=2)
    assert sorted(result.name for result in results) == sorted(name for task in tasks for name in task.items)
    failed = {result.name: str(result.error) for result in results if result.error is not None}
    assert {"first", "second"} <= failed.keys()
    assert set(failed.values()) == {"a process died that may have worked on it; is there enough memory?"}
    assert len(failed) <= 2 * 6, "at most what the pools had: two tasks for each process, and two more"
    assert len(list(tmp_path.iterdir())) == 2, "none is tried again"


def test_where_no_process_can_be_started_nothing_is_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing.resource_tracker.ensure_running()  # which is a process, too
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: b"/bin/false")
    with pytest.raises(StoreError, match=r"no process can be started to work in; --jobs 1 .* does without\. A script"):
        run([Task(("a",)), Task(("b",))], jobs=2)


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
def running(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    try:
        yield started
    finally:
        started.close()


@pytest.mark.slow
def test_on_ctrl_c_what_runs_is_waited_for_and_nothing_else_begins(running: Run) -> None:
    running.press()
    assert running.read() == "waiting"
    running.unlock()
    assert running.end() == -signal.SIGINT
    assert running.tasks("begun") == running.tasks("done") == running.tasks("told")
    assert 2 <= len(running.tasks("told")) <= 5  # a pool is ahead of its processes by one more than there are


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_nothing(running: Run) -> None:
    running.press()
    assert running.read() == "waiting"
    running.press()
    assert running.end() == -signal.SIGINT
    assert not running.tasks("done")


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(running: Run) -> None:
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    assert not running.tasks("done")
