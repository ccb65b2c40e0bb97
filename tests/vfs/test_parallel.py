"""Work on many things at once: within the limit, in order, and ended by the first error."""

from __future__ import annotations

import pytest
import trio

from shardfs.errors import StoreError
from shardfs.stores.parallel import for_each
from tests.support.opened import in_trio


@pytest.mark.parametrize(("count", "limit"), [(0, 4), (1, 4), (3, 4), (20, 4), (20, 1)])
def test_everything_is_done_with_no_more_at_once_than_the_limit(count: int, limit: int) -> None:
    begun: list[int] = []
    running, most = 0, 0

    async def work(item: int) -> None:
        nonlocal running, most
        begun.append(item)
        running += 1
        most = max(most, running)
        await trio.testing.wait_all_tasks_blocked()
        running -= 1

    @in_trio
    async def main() -> None:
        await for_each(range(count), work, limit)

    main()
    assert begun == list(range(count))
    assert most == min(count, limit)


@in_trio
async def test_the_first_error_ends_all_and_is_raised_by_itself() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        try:
            if item == 2:
                await trio.testing.wait_all_tasks_blocked()
                raise StoreError("the second one")
            await trio.sleep_forever()
        finally:
            ended.append(item)

    with pytest.raises(StoreError, match="the second one"):
        await for_each(range(10), work, 4)
    assert sorted(ended) == [0, 1, 2, 3]
