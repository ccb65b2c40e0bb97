"""A cache whose values are loaded once, however many want them; and loading while others change what is stored."""

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import trio

from shardfs.errors import StaleError

_ATTEMPTS: Final = 5

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Values by key; those used last stay, up to *max_nbytes* by *nbytes_of* and *max_count*, and one at least.

    *dropped* is called with each value that goes.
    """

    def __init__(
        self,
        nbytes_of: Callable[[V], int],
        max_nbytes: int,
        max_count: int = sys.maxsize,
        dropped: Callable[[V], object] = lambda _: None,
    ) -> None:
        self._nbytes_of = nbytes_of
        self._max_nbytes = max_nbytes
        self._max_count = max_count
        self._dropped = dropped
        self._nbytes = 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._loading: dict[K, trio.Event] = {}
        self._outdated: set[K] = set()  # of those that are being loaded

    def peek(self, key: K) -> V | None:
        """Return what is known, however old it is."""
        return self._values.get(key)

    def touch(self, key: K) -> None:
        """Note that a value was used, which is known."""
        self._values.move_to_end(key)

    def known(self) -> list[K]:
        """Return the keys of what is known, and of what is being loaded."""
        return [*self._values, *self._loading]

    async def get(self, key: K, is_current: Callable[[V], Awaitable[bool]], load: Callable[[], Awaitable[V]]) -> V:
        """Return the value that is known and current, or load it; again, if it is forgotten meanwhile."""
        while True:
            value = self._values.get(key)
            if value is not None and await is_current(value) and self._values.get(key) is value:
                self._values.move_to_end(key)
                return value
            if key not in self._loading:
                break
            await self._loading[key].wait()  # what another one loaded is confirmed like anything else
        event = self._loading[key] = trio.Event()
        try:
            value = await load()
            while key in self._outdated:
                self._outdated.discard(key)
                value = await load()
        finally:
            self._outdated.discard(key)
            del self._loading[key]
            event.set()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Know a value, as the one that was used last."""
        self._drop(key)
        self._values[key] = value
        self._nbytes += self._nbytes_of(value)
        while len(self._values) > 1 and (self._nbytes > self._max_nbytes or len(self._values) > self._max_count):
            self._drop(next(iter(self._values)))

    def is_outdated(self, key: K) -> bool:
        """Whether a value that is being loaded was forgotten meanwhile, and is loaded again."""
        return key in self._outdated

    def forget(self, key: K) -> None:
        """Load a value again when it is wanted next."""
        if key in self._loading:
            self._outdated.add(key)
        self._drop(key)

    def _drop(self, key: K) -> None:
        if key in self._values:
            value = self._values.pop(key)
            self._nbytes -= self._nbytes_of(value)
            self._dropped(value)


async def while_it_changes(look: Callable[[], Awaitable[V]]) -> V:
    """Return what *look* finds; it looks again if others replace or change the file meanwhile, a few times."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(StaleError):
            return await look()
    return await look()
