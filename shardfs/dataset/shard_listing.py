"""Which shards of an array are stored: the names in its directories, and what lies there that is no shard."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from shardfs.dataset.layout import ArrayLayout
from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError
from shardfs.format.grid import parse_coordinate
from shardfs.format.lens.unsharded import ZARR_JSON
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, ListedName, Reader, join_key
from shardfs.stores.cache import Cache
from shardfs.stores.keys import keys_below
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.ttl import derived_at, within_ttl

_MAX_LISTED: Final = 1024


class Strays(NamedTuple):
    """The keys in a directory of shards that belong to no shard of the grid.

    *nodes* are directories and documents, which may be those of other arrays. Of all others, of which there are
    *nothers*, the *first* is named.
    """

    first: str | None
    nothers: int
    nodes: Sequence[str]


class _Listed(NamedTuple):
    """The next coordinates after some prefix, as listed when `PendingShards.listing` had this value."""

    children: Mapping[Coords, Sequence[int]]
    time: float
    listing: int
    strays: Strays | None


class ShardListing:
    """The names of the stored shards of an array, as listed at most *ttl* seconds ago.

    Shards that our own commits created or removed since are seen at once.
    """

    def __init__(
        self, store: Reader, layout: ArrayLayout, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._layout = layout
        self._ttl = ttl
        self._clock = clock
        # By the prefix of a directory; by () for keys without directories, which are all listed at once.
        self._listed: Cache[Coords, _Listed] = Cache(lambda _: 0, 0, _MAX_LISTED)

    async def children(self, prefix: Coords) -> Sequence[int]:
        """Return, in order, the next coordinates of the stored shards whose coordinates begin with *prefix*."""
        layout = self._layout
        directory = prefix if layout.key_encoding.is_nested(layout.grid.ndim) else ()

        async def is_current(known: _Listed) -> bool:
            return known.listing == layout.pending.listing and within_ttl(known.time, self._clock(), self._ttl)

        known = await self._listed.get(directory, partial(self._list, directory), is_current)
        return known.children.get(prefix, ())

    def strays(self, prefix: Coords) -> Strays | None:
        """Return what the last call of `children` has found where only shards belong; None if nothing else is there."""
        known = self._listed.peek(prefix)
        return known.strays if known is not None else None

    def forget(self) -> None:
        """List again at the next request."""
        for known in self._listed.known():
            self._listed.forget(known)

    async def any(self) -> bool:
        """Whether anything is stored where shards belong, in the grid or not."""
        layout = self._layout
        root = layout.key_encoding.root(layout.grid.ndim)
        if layout.grid.ndim and not root:
            return bool(await self.children(()))
        try:
            await self._store.stat(join_key(layout.path, root) if root else layout.shard_key(()))
        except NotFoundError:
            return False
        return True

    async def _list(self, prefix: Coords) -> _Listed:
        """List the directory of the shards that begin with *prefix*, which is () for keys without directories."""
        layout, begun = self._layout, derived_at(self._clock())
        encoding, dimensions, listing = layout.key_encoding, layout.grid.shards.dimensions, layout.pending.listing
        ndim = len(dimensions)
        is_nested, root = encoding.is_nested(ndim), encoding.root(ndim)
        directory = "/".join(part for part in (layout.path, root, *map(str, prefix)) if part)
        entries: Sequence[ListedName] = ()
        try:
            entries = await keys_below(self._store, directory, encoding.leads)
        except NotFoundError:
            pass
        except NotADirectoryHereError as error:
            raise CorruptionError(f"{error}, where shards should be") from None
        missing = set(encoding.required).difference(entry.name for entry in entries)
        entries = [*entries, *(ListedName(name, Kind.FILE) for name in missing)]  # which is an error when it is opened
        indices_below: dict[Coords, set[int]] = {}
        others, nodes = [], []
        for name, kind in entries:
            if is_nested:
                index = parse_coordinate(name)
                coords = () if index is None else (*prefix, index)
            else:
                coords = encoding.decode(name, ndim) or ()
            are_outside = [index >= dimension.nchunks for index, dimension in zip(coords, dimensions, strict=False)]
            for depth in range(len(prefix), len(coords)):
                if not are_outside[depth]:
                    indices_below.setdefault(coords[:depth], set()).add(coords[depth])
            is_foreign = not coords and is_nested and bool(root or prefix) and not is_lock(name)
            if is_foreign and (kind is Kind.DIRECTORY or name == ZARR_JSON):
                nodes.append(join_key(directory, name))
            elif is_foreign or any(are_outside):
                others.append(join_key(directory, name))
        children = {at: sorted(indices) for at, indices in indices_below.items()}
        strays = Strays(min(others, default=None), len(others), sorted(nodes)) if others or nodes else None
        return _Listed(children, begun, listing, strays)
