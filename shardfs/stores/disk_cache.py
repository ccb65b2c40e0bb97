"""Ranges of remote objects on the local disk, for this mount, later ones, and several at a time.

Mounts share a directory without speaking to each other.  An entry is a file that appears complete, is never changed,
and may be gone at any moment; its modification time tells when it was last used.  Entries lie in *drawers*, directories
of which a process knows what it saw when it listed them: again after a miss, if the drawer was changed since.

Nothing is made durable: what a power cut left of an entry is found out by its checksums.  A file is, with numbers in
little endian:

    magic 8 | format uint32 | SHA-256 of the name 32 | SHA-256 of the ETag 32 | offset uint64 | nbytes uint64
    | crc32c uint32 of each block | the bytes

Blocks are 64 KiB, but for the last, so that a small read of a large entry checks only what it touches.  The *key* of an
entry is what its file is called, in hexadecimal:

    beginning of the first SHA-256 8 | beginning of the second 8 | offset uint64 | nbytes uint64, both big endian

Keys in order are thus ranges in order, of one version behind the other.
"""

import errno
import fcntl
import logging
import math
import os
import secrets
import stat
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from string import hexdigits
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from shardfs.errors import CorruptionError, UsageError, printable
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.openat import READ
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.s3.requests import Counts

FORMAT: Final = 1
BLOCK_NBYTES: Final = 64 * 2**10

_MAGIC: Final = bytes.fromhex("b71c40e5923fa86d")
_HEADER: Final = Struct("<8sI32s32sQQ")
_CHECKSUM_NBYTES: Final = 4
_ID_NBYTES: Final = 8
_RANGE: Final = Struct(">QQ")


class Version(NamedTuple):
    """One version of an object, as the SHA-256 of its name and of its ETag."""

    name: bytes
    etag: bytes

    @classmethod
    def of(cls, name: str, etag: str) -> "Version":
        """Return the version *etag* of the object *name*; names need not be valid Unicode."""
        return cls(*(sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (name, etag)))

    def key(self, offset: int, nbytes: int) -> bytes:
        """Return the key of the entry for *nbytes* bytes from *offset*."""
        return self.name[:_ID_NBYTES] + self.etag[:_ID_NBYTES] + _RANGE.pack(offset, nbytes)


KEY_NBYTES: Final = 2 * _ID_NBYTES + _RANGE.size


def range_of(key: bytes) -> tuple[int, int]:
    """Return offset and nbytes of an entry."""
    offset, nbytes = _RANGE.unpack_from(key, 2 * _ID_NBYTES)
    return offset, nbytes


def parse_file_name(name: str) -> bytes | None:
    """Return the key of the entry whose file is called *name*; None if no entry is called so."""
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_NBYTES and key.hex() == name else None


def file_nbytes(key: bytes) -> int:
    """Return the size of the file of an entry."""
    nbytes = range_of(key)[1]
    return _HEADER.size + _CHECKSUM_NBYTES * _blocks(nbytes) + nbytes


def pack_head(version: Version, key: bytes, data: memoryview) -> bytes:
    """Return what the file of the entry *key* has before its *data*."""
    checksums = (
        _checksum(data[begin : begin + BLOCK_NBYTES]).to_bytes(_CHECKSUM_NBYTES, "little")
        for begin in range(0, data.nbytes, BLOCK_NBYTES)
    )
    return b"".join((_pack_header(version, key), *checksums))


def read_range(fd: int, version: Version, key: bytes, offset: int, nbytes: int) -> memoryview:
    """Return *nbytes* bytes from *offset* of the object, which are in the entry *key*, from its open file.

    The file has the size of the entry.  Raises `CorruptionError` if it is another entry, or is damaged there.
    """
    start, entry_nbytes = range_of(key)
    begin = offset - start
    first, last = begin // BLOCK_NBYTES, _blocks(begin + nbytes)
    base = first * BLOCK_NBYTES
    head = os.pread(fd, _HEADER.size + last * _CHECKSUM_NBYTES, 0)
    if head[: _HEADER.size] != _pack_header(version, key):
        raise CorruptionError("it is not what its name says")
    data_at = file_nbytes(key) - entry_nbytes
    read = min(last * BLOCK_NBYTES, entry_nbytes) - base
    data = memoryview(os.pread(fd, read, data_at + base))
    if len(data) != read:
        raise CorruptionError("it was shortened")
    for block in range(first, last):
        at = _HEADER.size + block * _CHECKSUM_NBYTES
        expected = int.from_bytes(head[at : at + _CHECKSUM_NBYTES], "little")
        if _checksum(data[block * BLOCK_NBYTES - base :][:BLOCK_NBYTES]) != expected:
            raise CorruptionError("a checksum does not match")
    return data[begin - base :][:nbytes]


def _pack_header(version: Version, key: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, FORMAT, version.name, version.etag, *range_of(key))


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_NBYTES)


def _checksum(data: Buffer) -> int:
    # The library takes no memoryview.
    value: int = google_crc32c.extend(0, np.frombuffer(data, np.uint8))
    return value


_LAST: Final = b"\xff" * KEY_NBYTES
"""Appended to the beginning of keys, it makes what is no less than any of them."""


def drawer_of(key: bytes) -> str:
    """Return the name of the drawer that an entry is in; all entries of an object share one of 4096."""
    return key[:2].hex()[:3]


@dataclass(slots=True)
class _Drawer:
    """What is known of a drawer: its *keys* in order, when it was *listed*, and the time of its last change then.

    No entry lies within another of its version.  Ordered by their beginnings, entries of a version are then ordered by
    their ends too: the last one that begins early enough is the only one that may hold a range.
    """

    keys: list[bytes] = field(default_factory=list)
    listed: float = -math.inf
    changed_ns: int = -1

    def find(self, key: bytes) -> bytes | None:
        """Return the key of the entry that holds the range of *key*, if there is one."""
        at = bisect_right(self.keys, _beginning(key) + _LAST) - 1
        if at < 0 or _version_of(self.keys[at]) != _version_of(key):
            return None
        return self.keys[at] if _end(self.keys[at]) >= _end(key) else None

    def add(self, key: bytes) -> list[bytes]:
        """Take in an entry; return those that it makes useless: what lies within it, or itself if it is within another.

        They are not in the drawer any more.
        """
        holder = self.find(key)
        if holder is not None:
            return [] if holder == key else [key]
        begin = end = bisect_left(self.keys, _beginning(key))
        while (
            end < len(self.keys)
            and _version_of(self.keys[end]) == _version_of(key)
            and _end(self.keys[end]) <= _end(key)
        ):
            end += 1
        within = self.keys[begin:end]
        self.keys[begin:end] = [key]
        return within

    def discard(self, key: bytes) -> None:
        """Remove an entry, if it is there."""
        at = bisect_left(self.keys, key)
        if self.keys[at : at + 1] == [key]:
            del self.keys[at]

    def discard_other_versions(self, key: bytes) -> list[bytes]:
        """Remove and return the entries for the same object that are of another version than *key*."""
        name = key[:_ID_NBYTES]
        begin, end = bisect_left(self.keys, name), bisect_right(self.keys, name + _LAST)
        removed = [other for other in self.keys[begin:end] if _version_of(other) != _version_of(key)]
        self.keys[begin:end] = [other for other in self.keys[begin:end] if _version_of(other) == _version_of(key)]
        return removed


def _beginning(key: bytes) -> bytes:
    """Return what the keys of all entries begin with that begin where *key* does."""
    return key[: KEY_NBYTES - 8]


def _version_of(key: bytes) -> bytes:
    """Return what the keys of the same version begin with."""
    return key[: 2 * _ID_NBYTES]


def _end(key: bytes) -> int:
    return sum(range_of(key))


_TAG: Final = "CACHEDIR.TAG"
_TAG_CONTENT: Final = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    f"# Ranges of objects that shardfs fetched, format {FORMAT}.  Everything here may be deleted at any time.\n"
).encode()
_NEW: Final = "new-"
_DRAWER_NAME_LENGTH: Final = 3
_BLOCK_NBYTES: Final = 512  # what st_blocks counts, whatever the file system


class CacheDirectory:
    """The directory at *path*, made if it is missing; whatever becomes of its name, it stays the same directory.

    Raises `UsageError` if it cannot be made or written, if it belongs to somebody else or others may write it, or if
    something is in it that is not of a cache.
    """

    def __init__(self, path: str, disk: Syscalls) -> None:
        self._disk = disk
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._root = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            _require_private(path, os.fstat(self._root.fd))
            self._take(path)
            self._try_to_write()
        except FileExistsError:
            raise UsageError(f"{path} is not a directory, and cannot be used as a cache") from None
        except OSError as error:
            raise UsageError(f"the directory {path} cannot be used as a cache: {error.strerror}") from None

    def drawers(self) -> Sequence[str]:
        """Return the names of all drawers."""
        with os.scandir(self._root.fd) as entries:
            return [entry.name for entry in entries if _is_drawer(entry)]

    def drawer(self, name: str) -> Descriptor:
        """Open a drawer."""
        return Descriptor(os.open(name, READ | os.O_DIRECTORY, dir_fd=self._root.fd))

    def changed_ns(self, drawer: str) -> int:
        """Return when an entry came or went last, -1 if there is no such drawer."""
        try:
            return os.stat(drawer, dir_fd=self._root.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return -1

    def open(self, key: bytes) -> tuple[Descriptor, os.stat_result]:
        """Open an entry to read it."""
        directory = self.drawer(drawer_of(key))
        file = Descriptor(os.open(key.hex(), READ, dir_fd=directory.fd))
        return file, os.fstat(file.fd)

    def mark_used(self, file: Descriptor, now: float) -> None:
        """Say that an open file was used *now*, in seconds since 1970."""
        now_ns = int(now * 1e9)
        self._disk.utime(file.fd, (now_ns, now_ns))

    def write(self, key: bytes, content: Sequence[Buffer], now: float) -> int:
        """Make an entry, used *now*, which others see complete or not at all; return what it takes on the disk.

        After an error nothing is left of it.
        """
        drawer = drawer_of(key)
        with self._new_file() as (file, temporary):
            self._disk.pwrite(file.fd, content, 0)
            self.mark_used(file, now)
            nbytes = os.fstat(file.fd).st_blocks * _BLOCK_NBYTES
            with suppress(FileExistsError):
                self._disk.mkdir(drawer, 0o700, self._root.fd)
            directory = self.drawer(drawer)
            self._disk.rename(temporary, key.hex(), self._root.fd, directory.fd)
        return nbytes

    def remove(self, key: bytes) -> None:
        """Remove an entry; it is no error if another process did."""
        with suppress(FileNotFoundError):
            directory = self.drawer(drawer_of(key))
            self._disk.unlink(key.hex(), directory.fd)

    def remove_abandoned(self) -> None:
        """Remove the files that were on their way when their process ended: a living one holds a lock on its own."""
        for name in os.listdir(self._root.fd):
            if name.startswith(_NEW):
                with suppress(OSError):
                    file = Descriptor(os.open(name, READ, dir_fd=self._root.fd))
                    fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._disk.unlink(name, self._root.fd)

    def _try_to_write(self) -> None:
        with self._new_file() as (file, name):
            self._disk.pwrite(file.fd, [name.encode()], 0)
            self._disk.unlink(name, self._root.fd)

    @contextmanager
    def _new_file(self) -> Iterator[tuple[Descriptor, str]]:
        """Give a file that nobody else looks at, and its name; after an error nothing has that name."""
        while True:
            name = _NEW + secrets.token_hex(8)
            file = Descriptor(self._disk.create(name, os.O_RDWR | os.O_EXCL, 0o600, self._root.fd))
            fcntl.flock(file.fd, fcntl.LOCK_EX)
            if os.fstat(file.fd).st_nlink:  # else it was taken for abandoned before it was locked
                break
        try:
            yield file, name
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(name, self._root.fd)
            raise

    def _take(self, path: str) -> None:
        # In this order: whoever tags the directory first, does so before anything else gets there.
        names = os.listdir(self._root.fd)
        tag = self._read_tag()
        if tag == _TAG_CONTENT:
            return
        if not set(names) <= {_TAG} or not _TAG_CONTENT.startswith(tag):
            raise UsageError(
                f"the directory {path} is not empty, and not a cache of this version of shardfs: "
                "name another one, or empty it first"
            )
        file = Descriptor(self._disk.create(_TAG, os.O_RDWR, 0o600, self._root.fd))
        self._disk.pwrite(file.fd, [_TAG_CONTENT], 0)

    def _read_tag(self) -> bytes:
        with suppress(FileNotFoundError):
            file = Descriptor(os.open(_TAG, READ, dir_fd=self._root.fd))
            return os.pread(file.fd, len(_TAG_CONTENT) + 1, 0)
        return b""


def _is_drawer(entry: os.DirEntry[str]) -> bool:
    is_named_so = len(entry.name) == _DRAWER_NAME_LENGTH and set(entry.name) <= set(hexdigits)
    return is_named_so and entry.is_dir(follow_symlinks=False)


def _require_private(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UsageError(f"the directory {path} belongs to somebody else, and cannot be used as a cache")
    if status.st_mode & 0o022:
        raise UsageError(f"others may write to the directory {path}; run `chmod 700 {path}` to use it as a cache")


_MAX_ENTRY_NBYTES: Final = 2**30  # one system call reads less than twice as much
_LISTING_SECONDS: Final = 1.0
_TOUCH_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 60.0
_KEPT_SHARE: Final = 0.9
_DISK: Final = Syscalls()
_DAMAGE: Final = (errno.EIO, errno.ELOOP, errno.ENXIO, errno.EBADMSG, errno.EUCLEAN)

log = logging.getLogger(__name__)


class DiskCache:
    """Ranges of objects in *directory*, which take at most about *max_nbytes* on the disk.

    Several processes together may exceed that by a tenth for each.  All methods block, and may be called from several
    threads.
    """

    def __init__(
        self,
        directory: str,
        max_nbytes: int,
        counts: Counts,
        *,
        disk: Syscalls = _DISK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make or take the directory, and look at all entries in it; raises `UsageError` if it cannot be used.

        *clock* gives seconds since 1970.
        """
        self._path = directory
        self._max_nbytes = max_nbytes
        self._counts = counts
        self._disk = disk
        self._clock = clock
        self._directory = CacheDirectory(directory, disk)
        self._drawers: dict[str, _Drawer] = {}
        self._paused: float | None = None
        self._is_failing = False
        self._room = 0
        """How many bytes may be added before everything is counted again."""
        self._lock = Lock()
        self._counting = Lock()
        try:
            self._count()
        except OSError as error:
            raise UsageError(f"the directory {directory} cannot be used as a cache: {error.strerror}") from None

    def find(self, name: str, etag: str, offset: int, nbytes: int, *, ahead_nbytes: int = 0) -> memoryview | None:
        """Return *nbytes* bytes from *offset* of the version *etag* of an object, if one entry has them, undamaged.

        Up to *ahead_nbytes* more follow, as far as the same entry has them.
        """
        version = Version.of(name, etag)
        wanted = version.key(offset, nbytes)
        while (key := self._known(wanted)) is not None:
            try:
                start, entry_nbytes = range_of(key)
                end = min(offset + nbytes + ahead_nbytes, start + entry_nbytes)
                data = self._read(version, key, offset, end - offset)
            except FileNotFoundError:  # another process evicted it
                self._forget(key)
            except CorruptionError as error:
                with self._lock:
                    drawer = self._drawers.pop(drawer_of(key), None)  # what it seemed to hold may be in others
                if drawer is not None and drawer.find(key) == key:  # else another thread was first
                    self._give_up(key, str(error))
            except OSError as error:
                log.warning("%s in the cache %s cannot be read: %s", key.hex(), printable(self._path), error.strerror)
                return None
            else:
                with self._lock:
                    self._counts.cache_hits += 1
                    self._counts.cache_bytes += data.nbytes
                return data
        return None

    def add(self, name: str, etag: str, offset: int, data: Buffer) -> None:
        """Keep *data*, the bytes from *offset* of the version *etag* of an object, and forget its other versions.

        Never raises: where the directory cannot be written, a line is logged, and the cache pauses for a minute.
        """
        view = memoryview(data).cast("B")
        if not 0 < view.nbytes <= min(self._max_nbytes // 4, _MAX_ENTRY_NBYTES):
            return
        version = Version.of(name, etag)
        key = version.key(offset, view.nbytes)
        with self._lock:
            if self._drawer(key).find(key) is not None:
                return
        try:
            self._resume()
            if self._paused is None:
                self._add(version, key, view)
        except (OSError, UsageError) as error:
            self._pause(error)

    def _add(self, version: Version, key: bytes, data: memoryview) -> None:
        name = drawer_of(key)
        before = self._directory.changed_ns(name)
        nbytes = self._directory.write(key, [pack_head(version, key, data), data], self._clock())
        self._is_failing = False
        after = self._directory.changed_ns(name)
        with self._lock:
            drawer = self._drawer(key)
            if drawer.changed_ns == before:
                drawer.changed_ns = after
            useless = drawer.discard_other_versions(key) + drawer.add(key)
            self._room -= nbytes
            is_full = self._room < 0
        self._remove(useless)
        if is_full and self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()

    def _read(self, version: Version, key: bytes, offset: int, nbytes: int) -> memoryview:
        try:
            file, status = self._directory.open(key)
            _require_entry(key, status)
            data = read_range(file.fd, version, key, offset, nbytes)
        except OSError as error:
            if error.errno in _DAMAGE:
                raise CorruptionError(str(error.strerror)) from None
            raise
        now = self._clock()
        if abs(now - status.st_mtime) >= _TOUCH_SECONDS:
            with suppress(OSError):
                self._directory.mark_used(file, now)
        return data

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._drawer(key).discard(key)

    def _drawer(self, key: bytes) -> _Drawer:
        return self._drawers.setdefault(drawer_of(key), _Drawer())

    def _known(self, wanted: bytes) -> bytes | None:
        """Return the key of an entry that holds the range of *wanted*, looking for those of other processes too."""
        name, now = drawer_of(wanted), self._clock()
        with self._lock:
            drawer = self._drawer(wanted)
            key = drawer.find(wanted)
            if key is not None or abs(now - drawer.listed) < _LISTING_SECONDS:
                return key
            drawer.listed = now
        with suppress(OSError):
            if self._directory.changed_ns(name) != drawer.changed_ns:
                self._list(name)
        with self._lock:
            return self._drawer(wanted).find(wanted)

    def _list(self, name: str) -> list[tuple[float, int, bytes]]:
        """Look at a drawer; return when its entries were used, what they take on the disk, and their keys.

        What is called like an entry and is none is removed, and what lies within others.
        """
        changed_ns = self._directory.changed_ns(name)
        found: dict[bytes, tuple[float, int, bytes]] = {}
        with suppress(FileNotFoundError):
            directory = self._directory.drawer(name)
            with os.scandir(directory.fd) as files:
                for file in files:
                    key = parse_file_name(file.name)
                    if key is not None and drawer_of(key) == name:
                        with suppress(FileNotFoundError):
                            status = file.stat(follow_symlinks=False)
                            try:
                                _require_entry(key, status)
                            except CorruptionError as error:
                                self._give_up(key, str(error))
                            else:
                                found[key] = status.st_mtime, status.st_blocks * _BLOCK_NBYTES, key
        drawer = _Drawer(listed=self._clock(), changed_ns=changed_ns)
        useless = [other for key in sorted(found) for other in drawer.add(key)]
        with self._lock:
            self._drawers[name] = drawer
        self._remove(useless)
        return [found[key] for key in drawer.keys]

    def _give_up(self, key: bytes, reason: str) -> None:
        with self._lock:
            self._counts.cache_damaged += 1
        log.warning("%s in the cache %s is damaged and given up: %s", key.hex(), printable(self._path), reason)
        with suppress(OSError):
            self._remove([key])

    def _remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._directory.remove(key)

    def _count(self) -> None:
        """Look at everything that is there, whoever added it, and evict what is too much."""
        self._directory.remove_abandoned()
        with self._lock:
            self._room = 0  # and below it goes what is added meanwhile
        total = self._evict([row for name in self._directory.drawers() for row in self._list(name)])
        with self._lock:
            # What others add is unknown until the next count, so that one is due before the room is all used.
            self._room += min(self._max_nbytes - total, self._max_nbytes // 10)

    def _evict(self, entries: list[tuple[float, int, bytes]]) -> int:
        """Remove what was not used for longest, if *entries* are too large together; return what is left in bytes."""
        total = sum(nbytes for _, nbytes, _ in entries)
        if total > self._max_nbytes:
            entries.sort()
            for _, nbytes, key in entries:
                if total <= self._max_nbytes * _KEPT_SHARE:
                    break
                self._forget(key)
                self._remove([key])
                total -= nbytes
        return total

    def _resume(self) -> None:
        """Try again to use the directory, or another of its name, if the pause is over."""
        if self._paused is not None and abs(self._clock() - self._paused) >= _PAUSE_SECONDS:
            self._directory = CacheDirectory(self._path, self._disk)
            with self._lock:
                self._room = 0
                self._drawers.clear()
            self._paused = None

    def _pause(self, error: OSError | UsageError) -> None:
        self._paused = self._clock()
        if not self._is_failing:
            reason = str(error) if isinstance(error, UsageError) else error.strerror
            log.warning("the cache %s takes nothing in for now: %s", printable(self._path), reason)
        self._is_failing = True


def _require_entry(key: bytes, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CorruptionError("it is not a file")
    if status.st_size != file_nbytes(key):
        raise CorruptionError("its size is not what its name says")
