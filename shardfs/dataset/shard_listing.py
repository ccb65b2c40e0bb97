"""Which shards are stored, axis by axis: what a listing of inner chunks is made from."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shardfs.dataset.layout import ArrayLayout
from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError
from shardfs.format.grid import parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.stores.base import Store, join_key
from shardfs.stores.ttl import derived_at, within_ttl

_MAX_PREFIXES: Final = 1024

_Branch = dict[int, "_Branch"]


class _Listed(NamedTuple):
    """When the store was asked to list, and what `ArrayLayout.listing` was then."""

    time: float
    listing: int


_NEVER: Final = _Listed(float("-inf"), -1)


class ShardListing:
    """The stored shards of one array, by their names alone, as they were listed at most *ttl* seconds ago.

    Shards that commits of our own made or removed since are seen at once.
    """

    def __init__(
        self, store: Store, array: ArrayLayout, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._array = array
        self._ttl = ttl
        self._clock = clock
        self._children: dict[Coords, tuple[_Listed, Sequence[int]]] = {}
        self._branches: _Branch = {}
        self._listed = _NEVER

    async def children(self, prefix: Coords) -> Sequence[int]:
        """Return, in order, the next coordinates of the stored shards whose coordinates begin with *prefix*."""
        known = self._children.get(prefix)
        if known is not None and self._is_current(known[0]):
            return known[1]
        listed = _Listed(derived_at(self._clock()), self._array.listing)
        if self._array.key_encoding.is_nested(self._array.grid.ndim):
            found = await self._list_directory(prefix)
        else:
            branch = await self._all()
            for index in prefix:
                branch = branch.get(index, {})
            found = list(branch)
            listed = self._listed
        nchunks = self._array.grid.shards.dimensions[len(prefix)].nchunks
        children = sorted(index for index in found if index < nchunks)
        if len(self._children) >= _MAX_PREFIXES:
            self._children.clear()
        self._children[prefix] = (listed, children)
        return children

    def forget(self) -> None:
        """List again when it is asked next."""
        self._children.clear()
        self._listed = _NEVER

    def _is_current(self, listed: "_Listed") -> bool:
        return listed.listing == self._array.listing and within_ttl(listed.time, self._clock(), self._ttl)

    async def any(self) -> bool:
        """Whether anything is stored where the shards are, be it none of the grid."""
        array = self._array
        root = array.key_encoding.root(array.grid.ndim)
        if array.grid.ndim and not root:
            return bool(await self.children(()))
        try:
            await self._store.stat(join_key(array.path, root) if root else array.shard_key(()))
        except NotFoundError:
            return False
        return True

    async def _list_directory(self, prefix: Coords) -> list[int]:
        array = self._array
        parts = [array.path, array.key_encoding.root(array.grid.ndim), *map(str, prefix)]
        try:
            entries = await self._store.list("/".join(part for part in parts if part))
        except NotFoundError:
            return []
        except NotADirectoryHereError as error:
            raise CorruptionError(f"{error}, where shards should be") from None
        return [index for entry in entries if (index := parse_coordinate(entry.name)) is not None]

    async def _all(self) -> _Branch:
        if not self._is_current(self._listed):
            array, listed = self._array, _Listed(derived_at(self._clock()), self._array.listing)
            branches: _Branch = {}
            for entry in await self._store.list(array.path):
                branch = branches
                for index in array.key_encoding.decode(entry.name, array.grid.ndim) or ():
                    branch = branch.setdefault(index, {})
            self._branches, self._listed = branches, listed
        return self._branches
