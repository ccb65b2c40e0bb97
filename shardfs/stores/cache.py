"""A cache that loads each value once for all who want it, and a way to read what others are changing."""

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock
from typing import Final, Generic, TypeVar

import trio

from shardfs.errors import StaleError

_ATTEMPTS: Final = 5

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """An LRU cache of values that are loaded on demand.

    It holds at most *max_nbytes* bytes, by *nbytes_of*, and *max_count* values, but always one. *dropped* is called
    with each value that is dropped.
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
        self._outdated: set[K] = set()  # of values that are being loaded

    @property
    def count(self) -> int:
        """How many values are cached."""
        return len(self._values)

    def peek(self, key: K) -> V | None:
        """Return a value if it is cached, however old it is."""
        return self._values.get(key)

    def find(self, key: K) -> V | None:
        """Return a value if it is cached, and mark it as used."""
        value = self._values.get(key)
        if value is not None:
            self.touch(key)
        return value

    def touch(self, key: K) -> None:
        """Mark a cached value as used."""
        self._values.move_to_end(key)

    def known(self) -> list[K]:
        """Return the keys of values that are cached or being loaded."""
        return [*self._values, *self._loading]

    async def get(
        self, key: K, load: Callable[[], Awaitable[V]], is_current: Callable[[V], Awaitable[bool]] | None = None
    ) -> V:
        """Return the cached value if it is current, else load it; once more if it is forgotten meanwhile."""
        while True:
            value = self._values.get(key)
            is_usable = value is not None and (is_current is None or await is_current(value))
            if value is not None and is_usable and self._values.get(key) is value:
                self.touch(key)
                return value
            if key not in self._loading:
                break
            await self._loading[key].wait()  # a value that another task loaded has to be current too
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
        """Cache a value, as the most recently used one."""
        self._drop(key)
        self._values[key] = value
        self._nbytes += self._nbytes_of(value)
        while len(self._values) > 1 and (self._nbytes > self._max_nbytes or len(self._values) > self._max_count):
            self._drop(next(iter(self._values)))

    def is_outdated(self, key: K) -> bool:
        """Whether a value was forgotten while it was being loaded, so that it will be loaded again."""
        return key in self._outdated

    def forget(self, key: K) -> None:
        """Drop a value, so that it is loaded again at the next request."""
        if key in self._loading:
            self._outdated.add(key)
        self._drop(key)

    def _drop(self, key: K) -> None:
        if key in self._values:
            value = self._values.pop(key)
            self._nbytes -= self._nbytes_of(value)
            self._dropped(value)


class SharedCache(Cache[K, V]):
    """A cache in which any thread may look values up, and put them."""

    def __init__(self, nbytes_of: Callable[[V], int], max_nbytes: int) -> None:
        super().__init__(nbytes_of, max_nbytes)
        self._lock = Lock()

    def touch(self, key: K) -> None:
        """Mark a value as used, if it is still cached."""
        with self._lock:
            if key in self._values:
                super().touch(key)

    def put(self, key: K, value: V) -> None:
        """Cache a value, as the most recently used one."""
        with self._lock:
            super().put(key, value)

    def forget(self, key: K) -> None:
        """Drop a value, so that it is loaded again at the next request."""
        with self._lock:
            super().forget(key)


async def while_it_changes(look: Callable[[], Awaitable[V]]) -> V:
    """Return the result of *look*; tried again, a few times, if others replace or change the file meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(StaleError):
            return await look()
    return await look()
