"""An event loop in a thread of its own: who may call, at the same time, and how calls and loop end."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from shardfs.errors import ClosedError, SourceError
from shardfs.stores.loop import LoopThread
from shardfs.stores.ttl import begin_request, within_ttl
from tests.support.mounting import PATIENCE
from tests.support.processes import interrupted


class Opened:
    """What lives in the loop; *log* tells what happened to it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.all_here = trio.Event()
        self.here = 0

    async def meet(self, count: int) -> int:
        """Return when *count* calls are here at the same time."""
        self.here += 1
        if self.here == count:
            self.all_here.set()
        await self.all_here.wait()
        return self.here

    async def stay(self, begun: threading.Event, ended: threading.Event | None = None) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.log.append("ended")
            if ended is not None:
                ended.set()


@asynccontextmanager
async def opening(opened: Opened, closed: threading.Event | None = None) -> AsyncIterator[Opened]:
    try:
        yield opened
    finally:
        opened.log.append("closed")
        if closed is not None:
            closed.set()


def test_calls_of_threads_and_of_asyncio_run_at_the_same_time() -> None:
    loop = LoopThread(opening(Opened()), "it")
    threads = [threading.Thread(target=loop.call, args=(Opened.meet, 20)) for _ in range(10)]
    for thread in threads:
        thread.start()

    async def main() -> list[int]:
        return await asyncio.gather(*(loop.ask(Opened.meet, 20) for _ in range(10)))

    assert asyncio.run(main()) == [20] * 10
    for thread in threads:
        thread.join()
    loop.close()


def test_an_interrupt_ends_its_call_and_no_other() -> None:
    opened, begun, ended, other = Opened(), *(threading.Event() for _ in range(3))
    loop = LoopThread(opening(opened), "it")
    pool = ThreadPoolExecutor(1)
    stays = pool.submit(loop.call, Opened.stay, other)
    other.wait()

    with interrupted(begun.wait):
        loop.call(Opened.stay, begun, ended)
    assert ended.wait(60)
    assert loop.call(Opened.meet, 1) == 1
    assert not stays.done()
    loop.close()
    with pytest.raises(ClosedError):
        stays.result()
    pool.shutdown()


def test_what_is_interrupted_while_it_opens_is_closed_as_soon_as_it_is_open() -> None:
    opened, begun, may_open, closed = Opened(), *(threading.Event() for _ in range(3))

    @asynccontextmanager
    async def opening_slowly() -> AsyncIterator[Opened]:
        begun.set()
        await trio.to_thread.run_sync(may_open.wait)
        async with opening(opened, closed):
            yield opened

    with interrupted(begun.wait):
        LoopThread(opening_slowly(), "it")
    may_open.set()
    assert closed.wait(60)


def test_closing_ends_the_calls_under_way_and_later_ones_say_that_it_is_closed() -> None:
    opened, begun = Opened(), threading.Event()
    loop = LoopThread(opening(opened), "it")
    asked = threading.Event()
    with ThreadPoolExecutor() as pool:
        called = pool.submit(loop.call, Opened.stay, begun)
        answered = pool.submit(lambda: asyncio.run(loop.ask(Opened.stay, asked)))
        begun.wait()
        asked.wait()
        loop.close()
        loop.close()
        assert opened.log == ["ended", "ended", "closed"]
        for late in (
            called.result,
            answered.result,
            lambda: loop.call(Opened.meet, 1),
            lambda: asyncio.run(loop.ask(Opened.meet, 1)),
        ):
            with pytest.raises(ClosedError, match="it is closed: open it again"):
                late()


def test_a_cancelled_task_of_asyncio_ends_its_call_and_no_other() -> None:
    opened, begun, ended = Opened(), threading.Event(), threading.Event()
    loop = LoopThread(opening(opened), "it")

    async def main() -> int:
        asking = asyncio.create_task(loop.ask(Opened.stay, begun, ended))
        other = asyncio.create_task(loop.ask(Opened.meet, 2))
        await asyncio.to_thread(begun.wait)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(ended.wait, 60)
        await loop.ask(Opened.meet, 2)
        return await other

    assert asyncio.run(main()) == 2
    loop.close()


def test_answers_that_are_there_together_wake_the_loop_of_asyncio_once() -> None:
    loop = LoopThread(opening(Opened()), "it")
    nwoken = 0

    async def main() -> None:
        asking = asyncio.get_running_loop()
        wake = asking.call_soon_threadsafe

        def counting(*args: Any) -> asyncio.Handle:
            nonlocal nwoken
            nwoken += 1
            return wake(*args)

        asking.call_soon_threadsafe = counting  # type: ignore[method-assign]
        assert await asyncio.gather(*(loop.ask(Opened.meet, 20) for _ in range(20))) == [20] * 20

    asyncio.run(main())
    assert nwoken == 1
    loop.close()


class Busy:
    """Keeps the thread of a loop busy during a block, so that all that is asked meanwhile comes together."""

    def __init__(self, loop: LoopThread[Opened]) -> None:
        self._begun, self._done = threading.Event(), threading.Event()
        self._calling = threading.Thread(target=loop.call, args=(self._stay,))

    async def _stay(self, _: Opened) -> None:
        self._begun.set()
        self._done.wait(PATIENCE)

    def __enter__(self) -> None:
        self._calling.start()
        assert self._begun.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._done.set()


class Waits(trio.abc.Instrument):
    """Counts how often a loop waited for something to happen."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


def test_calls_that_come_together_and_wait_for_nothing_are_run_by_one_task_without_a_wait() -> None:
    loop, waits = LoopThread(opening(Opened()), "it"), Waits()
    tasks: set[trio.lowlevel.Task] = set()
    seen: set[int] = set()

    async def begin(_: Opened) -> None:
        trio.lowlevel.add_instrument(waits)

    async def note(_: Opened) -> None:
        tasks.add(trio.lowlevel.current_task())
        seen.add(waits.count)

    async def main() -> None:
        with Busy(loop):
            calls = [asyncio.ensure_future(loop.ask(note)) for _ in range(200)]
            await asyncio.sleep(0)  # until all have asked
        await asyncio.gather(*calls)

    loop.call(begin)
    asyncio.run(main())
    assert (len(tasks), len(seen)) == (1, 1)
    loop.close()


def test_a_call_that_waits_delays_no_other_and_what_it_began_with_is_not_that_of_the_call_before() -> None:
    loop = LoopThread(opening(Opened()), "it")
    done = threading.Event()

    async def trusting(_: Opened) -> bool:
        begin_request()
        return within_ttl(time.monotonic(), time.monotonic() + 1, 0.5)

    async def distrusting(_: Opened) -> bool:
        return within_ttl(time.monotonic(), time.monotonic() + 1, 0.5)

    async def main() -> list[bool]:
        waiting = asyncio.ensure_future(loop.ask(Opened.stay, threading.Event(), done))
        answers = await asyncio.gather(*(loop.ask(work) for work in (trusting, distrusting) * 10))
        assert not waiting.done()
        waiting.cancel()
        return answers

    assert asyncio.run(main()) == [True, False] * 10
    assert done.wait(PATIENCE)
    loop.close()


def test_calls_that_no_task_has_begun_are_told_that_all_is_closed() -> None:
    loop = LoopThread(opening(Opened()), "it")
    begun: list[Opened] = []

    async def begin(opened: Opened) -> None:
        begun.append(opened)

    async def main() -> list[BaseException | None]:
        with Busy(loop):
            calls = [asyncio.ensure_future(loop.ask(begin)) for _ in range(5)]
            await asyncio.sleep(0)  # until all have asked
            loop._loop.end()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [ClosedError] * 5
    assert not begun
    loop.close()


def test_what_nobody_has_any_more_is_closed() -> None:
    closed = threading.Event()
    loop = LoopThread(opening(Opened(), closed), "it")
    del loop
    gc.collect()
    assert closed.wait(60)


def test_errors_come_from_where_they_belong() -> None:
    @asynccontextmanager
    async def failing(at_end: bool) -> AsyncIterator[None]:
        if not at_end:
            raise SourceError("not here")
        yield
        raise SourceError("not closed")

    async def fail(_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(SourceError, match="not here"):
        LoopThread(failing(False), "it")
    loop = LoopThread(failing(True), "it")
    with pytest.raises(KeyError, match="mine"):
        loop.call(fail)
    with pytest.raises(SourceError, match="not closed"):
        loop.close()


def test_a_fork_is_told_that_it_has_no_loop() -> None:
    loop = LoopThread(opening(Opened()), "it")
    child = os.fork()
    if not child:
        try:
            loop.close()  # does nothing
            loop.call(Opened.meet, 1)
        except ClosedError as error:
            os._exit(0 if "before it was forked; open it again" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert loop.call(Opened.meet, 1) == 1
    loop.close()
