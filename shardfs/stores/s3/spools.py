"""Spools, to which files that pass through are written.

A spool is what all who write one file share: a local file, which is stored whenever one of them closes it.  It is made
by the first change.  The object that it replaces must be the one that this mount showed last, or stored; if it is not,
the writer is told so, and what was written is kept on this machine.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from shardfs.errors import ConflictError, NoSpaceError, ShardfsError, StaleError
from shardfs.stores.base import Buffer, Content, Snapshot, Stat, is_reserved, join_key
from shardfs.stores.kept_files import KeptFiles, new_name
from shardfs.stores.local.tree import LocalFile, LocalStore
from shardfs.stores.memory import MemorySnapshot
from shardfs.stores.s3.requests import ObjectStat
from shardfs.stores.s3.shown import Shown
from shardfs.stores.s3.snapshot import S3Snapshot, file_stat

log = logging.getLogger(__name__)

_MAX_KEPT_NBYTES: Final = 2**30
"""With so many bytes kept that nobody stored or removed, nothing more is written."""

_ENDED: Final = "its mount ended before it was stored"
_FORMER: Final = ".shardfs/plain"
"""Where earlier versions had files that were not sent yet, by their keys."""

_MODE: Final = 0o644
_PIECE_NBYTES: Final = 8 * 2**20


class Spool:
    """What is written to the file *key*, by all who have it open to write, who are *users*.

    As long as nobody changed it, it is the object *snapshot*, or if that is None a new and empty file; then it is the
    local *file*.  Of *nchanges* changes the first *nstored* are in the bucket; the first *ntried* were sent last.
    One that *is_fresh* is empty, and waits for what follows.  *expected* is what the store must hold when it is stored.
    One that *is_gone* has no name any more, and is not stored; one that *is_refused* met something else in the store
    when that was tried last.  Whoever holds *lock* keeps it as it is.
    """

    __slots__ = (
        "error",
        "expected",
        "file",
        "identity",
        "is_fresh",
        "is_gone",
        "is_noted",
        "is_refused",
        "key",
        "lock",
        "mtime_ns",
        "name",
        "nchanges",
        "nstored",
        "ntried",
        "snapshot",
        "users",
    )

    def __init__(self, key: str, snapshot: S3Snapshot | None) -> None:
        self.key = key
        self.snapshot = snapshot
        self.name = new_name()
        self.identity = snapshot.stat.identity if snapshot is not None else f"spool:{self.name}"
        self.mtime_ns = time.time_ns()
        self.file: LocalFile | None = None
        self.expected: ObjectStat | None = None
        self.is_fresh = snapshot is None
        self.is_gone = False
        self.is_noted = False
        self.is_refused = False
        self.nchanges = int(self.is_fresh)
        self.nstored = self.ntried = 0
        self.users = 0
        self.error = ""
        self.lock = trio.Lock()

    @property
    def is_dirty(self) -> bool:
        """Whether the bucket has not all of it."""
        return self.nchanges != self.nstored

    @property
    def is_here(self) -> bool:
        """Whether it is something else than an object that nobody changed."""
        return self.file is not None or self.snapshot is None

    def stat(self) -> Stat:
        """Return the present state."""
        if self.file is None and self.snapshot is not None:
            return self.snapshot.stat
        size = self.file.stat().size if self.file is not None else 0
        stat = file_stat(self.key, ObjectStat(size, "", self.mtime_ns))
        return stat._replace(version=(self.name, self.nchanges), identity=self.identity)

    def changed(self) -> None:
        """Say that it was written."""
        self.nchanges += 1
        self.mtime_ns = time.time_ns()


class Spools:
    """The spools of a store, with their files in *directory* of the local store *side*.

    *put* stores content under a key in place of a version, or of nothing, and raises `ConflictError` if something else
    is there.
    """

    def __init__(
        self,
        side: LocalStore,
        directory: str,
        shown: Shown,
        put: Callable[[str, Content, ObjectStat | None], Awaitable[ObjectStat]],
    ) -> None:
        self.side = side
        self.kept = KeptFiles(f"{side.root}/{directory}")
        self._directory = directory
        self._shown = shown
        self._put = put
        self._spools: dict[str, Spool] = {}
        self._kept_nbytes = 0
        self._kept_here: dict[str, list[str]] = {}

    def __iter__(self) -> Iterator[Spool]:
        """Return those that have a name."""
        return iter(list(self._spools.values()))

    def resume(self) -> None:
        """Say what earlier mounts have kept; it is left alone."""
        self.kept.clean()
        self.kept.take_in(f"{self.side.root}/{_FORMER}", _ENDED)
        for file in self.kept.find():
            self._kept_nbytes += file.nbytes
            if not file.reason:
                self.kept.note(os.path.basename(file.path), file.key, _ENDED)
            log.warning("kept of an earlier mount: %s; `shardfs recover` shows it", file)

    def find(self, key: str) -> Spool | None:
        """Return the spool of *key*; None if nobody has that open to write."""
        return self._spools.get(key)

    def here(self, key: str) -> Spool | None:
        """Return the same, if it is what *key* stands for, and not the object."""
        spool = self._spools.get(key)
        return spool if spool is not None and spool.is_here else None

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Keep what is written to *key* from being stored while something else takes the name."""
        while (spool := self._spools.get(key)) is not None:
            async with spool.lock:
                if self._spools.get(key) is spool:
                    yield
                    return
        yield

    async def snapshot(self, spool: Spool) -> Snapshot:
        """Return the present state of a spool that is here."""
        if spool.file is None:
            return MemorySnapshot(memoryview(b""), spool.stat())
        return await self.side.open(self._local_key(spool.name))

    def begin(self, key: str, snapshot: S3Snapshot | None) -> Spool:
        """Have a spool for *key*, which is the object *snapshot*, or nothing."""
        self.require_room()
        spool = self._spools[key] = Spool(key, snapshot)
        return spool

    def require_room(self) -> None:
        """Raise `NoSpaceError` if too much was kept for anything to be written."""
        if self._kept_nbytes >= _MAX_KEPT_NBYTES and self._count_kept() >= _MAX_KEPT_NBYTES:
            raise NoSpaceError(
                f"{self.kept.directory} keeps {self._kept_nbytes:,} bytes that are not stored; see `shardfs recover`"
            )

    async def write(self, spool: Spool, offset: int, data: Buffer) -> int:
        """Write all of *data* at *offset*."""
        async with spool.lock:
            file = await self._local(spool)
            spool.is_fresh = False
            try:
                return await file.write(offset, data)
            finally:
                spool.changed()

    async def truncate(self, spool: Spool, nbytes: int) -> None:
        """Give a file the size *nbytes*."""
        async with spool.lock:
            file = await self._local(spool, nbytes)
            spool.is_fresh = nbytes == 0
            try:
                await file.truncate(nbytes)
            finally:
                spool.changed()

    async def flush(self, spool: Spool, *, also_fresh: bool = False) -> None:
        """Store what is not stored; raises `StaleError` if another host was first."""
        async with spool.lock:
            if also_fresh or not spool.is_fresh:
                await self._flush(spool)

    async def _flush(self, spool: Spool) -> None:
        if not spool.is_dirty or spool.is_gone:
            return
        try:
            await self.store(spool, spool.key, spool.expected)
        except ConflictError:
            raise StaleError(f"{spool.error}; read it again") from None

    async def store(self, spool: Spool, key: str, expected: ObjectStat | None) -> None:
        """Store a spool, whose lock the caller holds, under *key*, where *expected* must be; raises as *put* does."""
        spool.ntried, spool.is_refused = spool.nchanges, False
        file = await self._local(spool)
        content = await self.side.open(self._local_key(spool.name))
        try:
            stored = await self._put(key, content.content(0, file.stat().size), expected)
        except ConflictError:
            spool.error = f"{key} was changed by another program since this mount showed it"
            spool.is_refused = True
            raise
        except ShardfsError as error:
            spool.error = str(error)
            raise
        spool.expected, spool.nstored, spool.is_fresh = stored, spool.nchanges, False
        self.kept.forget_note(spool.name)
        spool.is_noted = False

    async def close(self, spool: Spool) -> None:
        """Let one user go; the last one stores what was written since storing it was tried last."""
        spool.users -= 1
        async with spool.lock:  # it may be on its way to another name
            try:
                if not spool.users and spool.ntried != spool.nchanges:
                    await self._flush(spool)
            finally:
                if not spool.users and self._spools.get(spool.key) is spool:
                    await self._end(spool)

    def rename(self, spool: Spool, to: str) -> None:
        """Give a spool another name."""
        del self._spools[spool.key]
        spool.key = to
        self._spools[to] = spool
        if spool.is_noted:
            self.kept.note(spool.name, to)

    def detach(self, key: str) -> None:
        """Let go of the name of a spool: who has it open goes on with a file without a name, which is not stored."""
        spool = self._spools.pop(key, None)
        if spool is not None:
            spool.is_gone = True
            self.kept.remove(self.kept.path(spool.name))

    async def take(self, spool: Spool, to: str, *, exclusive: bool) -> None:
        """Move the file of a spool, whose lock the caller holds, to *to* on the side; its users go on with that."""
        await self._local(spool)
        await self.side.rename(self._local_key(spool.name), to, exclusive=exclusive)
        self.detach(spool.key)

    async def fetch(self, snapshot: Snapshot, to: str, *, exclusive: bool) -> None:
        """Make *to*, on the side, a copy of an object."""
        name = new_name()
        await self._fetch(name, snapshot, snapshot.size)
        try:
            await self.side.rename(self._local_key(name), to, exclusive=exclusive)
        finally:
            self.kept.remove(self.kept.path(name))

    async def keep(self, key: str, content: Buffer, reason: str) -> None:
        """Keep what cannot be stored under *key*."""
        path = await trio.to_thread.run_sync(self.kept.keep, key, content, reason)
        self._kept_nbytes += len(content)
        self._log(key, path, reason)

    def stored(self, key: str) -> None:
        """Note of what this mount kept of *key* that it has stored a later version, which that must not replace."""
        for path in self._kept_here.pop(key, ()):
            self.kept.supersede(path)
            log.warning(
                "what was written to %s and is kept in %s is older than what is stored: `recover` leaves it alone",
                key,
                path,
            )

    async def _end(self, spool: Spool) -> None:
        """Forget a spool, and its file if that is stored, or has no bytes where another program has stored some."""
        del self._spools[spool.key]
        spool.is_gone = True
        if not spool.is_dirty or not spool.is_noted or (spool.is_refused and not spool.stat().size):
            self.kept.remove(self.kept.path(spool.name))
            return
        self._kept_nbytes += spool.stat().size
        reason = spool.error or _ENDED
        with trio.CancelScope(shield=True):
            path = await trio.to_thread.run_sync(self.kept.settle, spool.name, spool.key, reason)
        self._log(spool.key, path, reason)

    def _log(self, key: str, path: str, reason: str) -> None:
        self._kept_here.setdefault(key, []).append(path)
        log.error("what was written to %s is kept in %s: %s; `shardfs recover --apply` stores it", key, path, reason)

    def _count_kept(self) -> int:
        """Count again: what was kept may have been stored, or removed."""
        self._kept_nbytes = sum(file.nbytes for file in self.kept.find() if file.reason)
        return self._kept_nbytes

    async def _local(self, spool: Spool, nbytes: int | None = None) -> LocalFile:
        """Return the local file of a spool that is about to be changed, with its first *nbytes* bytes, or all."""
        if spool.file is None:
            snapshot = spool.snapshot
            nbytes = 0 if snapshot is None else snapshot.size if nbytes is None else min(nbytes, snapshot.size)
            spool.file = await self._fetch(spool.name, snapshot, nbytes)
            if snapshot is not None:
                if nbytes and not spool.is_gone:  # what is written is a change of that, whatever was shown before
                    self._shown.note(spool.key, snapshot.object)
                spool.expected = self._shown.get(spool.key, snapshot.object)
            spool.snapshot = None
            if spool.is_gone:
                self.kept.remove(self.kept.path(spool.name))
        if not spool.is_noted and not spool.is_gone:
            self.kept.note(spool.name, spool.key)
            spool.is_noted = True
        return spool.file

    async def _fetch(self, name: str, snapshot: Snapshot | None, nbytes: int) -> LocalFile:
        """Return a new file with the first *nbytes* bytes of an object."""
        key = self._local_key(name)
        file = await self.side.create(key, _MODE, exclusive=True)
        try:
            if snapshot is not None:
                snapshot.expect(0, nbytes)
                for start in range(0, nbytes, _PIECE_NBYTES):
                    await file.write(start, await snapshot.read(start, min(_PIECE_NBYTES, nbytes - start)))
        except BaseException:
            self.kept.remove(self.kept.path(name))
            raise
        return file

    def _local_key(self, name: str) -> str:
        return join_key(self._directory, name)


def is_on_side(key: str) -> bool:
    """Whether *key* is of a name that shardfs keeps for itself, which lives on this machine."""
    return is_reserved(key.partition("/")[0])
