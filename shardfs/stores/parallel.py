"""Work on many things, a few of them at once."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TypeVar

import trio

from shardfs.errors import ShardfsError

T = TypeVar("T")


async def for_each(items: Collection[T], work: Callable[[T], Awaitable[None]], limit: int) -> None:
    """Do *work* on each of *items*, in their order, up to *limit* at once; raises the first `ShardfsError` of any."""
    rest = iter(items)
    ntasks = min(len(items), limit)
    if ntasks <= 1:
        for item in rest:
            await work(item)
        return
    errors: list[ShardfsError] = []

    async def go_on(rest: Iterator[T], scope: trio.CancelScope) -> None:
        try:
            for item in rest:
                await work(item)
        except ShardfsError as error:
            errors.append(error)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(ntasks):
            nursery.start_soon(go_on, rest, nursery.cancel_scope)
    if errors:
        raise errors[0]
