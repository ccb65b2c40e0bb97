"""Which versions of shards and chunks were seen, and made: what inode numbers and modification times hang on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardfs.dataset.queue import OwnVersion, ShardVersion
from shardfs.dataset.statistics import Statistics
from shardfs.format.sharding import Coords
from shardfs.stores.base import Stat

if TYPE_CHECKING:
    from shardfs.dataset.shard_cache import ArrayLayout


class InodeGenerations:
    """The versions of all arrays of a source, which are kept in their layouts.

    Of chunks that were published through this mount, up to *max_own* have versions of their own.
    """

    def __init__(self, statistics: Statistics, *, max_own: int) -> None:
        self._statistics = statistics
        self._changing: set[tuple[ArrayLayout, Coords]] = set()
        self._max_own = max_own
        self._nown = 0
        self._with_own: deque[tuple[ArrayLayout, Coords]] = deque()
        self._max_seen = 2 * max_own
        self._seen: deque[tuple[ArrayLayout, Coords]] = deque()  # of unsharded arrays, which may have any number

    def of(self, array: ArrayLayout, coords: Coords, stat: Stat) -> ShardVersion:
        """Return the version of the shard at *coords*, which is in the state *stat* now."""
        stored = hash(stat.version)
        version = array.versions.get(coords)
        if version is None:
            version = self._see(array, coords)
            version.stored, version.mtime_ns = stored, stat.mtime_ns
        elif version.stored is None:  # chunks were published before there was a shard
            version.stored, version.mtime_ns = stored, stat.mtime_ns
        elif version.stored != stored and (array, coords) not in self._changing:
            version.stored, version.mtime_ns = stored, stat.mtime_ns
            self._statistics.replaced_shards += 1
            self._supersede(array, version)
        return version

    def own(
        self, array: ArrayLayout, shard: Coords, coords: Coords, own: OwnVersion
    ) -> list[tuple[ArrayLayout, Coords]]:
        """Note the version of a chunk; return the shards whose chunks lost theirs to make room for it."""
        version = self._see(array, shard)
        chunks = version.own if isinstance(version.own, set) else set()
        if not chunks:
            self._with_own.append((array, shard))
        if coords not in chunks:
            chunks.add(coords)
            self._nown += 1
        version.own = chunks
        array.own[coords] = own
        lost = []
        for _ in range(len(self._with_own)):
            if self._nown <= self._max_own:
                break
            oldest, at = self._with_own.popleft()
            if at in oldest.pending.shards or (oldest is array and at == shard):
                self._with_own.append((oldest, at))
            elif (superseded := oldest.versions.get(at)) is not None:
                self._supersede(oldest, superseded)
                lost.append((oldest, at))
        return lost

    @contextmanager
    def changing(self, array: ArrayLayout, coords: Coords, stat: Stat | None) -> Iterator[None]:
        """Take what the shard at *coords* becomes, as long as the block lasts, for the version *stat* that it was."""
        if stat is not None:
            self.of(array, coords, stat)
        self._changing.add((array, coords))
        try:
            yield
        finally:
            self._changing.discard((array, coords))

    def committed(self, array: ArrayLayout, coords: Coords, stat: Stat | None) -> None:
        """Note that a commit of our own left the shard at *coords* in the state *stat*, None if it is gone."""
        version = self._see(array, coords)
        if stat is None:
            version.stored = None
            return
        if version.stored is None or array.grid.is_unsharded:
            version.mtime_ns = stat.mtime_ns
        version.stored = hash(stat.version)

    def _see(self, array: ArrayLayout, coords: Coords) -> ShardVersion:
        """Return what is remembered of the version of the shard at *coords*, from now on if nothing was.

        Chunk files of unsharded arrays are seen by the million: only so many that were seen last are remembered.
        """
        version = array.versions.get(coords)
        if version is None:
            version = array.versions[coords] = ShardVersion()
            if array.grid.is_unsharded:
                self._seen.append((array, coords))
                for _ in range(2):  # more than comes in, as what is in use goes round
                    if len(self._seen) > self._max_seen:
                        self._forget_seen(*self._seen.popleft())
        return version

    def _forget_seen(self, array: ArrayLayout, coords: Coords) -> None:
        version = array.versions[coords]
        if version.own or coords in array.pending.shards or (array, coords) in self._changing:
            self._seen.append((array, coords))
        else:
            del array.versions[coords]

    def _supersede(self, array: ArrayLayout, version: ShardVersion) -> None:
        """Make every chunk of a shard a new version, as far as attributes go."""
        version.generation += 1
        for coords in version.own:
            if coords not in array.pending.changes:
                array.own.pop(coords, None)
        kept = {coords for coords in version.own if coords in array.own}
        self._nown -= len(version.own) - len(kept)
        version.own = kept
