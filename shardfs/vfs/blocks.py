"""Parts of .npy files that were put together for who reads on."""

from collections import OrderedDict
from typing import Final, NamedTuple

MAX_BLOCK_NBYTES: Final = 2**20
"""Size of the largest block: a few requests of the kernel."""

_MAX_BLOCKS: Final = 16


class Block(NamedTuple):
    """Bytes of the elements of an array, from *start* to *stop* − 1."""

    start: int
    stop: int
    data: memoryview


class Blocks:
    """One block for each open file that is read in order; those used last stay, a bounded number."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[object, Block] = OrderedDict()

    def take(self, reader: object, start: int) -> Block | None:
        """Take away the block of *reader*; None if it has none, or none with the byte *start*."""
        block = self._blocks.pop(reader, None)
        return block if block is not None and block.start <= start < block.stop else None

    def drop(self, reader: object) -> None:
        """Forget the block of *reader*, if it has one."""
        self._blocks.pop(reader, None)

    def keep(self, reader: object, block: Block) -> None:
        """Keep a block for *reader*."""
        self._blocks[reader] = block
        if len(self._blocks) > _MAX_BLOCKS:
            self._blocks.popitem(last=False)
