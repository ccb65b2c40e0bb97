"""Content as the body that boto3 sends."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from shardfs.errors import StoreError
from shardfs.stores.base import Content

_PIECE: Final = 2**20
"""How much is read at a time; that much is sent as it is, without asking the server first."""


class Streamed:
    """*content* as it is sent, each time from its beginning."""

    def __init__(self, content: Content) -> None:
        self._raw = _ContentFile(content)
        self._nbytes = content.nbytes
        self._file = io.BufferedReader(self._raw, _PIECE)

    def body(self) -> bytes | BinaryIO:
        """Return what to give to boto3."""
        self._file.seek(0)
        return self._file.read() if self._nbytes <= _PIECE else self._file

    @contextmanager
    def hidden_failure(self) -> Iterator[None]:
        """Raise what kept the content from being read; boto3 says that the connection is broken."""
        try:
            yield
        except Exception:
            if self._raw.failure is not None:
                raise self._raw.failure from None
            raise


class _ContentFile(io.RawIOBase):
    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content
        self._position = 0
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._content.nbytes}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), _PIECE, self._content.nbytes - self._position))
        if count == 0:
            return 0
        try:
            data = _read(self._content, self._position, count)
        except Exception as error:
            self.failure = error
            raise
        buffer[:count] = data
        self._position += count
        return count


def _read(content: Content, offset: int, nbytes: int) -> memoryview:
    data = memoryview(content.read(offset, nbytes))
    if data.nbytes != nbytes:
        raise StoreError(f"{nbytes} bytes that were to be stored came as {data.nbytes}")
    return data
