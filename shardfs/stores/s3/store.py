"""What is in a bucket, and what is being written to it.

Files that are open for writing are in a local store, the *side*, as spools (`files`). Everything else is objects, each
of which is only replaced if it is the one that is expected. The side also has the names that shardfs reserves, of which
nothing here knows: see `routed`.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Unpack

import trio

from shardfs.errors import (
    ConflictError,
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NameTooLongError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    SourceError,
    StoreError,
    UnreachableError,
    UnsupportedError,
)
from shardfs.stores.base import (
    ABSENT,
    ANY,
    Content,
    Expected,
    Kept,
    Kind,
    ListedName,
    NewAttributes,
    NewDocument,
    NewOwner,
    NewPermissions,
    ObjectEdit,
    OpenFile,
    Presence,
    Snapshot,
    Splice,
    Stat,
    join_key,
)
from shardfs.stores.kept_files import new_name
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.stores.objects.disk_cache import DiskCache
from shardfs.stores.objects.heads import (
    FoundObject,
    KnownDirectory,
    Unknown,
    split,
)
from shardfs.stores.objects.reader import MAX_KEY_NBYTES
from shardfs.stores.objects.requests import ObjectStat
from shardfs.stores.objects.store import BucketStore
from shardfs.stores.objects.versions import (
    MEMORY_NBYTES,
    ObjectSnapshot,
    object_of,
)
from shardfs.stores.parallel import open_nursery
from shardfs.stores.s3.change import Changes, version_or_none
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.files import SPOOLS, Spool, SpooledFiles, SpoolFile, Spools
from shardfs.stores.s3.parts import part_nbytes
from shardfs.stores.s3.probe import check, probe
from shardfs.stores.s3.uploads import NewS3Object, Uploads

log = logging.getLogger(__name__)


class S3Store(BucketStore[S3Client]):
    """The objects of a source; nothing can be changed before `start_writing`.

    A key that is an object and has keys below it is a directory. A directory without anything stored in it is known to
    this process only. Objects have no modes, owners or times that can be set, and S3 has no links and no attributes:
    such requests are refused as other file systems do.
    """

    files: SpooledFiles | None = None

    def __init__(
        self,
        client: S3Client,
        session: trio.Nursery,
        *,
        ttl: float = 60.0,
        cache: DiskCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        memory_nbytes: int = MEMORY_NBYTES,
    ) -> None:
        super().__init__(client, session, ttl=ttl, cache=cache, clock=clock, memory_nbytes=memory_nbytes)
        self._spools = Spools()

    async def check(self) -> Sequence[ListedName] | None:
        """Return the names at the top, unless there are too many; raises the errors of `probe.check`."""
        entries, can_list = await check(self._client)
        if not can_list:
            self.heads.do_not_list()
        return entries

    async def stat(self, key: str) -> Stat:
        """Return the state of *key*."""
        here = self._stat_here(key)
        return here if here is not None else await super().stat(key)

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file."""
        spool = self._spools.local(key)
        if spool is not None:
            return await self._writable().snapshot(spool)
        return await super().open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def is_absent(self, key: str) -> bool:
        """Whether *key* stands for nothing; False if that is unknown."""
        return self._stat_here(key) is None and await super().is_absent(key)

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""
        here = dict.fromkeys(self.heads.directories.children(key), Kind.DIRECTORY)
        for spool in self._spools.values():
            parent, name = split(spool.key)
            if spool.is_local and spool.key == key:
                raise NotADirectoryHereError(f"{key} is not a directory")
            if spool.is_local and parent == key:
                here[name] = Kind.FILE
        try:
            names = await self._stored_names(key)
        except NotFoundError:
            if not here and key not in self.heads.directories:
                raise
            names = {}
        stored = {name: Kind.FILE if stat is not None else Kind.DIRECTORY for name, stat in names.items()}
        return [ListedName(name, kind) for name, kind in (stored | here).items()]

    async def stat_in(self, key: str, names: Sequence[str]) -> Sequence[Stat | None]:
        """Return the status of several names in one directory."""
        here = [self._stat_here(join_key(key, name)) for name in names]
        if None not in here:
            return here
        stored = await super().stat_in(key, names)
        return [local or stat for local, stat in zip(here, stored, strict=True)]

    async def start_writing(self, side: LocalStore, own: str, *, single_writer: bool) -> None:
        """Find out whether writing is safe, and log what is kept in *own*, the directory of this session in *side*."""
        spools = join_key(own, SPOOLS)
        await side.make_directories(spools)
        before = self._client.counts.conflicts
        conditions = await probe(self._client)
        self._client.counts.conflicts = before  # the conflicts of the probe do not count
        if not conditions.is_safe and not single_writer:
            raise SourceError(conditions.missing(self.url))
        self.heads.keep_properties()
        uploads = Uploads(self._client, conditions, f"{side.root}/{own}")
        self.files = SpooledFiles(side, spools, Changes(self.objects, uploads, single_writer), self._spools)
        self.files.kept.resume()

    async def flush(self) -> None:
        """Store what was written to open files; raises `StoreError` if one cannot be stored."""
        failures: list[str] = []
        is_reachable = True
        for spool in list(self._spools.values()):
            try:
                if is_reachable:
                    await self._writable().flush(spool, also_empty=True)
                else:
                    await self._writable().failed(spool, UnreachableError(f"{self.url} did not answer"))
            except ShardfsError as error:
                failures.append(f"{spool.key} is not stored: {error}")
                is_reachable = is_reachable and not isinstance(error, UnreachableError)
        if failures:
            raise StoreError("; ".join(failures))

    async def check_writable(self, key: str) -> None:
        """Do nothing: only a request would tell."""
        self._writable()

    @asynccontextmanager
    async def edit(
        self,
        key: str,
        *,
        head_nbytes: int = 0,
        tail_nbytes: int = 0,
        waited: float = 0.0,
        **permissions: Unpack[NewPermissions],
    ) -> AsyncIterator[ObjectEdit]:
        """Begin a change of a shard, which nobody else is kept from changing; it has no mode and no owner."""
        files = self._writable()
        if self._spools.local(key) is not None:
            raise ConflictError(f"{key} is open for writing as an ordinary file")
        try:
            snapshot = await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)
        except NotFoundError:
            snapshot = None
        yield files.changes.of(key, snapshot)

    @asynccontextmanager
    async def new_object(self, key: str, nbytes: int, *, head_nbytes: int = 0) -> AsyncIterator[NewS3Object]:
        """Begin an object that becomes *key*; unless it is finished in the block, it is aborted."""
        new: NewS3Object | None = None
        try:
            async with open_nursery() as nursery:  # a failed part ends the block
                new = NewS3Object(self._client, key, max(part_nbytes(nbytes), head_nbytes), head_nbytes, nursery)
                yield new
        finally:
            if new is not None and new.stat is not None:
                self.heads.changed(key, new.stat)
            elif new is not None:
                await new.abort()

    async def discard(self, key: str) -> None:
        """Remove an object, if there is one."""
        await self._client.delete(key)
        self.heads.changed(key, None)

    async def clear_unfinished(self, keys: Sequence[str]) -> None:
        """Abort all uploads of *keys*."""
        for key in keys:
            for upload_id in await self._client.list_uploads(key):
                await self._client.abort_upload(key, upload_id)

    async def sync_new_objects(self) -> None:
        """Do nothing: what S3 accepted is durable."""

    async def replace(self, key: str, content: bytes, expected: Expected, **new: Unpack[NewDocument]) -> Stat:
        """Store an object at once, with the properties of the one it replaces."""
        files = self._writable()
        files.kept.require_room()
        await self._find_target(key, exclusive=expected is ABSENT)
        old = expected if isinstance(expected, Presence) else object_of(expected)
        async with files.holding(key):
            await files.put(key, Splice((MemoryContent(memoryview(content)),)), old)
            files.detach(key)
        return await self.stat(key)

    async def keep(self, key: str, content: bytes, reason: str) -> None:
        """Keep on the side what was refused, for `shardfs recover`."""
        await self._writable().kept.keep(new_name(), key, reason, content)

    async def is_being_written(self, key: str) -> bool:
        """No: what programs of other sessions write is an object when it is complete."""
        return False

    async def create(self, key: str, mode: int, *, exclusive: bool, **owner: Unpack[NewOwner]) -> OpenFile:
        """Open a passthrough file, creating it if there is none; it is stored when it is closed."""
        files = self._writable()
        if await self._find_target(key, exclusive=exclusive) is None and key not in self._spools:
            self.heads.directories.add_with_parents(split(key)[0])
            return SpoolFile(files.begin(key, None), files)
        if exclusive:
            raise ExistsError(f"{key} exists")
        return await self.open_to_write(key)

    async def open_passthrough(self, key: str) -> OpenFile:
        """Open a passthrough file to read it; an object keeps its version, or cannot be read any more."""
        return await self._open_file(key, writable=False)

    async def open_to_write(self, key: str) -> OpenFile:
        """Open a passthrough file to read and write it; it is stored when it is closed."""
        return await self._open_file(key, writable=True)

    async def _open_file(self, key: str, *, writable: bool) -> SpoolFile:
        files = self._writable() if writable else None
        spool = self._spools.get(key)
        if spool is None or not spool.is_local:
            snapshot = await self.objects.open(key)
            spool = self._spools.get(key)
            if spool is None or not spool.is_current(snapshot):
                spool = (
                    Spool(key, snapshot, self.objects.client.clock.now_ns)
                    if files is None
                    else files.begin(key, snapshot)
                )
        return SpoolFile(spool, files)

    async def unlink(self, key: str) -> None:
        """Delete an object, and what is being written to it; its directory stays."""
        files = self._writable()
        async with files.holding(key):
            _require_file(key, await self.stat(key))
            if isinstance(self.heads.find(key), FoundObject | Unknown):
                await self.discard(key)
            files.detach(key)
        self._moved_away(key)

    async def remove_lock(self, key: str) -> None:
        """Remove an object that is named like a lock: nobody holds it."""
        with suppress(NotFoundError):
            await self.unlink(key)

    async def mkdir(self, key: str, mode: int, **owner: Unpack[NewOwner]) -> None:
        """Create a directory, known only to this process until something is stored in it."""
        self._writable()
        try:
            await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            self.heads.directories.add_with_parents(key)
        else:
            raise ExistsError(f"{key or 'the source'} exists")

    async def rmdir(self, key: str) -> None:
        """Remove an empty directory, and the object that stands for it, if there is one."""
        self._writable()
        if not key:
            raise RefusedError("the source cannot be removed")
        if (await self.stat(key)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{key} is not a directory")
        if await self.list(key):
            raise NotEmptyError(f"{key} is not empty")
        if isinstance(await self.heads.stored(key), KnownDirectory):  # an object stands for it
            await self._client.delete(key + "/")
            self.heads.forget(key)
        self.heads.directories.discard(key)
        self.heads.directories.add_with_parents(split(key)[0])

    async def make_directories(self, key: str) -> None:
        """Create the directory *key* and the missing ones above it."""
        self._writable()
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self.make_directories(split(key)[0])
            self._check_key(key)
            self.heads.directories.add_with_parents(key)
        else:
            if status.kind is not Kind.DIRECTORY:
                raise NotADirectoryHereError(f"{key} is not a directory")

    async def link(self, key: str, to: str) -> None:
        """Raise `NotPermittedError`: objects have one name."""
        self._writable()
        raise NotPermittedError(f"{to}: objects in S3 have no second name")

    async def symlink(self, key: str, target: bytes) -> None:
        """Raise `NotPermittedError`: objects cannot be links."""
        self._writable()
        raise NotPermittedError(f"{key}: S3 has no symbolic links")

    async def set_attributes(self, key: str, **changes: Unpack[NewAttributes]) -> Stat:
        """Do nothing but return the status: objects have no attributes to set."""
        self._writable()
        return await self.stat(key)

    async def set_attribute(self, key: str, name: bytes, value: bytes) -> None:
        """Raise `UnsupportedError`: objects have no extended attributes."""
        self._writable()
        raise UnsupportedError(f"{key}: objects have no extended attributes")

    async def remove_attribute(self, key: str, name: bytes) -> None:
        """Raise `UnsupportedError`: objects have no extended attributes."""
        self._writable()
        raise UnsupportedError(f"{key}: objects have no extended attributes")

    async def sync_directory(self, key: str) -> None:
        """Do nothing: what S3 accepted is durable."""
        self._writable()

    async def rename(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what *key* stands for to *to*; raises `CrossDeviceError` for a directory, which S3 does not have.

        S3 cannot move. The content of a file is stored under its new name, replacing what is there by then, and then
        the old name is deleted. Programs move the files of a directory one by one. The caller moves nothing else from
        or to these names meanwhile.
        """
        files = self._writable()
        await self._require_movable(key)
        await self._find_target(to, exclusive=exclusive)
        if key != to:
            await self._move(files, key, to, ABSENT if exclusive else ANY)

    async def move_to_side(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move the file *key* to *to* on the side; raises the errors of `rename`."""
        files = self._writable()
        await self._require_movable(key)
        file = await self._open_file(key, writable=True)
        try:
            async with files.holding(key):
                await files.take(file.spool, to, exclusive=exclusive)
                await self._delete_version(files, key, version_or_none(file.spool.expected))
        finally:
            await file.close()
        self._moved_away(key)

    async def store_as(self, to: str, content: Content, *, exclusive: bool) -> None:
        """Store *content* as the file *to*, as `rename` does with what another name stands for."""
        files = self._writable()
        await self._find_target(to, exclusive=exclusive)
        async with files.holding(to):
            await files.put(to, Splice((content,)), ABSENT if exclusive else ANY)
            files.detach(to)

    async def _require_movable(self, key: str) -> None:
        if (await self.stat(key)).kind is Kind.DIRECTORY:
            raise CrossDeviceError(f"{key or 'the source'} is not moved as a whole: S3 has no directories")

    async def _find_target(self, key: str, *, exclusive: bool) -> Stat | None:
        """Return what *key* stands for; raises the error that prevents a file from taking that name."""
        try:
            target = await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            return None
        if exclusive:
            raise ExistsError(f"{key or 'the source'} exists")
        _require_file(key, target)
        return target

    async def _move(self, files: SpooledFiles, key: str, to: str, expected: Presence) -> None:
        """Move a passthrough file to *to*, replacing what is *expected* there."""
        async with files.holding(key), files.holding(to):
            spool = self._spools.get(key)
            if spool is not None and spool.is_local:
                source = version_or_none(spool.expected)
                await files.store(spool, to, expected)
            else:
                snapshot = await self.objects.open(key)
                source = snapshot.object
                whole = Splice((Kept(0, snapshot.size),))
                await files.put(to, whole, expected, source=snapshot)
            files.detach(to)
            if spool is not None:
                files.rename(spool, to, None if spool.is_local else await self.objects.open(to))
            await self._delete_version(files, key, source)
        self._moved_away(key)

    async def _delete_version(self, files: SpooledFiles, key: str, source: ObjectStat | None) -> None:
        """Delete the version *source* of an object that has another name now, and no other version."""
        if source is None:
            return
        try:
            await files.changes.of(key, ObjectSnapshot(self.objects, key, source)).delete()
        except ConflictError:
            log.warning("%s stays under its old name too: another program has changed it meanwhile", key)

    def _moved_away(self, key: str) -> None:
        """Note that this mount removed *key*; its directory stays."""
        self.heads.directories.add_with_parents(split(key)[0])

    def _stat_here(self, key: str) -> Stat | None:
        """Return the status of *key* if it is a spool, or a directory that only this process knows."""
        spool = self._spools.local(key)
        if spool is not None:
            return spool.stat()
        return self.directory_stat if key in self.heads.directories else None

    def _writable(self) -> SpooledFiles:
        """Return the files; raises `ReadOnlyError` if nothing may be changed."""
        if self.files is None:
            raise ReadOnlyError(f"{self.url} is not open for writing")
        return self.files

    def _check_key(self, key: str) -> None:
        """Raise `NameTooLongError`, or `RefusedError` if it is not UTF-8, if *key* cannot be that of an object."""
        try:
            nbytes = len(self._client.location.full(key).encode())
        except UnicodeEncodeError:
            raise RefusedError(f"{key} cannot be stored: it is not UTF-8, as all keys of S3 are") from None
        if nbytes > MAX_KEY_NBYTES:
            raise NameTooLongError(f"{key} cannot be stored: S3 has keys of {MAX_KEY_NBYTES} bytes at most")

    async def _require_directory(self, key: str) -> None:
        """Raise `NotFoundError` or `NotADirectoryHereError` if nothing can be created under *key*."""
        self._check_key(key)
        parent = split(key)[0]
        if (await self.stat(parent)).kind is not Kind.DIRECTORY:
            raise NotADirectoryHereError(f"{parent} is not a directory")


def _require_file(key: str, status: Stat) -> None:
    if status.kind is Kind.DIRECTORY:
        raise IsADirectoryHereError(f"{key or 'the source'} is a directory")
