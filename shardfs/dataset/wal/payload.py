"""Bytes that stay in the file of a journal's segment until they are asked for."""

import errno
import os
from collections.abc import Iterator

import numpy as np
import trio

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import translate


class Payload:
    """The bytes of one record, in the file of its segment; they stay readable when the file has been removed."""

    __slots__ = ("_place", "nbytes")

    def __init__(self, descriptor: Descriptor, offset: int, nbytes: int) -> None:
        self._place = descriptor, offset
        self.nbytes = nbytes

    @property
    def offset(self) -> int:
        """Where they lie in the file."""
        return self._place[1]

    def move(self, to: "Payload") -> None:
        """Read them from where *to*, which has the same bytes, has them; readers may be at work in other threads."""
        self._place = to._place

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return exactly *nbytes* bytes from *offset*, which lie within the payload; blocks."""
        self._check(offset, nbytes)
        return b"".join(self._pieces(offset, nbytes))

    async def read_soon(self, offset: int, nbytes: int) -> Buffer:
        """Return what `read` returns: at once if the page cache has it, else by a thread."""
        self._check(offset, nbytes)
        buffer = np.empty(nbytes, np.uint8).data
        descriptor, begin = self._place
        try:
            if os.preadv(descriptor.fd, [buffer], begin + offset, os.RWF_NOWAIT) == nbytes:
                return buffer
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise translate(error, "the journal") from None
        return await trio.to_thread.run_sync(self.read, offset, nbytes)

    def _pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        descriptor, begin = self._place
        while nbytes:
            try:
                piece = os.pread(descriptor.fd, nbytes, begin + offset)
            except OSError as error:
                raise translate(error, "the journal") from None
            if not piece:
                raise StoreError("the journal was cut short by another program")
            yield piece
            offset += len(piece)
            nbytes -= len(piece)

    def _check(self, offset: int, nbytes: int) -> None:
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of a payload of {self.nbytes}")


def flat(data: Buffer) -> Buffer:
    """Return *data* as bytes, whatever the items of a view are."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def read_exactly(content: Content, offset: int, nbytes: int) -> Buffer:
    """Read a piece of what is to be published; raises `StoreError` if it ends before."""
    piece = flat(content.read(offset, nbytes))
    if len(piece) != nbytes:
        raise StoreError(f"{content.nbytes} bytes were to be published, and ended before")
    return piece
