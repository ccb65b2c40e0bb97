"""The engine: every task is done or named, whoever dies over it, and no more are held than have room."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import trio

from shardfs.bulk.engine import Outcome, run_tasks
from tests.bulk.tasks import Corrupt, Deadly, Faulty, Task


async def each(tasks: Iterable[Task]) -> AsyncIterator[Task]:
    for task in tasks:
        yield task


def run(tasks: Iterable[Task], **how: Any) -> list[Outcome[int]]:
    """Outcomes of *tasks*, in the order of the tasks; there is exactly one of each."""
    outcomes: list[Outcome[int]] = []

    async def main() -> None:
        await run_tasks(each(tasks), outcomes.append, **how)

    trio.run(main)
    outcomes.sort(key=lambda outcome: outcome.index)
    assert [outcome.index for outcome in outcomes] == list(range(len(outcomes)))
    return outcomes


def test_what_fails_is_told_of_each_task_and_stops_no_other() -> None:
    for how in ({"jobs": 1}, {"jobs": 2}, {"executor": ThreadPoolExecutor(2)}):
        outcomes = run([Task(), Corrupt("x"), Task(), Faulty("y"), Task()], **how)
        assert [outcome.error is None for outcome in outcomes] == [True, False, True, False, True]
        assert [(type(o.error).__name__, str(o.error)) for o in outcomes if o.error is not None] == [
            ("CorruptionError", "x is damaged"),
            ("StoreError", "ZeroDivisionError: y, in tasks.py, line 45"),
        ]


def test_a_task_over_which_processes_die_is_to_blame_and_all_others_are_done(tmp_path: Path) -> None:
    for name in ("always", "once"):
        (tmp_path / name).mkdir()
    tasks = [Task(str(n)) for n in range(8)]
    tasks[2] = Deadly("always", where=tmp_path / "always")
    tasks[6] = Deadly("once", where=tmp_path / "once", times=1)
    outcomes = run(tasks, jobs=2)
    assert len(outcomes) == 8
    failed = {outcome.task.name: str(outcome.error) for outcome in outcomes if outcome.error is not None}
    assert failed == {"always": "each process that worked on it died; is there enough memory?"}
    assert len(list((tmp_path / "always").iterdir())) == 3
