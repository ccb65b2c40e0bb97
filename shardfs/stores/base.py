"""What every store offers: `Store`, `ShardWriter`, and versions of objects, `Snapshot`."""

import enum
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypedDict, Unpack

import trio


class Address(NamedTuple):
    """What names a source for good, on any machine: its URL, and the server where that is not the usual one."""

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url


Buffer = bytes | bytearray | memoryview

APPEND_NBYTES: Final = 8 * 2**20
"""How many bytes, padding and the tail not counted, are appended in one step at most."""

_RESERVED: Final = ".shardfs"


class Descriptor:
    """A file descriptor that is closed with its last reference.

    Snapshots are shared by open files and caches; the reference count that the interpreter keeps is the one that
    tells when a pinned file may go.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def path(self) -> str:
        """A path of what is open, whatever became of its name, for calls that take no descriptor of its kind."""
        return f"/proc/self/fd/{self.fd}"

    def __del__(self) -> None:
        os.close(self.fd)


INODE_BITS: Final = 64


class Kind(enum.Enum):
    """What a name stands for."""

    FILE = enum.auto()
    DIRECTORY = enum.auto()
    SYMLINK = enum.auto()
    SPECIAL = enum.auto()


class Stat(NamedTuple):
    """State of a name.  *version* is equal for equal content; *mode* holds the file type too; times are in ns.

    *identity* is equal for one file, whatever its content; of files of the system it is an integer, see `file`.
    """

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

    @property
    def file(self) -> tuple[int, int] | None:
        """Device and inode number, where the store is a file system."""
        return divmod(self.identity, 1 << INODE_BITS) if isinstance(self.identity, int) else None


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


class NewOwner(TypedDict, total=False):
    """Owner of a file that is new; what is missing, or None, is what the system gives.

    In a directory with the set-group-ID bit, the group is always what the system gives: that of the directory.
    """

    uid: int | None
    gid: int | None


class NewRights(NewOwner, total=False):
    """Permissions and owner of a file that is new; what is missing, or None, is what the system gives."""

    mode: int | None


class NewAttributes(NewRights, total=False):
    """Attributes that a file is to have; what is missing, or None, stays as it is."""

    atime_ns: int | None
    mtime_ns: int | None


class Content(Protocol):
    """Bytes that are to be stored, wherever they are now: in memory, in a log, in a write buffer."""

    @property
    def nbytes(self) -> int:
        """How many there are."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*; blocks, and is called in a worker thread."""


class Snapshot(Protocol):
    """One version of an object, pinned for as long as the snapshot is referenced."""

    @property
    def stat(self) -> Stat:
        """State of the object when it was opened."""

    @property
    def size(self) -> int:
        """Size of this version in bytes."""

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*, which lie within the size.

        *extent* is offset and size of what they are a piece of: a remote store fetches that as one, and reads ahead if
        the one after it is wanted next.  None: they are for themselves, as an index is.
        Raises `StaleError` if the bytes may be of another version, `StoreError` if they cannot be read.
        """

    def content(self, offset: int, nbytes: int) -> Content:
        """Return *nbytes* bytes from *offset*, which lie within the size, as content that is read later.

        Reading it raises what `read` does.
        """

    def mapped(self) -> AbstractContextManager[memoryview]:
        """Give all bytes of this version, to search them in a command."""

    def expect(self, offset: int, nbytes: int) -> None:
        """Say that *nbytes* bytes from *offset* are likely to be read soon, in order."""

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version, as far as the cache of the store knows."""

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the present state of the object as this version, if it only grew; return whether it is accepted.

        *content* at *offset* is what any change but an append would have moved or overwritten.
        """


class OpenFile(Protocol):
    """An open file that passes through: no version of it is kept, and what is written is seen at once.

    A remote store has what was written after `flush`, or `sync`.
    """

    def stat(self) -> Stat:
        """Return the present state."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*, and return how much that is."""

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""

    async def flush(self) -> None:
        """Store what was written and is not stored yet, as is done whenever a descriptor of the file is closed.

        Raises `StaleError` if another host has replaced the file since this one showed it, `StoreError`.
        """

    async def sync(self) -> None:
        """Store what was written, durably; raises as `flush` does."""

    async def close(self) -> None:
        """Let go of the file; what is not stored then is kept on this machine, as the log says."""

    def set_attributes(self, **changes: Unpack[NewAttributes]) -> Stat:
        """Change what is given, and return the state after it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """*nbytes* bytes from *offset* of the old version of an object."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Splice:
    """A new version of an object, first byte to last: ranges of the old one and new content.

    The last *tail_nbytes* bytes, of the new version as of the old one, are what makes the object readable: the index
    of a shard that ends with it, 0 for one that begins with it.  An append may be made in steps: *ends* are the sizes
    after each, the last of them that of the new version, and at each the object ends with the old tail or the new one.
    """

    pieces: tuple[Kept | Content, ...]
    tail_nbytes: int = 0
    ends: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the new version."""
        return sum(piece.nbytes for piece in self.pieces)

    def joined(self, old_nbytes: int) -> Sequence[Kept | Content]:
        """Return the pieces that are not empty, with old ranges joined that adjoin in both versions.

        Raises `ValueError` if one keeps what an old version of *old_nbytes* bytes does not have.
        """
        joined: list[Kept | Content] = []
        for piece in self.pieces:
            last = joined[-1] if joined else None
            if isinstance(piece, Kept) and not 0 <= piece.offset <= piece.offset + piece.nbytes <= old_nbytes:
                raise ValueError(f"a splice keeps more than the {old_nbytes} existing bytes")
            if isinstance(piece, Kept) and isinstance(last, Kept) and last.offset + last.nbytes == piece.offset:
                joined[-1] = Kept(last.offset, last.nbytes + piece.nbytes)
            elif piece.nbytes:
                joined.append(piece)
        return joined


class ShardWriter(Protocol):
    """One change of one object, which other programs that take the same lock cannot change meanwhile.

    An edit makes one change.  What fails leaves the object as it was, unless the error says otherwise.
    """

    @property
    def snapshot(self) -> Snapshot | None:
        """The object as the change finds it; None if there is none."""

    @property
    def can_delete(self) -> bool:
        """Whether `delete` removes the object as this change finds it, and no other."""

    @property
    def append_alignment(self) -> int:
        """What the size of the object, and after each step, had better be a multiple of when it is appended to.

        If it is one, and no step has more than `APPEND_NBYTES`, nobody finds the object without its tail at any moment.
        """

    @property
    def temporary(self) -> str:
        """The key that a new version may have until it is complete; nothing has it before `splice`, or after."""

    @property
    def written_nbytes(self) -> int:
        """How many bytes `splice` wrote to the store."""

    async def splice(self, splice: Splice) -> Stat:
        """Store the new version durably and return its state, as `Store.open` will give it.

        Bytes that the old version keeps in their place are not touched.  Raises `ConflictError` if the key stands for
        something else than *snapshot*, `NoSpaceError`, `StoreError`.
        """

    async def delete(self) -> None:
        """Remove the object durably; raises as `splice` does, and `NotFoundError` if there is none."""


class NewObject(Protocol):
    """An object that is written from its first byte to its last, and has its name when it is finished, not before."""

    async def write(self, data: Sequence[Buffer]) -> None:
        """Add *data*, one behind the other: about `PART_NBYTES` at a time, so that little is held in memory."""

    async def finish(self, head: Buffer = b"") -> Stat:
        """Give the object its name, in place of what has it; returns its state, as `Store.stat` will give it.

        *head* are the bytes at its beginning that were left out.
        """


PART_NBYTES: Final = 8 * 2**20
"""How much of a new object is written at a time."""

PIECE_NBYTES: Final = 2**20
"""How much is read at a time, in a multiple of the blocks of checksums."""


def in_pieces(nbytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the pieces, of up to `PIECE_NBYTES` bytes, from *start* to *nbytes*."""
    for offset in range(start, nbytes, PIECE_NBYTES):
        yield offset, min(PIECE_NBYTES, nbytes - offset)


async def write_all(file: OpenFile, content: Content) -> None:
    """Write *content* at the beginning of *file*."""
    for offset, nbytes in in_pieces(content.nbytes):
        await file.write(offset, await trio.to_thread.run_sync(content.read, offset, nbytes))


@dataclass(frozen=True, slots=True)
class Expected:
    """What a key must stand for when it is replaced: a file in this *state*, or nothing if that is None."""

    state: Stat | None


def join_key(directory: str, name: str) -> str:
    """Return the key of *name* in *directory*; either is "" for the source, or the directory, itself."""
    return f"{directory}/{name}" if directory and name else directory or name


def is_reserved(name: str) -> bool:
    """Whether a name, without its path, is one that shardfs keeps for itself beside stored data."""
    return name == _RESERVED or name.startswith(_RESERVED + "-")


MAX_TOP: Final = 1000
"""How many names at the top of a source `Store.check` tells; it tells none if there are more."""

MAGIC_NBYTES: Final = 8
"""With how many bytes a file begins that tell its format."""


def file_format(name: str, first: bytes) -> str:
    """Say what a file is that was given as a source, and what to do; *first* are the `MAGIC_NBYTES` it begins with."""
    if first.startswith(b"PK"):
        return "a ZIP file; unpack it, and give the folder"
    if first.startswith(b"\x89HDF"):
        return "an HDF5 file; h5py and programs for netCDF read it without a mount"
    if name.rpartition("/")[2] in ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"):
        return "a document of Zarr; SOURCE is the folder that it is in"
    return "a file; SOURCE is the folder of an array, a group or several"


class Store(Protocol):
    """Named bytes below one source; a remote one caches names for *ttl* seconds, a local one never does."""

    @property
    def url(self) -> str:
        """The source, as a user may write it."""

    @property
    def address(self) -> Address:
        """What names the source for good, however it was reached."""

    @property
    def root(self) -> str | None:
        """Absolute path that the source had when it was opened, where the store is a directory of this machine."""

    @property
    def directory(self) -> Descriptor | None:
        """That directory, held open: it may have been renamed, and its path be another one's."""

    @property
    def ttl(self) -> float:
        """For how many seconds names, sizes and listings may be cached."""

    @property
    def rewrites(self) -> bool:
        """Whether a new version of an object is a new object, to which nothing can be appended in place."""

    @property
    def directory_stat(self) -> Stat | None:
        """The state that all directories share, where the store keeps none of its own for them."""

    def statistics(self) -> Mapping[str, object]:
        """Return what the store counted, as plain values."""

    def url_of(self, key: str) -> str:
        """Return the URL under which other programs find *key*."""

    async def check(self) -> Sequence[Entry] | None:
        """Return the names at the top, None if they cannot be told; raises `SourceError` for what cannot be read."""

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*, of the link itself if it is one; raises `NotFoundError`."""

    def forget(self, key: str) -> None:
        """Ask again for *key* when it is wanted next."""

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; symbolic links are followed within the source only.

        *head_nbytes* bytes at its beginning, or *tail_nbytes* at its end, come with the same request if it is remote.
        Raises `NotFoundError`, `IsADirectoryHereError`, `AccessDeniedError`, `OutsideSourceError`, `StoreError`.
        """

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing; False if that cannot be told."""

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

    # Names and files, changed as programs ask for it.

    async def create(self, key: str, mode: int, *, exclusive: bool, **owner: Unpack[NewOwner]) -> OpenFile:
        """Open a regular file to read and write, and make it with *mode* and *owner* if there is none.

        If *exclusive*, raises `ExistsError` where the key stands for anything.
        """

    async def open_passthrough(self, key: str, *, writable: bool) -> OpenFile:
        """Open a regular file as it is at any time; raises as `open` does."""

    @property
    def nchanges(self) -> int:
        """How many changes of files `note_shown` knows of, which this mount made."""

    def note_shown(self, key: str, state: Stat | None, *, since: int | None = None) -> None:
        """Note that programs were given the content of the file *key* in this *state*; None: that there is none.

        *since* is what `nchanges` was before the store was asked for that: what this mount made of the file meanwhile
        counts more.  None: so does whatever is known of it.
        """

    async def replace(
        self,
        key: str,
        content: bytes,
        *,
        exclusive: bool = False,
        expected: Expected | None = None,
        **rights: Unpack[NewRights],
    ) -> Stat:
        """Store *content* under *key*, durably and at once, in place of what is there.

        A file that is replaced leaves its mode and owner; *rights* are for a new one.  If *exclusive*, raises
        `ExistsError` where the key stands for anything.

        Where several hosts can change the store, raises `StaleError` if what is there is not as *expected*.  If that is
        None, it must be as it was shown last, and what is refused is kept on this machine, as the log says.
        """

    async def unlink(self, key: str) -> None:
        """Remove a name that is not a directory."""

    async def mkdir(self, key: str, mode: int, **owner: Unpack[NewOwner]) -> None:
        """Make a directory."""

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory; raises `NotEmptyError`."""

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*, in place of what is there, or if *exclusive* only if nothing is."""

    async def link(self, key: str, to: str) -> None:
        """Give a file the second name *to*, which does not exist."""

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key*, which does not exist, a symbolic link; *target* is stored as it is."""

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing, durably."""

    async def set_attributes(self, key: str, **changes: Unpack[NewAttributes]) -> Stat:
        """Change what is given, of the link itself if *key* is one, and return the state after it."""

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute; `NotPermittedError` outside the `user` namespace."""

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute in the `user` namespace; raises `NoAttributeError`."""

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""

    async def flush(self) -> None:
        """Store what was written to files that are open; raises what keeps one from being stored."""

    # Whole objects and shards.

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Begin to change the store, as is done once before anything is.

        Names that are reserved, and files that are open to be written to a remote store, live in *directory*, a
        directory of this machine whose lock the caller holds.  Raises `SourceError` where the store cannot be written
        safely by several, unless there is only a *single_writer*.
        """

    async def check_writable(self, key: str) -> None:
        """Raise what is known to keep a regular file from being changed or made; asks no remote store."""

    def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AbstractAsyncContextManager[NewObject]:
        """Begin an object of about *nbytes* bytes, of which the first *head_nbytes* come last; for bulk work.

        Nothing is left of one that is not finished, but by a process that is killed: see `clear_unfinished`.  Nobody
        else may write to the store: no lock is taken, and no condition made.  Directories that it needs are made.
        What is small is durable only after `settle`.  Raises `NoSpaceError`, `StoreError`.
        """

    async def discard(self, key: str) -> None:
        """Remove an object that was made by `new_object`; there may be none."""

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Remove what killed processes left of new objects; *keys* are those that they may have been writing."""

    async def settle(self) -> None:
        """Make durable what `new_object` made."""

    def edit(
        self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0, waited: float = 0.0, **rights: Unpack[NewRights]
    ) -> AbstractAsyncContextManager[ShardWriter]:
        """Begin a change of a regular file, alone; *rights* are those of a file that is new.

        *head_nbytes* and *tail_nbytes* are those of `open`.
        Modes are exact, without a umask; None is what the system gives.  Directories that a new file needs are made.
        Raises `LockedError` if another program has the file locked, and `StoreError` if it has after the caller has
        *waited* for long, in seconds.
        """
