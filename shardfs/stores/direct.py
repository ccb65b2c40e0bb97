"""What any thread can read without the event loop: versions of objects, and files that a reader finds at once."""

from collections.abc import Hashable
from typing import NamedTuple, Protocol, runtime_checkable

from shardfs.stores.base import Buffer


class WouldWaitError(Exception):
    """Something can be had without the event loop, by a thread that may wait."""


@runtime_checkable
class DirectSnapshot(Protocol):
    """A version that any thread can read without the event loop, as far as it is at hand."""

    def read_if_current(self, offset: int, nbytes: int, *, waits: bool) -> Buffer | None:
        """Return exactly *nbytes* bytes from *offset*; None if the name may stand for another version by now.

        Also None if only the event loop can get the bytes. If they are on a local disk, and not in memory, it *waits*
        for them, or raises `WouldWaitError`.
        """


class KnownFile(NamedTuple):
    """*nbytes* bytes from *offset* of *source*, which any thread can read without the event loop.

    They are those of a file, or of a chunk. *version* is that of the object which holds them.
    """

    source: DirectSnapshot
    version: Hashable
    offset: int
    nbytes: int

    def read(self, start: int, stop: int | None, *, waits: bool) -> Buffer | None:
        """Return them, as a slice has *start* and *stop*; None if there are none, or as `DirectSnapshot` says."""
        begin, end, _ = slice(start, stop).indices(self.nbytes)
        return self.source.read_if_current(self.offset + begin, end - begin, waits=waits) if begin < end else None

    def is_current(self, *, waits: bool) -> bool:
        """Whether it is known that nobody has replaced them."""
        return self.source.read_if_current(self.offset, 0, waits=waits) is not None


@runtime_checkable
class DirectReader(Protocol):
    """A reader in which any thread can find files without the event loop, as far as they are known."""

    def find_known(self, key: str, array: str, coords: tuple[int, ...], *, waits: bool) -> KnownFile | None:
        """Return the file *key*: the chunk at *coords* of the unsharded array in the directory *array*, as seen last.

        None if it is not known where it is, or if a directory between the array and the file may be a node. Raises
        `WouldWaitError` if something must be read from a disk, unless it *waits*.
        """
