"""Bodies of requests that hold old bytes beside new ones.

The old ones are fetched before the request begins: that a version is gone is then known before anything is sent, and a
body that has to be sent again costs nothing more.
"""

import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import IO, Final

import trio

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer, Content, Kept
from shardfs.stores.local.syscalls import changing, translated
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.parts import Fetch, Sent, plan_fetches
from shardfs.stores.s3.requests import Range

_IN_MEMORY: Final = 8 * 2**20
"""How many fetched bytes are held in memory for one body; more go to a file."""


class Body:
    """Contents one behind the other."""

    def __init__(self, contents: Sequence[Content]) -> None:
        self._contents = contents
        self._starts = [0, *accumulate(content.nbytes for content in contents)]

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return self._starts[-1]

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*; blocks."""
        parts: list[Buffer] = []
        stop = offset + nbytes
        place = bisect_right(self._starts, offset) - 1
        while offset < stop:
            start = self._starts[place]
            count = min(stop, self._starts[place + 1]) - offset
            if count:
                parts.append(self._contents[place].read(offset - start, count))
            offset += count
            place += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Fetched:
    """*nbytes* bytes of *file* from *start* on."""

    def __init__(self, file: IO[bytes], start: int, nbytes: int) -> None:
        self._file = file
        self._start = start
        self.nbytes = nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        with translated("what was fetched to be sent again"):
            self._file.seek(self._start + offset)
            return self._file.read(nbytes)


@asynccontextmanager
async def body_of(part: Sent, client: S3Client, key: str, etag: str | None, directory: str) -> AsyncIterator[Body]:
    """Have what is sent for *part*, with its old bytes, which are those of the object *key* with *etag*.

    Many of them are held in an unnamed file in *directory*.  Raises `ConflictError` if the object has another ETag,
    `NoSpaceError`, `StoreError`.
    """
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=directory) as file:
        contents: list[Content] = []
        position = 0
        for piece in part.pieces:
            if isinstance(piece, Kept):
                contents.append(_Fetched(file, position, piece.nbytes))
                position += piece.nbytes
            else:
                contents.append(piece)
        for fetch in plan_fetches(part.pieces):
            fetched = await client.get(key, Range(fetch.offset, fetch.nbytes), etag=etag)
            if fetched.offset != fetch.offset or fetched.data.nbytes != fetch.nbytes:
                raise StoreError(f"{key}: {fetch.nbytes} bytes from {fetch.offset} came as {fetched.data.nbytes}")
            with changing(directory):
                await trio.to_thread.run_sync(_spool, file, fetch, fetched.data)
        yield Body(contents)


def _spool(file: IO[bytes], fetch: Fetch, data: memoryview) -> None:
    for kept in fetch.kept:
        start = kept.offset - fetch.offset
        file.write(data[start : start + kept.nbytes])
