"""The files that a mount shows of a source, by their paths: they are unpacked, or compared."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shardfs.errors import NotFoundError, ShardfsError
from shardfs.stores.base import Kind, join_key
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import Attributes, FileHandle
from shardfs.vfs.inodes import ROOT, in_table


class ShownFiles:
    """The files of *tree*."""

    def __init__(self, tree: Filesystem) -> None:
        self.tree = tree
        self._directories = {"": ROOT}

    async def _directory(self, path: str) -> int:
        if path not in self._directories:
            self._directories[path] = (await self._lookup(path)).ino
        return self._directories[path]

    async def _lookup(self, path: str) -> Attributes:
        above, _, name = path.rpartition("/")
        attributes = await self.tree.lookup(await self._directory(above), os.fsencode(name))
        if not attributes.ino:
            raise NotFoundError(f"{path} does not exist")
        return attributes

    @asynccontextmanager
    async def look(self, path: str) -> AsyncIterator[Attributes]:
        """Yield the attributes of the file at *path*, whose number is valid in the block; raises `NotFoundError`."""
        attributes = await self._lookup(path)
        try:
            yield attributes
        finally:
            self.tree.drop_references(attributes.ino, 1)

    @asynccontextmanager
    async def open(self, ino: int) -> AsyncIterator[FileHandle]:
        """Open the file *ino* for the length of the block."""
        number, handle = await self.tree.open(ino)
        try:
            yield handle
        finally:
            del self.tree.open_files[number]
            await handle.close()

    async def below(self, directory: str = "") -> AsyncIterator[tuple[str, int | ShardfsError]]:
        """Yield the paths of all files below *directory*, with their sizes.

        A directory that cannot be listed, or not to its end, is yielded with the error. Shards of which only a copy in
        a group says of which array they are, are skipped.
        """
        pending = [(directory, await self._directory(directory))]
        while pending:
            path, ino = pending.pop()
            below: list[tuple[str, int]] = []
            try:
                copy = (await self.tree.hierarchy.node(path)).sharded_copy if in_table(ino) else None
                async for batch in (await self.tree.entry(ino)).list(0):
                    for name, number, size, _ in batch.rows:
                        key = join_key(path, os.fsdecode(name))
                        if copy is not None and copy.has_shards_at(os.fsdecode(name)):
                            continue
                        if batch.attributes.status.kind is Kind.DIRECTORY:
                            self.tree.retain(number)
                            below.append((key, number))
                        else:
                            yield key, size
            except ShardfsError as error:
                yield path, error
            if path != directory:
                self.tree.drop_references(ino, 1)
            pending += reversed(below)
