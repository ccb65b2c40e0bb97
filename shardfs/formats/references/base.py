"""References: what stands for the bytes of a key, and keys in little memory."""

import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from shardfs.errors import SourceError
from shardfs.formats.virtual import BrokenPart, InlinePart
from shardfs.stores.base import Kind, ListedName
from shardfs.stores.objects.reader import MAX_KEY_NBYTES

_MAX_NAME_NBYTES: Final = 255
_USUAL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]|/(?=[A-Za-z0-9_]))*")
"""Keys that need no closer look, as most."""

_MAX_KEYS_NBYTES: Final = 2**30
_AFTER_SLASH: Final = b"0"
"""What follows a slash in the order of bytes."""

MAX_INLINE_NBYTES: Final = 16 * 2**20
"""How many bytes a reference may have in place of a file."""

MAX_REFERENCES: Final = 8_000_000
"""How many references a document has at most, and a directory of chunks that are in records: names take memory."""

AT_ONCE: Final = 1000
"""How many references are looked at before others have their turn."""

MAX_END: Final = 2**63 - 1
"""Where a range may end at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """*nbytes* bytes from *offset* of the file at *url*; all of it if *nbytes* is None."""

    url: str
    offset: int = 0
    nbytes: int | None = None


Reference = InlinePart | Target | BrokenPart


class ReferenceSet(Protocol):
    """The references of a source. All its names can be shown by a file system."""

    @property
    def nhidden(self) -> int:
        """How many keys no file system can show, so that nobody is shown them."""

    async def find(self, key: str) -> Reference | None:
        """Return the reference of *key*, None if there is none."""

    async def is_directory(self, key: str) -> bool:
        """Whether there are keys below *key*."""

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in the directory *key*; nothing if there is no such directory."""

    def walk(self) -> AsyncIterator[tuple[str, Reference]]:
        """Yield all keys that are no directories, with their references."""

    async def urls(self) -> Sequence[str]:
        """Return the URLs of all targets, or of some if they are read in parts."""


def inline(data: bytes | memoryview) -> InlinePart | BrokenPart:
    """Return the reference that is *data* itself, unless that is too much of it."""
    if len(data) > MAX_INLINE_NBYTES:
        return BrokenPart(
            f"it has {len(data):,} bytes in place of a file; more than {MAX_INLINE_NBYTES:,} belong in one"
        )
    return InlinePart(bytes(data))


def target_of(url: object, offset: object = 0, nbytes: object = None) -> Target | BrokenPart:
    """Return the reference to *nbytes* bytes from *offset* of *url*, as written in a file."""
    if not isinstance(url, str) or not url:
        return BrokenPart("it names no file")
    start, length = _number(offset), None if nbytes is None else _number(nbytes)
    if start is None or (nbytes is not None and length is None) or start + (length or 0) > MAX_END:
        return BrokenPart("its offset and length are no range of a file")
    return Target(url, start, length)


def _number(value: object) -> int | None:
    """Return *value* as a count of bytes; None if it is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_END
    return value if is_count and isinstance(value, int) else None


def encoded_key(key: str) -> bytes | None:
    """Return *key* as bytes, None if no file system can show it: a name in it is empty, `..`, or too long."""
    if len(key) <= _MAX_NAME_NBYTES and _USUAL.fullmatch(key):
        return key.encode()
    try:
        encoded = os.fsencode(key)
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    is_shown = 0 < len(encoded) <= MAX_KEY_NBYTES and b"\0" not in encoded
    names = encoded.split(b"/")
    if is_shown and all(0 < len(name) <= _MAX_NAME_NBYTES and name not in (b".", b"..") for name in names):
        return encoded
    return None


class Keys:
    """Sorted keys: their bytes one after another, so that a million takes little more memory than in a file.

    A directory is the range of the keys that begin with it and a slash: nothing is stored for it.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        nbytes = sum(map(len, keys))
        if nbytes > _MAX_KEYS_NBYTES:
            raise SourceError(f"the names of the references take {nbytes:,} bytes, more than {_MAX_KEYS_NBYTES:,}")
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        self._edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).data
        self._bytes = b"".join(keys)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._bytes[self._edges[index] : self._edges[index + 1]]

    def find(self, key: str) -> int | None:
        """Return the index of *key*, None if it is not among them."""
        encoded = os.fsencode(key)
        index = self._first(encoded, 0, len(self))
        return index if index < len(self) and self[index] == encoded else None

    def below(self, key: str) -> range:
        """Return the indices of the keys below the directory *key*; all, if it is ""."""
        if not key:
            return range(len(self))
        directory = os.fsencode(key)
        start = self._first(directory + b"/", 0, len(self))
        return range(start, self._first(directory + _AFTER_SLASH, start, len(self)))

    def has_below(self, key: str) -> bool:
        """Whether there are keys below *key*."""
        directory = os.fsencode(key) + b"/"
        start = self._first(directory, 0, len(self))
        return start < len(self) and self[start].startswith(directory)

    def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in the directory *key*; one that is a directory too is only that."""
        indices = self.below(key)
        data, edges, start = self._bytes, self._edges, len(os.fsencode(key)) + 1 if key else 0
        names: dict[bytes, Kind] = {}
        index = indices.start
        while index < indices.stop:
            name, slash, _ = data[edges[index] + start : edges[index + 1]].partition(b"/")
            if slash:
                names[name] = Kind.DIRECTORY
                index = self._first(self[index][:start] + name + _AFTER_SLASH, index, indices.stop)
            else:
                names[name] = Kind.FILE  # what is below a directory of this name comes later
                index += 1
        return [ListedName(os.fsdecode(name), kind) for name, kind in names.items()]

    def _first(self, key: bytes, start: int, stop: int) -> int:
        """Return the index of the first key, from *start* to before *stop*, that is not before *key*."""
        data, edges = self._bytes, self._edges
        while start < stop:
            middle = (start + stop) // 2
            if data[edges[middle] : edges[middle + 1]] < key:
                start = middle + 1
            else:
                stop = middle
        return start
