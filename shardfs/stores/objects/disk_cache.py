"""Ranges of remote objects on the local disk, for this mount, later ones, and several at a time.

Mounts share a directory without a lock between them. An entry is a file that appears complete, is never changed, and
may be gone at any moment; its times tell when it was last used. Entries are in directories called *drawers*. A process
remembers the names that it saw in a drawer, and lists it again after a miss, once a second at most.

The name of a file says of which version its bytes are, and from where to where. A crc32c of each block of 64 KiB
follows them, so that a small read of a large entry checks only what it reads. It is a sum of name and block: nothing is
made durable, and whatever a power cut has damaged or confused is noticed.
"""

import logging
import math
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from shardfs.errors import CorruptionError, UsageError, printable
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.syscalls import DIRECTORY, NO_FILES, READ, SYSCALLS, WALK, Syscalls
from shardfs.stores.objects.ranges import Span, Spans
from shardfs.stores.objects.requests import Counts

BLOCK_NBYTES: Final = 64 * 2**10

_FOLDER: Final = "shardfs-3"
"""What a cache is called in the directory of the user; the number changes with the format."""

_CHECKSUM_NBYTES: Final = 4
_MAX_ENTRY_NBYTES: Final = 2**30  # one system call reads at most twice as much
_LISTING_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 60.0
_ABANDONED_SECONDS: Final = 3600.0  # writing one entry never takes as long
_NEVER: Final = -math.inf
_MINUTE: Final = 60.0
_KEPT_SHARE: Final = 0.9
_DISK_BLOCK_NBYTES: Final = 512  # the unit of st_blocks on any file system
_ENTRY: Final = re.compile("([0-9a-f]{64})-(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})")
_DRAWER_NDIGITS: Final = 3
_DRAWER: Final = re.compile("[0-9a-f]{3}")
_NEW: Final = "new-"
_TAG: Final = "CACHEDIR.TAG"
_TAG_CONTENT: Final = b"Signature: 8a477f597d28d172789f06886806bc55\n# Everything here may be deleted at any time.\n"

log = logging.getLogger(__name__)


class CachedRange(NamedTuple):
    """The bytes of *span* of a version."""

    version: str
    span: Span

    @classmethod
    def parse(cls, name: str) -> "CachedRange | None":
        """Return the entry in the file *name*; None if that is no name of an entry."""
        parts = _ENTRY.fullmatch(name)
        if parts is None or int(parts[2]) >= int(parts[3]):
            return None
        return cls(parts[1], Span(int(parts[2]), int(parts[3])))

    @property
    def drawer(self) -> str:
        """The drawer that contains it: one of 4096, the same for all entries of a version."""
        return self.version[:_DRAWER_NDIGITS]

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.version}-{self.span.start}-{self.span.stop}"

    @property
    def path(self) -> str:
        """The path of its file, relative to the cache."""
        return f"{self.drawer}/{self.name}"

    def checksums(self, data: memoryview) -> bytes:
        """Return those of the blocks of *data*, the last of which may be shorter."""
        begun = google_crc32c.value(self.name.encode())
        blocks = (np.frombuffer(data[at : at + BLOCK_NBYTES], np.uint8) for at in range(0, data.nbytes, BLOCK_NBYTES))
        return b"".join(google_crc32c.extend(begun, block).to_bytes(_CHECKSUM_NBYTES, "little") for block in blocks)

    def read(self, fd: int, wanted: Span) -> memoryview:
        """Return the bytes of *wanted*, which are in the entry, from its file; raises `CorruptionError` for damage."""
        nbytes, status = self.span.nbytes, os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != nbytes + _CHECKSUM_NBYTES * _nblocks(nbytes):
            raise CorruptionError("it is not what its name says")
        first, last = (wanted.start - self.span.start) // BLOCK_NBYTES, _nblocks(wanted.stop - self.span.start)
        base, stop = first * BLOCK_NBYTES, min(last * BLOCK_NBYTES, nbytes)
        data = memoryview(os.pread(fd, stop - base, base))
        expected = os.pread(fd, (last - first) * _CHECKSUM_NBYTES, nbytes + first * _CHECKSUM_NBYTES)
        if data.nbytes != stop - base or self.checksums(data) != expected:
            raise CorruptionError("a checksum does not match")
        begin = wanted.start - self.span.start - base
        return data[begin : begin + wanted.nbytes]


def _nblocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_NBYTES)


def _version(name: str, etag: str) -> str:
    """Return the id of the version *etag* of the object *name*; names need not be valid Unicode."""
    return sha256(b"".join(sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (name, etag))).hexdigest()


def _open_folder(directory: str, disk: Syscalls) -> Descriptor:
    """Open the cache in *directory*, creating it if it is missing; it stays open even if it is renamed.

    Raises `UsageError` if it cannot be created, belongs to somebody else, or can be written by others.
    """
    path = os.path.join(directory, _FOLDER)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        folder = Descriptor(os.open(path, DIRECTORY))
        status = os.fstat(folder.fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise UsageError(f"others may write to {path}, so it cannot be used as a cache: remove it")
        with suppress(FileExistsError):
            tag = Descriptor(disk.create(_TAG, os.O_RDWR | os.O_EXCL, 0o600, folder.fd))
            disk.pwrite(tag.fd, [_TAG_CONTENT], 0)
    except OSError as error:
        raise UsageError(f"{directory} cannot be used as a directory for a cache: {error.strerror}") from None
    return folder


class DiskCache:
    """Ranges of objects in a folder of *directory*, about *max_nbytes* on disk at most.

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
        """Create or open the cache; raises `UsageError` if it cannot be used.

        *clock* returns seconds since 1970.
        """
        self._path = directory
        self._max_nbytes = max_nbytes
        self._counts = counts
        self._disk = disk
        self._clock = clock
        self._known: dict[str, dict[str, Spans]] = {}
        """By drawer the entries of each version, as far as they were seen since the last count. What other processes
        have added and evicted is seen when a drawer is listed, which replaces what was known of it."""
        self._listed: dict[str, float] = {}
        """When a drawer was listed, since the last count."""
        self._failed = _NEVER
        self._room = 0
        """How many bytes may be added before everything is counted, for the first time or again."""
        self._lock = Lock()
        """Held while any of this, or of the counts, is used."""
        self._counting = Lock()
        self._folder = _open_folder(directory, disk)

    def find(self, name: str, etag: str, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes from *offset* of the version *etag* of an object, at most *nbytes*, if they are undamaged.

        As many are returned as a single entry has; None if none has the first byte.
        """
        version = _version(name, etag)
        while (entry := self._look_up(version, offset)) is not None:
            try:
                drawer = self._drawer(entry)
                file = Descriptor(os.open(entry.name, READ, dir_fd=drawer.fd))
                data = entry.read(file.fd, Span(offset, min(offset + nbytes, entry.span.stop)))
            except FileNotFoundError:  # another process has evicted it
                self._drop(entry)
            except (CorruptionError, OSError) as error:
                if isinstance(error, OSError) and error.errno in NO_FILES:
                    return None  # that says nothing about the entry
                if self._drop(entry):  # else another reader has found it at the same time
                    with self._lock:
                        self._counts.cache_damaged += 1
                    where = printable(self._path)
                    log.warning("%s in the cache %s is damaged and dropped: %s", entry.path, where, error)
            else:
                with self._lock:
                    self._counts.cache_hits += 1
                    self._counts.cache_bytes += data.nbytes
                return data
        return None

    def add(self, name: str, etag: str, offset: int, data: Buffer) -> None:
        """Keep *data*, the bytes from *offset* of the version *etag* of an object.

        Raises nothing: if the directory cannot be written, this is logged, and the cache pauses for a minute. While
        another thread counts and evicts, which may take long, nothing is added.
        """
        view, now = memoryview(data).cast("B"), self._clock()
        entry = CachedRange(_version(name, etag), Span(offset, offset + view.nbytes))
        if not 0 < view.nbytes <= min(self._max_nbytes // 4, _MAX_ENTRY_NBYTES) or self._counting.locked():
            return
        with self._lock:
            around = self._spans(entry).at(offset)
        if abs(now - self._failed) < _PAUSE_SECONDS or (around is not None and around.stop >= entry.span.stop):
            return
        try:
            if self._failed != _NEVER:  # another directory may have the name now
                self._folder = _open_folder(self._path, self._disk)
                self._room = -1
            self._add(entry, view)
            self._failed = _NEVER
        except (OSError, UsageError) as error:
            if self._failed == _NEVER:
                reason = error.strerror if isinstance(error, OSError) else error
                log.warning("nothing is added to the cache %s for now: %s", printable(self._path), reason)
            self._failed = now

    def discard(self, name: str, etag: str, wanted: Span) -> None:
        """Remove all bytes of *wanted* of the version *etag* of an object, whoever added them."""
        version = _version(name, etag)
        entries: list[CachedRange] = []
        with suppress(OSError):
            entries = self._list(version[:_DRAWER_NDIGITS])
        for entry in entries:
            if entry.version == version and entry.span.overlaps(wanted):
                self._drop(entry)

    def _add(self, entry: CachedRange, data: memoryview) -> None:
        temporary = _NEW + secrets.token_hex(8)
        file = Descriptor(self._disk.create(temporary, os.O_RDWR | os.O_EXCL, 0o600, self._folder.fd))
        try:
            self._disk.pwrite(file.fd, [data, entry.checksums(data)], 0)
            nbytes = os.fstat(file.fd).st_blocks * _DISK_BLOCK_NBYTES
            with suppress(FileExistsError):
                self._disk.mkdir(entry.drawer, 0o700, self._folder.fd)
            drawer = self._drawer(entry)
            self._disk.rename(temporary, entry.name, self._folder.fd, drawer.fd)
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(temporary, self._folder.fd)
            raise
        with self._lock:
            within = self._known.setdefault(entry.drawer, {}).setdefault(entry.version, Spans()).add(entry.span)
            self._room -= nbytes
        for span in within:
            self._remove(entry._replace(span=span))
        if self._room < 0 and self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()

    def _look_up(self, version: str, offset: int) -> CachedRange | None:
        """Return the entry that extends furthest from *offset*, including those of other processes."""
        entry, now = CachedRange(version, Span(offset, offset)), self._clock()
        with self._lock:
            span = self._spans(entry).at(offset)
            if span is None and abs(now - self._listed.get(entry.drawer, _NEVER)) >= _LISTING_SECONDS:
                try:
                    listed = self._list(entry.drawer)
                except OSError:  # no descriptor is free, which says nothing about the drawer
                    return None
                self._listed[entry.drawer] = self._clock()
                drawer = self._known[entry.drawer] = {}
                for other in listed:
                    drawer.setdefault(other.version, Spans()).add(other.span)
                span = self._spans(entry).at(offset)
        return None if span is None else entry._replace(span=span)

    def _spans(self, entry: CachedRange) -> Spans:
        """Return what is known of the version of *entry*; the caller holds the lock."""
        return self._known.get(entry.drawer, {}).get(entry.version) or Spans()

    def _list(self, drawer: str) -> list[CachedRange]:
        """Return the entries in a drawer; raises `OSError` if no descriptor is free to list it."""
        try:
            directory = Descriptor(os.open(drawer, DIRECTORY, dir_fd=self._folder.fd))
            return [entry for entry in map(CachedRange.parse, os.listdir(directory.fd)) if entry is not None]
        except OSError as error:
            if error.errno in NO_FILES:
                raise
            return []

    def _drop(self, entry: CachedRange) -> bool:
        """Forget an entry and remove it; return whether it was known.

        Shorter ones that it hid are found by listing its drawer again.
        """
        is_removed = self._remove(entry)
        with self._lock:
            if is_removed:
                self._listed.pop(entry.drawer, None)
            return self._spans(entry).discard(entry.span)

    def _remove(self, entry: CachedRange) -> bool:
        """Remove the file of an entry; return whether it was there: another process may have been faster."""
        try:
            drawer = self._drawer(entry)
            self._disk.unlink(entry.name, drawer.fd)
        except OSError:
            return False
        return True

    def _drawer(self, entry: CachedRange) -> Descriptor:
        """Open the drawer of an entry, to get at what is in it; raises `OSError`, also if it is a link."""
        return Descriptor(os.open(entry.drawer, WALK, dir_fd=self._folder.fd))

    def _count(self) -> None:
        """Count everything in the cache, whoever added it, and evict the least recently used entries."""
        with self._lock:
            self._room = 0  # what is added meanwhile is subtracted again
            self._known.clear()
            self._listed.clear()
        used_in: Counter[int] = Counter()
        for used, nbytes, _ in self._entries():
            used_in[int(used // _MINUTE)] += nbytes
        total = used_in.total()
        if total > self._max_nbytes:
            total = self._evict(used_in, total)
        with self._lock:
            # What others add is unknown until the next count, so count before all the room is used.
            self._room += min(self._max_nbytes - total, self._max_nbytes // 10)

    def _evict(self, used_in: Counter[int], total: int) -> int:
        """Evict the least recently used entries of *total* bytes; return what is left.

        *used_in* has the bytes that were last used in each minute, so that only entries of one minute are in memory.
        """
        kept, rest, last = self._max_nbytes * _KEPT_SHARE, total, 0
        for last in sorted(used_in):
            rest -= used_in[last]
            if rest <= kept:
                break
        doubtful: list[tuple[float, int, CachedRange]] = []
        for row in self._entries():
            if row[0] // _MINUTE < last:
                self._drop(row[2])
                total -= row[1]
            elif row[0] // _MINUTE == last:
                doubtful.append(row)
        for _, nbytes, entry in sorted(doubtful):
            if total <= kept:
                break
            self._drop(entry)
            total -= nbytes
        return total

    def _entries(self) -> Iterator[tuple[float, int, CachedRange]]:
        """Yield when each entry was last used, and its size on disk. Remove what was never completed."""
        for name in os.listdir(self._folder.fd):
            for entry in self._list(name) if _DRAWER.fullmatch(name) else ():
                with suppress(OSError):
                    used, nbytes = _used(entry.name, self._drawer(entry))
                    yield used, nbytes, entry
            with suppress(OSError):
                if name.startswith(_NEW) and time.time() - _used(name, self._folder)[0] > _ABANDONED_SECONDS:
                    self._disk.unlink(name, self._folder.fd)


def _used(name: str, directory: Descriptor) -> tuple[float, int]:
    """Return when a file was last used, and its size on disk."""
    status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    return max(status.st_atime, status.st_mtime), status.st_blocks * _DISK_BLOCK_NBYTES


def cache_of(directory: str | None, max_nbytes: int, counts: Counts) -> DiskCache | None:
    """Return the cache in *directory*, None without one."""
    return None if directory is None else DiskCache(directory, max_nbytes, counts)
