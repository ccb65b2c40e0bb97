"""Find the last whole index of a shard to which another program was appending when it was stopped.

No index stands at the end then.  What was readable before the append still is, by the last index that is whole.

Source: specification of the `sharding_indexed` codec 1.0, "Binary shard format".
"""

from collections.abc import Iterator
from functools import reduce
from operator import xor
from typing import Final

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError
from shardfs.format.codecs import Buffer, crc32c
from shardfs.format.index import ENTRY_NBYTES, IndexLayout, damaged

_ROW: Final = 2048  # positions that follow each other in a block; the rows of a block are worked on side by side
_ROWS: Final = 1024
_ONES: Final = 0xFFFFFFFF


def find_last_index(layout: IndexLayout, data: Buffer) -> int | None:
    """Return the offset of the last valid index in *data*, which is a shard and what an append left behind it.

    An index is valid if its checksums match and every entry is empty or names bytes before it.  It may lie at any
    offset, whatever lies behind it: the time that the search takes depends on nothing but the distance from the end.
    Returns None if there is none.  Raises `ValueError` for a layout whose index cannot be told from other bytes, for
    want of a checksum, or is not at the end.
    """
    if layout.at_start or not layout.codecs.checksums:
        raise ValueError("only an index at the end, with a checksum, can be searched for")
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


def _is_index(layout: IndexLayout, shard: npt.NDArray[np.uint8], offset: int) -> bool:
    try:
        encoded = shard[offset : offset + layout.nbytes].tobytes()
        index = layout.codecs.decode(encoded, layout.chunks_per_shard, shard_nbytes=offset)
    except CorruptionError:
        return False
    return not damaged(index.entries, offset)


class _Window:
    """Finds windows of *nbytes* bytes that their crc32c follows, at the same cost for each, whatever their size.

    A crc32c without its inversions is linear: moving the window by one byte shifts the checksum, takes in one byte and
    takes out another.  *taken_out* is what a byte adds to the checksum of a window that it has just left.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._leaving = [_linear(bytes(nbytes), 1 << bit) for bit in range(32)]
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
    return crc32c(data, state ^ _ONES) ^ _ONES


def _apply(operator: list[int], state: int) -> int:
    """Apply a linear operator, given by what it makes of each bit."""
    return reduce(xor, (image for bit, image in enumerate(operator) if state >> bit & 1), 0)
