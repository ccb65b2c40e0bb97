"""Tasks that do what tasks should not."""

import fcntl
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from shardfs.bulk import engine
from shardfs.errors import CorruptionError, ShardfsError

LARGE = 2**40
"""A size for tasks that are worth a process of their own."""


class Result(NamedTuple):
    """What became of an item: who worked on it, or the error."""

    name: str
    pid: int = 0
    error: ShardfsError | None = None


@dataclass(frozen=True)
class Task(engine.Task[str, Result]):
    """Tells for each name who worked on it."""

    nbytes: int = LARGE

    async def begin(self, context: engine.WorkerContext) -> Callable[[str], Awaitable[Result]]:
        return self.work

    async def work(self, item: str) -> Result:
        return Result(item, os.getpid())

    def failed(self, item: str, error: ShardfsError) -> Result:
        return Result(item, error=error)


@dataclass(frozen=True)
class Corrupt(Task):
    """Fails as tasks may."""

    async def work(self, item: str) -> Result:
        async with trio.open_nursery():
            raise CorruptionError(f"{item} is damaged")


@dataclass(frozen=True)
class Faulty(Task):
    """Fails as no task may."""

    async def work(self, item: str) -> Result:
        raise ZeroDivisionError(item)


@dataclass(frozen=True)
class Deadly(Task):
    """Kills the process that runs it, the first *times*; each leaves a file in the directory *where*."""

    where: Path = Path()
    times: int = 1000

    async def work(self, item: str) -> Result:
        ndeaths = len(list(self.where.iterdir()))
        if ndeaths < self.times:
            (self.where / f"{item}-{ndeaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().work(item)


@dataclass(frozen=True)
class Waiting(Task):
    """Needs the lock of the directory *where*, and says on standard output that it has begun, and that it is done."""

    where: Path = Path()

    async def work(self, item: str) -> Result:
        os.write(1, f"begun {item}\n".encode())
        fd = os.open(self.where, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.close(fd)
        os.write(1, f"done {item}\n".encode())
        return await super().work(item)
