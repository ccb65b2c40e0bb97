"""How long the event loop, and everybody else, is kept from working: in processor time, of which others take none."""

import time
from collections.abc import Callable

import trio


class LoopClock(trio.abc.Instrument):
    """Measures the processor time of the longest step of the event loop."""

    def __init__(self) -> None:
        self.longest, self._began = 0.0, time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Begin a step."""
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End it."""
        self.longest = max(self.longest, time.thread_time() - self._began)


async def longest_turn(work: Callable[[], object]) -> float:
    """Do *work* in a thread; return for how long, in processor time, nobody else had a turn meanwhile."""
    longest, is_done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not is_done:
            before = time.process_time()
            await trio.lowlevel.checkpoint()
            longest = max(longest, time.process_time() - before)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.to_thread.run_sync(work)
        is_done = True
    return longest
