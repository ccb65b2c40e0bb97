"""The write-ahead log: where published changes are until they are in the store.

What was appended survives the end of the process; what was appended before a `sync` that returned survives a power
cut.  The log is also the buffer of what was written: payloads are read back from it.  `shardfs.dataset.wal.records`
says how its files are made.

A segment is retired when all its records are released and none is older than it: first that is durable, then it gives
up its name.  Each retirement is durable before the next, so that a power cut leaves the end of the history, never an
old record without the newer one that replaced it.  A segment that was found damaged is kept under another name.

So that one record that is live for long keeps no more than itself, the live records of the oldest segment can be
carried forward: written once more behind the newest one, durably before the old segment goes.  They keep their
sequences, which say in which order a chunk was changed; found in both places, they are one record.

One append, `release`, `carry_forward` or `close` at a time: the caller sees to that.  `sync` and reads of payloads may
run beside them, in other threads.  All methods block; only an append of few bytes is quick.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, overload

from shardfs.dataset.wal.reading import LogContents, Segment, live_records, read_log
from shardfs.dataset.wal.records import (
    HEADER_NBYTES,
    MAX_NAMED,
    RECORD_NBYTES,
    Change,
    Kind,
    Live,
    Payload,
    Put,
    Shrink,
    UndoRecord,
    damaged_name,
    meta_of_carried,
    new_name,
    pack_header,
    pack_ranges,
    pack_record,
)
from shardfs.errors import NoSpaceError, ReadOnlyError, ShardfsError, StoreError
from shardfs.stores.base import Buffer, Content, Descriptor
from shardfs.stores.local.syscalls import Syscalls, translate
from shardfs.stores.memory import MemoryContent

log = logging.getLogger(__name__)

_PIECE_NBYTES: Final = 2**20
_RESERVE_NBYTES: Final = 64 * 2**10  # of the disk: so much stays to note what is released
_MAX_SPARES: Final = 4
_SPARE: Final = ".spare"
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

R = TypeVar("R", bound=Live)


class _Spare(NamedTuple):
    """A segment that was retired, to be used again when nobody reads payloads by its descriptor of *before*."""

    name: str
    descriptor: Descriptor
    nbytes: int
    before: "weakref.ref[Descriptor]"


class WriteAheadLog:
    """The log in one directory, to write.

    *contents* is what `read_log` found there: its records are live here too.  A segment of more than *segment_nbytes*
    bytes is followed by another; *max_nbytes* is what callers should keep all of them below, by waiting until the log
    `has_room`.

    State, changed by one caller at a time under `_state`: the segments from the oldest on, of which the last one may be
    *active*, written to; what is released and not recorded as such yet (`_released`, and `_superseded` with what
    replaced it), emptied by each checkpoint; live records that were carried forward, with the sequences of those that
    carry them (`_carried`), as many as are live; retired segments (`_spares`), at most `_MAX_SPARES`.
    """

    def __init__(
        self,
        directory: Descriptor,
        disk: Syscalls,
        contents: LogContents | None = None,
        *,
        segment_nbytes: int = 64 * 2**20,
        max_nbytes: int = 2**30,
    ) -> None:
        contents = contents or read_log(directory)
        try:
            self._directory = Descriptor(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd))
            for name in os.listdir(directory.path):
                if name.endswith(_SPARE):  # of a process that was killed
                    disk.unlink(name, self._directory.fd)
        except OSError as error:
            raise translate(error, "the journal") from None
        self._disk = disk
        self._failed = ""
        self.has_vanished = False
        """Whether nothing is taken because somebody removed the files: only this process can read what is in them."""
        self._segment_nbytes = segment_nbytes
        self.max_nbytes = max_nbytes
        self._state = threading.Lock()  # held for moments only
        self._syncing = threading.Lock()
        self._segments = list(contents.segments)
        self._active: Segment | None = None
        self._spares: list[_Spare] = []
        self._number = contents.last_number
        self._created = len(self._segments)  # counts names, *_synced_names* those that are durable
        self._synced_names = 0
        self.last_sequence = contents.last_sequence
        """The latest number that an append took, be it one that failed."""
        self.synced_sequence = 0
        """All records up to this one are durable."""
        self._released: list[int] = []
        self._superseded: list[tuple[int, int]] = []
        self._carried = dict(contents.carried)

    @property
    def nbytes(self) -> int:
        """Size of all segments, as far as they are written to."""
        with self._state:
            return sum(segment.end for segment in self._segments)

    @property
    def live_nbytes(self) -> int:
        """Size of the records that are live."""
        with self._state:
            return sum(segment.live_nbytes for segment in self._segments)

    @property
    def live(self) -> int:
        """Number of records that are live."""
        with self._state:
            return sum(segment.live for segment in self._segments)

    @property
    def dead_nbytes(self) -> int:
        """How much of all segments is not needed, and there because an older record is."""
        return self.nbytes - self.live_nbytes

    @property
    def nsegments(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def is_full(self) -> bool:
        """Whether nothing should be appended before something is released."""
        return self.nbytes >= self.limit() and bool(self.live)

    @property
    def is_failed(self) -> bool:
        """Whether the log takes nothing any more."""
        return bool(self._failed)

    @property
    def where(self) -> str:
        """Where the directory is now: its source may have been renamed."""
        return os.readlink(self._directory.path).removesuffix(" (deleted)")

    def has_room(self, nbytes: int) -> bool:
        """Whether a payload of *nbytes* bytes may be appended now; an empty log takes any, and each takes none."""
        return self.nbytes + nbytes < (self.limit() if nbytes else self.max_nbytes) or not self.live

    def room(self) -> int:
        """Return how many bytes the disk has room for."""
        status = os.fstatvfs(self._directory.fd)
        return status.f_bavail * status.f_frsize

    def limit(self) -> int:
        """Return how large all segments may get; the disk must have as much room besides, for the shards."""
        with self._state:
            held = sum(max(segment.end, segment.nbytes) for segment in self._segments)
        return min(self.max_nbytes, (self.room() + held + sum(spare.nbytes for spare in self._spares)) // 2)

    def append(self, record: R, content: Content | Sequence[Buffer] = ()) -> R:
        """Append *record* with a payload of *content*; return it with the sequence and the payload that it got.

        Raises `NoSpaceError` and `StoreError` if that failed; the log is as it was then, and goes on.  Raises
        `ReadOnlyError` if the log takes nothing any more, `RefusedError` if a name is too long, and what reading
        *content* raises.
        """
        if isinstance(content, Sequence):
            content = MemoryContent(memoryview(b"".join(content)))
        record.sequence, payload = self._append(record.kind, record.meta(), content)
        if isinstance(record, Put | UndoRecord):
            record.payload = payload
        return record

    @overload
    def copy(self, change: Change) -> Change: ...
    @overload
    def copy(self, change: Shrink) -> Shrink: ...
    @overload
    def copy(self, change: Change | Shrink) -> Change | Shrink: ...
    def copy(self, change: Change | Shrink) -> Change | Shrink:
        """Append *change*, a record of this log or another one, once more; returns the new record."""
        content = change.payload if isinstance(change, Put) else ()
        return self.append(dataclasses.replace(change), content)

    def supersede(self, sequence: int, replacement: int) -> None:
        """Note that a record need not be remembered any more since *replacement*, a later one, is.

        Nothing is written before the next `release`, and not before *replacement* is durable or released: after a
        power cut that loses the replacement the record must still be there.
        """
        with self._state:
            carried = self._carried.pop(sequence, sequence)
            if any(segment.release([carried]) for segment in self._segments):
                self._superseded += [(each, replacement) for each in {sequence, carried}]

    def release(self, sequences: Iterable[int]) -> None:
        """Record that records are in the store durably, and retire the segments that are not needed then.

        A disk that is full is no reason to fail: they are recorded together with the next ones.  Raises `StoreError`
        if a segment cannot be removed, and as `sync` does.
        """
        self._check()
        found = []
        for sequence in sequences:
            found.append(sequence)
            if (carried := self._carried.pop(sequence, None)) is not None:  # it may still lie in its first place too
                found.append(carried)
                self._released.append(sequence)
        found.sort()
        with self._state:
            for segment in self._segments:
                self._released += segment.release(found)
        self._checkpoint()
        self._retire_released()
        if self._spares and self.room() < self.max_nbytes:
            self._drop_spares()

    def carry_forward(self, payloads: Mapping[int, Payload]) -> None:
        """Write the live records of the oldest segment behind the newest one, and retire their segment.

        *payloads*, by the sequences of their records, are read from there from then on; other references keep the disk
        from getting the room back.  Raises as `release` and `append` do, and `CorruptionError` if a record is not what
        it was; what was carried until then lies in the new place.
        """
        self._check()
        if not self._segments or self.room() < self._segments[0].live_nbytes + _RESERVE_NBYTES:
            return  # what room there is serves to note what is released
        oldest = self._segments[0]
        if oldest is self._active:
            self._active = None
        for head, record in live_records(oldest):
            payload = Payload(oldest.descriptor, head.end - head.payload_nbytes, head.payload_nbytes)
            meta = meta_of_carried(record.sequence, head.kind, head.meta)
            sequence, moved = self._append(Kind.CARRIED, meta, payload)
            with self._state:
                oldest.release([head.sequence])
                self._carried[record.sequence] = sequence
                if record.sequence in payloads:
                    payloads[record.sequence].move(moved)
        self._retire_released()

    def sync(self) -> None:
        """Make durable what was appended before this call.

        Raises `StoreError` if that failed, or if the files of the log have been removed.  Nothing is known then of any
        part of it, so the log takes nothing any more: `ReadOnlyError` for every later call.
        """
        with self._syncing:
            self._check()
            with self._state:
                ends = [(segment, segment.end) for segment in self._segments]
                sequence, created = self.last_sequence, self._created
            for segment, end in ends:
                self._look(segment, end)
            for segment, end in ends:
                if segment.synced < end:
                    try:
                        self._disk.sync(segment.descriptor.fd)
                    except OSError as error:
                        raise self._lost(f"could not be made durable: {error.strerror}") from None
                    segment.synced = end
            if created > self._synced_names:
                self._sync_names()
                self._synced_names = created
            self.synced_sequence = sequence

    def close(self) -> None:
        """Let go of the log: what is live stays, durably; if nothing is, no file stays.  Raises as `release`."""
        try:
            if not self._failed:
                self.sync()
                self._checkpoint()
                self._active = None
                self._retire_released()
                self._drop_spares()
        finally:
            with self._state:
                self._segments.clear()
            self._active = None
            self._failed = self._failed or f"the journal in {self.where} is closed"

    # Appending

    def _append(self, kind: Kind, meta: bytes, content: Content, *, may_rotate: bool = True) -> tuple[int, Payload]:
        """Append a record; return the sequence and the payload that it got."""
        nbytes, found = content.nbytes, 0
        whole_nbytes = RECORD_NBYTES + len(meta) + nbytes
        segment = self._open_segment(whole_nbytes if may_rotate else None)
        (salt, end_mark, checksum), sequence = segment.marks, self.last_sequence + 1
        payload = Payload(segment.descriptor, segment.end + RECORD_NBYTES + len(meta), nbytes)
        try:
            piece: Buffer = b""
            for start in range(0, nbytes, _PIECE_NBYTES):
                piece = _read_exactly(content, start, min(_PIECE_NBYTES, nbytes - start))
                found = checksum(piece, found)
                if nbytes > _PIECE_NBYTES:
                    is_last = start + len(piece) == nbytes
                    self._write(segment, [piece, end_mark] if is_last else [piece], payload.offset + start)
            head = pack_record(salt, sequence, kind, meta, nbytes, found)
            # Without its first bytes, which come last if they come apart, a record is none.
            self._write(segment, [head] if nbytes > _PIECE_NBYTES else [head, piece, end_mark], segment.end)
        except BaseException:
            self.last_sequence = sequence  # which may have been written, and is not used again
            # If that fails, the next record goes over it, and readers find the rest behind its end mark.
            with contextlib.suppress(OSError):
                self._disk.truncate(segment.descriptor.fd, segment.end)
                segment.nbytes = segment.end
            raise
        with self._state:
            if kind is not Kind.CHECKPOINT:
                segment.add(sequence, whole_nbytes)
            segment.end += whole_nbytes
            self.last_sequence = sequence
        return sequence, payload

    def _write(self, segment: Segment, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            self._disk.pwrite(segment.descriptor.fd, buffers, offset)
        except OSError as error:
            raise self._explained(error) from None

    def _open_segment(self, nbytes: int | None) -> Segment:
        """Return the segment that the next *nbytes* bytes go to, which may be a new one unless *nbytes* is None."""
        self._check()
        segment = self._active
        if segment is not None:
            self._look(segment, segment.end)
            is_empty = segment.end == HEADER_NBYTES
            if nbytes is None or is_empty or segment.end + nbytes <= self._segment_nbytes:
                return segment
        self._number += 1
        segment = self._reuse(new_name(self._number, is_used_again=True)) or self._create(new_name(self._number))
        with self._state:
            self._segments.append(segment)
            self._created += 1
        self._active = segment
        return segment

    def _reuse(self, name: str) -> Segment | None:
        """Give a retired segment a new name, if there is one: its pages are in memory already."""
        for spare in list(self._spares):
            if spare.before() is None:
                self._spares.remove(spare)
                with contextlib.suppress(OSError):
                    self._disk.rename(spare.name, name, self._directory.fd, self._directory.fd)
                    return Segment(name, spare.descriptor, HEADER_NBYTES, spare.nbytes, is_ours=True)
        return None

    def _create(self, name: str) -> Segment:
        try:
            fd = self._disk.create(name, os.O_RDWR | os.O_EXCL, 0o600, self._directory.fd)
        except FileNotFoundError:
            self.has_vanished = True
            raise self._lost("has vanished") from None
        except OSError as error:
            raise self._explained(error) from None
        segment = Segment(name, Descriptor(fd), HEADER_NBYTES, is_ours=True)
        try:
            self._disk.pwrite(fd, [pack_header()], 0)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.unlink(name, self._directory.fd)
            raise self._explained(error) from None
        return segment

    # Releasing

    def _checkpoint(self) -> None:
        """Record what is released, if there is room for that."""
        released = set(self._released)
        waiting = []
        for sequence, replacement in reversed(self._superseded):
            if replacement <= self.synced_sequence or replacement in released:
                released.add(sequence)
            else:
                waiting.append((sequence, replacement))
        sequences = sorted(released)
        with contextlib.suppress(NoSpaceError):
            for start in range(0, len(sequences), MAX_NAMED):
                ranges = b"".join(pack_ranges(sequences[start : start + MAX_NAMED]))
                self._append(Kind.CHECKPOINT, b"", MemoryContent(memoryview(ranges)), may_rotate=False)
            self._released.clear()
            self._superseded = waiting[::-1]

    def _retire_released(self) -> None:
        """Retire segments from the oldest on, up to the first that is needed."""
        if not self._oldest_is_released():
            return
        self.sync()  # what is released stays so, if it can be recorded at all
        while self._oldest_is_released():
            segment = self._segments[0]
            if segment is self._active:
                self._active = None
            self._retire(segment)
            with self._state:
                del self._segments[0]
        if not self._segments:
            self._released.clear()
            self._superseded.clear()

    def _oldest_is_released(self) -> bool:
        """Whether the oldest segment can go; the one that is written stays until it, or the disk, is full."""
        if not self._segments or self._segments[0].live:
            return False
        segment = self._segments[0]
        return segment is not self._active or segment.end >= min(self._segment_nbytes, self.limit())

    def _retire(self, segment: Segment) -> None:
        """Take the name of a segment, durably; keep the file to be used again, if the disk has room for that."""
        directory = self._directory.fd
        segment.is_removed = True  # first: `_look` runs in other threads
        try:
            if segment.is_damaged:
                self._disk.rename(segment.name, damaged_name(segment.name), directory, directory)
            elif segment.is_ours and self._has_use_for(segment):
                name = segment.name.partition(".")[0] + _SPARE
                self._disk.rename(segment.name, name, directory, directory)
                again = Descriptor(os.dup(segment.descriptor.fd))
                held = max(segment.nbytes, segment.end)
                self._spares.append(_Spare(name, again, held, weakref.ref(segment.descriptor)))
            else:
                self._disk.unlink(segment.name, directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            segment.is_removed = False
            raise self._explained(error) from None
        self._sync_names()

    def _has_use_for(self, segment: Segment) -> bool:
        """Whether to use a segment again: one of the usual size, while all files take half of the room at most."""
        held = max(segment.nbytes, segment.end)
        if len(self._spares) >= _MAX_SPARES or not self._segment_nbytes // 2 <= held <= self._segment_nbytes:
            return False
        spares = sum(spare.nbytes for spare in self._spares)
        return self.nbytes + spares + held <= self.max_nbytes // 2 and self.room() > self.max_nbytes

    def _drop_spares(self) -> None:
        while self._spares:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._spares.pop().name, self._directory.fd)

    # Failing

    def _check(self) -> None:
        """Raise `ReadOnlyError` if nothing is taken any more."""
        if self._failed:
            raise ReadOnlyError(f"{self._failed}; nothing can be published any more")

    def _look(self, segment: Segment, end: int) -> None:
        """Notice that somebody else removed a segment, or cut it before *end*."""
        status = os.fstat(segment.descriptor.fd)
        if segment.is_removed or (status.st_nlink and status.st_size >= end):
            return
        self.has_vanished |= not status.st_nlink
        raise self._lost("was cut short by another program" if status.st_nlink else "has vanished")

    def _sync_names(self) -> None:
        try:
            self._disk.sync_directory(self._directory.fd)
        except OSError as error:
            raise self._lost(f"could not be made durable: {error.strerror}") from None

    def _lost(self, reason: str) -> StoreError:
        """Take nothing any more, for good; return the error to raise."""
        self._failed = f"the journal in {self.where} {reason}"
        log.error("the mount is read-only from now on: %s", self._failed)
        return StoreError(self._failed)

    def _explained(self, error: OSError) -> ShardfsError:
        if error.errno in _NO_SPACE:
            self._drop_spares()
            return NoSpaceError(f"no room for the journal in {self.where}: {error.strerror}")
        return translate(error, f"the journal in {self.where}")


def _read_exactly(content: Content, offset: int, nbytes: int) -> Buffer:
    """Read a piece of what is to be published; raises `StoreError` if it ends before."""
    piece = content.read(offset, nbytes)
    if len(piece) != nbytes:
        raise StoreError(f"{content.nbytes} bytes were to be published, and ended before")
    return piece
