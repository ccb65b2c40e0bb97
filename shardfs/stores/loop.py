"""An event loop in a thread of its own, for programs that have none, or another one."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary, finalize

import trio

from shardfs.errors import ClosedError
from shardfs.stores.parallel import open_nursery
from shardfs.stores.ttl import end_request

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncioFuture

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_Answer = Callable[[R | None, BaseException | None], None]

_MOMENT_SECONDS: Final = 0.5
_MAX_IDLE: Final = 16
"""How many tasks stay that have no call to run."""


class LoopThread(Generic[T]):
    """A thread with an event loop, in which *opening* is entered, and left by `close`.

    Any number of threads and of asyncio loops may call functions in it, at the same time. *name* is what was opened,
    for messages. If nobody has the object any more, and at the exit of the process, it is closed.
    """

    def __init__(self, opening: AbstractAsyncContextManager[T], name: str) -> None:
        """Start the thread; raises the errors of *opening*."""
        self._name = name
        self._pid = os.getpid()
        self._loop = _Loop(opening, ClosedError(f"{name} is closed: open it again"))
        _RUNNING[self._loop] = self._pid
        threading.Thread(target=self._loop.run, name=f"shardfs {name}", daemon=True).start()
        try:
            _result(self._loop.begun)
        except BaseException:
            self._loop.abandon()  # whoever waited may have been interrupted
            raise
        finalize(self, self._loop.end).atexit = False  # nobody may wait where objects are collected

    def call(self, work: Callable[Concatenate[T, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call *work* with what was opened, and the arguments, and wait for its result; an interrupt ends the call.

        Raises `ClosedError`, also if all is closed meanwhile.
        """
        future: Future[R] = Future()

        def answer(result: R | None, error: BaseException | None) -> None:
            with suppress(InvalidStateError):  # whoever waited was interrupted
                _settle(future, result, error)

        call = self._new_call(lambda opened: work(opened, *args, **kwargs), answer)
        try:
            self._loop.start(call)  # an interrupt may come before this returns, too
            return _result(future)
        finally:
            if future.cancel():  # it is done, unless we were interrupted
                self._loop.soon(call.cancel)

    def at_once(self, work: Callable[Concatenate[T, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call *work*, which is safe in any thread, in this one, beside all that runs; None if all is closed."""
        opened = self._loop.opened
        return None if opened is None or self.is_closed else work(opened, *args, **kwargs)

    async def ask(self, work: Callable[Concatenate[T, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `call` does for a task of asyncio; to cancel that ends the call.

        Calls made together wake the thread once, and results that are there together the loop of asyncio: to wake one
        takes longer than most calls do.
        """
        import asyncio  # imported only here: other callers have no use for it, and it takes long

        asking = asyncio.get_running_loop()
        future: asyncio.Future[R] = asking.create_future()
        answers = self._loop.answers_to(asking)

        def answer(result: R | None, error: BaseException | None) -> None:
            answers.add(lambda: None if future.done() else _settle(future, result, error))

        call = self._start(lambda opened: work(opened, *args, **kwargs), answer)
        try:
            return await future
        except asyncio.CancelledError:
            self._loop.soon(call.cancel)
            raise

    def hold(
        self, work: Callable[Concatenate[T, P], AbstractAsyncContextManager[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, Callable[[], object]]:
        """Enter what *work* returns; it is left when the function is called that is returned too, or all is closed."""
        future: Future[R] = Future()

        async def keep(opened: T) -> None:
            async with work(opened, *args, **kwargs) as value:
                future.set_result(value)
                await trio.sleep_forever()

        def answer(_: None, error: BaseException | None) -> None:
            if error is not None and not future.done():
                future.set_exception(error)

        leave = partial(self._loop.soon, self._start(keep, answer).cancel)
        try:
            return _result(future), leave
        except BaseException:
            leave()
            raise

    def _start(self, work: Callable[[T], Awaitable[R]], answer: "_Answer[R]") -> "_Call[T, R]":
        call = self._new_call(work, answer)
        self._loop.start(call)
        return call

    def _new_call(self, work: Callable[[T], Awaitable[R]], answer: "_Answer[R]") -> "_Call[T, R]":
        if os.getpid() != self._pid:
            raise ClosedError(f"{self._name} was opened by the process {self._pid} before it was forked; open it again")
        return _Call(work, answer)

    @property
    def was_forked(self) -> bool:
        """Whether it was open in another process when this one was forked from that: here it has no thread."""
        return not self._loop.is_closed and os.getpid() != self._pid

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be called any more."""
        return self._loop.is_closed or os.getpid() != self._pid

    def close(self) -> None:
        """End the calls under way and leave what was opened; raises the error of that. May be repeated."""
        if os.getpid() == self._pid:
            self._loop.end()
            _result(self._loop.ended)


class _Mailbox:
    """Functions that a loop is to call, from any thread; *wake* makes it call one of them soon.

    The loop is woken for the first of several.
    """

    def __init__(self, wake: Callable[[Callable[[], object]], object]) -> None:
        self._functions: deque[Callable[[], object]] = deque()
        self._wake = wake
        self._is_woken = False

    def add(self, function: Callable[[], object]) -> None:
        """Add a function to call when the loop is woken."""
        self._functions.append(function)

    def wake(self) -> None:
        """Wake the loop; raises `RuntimeError` if it has ended."""
        if self._functions and not self._is_woken:
            self._is_woken = True
            try:
                self._wake(self.empty)
            except RuntimeError:
                self._is_woken = False
                raise

    def empty(self) -> None:
        """Call all functions that are there."""
        self._is_woken = False  # first: what is added from now on wakes again
        with suppress(IndexError):
            while True:
                self._functions.popleft()()


class _Call(Generic[T, R]):
    """A call of *work*, whose result or error goes to *answer*; to be used in the thread of the loop.

    *scope* is that of the task that runs it, None while none does.
    """

    __slots__ = ("answer", "is_cancelled", "scope", "work")

    def __init__(self, work: Callable[[T], Awaitable[R]], answer: "_Answer[R]") -> None:
        self.work = work
        self.answer = answer
        self.scope: trio.CancelScope | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """End the call, if it has not ended."""
        self.is_cancelled = True
        if self.scope is not None:
            self.scope.cancel()


class _Loop(Generic[T]):
    """What runs in the thread; *closed* is raised by calls that come too late."""

    def __init__(self, opening: AbstractAsyncContextManager[T], closed: ClosedError) -> None:
        self.begun: Future[None] = Future()
        self.ended: Future[None] = Future()
        self._opening = opening
        self.opened: T | None = None
        """What was opened, until it is closed: whoever has this object then keeps nothing of it."""
        self._closed = closed
        self.is_closed = False
        self._waiting: deque[_Call[T, Any]] = deque()  # calls that no task has begun
        self._idle = trio.lowlevel.ParkingLot()  # tasks without a call
        self._is_summoned = False  # a task is about to look at the calls that wait
        self._nunder_way = 0
        self._answered = trio.lowlevel.ParkingLot()
        self._answers: WeakValueDictionary[AbstractEventLoop, _Mailbox] = WeakValueDictionary()

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
        async with self._opening as opened:
            self.opened = opened
            try:
                async with open_nursery() as self._calls:
                    self._requests = _Mailbox(trio.lowlevel.current_trio_token().run_sync_soon)
                    self.begun.set_result(None)
                    while True:
                        await self._answered.park()  # until other calls that are done by now have answered, too
                        self._wake_callers()
            finally:
                self.is_closed = True
                self.opened = None
                while self._waiting:
                    self._waiting.popleft().answer(None, self._closed)
                self._wake_callers()

    def end(self) -> None:
        """Let everything end; does not wait for that."""

        def end() -> None:
            self.is_closed = True
            self._calls.cancel_scope.cancel()

        self.soon(end)

    def abandon(self) -> None:
        """Let everything end as soon as it has begun."""

        def end(begun: Future[None]) -> None:
            if begun.exception() is None:
                self.end()

        self.begun.add_done_callback(end)

    def start(self, call: _Call[T, Any]) -> None:
        """Let a task run *call*."""

        def start() -> None:
            if self.is_closed:
                call.answer(None, self._closed)
                self._wake_callers()
            else:
                self._waiting.append(call)
                self._summon()

        self.soon(start)

    def _summon(self) -> None:
        """Let a task take the calls that wait, unless one is about to."""
        if not self._is_summoned:
            self._is_summoned = True
            if self._idle:
                self._idle.unpark()
            else:
                self._calls.start_soon(self._run_calls)

    async def _run_calls(self) -> None:
        """Run calls one after another; most wait for nothing, and a task for each would take longer than they do.

        While there are more, another task is summoned before each, so none waits for one that does.
        """
        while True:
            self._is_summoned = False
            with trio.CancelScope() as scope:
                while self._waiting and not self.is_closed and not scope.cancel_called:
                    call = self._waiting.popleft()
                    if self._waiting:
                        self._summon()
                    await self._run(call, scope)
            if self.is_closed:
                return
            if not self._waiting:  # else a call was cancelled, and it was not the last
                if len(self._idle) >= _MAX_IDLE:
                    return
                await self._idle.park()

    async def _run(self, call: _Call[T, Any], scope: trio.CancelScope) -> None:
        end_request()  # that of the call before
        self._nunder_way += 1
        call.scope = scope
        try:
            if call.is_cancelled:
                call.answer(None, self._closed)
            else:
                call.answer(await call.work(cast(T, self.opened)), None)
        except trio.Cancelled:
            call.answer(None, self._closed)
            raise
        except BaseException as error:
            call.answer(None, error)
        finally:
            call.scope = None
            self._nunder_way -= 1
            if self._nunder_way or self._waiting:
                self._answered.unpark_all()
            else:
                self._wake_callers()

    def answers_to(self, asking: "AbstractEventLoop") -> _Mailbox:
        """Return where answers to a loop of asyncio go, which has it while it waits for one."""
        answers = self._answers.get(asking)
        if answers is None:
            answers = self._answers[asking] = _Mailbox(asking.call_soon_threadsafe)
        return answers

    def _wake_callers(self) -> None:
        for reference in self._answers.valuerefs():  # a copy: other threads add to it
            answers = reference()
            if answers is not None:
                with suppress(RuntimeError):  # the loop has ended, and nobody waits
                    answers.wake()

    def soon(self, function: Callable[[], object]) -> None:
        """Let the loop call something."""
        self._requests.add(function)
        try:
            self._requests.wake()
        except trio.RunFinishedError:
            self._requests.empty()  # it is closed, and a call gets that error


def _settle(future: "Future[R] | AsyncioFuture[R]", result: R | None, error: BaseException | None) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast(R, result))


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
        if pid == os.getpid() and loop.begun.done():  # else nobody has it, and it ends with the process
            loop.end()
            with suppress(BaseException):  # whatever is not committed stays in the journal
                loop.ended.result()
