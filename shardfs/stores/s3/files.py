"""Passthrough files while they are open: objects that are read, and spools, to which files are written.

A spool is shared by all who write one file: a local file, created at the first change, and stored as a whole whenever
one of them closes it. It replaces the version that was opened, or nothing if the file was created. If another host was
first, the writer gets an error, and what was written is kept on this machine.
"""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Unpack

import trio

from shardfs.errors import ExistsError, ReadOnlyError, ShardfsError, StaleError, StoreError
from shardfs.stores.base import ABSENT, Buffer, NewAttributes, Presence, Snapshot, Splice, Stat, join_key
from shardfs.stores.kept_files import KeptFiles, new_name, remove_kept
from shardfs.stores.local.tree import LocalFile, LocalStore
from shardfs.stores.objects.heads import split
from shardfs.stores.objects.requests import ObjectStat
from shardfs.stores.objects.versions import ObjectSnapshot, file_stat
from shardfs.stores.s3.change import Changes

SPOOLS: Final = "spools"
"""The directory, within that of the mount, for spools and for kept files."""

_PIECE_NBYTES: Final = 8 * 2**20


class Clean(NamedTuple):
    """All that was written is stored."""


class Dirty(NamedTuple):
    """Something was written since the last attempt to store it, or there was none."""


class Failed(NamedTuple):
    """Something is not stored, and *error* is why the last attempt failed."""

    error: ShardfsError


class Broken(NamedTuple):
    """A change failed, with *error*: from *offset* to *end*, the file is not what a program meant.

    It is not stored, and each attempt raises the error, until that was written again, or the file was cut there.
    *was_kept*: what was written before could not be stored, and stays on this machine.
    """

    error: ShardfsError
    offset: int
    end: float
    was_kept: bool


class Spool:
    """What is written to the file *key* by all who have it open for writing; *users* is their number.

    Until it is changed, it is the object *snapshot*, or, with None, a new, empty file. Then it is the local *file*.
    *state* says how much of it is stored. It replaces what is *expected*: the version that was opened, later the one
    that was stored last. Whoever changes or sends it holds *lock*. *now_ns* tells the time on the server.
    """

    __slots__ = (
        "_now_ns",
        "expected",
        "file",
        "identity",
        "key",
        "lock",
        "mtime_ns",
        "name",
        "nchanges",
        "snapshot",
        "state",
        "users",
    )

    def __init__(self, key: str, snapshot: ObjectSnapshot | None, now_ns: Callable[[], int]) -> None:
        self.key = key
        self.snapshot = snapshot
        self._now_ns = now_ns
        self.state: Clean | Dirty | Failed | Broken = Clean() if snapshot is not None else Dirty()
        self.name = new_name()
        self.identity = snapshot.stat.identity if snapshot is not None else f"spool:{self.name}"
        self.mtime_ns = self._now_ns()
        self.file: LocalFile | None = None
        self.expected: ObjectStat | Presence = snapshot.object if snapshot is not None else ABSENT
        self.nchanges = 0
        self.users = 0
        self.lock = trio.Lock()

    @property
    def is_local(self) -> bool:
        """Whether its key stands for what was written on this machine, and not for an object."""
        return self.file is not None or self.snapshot is None

    def is_current(self, snapshot: ObjectSnapshot) -> bool:
        """Whether it is what its key stands for, which is *snapshot* unless it is local."""
        return self.snapshot is None or self.snapshot.version is snapshot.version

    def stat(self) -> Stat:
        """Return the present status."""
        if self.file is None and self.snapshot is not None:
            return self.snapshot.stat
        size = self.file.stat().size if self.file is not None else 0
        stat = file_stat(self.key, ObjectStat(size, "", self.mtime_ns))
        return stat._replace(version=(self.name, self.nchanges), identity=self.identity)

    def broke(self, error: ShardfsError, offset: int, end: float) -> None:
        """Note that a change of the bytes from *offset* to *end* failed."""
        was = self.state
        if isinstance(was, Broken):
            self.state = Broken(error, min(offset, was.offset), max(end, was.end), was.was_kept)
        else:
            self.state = Broken(error, offset, end, isinstance(was, Failed))
        self._note_change()

    def written(self, offset: int, end: float) -> None:
        """Note that the bytes from *offset* to *end* were written; infinite if it was cut at *offset*."""
        if not isinstance(self.state, Broken) or (offset <= self.state.offset and self.state.end <= end):
            self.state = Dirty()
        self._note_change()

    def _note_change(self) -> None:
        self.nchanges += 1
        self.mtime_ns = self._now_ns()


class Spools(dict[str, Spool]):
    """The spools of a store, by key."""

    def local(self, key: str) -> Spool | None:
        """Return the spool that *key* stands for; None if the key stands for an object or nothing."""
        spool = self.get(key)
        return spool if spool is not None and spool.is_local else None

    def has_name(self, spool: Spool) -> bool:
        """Whether a spool still has its name; one that was removed or replaced is not sent."""
        return self.get(spool.key) is spool


class SpooledFiles:
    """What is written to the *spools* of a store, in local files in the *directory* of the local store *side*."""

    def __init__(self, side: LocalStore, directory: str, changes: Changes, spools: Spools) -> None:
        self.side = side
        self.directory = directory
        self.kept = KeptFiles(f"{side.root}/{directory}")
        self.changes = changes
        self.heads = changes.objects.heads
        self.spools = spools

    @asynccontextmanager
    async def holding(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of what is written to *key*, if anything is, so that it is not sent in the block."""
        while (spool := self.spools.get(key)) is not None:
            async with spool.lock:
                if self.spools.has_name(spool):
                    yield
                    return
        yield

    async def snapshot(self, spool: Spool) -> Snapshot:
        """Return the present state of a local spool."""
        async with spool.lock:
            await self.local_file(spool)
        return await self._written(spool)

    async def _written(self, spool: Spool) -> Snapshot:
        return await self.side.open(join_key(self.directory, spool.name))

    def begin(self, key: str, snapshot: ObjectSnapshot | None) -> Spool:
        """Create a spool for *key*, which is the object *snapshot*, or nothing."""
        self.kept.require_room()
        spool = self.spools[key] = Spool(key, snapshot, self.changes.objects.client.clock.now_ns)
        return spool

    async def flush(self, spool: Spool, *, also_empty: bool = False) -> None:
        """Store what is not stored; raises `StaleError` if another host was first, also if it has created the file.

        An empty file waits for more, unless *also_empty* or an attempt to write or store it has failed.
        """
        async with spool.lock:
            if also_empty or isinstance(spool.state, Failed | Broken) or spool.stat().size:
                await self._flush(spool)

    async def _flush(self, spool: Spool) -> None:
        if not isinstance(spool.state, Clean) and self.spools.has_name(spool):
            try:
                await self.store(spool, spool.key, spool.expected)
            except ExistsError as error:  # which programs expect of `open` alone
                raise StaleError(str(error)) from None

    async def store(self, spool: Spool, key: str, expected: ObjectStat | Presence) -> None:
        """Store a spool, whose lock the caller holds, under *key*, replacing *expected*; raises the errors of `put`.

        Raises the error of a change that failed, if that was the last word: half of a file must replace nothing.
        """
        if isinstance(spool.state, Broken):
            raise spool.state.error.with_traceback(None)
        try:
            file = await self.local_file(spool)
            written = Splice(((await self._written(spool)).content(0, file.stat().size),))
            spool.expected = await self.put(key, written, expected, name=spool.name)
        except BaseException as error:
            ended = StoreError("its mount ended before it was stored")
            await self.failed(spool, error if isinstance(error, ShardfsError) else ended)
            raise
        spool.state = Clean()

    async def failed(self, spool: Spool, error: ShardfsError) -> None:
        """Keep what is not stored of a spool, if anything is: it cannot be stored now."""
        if not isinstance(spool.state, Clean):
            spool.state = Failed(error)
        if _must_be_kept(spool):
            await self.kept.keep(spool.name, spool.key, str(error))

    async def close(self, spool: Spool) -> None:
        """Release one user; the last one stores what was written since the last attempt."""
        spool.users -= 1
        async with spool.lock:  # it may be moving to another name
            try:
                if not spool.users and isinstance(spool.state, Dirty):
                    await self._flush(spool)
            finally:
                if not spool.users and self.spools.has_name(spool):
                    self._forget(spool)

    def rename(self, spool: Spool, to: str, snapshot: ObjectSnapshot | None) -> None:
        """Give a spool another name, which is the object *snapshot* now, unless the spool is local."""
        del self.spools[spool.key]
        spool.key = to
        if snapshot is not None:
            spool.snapshot, spool.expected = snapshot, snapshot.object
        self.spools[to] = spool

    def detach(self, key: str) -> None:
        """Take the name from a spool, if it has any: those who have it open continue with a nameless file."""
        spool = self.spools.pop(key, None)
        if spool is not None:
            remove_kept(self.kept.path(spool.name))

    async def take(self, spool: Spool, to: str, *, exclusive: bool) -> None:
        """Move the file of a spool, whose lock the caller holds, to *to* on the side; its users continue with that.

        It is durable there, because the caller may delete the object.
        """
        file = await self.local_file(spool)
        await file.sync()
        await self.side.rename(join_key(self.directory, spool.name), to, exclusive=exclusive)
        self.detach(spool.key)
        for directory in (split(to)[0], self.directory):
            await self.side.sync_directory(directory)

    async def put(
        self,
        key: str,
        splice: Splice,
        expected: ObjectStat | Presence,
        *,
        source: ObjectSnapshot | None = None,
        name: str | None = None,
    ) -> ObjectStat:
        """Store an object as `Changes.replace` does, and remove what was kept of it; *name* is that of its spool."""
        new = await self.changes.replace(key, splice, expected, source=source)
        self.heads.directories.discard_with_parents(split(key)[0])
        self.kept.stored(key, name)
        return new

    def _forget(self, spool: Spool) -> None:
        """Forget a spool that nobody uses any more, with its file, unless that is kept."""
        del self.spools[spool.key]
        if not _must_be_kept(spool):
            remove_kept(self.kept.path(spool.name))

    async def local_file(self, spool: Spool, nbytes: int | None = None) -> LocalFile:
        """Return the local file of a spool that is about to change.

        If it does not exist yet, create it with the first *nbytes* bytes of the object, or with all. Raises
        `StaleError` if that is not what the key stands for.
        """
        if spool.file is not None:
            return spool.file
        snapshot = spool.snapshot
        nbytes = 0 if snapshot is None else snapshot.size if nbytes is None else min(nbytes, snapshot.size)
        file = await self.side.create(join_key(self.directory, spool.name), 0o644, exclusive=True)
        try:
            if snapshot is not None:
                snapshot.expect(0, nbytes)
                for start in range(0, nbytes, _PIECE_NBYTES):
                    await file.write(start, await snapshot.read(start, min(_PIECE_NBYTES, nbytes - start)))
        except BaseException:
            remove_kept(self.kept.path(spool.name))
            raise
        if not self.spools.has_name(spool):
            remove_kept(self.kept.path(spool.name))
            if snapshot is not None:
                raise StaleError(f"{spool.key} was replaced while it was open")
        spool.file, spool.snapshot = file, None
        return spool.file


class SpoolFile:
    """An open spool, of which this is a user if *files* are given; with None, it is only read.

    An object that nobody writes is open as a spool without a name: it keeps its version, or cannot be read any more.
    """

    __slots__ = ("_files", "spool")

    def __init__(self, spool: Spool, files: SpooledFiles | None) -> None:
        self.spool = spool
        self._files = files
        spool.users += files is not None

    def stat(self) -> Stat:
        """Return the present status."""
        return self.spool.stat()

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` if it is an object that was replaced."""
        spool = self.spool
        if spool.file is not None:
            return await spool.file.read(offset, nbytes)
        if spool.snapshot is None:
            return b""
        nbytes = max(0, min(nbytes, spool.snapshot.size - offset))
        return await spool.snapshot.read(offset, nbytes, (offset, nbytes))

    async def write(self, offset: int | None, data: Buffer) -> int:
        """Write all of *data* at *offset*, or at the end."""
        files = self._writing()
        async with self.spool.lock:
            file = await files.local_file(self.spool)
            begin = file.stat().size if offset is None else offset  # nobody else writes it meanwhile
            end = begin + memoryview(data).nbytes
            try:
                nbytes = await file.write(begin, data)
            except ShardfsError as error:
                self.spool.broke(error, begin, end)
                raise
            self.spool.written(begin, end)
            return nbytes

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""
        files = self._writing()
        async with self.spool.lock:
            file = await files.local_file(self.spool, nbytes)
            try:
                await file.truncate(nbytes)
            except ShardfsError as error:
                self.spool.broke(error, min(nbytes, file.stat().size), math.inf)
                raise
            self.spool.written(nbytes, math.inf)

    def give_up(self) -> None:
        """Store nothing of what was written since the last flush."""
        error = StoreError(f"{self.spool.key} was not written to its end")
        self.spool.state = Broken(error, 0, math.inf, was_kept=False)

    async def flush(self) -> None:
        """Store what was written; an empty file waits for more."""
        if self._files is not None:
            await self._files.flush(self.spool)

    async def sync(self) -> None:
        """Store what was written."""
        if self._files is not None:
            await self._files.flush(self.spool, also_empty=True)

    async def close(self) -> None:
        """Release the file; store now what no attempt was made to store."""
        if self._files is not None:
            await self._files.close(self.spool)

    def set_attributes(self, **changes: Unpack[NewAttributes]) -> Stat:
        """Do nothing but return the status: objects have no attributes to set."""
        return self.stat()

    def _writing(self) -> SpooledFiles:
        if self._files is None:
            raise ReadOnlyError(f"{self.spool.key} is open for reading only")
        return self._files


def _must_be_kept(spool: Spool) -> bool:
    """Whether a spool holds what could not be stored; not if it is empty and another program has stored the name."""
    was_kept = isinstance(spool.state, Broken) and spool.state.was_kept
    if spool.file is None or was_kept or not isinstance(spool.state, Failed):
        return was_kept
    return not isinstance(spool.state.error, ExistsError | StaleError) or spool.stat().size > 0
