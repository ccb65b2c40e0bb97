"""Listings of chunks: runs that share a shard, turned into rows with names, numbers and cookies."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from shardfs.dataset.array import ListedRun
from shardfs.format.sharding import Coords
from shardfs.vfs.attributes import unreadable
from shardfs.vfs.handles import Batch, Row
from shardfs.vfs.inodes import MISSING, pack, pack_version
from shardfs.vfs.positions import Positions
from shardfs.vfs.views import Face

BATCH: Final = 1024


class ChunkRows:
    """Makes the rows of the chunk tree *number*.

    *keep* is called with the number and the coordinates of every version that was published through the mount.
    """

    def __init__(self, number: int, face: Face, positions: Positions, keep: Callable[[int, Coords], None]) -> None:
        self._number = number
        self._layout = face.array.layout
        self._encoding = face.key_encoding
        self._nbytes = face.codec.nbytes if face.codec is not None else None
        self._positions = positions
        self._keep = keep
        self._nested = face.key_encoding.is_nested(face.array.grid.ndim)

    def batches(self, run: ListedRun, prefix: Coords, ttl: float, missing_nbytes: int | None = None) -> Iterable[Batch]:
        """Yield the chunks of *run*, of the row below *prefix*; the kernel may believe them for *ttl* seconds.

        Those that cannot be read get attributes that are not kept.  Those that are not stored are shown if they have a
        size, *missing_nbytes*.
        """
        row = self._positions.of_chunk((*prefix, 0))
        ino = pack_version(self._number, run.state.generation, row)
        cookie = 1 if self._nested else row - self._positions.bases[-1] + 1
        broken = unreadable(run.state.stat)
        sound = broken._replace(ttl=ttl)
        has_own = bool(self._layout.own)
        for start in range(0, run.length, BATCH):
            numbers, sizes, damaged = run.chunks(start, min(start + BATCH, run.length))
            if self._nbytes is not None:
                sizes = [self._nbytes] * len(sizes)
            inos = shifted(numbers, ino)
            if missing_nbytes is not None and len(numbers) < min(run.length - start, BATCH):
                every = range(run.first + start, run.first + min(start + BATCH, run.length))
                sizes, inos, damaged = self._with_missing(every, numbers, sizes, inos, damaged, row, missing_nbytes)
                numbers = every
            if self._nested:
                names = decimals(numbers)
            else:
                names = [self._encoding.encode((*prefix, n)).encode() for n in numbers]
            rows: Sequence[Row] = list(zip(names, inos, sizes, shifted(numbers, cookie), strict=True))
            if has_own:
                rows = self._with_own(rows, numbers, prefix)
            if damaged is None:
                if rows:
                    yield Batch(sound, rows, is_counted=has_own)
                continue
            for is_damaged, group in groupby(zip(damaged, rows, strict=True), key=lambda pair: pair[0]):
                yield Batch(broken if is_damaged else sound, [listed for _, listed in group], is_counted=has_own)

    def _with_missing(
        self,
        every: range,
        numbers: Sequence[int],
        sizes: Sequence[int],
        inos: Sequence[int],
        damaged: Sequence[bool] | None,
        row: int,
        nbytes: int,
    ) -> tuple[list[int], list[int], list[bool] | None]:
        """Return sizes, inode numbers and damage of *every* chunk, where only *numbers* are stored."""
        stored = {number: i for i, number in enumerate(numbers)}
        missing = pack(self._number, MISSING, row)
        at = [stored.get(number) for number in every]
        return (
            [nbytes if i is None else sizes[i] for i in at],
            [missing + number if i is None else inos[i] for number, i in zip(every, at, strict=True)],
            None if damaged is None else [i is not None and damaged[i] for i in at],
        )

    def _with_own(self, rows: Sequence[Row], numbers: Sequence[int], prefix: Coords) -> Sequence[Row]:
        """Return *rows* with the inode numbers of versions that were published through the mount."""
        own = self._layout.own
        listed = []
        for row, number in zip(rows, numbers, strict=True):
            version = own.get((*prefix, number))
            if version is None:
                listed.append(row)
            else:
                self._keep(version.ino, (*prefix, number))
                listed.append((row[0], version.ino, row[2], row[3]))
        return listed


def shifted(numbers: Sequence[int], distance: int) -> Sequence[int]:
    """Return *numbers*, each larger by *distance*."""
    if isinstance(numbers, range):
        return range(numbers.start + distance, numbers.stop + distance)
    return [n + distance for n in numbers]


def decimals(numbers: Sequence[int]) -> list[bytes]:
    """Return the names of coordinates; a row is listed again and again, so those of one are kept ready."""
    if isinstance(numbers, range) and numbers.stop <= len(_DECIMALS):
        return _DECIMALS[numbers.start : numbers.stop]
    return [b"%d" % n for n in numbers]


_DECIMALS: Final = [b"%d" % n for n in range(4096)]
