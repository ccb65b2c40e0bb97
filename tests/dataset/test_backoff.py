"""Leaving shards alone that others were faster to change."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from shardfs.dataset.backoff import Backoff


def test_what_somebody_else_was_faster_to_change_is_left_alone_longer_each_time_but_not_for_ever() -> None:
    async def main() -> None:
        longest = []
        for times in (1, 4, 40):
            delays = []
            for _ in range(50):
                backoff: Backoff[str] = Backoff()
                for _ in range(times):
                    backoff.note("shard")
                again_at = backoff.again_at("shard")
                assert again_at is not None
                delays.append(again_at - trio.current_time())
            assert min(delays) >= 0
            assert len(set(delays)) > 1
            longest.append(max(delays))
        assert longest == sorted(longest)
        assert longest[-1] <= 2.0

    trio.run(main, clock=MockClock())


def test_waiting_ends_when_the_last_may_be_tried_and_never_begins_for_what_nobody_changed() -> None:
    async def main() -> None:
        backoff: Backoff[str] = Backoff()
        start = trio.current_time()
        await backoff.wait(["untouched"])
        assert trio.current_time() == start
        for key in "ab":
            for _ in range(9):
                backoff.note(key)
        last = max(backoff.again_at(key) or 0.0 for key in "ab")
        await backoff.wait(["a", "b", "untouched"])
        assert trio.current_time() >= last
        backoff.forget("a")
        assert backoff.again_at("a") is None

    trio.run(main, clock=MockClock(autojump_threshold=0))
