"""Unpacking: what a mount would show of a dataset, written as files or objects."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final

from shardfs.bulk.delivery import (
    Delivered,
    Item,
    Job,
    MadeOf,
    Storer,
    StoreTask,
    copy_file,
    copying,
    deliver,
    skipped,
    state_of,
)
from shardfs.bulk.engine import WorkerContext, batched
from shardfs.bulk.manifest import Manifest
from shardfs.bulk.run import Plan
from shardfs.bulk.shown import ShownFiles
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import among_shards, nodes_among_shards, walk_nodes, walk_shards
from shardfs.dataset.node import DOCUMENT, groups_above
from shardfs.errors import ShardfsError
from shardfs.format.document import drafts_of
from shardfs.stores.base import Kind, join_key
from shardfs.vfs.chunk_cache import ChunkCache, FillChunk
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.chunk import Chunk
from shardfs.vfs.entries.npy import NpyHandle
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import ChunkHandle, DocumentHandle, FileHandle
from shardfs.vfs.views import make_view

_DECODED_NBYTES: Final = 64 * 2**20
_BATCH_NBYTES: Final = 64 * 2**20
_BATCH: Final = 1024
"""Files are written by one task: at most so many bytes, and so many files."""


@dataclass(frozen=True)
class Unpacking:
    """How a dataset is unpacked: as a mount shows it in a *view*, with decoded chunks or not, and with a *draft*."""

    view: str = "v3"
    decode: bool = False
    draft: str | None = None

    def __str__(self) -> str:
        draft = f" --draft {self.draft}" if self.draft is not None else ""
        return f"--view {self.view}{' --decode' if self.decode else ''}{draft}"

    async def tree(self, context: WorkerContext, job: Job) -> Filesystem:
        """Return the files that a mount of the source shows."""
        return await context.last((job, self), partial(self.show, job.reading(context)))

    async def show(self, source: Source) -> Filesystem:
        """Return the files that a mount of *source* shows; its hierarchy shows this view from now on."""
        cache = ChunkCache(_DECODED_NBYTES, source.statistics)
        view = make_view(self.view, source.store, decoded=self.decode, drafts=drafts_of(self.draft))
        tree = Filesystem(source.store, source.hierarchy, view, cache, ttl=source.store.ttl)
        await tree.start()
        return tree


@dataclass(frozen=True)
class WriteFiles(StoreTask):
    """Writes files as *unpacking* shows them; groups describe only *nodes*, unless that is None."""

    unpacking: Unpacking
    nodes: frozenset[str] | None = None

    async def begin(self, context: WorkerContext) -> Storer:
        """Return a function that writes one of them."""
        source, store = self.job.reading(context), self.job.made(context).writable
        tree = await self.unpacking.tree(context, self.job)
        if self.nodes is not None:
            tree.hierarchy.copies.keep_only(self.nodes)
        files = ShownFiles(tree)

        async def write(item: Item) -> Delivered:
            async with files.look(item.key) as attributes:
                if attributes.status.kind is not Kind.FILE:  # a link, followed within the source
                    await tree.check(item.key)
                    return await copy_file(self.job, source.store, store, item)
                entry = await tree.entry(attributes.ino)
                async with files.open(attributes.ino) as handle:
                    return await self._write(item, entry, handle, context)

        return write

    async def _write(self, item: Item, entry: Entry, handle: FileHandle, context: WorkerContext) -> Delivered:
        size, made_of = handle.attributes.size, MadeOf(state_of(handle.attributes.status))
        if self.unpacking.decode and isinstance(entry, Chunk):
            made_of.add(entry.chunks.array.fingerprint)
        if isinstance(handle, DocumentHandle):
            made_of = MadeOf(handle.text)
        elif isinstance(handle, ChunkHandle) and isinstance(handle.extent, FillChunk):
            assert isinstance(entry, Chunk)  # made of what the document says, whatever is stored
            made_of.add(entry.chunks.array.fingerprint, handle.extent.element)
        elif isinstance(handle, NpyHandle):
            made_of.add(handle.array.fingerprint)
            async for shard in walk_shards(handle.array):
                made_of.add(shard, state_of((await handle.array.shard(shard)).stat))

        return await deliver(self.job, self.job.made(context).writable, item, made_of, size, copying(handle.read, size))


@dataclass
class UnpackPlan(Plan):
    """What unpacking a source amounts to; all documents are files, too."""

    unpacking: Unpacking

    def __str__(self) -> str:
        return f"unpack {self.unpacking}"

    async def look(self, job: Job, context: WorkerContext) -> AsyncIterator[str]:
        """Look at all nodes, and yield lines about them: which are skipped, and which stay as they are."""
        view = (await self.unpacking.tree(context, job)).view
        job.reading(context).hierarchy.look_above()
        generated: set[str] = set()
        async for node in walk_nodes(job.reading(context)):
            name = node.path or "(root)"
            reason = view.skipped(node)
            generated.update(view.files_beside(node) if reason is None else ())
            for path in generated.intersection([node.path, *(above for above, _ in groups_above(node.path))]):
                reason = f"the name {path} is that of another file of this view: rename it, or use --view v3"
            self.report.expect(1)
            if node.document is not None:
                self.sources[join_key(node.path, DOCUMENT)] = state_of(node.document_stat)
            self.sources |= {join_key(node.path, name): state_of(stat) for name, stat in node.describing.items()}
            if node.is_only_described:
                self.report.problems.append(skipped(node.path, node.reason or ""))
            elif reason is not None:
                self.report.problems.append(skipped(node.path, reason))
            elif node.reason is not None:
                if node.document is not None:  # else what cannot be read is skipped, and reported then
                    yield f"{name}: stays as it is stored: {node.reason}"
            else:
                if node.any_array is not None and self.unpacking.view != "npy":
                    self.report.expect(node.any_array.grid.nchunks)
                if view.caveat(node) is not None:
                    yield f"{name}: {view.caveat(node)}"
            if node.any_array is not None and not view.shows_among_shards(node):
                async for key in nodes_among_shards(node.any_array):
                    self.report.problems.append(skipped(key, among_shards(node.path)))

    async def tasks(self, job: Job, context: WorkerContext, manifest: Manifest) -> AsyncIterator[StoreTask]:
        """Yield the tasks that write all files but documents."""
        tree = await self.unpacking.tree(context, job)
        async for batch, nbytes in batched(self._files(tree), itemgetter(1), most=_BATCH, nbytes=_BATCH_NBYTES):
            yield WriteFiles(manifest.items(key for key, _ in batch), nbytes, job, self.unpacking)

    def store_documents(self, job: Job, items: tuple[Item, ...]) -> StoreTask:
        """Return the task that stores these documents."""
        nodes = frozenset(key.rpartition("/")[0] for key in self.documents)
        return WriteFiles(items, 0, job, self.unpacking, nodes)

    async def _files(self, tree: Filesystem) -> AsyncIterator[tuple[str, int]]:
        """Yield all files with their sizes; the documents among them are only noted."""
        async for key, size in ShownFiles(tree).below():
            if isinstance(size, ShardfsError):
                self.report.problems.append(skipped(key, size))
            elif tree.is_document(key):
                self.documents.append(key)
            else:
                yield key, size
