"""Messages between shardfs and this process, and the bytes of the file that come by them.

A message is the lengths of two parts, and these: JSON, and bytes. Requests are `{"ask": …}`, and lead to any number of
`{"need": [offset, nbytes]}`, to which the other end answers with these bytes; then of `{"part": …}`; and at last to
`{"done": …}` or `{"error": …}`: there is nothing of that name ("absent"), the file is "damaged", reading it takes too
much "memory", or h5py is "unusable".
"""

import contextlib
import io
import json
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

Json = Any

HEAD: Final = struct.Struct("<IQ")

MAX_MEMORY: Final = 2 * 2**30
"""How much memory this process takes."""

PAGE_NBYTES: Final = 64 * 2**10
MAX_AHEAD: Final = 16
"""How many pages are read at once, at most, where one is read after the other."""

MAX_PAGES: Final = 256
"""How many pages are kept."""


class LibraryChannel:
    """Both directions to the process that started this one."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests = requests
        self._replies = replies

    def send(self, message: Json, data: bytes | memoryview = b"") -> None:
        """Send a message."""
        text = json.dumps(message).encode()
        self._replies.write(HEAD.pack(len(text), len(data)) + text)
        self._replies.write(data)
        self._replies.flush()

    def receive(self) -> tuple[Json, bytes]:
        """Wait for a message; ends the process when there are no more."""
        ntext, ndata = HEAD.unpack(self._exactly(HEAD.size))
        text = self._exactly(ntext)
        return json.loads(text), self._exactly(ndata)

    def _exactly(self, nbytes: int) -> bytes:
        data = self._requests.read(nbytes)
        if len(data) < nbytes:
            os._exit(0)  # nobody is there any more, and libhdf5 need not be told
        return data


class PipedFile(io.RawIOBase):
    """The file of *size* bytes, of which the other end has the bytes: read by pages, of which some are kept."""

    def __init__(self, channel: LibraryChannel, size: int) -> None:
        super().__init__()
        self.size = size
        self._channel = channel
        self._instead = 0, b""
        self._at = 0
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._next = -1
        self._ahead = 1
        self._skipped: tuple[int, int] | None = None
        self._seen: list[int] = []

    @contextlib.contextmanager
    def without(self, offset: int, nbytes: int) -> Iterator[list[int]]:
        """Do not read *nbytes* bytes from *offset*; the list has that offset for each time that they are wanted."""
        self._skipped, self._seen = (offset, nbytes), []
        try:
            yield self._seen
        finally:
            self._skipped = None

    def show(self, offset: int, data: bytes) -> None:
        """Let *data* be what is read from *offset* on, for the length of it."""
        self._instead = offset, data

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        self._at = max({io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Read into *buffer*; less only at the end."""
        into = memoryview(buffer).cast("B")
        nbytes = min(len(into), max(self.size - self._at, 0))
        if (self._at, nbytes) == self._skipped:
            self._seen.append(self._at)
            self._at += nbytes
            return nbytes
        done = 0
        if nbytes > MAX_AHEAD * PAGE_NBYTES:
            into[:nbytes] = self._need(self._at, nbytes)
            done = nbytes
        while done < nbytes:
            number, start = divmod(self._at + done, PAGE_NBYTES)
            part = memoryview(self._page(number, self._at + nbytes))[start : start + nbytes - done]
            into[done : done + len(part)] = part
            done += len(part)
        offset, data = self._instead
        begin, end = max(offset, self._at), min(offset + len(data), self._at + nbytes)
        if begin < end:
            into[begin - self._at : end - self._at] = data[begin - offset : end - offset]
        self._at += nbytes
        return nbytes

    def _page(self, number: int, end: int) -> bytes:
        page = self._pages.get(number)
        if page is not None:
            self._pages.move_to_end(number)
            return page
        self._ahead = min(2 * self._ahead, MAX_AHEAD) if number == self._next else 1
        wanted = max(self._ahead, -(-end // PAGE_NBYTES) - number)
        start = number * PAGE_NBYTES
        data = self._need(start, min(wanted * PAGE_NBYTES, self.size - start))
        for at in range(0, len(data), PAGE_NBYTES):
            self._pages[(start + at) // PAGE_NBYTES] = data[at : at + PAGE_NBYTES]
        self._next = number + wanted
        while len(self._pages) > MAX_PAGES:
            self._pages.popitem(last=False)
        return data[:PAGE_NBYTES]

    def _need(self, offset: int, nbytes: int) -> bytes:
        self._channel.send({"need": [offset, nbytes]})
        return self._channel.receive()[1]
