"""The interfaces of stores: `Reader`, `ObjectWriter`, `FileTree`; an `ObjectEdit`; a `Snapshot`, one version."""

import enum
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypedDict, Unpack, runtime_checkable

import trio

from shardfs.errors import SourceError


class Address(NamedTuple):
    """The permanent name of a source on any machine: its URL, and the server unless it is the usual one."""

    url: str
    endpoint: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url


Buffer = bytes | bytearray | memoryview

APPEND_NBYTES: Final = 8 * 2**20
"""The largest step of an append, in bytes, without padding and tail."""

_RESERVED: Final = re.compile(
    r"\.shardfs(\.([1-9]|1[0-5])|-documents|-probe-[0-9a-f]{16}|-([0-9a-f]{16}|[a-z0-9_]{8})\.tmp)?"
)
"""All names that shardfs has ever made beside stored data.

They are the directory of slots, the lock of the documents of a node, temporary files, and objects to try a server.

Any other one may be a user's: `rsync` stores `shardfs-notes` by way of `.shardfs-notes.Ab12Cd`.
"""


class Descriptor:
    """A file descriptor that is closed with its last reference.

    Snapshots are shared by open files and caches; the interpreter's reference count tells when a pinned file can be
    closed.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def path(self) -> str:
        """A path of the open file, whatever happened to its name, for calls that take no such descriptor."""
        return f"/proc/self/fd/{self.fd}"

    def __del__(self) -> None:
        os.close(self.fd)


INODE_BITS: Final = 64


class Kind(enum.Enum):
    """What a name is."""

    FILE = enum.auto()
    DIRECTORY = enum.auto()
    SYMLINK = enum.auto()
    SPECIAL = enum.auto()


class Stat(NamedTuple):
    """The status of a name.

    *version* is equal for equal content; *mode* includes the file type; times are in ns. *identity* is equal for the
    same file, whatever its content; for local files it is an integer, see `file`.
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
        """Device and inode number, if the store is a file system."""
        return divmod(self.identity, 1 << INODE_BITS) if isinstance(self.identity, int) else None


class ListedName(NamedTuple):
    """A name in a directory, without its path."""

    name: str
    kind: Kind


class NewOwner(TypedDict, total=False):
    """The owner of a new file; whatever is missing or None is up to the system.

    In a directory with the set-group-ID bit, the group is always that of the directory.
    """

    uid: int | None
    gid: int | None


class NewPermissions(NewOwner, total=False):
    """Mode and owner of a new file; whatever is missing or None is up to the system."""

    mode: int | None


class NewDocument(NewPermissions, total=False):
    """Mode, owner and modification time of a file that is stored as a whole; what is missing is up to the system.

    A file that it replaces passes on mode and owner. A store may keep no times but its own.
    """

    mtime_ns: int | None


class NewAttributes(NewPermissions, total=False):
    """Attributes to set; whatever is missing or None does not change."""

    atime_ns: int | None
    mtime_ns: int | None


class Content(Protocol):
    """Bytes to be stored, wherever they are: in memory, in a journal, in a write buffer."""

    @property
    def nbytes(self) -> int:
        """Their number."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*; blocks, and is called in a worker thread."""


Takes = Callable[[float], bool]
"""Whether so many bytes may come beside what is wanted; notes that they do."""


@runtime_checkable
class FetchingSnapshot(Protocol):
    """A version of a remote object, of which bytes can come before somebody reads them."""

    async def fetch(self, units: Sequence[tuple[int, int]], takes: Takes, *, are_dense: bool) -> None:
        """Begin to bring units, each an offset and a size, into memory, as they will be read soon.

        More comes, as far as it *takes* that, if they are the first ones in order. If they *are_dense*, so that what
        lies between them will be read, too, all of an object comes that is not large. Errors are for who reads.
        """

    def expecting(self, key: str, units: Sequence[tuple[int, int]], takes: Takes) -> AbstractContextManager[None]:
        """In the block, *key* will be read in order when it is opened, as this object was, which is about as large.

        It is read where *units* are in this one, each an offset and a size. It comes whole with its first bytes, if it
        is small, or if they begin where it does, and if it *takes* the rest.
        """


class Snapshot(Protocol):
    """One version of an object, pinned for as long as the snapshot is referenced."""

    @property
    def stat(self) -> Stat:
        """The status of the object when it was opened."""

    @property
    def size(self) -> int:
        """Size of this version in bytes."""

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*, which are within the size.

        *extent* is offset and size of the unit that they belong to: a remote store fetches it as one piece, and reads
        ahead if the next unit is read after it. With None, they belong to no unit; an index, for example. Raises
        `StaleError` if the bytes may be from another version, `StoreError` if they cannot be read.
        """

    def content(self, offset: int, nbytes: int) -> Content:
        """Return *nbytes* bytes from *offset*, which are within the size, as content that is read later.

        Reading it raises the errors of `read`.
        """

    def expect(self, offset: int, nbytes: int) -> None:
        """Announce that *nbytes* bytes from *offset* will probably be read soon, in order."""

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Forget *nbytes* bytes from *offset*, which failed a check; return whether they may come otherwise next time.

        A remote store keeps bytes that were fetched once, and they may have been damaged on the way.
        """

    async def is_current(self) -> bool:
        """Whether the name still stands for this version, as far as the store's cache knows."""

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the present state of the object as this version if it only grew; return whether it did.

        *content* at *offset* would have been moved or overwritten by any change other than an append.
        """


class OpenFile(Protocol):
    """An open passthrough file: it has no versions, and what is written is visible at once.

    A remote store has it after `flush` or `sync`.
    """

    def stat(self) -> Stat:
        """Return the present status."""

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*."""

    async def write(self, offset: int | None, data: Buffer) -> int:
        """Write all of *data* at *offset*, or if None at the end, wherever that is by now; return its size."""

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""

    def give_up(self) -> None:
        """Let nothing be stored of what was written and is not yet: its writer failed."""

    async def flush(self) -> None:
        """Store what was written and is not stored yet; called whenever a descriptor of the file is closed.

        Raises `StaleError` if another host has replaced the version that was opened, and `StoreError`.
        """

    async def sync(self) -> None:
        """Store what was written, durably; raises the errors of `flush`."""

    async def close(self) -> None:
        """Release the file; what could not be stored is kept on this machine, and the log says so."""

    def set_attributes(self, **changes: Unpack[NewAttributes]) -> Stat:
        """Change the given attributes; return the new status."""


@dataclass(frozen=True, slots=True)
class Kept:
    """*nbytes* bytes from *offset* of the old version of an object."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Splice:
    """A new version of an object, as a sequence of ranges of the old version and new content.

    The last *tail_nbytes* bytes, of both versions, are what makes the object readable: the index of a shard with its
    index at the end; 0 if it is at the start. An append may be made in steps: *ends* are the sizes after each, ending
    with the size of the new version. After each step, the object ends with the old tail or the new one. *mtime_ns* is
    for the beginning of the old version alone, if that was a version itself, and is to have its time again; a store may
    keep no times but its own.
    """

    pieces: tuple[Kept | Content, ...]
    tail_nbytes: int = 0
    ends: tuple[int, ...] = ()
    mtime_ns: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the new version."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def changed_nbytes(self) -> int:
        """Number of bytes of the new version that do not stay where they were, at the beginning of the old one."""
        first = self.pieces[0] if self.pieces else None
        return self.nbytes - (first.nbytes if isinstance(first, Kept) and first.offset == 0 else 0)

    def joined(self, old_nbytes: int) -> Sequence[Kept | Content]:
        """Return the non-empty pieces, joining ranges that are adjacent in both versions.

        Raises `ValueError` if a range is not within an old version of *old_nbytes* bytes.
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


class ObjectEdit(Protocol):
    """One change of one object, mostly a shard, with the lock that keeps other programs from changing it meanwhile.

    An edit makes one change. If it fails, the object is as it was, unless the error says otherwise.
    """

    @property
    def snapshot(self) -> Snapshot | None:
        """The object before the change; None if there is none."""

    @property
    def was_interrupted(self) -> bool:
        """Whether a process that changed the object was killed meanwhile, and nobody has changed or settled it since.

        Nobody knows then what it wrote, or may still write where hosts share files, so nothing is appended to it:
        `splice` writes it anew.
        """

    @property
    def can_delete(self) -> bool:
        """Whether `delete` removes exactly this version of the object, and no other."""

    @property
    def append_alignment(self) -> int:
        """The multiple at which an append, and each of its steps, should end.

        If it does, and no step is longer than `APPEND_NBYTES`, nobody ever sees the object without its tail.
        """

    @property
    def temporary(self) -> str:
        """The key that a new version may have until it is complete; unused before and after `splice`."""

    async def splice(self, splice: Splice, check: Callable[[], None] | None = None) -> Stat:
        """Store the new version durably; return its status, as `Store.open` will.

        A local store that writes the object anew calls *check* at the last moment, in a thread; what it raises prevents
        the change.
        Bytes of the old version that stay in place are not written. Raises `ConflictError` if the key does not stand
        for *snapshot* any more, `NoSpaceError`, and `StoreError`.
        """

    async def delete(self) -> None:
        """Remove the object durably; raises the errors of `splice`, and `NotFoundError` if there is none."""

    async def settle(self, inode: int, splice: Splice | None = None) -> None:
        """Make durable what a killed process did to the object, by *splice* if that is to be undone.

        The caller knows from its undo record what that was; *inode* is the file that it changed.
        """

    def leave(self) -> None:
        """Let `release` leave the object as a killed process does: nobody appends to it until it is settled."""

    async def release(self) -> None:
        """Let others change the object, before the end of the block in which the edit was begun.

        That it was left, by a killed process or here, stays to be seen until it is changed or settled.
        """


class NewObject(Protocol):
    """A new object, written from first byte to last; it gets its name when it is finished."""

    async def write(self, data: Sequence[Buffer]) -> None:
        """Append *data*, about `PART_NBYTES` at a time, so that little is held in memory."""

    async def finish(self, head: Buffer = b"") -> Stat:
        """Give the object its name, replacing what has it; returns its status, as `Store.stat` will.

        *head* are the first bytes, which were skipped.
        """


PART_NBYTES: Final = 8 * 2**20
"""How much of a new object is written at a time."""

PIECE_NBYTES: Final = 2**20
"""How much is read at a time: a multiple of the checksum blocks."""


def in_pieces(nbytes: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield offset and size of pieces of at most `PIECE_NBYTES` bytes, from *start* to *nbytes*."""
    for offset in range(start, nbytes, PIECE_NBYTES):
        yield offset, min(PIECE_NBYTES, nbytes - offset)


async def write_all(file: OpenFile, content: Content) -> None:
    """Write *content* at the beginning of *file*."""
    for offset, nbytes in in_pieces(content.nbytes):
        await file.write(offset, await trio.to_thread.run_sync(content.read, offset, nbytes))


def is_same_version(one: Stat, other: Stat) -> bool:
    """Whether two states of a key are of one version; of a local file, also if its mode or owner was changed."""
    if one.file is not None and other.file is not None:
        return (one.identity, one.size, one.mtime_ns) == (other.identity, other.size, other.mtime_ns)
    return one.version == other.version


class Presence(enum.Enum):
    """What a key may stand for when it is replaced, other than a certain version."""

    ABSENT = enum.auto()
    ANY = enum.auto()


ABSENT: Final = Presence.ABSENT
"""Nothing."""

ANY: Final = Presence.ANY
"""Whatever it stands for by then."""

Expected = Stat | Presence
"""What a key must stand for when it is replaced: the version of a file, `ABSENT` or `ANY`."""


def join_key(directory: str, name: str) -> str:
    """Return the key of *name* in *directory*; either may be "", the source or the directory itself."""
    return f"{directory}/{name}" if directory and name else directory or name


def is_reserved(name: str) -> bool:
    """Whether a name, without its path, is one that shardfs uses itself beside stored data."""
    return _RESERVED.fullmatch(name) is not None


MAX_TOP: Final = 1000
"""The most names at the top of a source that `Store.check` returns; if there are more, it returns none."""

DOCUMENTS: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
"""The names of documents of Zarr, in either version."""


def file_format(name: str) -> str:
    """Say what a file given as a source is, of which no format takes it, and what to do."""
    if name.rpartition("/")[2] in DOCUMENTS:
        return "a document of Zarr; SOURCE is the folder that it is in"
    return "a file; SOURCE is the folder of an array, a group or several"


class Reader(Protocol):
    """Named bytes below one source, to be read: all that a source needs which cannot be changed.

    A remote one caches names for *ttl* seconds, a local one never does. See `objects.ObjectReader` for what those have
    in common that are no file systems.
    """

    @property
    def url(self) -> str:
        """The source, as a user may write it."""

    @property
    def address(self) -> Address:
        """The permanent name of the source, however it was reached."""

    @property
    def root(self) -> str | None:
        """The absolute path of a local source when it was opened, else None."""

    @property
    def directory(self) -> Descriptor | None:
        """Its open directory, which may have been renamed since."""

    @property
    def ttl(self) -> float:
        """For how many seconds names, sizes and listings may be cached."""

    @property
    def rewrites(self) -> bool:
        """Whether a new version is always a new object, so that nothing can be appended in place."""

    @property
    def fetches_ahead(self) -> bool:
        """Whether its snapshots are `FetchingSnapshot`."""

    @property
    def lists(self) -> bool:
        """Whether listings show all that is stored, and not only what documents name."""

    @property
    def only_zarr(self) -> bool:
        """Whether no directory is one of another format, so that none need be asked whether it is."""

    def statistics(self) -> Mapping[str, object]:
        """Return the store's counts, as plain values."""

    def url_of(self, key: str) -> str:
        """Return the URL under which other programs find *key*."""

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, None if there are too many; raises `SourceError` if it cannot be read."""

    async def stat(self, key: str) -> Stat:
        """Return the status of *key*, of the link itself if it is one; raises `NotFoundError`."""

    async def fresh(self, key: str) -> Stat:
        """Return the status of the file *key* as it is stored now, whatever is cached; raises the errors of `open`.

        Links are followed, as `open` does. In a bucket it is the object of this name, even if there are keys below it.
        """

    def forget(self, key: str) -> None:
        """Ask again for *key* at the next request; for a directory, also for the names in it."""

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; symbolic links are only followed within the source.

        The first *head_nbytes* or last *tail_nbytes* bytes come with the same request if the store is remote. Raises
        `NotFoundError`, `IsADirectoryHereError`, `AccessDeniedError`, `OutsideSourceError`, `StoreError`.
        """

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing; False if that is unknown."""

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory, in no particular order."""

    async def expect_names(self, key: str) -> None:
        """Note that several names in the directory *key* will be asked for soon: one request may answer for all."""

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several *names* in the directory *key*; None for those that are gone."""

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link as it is stored."""

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute in the `user` namespace; raises `NoAttributeError`."""

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes in the `user` namespace."""

    async def capacity(self) -> os.statvfs_result:
        """Return how much space there is."""

    async def open_passthrough(self, key: str) -> OpenFile:
        """Open a regular file to read it, without pinning a version; raises the errors of `open`."""


class ObjectWriter(Protocol):
    """What stores change as a whole: shards, documents and new objects, each on its own condition."""

    async def start_writing(self, directory: str, own: str, *, single_writer: bool) -> None:
        """Prepare for changes; called once before the first.

        *directory* is a local directory for reserved names. The directory *own* in it, locked by the caller, is for
        files that are being written to a remote store. Raises `SourceError` if several processes could not write the
        store safely, unless there is only a *single_writer*.
        """

    async def check_writable(self, key: str) -> None:
        """Raise any known error that prevents changing or creating a regular file; asks no remote store."""

    def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AbstractAsyncContextManager[NewObject]:
        """Begin an object of about *nbytes* bytes, of which the first *head_nbytes* come last; for bulk work.

        An unfinished object leaves nothing behind, unless the process is killed: see `clear_unfinished`. Nobody else
        may write to the store: there is no lock and no condition. Missing directories are created. Small objects are
        durable only after `sync_new_objects`. Raises `NoSpaceError` and `StoreError`.
        """

    async def discard(self, key: str) -> None:
        """Remove an object made by `new_object`, if there is one."""

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Remove what killed processes left of new objects; *keys* are those that they may have been writing."""

    async def sync_new_objects(self) -> None:
        """Make durable what `new_object` made."""

    def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        waited: float = 0.0,
        **permissions: Unpack[NewPermissions],
    ) -> AbstractAsyncContextManager[ObjectEdit]:
        """Begin an exclusive change of a regular file; *permissions* are for a new file.

        *head_nbytes* and *tail_nbytes* are those of `open`. Modes are exact, without a umask; None is up to the system.
        Missing directories are created. Raises `LockedError` if another program has locked the file, and `StoreError`
        if it still has after the caller has *waited* for so many seconds.
        """

    async def replace(self, key: str, content: bytes, expected: Expected, **new: Unpack[NewDocument]) -> Stat:
        """Store *content* under *key*, durably and at once, replacing what is *expected* there.

        Raises `ExistsError` if the key is expected to be absent and is not, and `StaleError` if it does not stand for
        the expected version.
        """

    def documents_locked(self, path: str) -> AbstractAsyncContextManager[None]:
        """Let only this task `replace` documents of the node at *path*, of all sessions, for the length of the block.

        A remote store does nothing here: its service checks what `replace` expects. Raises `StoreError` if another
        session has the lock for too long.
        """

    async def keep(self, key: str, content: bytes, reason: str) -> None:
        """Keep what a program wrote to *key* and was refused for this *reason*, if nobody else has it; logs where."""

    async def flush(self) -> None:
        """Store what was written to open files; raises the error that prevents it."""


class FileTree(Protocol):
    """Names and ordinary files, changed at the request of programs."""

    async def is_being_written(self, key: str) -> bool:
        """Whether a program of another session writes the file *key*, as far as that is known."""

    async def create(self, key: str, mode: int, *, exclusive: bool, **owner: Unpack[NewOwner]) -> OpenFile:
        """Open a regular file for reading and writing; if there is none, create it with *mode* and *owner*.

        If *exclusive*, raises `ExistsError` if the key stands for anything.
        """

    async def open_to_write(self, key: str) -> OpenFile:
        """Open a regular file to read and write it, without pinning a version; raises the errors of `open`."""

    async def unlink(self, key: str) -> None:
        """Remove a name that is not a directory."""

    async def remove_lock(self, key: str) -> None:
        """Remove a lock file that nobody holds, if there is one."""

    async def mkdir(self, key: str, mode: int, **owner: Unpack[NewOwner]) -> None:
        """Make a directory."""

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory; raises `NotEmptyError`."""

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*, replacing what is there by then; if *exclusive* only if nothing is."""

    async def link(self, key: str, to: str) -> None:
        """Give a file the second name *to*, which does not exist."""

    async def symlink(self, key: str, target: bytes) -> None:
        """Make *key*, which does not exist, a symbolic link; *target* is stored as it is."""

    async def make_directories(self, key: str) -> None:
        """Create the directory *key* and the missing ones above it, durably."""

    async def set_attributes(self, key: str, **changes: Unpack[NewAttributes]) -> Stat:
        """Change the given attributes, of the link itself if *key* is one; return the new status."""

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute; raises `NotPermittedError` outside the `user` namespace."""

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute in the `user` namespace; raises `NoAttributeError`."""

    async def sync_directory(self, key: str) -> None:
        """Make the names in a directory durable."""


@runtime_checkable
class Store(Reader, ObjectWriter, FileTree, Protocol):
    """A source that can be changed: a directory, or a bucket."""


def writable(reader: Reader) -> Store:
    """Return *reader* as a store that can be changed; raises `SourceError` if it can only be read."""
    if not isinstance(reader, Store):
        raise SourceError(f"{reader.url} can only be read: shardfs changes directories and s3:// sources")
    return reader
