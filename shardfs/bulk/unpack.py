"""Unpacking: what a mount would show of a dataset, written as files or objects."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from shardfs.bulk.delivery import Delivered, Item, Job, Mark, copy_file, deliver, each_delivered, state_of
from shardfs.bulk.engine import Context
from shardfs.bulk.manifest import Manifest
from shardfs.bulk.run import Filling, Report, begin, fill
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import ShardfsError
from shardfs.stores.base import PART_NBYTES, Kind, NewObject, Stat, join_key
from shardfs.stores.url import StoreOptions
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.entries.npy import NpyHandle
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import DocumentHandle, FileHandle
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.views import make_view

_DECODED_NBYTES: Final = 64 * 2**20
_BATCH_NBYTES: Final = 64 * 2**20
_BATCH: Final = 1024
"""Files go into one task up to so many bytes, and so many of them."""


@dataclass(frozen=True)
class Shown:
    """What a mount shows: the *view*, with decoded chunks or not."""

    view: str = "v3"
    decode: bool = False

    async def tree(self, source: Source) -> Filesystem:
        """Return the files that a mount of *source* shows."""
        tree = _trees.get(source)
        if tree is None:
            cache = ChunkCache(_DECODED_NBYTES, source.statistics)
            view = make_view(self.view, source.store, decoded=self.decode)
            tree = _trees[source] = Filesystem(source.store, source.hierarchy, view, cache, ttl=source.store.ttl)
            await tree.start()
        return tree


_trees: WeakKeyDictionary[Source, Filesystem] = WeakKeyDictionary()


@dataclass(frozen=True)
class WriteFiles:
    """The task that writes files of one *directory*, as they are *shown*."""

    job: Job
    shown: Shown
    directory: str
    items: tuple[Item, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """The key of the first of them."""
        return self.items[0].key

    async def run(self, context: Context) -> Sequence[Delivered]:
        """Write them."""
        source, store = self.job.reading(context), self.job.storing(context)
        tree = await self.shown.tree(source)
        parent = ROOT
        for name in self.directory.split("/") if self.directory else ():
            parent = (await tree.lookup(parent, os.fsencode(name))).ino

        async def write(item: Item) -> Delivered:
            attributes = await tree.lookup(parent, os.fsencode(item.key.rpartition("/")[2]))
            if attributes.status.kind is not Kind.FILE:  # a link, which is followed within the source
                return await copy_file(self.job, source.store, store, item)
            try:
                number, handle = await tree.open(attributes.ino)
                try:
                    return await self._write(item, handle, context)
                finally:
                    del tree.open_files[number]
                    await handle.close()
            finally:
                tree.forget(attributes.ino, 1)

        return await each_delivered(self.items, write, at_once=self.job.at_once(context))

    async def _write(self, item: Item, handle: FileHandle, context: Context) -> Delivered:
        size, mark = handle.attributes.size, Mark(state_of(handle.attributes.status))
        if isinstance(handle, DocumentHandle):
            mark = Mark(handle.text)
        elif isinstance(handle, NpyHandle):
            async for shard in walk_shards(handle.array):
                mark.add(shard, state_of((await handle.array.shard(shard)).stat))

        async def produce(new: NewObject) -> Stat:
            for offset in range(0, size, PART_NBYTES):
                await new.write([await handle.read(offset, min(PART_NBYTES, size - offset))])
            return await new.finish()

        return await deliver(self.job, self.job.storing(context), item, mark, size, produce)


@dataclass
class Unpacked:
    """What unpacking fills a destination with; *problems* are what it has not, as far as is known."""

    shown: Shown
    problems: list[str] = field(default_factory=list)
    documents: Mapping[str, bytes] = field(default_factory=dict)

    async def look(self, source: Source) -> AsyncIterator[str]:
        """Look at all nodes, and yield what is to be said of them: which are left out, and which stay as they are."""
        view = (await self.shown.tree(source)).view
        async for node in walk_nodes(source):
            name = node.path or "(root)"
            reason = view.left_out(node)
            if reason is not None:
                self.problems.append(f"left out: {name}: {reason}")
            elif node.reason is not None:
                yield f"{name}: stays as it is stored: {node.reason}"
            elif view.caveat(node) is not None:
                yield f"{name}: {view.caveat(node)}"

    async def tasks(self, job: Job, source: Source, manifest: Manifest) -> AsyncIterator[WriteFiles]:
        """Yield the tasks that write all files, documents at the end, and that of the root last of all."""
        tree = await self.shown.tree(source)
        documents: list[tuple[str, list[str]]] = []
        pending = [("", ROOT)]
        while pending:
            path, ino = pending.pop()
            below: list[tuple[str, int]] = []
            here: list[str] = []
            keys: list[str] = []
            nbytes = 0
            try:
                async for batch in (await tree.entry(ino)).list(0):
                    for name, number, size, _ in batch.rows:
                        key = join_key(path, os.fsdecode(name))
                        if batch.attributes.status.kind is Kind.DIRECTORY:
                            tree.retain(number)
                            below.append((key, number))
                            continue
                        if tree.is_document(key):
                            here.append(key)
                            continue
                        if keys and (len(keys) == _BATCH or nbytes + size > _BATCH_NBYTES):
                            yield WriteFiles(job, self.shown, path, manifest.items(keys), nbytes)
                            keys, nbytes = [], 0
                        keys.append(key)
                        nbytes += size
            except ShardfsError as error:
                self.problems.append(f"left out: {path or '(root)'}: {error}")
            if keys:
                yield WriteFiles(job, self.shown, path, manifest.items(keys), nbytes)
            if path:
                tree.forget(ino, 1)
            tree.inodes.sweep()
            documents.append((path, here))
            pending += reversed(below)
        for path, here in reversed(documents):
            if here:
                yield WriteFiles(job, self.shown, path, manifest.items(here), 0)


async def unpack(
    source: str,
    destination: str,
    shown: Shown,
    filling: Filling,
    options: StoreOptions,
    announce: Callable[[str], None],
) -> Report:
    """Write to *destination* what a mount of *source* would show; *announce* is told what to know before."""
    context = Context()
    job = await begin(source, destination, options, filling, context)
    unpacked = Unpacked(shown)
    async for line in unpacked.look(job.reading(context)):
        announce(line)
    return await fill(job, context, unpacked, f"unpack {shown}", filling)
