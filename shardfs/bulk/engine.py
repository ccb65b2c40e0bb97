"""Running tasks on a dataset: in this process, in other processes of this machine, or on a given executor.

A task is one shard, or a batch of small ones. Failures are reported for each task, and stop no other.
"""

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Final, Generic, TypeVar, cast
from uuid import uuid4

import trio

from shardfs.dataset.hierarchy import Source, open_outlines, open_source
from shardfs.dataset.source import applicable, open_checked, open_store_in
from shardfs.errors import ShardfsError, StoreError
from shardfs.format.document import drafts_of
from shardfs.stores.clouds.outline import OutlineOf
from shardfs.stores.local.syscalls import count_processors, keep_freed_memory
from shardfs.stores.loop import LoopThread
from shardfs.stores.parallel import for_each
from shardfs.stores.url import StoreOptions, open_session

log = logging.getLogger(__name__)

_DASK_DEATH: Final = "KilledWorker"
TTL: Final = 600.0
"""For how many seconds a run uses what it has seen: to list a directory of a million objects takes minutes."""

_PATIENCE: Final = 3.0
_LARGE_NBYTES: Final = 256 * 2**20
"""Seconds of work, or bytes of a task, from which on it pays to start processes."""

_WINDOW: Final = 256
"""How many tasks a given executor has at a time: some for each worker of several machines."""

T = TypeVar("T")
R = TypeVar("R")


class WorkerContext:
    """What the tasks of a run share in one process: open sources, and what was found.

    Sources are opened in *session*, with *outlines* for those that list nothing; *known* are those that are open
    already, by URL.
    """

    def __init__(self, session: trio.Nursery, outlines: OutlineOf, known: Mapping[str, Source] | None = None) -> None:
        self._session = session
        self._outlines = outlines
        self._sources = dict(known or {})
        self._last: tuple[object, object] | None = None

    def source(self, url: str, options: StoreOptions) -> Source:
        """Return the source at *url*, opened on first use; *options* are for a remote one.

        Raises the errors of `open_store_in`.
        """
        if url not in self._sources:
            chosen = applicable(options, url)
            store = open_store_in(self._session, url, chosen, outline_of=self._outlines, ttl=TTL)
            self._sources[url] = Source.of(store, options=chosen)
        return self._sources[url]

    async def checked(self, url: str, options: StoreOptions) -> StoreOptions:
        """Open the source at *url*, which is not open yet; return the options with which other processes open it.

        Raises `SourceError` if it cannot be read.
        """
        chosen = applicable(options, url)
        store, names, found = await open_checked(self._session, url, chosen, outline_of=self._outlines, ttl=TTL)
        self._sources[url] = Source.of(store, names=names, options=found)
        return replace(options, files=found.files)

    async def last(self, key: object, make: Callable[[], Awaitable[R]]) -> R:
        """Return the result of *make* for *key*; the last one is kept: tasks come in order."""
        if self._last is None or self._last[0] != key:
            self._last = key, await make()
        return cast(R, self._last[1])


@asynccontextmanager
async def open_context(known: Mapping[str, Source] | None = None) -> AsyncIterator[WorkerContext]:
    """Yield a context in a session of its own; *known* are sources that are open already, by URL."""
    async with open_outlines() as outlines, open_session() as session:
        yield WorkerContext(session, outlines, known)


@dataclass(frozen=True)
class Task(ABC, Generic[T, R]):
    """Work on *items*, a shard or many small ones, at the cost of copying about *nbytes* bytes. It can be pickled.

    It is run again if it is unknown whether it was done, so running it twice must do no harm. What it stores appears as
    a whole or not at all, because its process may be killed at any time.
    """

    items: tuple[T, ...]
    nbytes: int

    @abstractmethod
    async def begin(self, context: WorkerContext) -> Callable[[T], Awaitable[R | None]]:
        """Return a function that works on an item; its result is small, and None if there is nothing to report.

        A failure of one item stops no other.
        """

    @abstractmethod
    def failed(self, item: T, error: ShardfsError) -> R:
        """Return what takes the place of the result for an *item* if *error* prevents it."""

    def at_once(self, context: WorkerContext) -> int:
        """Return how many items to work on at a time."""
        return 1

    async def run(self, context: WorkerContext) -> list[R]:
        """Return the results, in any order."""
        results: list[R] = []
        try:
            work = await self.begin(context)
        except Exception as error:
            return self.all_failed(as_told(error))

        async def attempt(item: T) -> None:
            try:
                result = await work(item)
            except Exception as error:
                result = self.failed(item, as_told(error))
            if result is not None:
                results.append(result)

        await for_each(self.items, attempt, self.at_once(context))
        return results

    def all_failed(self, error: ShardfsError) -> list[R]:
        """Return the results if *error* prevents all of them."""
        return [self.failed(item, error) for item in self.items]


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield *items*."""
    for item in items:
        yield item


async def batched(
    items: AsyncIterable[T], cost: Callable[[T], int], *, most: int, nbytes: int
) -> AsyncIterator[tuple[list[T], int]]:
    """Yield *items*, each with its cost, in lists of at most *most* items and *nbytes* bytes, but at least one item."""
    batch: list[T] = []
    spent = 0
    async for item in items:
        more = cost(item)
        if batch and (len(batch) == most or spent + more > nbytes):
            yield batch, spent
            batch, spent = [], 0
        batch.append(item)
        spent += more
    if batch:
        yield batch, spent


def in_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield *items*, *size* at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def run_tasks(
    tasks: AsyncIterable[Task[T, R]],
    done: Callable[[Sequence[R]], None],
    *,
    context: WorkerContext | None = None,
    executor: Executor | None = None,
    jobs: int | None = None,
) -> None:
    """Run *tasks*, taken from the iterator as there is room; *done* is called with the results of each.

    Without an *executor*, up to *jobs* processes of this machine work, by default one for each processor. They are
    started once there is enough to do; before that, and with one job, tasks run in this process, with *context*.

    If this ends early, by Ctrl-C or because *done* raises, tasks that have not begun are dropped, and those that have
    are waited for, unless interrupted again. Executors other than the pools of `concurrent.futures` do not tell which
    have begun: all of theirs are waited for, or still write after a second interrupt.

    Raises `StoreError` if processes cannot be started, or a given executor breaks.
    """
    keep_freed_memory()
    jobs = jobs or count_processors()
    async with open_context() if context is None else nullcontext(context) as context:
        await _run_tasks(tasks, done, context, executor, jobs)


async def _run_tasks(
    tasks: AsyncIterable[Task[T, R]],
    done: Callable[[Sequence[R]], None],
    context: WorkerContext,
    executor: Executor | None,
    jobs: int,
) -> None:
    crew = _Crew[T, R](done, executor, jobs)
    here = executor is None
    spent = 0.0
    try:
        async for task in tasks:
            if here and jobs > 1:
                here = task.nbytes <= _LARGE_NBYTES and spent < _PATIENCE
            if here:
                begun = time.monotonic()
                done(await task.run(context))
                spent += time.monotonic() - begun
            else:
                await crew.add(task)
        await crew.finish()
    except BaseException:
        try:
            with trio.CancelScope(shield=True):
                await crew.abandon()
        except BaseException:  # a second interrupt
            crew.kill()
            raise
        raise
    finally:
        crew.end()


class _Crew(Generic[T, R]):
    """An executor and its tasks: a given executor, or a pool of *jobs* processes.

    When a process dies, its pool breaks, and nobody knows which task is to blame: all that the pool had fail, and the
    next ones get a new pool. An executor that is given may try again by itself, as that of Dask does.
    """

    def __init__(self, done: Callable[[Sequence[R]], None], executor: Executor | None, jobs: int) -> None:
        self._done = done
        self._given = executor
        self._pool: _Pool | None = None
        self._jobs = jobs
        self._window = 2 * jobs + 2 if executor is None else _WINDOW
        self._run = uuid4().hex
        self._under_way: dict[Future[list[R]], tuple[Task[T, R], _Pool | None]] = {}
        self._ended, self._receiver = trio.open_memory_channel[Future[list[R]]](math.inf)

    async def add(self, task: Task[T, R]) -> None:
        """Hand a task over as soon as there is room."""
        while len(self._under_way) >= self._window:
            await self._take_next()
        self._submit(task)

    async def finish(self) -> None:
        """Wait for all tasks."""
        while self._under_way:
            await self._take_next()

    async def abandon(self) -> None:
        """Drop the tasks that have not begun, and wait for the others."""
        tells = self._given is None or isinstance(self._given, ThreadPoolExecutor | ProcessPoolExecutor)
        for future in list(self._under_way) if tells else ():  # Dask also cancels tasks that have begun, but they go on
            if future.cancel():
                del self._under_way[future]
        if self._under_way:
            again = "interrupt again to end them" if self._given is None else "if you interrupt again, they still write"
            log.warning("waiting for tasks that workers have: %d; %s", len(self._under_way), again)
        while self._under_way:
            with suppress(Exception):  # of the caller, which knows already why this ends
                await self._take_next()

    def kill(self) -> None:
        """Kill the processes, whatever they are doing."""
        if self._pool is not None:
            self._pool.held.close()

    def end(self) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.end()

    def _submit(self, task: Task[T, R]) -> None:
        if self._given is None:
            self._pool = self._pool or _Pool(self._jobs)
        executor = self._given or cast(_Pool, self._pool).executor
        try:
            with _without_interrupts():
                future = executor.submit(_execute, self._run, task)
        except (BrokenExecutor, OSError) as broken:  # a process died; while its pool ends, `submit` raises `OSError`
            self._give_up(self._pool, broken)
            self._submit(task)
            return
        self._under_way[future] = task, self._pool
        token = trio.lowlevel.current_trio_token()

        def pass_on(future: Future[list[R]]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._ended.send_nowait, future)

        future.add_done_callback(pass_on)

    async def _take_next(self) -> None:
        """Wait for a task."""
        future = await self._receiver.receive()
        if future not in self._under_way:  # it was cancelled
            return
        task, pool = self._under_way.pop(future)
        try:
            results = future.result()
        except (Exception, CancelledError) as failure:
            error = as_told(failure)
            if isinstance(failure, BrokenExecutor):
                self._give_up(pool, failure)
            if isinstance(failure, BrokenExecutor) or type(failure).__name__ == _DASK_DEATH:
                error = StoreError("a process died that may have worked on it; is there enough memory?")
            results = task.all_failed(error)
        self._done(results)

    def _give_up(self, pool: "_Pool | None", broken: Exception) -> None:
        """Let the next task have another pool than *pool*; raises `StoreError` if that would fare no better."""
        if pool is None:
            raise StoreError(f"the executor takes no more tasks: {broken}") from None
        if not pool.has_worked:
            raise StoreError(
                "no process can be started to work in; --jobs 1 (jobs=1) does without. A script that calls shardfs has "
                'to do so below `if __name__ == "__main__":`, as each process imports it'
            ) from None
        if pool is self._pool:
            self.end()


class _Pool:
    """Processes of this machine, which end at once when *held* is closed, by us or because this process was killed."""

    def __init__(self, jobs: int) -> None:
        spawn = multiprocessing.get_context("spawn")  # in a forked process, requests to S3 never end
        self._watched, self.held = spawn.Pipe(duplex=False)
        self.executor = ProcessPoolExecutor(jobs, spawn, _begin, (self._watched,))
        with _without_interrupts():
            self._first = self.executor.submit(os.getpid)

    @property
    def has_worked(self) -> bool:
        """Whether any process ever did something; to be asked when the pool is broken."""
        return self._first.exception() is None

    def end(self) -> None:
        """End the processes when they are done."""
        self.executor.shutdown()
        self.held.close()
        self._watched.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """In the block, start processes that Ctrl-C does not reach: this process decides what happens to them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(watched: Connection) -> None:
    """Begin a process of a pool; it ends when nobody has the other end of *watched* any more."""
    keep_freed_memory()
    logging.getLogger("shardfs").addHandler(logging.NullHandler())  # errors are in the outcome

    def end_with_parent() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


_local = threading.local()  # the run of this thread's last task, and the event loop with its context


def _execute(run: str, task: Task[T, R]) -> list[R]:
    """Run a task in the process of an executor."""
    if getattr(_local, "run", None) != run:
        if hasattr(_local, "loop"):
            _local.loop.close()
        _local.run, _local.loop = run, LoopThread(open_context(), "a worker of shardfs")
    results: list[R] = _local.loop.call(_run, task)
    return results


async def _run(context: WorkerContext, task: Task[T, R]) -> list[R]:
    return await task.run(context)


def as_told(error: BaseException) -> ShardfsError:
    """Return *error*, whatever it is, as one of ours with its text for a report."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ShardfsError):
        return error
    if isinstance(error, MemoryError):
        return StoreError("it takes more memory than there is")
    if isinstance(error, OSError):
        return StoreError(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    where = f", in {os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""
    return StoreError(f"{type(error).__name__}: {error}{where}")


def in_session(
    source: str, options: StoreOptions, work: Callable[[Source], Awaitable[R]], *, draft: str | None = None
) -> R:
    """Return what *work* does with *source*, opened for as long as that takes; it reads what only *draft* allows, too.

    Raises `SourceError` if it cannot be read, and `UsageError` if there is no such draft.
    """
    drafts = drafts_of(draft)

    async def run() -> R:
        async with open_source(source, options, ttl=TTL) as opened:
            opened.hierarchy.read_drafts(drafts)
            return await work(opened)

    return trio.run(run)
