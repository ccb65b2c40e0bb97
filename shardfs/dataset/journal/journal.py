"""The journal: published changes, until they are in the store.

What was appended survives the end of the process; what was appended before a `sync` that returned survives a power cut.
The journal is also the write buffer: payloads are read back from it. `shardfs.dataset.journal.records` describes its
files.

A segment is removed when all its records are released and no older segment is left: the release is made durable first,
then the file is removed. Each removal is durable before the next, so a power cut leaves the end of the history, never
an old record without the newer one that replaced it. A segment that was found damaged is kept under another name.

So that a record that is live for long does not keep all later segments, the live records of the oldest segment can be
carried forward: they are appended again, durably, before the old segment is removed.

Of several records of one subject only the latest counts, released or not, so nothing is written when one replaces
another: the older one goes with its segment, for which all later ones are durable.

The caller sees to it that only one append, `release`, `carry_forward` or `close` runs at a time. `sync` and reads of
payloads may run beside them, in other threads. All of these block; only an append of few bytes is quick. Tasks that
share a journal hold `appending` around each change, and never while waiting for a store; they use `sync_soon` and
`release_soon`.
"""

import contextlib
import copy
import errno
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import trio

from shardfs.dataset.journal.reading import JournalContents, Segment, read_journal
from shardfs.dataset.journal.records import (
    RECORD_NBYTES,
    Checkpoint,
    Live,
    Payload,
    Shrink,
    damaged_name,
    new_name,
    pack_meta,
    pack_ranges,
    pack_record,
    salt_of,
)
from shardfs.dataset.path_table import is_below
from shardfs.errors import FileLimitError, NoSpaceError, ReadOnlyError, ShardfsError, StoreError
from shardfs.format.codecs import crc32c
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import NO_SPACE, Syscalls, is_local, translate
from shardfs.stores.memory import MemoryContent
from shardfs.stores.parallel import QuickLock

log = logging.getLogger(__name__)

_PIECE_NBYTES: Final = 2**20
_RESERVE_NBYTES: Final = 256 * 2**10
_STEP_NBYTES: Final = 16 * 2**10
"""Disk space kept for records without a payload: removals, what is released, and commits that make room.

It is used in steps, so that little of it goes to payloads.
"""

NOTHING: Final = MemoryContent(memoryview(b""))
"""The payload of a record without one."""

R = TypeVar("R", bound=Live | Checkpoint)
L = TypeVar("L", bound=Live)


class Journal:
    """The journal in one directory, for writing.

    *contents* is what `read_journal` found there: its records are live here too.

    A segment of more than *segment_nbytes* bytes is followed by another. *max_nbytes* is the size that callers should
    keep the journal below, by waiting until the journal `has_room`.

    State, changed by one caller at a time: the segments, oldest first, of which the last may be *active*, that is,
    written to; the sequences released since the last checkpoint. `sync` reads them in other threads: a segment's end
    is moved before `last_sequence`.
    """

    def __init__(
        self,
        directory: Descriptor,
        disk: Syscalls,
        contents: JournalContents | None = None,
        *,
        segment_nbytes: int = 64 * 2**20,
        max_nbytes: int = 2**30,
    ) -> None:
        contents = contents or read_journal(directory)
        try:
            self._directory = Descriptor(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd))
        except OSError as error:
            raise translate(error, "the journal") from None
        self._disk = disk
        self.is_shared = not is_local(self._directory.fd)
        """Whether other hosts may read the files, which see what was written when it is durable."""
        self._room = 0
        self.failure = ""
        """Why the journal accepts nothing any more."""
        self.has_vanished = False
        """Whether that is because somebody removed its files: then only this process can read what was in them."""
        self._suspended = ""  # why nothing new is published, or committed, for now
        self._segment_nbytes = segment_nbytes
        self.max_nbytes = max_nbytes
        self.appending = QuickLock()
        self._syncing_soon = QuickLock()
        self._syncing = threading.Lock()
        self._segments = list(contents.segments)
        self._live = {record.subject: (segment, record) for segment, record in contents.live}
        self._active: Segment | None = None
        self._number = contents.last_number
        self.last_sequence = contents.last_sequence
        """The latest sequence number that an append took, even a failed one."""
        self.synced_sequence = 0
        """All records up to this one are durable."""
        self._released: list[int] = []
        self.live_nbytes = sum(record.nbytes for _, record in contents.live)
        """The size of the live records."""
        self._reserve: Descriptor | None = None
        self._keep_reserve()

    @property
    def nbytes(self) -> int:
        """The size of all segments, as far as they are written."""
        return sum(segment.end for segment in self._segments)

    @property
    def nlive(self) -> int:
        """The number of live records."""
        return len(self._live)

    @property
    def dead_nbytes(self) -> int:
        """How many bytes are dead, and kept only because an older record is live."""
        return self.nbytes - self.live_nbytes

    @property
    def nsegments(self) -> int:
        """The number of segments."""
        return len(self._segments)

    @property
    def is_full(self) -> bool:
        """Whether nothing should be appended before something is released."""
        return self.nbytes >= self.limit() and bool(self.nlive)

    @property
    def where(self) -> str:
        """The current path of the directory: its source may have been renamed."""
        return os.readlink(self._directory.path).removesuffix(" (deleted)")

    def has_room(self, nbytes: int) -> bool:
        """Whether a payload of *nbytes* bytes may be appended now; an empty log takes any payload."""
        return self.nbytes + nbytes < (self.limit() if nbytes else self.max_nbytes) or not self.nlive

    def check(self) -> None:
        """Raise `ReadOnlyError` if nothing is accepted any more."""
        if self.failure:
            raise ReadOnlyError(f"{self.failure}; nothing can be published any more: unmount, and mount again")

    def suspend(self, reason: str) -> bool:
        """Let nothing new be published, and nothing be committed, for a *reason*; "" ends that. Whether it is news."""
        before, self._suspended = self._suspended, reason
        return bool(before) != bool(reason)

    def require_active(self) -> None:
        """Raise `ReadOnlyError` while nothing is to be published or committed."""
        if self._suspended:
            raise ReadOnlyError(f"nothing is written for now: {self._suspended}")

    def room(self) -> int:
        """Return how many bytes are free on the disk; the last known value if it does not answer."""
        with contextlib.suppress(OSError):
            status = os.fstatvfs(self._directory.fd)
            self._room = status.f_bavail * status.f_frsize
        return self._room

    def limit(self) -> int:
        """Return how large all segments together may get; the disk must have as much room again, for the shards."""
        return min(self.max_nbytes, (self.room() + self.nbytes) // 2)

    def append(self, record: R, content: Content = NOTHING, *, may_rotate: bool = True) -> R:
        """Append *record* with a payload of *content*; return it with its sequence and its payload.

        Raises `NoSpaceError` and `StoreError` if that failed; the journal is as it was, and goes on. A record without a
        payload, such as a removal, may take the reserve. Raises
        `ReadOnlyError` if the journal accepts nothing any more, `RefusedError` if a name is too long, and whatever
        reading *content* raises. Unless it *may_rotate*, the active segment may become too long.
        """
        meta, nbytes = pack_meta(record), content.nbytes
        try:
            return self._append(record, content, meta, may_rotate=may_rotate)
        except NoSpaceError:
            if nbytes or not self._use_reserve():
                raise
            return self._append(record, content, meta, may_rotate=may_rotate)

    def _append(self, record: R, content: Content, meta: bytes, *, may_rotate: bool) -> R:
        nbytes, checksum = content.nbytes, 0
        whole_nbytes = RECORD_NBYTES + len(meta) + nbytes
        segment = self._open_segment(whole_nbytes if may_rotate else None)
        sequence = self.last_sequence + 1
        payload_at = segment.end + RECORD_NBYTES + len(meta)
        try:
            piece: Buffer = b""
            for start in range(0, nbytes, _PIECE_NBYTES):
                piece = _read_exactly(content, start, min(_PIECE_NBYTES, nbytes - start))
                checksum = crc32c(piece, checksum)
                if nbytes > _PIECE_NBYTES:
                    self._write(segment, [piece], payload_at + start)
            head = pack_record(salt_of(segment.name), sequence, record.KIND, meta, nbytes, checksum)
            # The first bytes are written last: without them there is no record.
            self._write(segment, [head] if nbytes > _PIECE_NBYTES else [head, piece], segment.end)
        except BaseException:
            self.last_sequence = sequence  # it may have been written, so it is not used again
            try:
                self._disk.truncate(segment.descriptor.fd, segment.end)
            except OSError:
                self._active = None  # what follows its end looks like what it is: an unfinished append
            raise
        if not isinstance(record, Checkpoint):
            self._drop(record)
            self._live[record.subject] = segment, record
            segment.counts(1)
            self.live_nbytes += whole_nbytes
        record.placed(sequence, Payload(segment.descriptor, payload_at, nbytes), whole_nbytes)
        segment.appended(whole_nbytes)
        self.last_sequence = sequence
        return record

    def copy(self, record: L) -> L:
        """Append a record of another journal as what is published now; returns the new record."""
        record = copy.copy(record)
        record.published()
        return self.append(record, record.payload)

    def release(self, records: Iterable[Live]) -> None:
        """Record that *records* are durable in the store, and remove the segments that are not needed any more.

        If the disk is full, they are recorded together with the next ones. Raises `StoreError` if a segment cannot be
        removed, and the errors of `sync`.
        """
        self.check()
        for record in records:
            live = self._live.get(record.subject)
            if live is not None and live[1].sequence == record.sequence:
                self._drop(record)
                self._released.append(record.sequence)
        self._checkpoint()
        self._remove_released()
        self._keep_reserve()

    @property
    def has_recorded_releases(self) -> bool:
        """Whether whoever reads the journal knows all that was released: not if the disk was full."""
        return not self._released

    def carry_forward(self) -> None:
        """Append the live records of the oldest segment again, and remove it.

        They get a new sequence and a new payload; a reader of an old payload keeps its disk space in use. Raises the
        errors of `release` and `append`; what was carried until then is at its new location.
        """
        self.check()
        if not self._segments:
            return
        oldest = self._segments[0]
        records = [record for segment, record in self._live.values() if segment is oldest]
        if self.room() < sum(record.nbytes for record in records) + _RESERVE_NBYTES:
            return  # the room that is left is for recording what is released
        if oldest is self._active:
            self._active = None
        for record in records:
            record.carried()
            self.append(record, record.payload)
        self._remove_released()

    def sync(self) -> None:
        """Make durable what was appended before this call.

        Raises `StoreError` if that failed, or if the files of the journal were removed. It is then unknown what is
        durable, so the journal accepts nothing any more: every later call raises `ReadOnlyError`.
        """
        with self._syncing:
            self.check()
            sequence = self.last_sequence
            ends = [(segment, segment.end) for segment in [*self._segments]]
            are_named = all(segment.synced for segment, _ in ends)
            for segment, end in ends:
                self._look(segment, end)
            for segment, end in ends:
                if segment.synced < end:
                    try:
                        self._disk.sync(segment.descriptor.fd)
                    except OSError as error:
                        raise self._lost(f"could not be made durable: {error.strerror}") from None
                    segment.is_durable_to(end)
            if not are_named:
                self._sync_names()
            self.synced_sequence = sequence

    def shrinks(self, path: str) -> Sequence[Shrink]:
        """Return the live records of the array at *path* being made smaller: it was interrupted."""
        return [shrink for shrink in self.shrinks_below(path) if shrink.path == path]

    def shrinks_below(self, path: str) -> Sequence[Shrink]:
        """Return the live records of arrays at and below *path* being made smaller, or having been interrupted."""
        shrinks = [record for _, record in self._live.values() if isinstance(record, Shrink)]
        return [shrink for shrink in shrinks if is_below(shrink.path, path)]

    async def empty_soon(self) -> None:
        """Remove all segments if nothing is live in them; the caller does not hold `appending`.

        Then nothing is left in the source that other users cannot read. Raises the errors of `release`.
        """
        async with self.appending:
            if self._segments and not self._live and not self.failure:
                await trio.to_thread.run_sync(self._empty)

    def _empty(self) -> None:
        self._checkpoint()
        self._active = None
        self._remove_released()

    async def sync_soon(self) -> None:
        """Make durable what was appended so far; tasks that ask at the same time share one sync.

        Raises the errors of `sync`.
        """
        target = self.last_sequence
        if self.synced_sequence >= target:
            return
        async with self._syncing_soon:
            if self.synced_sequence < target:
                await trio.to_thread.run_sync(self.sync)

    async def release_soon(self, records: Iterable[Live]) -> None:
        """Call `release`, unless the files are gone; the caller does not hold `appending`."""
        if not self.has_vanished:
            async with self.appending:
                await trio.to_thread.run_sync(self.release, [*records])

    def close(self) -> None:
        """Close the journal: live records stay, durably; without any, no file stays.

        Raises the errors of `release`.
        """
        try:
            if not self.failure:
                self.sync()
                self._empty()
        finally:
            self._segments.clear()
            self._active = self._reserve = None
            self.failure = self.failure or f"the journal in {self.where} is closed"

    # Appending

    def _keep_reserve(self) -> None:
        """Take room on the disk for records without a payload, if there is much more."""
        if self._reserve is None and self.room() > 4 * _RESERVE_NBYTES:
            with contextlib.suppress(OSError):  # file systems may have no files without names, or no space after all
                fd = self._disk.reserve(_RESERVE_NBYTES, _STEP_NBYTES, self._directory.fd)
                self._reserve = Descriptor(fd)

    def _use_reserve(self) -> bool:
        """Free room on the disk for some records; returns whether there was any."""
        if self._reserve is None:
            return False
        nbytes = os.fstat(self._reserve.fd).st_size - _STEP_NBYTES
        try:
            self._disk.truncate(self._reserve.fd, nbytes)
        except OSError:  # then there is none to be had
            self._reserve = None
            return False
        if not nbytes:
            self._reserve = None
        return True

    def _write(self, segment: Segment, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            self._disk.pwrite(segment.descriptor.fd, buffers, offset)
        except OSError as error:
            raise self._explained(error) from None

    def _open_segment(self, nbytes: int | None) -> Segment:
        """Return the segment for the next *nbytes* bytes, a new one if need be; None takes the active one."""
        self.check()
        segment = self._active
        if segment is not None:
            self._look(segment, segment.end)
            if nbytes is None or not segment.end or segment.end + nbytes <= self._segment_nbytes:
                return segment
        self._number += 1
        name = new_name(self._number)
        try:
            fd = self._disk.create(name, os.O_RDWR | os.O_EXCL, 0o600, self._directory.fd)
        except FileNotFoundError:
            self.has_vanished = True
            raise self._lost("has vanished") from None
        except OSError as error:
            raise self._explained(error) from None
        segment = self._active = Segment(name, Descriptor(fd), 0)
        self._segments.append(segment)
        return segment

    # Releasing

    def _drop(self, record: Live) -> None:
        """Count the live record of the same subject, if there is one, as live no more."""
        live = self._live.pop(record.subject, None)
        if live is not None:
            segment, old = live
            segment.counts(-1)
            self.live_nbytes -= old.nbytes

    def _checkpoint(self) -> None:
        """Record what was released, if there is room for that."""
        if self._released:
            ranges = pack_ranges(sorted(self._released))
            with contextlib.suppress(NoSpaceError):
                self.append(Checkpoint(0), MemoryContent(memoryview(ranges)), may_rotate=False)
                self._released.clear()

    def _remove_released(self) -> None:
        """Remove segments, oldest first, up to the first that is needed."""
        if not self._oldest_is_released():
            return
        self.sync()  # releases are not taken back, if they can be recorded at all
        while self._oldest_is_released():
            segment = self._segments[0]
            if segment is self._active:
                self._active = None
            self._remove(segment)
            del self._segments[0]
        if not self._segments:
            self._released.clear()

    def _oldest_is_released(self) -> bool:
        """Whether the oldest segment can be removed; the active one stays until it or the disk is full."""
        if not self._segments or self._segments[0].nlive:
            return False
        segment = self._segments[0]
        return segment is not self._active or segment.end >= min(self._segment_nbytes, self.limit())

    def _remove(self, segment: Segment) -> None:
        """Remove a segment, durably; a damaged one is kept under another name."""
        directory = self._directory.fd
        segment.removing(is_removed=True)  # first, because `_look` runs in other threads
        try:
            if segment.is_damaged:
                self._disk.rename(segment.name, damaged_name(segment.name), directory, directory)
            else:
                self._disk.unlink(segment.name, directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            segment.removing(is_removed=False)
            raise self._explained(error) from None
        self._sync_names()

    # Failing

    def _look(self, segment: Segment, end: int) -> None:
        """Find out whether somebody else removed a segment, or cut it before *end*."""
        nlink, size = 0, 0
        try:
            status = os.fstat(segment.descriptor.fd)
            nlink, size = status.st_nlink, status.st_size
        except OSError as error:
            if error.errno != errno.ESTALE:  # what NFS says of a file that another host removed
                raise self._explained(error) from None
        if segment.is_removed or (nlink and size >= end):
            return
        self.has_vanished |= not nlink
        raise self._lost("was cut short by another program" if nlink else "has vanished")

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(self._directory.fd)
        except OSError as error:
            raise self._lost(f"could not be made durable: {error.strerror}") from None

    def _lost(self, reason: str) -> StoreError:
        """Accept nothing any more, for good; return the error to raise."""
        self.failure = f"the journal in {self.where} {reason}"
        log.error("the mount is read-only from now on: %s", self.failure)
        return StoreError(self.failure)

    def _explained(self, error: OSError) -> ShardfsError:
        if error.errno == errno.EFBIG:
            return FileLimitError(f"the journal in {self.where} may not grow: {error.strerror}; see `ulimit -f`")
        if error.errno in NO_SPACE:
            return NoSpaceError(f"no space for the journal in {self.where}: {error.strerror}")
        return translate(error, f"the journal in {self.where}")


def _read_exactly(content: Content, offset: int, nbytes: int) -> Buffer:
    """Read a piece of content to be published; raises `StoreError` if it ends early."""
    piece = content.read(offset, nbytes)
    if len(piece) != nbytes:
        raise StoreError(f"{content.nbytes} bytes were to be published, and ended before")
    return piece
