"""Names that are shown as they are stored: looked up and listed, in plain directories and beside chunks."""

import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shardfs.dataset.maintenance.walk import prune, walk_files
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError
from shardfs.stores.base import Kind, Stat, is_reserved, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.vfs.at_once import for_each
from shardfs.vfs.attributes import Attributes, absent
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.document import StoredDocument
from shardfs.vfs.entries.passthrough import Passthrough, Special
from shardfs.vfs.handles import OTHERS, Batch

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem

_BATCH: Final = 256
_MANY: Final = 1 << 40
_AT_ONCE: Final = 16


class StoredNames:
    """The stored names of *fs*."""

    def __init__(self, fs: "Filesystem") -> None:
        self._fs = fs

    async def lookup(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name* as it is stored in *directory*."""
        try:
            return await self.attributes(join_key(directory, name))
        except (NotFoundError, NotADirectoryHereError):
            return self.nothing()

    def nothing(self) -> Attributes:
        """Return what answers for a name that nothing is stored under."""
        return absent(0.0 if self._fs.is_writable else self._fs.ttl)

    async def attributes(self, key: str) -> Attributes:
        """Return the attributes of what is stored under *key*; raises `NotFoundError`."""
        if is_reserved(key.rpartition("/")[2]):
            raise NotFoundError(f"{key} is not shown")
        return self.attributes_of(key, await self._fs.store.stat(key))

    async def lookup_beside_chunks(self, directory: str, name: str) -> Attributes:
        """Return the attributes of *name*, which is no chunk's, in a directory of chunks.

        What is stored under the name of a lock is about a shard, and not shown: see `place_beside_chunks`.
        """
        if is_lock(name) and self._fs.scratch is None:
            return self.nothing()
        return await self.lookup(await self.place_beside_chunks(directory, name), name)

    async def place_beside_chunks(self, directory: str, name: str) -> str:
        """Return the directory of the store that holds *name*, which is no chunk's and lies among chunks.

        That is the directory of the same path for what has been stored there, else one among the scratch.  A lock that
        a program takes on an inner chunk is always there: the stored file of that name would be the lock of a shard.
        """
        if self._fs.scratch is None:
            return directory
        if is_lock(name):
            return join_key(self._fs.scratch, directory)
        try:
            await self._fs.store.stat(join_key(directory, name))
        except (NotFoundError, NotADirectoryHereError):
            return join_key(self._fs.scratch, directory)
        return directory

    async def beside_chunks(self, directory: str, name: str) -> Passthrough:
        """Return what *name*, which is no chunk's, stands for among chunks, to change it."""
        place = await self.place_beside_chunks(directory, name)
        return Passthrough(self._fs, join_key(place, name), is_scratch=place != directory)

    async def remove_scratch(self, directory: str) -> None:
        """Remove the names beside chunks in a directory that is gone, and below it, where nothing shows them."""
        scratch = join_key(self._fs.scratch or "", directory)
        with suppress(NotFoundError, NotADirectoryHereError):
            async for key in walk_files(self._fs.store, scratch):
                await self._fs.store.unlink(key)
                self._fs.inodes.removed(key)
            await prune(self._fs.store, scratch)

    async def left_out(self, directory: str, names: Sequence[str]) -> Collection[str]:
        """Return which of *names*, directories below *directory*, are of nodes that the view does not show."""
        found: set[str] = set()
        fs = self._fs

        async def look(name: str) -> None:
            with suppress(ShardfsError):  # which comes again when somebody looks into the directory
                if fs.view.left_out(await fs.hierarchy.node(join_key(directory, name))) is not None:
                    found.add(name)

        if fs.view.translates and not fs.is_scratch(directory):
            await for_each(names, look, _AT_ONCE)
        return found

    async def list(
        self, directory: str, cookie: int, generated: Mapping[str, Attributes], hides: Callable[[str], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Yield *generated* names, then those stored in *directory* that *hides* lets through, behind *cookie*."""
        if 0 < cookie < OTHERS:
            return
        skip = max(0, cookie - OTHERS)
        for i, (name, attributes) in enumerate(generated.items()):
            if i >= skip:
                yield Batch(
                    attributes, [(os.fsencode(name), attributes.ino, attributes.size, OTHERS + i + 1)], is_counted=True
                )
        entries = [
            entry
            for entry in await self._fs.store.list(directory)
            if not is_reserved(entry.name) and not hides(entry.name)
        ]
        left_out = await self.left_out(directory, [entry.name for entry in entries if entry.kind is Kind.DIRECTORY])
        names = sorted(entry.name for entry in entries if entry.name not in left_out)
        for start in range(max(0, skip - len(generated)), len(names), _BATCH):
            part = names[start : start + _BATCH]
            behind = OTHERS + len(generated) + start + 1
            for i, (name, status) in enumerate(zip(part, await self._fs.store.stat_in(directory, part), strict=True)):
                if status is not None:
                    attributes = self.attributes_of(join_key(directory, name), status)
                    yield Batch(
                        attributes, [(os.fsencode(name), attributes.ino, attributes.size, behind + i)], is_counted=True
                    )

    async def list_beside_chunks(
        self, directory: str, cookie: int, hides: Callable[[str], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Yield the stored names in a directory of chunks that are no chunks', behind *cookie*."""
        if cookie < OTHERS + _MANY:
            try:
                async for batch in self.list(directory, cookie, {}, lambda name: hides(name) or is_lock(name)):
                    yield batch
            except (NotFoundError, NotADirectoryHereError):
                pass  # directories above inner chunks are more than those above shards
        async for batch in self.list_scratch(directory, cookie, hides):
            yield batch

    async def list_scratch(
        self, directory: str, cookie: int, hides: Callable[[str], bool]
    ) -> AsyncGenerator[Batch, None]:
        """Yield names that are kept beside the chunks in *directory*: their cookies follow those of stored names."""
        if self._fs.scratch is None or 0 < cookie < OTHERS:
            return
        within = cookie - _MANY if cookie > OTHERS + _MANY else 0
        try:
            async for batch in self.list(join_key(self._fs.scratch, directory), within, {}, hides):
                yield batch._replace(rows=[(name, ino, size, behind + _MANY) for name, ino, size, behind in batch.rows])
        except (NotFoundError, NotADirectoryHereError):
            pass  # nothing was ever made there

    def attributes_of(self, path: str, status: Stat) -> Attributes:
        """Return the attributes of what is stored under *path*, and in this state."""
        fs, key, nlink = self._fs, None, 1
        if status.kind is Kind.DIRECTORY:
            kind: type[Entry] = fs.view.directory
        elif status.kind is Kind.FILE and fs.is_document(path):
            kind = StoredDocument
        else:
            kind, nlink = Passthrough if status.kind is Kind.FILE else Special, status.nlink
            if isinstance(status.identity, tuple):  # links are one file, where files are known
                key = kind, status.identity  # of a link that is gone, a file may get the identity
        ino = fs.inodes.number(kind, path, status.identity, nlink=nlink, key=key)
        return Attributes(ino, status.size, fs.ttl, status)
