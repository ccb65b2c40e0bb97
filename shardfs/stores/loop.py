"""An event loop in a thread of its own, for programs that have none, or another one."""

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar
from weakref import finalize

import trio

from shardfs.errors import ClosedError
from shardfs.stores.parallel import open_nursery

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_MOMENT_SECONDS: Final = 0.5


class LoopThread(Generic[T]):
    """A thread with an event loop, in which *opening* is entered, and left by `close`.

    Any number of threads may call functions in it, at the same time. *name* is what was opened, for messages. If nobody
    has the object any more, and at the exit of the process, it is closed.
    """

    def __init__(self, opening: AbstractAsyncContextManager[T], name: str) -> None:
        """Start the thread; raises the errors of *opening*."""
        self._name = name
        self._pid = os.getpid()
        self._loop = _Loop(opening, ClosedError(f"{name} is closed: open it again"))
        threading.Thread(target=self._loop.run, name=f"shardfs {name}", daemon=True).start()
        self._loop.begun.result()
        finalize(self, self._loop.end).atexit = False  # nobody may wait where objects are collected
        _RUNNING[self._loop] = self._pid

    def submit(
        self, work: Callable[Concatenate[T, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> "Future[R]":
        """Begin to call *work* with what was opened, and the arguments; to cancel the future ends the call.

        Raises `ClosedError`, and so does the future if all is closed meanwhile.
        """
        future: Future[R] = Future()
        self._start(lambda opened: work(opened, *args, **kwargs), future)
        return future

    def call(self, work: Callable[Concatenate[T, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call *work* as `submit` does, and wait for its result; an interrupt ends the call."""
        future: Future[R] = Future()
        try:
            self._start(lambda opened: work(opened, *args, **kwargs), future)
            return _result(future)
        finally:
            future.cancel()  # it is done, unless we were interrupted

    def _start(self, work: Callable[[T], Awaitable[R]], future: "Future[R]") -> None:
        if os.getpid() != self._pid:
            raise ClosedError(f"{self._name} was opened by the process {self._pid} before it was forked; open it again")
        self._loop.start(work, future)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be called any more."""
        return self._loop.is_closed or os.getpid() != self._pid

    def close(self) -> None:
        """End the calls under way and leave what was opened; raises the error of that. May be repeated."""
        if os.getpid() == self._pid:
            self._loop.end()
            _result(self._loop.ended)


class _Loop(Generic[T]):
    """What runs in the thread; *closed* is raised by calls that come too late."""

    def __init__(self, opening: AbstractAsyncContextManager[T], closed: ClosedError) -> None:
        self.begun: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._opening = opening
        self._closed = closed
        self.is_closed = False

    def run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:
            (self.ended if self.begun.done() else self.begun).set_exception(error)
        else:
            self.ended.set_result(None)
        finally:
            _RUNNING.pop(self, None)

    async def _serve(self) -> None:
        async with self._opening as self._opened:
            try:
                async with open_nursery() as self._calls:
                    self._token = trio.lowlevel.current_trio_token()
                    self.begun.set_result(None)
                    await trio.sleep_forever()
            finally:
                self.is_closed = True

    def end(self) -> None:
        """Let everything end; does not wait for that."""

        def end() -> None:
            self.is_closed = True
            self._calls.cancel_scope.cancel()

        self._soon(end)

    def start(self, work: Callable[[T], Awaitable[R]], future: "Future[R]") -> None:
        """Begin *work*, whose outcome goes to *future*."""
        scope = trio.CancelScope()
        future.add_done_callback(lambda done: self._soon(scope.cancel) if done.cancelled() else None)

        async def run() -> None:
            with suppress(InvalidStateError):  # whoever waited has cancelled it
                try:
                    with scope:
                        future.set_result(await work(self._opened))
                except trio.Cancelled:
                    future.set_exception(self._closed)
                    raise
                except BaseException as error:
                    future.set_exception(error)

        def start() -> None:
            if self.is_closed:
                future.set_exception(self._closed)
            else:
                self._calls.start_soon(run)

        if not self._soon(start):
            raise self._closed

    def _soon(self, call: Callable[[], object]) -> bool:
        """Let the loop call something; return whether it still runs."""
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return False
        return True


def _result(future: "Future[R]") -> R:
    """Wait for a result; a signal that comes just before Python waits is noticed after a moment."""
    while True:
        try:
            return future.result(_MOMENT_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()


_RUNNING: "dict[_Loop[Any], int]" = {}
"""All loops, each with the process that it runs in."""


@atexit.register
def _end_all() -> None:
    for loop, pid in list(_RUNNING.items()):
        if pid == os.getpid():
            loop.end()
            with suppress(BaseException):  # whatever is not committed stays in the journal
                loop.ended.result()
