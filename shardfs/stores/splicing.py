"""How a new version of a local file is made from a `Splice`: in place where it can be, else written anew.

All of it blocks, and is bounded in memory by a batch and by the tail or head of the object.  Errors of the operating
system leave as they come; a failed change in place is taken back first.
"""

import enum
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from shardfs.errors import ConflictError, StoreError
from shardfs.stores.base import Buffer, Content, Kept, Splice
from shardfs.stores.durable import Disk

BATCH_NBYTES: Final = 8 * 2**20
"""What is written in one call at most, but for a head or a tail; also the largest append that is one call."""

_READ_NBYTES: Final = 2**20

Piece = Kept | Content


class Form(enum.Enum):
    """What becomes of the old file."""

    APPENDED = enum.auto()
    """It grows."""
    HEADED = enum.auto()
    """It may grow, and its first piece is replaced by one of the same length."""
    CUT = enum.auto()
    """It is shortened."""
    WRITTEN_NEW = enum.auto()
    """Another file takes its place."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A splice, sorted out: *pieces* are those that are not empty."""

    form: Form
    pieces: tuple[Piece, ...]
    tail_nbytes: int

    @property
    def nbytes(self) -> int:
        """Size of the new version."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def overwritten(self) -> int:
        """How many bytes at the beginning of the old file are overwritten."""
        return self.pieces[0].nbytes if self.form is Form.HEADED else 0


def arrange(splice: Splice, old_nbytes: int) -> Arranged:
    """Find out how *splice* of an object of *old_nbytes* bytes is made; `ValueError` if it keeps what is not there."""
    pieces = tuple(piece for piece in splice.pieces if piece.nbytes)
    kept = {place: piece for place, piece in enumerate(pieces) if isinstance(piece, Kept)}
    if any(piece.offset < 0 or piece.nbytes < 0 or piece.offset + piece.nbytes > old_nbytes for piece in kept.values()):
        raise ValueError(f"a splice keeps more than the {old_nbytes} bytes that there are")
    form = Form.WRITTEN_NEW
    if kept == {0: Kept(0, old_nbytes)}:
        form = Form.APPENDED
    elif len(pieces) > 1 and kept == {1: Kept(pieces[0].nbytes, old_nbytes - pieces[0].nbytes)}:
        form = Form.HEADED
    elif len(pieces) == 1 and kept == {0: Kept(0, pieces[0].nbytes)}:
        form = Form.CUT
    return Arranged(form, pieces, splice.tail_nbytes)


def change_in_place(disk: Disk, fd: int, old_nbytes: int, change: Arranged) -> int:
    """Make *change* of the open file, which has *old_nbytes* bytes, durably; return how many bytes that wrote."""
    written = change.nbytes - old_nbytes
    match change.form:
        case Form.APPENDED:
            if len(change.pieces) > 1:
                with _taken_back_on_failure(disk, fd, old_nbytes):
                    written += _append(disk, fd, old_nbytes, change)
        case Form.HEADED:
            _replace_head(disk, fd, old_nbytes, change)
            written += change.overwritten
        case Form.CUT:
            disk.truncate(fd, change.pieces[0].nbytes)
            disk.sync(fd)
            written = 0
        case Form.WRITTEN_NEW:
            raise ValueError("the change is not one in place")
    return written


def batches(pieces: Sequence[Piece], fd: int, start: int, stop: int) -> Iterator[list[memoryview]]:
    """Return the bytes from *start* to before *stop* of the new version, a bounded number at a time.

    Kept ranges are read from *fd*, which is not looked at if there are none; `ConflictError` if it ends too early.
    """
    batch: list[memoryview] = []
    nbytes = 0
    for view in _views(pieces, fd, start, stop):
        if nbytes + view.nbytes > BATCH_NBYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(view)
        nbytes += view.nbytes
    if batch:
        yield batch


def _append(disk: Disk, fd: int, start: int, change: Arranged) -> int:
    """Append what is new; return how many bytes that wrote besides."""
    copied = 0
    stop = change.nbytes
    tail = stop - change.tail_nbytes
    if stop - start <= BATCH_NBYTES:
        disk.pwrite(fd, [_gathered(change.pieces, fd, start, stop)], start)
    elif change.tail_nbytes > start or tail < start or not change.tail_nbytes:
        _write(disk, fd, change.pieces, start, stop)
    else:
        # Whoever opens the file meanwhile finds the old tail at its end, before and after the hole is filled.
        disk.pwrite(fd, [_read(fd, start - change.tail_nbytes, change.tail_nbytes)], tail)
        copied = change.tail_nbytes
        _write(disk, fd, change.pieces, start, tail)
        disk.sync(fd)  # else a power cut may leave the new tail without what it speaks of
        disk.pwrite(fd, [_gathered(change.pieces, fd, tail, stop)], tail)
    disk.sync(fd)
    return copied


def _replace_head(disk: Disk, fd: int, old_nbytes: int, change: Arranged) -> None:
    before = os.fstat(fd)
    head_nbytes = change.pieces[0].nbytes
    stop = change.nbytes
    old_head = _read(fd, 0, head_nbytes)
    new_head = _gathered(change.pieces, fd, 0, head_nbytes)
    with _taken_back_on_failure(disk, fd, old_nbytes):
        if stop > old_nbytes:
            _write(disk, fd, change.pieces, old_nbytes, stop)
            disk.sync(fd)
        with _taken_back_on_failure(disk, fd, old_nbytes, old_head):
            disk.pwrite(fd, [new_head], 0)
            after = os.fstat(fd)
            if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                # The clock of the file system is coarser than the time since the last change.
                disk.utime(fd, after.st_atime_ns, after.st_mtime_ns + 1)
            disk.sync(fd)


@contextmanager
def _taken_back_on_failure(disk: Disk, fd: int, nbytes: int, head: bytes = b"") -> Iterator[None]:
    """Give the file its old size and *head* again if the block fails."""
    try:
        yield
    except Exception as error:
        try:
            if head:
                disk.pwrite(fd, [head], 0)
            if os.fstat(fd).st_size != nbytes:
                disk.truncate(fd, nbytes)
        except OSError as second:
            raise StoreError(f"{error}; what was written cannot be taken back: {second.strerror}") from error
        raise


def _write(disk: Disk, fd: int, pieces: Sequence[Piece], start: int, stop: int) -> None:
    for batch in batches(pieces, fd, start, stop):
        disk.pwrite(fd, batch, start)
        start += sum(view.nbytes for view in batch)


def _gathered(pieces: Sequence[Piece], fd: int, start: int, stop: int) -> bytearray:
    """Return bytes of the new version as one buffer, which the kernel takes in one call however many pieces it has."""
    buffer = bytearray(stop - start)
    position = 0
    for view in _views(pieces, fd, start, stop):
        buffer[position : position + view.nbytes] = view
        position += view.nbytes
    return buffer


def _views(pieces: Sequence[Piece], fd: int, start: int, stop: int) -> Iterator[memoryview]:
    position = 0
    for piece in pieces:
        first, last = max(start - position, 0), min(stop - position, piece.nbytes)
        read = _reader(piece, fd)
        for offset in range(first, last, _READ_NBYTES):
            nbytes = min(_READ_NBYTES, last - offset)
            view = memoryview(read(offset, nbytes)).cast("B")
            if view.nbytes != nbytes:
                raise StoreError(f"{nbytes} bytes that were to be stored came as {view.nbytes}")
            yield view
        position += piece.nbytes


def _reader(piece: Piece, fd: int) -> Callable[[int, int], Buffer]:
    if not isinstance(piece, Kept):
        return piece.read
    return lambda offset, nbytes: _read(fd, piece.offset + offset, nbytes)


def _read(fd: int, offset: int, nbytes: int) -> bytes:
    parts: list[bytes] = []
    while nbytes:
        part = os.pread(fd, nbytes, offset)
        if not part:
            raise ConflictError("the old version was shortened meanwhile")
        parts.append(part)
        offset += len(part)
        nbytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
