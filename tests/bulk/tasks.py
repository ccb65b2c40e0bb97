"""Tasks that do what tasks should not."""

import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from shardfs.bulk.engine import Context
from shardfs.errors import CorruptionError, ShardfsError

LARGE = 2**40
"""A size for tasks that are worth a process of their own."""


class Result(NamedTuple):
    """What became of a task: who ran it, or the error."""

    name: str
    pid: int = 0
    error: ShardfsError | None = None


@dataclass(frozen=True)
class Task:
    """Returns who ran it."""

    name: str = "a"
    nbytes: int = LARGE

    async def run(self, context: Context) -> Result:
        return Result(self.name, os.getpid())

    def failed(self, error: ShardfsError) -> Result:
        return Result(self.name, error=error)


@dataclass(frozen=True)
class Corrupt(Task):
    """Fails as tasks may."""

    async def run(self, context: Context) -> Result:
        async with trio.open_nursery():
            raise CorruptionError(f"{self.name} is damaged")


@dataclass(frozen=True)
class Faulty(Task):
    """Fails as no task may."""

    async def run(self, context: Context) -> Result:
        raise ZeroDivisionError(self.name)


@dataclass(frozen=True)
class Deadly(Task):
    """Kills the process that runs it, the first *times*; each leaves a file in the directory *where*."""

    where: Path = Path()
    times: int = 1000

    async def run(self, context: Context) -> Result:
        ndeaths = len(list(self.where.iterdir()))
        if ndeaths < self.times:
            (self.where / f"{self.name}-{ndeaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().run(context)


@dataclass(frozen=True)
class Waiting(Task):
    """Needs the lock of the directory *where*, and says on standard output that it has begun, and that it is done."""

    where: Path = Path()

    async def run(self, context: Context) -> Result:
        os.write(1, f"begun {self.name}\n".encode())
        fd = os.open(self.where, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.close(fd)
        os.write(1, f"done {self.name}\n".encode())
        return await super().run(context)
