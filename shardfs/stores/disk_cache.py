"""Ranges of remote objects on the local disk, for this mount, later ones, and several at a time.

Mounts share a directory without a lock between them. An entry is a file that appears complete, is never changed, and
may be gone at any moment; its times tell when it was last used. Entries are in directories called *drawers*. A process
remembers the names that it saw in a drawer, and lists it again after a miss, once a second at most.

Nothing is made durable: checksums tell what a power cut has damaged. A file is, with numbers in little endian:

    magic 8 | format uint32 | id of the version 32 | offset uint64 | nbytes uint64
    | crc32c uint32 of each block | the bytes

Blocks are 64 KiB, except for the last, so that a small read of a large entry checks only what it reads. The name of a
file is in hexadecimal, with numbers in big endian:

    beginning of the id 16 | offset uint64 | nbytes uint64
"""

import errno
import logging
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from shardfs.errors import CorruptionError, UsageError, printable
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.syscalls import DIRECTORY, READ, SYSCALLS, Syscalls
from shardfs.stores.ranges import Span, Spans
from shardfs.stores.s3.requests import Counts

FORMAT: Final = 2
BLOCK_NBYTES: Final = 64 * 2**10

_MAGIC: Final = bytes.fromhex("b71c40e5923fa86d")
_HEADER: Final = Struct("<8sI32sQQ")
_NAME: Final = Struct(">16sQQ")
_VERSION_NBYTES: Final = 16
_CHECKSUM_NBYTES: Final = 4
_MAX_ENTRY_NBYTES: Final = 2**30  # one system call reads at most twice as much
_LISTING_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 60.0
_ABANDONED_SECONDS: Final = 3600.0  # writing one entry never takes as long
_NEVER: Final = -math.inf
_KEPT_SHARE: Final = 0.9
_DISK_BLOCK_NBYTES: Final = 512  # the unit of st_blocks on any file system
_DAMAGE: Final = (errno.EIO, errno.ELOOP, errno.ENXIO, errno.EBADMSG, errno.EUCLEAN)
_DRAWER: Final = re.compile("[0-9a-f]{3}")
_NEW: Final = "new-"
_TAG: Final = "CACHEDIR.TAG"
_TAG_CONTENT: Final = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    f"# Ranges of objects that shardfs fetched, format {FORMAT}.  Everything here may be deleted at any time.\n"
).encode()

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """The bytes of *span* of a version whose id begins with *version*."""

    version: bytes
    span: Span

    @classmethod
    def parse(cls, name: str) -> "Entry | None":
        """Return the entry in the file *name*; None if that is no name of an entry."""
        with suppress(ValueError):
            key = bytes.fromhex(name)
            if len(key) == _NAME.size and key.hex() == name:
                version, offset, nbytes = _NAME.unpack(key)
                return cls(version, Span(offset, offset + nbytes))
        return None

    @property
    def drawer(self) -> str:
        """The drawer that contains it: one of 4096, the same for all entries of a version."""
        return self.version.hex()[:3]

    @property
    def path(self) -> str:
        """The path of its file, relative to the cache."""
        return f"{self.drawer}/{_NAME.pack(self.version, self.span.start, self.span.nbytes).hex()}"

    def head(self, identity: bytes) -> bytes:
        """Return what precedes the checksums in the file, for the version with this id."""
        return _HEADER.pack(_MAGIC, FORMAT, identity, self.span.start, self.span.nbytes)

    def read(self, fd: int, identity: bytes, wanted: Span) -> memoryview:
        """Return the bytes of *wanted*, which are in the entry, from its file; raises `CorruptionError` for damage."""
        status, nblocks = os.fstat(fd), _nblocks(self.span.nbytes)
        data_at = _HEADER.size + _CHECKSUM_NBYTES * nblocks
        if not stat.S_ISREG(status.st_mode):
            raise CorruptionError("it is not a file")
        if status.st_size != data_at + self.span.nbytes:
            raise CorruptionError("its size is not what its name says")
        first, last = (wanted.start - self.span.start) // BLOCK_NBYTES, _nblocks(wanted.stop - self.span.start)
        base, stop = first * BLOCK_NBYTES, min(last * BLOCK_NBYTES, self.span.nbytes)
        head = os.pread(fd, _HEADER.size + last * _CHECKSUM_NBYTES, 0)
        if head[: _HEADER.size] != self.head(identity):
            raise CorruptionError("it is not what its name says")
        data = memoryview(os.pread(fd, stop - base, data_at + base))
        if data.nbytes != stop - base or _checksums(data) != head[_HEADER.size + first * _CHECKSUM_NBYTES :]:
            raise CorruptionError("a checksum does not match")
        begin = wanted.start - self.span.start - base
        return data[begin : begin + wanted.nbytes]


def _nblocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_NBYTES)


def _checksums(data: memoryview) -> bytes:
    blocks = (np.frombuffer(data[at : at + BLOCK_NBYTES], np.uint8) for at in range(0, data.nbytes, BLOCK_NBYTES))
    return b"".join(google_crc32c.extend(0, block).to_bytes(_CHECKSUM_NBYTES, "little") for block in blocks)


def _identity(name: str, etag: str) -> bytes:
    """Return the id of the version *etag* of the object *name*; names need not be valid Unicode."""
    return sha256(b"".join(sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (name, etag))).digest()


def _open_directory(path: str, disk: Syscalls) -> Descriptor:
    """Open the directory of a cache, creating it if it is missing; it stays open even if it is renamed.

    Raises `UsageError` if it cannot be created or written, belongs to somebody else, can be written by others, or
    contains anything that is not a cache.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        root = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        status = os.fstat(root.fd)
        if status.st_uid != os.geteuid():
            raise UsageError(f"the directory {path} belongs to somebody else, and cannot be used as a cache")
        if status.st_mode & 0o022:
            raise UsageError(f"others may write to the directory {path}; run `chmod 700 {path}` to use it as a cache")
        if not os.access(path, os.W_OK):
            raise UsageError(f"the directory {path} cannot be used as a cache: it cannot be written")
        # In this order, so that the tag is there before anything else.
        names, tag = os.listdir(root.fd), b""
        with suppress(FileNotFoundError):
            file = Descriptor(os.open(_TAG, READ, dir_fd=root.fd))
            tag = os.pread(file.fd, len(_TAG_CONTENT) + 1, 0)
        if tag != _TAG_CONTENT:
            if not set(names) <= {_TAG} or not _TAG_CONTENT.startswith(tag):
                raise UsageError(
                    f"the directory {path} is not empty, and not a cache of this version of shardfs: "
                    "name another one, or empty it first"
                )
            file = Descriptor(disk.create(_TAG, os.O_RDWR, 0o600, root.fd))
            disk.pwrite(file.fd, [_TAG_CONTENT], 0)
    except FileExistsError:
        raise UsageError(f"{path} is not a directory, and cannot be used as a cache") from None
    except OSError as error:
        raise UsageError(f"the directory {path} cannot be used as a cache: {error.strerror}") from None
    return root


class DiskCache:
    """Ranges of objects in *directory*, about *max_nbytes* on disk at most.

    Several processes together may exceed that by a tenth each. All methods block, and may be called from several
    threads.
    """

    def __init__(
        self,
        directory: str,
        max_nbytes: int,
        counts: Counts,
        *,
        disk: Syscalls = SYSCALLS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create or open the directory, and look at all entries; raises `UsageError` if it cannot be used.

        *clock* returns seconds since 1970.
        """
        self._path = directory
        self._max_nbytes = max_nbytes
        self._counts = counts
        self._disk = disk
        self._clock = clock
        self._root = _open_directory(directory, disk)
        self._known: dict[bytes, Spans] = {}
        """The entries of each version, as far as they were seen: other processes may have added and evicted some."""
        self._listed: dict[str, float] = {}
        """When a drawer was listed."""
        self._failed = _NEVER
        self._room = 0
        """How many bytes may be added before everything is counted again."""
        self._lock = Lock()
        """Held while any of this, or of the counts, is used."""
        self._counting = Lock()
        try:
            self._count()
        except OSError as error:
            raise UsageError(f"the directory {directory} cannot be used as a cache: {error.strerror}") from None

    def find(self, name: str, etag: str, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes from *offset* of the version *etag* of an object, at most *nbytes*, if they are undamaged.

        As many are returned as a single entry has; None if none has the first byte.
        """
        identity = _identity(name, etag)
        while (entry := self._look_up(identity[:_VERSION_NBYTES], offset)) is not None:
            try:
                data = self._read(entry, identity, Span(offset, min(offset + nbytes, entry.span.stop)))
            except FileNotFoundError:  # another process has evicted it
                self._drop(entry)
            except CorruptionError as error:
                with self._lock:
                    self._counts.cache_damaged += 1
                log.warning("%s in the cache %s is damaged and dropped: %s", entry.path, printable(self._path), error)
                self._drop(entry)
            except OSError as error:
                log.warning("%s in the cache %s cannot be read: %s", entry.path, printable(self._path), error.strerror)
                return None
            else:
                with self._lock:
                    self._counts.cache_hits += 1
                    self._counts.cache_bytes += data.nbytes
                return data
        return None

    def add(self, name: str, etag: str, offset: int, data: Buffer) -> None:
        """Keep *data*, the bytes from *offset* of the version *etag* of an object.

        Raises nothing: if the directory cannot be written, this is logged, and the cache pauses for a minute.
        """
        view, identity, now = memoryview(data).cast("B"), _identity(name, etag), self._clock()
        entry = Entry(identity[:_VERSION_NBYTES], Span(offset, offset + view.nbytes))
        if not 0 < view.nbytes <= min(self._max_nbytes // 4, _MAX_ENTRY_NBYTES):
            return
        with self._lock:
            around = self._spans(entry.version).at(offset)
        if abs(now - self._failed) < _PAUSE_SECONDS or (around is not None and around.stop >= entry.span.stop):
            return
        try:
            if self._failed != _NEVER:  # another directory may have the name now
                self._root = _open_directory(self._path, self._disk)
                with self._counting:
                    self._count()
            self._add(entry, [entry.head(identity), _checksums(view), view])
            self._failed = _NEVER
        except (OSError, UsageError) as error:
            if self._failed == _NEVER:
                reason = error.strerror if isinstance(error, OSError) else error
                log.warning("nothing is added to the cache %s for now: %s", printable(self._path), reason)
            self._failed = now

    def _add(self, entry: Entry, content: Sequence[Buffer]) -> None:
        temporary = _NEW + secrets.token_hex(8)
        file = Descriptor(self._disk.create(temporary, os.O_RDWR | os.O_EXCL, 0o600, self._root.fd))
        try:
            self._disk.pwrite(file.fd, content, 0)
            nbytes = os.fstat(file.fd).st_blocks * _DISK_BLOCK_NBYTES
            with suppress(FileExistsError):
                self._disk.mkdir(entry.drawer, 0o700, self._root.fd)
            self._disk.rename(temporary, entry.path, self._root.fd, self._root.fd)
        except BaseException:
            self._unlink(temporary)
            raise
        with self._lock:
            within = self._spans(entry.version).add(entry.span)
            self._room -= nbytes
        for span in within:
            self._unlink(entry._replace(span=span).path)
        with self._counting:
            if self._room < 0:
                self._count()

    def _read(self, entry: Entry, identity: bytes, wanted: Span) -> memoryview:
        try:
            file = Descriptor(os.open(entry.path, READ, dir_fd=self._root.fd))
            return entry.read(file.fd, identity, wanted)
        except OSError as error:
            if error.errno in _DAMAGE:
                raise CorruptionError(str(error.strerror)) from None
            raise

    def _spans(self, version: bytes) -> Spans:
        return self._known.setdefault(version, Spans())

    def _look_up(self, version: bytes, offset: int) -> Entry | None:
        """Return the entry that extends furthest from *offset*, including those of other processes."""
        entry, now = Entry(version, Span(offset, offset)), self._clock()
        with self._lock:
            found = self._spans(version).at(offset)
            if found is None and abs(now - self._listed.get(entry.drawer, _NEVER)) >= _LISTING_SECONDS:
                self._list(entry.drawer)
                found = self._spans(version).at(offset)
        return None if found is None else entry._replace(span=found)

    def _list(self, drawer: str) -> list[Entry]:
        """Look at the names in a drawer, and return its entries; the caller holds the lock."""
        entries: list[Entry] = []
        with suppress(OSError):
            directory = Descriptor(os.open(drawer, DIRECTORY, dir_fd=self._root.fd))
            entries = [entry for entry in map(Entry.parse, os.listdir(directory.fd)) if entry is not None]
        self._listed[drawer] = self._clock()
        for entry in entries:
            self._known[entry.version] = Spans()
        for entry in entries:
            self._known[entry.version].add(entry.span)
        return entries

    def _drop(self, entry: Entry) -> None:
        """Forget an entry and remove it; shorter ones that it hid are found by listing its drawer again."""
        with self._lock:
            self._spans(entry.version).discard(entry.span)
            with suppress(OSError):  # another process may have been faster
                self._disk.unlink(entry.path, self._root.fd)
                self._listed.pop(entry.drawer, None)

    def _unlink(self, path: str) -> None:
        with suppress(OSError):  # another process may have been faster
            self._disk.unlink(path, self._root.fd)

    def _count(self) -> None:
        """Look at everything in the cache, whoever added it, and evict the least recently used entries."""
        with self._lock:
            self._room = 0  # what is added meanwhile is subtracted again
            self._known.clear()
        rows: list[tuple[float, int, Entry]] = []
        for name in os.listdir(self._root.fd):
            if _DRAWER.fullmatch(name):
                with self._lock:
                    entries = self._list(name)
                rows += filter(None, map(self._used, entries))
            elif name.startswith(_NEW):
                with suppress(FileNotFoundError):
                    if time.time() - os.stat(name, dir_fd=self._root.fd).st_mtime > _ABANDONED_SECONDS:
                        self._unlink(name)
        total = sum(nbytes for _, nbytes, _ in rows)
        least = total if total <= self._max_nbytes else self._max_nbytes * _KEPT_SHARE
        for _, nbytes, entry in sorted(rows):
            if total <= least:
                break
            self._drop(entry)
            total -= nbytes
        with self._lock:
            # What others add is unknown until the next count, so count before all the room is used.
            self._room += min(self._max_nbytes - total, self._max_nbytes // 10)

    def _used(self, entry: Entry) -> tuple[float, int, Entry] | None:
        """Return when an entry was last used, and its size on disk; None if it is gone."""
        with suppress(OSError):
            status = os.stat(entry.path, dir_fd=self._root.fd, follow_symlinks=False)
            return max(status.st_atime, status.st_mtime), status.st_blocks * _DISK_BLOCK_NBYTES, entry
        return None
