"""What every store offers: `Store`, and `Snapshot`, one version of one object."""

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Kind(enum.Enum):
    """What a name stands for."""

    FILE = enum.auto()
    DIRECTORY = enum.auto()
    SYMLINK = enum.auto()
    SPECIAL = enum.auto()


class Stat(NamedTuple):
    """State of a name.  *version* is equal for equal content; *mode* holds the file type too; times are in ns."""

    kind: Kind
    size: int
    version: Hashable
    identity: Hashable
    mode: int
    uid: int
    gid: int
    nlink: int
    rdev: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


class Entry(NamedTuple):
    """A name in a directory, without its path."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Capacity:
    """Room in a store: *block_size* in bytes, the others counts."""

    block_size: int
    blocks: int
    blocks_free: int
    blocks_available: int
    files: int
    files_free: int
    name_max: int


class Snapshot(Protocol):
    """One version of an object, pinned for as long as the snapshot is referenced."""

    @property
    def stat(self) -> Stat:
        """State of the object when it was opened."""

    @property
    def size(self) -> int:
        """Size of this version in bytes."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*, which lie within the size.

        Raises `StaleError` if the bytes may be of another version, `StoreError` if they cannot be read.
        """

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version."""

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the present state of the object as this version, if it only grew; return whether it is accepted.

        *content* at *offset* is what any change but an append would have moved or overwritten.
        """

    async def read_live(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*, of whatever version the object has now.

        For files that pass through, which have no version to keep.
        """


def join_key(directory: str, name: str) -> str:
    """Return the key of *name* in *directory*, which is "" for the source itself."""
    return f"{directory}/{name}" if directory else name


class Store(Protocol):
    """Named bytes below one source."""

    @property
    def url(self) -> str:
        """The source, as a user may write it."""

    def url_of(self, key: str) -> str:
        """Return the URL under which other programs find *key*."""

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*, of the link itself if it is one; raises `NotFoundError`."""

    async def open(self, key: str) -> Snapshot:
        """Open a file; symbolic links are followed within the source only.

        Raises `NotFoundError`, `IsADirectoryHereError`, `AccessDeniedError`, `OutsideSourceError`, `StoreError`.
        """

    async def list(self, key: str) -> Sequence[Entry]:
        """Return the names in a directory, in no particular order."""

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several *names* in the directory *key*; None for those that are gone."""

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link as it is stored."""

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute in the `user` namespace; raises `NoAttributeError`."""

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes in the `user` namespace."""

    async def capacity(self) -> Capacity:
        """Return how much room there is."""
