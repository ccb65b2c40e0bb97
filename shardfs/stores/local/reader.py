"""Reading a local directory; a snapshot is a version of a file, held by an open descriptor."""

import errno
import os
import stat
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import trio

from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    NoAttributeError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StaleError,
    nearest,
)
from shardfs.stores.base import (
    INODE_BITS,
    MAX_TOP,
    Address,
    Buffer,
    Descriptor,
    Kind,
    ListedName,
    Stat,
    file_format,
)
from shardfs.stores.direct import WouldWaitError
from shardfs.stores.local.syscalls import (
    DIRECTORY,
    ITSELF,
    READ,
    SYSCALLS,
    WALK,
    Syscalls,
    attribute_of,
    attributes_of,
    is_local,
    open_beneath,
    read_at,
    read_cached,
    read_fully,
    require_walks,
    translate,
    translated,
)
from shardfs.stores.memory import Slice
from shardfs.stores.parallel import Threads

_ATTEMPTS: Final = 8

_COMPLETED_NS: Final = 1000
"""How far a session moves the time of a file when it has appended to it: far less than two writes are apart."""


class _Version:
    """A version of a file, which its snapshots share: its size and modification time.

    While the store changes the file in place, *change* is the end of that; the version is then the one before.
    """

    __slots__ = ("__weakref__", "change", "state")

    def __init__(self, state: tuple[int, int]) -> None:
        self.state = state
        self.change: trio.Event | None = None

    def begin_change(self) -> None:
        """Note that the store is about to change the file in place, without moving bytes."""
        self.change = trio.Event()

    def end_change(self, state: tuple[int, int] | None) -> None:
        """Note that it has, and the *state* of the file then; None if it was left as it was, or in another state."""
        if self.change is not None:
            if state is not None:
                self.state = state  # before the end, because threads compare it with the file
            change, self.change = self.change, None
            change.set()

    def grow(self, state: tuple[int, int]) -> None:
        """Note that another program has appended to the file."""
        self.state = state


class LocalSnapshot:
    """An open regular file.

    Renaming over the file, or removing it, does not affect the snapshot. A change in place shows in size or
    modification time, which are checked after each read. What the store itself appends moves no bytes: it gives the
    *version* of all its snapshots the new size and time.
    """

    __slots__ = ("_descriptor", "_key", "_store", "_threads", "stat", "version")

    def __init__(self, store: "LocalReader", key: str, descriptor: Descriptor, status: Stat, version: _Version) -> None:
        self._store = store
        self._threads = store.threads
        self._key = key
        self._descriptor = descriptor
        self.stat = status
        self.version = version

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.version.state[0]

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Buffer:
        """Return exactly *nbytes* bytes from *offset*."""
        buffer = await read_range(self._threads, self._descriptor.fd, offset, nbytes, self._key)
        if self._threads.is_remote:
            await self._threads.on_names(self._check, offset + nbytes, len(buffer) == nbytes)
        else:
            self._check(offset + nbytes, len(buffer) == nbytes)
        return buffer

    def read_blocking(self, offset: int, nbytes: int) -> Buffer:
        """Do what `read` does, in a worker thread."""
        buffer = np.empty(nbytes, np.uint8).data
        with translated(self._key):
            done = read_fully(self._descriptor.fd, buffer, offset)
        self._check(offset + nbytes, done == nbytes)
        return buffer

    def read_if_current(self, offset: int, nbytes: int, *, waits: bool) -> Buffer | None:
        """Return what `read` does, in any thread; None if it cannot. It *waits*, or raises `WouldWaitError`."""
        if self._threads.is_remote and not waits:
            raise WouldWaitError
        fd = self._descriptor.fd
        try:
            if waits:
                data: Buffer = read_at(fd, nbytes, offset)
                if len(data) < nbytes:
                    return None
            else:
                data = buffer = np.empty(nbytes, np.uint8).data
                if read_cached(fd, buffer, offset, self._key) < nbytes:
                    raise WouldWaitError
            # Whatever has changed by now, since it was opened, may have changed before its bytes were read.
            return data if self._present_version() == self.stat.version else None
        except (OSError, ShardfsError):  # `read` says why
            return None

    def expect(self, offset: int, nbytes: int) -> None:
        """Do nothing: the kernel reads ahead by itself."""

    def content(self, offset: int, nbytes: int) -> Slice:
        """Return *nbytes* bytes from *offset*, to be read later."""
        return Slice(self.read_blocking, offset, nbytes)

    async def distrust(self, offset: int, nbytes: int) -> bool:
        """Return False: nothing is kept here."""
        return False

    async def is_current(self) -> bool:
        """Whether the name that was opened still stands for this version."""
        try:
            return await self._threads.on_names(self._present_version) == self.stat.version
        except OSError:
            return False

    async def accept_growth(self, offset: int, content: Buffer) -> bool:
        """Accept the file's present state if it has only grown since it was opened, and has *content* at *offset*.

        A part of what was appended may have been taken back. Waits for a change that the store is making.
        """
        if self.version.change is not None:
            await self.version.change.wait()
        for _ in range(_ATTEMPTS):
            before = self.version.state
            state = await self._threads.on_names(self._now)
            if state == before:
                return True
            if not self._is_growth(before, state):
                return False
            if await self._threads.on_content(self._pread, offset, len(content)) != content:
                return False
            if await self._threads.on_names(self._now) == state and self.version.state == before:
                if before[0] > self.stat.size:  # who has opened the file since may have read what was taken back
                    self.version = self._store.version(self.stat.identity, state)
                else:
                    self.version.grow(state)
                return True
        return False

    def _is_growth(self, before: tuple[int, int], state: tuple[int, int]) -> bool:
        """Whether a file that was in the state *before* has only been appended to since it was opened, by its *state*.

        An append of another session gets its last time when all is written, and one that was torn is taken back. Who is
        not the owner of the file can only give it the present time, long after it has grown: that is not told from
        other bytes of the same size in its place, so what was open meanwhile cannot be read on, and is opened again.
        """
        if state[0] == before[0]:
            return 0 < state[1] - before[1] <= _COMPLETED_NS
        return state[0] > min(before[0], self.stat.size) or state == (self.stat.size, self.stat.mtime_ns)

    def _present_version(self) -> tuple[int, int, int, int, int]:
        if not self._threads.is_remote:
            return version_of(os.stat(self._key, dir_fd=self._store.directory.fd))
        # What `stat` says may be known from before; an open asks the server.
        return version_of(os.fstat(open_beneath(self._store.directory, self._key, READ).fd))

    def _now(self) -> tuple[int, int]:
        try:
            status = os.fstat(self._descriptor.fd)
        except OSError as error:  # as NFS may say for an open file
            raise translate(error, self._key) from None
        return status.st_size, status.st_mtime_ns

    def _pread(self, offset: int, nbytes: int) -> bytes:
        with translated(self._key):
            return read_at(self._descriptor.fd, nbytes, offset)

    def _check(self, end: int, is_read: bool) -> None:
        """Raise `StaleError` if the file ended before byte *end*, or has changed; one check after a read is enough."""
        if not is_read:
            raise StaleError(f"{self._key} ended before byte {end}")
        version = self.version
        while True:
            change, state = version.change, version.state
            # Not ctime, which also changes when another file is renamed over this one.
            now = self._now()
            if (change, state) == (version.change, version.state):  # else the store has changed the file meanwhile
                break
        has_changed = now != state if change is None else now[0] < state[0]
        if has_changed:
            raise StaleError(f"{self._key} was changed in place while it was open")


async def read_range(threads: Threads, fd: int, offset: int, nbytes: int, key: str) -> memoryview:
    """Return up to *nbytes* bytes from *offset* of an open file; in a thread, unless the page cache has them."""
    buffer = np.empty(nbytes, np.uint8).data  # a bytearray would be filled with zeros first
    done = 0 if threads.is_remote else read_cached(fd, buffer, offset, key)
    if done < nbytes:
        with translated(key):
            done = await threads.on_content(read_fully, fd, buffer, offset, done)
    return buffer[:done]


def _with_status(file: Descriptor) -> tuple[Descriptor, Stat]:
    return file, to_stat(os.fstat(file.fd))


def status_of(directory: Descriptor, name: str) -> Stat:
    """Return the status of *name* in an open directory, of the link itself if it is one; blocks."""
    return to_stat(os.stat(name, dir_fd=directory.fd, follow_symlinks=False))


def to_stat(status: os.stat_result) -> Stat:
    """Convert a status of the operating system."""
    return Stat(
        kind=_kind(status.st_mode),
        size=status.st_size,
        version=version_of(status),
        identity=status.st_dev << INODE_BITS | status.st_ino,
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        nlink=status.st_nlink,
        rdev=status.st_rdev,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def version_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return a value that changes whenever the content of a name does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    return Kind.SYMLINK if stat.S_ISLNK(mode) else Kind.SPECIAL


T = TypeVar("T")
Translation = Callable[[str], AbstractContextManager[None]]
"""`translated` or `changing`: makes errors of shardfs of those of the system."""

USER: Final = b"user."
TTL: Final = 1.0
"""Default TTL of names, sizes and listings, in seconds; asking again costs microseconds."""

_WAYS_OUT: Final = {
    errno.EACCES: "; you need the permissions r and x on it, and x on the folders above it",
    errno.ENOTCONN: "; a mount there has lost its daemon: see `shardfs mounts`",
}

_LARGE_DIRECTORY: Final = 64 * 2**10  # bytes: some thousand names


def _what_is_missing(path: str) -> str:
    """Say which part of a path does not exist, or what has a similar name."""
    missing = path
    while not os.path.lexists(above := os.path.dirname(path)):
        path = above
    name = os.path.basename(path)
    with suppress(OSError), os.scandir(above) as entries:
        if (alike := nearest(name, [entry.name for entry in islice(entries, MAX_TOP)])) is not None:
            return f"; did you mean {os.path.join(above, alike)}?"
    return "" if path == missing else f"; there is no {name} in {above}"


class LocalReader:
    """A local directory that is only read; *syscalls* are for subclasses that write."""

    rewrites = False
    fetches_ahead = False
    lists = True
    only_zarr = False

    def __init__(self, root: str, syscalls: Syscalls = SYSCALLS, *, ttl: float = TTL) -> None:
        """Open *root*; raises `SourceError` if it is not a readable directory."""
        self.syscalls = syscalls
        self.ttl = ttl
        if "\0" in root:
            raise SourceError(f"{root} has a NUL in it")
        self.root = os.path.realpath(root)
        require_walks(root)
        try:
            self.directory = Descriptor(os.open(self.root, WALK))
            readable = Descriptor(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self.threads = Threads(is_remote=not is_local(readable.fd))
        except FileNotFoundError:
            raise SourceError(f"{root} does not exist{_what_is_missing(self.root)}") from None
        except NotADirectoryError:
            raise SourceError(f"{root} is {file_format(self.root)}") from None
        except OSError as error:
            way_out = _WAYS_OUT.get(error.errno or 0, "")
            raise SourceError(f"{root} cannot be read: {error.strerror}{way_out}") from None
        self.url = self.root
        self.address = Address(self.root)
        self._versions: WeakValueDictionary[Hashable, _Version] = WeakValueDictionary()  # the last one of each file

    def url_of(self, key: str) -> str:
        """Return the `file://` URL of *key*; names are not quoted, as fsspec expects."""
        return f"file://{self.root}/{key}" if key else f"file://{self.root}"

    def statistics(self) -> Mapping[str, object]:
        """Return nothing: the system counts what happens to local files."""
        return {}

    def forget(self, key: str) -> None:
        """Do nothing: names are looked at each time."""

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many.

        Raises `SourceError` if the path does not lead to the directory that was opened any more.
        """
        with translated(""), os.scandir(self.root) as top:
            if not os.path.samestat(os.stat(self.root), os.fstat(self.directory.fd)):
                raise SourceError(f"{self.root} is another directory now than the one that was opened")
            entries = [ListedName(entry.name, _entry_kind(entry)) for entry in islice(top, MAX_TOP + 1)]
        return entries if len(entries) <= MAX_TOP else None

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        return await self._in_directory(key, status_of)

    async def fresh(self, key: str) -> Stat:
        """Return the state of the file *key*."""
        return (await self.open_to_read(key))[1]

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing, not even a link."""
        if self.threads.is_remote:
            await self.threads.on_names(self.ask_for_names_above, key)
        try:
            await self.stat(key)
        except ShardfsError as error:
            return isinstance(error, NotFoundError)
        return False

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> LocalSnapshot:
        """Open a regular file."""
        descriptor, status = await self.open_to_read(key)
        return self.snapshot(key, descriptor, status)

    async def expect_names(self, key: str) -> None:
        """Do nothing: names are not cached."""

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""

        def scan() -> list[ListedName]:
            with translated(key), os.scandir(directory.fd) as entries:
                return [ListedName(entry.name, _entry_kind(entry)) for entry in entries]

        directory, status = await self._opened(key, DIRECTORY, _with_status)
        if not self.threads.is_remote and status.size <= _LARGE_DIRECTORY:
            return await self.threads.on_names(scan)
        return await self.threads.on_content(scan)

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the states of several names in one directory."""

        def look(directory: Descriptor) -> Sequence[Stat | None]:
            stats: list[Stat | None] = []
            for name in names:
                try:
                    stats.append(status_of(directory, name))
                except OSError:
                    stats.append(None)
            return stats

        return await self._opened(key, WALK, look)

    async def read_link(self, key: str) -> bytes:
        """Return the target of a symbolic link."""
        return os.fsencode(await self._in_directory(key, lambda parent, name: os.readlink(name, dir_fd=parent.fd)))

    async def attribute(self, key: str, name: bytes) -> bytes:
        """Return an extended attribute in the `user` namespace."""
        if not name.startswith(USER):
            raise NoAttributeError(f"{key} has no attribute {name!r}")
        return await self._opened(key, ITSELF, lambda itself: attribute_of(itself, name))

    async def attributes(self, key: str) -> Sequence[bytes]:
        """Return the names of the extended attributes in the `user` namespace."""
        try:
            names = await self._opened(key, ITSELF, attributes_of)
        except NoAttributeError:  # the file system has none
            return []
        return [name for name in map(os.fsencode, names) if name.startswith(USER)]

    async def capacity(self) -> os.statvfs_result:
        """Return the room on the file system of the source."""
        return await self._opened("", ITSELF, lambda itself: os.fstatvfs(itself.fd))

    async def open_to_read(self, key: str) -> tuple[Descriptor, Stat]:
        """Open a regular file."""
        try:
            descriptor, status = await self._opened(key, READ, _with_status)
        except NotFoundError:
            if not self.threads.is_remote:
                raise
            await self.threads.on_names(self.ask_for_names_above, key)
            descriptor, status = await self._opened(key, READ, _with_status)
        if status.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        if status.kind is not Kind.FILE:
            raise CorruptionError(f"{key} is not a regular file")
        return descriptor, status

    def snapshot(self, key: str, descriptor: Descriptor, status: Stat) -> LocalSnapshot:
        """Return a snapshot of an open file; one that the store is changing in place has the version before."""
        version = self.version(status.identity, (status.size, status.mtime_ns))
        if version.change is not None:  # its status, too: what is noted of a version is its size, time and index
            size, mtime_ns = version.state
            status = status._replace(size=size, mtime_ns=mtime_ns, version=(status.version, "before"))
        return LocalSnapshot(self, key, descriptor, status, version)

    def version(self, identity: Hashable, state: tuple[int, int]) -> _Version:
        """Return the version of a file that is in a *state*, or the one that the store is changing in place."""
        version = self._versions.get(identity)
        if version is None or (version.change is None and version.state != state):
            version = self._versions[identity] = _Version(state)
        return version

    def ask_for_names_above(self, key: str) -> None:
        """Open the directory that contains *key*, or is to contain it; blocks.

        A host keeps names that were not there, until a directory in which it looks is opened, or changed by itself.
        """
        parents = key.split("/")[:-1]
        with suppress(OSError):
            open_beneath(self.directory, "/".join(parents), DIRECTORY)
            return
        with suppress(OSError):
            for depth in range(len(parents) + 1):
                open_beneath(self.directory, "/".join(parents[:depth]), DIRECTORY)

    def parent(self, key: str) -> tuple[Descriptor, str]:
        """Return the open directory that contains *key*, and its name there; blocks."""
        parent, _, name = key.rpartition("/")
        return open_beneath(self.directory, parent, WALK), name or "."

    async def _in_directory(
        self, key: str, call: Callable[[Descriptor, str], T], within: Translation = translated
    ) -> T:
        """Return the result of *call* for the directory that contains *key*, and its name there."""
        with within(key):
            return await self.threads.on_names(lambda: call(*self.parent(key)))

    async def _opened(
        self, key: str, flags: int, call: Callable[[Descriptor], T], within: Translation = translated
    ) -> T:
        """Return the result of *call* for *key*, opened with *flags* of `open_beneath`."""
        with within(key):
            return await self.threads.on_names(lambda: call(open_beneath(self.directory, key, flags)))


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return Kind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.SPECIAL
