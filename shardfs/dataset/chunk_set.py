"""A set of chunks of an array, which may be all of many millions."""

from collections.abc import Iterator
from typing import Final

from shardfs.format.sharding import Coords

_BLOCK: Final = 1024


class ChunkSet:
    """Chunks by their coordinates; neighbours along the last axis take a bit each.

    A block of `_BLOCK` of them is an integer, with a bit for each. So a set of all chunks of an array takes about a
    thousandth of what their coordinates would.
    """

    def __init__(self) -> None:
        self._blocks: dict[Coords, int] = {}  # by the coordinates of the block: the last one counts blocks

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __contains__(self, coords: object) -> bool:
        assert isinstance(coords, tuple)
        block, bit = _block_and_bit(coords)
        return bool(self._blocks.get(block, 0) & bit)

    def __iter__(self) -> Iterator[Coords]:
        """Yield the chunks that are in it now, whatever becomes of it meanwhile."""
        for block, bits in list(self._blocks.items()):
            for number in range(bits.bit_length()):
                if bits >> number & 1:
                    yield (*block[:-1], block[-1] * _BLOCK + number) if block else ()

    def add(self, coords: Coords) -> None:
        """Add a chunk."""
        block, bit = _block_and_bit(coords)
        self._blocks[block] = self._blocks.get(block, 0) | bit

    def discard(self, coords: Coords) -> bool:
        """Remove a chunk; return whether it was in it."""
        block, bit = _block_and_bit(coords)
        bits = self._blocks.get(block, 0)
        if bits & ~bit:
            self._blocks[block] = bits & ~bit
        else:
            self._blocks.pop(block, None)
        return bool(bits & bit)


def _block_and_bit(coords: Coords) -> tuple[Coords, int]:
    """Return the block of a chunk, and its bit there."""
    if not coords:
        return (), 1
    block, number = divmod(coords[-1], _BLOCK)
    return (*coords[:-1], block), 1 << number
