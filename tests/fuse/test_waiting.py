"""How the next request is waited for, through what pyfuse3 takes for trio; a pipe stands in for the kernel."""

import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise

import pyfuse3
import pytest
import trio

from shardfs.fuse.waiting import look_before_sleeping

REQUESTS = 640
TURN = 8
"""After how many requests other tasks have a turn."""


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A descriptor with a request that nobody takes: there is always a next one."""
    monkeypatch.setattr(pyfuse3, "trio", trio)
    look_before_sleeping(lambda: True)
    reading, writing = os.pipe()
    os.write(writing, b"request")
    yield reading
    os.close(reading)
    os.close(writing)


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


def answer(fd: int, handle: Callable[[int], Awaitable[None]]) -> tuple[list[str], int]:
    """Let two workers answer as those of pyfuse3 do; returns who answered each request, and the number of passes."""
    workers: list[str] = []
    passes = Passes()

    async def work(name: str, lock: trio.Lock, nursery: trio.Nursery) -> None:
        while len(workers) < REQUESTS:
            async with lock:
                await pyfuse3.trio.lowlevel.wait_readable(fd)  # type: ignore[attr-defined]
            workers.append(name)
            await handle(len(workers))
        nursery.cancel_scope.cancel()

    async def run() -> None:
        trio.lowlevel.add_instrument(passes)
        lock = pyfuse3.trio.Lock()  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(work, name, lock, nursery)

    trio.run(run)
    return workers, passes.count


def test_requests_that_are_answered_at_once_share_passes_of_the_event_loop(readable: int) -> None:
    async def at_once(_: int) -> None:
        return

    workers, passes = answer(readable, at_once)
    assert len(workers) == REQUESTS
    assert passes <= REQUESTS / TURN + 2 * REQUESTS / 64 + 3  # and two each time that the event loop waits


def test_other_tasks_have_a_turn_while_requests_come_without_a_pause(readable: int) -> None:
    turns: list[int] = []
    answered = 0

    async def count(number: int) -> None:
        nonlocal answered
        answered = number

    async def other() -> None:
        while answered < REQUESTS:
            turns.append(answered)
            await trio.lowlevel.checkpoint()

    async def both() -> None:
        lock = pyfuse3.trio.Lock()  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for number in range(1, REQUESTS + 1):
                async with lock:
                    await pyfuse3.trio.lowlevel.wait_readable(readable)  # type: ignore[attr-defined]
                await count(number)

    trio.run(both)
    gaps = [later - earlier for earlier, later in pairwise(turns)]
    assert max(gaps) <= 2 * TURN  # of two tasks in one pass, trio runs either first


def test_a_worker_that_waits_lets_the_other_read_on(readable: int) -> None:
    async def wait_once(number: int) -> None:
        if number == 1:
            await trio.sleep_forever()

    workers, _ = answer(readable, wait_once)
    first, *others = workers
    assert set(others) == set("ab") - {first}
