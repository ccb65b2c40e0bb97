"""An S3 source that is read and written.

Shards are changed on condition (`edit`), documents are replaced at once, and files that pass through are changed on
this machine first and sent a moment later (`copies`, `outbox`).
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from shardfs.errors import ConflictError, ExistsError, IsADirectoryHereError, NotFoundError, SourceError
from shardfs.stores.base import Content, Edit, Kind, Splice, Stat
from shardfs.stores.local import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.stores.s3.copies import Copies
from shardfs.stores.s3.edit import S3Edit, Writing
from shardfs.stores.s3.objects import ObjectStat
from shardfs.stores.s3.outbox import Outbox
from shardfs.stores.s3.passing import PassingNames
from shardfs.stores.s3.probe import probe
from shardfs.stores.s3.snapshot import S3Snapshot
from shardfs.stores.s3.uploads import Uploads
from shardfs.stores.s3.whole_objects import MAX_WHOLE_NBYTES

log = logging.getLogger(__name__)

_OWN: Final = ".shardfs"
_UPLOADS: Final = f"{_OWN}/uploads"
_ATTEMPTS: Final = 5


class S3Store(PassingNames):
    """The objects below a location; nothing can be changed before `start_writing`.

    Of files that pass through the last writer wins, as on any file system.  A directory in which nothing is stored is
    known to this process only.  Objects have neither modes nor owners nor times that can be set.
    """

    _writing: Writing | None = None
    _outbox: Outbox | None = None

    async def start_writing(self, directory: str, *, single_writer: bool) -> None:
        """Find out whether it is safe, and take up what an earlier mount with the same *directory* has left."""
        side = LocalStore(directory)
        await side.make_directories(_OWN)
        client, location, counts = self.objects.client, self.objects.location, self.objects.counts
        uploads = Uploads(f"{side.root}/{_UPLOADS}", location, counts)
        await uploads.clean(client)
        before = counts.conflicts
        conditions = await probe(client, location, uploads)
        counts.conflicts = before  # those were provoked
        if not conditions.is_safe and not single_writer:
            raise SourceError(conditions.missing(self.url))
        copies = Copies(side, self.clock)
        nleft = await copies.resume()
        if nleft:
            log.info("%d files that an earlier mount has left are sent to %s", nleft, self.url)
        self.objects.keeps_properties = True
        self._writing = Writing(
            client, location, self.objects, uploads, conditions, single_writer, f"{side.root}/{_OWN}"
        )
        self.copies = copies
        self._outbox = Outbox(copies, self._put)

    async def run(self) -> None:
        """Send files that pass through a moment after they were written, for as long as this is not cancelled."""
        if self._outbox is not None:
            await self._outbox.run()

    async def flush(self) -> None:
        """Send all files that wait for it; raises `StoreError` if one cannot be sent."""
        if self._outbox is not None:
            await self._outbox.flush()

    async def check_writable(self, key: str) -> None:
        """Return: what keeps an object from being changed, a request would tell."""
        side = self.changed_side(key)
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
    ) -> AsyncIterator[Edit]:
        """Begin a change of an object, which nobody is kept from changing meanwhile; it has no mode and no owner."""
        side = self.changed_side(key)
        if side is not None:
            async with side.edit(key, mode=mode, uid=uid, gid=gid) as edit:
                yield edit
            return
        copies = self.changed_copies
        if copies.names.kind(key) is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key} is a directory")
        copy = copies.find(key)
        if copy is not None and self._outbox is not None:
            await self._outbox.send(copy)
            if copies.find(key) is not None:
                raise ConflictError(f"{key} is open to be written as a file that passes through")
        yield await self._edit(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)

    async def replace(self, key: str, content: bytes, *, exclusive: bool = False, mode: int | None = None) -> Stat:
        """Store an object at once, with the properties of what it replaces.

        If *exclusive*, no other host can have made it meanwhile.
        """
        side = self.changed_side(key)
        if side is not None:
            return await side.replace(key, content, exclusive=exclusive, mode=mode)
        data = MemoryContent(memoryview(content))
        async with self.changed_copies.alone(key) as copy:
            await self._check_target(key, exclusive=exclusive)
            if exclusive:
                await self._put_new(key, data)
            else:
                await self.objects.put_object(key, data)
                if copy is not None:
                    await self.changed_copies.remove(copy)
        return await self.stat(key)

    async def _check_target(self, key: str, *, exclusive: bool) -> None:
        """Raise what keeps a file from being stored under *key*, as far as it is known here."""
        try:
            status = await self.stat(key)
        except NotFoundError:
            await self._require_directory(key)
            return
        if exclusive:
            raise ExistsError(f"{key or 'the source'} exists")
        if status.kind is Kind.DIRECTORY:
            raise IsADirectoryHereError(f"{key or 'the source'} is a directory")

    async def _edit(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> S3Edit:
        try:
            snapshot = await self.objects.open(key, head_nbytes=head_nbytes, tail_nbytes=tail_nbytes)
        except NotFoundError:
            snapshot = None
        return self._change(key, snapshot)

    def _change(self, key: str, snapshot: S3Snapshot | None) -> S3Edit:
        assert self._writing is not None
        return S3Edit(self._writing, key, snapshot)

    async def _put_new(self, key: str, content: Content) -> None:
        """Store an object where there is nothing, whoever else does the same; raises `ExistsError`."""
        try:
            await self._change(key, None).splice(Splice((content,)))
        except ConflictError:
            raise ExistsError(f"{key} exists: another program has made it") from None

    async def _put(self, key: str, content: Content) -> ObjectStat | None:
        """Store a file that passes through; return the state of what it replaces."""
        if content.nbytes <= MAX_WHOLE_NBYTES:
            return await self.objects.put_object(key, content)
        for attempt in range(_ATTEMPTS):
            try:
                await (await self._edit(key)).splice(Splice((content,)))
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        return None
