"""Contents in memory, and contents made of others."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer, Content, in_pieces


@dataclass(frozen=True, slots=True)
class MemoryContent:
    """*data* as content."""

    data: memoryview

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.data.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        return self.data[offset : offset + nbytes]


@dataclass(frozen=True, slots=True)
class Slice:
    """*nbytes* bytes from *start* of what *source* reads, by offset and size, as content of their own."""

    source: Callable[[int, int], Buffer]
    start: int
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of them."""
        return self.source(self.start + offset, nbytes)


class JoinedContent:
    """Several contents, one after another."""

    def __init__(self, contents: Sequence[Content]) -> None:
        self._contents = contents
        self._starts = [0, *accumulate(content.nbytes for content in contents)]

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self._starts[-1]

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*; blocks."""
        views = [*self.views(offset, offset + nbytes)]
        return views[0] if len(views) == 1 else b"".join(views)

    def views(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes from *start* to before *stop*, at most `PIECE_NBYTES` at a time; blocks."""
        for index in range(bisect_right(self._starts, start) - 1, len(self._contents)):
            content, begin = self._contents[index], self._starts[index]
            if begin >= stop:
                break
            for offset, nbytes in in_pieces(min(stop - begin, content.nbytes), max(start - begin, 0)):
                view = memoryview(content.read(offset, nbytes)).cast("B")
                if view.nbytes != nbytes:
                    raise StoreError(f"{nbytes} bytes that were to be stored came as {view.nbytes}")
                yield view
