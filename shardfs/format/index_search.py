"""Find the last whole index of a shard to which another program was appending when it was stopped.

No index stands at the end then.  What was readable before the append still is, by the last index that is whole.

Source: specification of the `sharding_indexed` codec 1.0, "Binary shard format".
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
from numcodecs.checksum32 import CRC32C

from shardfs.errors import CorruptionError
from shardfs.format.codecs import Buffer, encode
from shardfs.format.index import ENTRY_NBYTES, EntryRun, IndexLayout, ShardIndex

_ROW: Final = 2048  # positions that follow each other in a block; the rows of a block are worked on side by side
_ROWS: Final = 1024
_ONES: Final = 0xFFFFFFFF
_NUMBER_NBYTES: Final = 8
_MAX_COMPARED_NBYTES: Final = 2**30


def find_last_index(layout: IndexLayout, data: Buffer) -> int | None:
    """Return the offset of the last valid index in *data*, which is a shard and what an append left behind it.

    An index is valid if its checksums match and every entry is empty or names bytes before it.  It may lie at any
    offset, whatever lies behind it: the time that the search takes depends on nothing but the distance from the end.
    Returns None if there is none.  Raises `ValueError` for a layout whose index cannot be told from other bytes, for
    want of a checksum, or is not at the end.
    """
    _check_layout(layout)
    shard = np.frombuffer(data, dtype=np.uint8)
    stop = len(shard) - layout.nbytes + 1
    window = _Window(ENTRY_NBYTES * layout.nentries)
    while stop > 0:
        start = max(stop - _ROW * _ROWS, 0)
        for offset in window.matches(shard, start, stop)[::-1].tolist():
            if _is_index(layout, shard, offset):
                return int(offset)
        stop = start
    return None


def _check_layout(layout: IndexLayout) -> None:
    if layout.at_start or not layout.codecs.checksums:
        raise ValueError("only an index at the end, with a checksum, can be searched for")


def _is_index(layout: IndexLayout, shard: npt.NDArray[np.uint8], offset: int) -> bool:
    try:
        encoded = shard[offset : offset + layout.nbytes].tobytes()
        index = layout.codecs.decode(encoded, layout.chunks_per_shard, shard_nbytes=offset)
    except CorruptionError:
        return False
    entries = index.run(0, 1, index.nentries)
    return bool((entries.sound | entries.empty).all())


def torn_entries(layout: IndexLayout, last: ShardIndex, last_stop: int, data: Buffer) -> list[int]:
    """Return the entries that an append changed which was cut short within its index.

    *last* is the last valid index, *last_stop* where it ends, and `data[last_stop:]` what the append left.  That tail
    is taken to end with the beginning of an index if all entries that are whole are as in *last*, empty, or name
    bytes between *last_stop* and that beginning, of which one begins or ends what lies there.  The entries that differ
    from *last* are returned, for the earliest such beginning; none if there is no such beginning.

    What cannot be known: an append that was cut within its payloads names no entries, and one that was cut within its
    index names only those up to there.  Nothing vouches for an index that is not whole: a payload whose last bytes read
    like the beginning of one is taken for it, and many empty entries may hide where it begins.
    """
    _check_layout(layout)
    shard = np.frombuffer(data, dtype=np.uint8)
    torn = _TornIndex(layout, last, last_stop, shard)
    attempts = _MAX_COMPARED_NBYTES // layout.nbytes
    for start in islice(torn.candidates(), attempts):
        entries = torn.changes(start)
        if entries:
            return entries
    return []


class _TornIndex:
    """The beginning of an index at the end of *shard*, wherever it may start."""

    def __init__(self, layout: IndexLayout, last: ShardIndex, last_stop: int, shard: npt.NDArray[np.uint8]) -> None:
        self._layout = layout
        self._last = last.entries()
        self._last_stop = last_stop
        self._shard = shard
        # The numbers of an index by their places in C order, in the order in which they are stored.
        places = np.arange(2 * layout.nentries).reshape(*layout.chunks_per_shard, 2)
        self._stored = places.transpose(layout.codecs.order).reshape(-1)

    def candidates(self) -> Iterator[int]:
        """Yield the offsets, in ascending order, where entry 0 may be that of a new index."""
        stride = _NUMBER_NBYTES * int(np.flatnonzero(self._stored[: self._layout.nentries + 1] == 1)[0])
        stop = len(self._shard) - stride - _NUMBER_NBYTES + 1
        for start in range(max(self._last_stop, len(self._shard) - self._layout.nbytes + 1), stop, _ROW * _ROWS):
            starts = np.arange(start, min(start + _ROW * _ROWS, stop), dtype=np.uint64)
            pairs = np.stack([self._numbers(start, len(starts)), self._numbers(start + stride, len(starts))], axis=1)
            known = (pairs == self._last[0]).all(axis=1)
            yield from starts[known | EntryRun(pairs, 0).empty | self._is_new(pairs, starts)].tolist()

    def changes(self, start: int) -> list[int]:
        """Return the entries that differ from the last index, if one may begin at *start*."""
        nbytes = ENTRY_NBYTES * self._layout.nentries
        rest = self._shard[start:]
        count = min(len(rest), nbytes) // _NUMBER_NBYTES
        entries = self._last.copy()
        entries.reshape(-1)[self._stored[:count]] = rest[: count * _NUMBER_NBYTES].view(self._layout.codecs.dtype)
        whole = np.zeros_like(entries, dtype=np.bool_)
        whole.reshape(-1)[self._stored[:count]] = True
        changed = np.flatnonzero(whole.all(axis=1) & (entries != self._last).any(axis=1))
        pairs = entries[changed]
        new = self._is_new(pairs, np.uint64(start))
        begun, ended = pairs[new, 0] == self._last_stop, pairs[new].sum(axis=1) == start
        if not (new | EntryRun(pairs, 0).empty).all() or not (begun | ended).any():
            return []
        checked = encode(self._layout.codecs.checksums, rest[:nbytes].tobytes()) if len(rest) > nbytes else b""
        return changed.tolist() if checked[nbytes : len(rest)] == rest[nbytes:].tobytes() else []

    def _numbers(self, start: int, count: int) -> npt.NDArray[np.uint64]:
        """Return the numbers that begin at *start* and at each byte behind it."""
        dtype = self._layout.codecs.dtype
        return np.ndarray((count,), dtype=dtype, buffer=self._shard, offset=start, strides=(1,)).astype(np.uint64)

    def _is_new(self, pairs: npt.NDArray[np.uint64], stop: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.bool_]:
        """Tell which of *pairs* name bytes behind the last index and before *stop*."""
        return np.asarray(EntryRun(pairs, stop).sound & (pairs[:, 0] >= np.uint64(self._last_stop)))


class _Window:
    """Finds windows of *nbytes* bytes that their crc32c follows, at the same cost for each, whatever their size.

    A crc32c without its inversions is linear: moving the window by one byte shifts the checksum, takes in one byte and
    takes out another.  *taken_out* is what a byte adds to the checksum of a window that it has just left.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        step = [_linear(b"\0", 1 << bit) for bit in range(32)]
        self._leaving = _power(step, nbytes)
        self._taken_in = np.array([_linear(bytes([byte])) for byte in range(256)], dtype=np.uint32)
        self._taken_out = np.array([_apply(self._leaving, int(x)) for x in self._taken_in], dtype=np.uint32)
        self._zeros = _apply(self._leaving, _ONES) ^ _ONES

    def matches(self, shard: npt.NDArray[np.uint8], start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the offsets, of those from *start* to before *stop*, of windows that match."""
        count, nbytes = stop - start, self._nbytes
        rows = -(-count // _ROW)
        changes = np.zeros(rows * _ROW, dtype=np.uint32)
        changes[:count] = self._taken_in[shard[start + nbytes : stop + nbytes]] ^ self._taken_out[shard[start:stop]]
        columns = np.ascontiguousarray(changes.reshape(rows, _ROW).T)
        state = np.array(list(self._row_states(shard, start, stop)), dtype=np.uint32)
        for column in columns:
            # Each column is replaced by the checksums at its positions, once it has served to move on to the next.
            following = self._taken_in[state & 0xFF] ^ (state >> 8) ^ column
            column[:] = state
            state = following
        checksums = columns.T.reshape(-1)[:count] ^ np.uint32(self._zeros)
        stored = np.ndarray((count,), dtype="<u4", buffer=shard, offset=start + nbytes, strides=(1,))
        return start + np.flatnonzero(checksums == stored)

    def _row_states(self, shard: npt.NDArray[np.uint8], start: int, stop: int) -> Iterator[int]:
        """Yield the checksum of the window at *start* and at every row behind it."""
        state = _linear(shard[start : start + self._nbytes])
        yield state
        for row in range(start + _ROW, stop, _ROW):
            left = _linear(shard[row - _ROW : row])
            state = _linear(shard[row - _ROW + self._nbytes : row + self._nbytes], state)
            state ^= _apply(self._leaving, left)
            yield state


def _linear(data: npt.NDArray[np.uint8] | bytes, state: int = 0) -> int:
    """Return the crc32c of *data* without inversion before and after, from *state* on."""
    return int(CRC32C.checksum(data, state ^ _ONES)) ^ _ONES


def _apply(operator: list[int], state: int) -> int:
    """Apply a linear operator, given by what it makes of each bit."""
    result = 0
    for bit, image in enumerate(operator):
        if state >> bit & 1:
            result ^= image
    return result


def _power(operator: list[int], exponent: int) -> list[int]:
    """Return the operator that applies *operator* so many times."""
    result = [1 << bit for bit in range(32)]
    while exponent:
        if exponent & 1:
            result = [_apply(operator, image) for image in result]
        operator = [_apply(operator, image) for image in operator]
        exponent >>= 1
    return result
