"""Publishing documents: what a program wrote over the metadata that it sees, brought into the store."""

import logging
from contextlib import suppress

import trio

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.dataset.shrinking import empty_outside
from shardfs.dataset.writer import Writer
from shardfs.errors import (
    ExistsError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    RefusedError,
)
from shardfs.format.chunk_key import ChunkKeyEncoding
from shardfs.format.consolidated import copy_paths, reshard_consolidated
from shardfs.format.metadata import ArrayMetadata, Document, GroupMetadata, Json, encode_json, parse_document
from shardfs.format.reshard import reshard
from shardfs.format.shard_new import shard_new
from shardfs.stores.base import join_key, prune
from shardfs.vfs.staging import Staging
from shardfs.vfs.tree import Tree

log = logging.getLogger(__name__)


class Publisher:
    """The documents of a tree that may be changed.

    *chunks_per_shard* is how new arrays are sharded; None stores them as they are written.
    """

    def __init__(
        self, tree: Tree, writer: Writer, staging: Staging, *, chunks_per_shard: tuple[int, ...] | None
    ) -> None:
        self._tree = tree
        self._writer = writer
        self._staging = staging
        self._chunks_per_shard = chunks_per_shard
        self._lock = trio.Lock()

    async def publish(self, directory: str, written: bytes, *, mode: int, exclusive: bool = False) -> None:
        """Make *written* the document of *directory*.

        Raises `RefusedError` if it is none, or one that cannot be brought into the store; what is stored stays then.
        With *exclusive*, `ExistsError` if there is a document.
        """
        async with self._lock:
            shown = self._tree.hierarchy.last_seen(directory)
            node = await self._tree.hierarchy.look_again(directory)
            if exclusive and node.document_stat is not None:
                raise ExistsError(f"{join_key(directory, DOCUMENT)} exists")
            try:
                edited = parse_document(written)
                _require_seen(shown, node, edited)
                await self._publish(node, edited, written, mode=mode, exclusive=exclusive)
            except (MetadataError, RefusedError) as error:
                raise RefusedError(f"{join_key(directory, DOCUMENT)} is refused: {error}") from None

    async def remove(self, directory: str) -> None:
        """Remove the document of *directory*; an array stays one until it is emptied or has a new document."""
        async with self._lock:
            node = await self._tree.hierarchy.look_again(directory)
            if node.array is not None:
                await self._writer.committer.flush(below=directory)
            await self._tree.store.unlink(join_key(directory, DOCUMENT))
            self._tree.hierarchy.leave(node)

    async def _publish(
        self, node: Node, edited: ArrayMetadata | GroupMetadata, written: bytes, *, mode: int, exclusive: bool
    ) -> None:
        if isinstance(edited, GroupMetadata):
            await self._require_no_chunks(node, "a group")
            document = await self._reshard_copies(node.path, edited.document)
            await self._store(node, document, edited.document, written, mode=mode, exclusive=exclusive)
        elif edited.is_sharded:
            await self._require_no_chunks(node, "a sharded array")
            self._tree.hierarchy.show_as_stored(node.path)
            await self._store(node, edited.document, edited.document, written, mode=mode, exclusive=exclusive)
        elif node.array is not None and isinstance(node.metadata, ArrayMetadata):
            await self._edit_array(node, node.metadata, edited, written, mode=mode, exclusive=exclusive)
        elif node.document is None:
            await self._new_array(node, edited, written, mode=mode, exclusive=exclusive)
        else:
            await self._store(node, edited.document, edited.document, written, mode=mode, exclusive=exclusive)

    async def _edit_array(
        self, node: Node, stored: ArrayMetadata, edited: ArrayMetadata, written: bytes, *, mode: int, exclusive: bool
    ) -> None:
        """Change the document of an array that is shown unsharded, with chunks that lie outside its new shape."""
        assert node.array is not None
        array, committer = node.array, self._writer.committer
        if node.document is None and await array.is_empty():
            await self.prune(node)
            self._tree.hierarchy.abandon(node.path)
            node = await self._tree.hierarchy.node(node.path, fresh=True)
            await self._new_array(node, edited, written, mode=mode, exclusive=exclusive)
            return
        document = reshard(stored, edited)
        if edited.shape == stored.shape:
            await self._store(node, document, edited.document, written, mode=mode, exclusive=exclusive)
            return
        await committer.flush(below=node.path)  # a new shape is a new numbering of chunks
        if all(new >= old for new, old in zip(edited.shape, stored.shape, strict=True)):
            await self._store(node, document, edited.document, written, mode=mode, exclusive=exclusive)
            return
        shrink = await self._writer.shrink(node.path, stored.shape)
        await self._store(node, document, edited.document, written, mode=mode, exclusive=exclusive)
        await empty_outside(committer, array, edited.shape)
        await committer.commits.finish([shrink.sequence])

    async def _new_array(
        self, node: Node, edited: ArrayMetadata, written: bytes, *, mode: int, exclusive: bool
    ) -> None:
        """Store the document of a new array: sharded if that is wanted and possible, with chunks that came first."""
        if self._chunks_per_shard is not None:
            try:
                document = shard_new(edited, self._chunks_per_shard)
            except NotUnshardable as reason:
                log.warning("%s is stored as it is written: %s", node.path or "the array", reason)
            else:
                encoding = ChunkKeyEncoding.parse(edited.chunk_key_encoding)
                await self._staging.put_aside(node.path, encoding, edited.ndim)
                await self._store(node, document, edited.document, written, mode=mode, exclusive=exclusive)
                array = (await self._tree.hierarchy.node(node.path)).array
                if array is not None:
                    array.arrangement.directories = {}
                    chunks = self._tree.chunk_tree(await self._tree.hierarchy.node(node.path))
                    assert chunks is not None
                    self._tree.became_chunks(chunks)
                await self._staging.absorb(node.path)
                await self._refresh_copies(node.path)
                return
        await self._store(node, edited.document, edited.document, written, mode=mode, exclusive=exclusive)

    async def _store(
        self, node: Node, document: Document, edited: Document, written: bytes, *, mode: int, exclusive: bool
    ) -> None:
        content = written if document == edited else encode_json(document)
        exclusive = exclusive and node.document is None
        try:
            await self._tree.store.replace(join_key(node.path, DOCUMENT), content, exclusive=exclusive, mode=mode)
        finally:
            await self._tree.refresh(node.path)

    async def _require_no_chunks(self, node: Node, what: str) -> None:
        if node.array is None:
            return
        if not await node.array.is_empty():
            raise RefusedError(f"the directory holds chunks of an array, and cannot become {what}")
        await self.prune(node)
        self._tree.hierarchy.abandon(node.path)

    async def prune(self, node: Node) -> None:
        """Commit that all chunks of an array are gone, and remove the directories that held its shards."""
        assert node.array is not None
        await self._writer.committer.flush(below=node.path)
        arrangement = node.array.arrangement
        root = arrangement.key_encoding.root(node.array.grid.ndim)
        names = [root] if root else [str(index) for index in await node.array.stored_shards(())]
        if arrangement.key_encoding.is_nested(node.array.grid.ndim):
            for name in names:
                await prune(self._tree.store, join_key(node.path, name))
        node.array.forget_listing()

    async def _reshard_copies(self, path: str, document: Document) -> Document:
        """Return a group's document with its copies of sharded arrays as they are stored."""
        copies: dict[str, Json] = {}
        for relative in copy_paths(document):
            if ".." not in relative.split("/"):
                with suppress(NotFoundError, NotADirectoryHereError):
                    found = await self._tree.hierarchy.node(join_key(path, relative.strip("/")))
                    copies[relative] = found.metadata.document if found.metadata is not None else None
        return reshard_consolidated(document, copies.get)

    async def _refresh_copies(self, path: str) -> None:
        """Bring copies of an array that was sharded on its way, in the groups above it, to what is stored now."""
        while path:
            path = path.rpartition("/")[0]
            node = await self._tree.hierarchy.node(path)
            if not isinstance(node.metadata, GroupMetadata):
                continue
            try:
                document = await self._reshard_copies(path, node.metadata.document)
            except RefusedError as reason:
                log.warning("the consolidated metadata of %s is out of date: %s", path or "the source", reason)
                continue
            if document != node.metadata.document:
                await self._tree.store.replace(join_key(path, DOCUMENT), encode_json(document))
                self._tree.hierarchy.forget(path)


def _require_seen(shown: Node | None, stored: Node, edited: ArrayMetadata | GroupMetadata) -> None:
    """Raise `RefusedError` if *edited* removes chunks that its writer cannot have known of.

    That is an array that another program has given the shape of *stored*, where the mount showed another one.
    """
    if shown is None or not isinstance(shown.metadata, ArrayMetadata) or not isinstance(edited, ArrayMetadata):
        return
    if stored.array is None or not isinstance(stored.metadata, ArrayMetadata):
        return
    was, now, wanted = shown.metadata.shape, stored.metadata.shape, edited.shape
    shrinks = len(now) == len(wanted) and any(new < old for new, old in zip(wanted, now, strict=True))
    if was != now and shrinks:
        raise RefusedError(f"another program has changed the shape from {was} to {now}; read the document again")
