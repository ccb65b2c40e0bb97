"""Changes of local files: a new version is made from a `Splice` in place where it can be, else written anew.

Memory is bounded by a batch and by the tail or head of the object.  A failed change in place is taken back.
"""

import enum
import errno
import mmap
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from shardfs.errors import ConflictError, NotFoundError, StoreError
from shardfs.stores.base import APPEND_NBYTES, Buffer, Content, Descriptor, Kept, Splice, Stat, join_key
from shardfs.stores.local.atomic_write import NoCloneError, Rights, rename_to_absent, temporary_name, write_aside
from shardfs.stores.local.file_lock import FileLock, lock
from shardfs.stores.local.openat import READ, WALK, open_beneath
from shardfs.stores.local.snapshot import LocalSnapshot, to_stat
from shardfs.stores.local.syscalls import BLOCK, Syscalls, translate_of_change

_DIRECTORY: Final = READ | os.O_DIRECTORY
_NO_FILE: Final = -1


BATCH_NBYTES: Final = 8 * 2**20
"""What is written in one call at most, but for a head or a tail."""

_STEP_NBYTES: Final = APPEND_NBYTES + BLOCK
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
    copies = [piece for place, piece in kept.items() if place]
    if kept.get(0) == Kept(0, old_nbytes) and all(piece == _tail(splice.tail_nbytes, old_nbytes) for piece in copies):
        form = Form.APPENDED
    elif len(pieces) > 1 and kept == {1: Kept(pieces[0].nbytes, old_nbytes - pieces[0].nbytes)}:
        form = Form.HEADED
    elif len(pieces) == 1 and kept == {0: Kept(0, pieces[0].nbytes)}:
        form = Form.CUT
    return Arranged(form, pieces, splice.tail_nbytes)


def change_in_place(disk: Syscalls, fd: int, old_nbytes: int, change: Arranged, *, at_once: bool) -> int:
    """Make *change* of the open file, which has *old_nbytes* bytes, durably; return how many bytes that wrote.

    *at_once*: a direct write beyond the end of the file is seen as a whole or not at all.
    """
    written = change.nbytes - old_nbytes
    match change.form:
        case Form.APPENDED:
            if len(change.pieces) > 1:
                before = os.fstat(fd)
                with _taken_back_on_failure(disk, fd, old_nbytes):
                    ends = _ends(change, old_nbytes) if at_once else ()
                    if not ends or not _append_at_once(disk, fd, old_nbytes, change, ends):
                        written += _append(disk, fd, old_nbytes, change)
                    _move_time(disk, fd, before)
                    disk.sync(fd)
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


def _tail(nbytes: int, old_nbytes: int) -> Kept:
    return Kept(old_nbytes - nbytes, nbytes)


def _ends(change: Arranged, old_nbytes: int) -> tuple[int, ...]:
    """Return the sizes that the file has after each step of an append; none if it cannot be made by direct writes."""
    ends: list[int] = []
    position = begin = old_nbytes
    for piece in change.pieces[1:]:
        position += piece.nbytes
        if piece == _tail(change.tail_nbytes, old_nbytes) or position == change.nbytes:
            ends.append(position)
            if position == change.nbytes and position - begin - change.tail_nbytes >= _STEP_NBYTES:
                return ()
            begin = position
    return tuple(ends) if change.tail_nbytes and not any(end % BLOCK for end in ends) else ()


def _append_at_once(disk: Syscalls, fd: int, start: int, change: Arranged, ends: Sequence[int]) -> bool:
    """Append by direct writes, after each of which the file ends with a whole tail; return False if that cannot be."""
    for end in ends:
        # What is too much goes into a hole before the tail, once that is there.
        hole = end - start - change.tail_nbytes
        if hole < _STEP_NBYTES:
            hole = 0
        begin = start + hole
        first = begin // BLOCK * BLOCK
        buffer = mmap.mmap(-1, end - first)  # it begins at a page
        buffer[: begin - first] = bytes(begin - first) if hole else _read(fd, first, begin - first)
        _gather(change.pieces, fd, begin, end, memoryview(buffer)[begin - first :])
        try:
            disk.pwrite_direct(fd, buffer, first)
        except OSError as error:
            if error.errno != errno.EINVAL or end != ends[0]:
                raise
            return False
        if hole:
            _write(disk, fd, change.pieces, start, begin)
            disk.sync(fd)  # else a power cut may leave the last tail without what it speaks of
        start = end
    return True


def _append(disk: Syscalls, fd: int, start: int, change: Arranged) -> int:
    """Append by ordinary writes, which show sizes between the old one and the new; return how many bytes more it wrote.

    Whoever opens the file meanwhile finds the old tail at its end, but while one is written.
    """
    stop = change.nbytes
    tail = stop - change.tail_nbytes
    if change.tail_nbytes > start or tail < start or not change.tail_nbytes:
        _write(disk, fd, change.pieces, start, stop)
        return 0
    disk.pwrite(fd, [_read(fd, start - change.tail_nbytes, change.tail_nbytes)], tail)
    _write(disk, fd, change.pieces, start, tail)
    if tail - start > BATCH_NBYTES:
        disk.sync(fd)  # else a power cut may leave the new tail without what it speaks of
    disk.pwrite(fd, [_gathered(change.pieces, fd, tail, stop)], tail)
    return change.tail_nbytes


def _replace_head(disk: Syscalls, fd: int, old_nbytes: int, change: Arranged) -> None:
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
            _move_time(disk, fd, before)
            disk.sync(fd)


def _move_time(disk: Syscalls, fd: int, before: os.stat_result) -> None:
    """Give a file that was changed a time that nobody saw on what was there *before*, or on a part of the change.

    tensorstore tells versions by nothing but inode and time.  The kernel sets the time before it writes: a program that
    looks between the two has that time, and the old bytes.  Its clock ticks slower than commits follow each other.
    """
    now = os.fstat(fd)
    try:
        disk.utime(fd, (now.st_atime_ns, max(before.st_mtime_ns, now.st_mtime_ns) + 1))
    except PermissionError:  # only its owner may choose; who may write has that of the clock, which ticks soon
        while os.fstat(fd).st_mtime_ns in (before.st_mtime_ns, now.st_mtime_ns):
            disk.utime(fd)


@contextmanager
def _taken_back_on_failure(disk: Syscalls, fd: int, nbytes: int, head: bytes = b"") -> Iterator[None]:
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


def _write(disk: Syscalls, fd: int, pieces: Sequence[Piece], start: int, stop: int) -> None:
    for batch in batches(pieces, fd, start, stop):
        disk.pwrite(fd, batch, start)
        start += sum(view.nbytes for view in batch)


def _gathered(pieces: Sequence[Piece], fd: int, start: int, stop: int) -> bytearray:
    """Return bytes of the new version as one buffer, which the kernel takes in one call however many pieces it has."""
    buffer = bytearray(stop - start)
    _gather(pieces, fd, start, stop, memoryview(buffer))
    return buffer


def _gather(pieces: Sequence[Piece], fd: int, start: int, stop: int, buffer: memoryview) -> None:
    position = 0
    for view in _views(pieces, fd, start, stop):
        buffer[position : position + view.nbytes] = view
        position += view.nbytes


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


@dataclass(slots=True, eq=False)
class LocalEdit:
    """A change of what *key* stands for: the file open as *descriptor*, or nothing yet.

    It has the *lock* of the key until it is made or failed; where there is no directory yet, only while it is made.
    *snapshots* are those of any file that are open, *rights* those of a new file.
    """

    disk: Syscalls
    root: Descriptor
    key: str
    rights: Rights
    snapshots: Iterable[LocalSnapshot]
    make_directories: Callable[[str], Awaitable[None]]
    lock: FileLock | None
    descriptor: Descriptor | None
    snapshot: LocalSnapshot | None
    can_delete: bool = field(init=False, default=True)
    append_alignment: int = field(init=False, default=1)
    temporary: str = field(init=False)
    written_nbytes: int = field(init=False, default=0)
    _is_made: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.temporary = join_key(self._parent, temporary_name())
        if self.descriptor is not None and self.disk.appends_at_once(self.descriptor.fd):
            self.append_alignment = BLOCK

    async def splice(self, splice: Splice) -> Stat:
        """Store the new version: in place if it keeps the whole old one, with a new head or tail, else written anew.

        What is appended where others would see a part of it is appended to a clone, if one can be had.
        """
        self._begin()
        change = arrange(splice, self.snapshot.stat.size if self.snapshot else 0)
        try:
            if change.form is Form.APPENDED and change.tail_nbytes and self.append_alignment == 1:
                with suppress(NoCloneError):
                    return await trio.to_thread.run_sync(self._write_new, change, self.descriptor)
            if change.form is not Form.WRITTEN_NEW:
                return await self._change_in_place(change)
            if self.snapshot is None:
                await self.make_directories(self._parent)
            if self.lock is None:
                directory = open_beneath(self.root, self._parent, WALK)
                self.lock = await lock(self.disk, directory, self.key, self.rights)
            return await trio.to_thread.run_sync(self._write_new, change)
        except OSError as error:
            raise translate_of_change(error, self.key) from None
        finally:
            self.release()

    async def delete(self) -> None:
        """Remove the file durably."""
        self._begin()
        try:
            await trio.to_thread.run_sync(self._delete)
        except OSError as error:
            raise translate_of_change(error, self.key) from None
        finally:
            self.release()

    def release(self) -> None:
        """Let others change the file: what was changed is durable, or was taken back."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    @property
    def _parent(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def _name(self) -> str:
        return self.key.rpartition("/")[2]

    def _begin(self) -> None:
        if self._is_made:
            raise ValueError("an edit makes one change")
        self._is_made = True

    async def _change_in_place(self, change: Arranged) -> Stat:
        assert self.descriptor is not None
        assert self.snapshot is not None
        fd, old = self.descriptor.fd, self.snapshot.stat
        self._require_unchanged()
        held = [] if change.form is Form.CUT else [s for s in list(self.snapshots) if s.hold(old, change.overwritten)]
        try:
            make = partial(change_in_place, self.disk, fd, old.size, change, at_once=self.append_alignment > 1)
            self.written_nbytes = await trio.to_thread.run_sync(make)
        finally:
            now = to_stat(os.fstat(fd))
            is_ours = now.size in (old.size, change.nbytes)
            for snapshot in held:
                snapshot.settle(now if is_ours else old)
        after = self._look()
        if after is None or after.identity != now.identity:
            raise ConflictError(f"{self.key} was replaced while it was changed")
        return now

    def _write_new(self, change: Arranged, clone_of: Descriptor | None = None) -> Stat:
        directory = open_beneath(self.root, self._parent, _DIRECTORY)
        fd = _NO_FILE if self.descriptor is None else self.descriptor.fd
        rights = self.rights if self.descriptor is None else Rights.of(os.fstat(fd))
        kept = os.fstat(fd).st_size if clone_of is not None else 0
        content = batches(change.pieces, fd, kept, change.nbytes)
        temporary = self.temporary.rpartition("/")[2]
        take_name = partial(self._take_name, temporary, directory.fd)
        clone_fd = clone_of.fd if clone_of is not None else None
        self.descriptor, status = write_aside(
            self.disk, directory, temporary, rights, content, take_name, clone_of=clone_fd
        )
        self.written_nbytes = change.nbytes - kept
        return status

    def _take_name(self, temporary: str, dir_fd: int, _: int) -> None:
        if self.snapshot is not None:
            self._require_unchanged()
            self.disk.rename(temporary, self._name, dir_fd, dir_fd)
            return
        try:
            rename_to_absent(self.disk, temporary, self._name, dir_fd, dir_fd)
        except FileExistsError:
            raise ConflictError(f"{self.key} was made by another program meanwhile") from None

    def _delete(self) -> None:
        if self.snapshot is None:
            raise NotFoundError(f"{self.key} does not exist")
        directory = open_beneath(self.root, self._parent, _DIRECTORY)
        self._require_unchanged()
        self.disk.unlink(self._name, directory.fd)
        self.disk.sync_directory(directory.fd)

    def _require_unchanged(self) -> None:
        assert self.snapshot is not None
        now, old = self._look(), self.snapshot.stat
        if now is None or (now.identity, now.size, now.mtime_ns) != (old.identity, old.size, old.mtime_ns):
            raise ConflictError(f"{self.key} was changed or replaced by another program")

    def _look(self) -> Stat | None:
        """Return the state of what *key* stands for at this moment."""
        try:
            parent = open_beneath(self.root, self._parent, WALK)
            return to_stat(os.stat(self._name, dir_fd=parent.fd, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None
