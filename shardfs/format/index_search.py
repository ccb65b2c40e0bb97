"""Find the last valid index of a shard after an interrupted append.

There is no index at the end then. The last valid index before it still describes everything that was readable before
the append.

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

_ROW: Final = 2048  # consecutive positions in a row of a block; the rows are processed side by side
_ROWS: Final = 1024
_ONES: Final = 0xFFFFFFFF


def find_last_index(layout: IndexLayout, data: Buffer) -> int | None:
    """Return the offset of the last valid index in *data*: a shard, and what an append left behind it.

    An index is valid if its checksums match and every entry is empty or within the bytes before it. It may be at any
    offset; the search time depends only on its distance from the end. Returns None if there is none. Raises
    `ValueError` for a layout whose index has no checksum to recognise it by, or is not at the end.
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
    """Finds windows of *nbytes* bytes followed by their crc32c, at the same cost for any size.

    Without its inversions, crc32c is linear: moving the window by one byte shifts the checksum, adds one byte and
    removes another. *taken_out* is the contribution of a byte that has just left the window.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._leaving = [_linear(bytes(nbytes), 1 << bit) for bit in range(32)]
        self._taken_in = np.array([_linear(bytes([byte])) for byte in range(256)], dtype=np.uint32)
        self._taken_out = np.array([_apply(self._leaving, int(x)) for x in self._taken_in], dtype=np.uint32)
        self._zeros = _apply(self._leaving, _ONES) ^ _ONES

    def matches(self, shard: npt.NDArray[np.uint8], start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the offsets of matching windows from *start* to before *stop*."""
        count, nbytes = stop - start, self._nbytes
        rows = -(-count // _ROW)
        changes = np.zeros(rows * _ROW, dtype=np.uint32)
        changes[:count] = self._taken_in[shard[start + nbytes : stop + nbytes]] ^ self._taken_out[shard[start:stop]]
        columns = np.ascontiguousarray(changes.reshape(rows, _ROW).T)
        state = np.array(list(self._row_states(shard, start, stop)), dtype=np.uint32)
        for column in columns:
            # Each column is replaced by the checksums at its positions once it is not needed any more.
            following = self._taken_in[state & 0xFF] ^ (state >> 8) ^ column
            column[:] = state
            state = following
        checksums = columns.T.reshape(-1)[:count] ^ np.uint32(self._zeros)
        stored = np.ndarray((count,), dtype="<u4", buffer=shard, offset=start + nbytes, strides=(1,))
        return start + np.flatnonzero(checksums == stored)

    def _row_states(self, shard: npt.NDArray[np.uint8], start: int, stop: int) -> Iterator[int]:
        """Yield the checksum of the window at *start* and at the start of every following row."""
        state = _linear(shard[start : start + self._nbytes])
        yield state
        for row in range(start + _ROW, stop, _ROW):
            left = _linear(shard[row - _ROW : row])
            state = _linear(shard[row - _ROW + self._nbytes : row + self._nbytes], state)
            state ^= _apply(self._leaving, left)
            yield state


def _linear(data: npt.NDArray[np.uint8] | bytes, state: int = 0) -> int:
    """Return the crc32c of *data* without inversions, continuing from *state*."""
    return crc32c(data, state ^ _ONES) ^ _ONES


def _apply(operator: list[int], state: int) -> int:
    """Apply a linear operator, given by its results for single bits."""
    return reduce(xor, (image for bit, image in enumerate(operator) if state >> bit & 1), 0)
