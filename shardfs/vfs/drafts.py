"""Drafts: bytes that a program wrote and that are nobody else's yet."""

import os
import tempfile
from typing import Final

from shardfs.stores.base import Buffer
from shardfs.stores.beneath import Descriptor, changing, translated

_SPILL_NBYTES: Final = 4 * 2**20
_MAX_MEMORY: Final = 64 * 2**20


class DraftSpace:
    """Where drafts keep their bytes: in memory while they are small and few, in nameless files of *directory* else."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.memory = 0


class Draft:
    """The content of one file while it is written.  It is itself the content that is published."""

    def __init__(self, space: DraftSpace) -> None:
        self._space = space
        self._buffer: bytes | bytearray = b""
        self._file: Descriptor | None = None
        self._accounted = 0
        self.nbytes = 0

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""
        if self._file is not None:
            with translated("a draft"):
                return os.pread(self._file.fd, nbytes, offset)
        if offset == 0 and nbytes >= self.nbytes:
            return self._buffer
        return memoryview(self._buffer)[offset : offset + nbytes]

    def write(self, offset: int, data: Buffer) -> None:
        """Write *data* at *offset*; a gap before it is zeros."""
        if not data:
            return
        end = offset + len(data)
        if self._file is None and (end > _SPILL_NBYTES or self._space.memory + end > _MAX_MEMORY):
            self._spill()
        if self._file is None and self.nbytes == offset == 0:
            self._account(end)
            self._buffer = bytes(data)
        elif self._file is not None:
            with changing("a draft"):
                _write(self._file.fd, data, offset)
        else:
            buffer = self._writable()
            if offset > len(buffer):
                buffer.extend(bytes(offset - len(buffer)))
            buffer[offset:end] = data
            self._account(len(buffer))
        self.nbytes = max(self.nbytes, end)

    def truncate(self, nbytes: int) -> None:
        """Cut the content to *nbytes*, or extend it with zeros."""
        if self._file is None and nbytes > _SPILL_NBYTES:
            self._spill()
        if self._file is not None:
            with changing("a draft"):
                os.ftruncate(self._file.fd, nbytes)
        elif nbytes == 0:
            self._buffer = b""
            self._account(0)
        else:
            buffer = self._writable()
            if nbytes < len(buffer):
                del buffer[nbytes:]
            else:
                buffer.extend(bytes(nbytes - len(buffer)))
            self._account(nbytes)
        self.nbytes = nbytes

    def clear(self) -> None:
        """Let go of all bytes."""
        self._account(0)
        self._buffer = b""
        self._file = None
        self.nbytes = 0

    def _writable(self) -> bytearray:
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        return self._buffer

    def _account(self, nbytes: int) -> None:
        self._space.memory += nbytes - self._accounted
        self._accounted = nbytes

    def _spill(self) -> None:
        with changing("the directory of drafts"):
            fd, path = tempfile.mkstemp(dir=self._space.directory)
            file = Descriptor(fd)
            os.unlink(path)
            _write(fd, self._buffer, 0)
            os.ftruncate(fd, self.nbytes)
        self._account(0)
        self._buffer = b""
        self._file = file


def _write(fd: int, data: Buffer, offset: int) -> None:
    """Write all of *data*: a disk that is nearly full takes a part of it."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
