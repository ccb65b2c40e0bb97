"""A process for large documents, beside this one, in which parsing or generating one would delay every request.

A thread would not help, because `json` holds the interpreter's lock.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, ParamSpec, TypeVar

import trio

from shardfs.errors import ShardfsError, StoreError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LARGE_NBYTES: Final = 256 * 2**10
"""From this size on, documents are processed in the worker."""

_MAX_MEMORY: Final = 2 * 2**30
_MAX_KEPT: Final = 192 * 2**20  # a worker that has grown beyond this is replaced


class Worker:
    """Calls functions in a process of its own, one at a time; the process is started when it is first needed."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    async def work(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on documents: in the worker if one of its arguments is large."""
        if any(isinstance(arg, bytes) and len(arg) > LARGE_NBYTES for arg in args):
            return await self.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call *function*, a function of a module, in the worker; raises the `ShardfsError` that it raises.

        Raises `StoreError` if the process dies.
        """
        async with self._turn:
            if self._process is None:
                self._process = await trio.to_thread.run_sync(_start)
            process = self._process
            try:
                request = function, args, kwargs
                result, error, memory = await trio.to_thread.run_sync(_ask, process, request, abandon_on_cancel=True)
            except (OSError, EOFError, pickle.UnpicklingError):
                await self.end()
                log.error("the process that works on large documents died (status %s)", process.returncode)  # noqa: TRY400
                raise StoreError("the process that works on large documents died") from None
            except BaseException:  # cancelled: nobody wants the result any more
                await self.end()
                raise
            if memory > _MAX_KEPT:
                await self.end()
        if error is not None:
            raise error
        value: T = result
        return value

    async def end(self) -> None:
        """Kill the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(process.wait)


def _start() -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the mount
        )
    except OSError as error:
        raise StoreError(f"no process can be started to work on a large document: {error}") from None


def _ask(process: "subprocess.Popen[bytes]", request: object) -> tuple[Any, ShardfsError | None, int]:
    """Send a request; return its result or error, and how much memory the process uses now; blocks."""
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(request, process.stdin, protocol=5)
    process.stdin.flush()
    result, error = pickle.load(process.stdout)  # noqa: S301 - from the process we started
    return result, error, pickle.load(process.stdout)  # noqa: S301


def _serve() -> None:
    """Answer requests from standard input on standard output until that ends."""
    requests, replies = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory()
    while requests.peek(1):
        replies.write(_reply(requests))
        pickle.dump(_peak_memory(), replies)
        replies.flush()


def _limit_memory() -> None:
    with suppress(ImportError):  # Windows has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY, _MAX_MEMORY))


def _peak_memory() -> int:
    """Return the most memory that this process has had, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


def _reply(requests: BinaryIO) -> bytes:
    try:
        function, args, kwargs = pickle.load(requests)  # noqa: S301 - from the process that started this one
        return pickle.dumps((function(*args, **kwargs), None), protocol=5)
    except ShardfsError as error:
        return pickle.dumps((None, error))
    except MemoryError:
        reason = f"a document takes more than {_MAX_MEMORY // 2**30} GiB of memory to work on"
        return pickle.dumps((None, StoreError(reason)))


if __name__ == "__main__":
    _serve()
