"""Which shards are stored, axis by axis: what a listing of inner chunks is made from."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from shardfs.dataset.layout import ArrayLayout
from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError
from shardfs.format.grid import parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.stores.base import Store, join_key
from shardfs.stores.ttl import derived_at, within_ttl

_MAX_LISTED: Final = 1024


class _Listed(NamedTuple):
    """The next coordinates behind some prefixes, when they were listed, and what `ArrayLayout.listing` was then."""

    children: Mapping[Coords, Sequence[int]]
    time: float
    listing: int


class ShardListing:
    """The stored shards of one array, by their names alone, as they were listed at most *ttl* seconds ago.

    Shards that commits of our own made or removed since are seen at once.
    """

    def __init__(
        self, store: Store, layout: ArrayLayout, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._layout = layout
        self._ttl = ttl
        self._clock = clock
        # By the prefix of a directory; by () for keys without directories, all of which are listed at once.
        self._listed: dict[Coords, _Listed] = {}

    async def children(self, prefix: Coords) -> Sequence[int]:
        """Return, in order, the next coordinates of the stored shards whose coordinates begin with *prefix*."""
        layout = self._layout
        is_nested = layout.key_encoding.is_nested(layout.grid.ndim)
        directory = prefix if is_nested else ()
        known = self._listed.get(directory)
        if known is None or known.listing != layout.listing or not within_ttl(known.time, self._clock(), self._ttl):
            begun, listing = derived_at(self._clock()), layout.listing
            found = {prefix: await self._list_directory(prefix)} if is_nested else await self._list_flat()
            dimensions = layout.grid.shards.dimensions
            children = {
                at: sorted(index for index in indices if index < dimensions[len(at)].nchunks)
                for at, indices in found.items()
            }
            if len(self._listed) >= _MAX_LISTED:
                self._listed.clear()
            known = self._listed[directory] = _Listed(children, begun, listing)
        return known.children.get(prefix, ())

    def forget(self) -> None:
        """List again when it is asked next."""
        self._listed.clear()

    async def any(self) -> bool:
        """Whether anything is stored where the shards are, be it none of the grid."""
        layout = self._layout
        root = layout.key_encoding.root(layout.grid.ndim)
        if layout.grid.ndim and not root:
            return bool(await self.children(()))
        try:
            await self._store.stat(join_key(layout.path, root) if root else layout.shard_key(()))
        except NotFoundError:
            return False
        return True

    async def _list_directory(self, prefix: Coords) -> set[int]:
        layout = self._layout
        parts = [layout.path, layout.key_encoding.root(layout.grid.ndim), *map(str, prefix)]
        try:
            entries = await self._store.list("/".join(part for part in parts if part))
        except NotFoundError:
            return set()
        except NotADirectoryHereError as error:
            raise CorruptionError(f"{error}, where shards should be") from None
        return {index for entry in entries if (index := parse_coordinate(entry.name)) is not None}

    async def _list_flat(self) -> dict[Coords, set[int]]:
        layout = self._layout
        found: dict[Coords, set[int]] = {}
        for entry in await self._store.list(layout.path):
            coords = layout.key_encoding.decode(entry.name, layout.grid.ndim) or ()
            for depth, index in enumerate(coords):
                found.setdefault(coords[:depth], set()).add(index)
        return found
