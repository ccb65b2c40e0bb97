"""`python -m tests.bulk.waiting DIRECTORY` has two processes do 100 tasks, none of which ends while that is locked."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from shardfs.bulk.engine import run_tasks
from tests.bulk.tasks import Task, Waiting


async def tasks() -> AsyncIterator[Task]:
    for n in range(100):
        yield Waiting(str(n), where=Path(sys.argv[1]))


def say(*words: object) -> None:
    print(*words, flush=True)


async def main() -> None:
    await run_tasks(
        tasks(), lambda outcome: say("told", outcome.task.name), jobs=2, stopping=lambda ntasks: say("stopping", ntasks)
    )


if __name__ == "__main__":
    trio.run(main)
