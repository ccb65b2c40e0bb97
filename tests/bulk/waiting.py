"""`python -m tests.bulk.waiting DIRECTORY` has two processes do 100 tasks, none of which ends while that is locked."""

import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from shardfs.bulk.engine import run_tasks
from tests.bulk.tasks import Task, Waiting


async def tasks() -> AsyncIterator[Task]:
    for n in range(100):
        yield Waiting((str(n),), where=Path(sys.argv[1]))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # at once, so that no other process writes between


async def main() -> None:
    await run_tasks(tasks(), lambda results: say(f"told {results[0].name}"), jobs=2)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    trio.run(main)
