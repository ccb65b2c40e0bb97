"""An S3 source that is read and written.

Each name lives in one of three places.  Names that shardfs keeps for itself are on this machine, on the *side*.  Files
that are open to be written are there too, in their spools (`spools`).  All else is objects, each of which is replaced
on the condition that it is the one that was found, or shown to programs.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from shardfs.errors import (
    ConflictError,
    ExistsError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    SourceError,
    StaleError,
    StoreError,
    UnreachableError,
    UnsupportedError,
)
from shardfs.stores.base import Content, Edit, Expected, Kind, OpenFile, Splice, Stat
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.stores.s3.edit import S3Edit, Writing
from shardfs.stores.s3.files import ObjectFile, SpoolFile
from shardfs.stores.s3.moves import Moves
from shardfs.stores.s3.probe import probe
from shardfs.stores.s3.reading_store import ReadingStore, object_of
from shardfs.stores.s3.requests import ObjectStat
from shardfs.stores.s3.spools import Spools, is_on_side
from shardfs.stores.s3.transactions import find_made
from shardfs.stores.s3.uploads import Uploads

log = logging.getLogger(__name__)

_OWN: Final = ".shardfs"
_UPLOADS: Final = f"{_OWN}/uploads"
SPOOLS: Final = f"{_OWN}/spools"
"""The directory of files that are open to be written, and of those that were kept, in that of the mount."""


class S3Store(ReadingStore):
    """The objects below a location; nothing can be changed before `start_writing`.

    A directory in which nothing is stored is known to this process only.  Objects have neither modes nor owners nor
    times that can be set.  S3 has no links and no attributes: what else programs ask for is refused in the way that
    they know from other file systems.
    """

    _writing: Writing | None = None
    _moves: Moves | None = None

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Find out whether it is safe, and say what earlier mounts with the same *directory* have kept."""
        side = LocalStore(directory)
        await side.make_directories(SPOOLS)
        client, location, counts = self.objects.client, self.objects.location, self.objects.counts
        uploads = Uploads(f"{side.root}/{_UPLOADS}", location, counts)
        await uploads.clean(client)
        before = counts.conflicts
        conditions = await probe(client, location, uploads)
        counts.conflicts = before  # those were provoked
        if not conditions.is_safe and not single_writer:
            raise SourceError(conditions.missing(self.url))
        self.objects.keeps_properties = True
        self._writing = Writing(
            client, location, self.objects, uploads, conditions, single_writer, f"{side.root}/{_OWN}"
        )
        self.spools = Spools(side, SPOOLS, self.shown, self.put)
        self.spools.resume()
        self._moves = Moves(self, self.spools)

    async def flush(self) -> None:
        """Store what was written to files that are open; raises `StoreError` if one cannot be stored."""
        failures: list[str] = []
        for spool in self.spools or ():
            try:
                await self._open_spools.flush(spool, also_fresh=True)
            except ShardfsError as error:
                failures.append(f"{spool.key} is not stored: {error}")
                if isinstance(error, UnreachableError):  # nor can the others be
                    break
        if failures:
            raise StoreError("; ".join(failures))

    async def check_writable(self, key: str) -> None:
        """Return: what keeps an object from being changed, a request would tell."""
        side = self._changed_side(key)
        if side is not None:
            await side.check_writable(key)

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        waited: float | None = None,
    ) -> AsyncIterator[Edit]:
        """Begin a change of an object, which nobody is kept from changing meanwhile; it has no mode and no owner."""
        side = self._changed_side(key)
        if side is not None:
            async with side.edit(key, mode=mode, uid=uid, gid=gid, waited=waited) as edit:
                yield edit
            return
        if self.directories.has(key):
            raise IsADirectoryHereError(f"{key} is a directory")
        if self._open_spools.here(key) is not None:
            raise ConflictError(f"{key} is open to be written as a file that passes through")
        assert self._writing is not None
        try:
            snapshot = await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)
        except NotFoundError:
            snapshot = None
        yield S3Edit(self._writing, key, snapshot)

    async def replace(
        self,
        key: str,
        content: bytes,
        *,
        exclusive: bool = False,
        mode: int | None = None,
        expected: Expected | None = None,
    ) -> Stat:
        """Store an object at once, with the properties of what it replaces; what is refused is kept."""
        side = self._changed_side(key)
        if side is not None:
            return await side.replace(key, content, exclusive=exclusive, mode=mode)
        self._open_spools.require_room()
        found: Stat | None = None
        try:
            found = await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
        if found is not None and exclusive:
            raise ExistsError(f"{key or 'the source'} exists")
        if found is not None and found.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
        async with self._open_spools.alone(key):
            if exclusive:
                state = None
            else:
                state = object_of(expected.state) if expected is not None else self.expected(key, found)
            try:
                await self.put(key, MemoryContent(memoryview(content)), state)
            except ConflictError:
                if exclusive:
                    raise ExistsError(f"{key} exists: another program has made it") from None
                reason = f"{key} was changed by another program since this mount showed it"
                if expected is None:
                    await self._open_spools.keep(key, content, reason)
                raise StaleError(f"{reason}; read it again") from None
            self._open_spools.detach(key)
        return await self.objects.stat(key)

    async def put(self, key: str, content: Content, expected: ObjectStat | None) -> ObjectStat:
        """Store an object in place of the version *expected*, or of nothing; raises `ConflictError`."""
        return await self.put_by(key, expected, lambda edit: edit.splice(Splice((content,))))

    async def put_by(
        self, key: str, expected: ObjectStat | None, make: Callable[[S3Edit], Awaitable[Stat]]
    ) -> ObjectStat:
        """Do as `put`, where *make* makes the new version, maybe more than once.

        An earlier change of ours, of which nobody knows whether it was made, is no conflict: it is what is replaced.
        """
        while True:
            edit = self.change(key, expected)
            try:
                new = object_of(await make(edit))
                break
            except ConflictError:
                object_key = self.objects.location.object_key(key)
                own = await find_made(self.objects.client, object_key, self.shown.doubtful(key))
                if own is None or own == expected:
                    raise
                self.shown.follow(key, expected, own)
                expected = own
            except BaseException:
                self.shown.doubt(key, edit.transaction)
                raise
        assert new is not None
        self.shown.settle(key)
        self.shown.follow(key, expected, new)
        self._open_spools.stored(key)
        self.directories.settle(key.rpartition("/")[0])
        return new

    def change(self, key: str, expected: ObjectStat | None) -> S3Edit:
        """Begin a change of an object that must be the version *expected*, or nothing."""
        assert self._writing is not None
        return S3Edit(self._writing, key, self.objects.snapshot(key, expected) if expected is not None else None)

    def expected(self, key: str, found: Stat | None) -> ObjectStat | None:
        """Return what must be there when *key* is replaced: what was shown, or if that is not known, what was *found*.

        A file that somebody writes is found as it is in the bucket, or will be.
        """
        if key in self.shown:
            return self.shown.get(key)
        spool = self._open_spools.here(key)
        return spool.expected if spool is not None else object_of(found)

    def moved_away(self, key: str) -> None:
        """Note that this mount took *key* away; the directory in which it was stays."""
        self.shown.note_change(key, None)
        self.directories.add(key.rpartition("/")[0])

    async def create(self, key: str, mode: int, *, exclusive: bool) -> OpenFile:
        """Open a file that passes through, and make it if there is none; it is stored when it is closed."""
        side = self._changed_side(key)
        if side is not None:
            return await side.create(key, mode, exclusive=exclusive)
        spools = self._open_spools
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            if spools.find(key) is None:
                self.directories.add(key.rpartition("/")[0])
                return SpoolFile(spools, spools.begin(key, None), self.shown, writable=True)
        else:
            if status.kind is Kind.DIRECTORY and not exclusive:
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
        if exclusive:
            raise ExistsError(f"{key} exists")
        return await self.open_passthrough(key, writable=True)

    async def open_passthrough(self, key: str, *, writable: bool) -> OpenFile:
        """Open a file that passes through; an object that is read keeps its version, or cannot be read any more."""
        side = self._changed_side(key) if writable else self.side_of(key)
        if side is not None:
            return await side.open_passthrough(key, writable=writable)
        if self.directories.has(key):
            raise IsADirectoryHereError(f"{key} is a directory")
        spools = self.spools
        spool = spools.find(key) if spools is not None else None
        if spool is None:
            snapshot = await self.objects.open(key)
            spool = spools.find(key) if spools is not None else None
            if spools is None or (spool is None and not writable):
                return ObjectFile(key, snapshot)
            spool = spool or spools.begin(key, snapshot)
        assert spools is not None
        return SpoolFile(spools, spool, self.shown, writable=writable)

    async def unlink(self, key: str) -> None:
        """Delete an object, and what is written in its place; its directory stays."""
        side = self._changed_side(key)
        if side is not None:
            await side.unlink(key)
            return
        async with self._open_spools.alone(key):
            if (await self.stat(key)).kind is Kind.DIRECTORY:
                raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
            await self.objects.delete_object(key)
            self._open_spools.detach(key)
        self.moved_away(key)

    async def mkdir(self, key: str, mode: int) -> None:
        """Make a directory, which this process alone knows until something is in it."""
        side = self._changed_side(key)
        if side is not None:
            await side.mkdir(key, mode)
            return
        try:
            await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            self.directories.add(key)
        else:
            raise ExistsError(f"{key or 'the source'} exists")

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory, with the object that stands for it, if there is one."""
        side = self._changed_side(key)
        if side is not None:
            await side.rmdir(key)
            return
        if not key:
            raise RefusedError("the source cannot be removed")
        if (await self.stat(key)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{key} is no directory")
        if await self.list(key):
            raise NotEmptyError(f"{key} is not empty")
        await self.objects.delete_marker(key)
        self.directories.remove(key)
        self.directories.add(key.rpartition("/")[0])

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move a name; `CrossDeviceError` for a directory with objects, which programs then copy and delete."""
        self._changed_side(key)
        assert self._moves is not None
        await self._moves.rename(key, to, exclusive=exclusive)

    async def link(self, key: str, to: str) -> None:
        """Give a file of the side a second name there; objects have one."""
        side = self._changed_side(to)
        if side is None or not is_on_side(key):
            raise NotPermittedError(f"{to}: an object has one name")
        await side.link(key, to)

    async def symlink(self, key: str, target: bytes) -> None:
        """Make a symbolic link on the side; objects are none."""
        side = self._changed_side(key)
        if side is None:
            raise NotPermittedError(f"{key}: S3 has no symbolic links")
        await side.symlink(key, target)

    async def make_directories(self, key: str) -> None:
        """Make the directory *key* and all above it that are missing."""
        side = self._changed_side(key)
        if side is not None:
            await side.make_directories(key)
            return
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self.make_directories(key.rpartition("/")[0])
            self.objects.check_key(key)
            self.directories.add(key)
        else:
            if status.kind is not Kind.DIRECTORY:
                raise NotADirectoryHereError(f"{key} is no directory")

    async def set_attributes(
        self,
        key: str,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> Stat:
        """Set the time of a file that is being written; all else is accepted, and has no effect on objects."""
        side = self._changed_side(key)
        if side is not None:
            return await side.set_attributes(key, mode=mode, uid=uid, gid=gid, atime_ns=atime_ns, mtime_ns=mtime_ns)
        spool = self._open_spools.here(key)
        if spool is not None and mtime_ns is not None:
            spool.mtime_ns = mtime_ns
        return await self.stat(key)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Set an extended attribute of a name on the side; objects have none."""
        side = self._changed_side(key)
        if side is None:
            raise UnsupportedError(f"{key}: objects have no extended attributes")
        await side.set_attribute(key, name, value)

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Remove an extended attribute of a name on the side; objects have none."""
        side = self._changed_side(key)
        if side is None:
            raise UnsupportedError(f"{key}: objects have no extended attributes")
        await side.remove_attribute(key, name)

    async def sync_directory(self, key: str) -> None:
        """Make names on the side durable; S3 has what it has."""
        side = self._changed_side(key)
        if side is not None:
            await side.sync_directory(key)

    @property
    def _open_spools(self) -> Spools:
        """The spools; raises `ReadOnlyError` where nothing is changed."""
        if self.spools is None:
            raise ReadOnlyError(f"{self.url} is not open to be changed")
        return self.spools

    def _changed_side(self, key: str) -> LocalStore | None:
        """Return where *key* is changed if it is a name of our own; raises `ReadOnlyError` where nothing is."""
        side = self._open_spools.side
        return side if is_on_side(key) else None

    async def _require_directory(self, key: str) -> None:
        """Raise `NotFoundError`, or `NotADirectoryHereError`, if nothing can be made under *key*."""
        self.objects.check_key(key)
        parent = key.rpartition("/")[0]
        if (await self.stat(parent)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{parent} is no directory")
