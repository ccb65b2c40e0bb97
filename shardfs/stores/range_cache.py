"""Ranges of remote objects on the local disk, for this mount, later ones, and several at a time.

Mounts share a directory without speaking to each other.  An entry is a file that appears complete, is never changed,
and may be gone at any moment; its modification time tells when it was last used.  What a process knows of the others'
entries is what it saw in a listing: of one drawer after a miss, of everything before it evicts.

Nothing is made durable: what a power cut left of an entry is found out by its checksums.
"""

import errno
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from shardfs.errors import CorruptionError, UsageError, printable
from shardfs.stores.base import Buffer
from shardfs.stores.cache_directory import CacheDirectory, File
from shardfs.stores.durable import Disk
from shardfs.stores.range_entry import Version, file_nbytes, pack_head, parse_file_name, range_of, read_range
from shardfs.stores.range_index import RangeIndex, drawer_of
from shardfs.stores.s3.counts import Counts

_MAX_ENTRY_NBYTES: Final = 2**30  # one system call reads less than twice as much
_LISTING_SECONDS: Final = 1.0
_LISTING_SHARE: Final = 0.02
_TOUCH_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 60.0
_KEPT_SHARE: Final = 0.9
_DISK: Final = Disk()
_DAMAGE: Final = (errno.EIO, errno.ELOOP, errno.ENXIO, errno.EBADMSG, errno.EUCLEAN)

log = logging.getLogger(__name__)


class _Listed(NamedTuple):
    """When a drawer was last listed, and after how long it may be again, in seconds."""

    when: float
    interval: float


class RangeCache:
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
        disk: Disk = _DISK,
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
        self._index = RangeIndex()
        self._listed: dict[str, _Listed] = {}
        self._paused: float | None = None
        self._is_failing = False
        self._room = 0
        """How many bytes may be added before everything is counted again."""
        self._lock = Lock()
        self._counting = Lock()
        self._removing = Lock()
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
                data = self._read_or_remove(version, key, offset, end - offset)
            except FileNotFoundError:  # another process evicted it
                with self._lock:
                    self._index.discard(key)
            except CorruptionError:
                continue
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
            if self._index.find(key) is not None:
                return
        try:
            self._resume()
            if self._paused is None:
                self._add(version, key, view)
        except (OSError, UsageError) as error:
            self._pause(error)

    def _add(self, version: Version, key: bytes, data: memoryview) -> None:
        head = pack_head(version, key, data)
        nbytes = self._directory.write(drawer_of(key), key.hex(), [head, data], self._clock())
        self._is_failing = False
        with self._lock:
            useless = self._index.discard_other_versions(key) + self._index.add(key)
            self._room -= nbytes
            is_full = self._room < 0
        self._remove(useless)
        if is_full and self._counting.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._counting.release()

    def _read_or_remove(self, version: Version, key: bytes, offset: int, nbytes: int) -> memoryview:
        """Read from an entry; if it is damaged, it is removed before `CorruptionError` is raised."""
        with suppress(CorruptionError):
            return self._read(version, key, offset, nbytes)
        with self._removing:  # it was read before: another thread may have removed it, and put a good one in its place
            try:
                return self._read(version, key, offset, nbytes)
            except CorruptionError as error:
                self._remove_damaged(key, str(error))
                raise

    def _read(self, version: Version, key: bytes, offset: int, nbytes: int) -> memoryview:
        try:
            descriptor, file = self._directory.open(drawer_of(key), key.hex())
            _require_entry(key, file)
            data = read_range(descriptor.fd, version, key, offset, nbytes)
        except OSError as error:
            if error.errno in _DAMAGE:
                raise CorruptionError(str(error.strerror)) from None
            raise
        now = self._clock()
        if abs(now - file.used) >= _TOUCH_SECONDS:
            with suppress(OSError):
                self._directory.mark_used(descriptor, now)
        return data

    def _known(self, wanted: bytes) -> bytes | None:
        """Return the key of an entry that holds the range of *wanted*, looking for those of other processes too."""
        drawer = drawer_of(wanted)
        with self._lock:
            key = self._index.find(wanted)
            if key is not None or not self._may_list(drawer):
                return key
            known = {key.hex(): key for key in self._index.keys(drawer)}
        self._list(drawer, known)
        with self._lock:
            return self._index.find(wanted)

    def _may_list(self, drawer: str) -> bool:
        """Whether it is time to list a drawer, and if so, say that it was done."""
        now = self._clock()
        listed = self._listed.get(drawer)
        if listed is not None and abs(now - listed.when) < listed.interval:
            return False
        self._listed[drawer] = _Listed(now, _LISTING_SECONDS)
        return True

    def _list(self, drawer: str, known: dict[str, bytes]) -> None:
        """Take over into the index what other processes added and removed."""
        begin = time.perf_counter()
        try:
            files, gone = self._directory.look(drawer, known)
        except OSError:
            return
        new = self._entries(drawer, files)
        with self._lock:
            for name in gone:
                self._index.discard(known[name])
            useless = [other for key in new for other in self._index.add(key)]
            self._room -= sum(file.nbytes for file in new.values())
            seconds = (time.perf_counter() - begin) / _LISTING_SHARE
            self._listed[drawer] = _Listed(self._clock(), max(_LISTING_SECONDS, seconds))
        with suppress(OSError):
            self._remove(useless)

    def _entries(self, drawer: str, files: Iterable[File]) -> dict[bytes, File]:
        """Return which entries the *files* in a drawer are; what is called like one and is none is removed."""
        entries: dict[bytes, File] = {}
        for file in files:
            key = parse_file_name(file.name)
            if key is not None and drawer_of(key) == drawer:
                try:
                    _require_entry(key, file)
                except CorruptionError as error:
                    self._remove_damaged(key, str(error))
                else:
                    entries[key] = file
        return entries

    def _remove_damaged(self, key: bytes, reason: str) -> None:
        with self._lock:
            self._index.discard(key)
            self._counts.cache_damaged += 1
        log.warning("%s in the cache %s is damaged and given up: %s", key.hex(), printable(self._path), reason)
        with suppress(OSError):
            self._remove([key])

    def _remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._directory.remove(drawer_of(key), key.hex())

    def _count(self) -> None:
        """Look at everything that is there, whoever added it, and evict what is too much."""
        self._directory.remove_abandoned()
        with self._lock:
            self._room = 0  # and below it goes what is added meanwhile
        entries: list[tuple[float, int, bytes]] = []
        for drawer in self._directory.drawers():
            found = self._entries(drawer, self._directory.look(drawer)[0])
            with self._lock:
                useless = self._index.replace(drawer, found)
                self._listed[drawer] = _Listed(self._clock(), _LISTING_SECONDS)
            self._remove(useless)
            for key in useless:
                del found[key]
            entries += ((file.used, file.nbytes, key) for key, file in found.items())
        total = self._evict(entries)
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
                with self._lock:
                    self._index.discard(key)
                self._remove([key])
                total -= nbytes
        return total

    def _resume(self) -> None:
        """Try again to use the directory, or another of its name, if the pause is over."""
        if self._paused is not None and abs(self._clock() - self._paused) >= _PAUSE_SECONDS:
            self._directory = CacheDirectory(self._path, self._disk)
            with self._lock:
                self._room = 0
            self._paused = None

    def _pause(self, error: OSError | UsageError) -> None:
        self._paused = self._clock()
        if not self._is_failing:
            reason = str(error) if isinstance(error, UsageError) else error.strerror
            log.warning("the cache %s takes nothing in for now: %s", printable(self._path), reason)
        self._is_failing = True


def _require_entry(key: bytes, file: File) -> None:
    if not file.is_regular:
        raise CorruptionError("it is not a file")
    if file.size != file_nbytes(key):
        raise CorruptionError("its size is not what its name says")
