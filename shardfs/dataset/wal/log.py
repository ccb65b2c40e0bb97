"""The journal: where published changes are until they are in the store.

What was appended survives the end of the process; what was appended before a `sync` that returned survives a power
cut.  The journal is also the buffer of what was written: payloads are read back from it.  Its files are described in
`shardfs.dataset.wal.segments`.

A segment is removed when all its records are done and none is older than it.  Each removal is made durable before the
next, so that what is left after a power cut is the end of the history, never an old record without the newer one that
replaced it.  A segment that was found damaged is renamed instead, to `00000001.damaged`.

So that one record that is not done for long keeps no more than itself, the live records of the oldest segment can be
carried forward: written once more behind the newest one, durably before the old segment goes.  They keep their
sequences, which say in which order a chunk was changed; found in both places, they are one record.

One append, `finish` or `close` at a time: the caller sees to that.  `sync` and reads of payloads may run beside them,
in other threads.  All methods block; only an append of few bytes is quick.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from shardfs.dataset.wal.log_state import LogState
from shardfs.dataset.wal.payload import Payload, flat, read_exactly
from shardfs.dataset.wal.reading import Damage, LogContents, live_records, read_log
from shardfs.dataset.wal.records import (
    MAX_NAMED,
    RANGE_NBYTES,
    Erase,
    Kind,
    Put,
    Shrink,
    UndoRecord,
    meta_of_carried,
    meta_of_put,
    meta_of_undo,
    pack_ranges,
)
from shardfs.dataset.wal.segments import HEADER_NBYTES, RECORD_NBYTES, Segment, checksum, pack_record
from shardfs.errors import NoSpaceError
from shardfs.stores.base import Buffer, Content

__all__ = [
    "Damage",
    "Erase",
    "LogContents",
    "Payload",
    "Put",
    "Shrink",
    "UndoRecord",
    "WriteAheadLog",
    "read_log",
]

_PIECE_NBYTES: Final = 2**20
_SPARE_NBYTES: Final = 64 * 2**10

_Small = TypeVar("_Small", bound=Erase | Shrink)


class _Draft(NamedTuple):
    """A record that has no place yet."""

    kind: Kind
    meta: bytes
    payload: Sequence[Buffer] = ()

    @property
    def payload_nbytes(self) -> int:
        return sum(len(buffer) for buffer in self.payload)


class _Placed(NamedTuple):
    """What a record got by being appended."""

    sequence: int
    payload: Payload


class _Carried(NamedTuple):
    """A live record of the oldest segment, where it lies there, and as it is written once more."""

    found_at: int
    sequence: int
    meta: bytes
    payload: Payload


class WriteAheadLog(LogState):
    """The journal in one directory, to write.

    *contents* is what `read_log` found there: its records are live here too.  A segment of more than
    *segment_nbytes* bytes is followed by another; *max_nbytes* is what callers should keep all of them below, by
    waiting until the journal `has_room`.
    """

    def append_put(
        self,
        *,
        path: str,
        coords: tuple[int, ...],
        fingerprint: bytes,
        superseded: tuple[int, int] | None,
        mtime_ns: int,
        mode: int,
        uid: int,
        gid: int,
        content: Buffer | Content,
    ) -> Put:
        """Append the new bytes of an inner chunk; raises as `append` does, and what reading *content* raises."""
        meta = meta_of_put(path, coords, fingerprint, superseded, mtime_ns, mode, uid, gid)
        if isinstance(content, bytes | bytearray | memoryview):
            placed = self._append([_Draft(Kind.PUT, meta, [flat(content)])])[0]
        elif content.nbytes <= _PIECE_NBYTES:
            placed = self._append([_Draft(Kind.PUT, meta, [read_exactly(content, 0, content.nbytes)])])[0]
        else:
            placed = self._append_in_pieces(_Draft(Kind.PUT, meta), content)
        return Put(placed.sequence, path, coords, fingerprint, superseded, mtime_ns, mode, uid, gid, placed.payload)

    def append_undo(
        self,
        *,
        path: str,
        shard: tuple[int, ...],
        key: str,
        identity: tuple[int, int] | None,
        old_nbytes: int,
        planned_nbytes: int,
        index_offset_old: int,
        is_replacement: bool,
        temporary: str,
        old_index: bytes,
        planned_index: bytes,
        records: Iterable[int],
    ) -> UndoRecord:
        """Append that a shard gets its next version, which holds *records*; raises as `append` does.

        An intent is live until it is done, like any other record.
        """
        ranges = pack_ranges(sorted(records))
        fields = (path, shard, key, identity, old_nbytes, planned_nbytes, index_offset_old, is_replacement, temporary)
        meta = meta_of_undo(*fields, len(ranges) // RANGE_NBYTES, len(old_index))
        placed = self._append([_Draft(Kind.UNDO, meta, [ranges, old_index, planned_index])])[0]
        return UndoRecord(placed.sequence, *fields, len(ranges) // RANGE_NBYTES, len(old_index), placed.payload)

    def append(self, record: _Small) -> _Small:
        """Append *record* and return it with its sequence, whatever the one that it has.

        Raises `NoSpaceError` and `StoreError` if that failed; the journal is as it was then, and goes on.  Raises
        `ReadOnlyError` if the journal takes nothing any more.
        """
        return self.append_all([record])[0]

    def append_all(self, records: Sequence[_Small]) -> list[_Small]:
        """Append several records in one write; raises as `append` does."""
        placed = self._append([_Draft(record.kind, record.meta()) for record in records])
        return [replace(record, sequence=place.sequence) for record, place in zip(records, placed, strict=True)]

    def forget(self, sequence: int, replacement: int) -> None:
        """Note that a record need not be remembered any more since *replacement*, a later one, is.

        Nothing is written before the next `finish`, and not before *replacement* is durable or done: after a power
        cut that loses the replacement the record must still be there.
        """
        with self._state:
            carried = self._carried.pop(sequence, sequence)
            if any(segment.finish([carried]) for segment in self._segments):
                self._replaced += [(each, replacement) for each in {sequence, carried}]

    def finish(self, sequences: Iterable[int]) -> None:
        """Record that records are in the store durably, and remove the segments that are not needed then.

        A disk that is full is no reason to fail: they are recorded together with the next ones.  Raises `StoreError`
        if a segment cannot be removed, and as `sync` does.
        """
        self._files.check()
        ordered = self._found_at(sequences)
        with self._state:
            for segment in self._segments:
                self._finished += segment.finish(ordered)
        self._record_finished()
        self._remove_finished()

    def carry_forward(self, payloads: Mapping[int, Payload]) -> None:
        """Write the live records of the oldest segment behind the newest one, and remove their segment.

        *payloads*, by the sequences of their records, are read from there from then on; other references keep the disk
        from getting the room back.  Raises as `finish` and `append` do, and `CorruptionError` if a record is not what
        it was; what was carried until then lies in the new place.
        """
        self._files.check()
        if not self._segments or self.room() < self._segments[0].live_nbytes + _SPARE_NBYTES:
            return  # what room there is serves to note what is done
        oldest = self._segments[0]
        if oldest is self._active:
            self._active = None
        some: list[_Carried] = []
        nbytes = 0
        for head, record in live_records(oldest):
            payload = Payload(oldest.descriptor, head.end - head.payload_nbytes, head.payload_nbytes)
            meta = meta_of_carried(record.sequence, head.kind, head.meta)
            carried = _Carried(head.sequence, record.sequence, meta, payload)
            if payload.nbytes > _PIECE_NBYTES:
                placed = [self._append_in_pieces(_Draft(Kind.CARRIED, meta), payload)]
                self._note_carried(oldest, [carried], placed, payloads)
                continue
            some.append(carried)
            nbytes += RECORD_NBYTES + len(meta) + payload.nbytes
            if nbytes > _PIECE_NBYTES:
                self._carry(oldest, some, payloads)
                some, nbytes = [], 0
        self._carry(oldest, some, payloads)
        self._remove_finished()

    def _carry(self, oldest: Segment, some: Sequence["_Carried"], payloads: Mapping[int, Payload]) -> None:
        if some:
            drafts = [_Draft(Kind.CARRIED, each.meta, [each.payload.read(0, each.payload.nbytes)]) for each in some]
            self._note_carried(oldest, some, self._append(drafts), payloads)

    def _note_carried(
        self, oldest: Segment, some: Sequence["_Carried"], placed: Sequence[_Placed], payloads: Mapping[int, Payload]
    ) -> None:
        with self._state:
            oldest.finish([each.found_at for each in some])
            for each, place in zip(some, placed, strict=True):
                self._carried[each.sequence] = place.sequence
                if each.sequence in payloads:
                    payloads[each.sequence].move(place.payload)

    def _found_at(self, sequences: Iterable[int]) -> list[int]:
        """Return the sequences under which records lie that are done now, in ascending order.

        Those that were carried forward may still lie where they were, too, until that is removed.
        """
        found = []
        for sequence in sequences:
            found.append(sequence)
            if (carried := self._carried.pop(sequence, None)) is not None:
                found.append(carried)
                self._finished.append(sequence)
        return sorted(found)

    def sync(self) -> None:
        """Make durable what was appended before this call.

        Raises `StoreError` if that failed, or if the files of the journal have been removed.  Nothing is known then
        of any part of it, so the journal takes nothing any more: `ReadOnlyError` for every later call.
        """
        with self._syncing:
            self._files.check()
            with self._state:
                ends = [(segment, segment.end) for segment in self._segments]
                sequence, created = self._sequence, self._created
            for segment, end in ends:
                self._files.look(segment, end)
            for segment, end in ends:
                if segment.synced < end:
                    self._files.sync(segment)
                    segment.synced = end
            if created > self._synced_names:
                self._files.sync_names()
                self._synced_names = created
            self._synced_sequence = sequence

    def close(self) -> None:
        """Let go of the journal: what is live stays, durably; if nothing is, no segment stays.  Raises as `finish`."""
        try:
            if not self._files.failed:
                self.sync()
                self._record_finished()
                self._active = None
                self._remove_finished()
        finally:
            with self._state:
                self._segments.clear()
            self._active = None
            if not self._files.failed:
                self._files.fail("is closed")

    def _append(self, drafts: Sequence[_Draft], *, may_rotate: bool = True) -> list[_Placed]:
        nbytes = sum(RECORD_NBYTES + len(draft.meta) + draft.payload_nbytes for draft in drafts)
        segment = self._open_segment(nbytes if may_rotate else None)
        buffers: list[Buffer] = []
        placed = []
        sequence, at = self._sequence, segment.end
        for draft in drafts:
            sequence += 1
            found = 0
            for buffer in draft.payload:
                found = checksum(buffer, found)
            head = pack_record(segment.salt, sequence, draft.kind, draft.meta, draft.payload_nbytes, found)
            payload = Payload(segment.descriptor, at + len(head), draft.payload_nbytes)
            placed.append(_Placed(sequence, payload))
            buffers += (head, *draft.payload)
            at = payload.offset + payload.nbytes
        try:
            self._files.write(segment, buffers, segment.end)
        except BaseException:
            self._sequence = sequence  # numbers of what may have been written are not used again
            self._files.undo(segment)
            raise
        self._take(segment, drafts, placed)
        return placed

    def _append_in_pieces(self, draft: _Draft, content: Content) -> _Placed:
        """Append a record with the payload *content*; without its first bytes, which come last, it is none."""
        nbytes, found = content.nbytes, 0
        segment = self._open_segment(RECORD_NBYTES + len(draft.meta) + nbytes)
        offset = segment.end + RECORD_NBYTES + len(draft.meta)
        sequence = self._sequence + 1
        try:
            for start in range(0, nbytes, _PIECE_NBYTES):
                piece = read_exactly(content, start, min(_PIECE_NBYTES, nbytes - start))
                found = checksum(piece, found)
                self._files.write(segment, [piece], offset + start)
            head = pack_record(segment.salt, sequence, draft.kind, draft.meta, nbytes, found)
            self._files.write(segment, [head], segment.end)
        except BaseException:
            self._sequence = sequence
            self._files.undo(segment)
            raise
        placed = _Placed(sequence, Payload(segment.descriptor, offset, nbytes))
        self._take(segment, [draft], [placed])
        return placed

    def _take(self, segment: Segment, drafts: Sequence[_Draft], placed: Sequence[_Placed]) -> None:
        """Count records that were written."""
        with self._state:
            for draft, place in zip(drafts, placed, strict=True):
                end = place.payload.offset + place.payload.nbytes
                if draft.kind is not Kind.CHECKPOINT:
                    segment.add(place.sequence, end - segment.end)
                segment.end = end
                self._sequence = place.sequence

    def _open_segment(self, nbytes: int | None) -> Segment:
        """Return the segment that the next *nbytes* bytes go to, which may be a new one unless *nbytes* is None."""
        self._files.check()
        segment = self._active
        if segment is not None:
            self._files.look(segment, segment.end)
            is_empty = segment.end == HEADER_NBYTES
            if nbytes is None or is_empty or segment.end + nbytes <= self._segment_nbytes:
                return segment
        self._number += 1
        segment = self._files.create(self._number)
        with self._state:
            self._segments.append(segment)
            self._created += 1
        self._active = segment
        return segment

    def _record_finished(self) -> None:
        finished = set(self._finished)
        waiting = []
        for sequence, replacement in reversed(self._replaced):
            if replacement <= self._synced_sequence or replacement in finished:
                finished.add(sequence)
            else:
                waiting.append((sequence, replacement))
        sequences = sorted(finished)
        parts = [sequences[start : start + MAX_NAMED] for start in range(0, len(sequences), MAX_NAMED)]
        with contextlib.suppress(NoSpaceError):
            if parts:
                self._append([_Draft(Kind.CHECKPOINT, b"", [pack_ranges(part)]) for part in parts], may_rotate=False)
            self._finished.clear()
            self._replaced = waiting[::-1]

    def _remove_finished(self) -> None:
        """Remove segments from the oldest on, up to the first that is needed."""
        if not self._is_finished():
            return
        self.sync()  # what is done stays done, if it can be recorded at all
        while self._is_finished():
            segment = self._segments[0]
            if segment is self._active:
                self._active = None
            self._files.remove(segment)
            with self._state:
                del self._segments[0]
        if not self._segments:
            self._finished.clear()
            self._replaced.clear()

    def _is_finished(self) -> bool:
        """Whether the oldest segment can go; the one that is written stays until it, or the disk, is full."""
        if not self._segments or self._segments[0].live:
            return False
        segment = self._segments[0]
        return segment is not self._active or segment.end >= min(self._segment_nbytes, self.limit())
