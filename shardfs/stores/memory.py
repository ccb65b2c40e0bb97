"""Bytes in memory behind the protocols `Snapshot` and `Content`: shards that had to be decoded whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shardfs.stores.base import Buffer, Stat


@dataclass(frozen=True, slots=True)
class MemoryContent:
    """*data*, to be stored."""

    data: memoryview

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.data.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        return self.data[offset : offset + nbytes]


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """*data*, derived from the object whose state is *stat*."""

    data: memoryview
    stat: Stat

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self.data)

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        return self.data[offset : offset + nbytes]

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: the bytes are here."""

    @contextmanager
    def mapped(self) -> Iterator[memoryview]:
        """Give the bytes, to search them."""
        yield self.data

    def content(self, offset: int, nbytes: int) -> "MemoryContent":
        """Return *nbytes* bytes from *offset*."""
        return MemoryContent(self.data[offset : offset + nbytes])

    async def is_current(self) -> bool:
        """Return True: whoever decoded the bytes looks after the object that they came from."""
        return True

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Return False: what is in memory does not grow."""
        return False
