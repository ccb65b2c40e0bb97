"""Publishing documents: what a program wrote over the metadata that it sees, brought into the store."""

import logging
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.dataset.maintenance.shrink import empty_outside
from shardfs.dataset.maintenance.walk import prune
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.dataset.writer import Writer
from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    RefusedError,
    ShardfsError,
    StaleError,
    StoreError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES, Document, encode_json
from shardfs.format.lens.consolidated import Consolidated, copies_told, copies_told_in, put_text
from shardfs.format.lens.unsharded import check_resized, shard_new
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata
from shardfs.stores.base import Expected, Kind, is_reserved, join_key
from shardfs.stores.local.file_lock import LOCK_SUFFIX, is_lock
from shardfs.vfs.entries.document import Document as DocumentEntry
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.orphans import OrphanChunks
from shardfs.vfs.views import Edit, EditableView

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5


@dataclass(frozen=True)
class _Publication:
    """A document as a program wrote it."""

    entry: DocumentEntry
    written: bytes
    mode: int
    exclusive: bool


class Publisher:
    """The documents of a tree that may be changed, as *view* shows them.

    *chunks_per_shard* is how new arrays are sharded; None stores them as they are written.
    """

    def __init__(
        self,
        fs: Filesystem,
        view: EditableView,
        writer: Writer,
        orphans: OrphanChunks,
        *,
        chunks_per_shard: tuple[int, ...] | None,
    ) -> None:
        self._fs = fs
        self._view = view
        self._writer = writer
        self._orphans = orphans
        self._chunks_per_shard = chunks_per_shard

    async def publish(self, entry: DocumentEntry, written: bytes, *, mode: int, exclusive: bool = False) -> None:
        """Make *written* the document *entry*.

        Raises `RefusedError` if it is none, or one that cannot be brought into the store; what is stored stays then.
        With *exclusive*, `ExistsError` if there is such a document.
        """
        shown = self._fs.hierarchy.last_seen(entry.node_path)
        node = await self._fs.hierarchy.look_again(entry.node_path)
        if exclusive and await entry.is_there():
            raise ExistsError(f"{entry.path} exists")
        publication = _Publication(entry, written, mode, exclusive)
        try:
            node = await self._without_emptied(node, entry, written)
            told = None
            if len(written) > LARGE_NBYTES and entry.name == DOCUMENT:
                told = await self._fs.worker.call(copies_told_in, written)
            edited = await self._edit(node, entry, written) if told is None else None
            if told is not None:
                await self._publish_large_group(node, told, publication)
            elif edited is None:
                await self._store_as_written(node, publication)
            else:
                _require_seen(shown, node, edited)
                await self._publish(node, edited, publication)
        except (MetadataError, RefusedError) as error:
            raise RefusedError(f"{entry.path} is refused: {error}") from None

    async def remove(self, entry: DocumentEntry) -> None:
        """Remove a document; an array stays one until it is emptied or has a new document."""
        node = await self._fs.hierarchy.look_again(entry.node_path)
        documents = self._fs.documents(node)
        edited = await self._view.edit(self._fs.hierarchy, Edit(node, entry.name, None))
        if edited is not None and entry.name in documents:
            mode = stat.S_IMODE(node.document_stat.mode) if node.document_stat is not None else 0o644
            await self._publish(node, edited, _Publication(entry, b"", mode, exclusive=False))
        elif entry.name not in documents:
            await self._fs.store.unlink(entry.path)
            self._leave(node, entry)
        else:
            if self._array(node) is not None:
                await self._writer.commits.flush(below=node.path)
            for other in self._view.document_names - {DOCUMENT}:
                key = join_key(node.path, other)
                if other in documents and other != entry.name:  # it goes when it is removed itself
                    await self._fs.store.replace(key, documents[other].text)
                else:  # what was stored beside the v3 document, and hidden by it, must not come back
                    with suppress(NotFoundError, IsADirectoryHereError):
                        await self._fs.store.unlink(key)
            await self._fs.store.unlink(join_key(node.path, DOCUMENT))
            self._fs.hierarchy.leave(node)
        self._fs.texts.forget(entry.path)

    def _leave(self, node: Node, entry: DocumentEntry) -> None:
        if entry.name == DOCUMENT:
            self._fs.hierarchy.leave(node)
        else:
            self._fs.hierarchy.forget(node.path)

    def _array(self, node: Node) -> Array | None:
        """Return the array whose chunks are shown one by one, if *node* is one."""
        chunk_view = self._view.chunk_view(node)
        return chunk_view.array if chunk_view is not None else None

    async def _without_emptied(self, node: Node, entry: DocumentEntry, written: bytes) -> Node:
        """Return *node*, which is no array any more if its document was removed and no chunk is left.

        It stays what it was if the document that was *written* means the same: programs that unpack remove first.
        """
        chunks = self._fs.chunk_tree(node)
        if node.document is not None or chunks is None or not await chunks.is_empty():
            return node
        with suppress(MetadataError, RefusedError):
            edited = await self._edit(node, entry, written)
            if edited is None or self._is_that_array(node.metadata, edited):
                return node
        await self.prune(node)
        self._fs.hierarchy.abandon(node.path)
        return await self._fs.hierarchy.node(node.path, fresh=True)

    def _is_that_array(self, stored: Metadata | None, edited: Metadata) -> bool:
        """Whether *edited* describes the chunks of *stored*; raises `RefusedError` if not, as an edit of it would."""
        if not isinstance(stored, ArrayMetadata) or not isinstance(edited, ArrayMetadata):
            return False
        self._view.lens.put(stored, edited)
        return edited.shape == stored.shape

    async def _edit(self, node: Node, entry: DocumentEntry, written: bytes) -> Metadata | None:
        """Return the unsharded v3 document that was written; None if it is stored as it is."""
        beside = await self._documents_in(node.path) if node.document is None else {}
        is_new = self._chunks_per_shard is not None and entry.name not in beside
        edit = Edit(node, entry.name, written, beside, is_new, self._documents_in, self._directories_in)
        try:
            return await self._view.edit(self._fs.hierarchy, edit)
        except NotUnshardable as reason:
            log.warning("%s is stored as it is written: %s", node.path or "the array", reason)
            return None

    async def _documents_in(self, path: str) -> Mapping[str, bytes]:
        """Return the documents in the directory *path* that are stored as they were written."""
        found: dict[str, bytes] = {}
        for name in self._view.document_names:
            with suppress(NotFoundError, NotADirectoryHereError, IsADirectoryHereError):
                snapshot = await self._fs.store.open(join_key(path, name))
                if snapshot.size <= MAX_DOCUMENT_NBYTES:
                    found[name] = bytes(await snapshot.read(0, snapshot.size))
        return found

    async def _directories_in(self, path: str) -> Sequence[str]:
        """Return the names of the directories that are stored in the directory *path*."""
        entries = await self._fs.store.list(path)
        return [entry.name for entry in entries if entry.kind is Kind.DIRECTORY and not is_reserved(entry.name)]

    async def _publish(self, node: Node, edited: Metadata, publication: _Publication) -> None:
        array = self._array(node)
        if isinstance(edited, GroupMetadata):
            await self._require_no_chunks(node, "a group")
            before = node.stored
            stored = before.document if isinstance(before, GroupMetadata) else None
            told = copies_told(edited.document)
            nodes = await self._nodes_told(node.path, told)
            self._expect_shards(node.path, told, nodes)
            document = self._put_copies(node.path, stored, edited.document, nodes)
            await self._store_document(node, document, edited.document, publication)
        elif edited.is_sharded:
            await self._require_no_chunks(node, "a sharded array")
            self._fs.hierarchy.show_as_stored(node.path)
            await self._store_document(node, edited.document, edited.document, publication)
        elif array is not None and isinstance(stored_array := node.stored or node.metadata, ArrayMetadata):
            await self._edit_array(node, array, stored_array, edited, publication)
        elif node.document is None:
            await self._new_array(node, edited, publication)
        else:
            await self._store_document(node, edited.document, edited.document, publication)

    async def _publish_large_group(self, node: Node, told: Mapping[str, bool], publication: _Publication) -> None:
        """Do what `_publish` does, and work on the documents in another process."""
        await self._require_no_chunks(node, "a group")
        nodes = await self._nodes_told(node.path, told)
        self._expect_shards(node.path, told, nodes)
        texts = {path: _text_of(found) for path, found in nodes.items() if found.metadata is not None}
        lens = Consolidated(self._view.lens, self._fs.hierarchy.as_stored(node.path))
        stored = node.document if isinstance(node.metadata, GroupMetadata) else None
        content = await self._fs.worker.call(put_text, lens, stored, publication.written, texts)
        await self._store(node, content, publication)

    async def _edit_array(
        self, node: Node, array: Array, stored: ArrayMetadata, edited: ArrayMetadata, publication: _Publication
    ) -> None:
        """Change the document of an array whose chunks are shown, with chunks that lie outside its new shape."""
        commits = self._writer.commits
        document = self._view.lens.put(stored, edited)
        check_resized(stored, document)
        if edited.shape == stored.shape:
            await self._store_document(node, document, edited.document, publication)
            return
        await commits.flush(below=node.path)  # a new shape is a new numbering of chunks
        if all(new >= old for new, old in zip(edited.shape, stored.shape, strict=True)):
            await self._store_document(node, document, edited.document, publication)
            return
        shrink = await self._writer.shrink(node.path, stored.shape)
        try:
            await self._store_document(node, document, edited.document, publication)
        except StoreError:  # it may be stored after all, and the next mount finds out
            raise
        except ShardfsError:
            now = (await self._fs.hierarchy.look_again(node.path)).metadata
            if not isinstance(now, ArrayMetadata) or now.shape != edited.shape:
                await commits.log.release([shrink.sequence])
            raise
        await empty_outside(commits, array, edited.shape)
        await commits.log.release([shrink.sequence])

    async def _new_array(self, node: Node, edited: ArrayMetadata, publication: _Publication) -> None:
        """Store the document of a new array: sharded if that is wanted and possible, with chunks that came first."""
        if self._chunks_per_shard is None:
            await self._store_as_written(node, publication)
            return
        try:
            document = shard_new(edited, self._chunks_per_shard)
        except NotUnshardable as reason:
            log.warning("%s is stored unsharded: %s", node.path or "the array", reason)
            if publication.entry.name == DOCUMENT:
                await self._store_as_written(node, publication)
                return
            document = dict(edited.document)
        await self._orphans.put_aside(node.path, self._view.key_encoding(node, edited), edited.ndim)
        self._fs.hierarchy.show_unsharded(node.path)
        await self._store_document(node, document, edited.document, publication)
        chunks = self._fs.chunk_tree(await self._fs.hierarchy.node(node.path))
        if chunks is not None:
            self._fs.hierarchy.begin(chunks.array.layout)
            self._fs.became_chunks(chunks)
        await self._orphans.absorb(node.path)
        await self._refresh_copies(node.path)

    async def _store_document(
        self, node: Node, document: Document, edited: Document, publication: _Publication
    ) -> None:
        """Store *document*, the text that was written if that says the same as *edited*, which it stands for."""
        is_same = publication.entry.name == DOCUMENT and document == edited
        await self._store(node, publication.written if is_same else encode_json(document), publication)

    async def _store(self, node: Node, content: bytes, publication: _Publication) -> None:
        is_v3 = publication.entry.name == DOCUMENT
        exclusive = publication.exclusive and node.document is None
        key = join_key(node.path, DOCUMENT)
        # What these say will be in the document.
        beside = {} if is_v3 or node.document is not None else await self._documents_in(node.path)
        texts = {join_key(node.path, name): text for name, text in beside.items()}
        cache = self._fs.texts
        self._fs.store.note_shown(key, node.document_stat)
        try:
            with cache.storing({**texts, publication.entry.path: publication.written}):
                stored = await self._fs.store.replace(key, content, exclusive=exclusive, mode=publication.mode)
            cache.set_time(publication.entry.path, stored.mtime_ns)
            for path in texts:
                cache.set_time(path, (await self._fs.store.stat(path)).mtime_ns)
                await self._fs.store.unlink(path)
        finally:
            await self._fs.refresh(node.path)
        stored_as = await self._fs.hierarchy.node(node.path)
        for name, text in self._view.documents(stored_as).items():
            await cache.compare(join_key(node.path, name), text, self._fs.worker)

    async def _store_as_written(self, node: Node, publication: _Publication) -> None:
        entry, written, mode = publication.entry, publication.written, publication.mode
        try:
            await self._fs.store.replace(entry.path, written, exclusive=publication.exclusive, mode=mode)
        finally:
            await self._fs.refresh(node.path)

    async def _require_no_chunks(self, node: Node, what: str) -> None:
        chunks = self._fs.chunk_tree(node)
        if chunks is None:
            return
        if not await chunks.is_empty():
            raise RefusedError(f"the directory holds chunks of an array, and cannot become {what}")
        await self.prune(node)
        self._fs.hierarchy.abandon(node.path)

    async def prune(self, node: Node) -> None:
        """Commit that all chunks of an array are gone, and remove the directories that held its shards."""
        chunks = self._fs.chunk_tree(node)
        assert chunks is not None
        array = chunks.array
        for coords in list(chunks.refilled):
            if chunks.refilled.pop(coords, None) is not None:  # else it was written meanwhile
                await self._writer.erase(array, coords, mtime_ns=time.time_ns())
        await self._writer.commits.flush(below=node.path)
        layout = array.layout
        if layout.key_encoding.is_nested(array.grid.ndim):
            root = layout.key_encoding.root(array.grid.ndim)
            for name in [root] if root else [str(index) for index in await array.listing.children(())]:
                await prune(self._fs.store, join_key(node.path, name), locks=True)
        elif self._fs.store.root is not None:
            store = self._fs.store
            for entry in await store.list(node.path):
                name = entry.name.removesuffix(LOCK_SUFFIX)
                if is_lock(entry.name) and layout.key_encoding.begins(name, array.grid.ndim):
                    await store.unlink(join_key(node.path, entry.name))
        array.listing.forget()

    async def _nodes_told(self, path: str, told: Iterable[str]) -> dict[str, Node]:
        """Return the nodes that the document of the group at *path* tells of, if there are any."""
        found: dict[str, Node] = {}
        for relative in told:
            await trio.lowlevel.checkpoint()  # there may be thousands
            if ".." in relative.split("/"):
                continue
            with suppress(NotFoundError, NotADirectoryHereError):
                found[relative] = await self._fs.hierarchy.node(join_key(path, relative.strip("/")))
        return found

    def _expect_shards(self, path: str, told: Mapping[str, bool], nodes: Mapping[str, Node]) -> None:
        """Show sharded arrays as they are stored that a program tells of before it makes them: it writes shards."""
        for relative, is_sharded in told.items():
            is_there = relative in nodes and nodes[relative].metadata is not None
            if is_sharded and not is_there and ".." not in relative.split("/"):
                self._fs.hierarchy.show_as_stored(join_key(path, relative.strip("/")))

    def _put_copies(
        self, path: str, stored: Document | None, document: Document, nodes: Mapping[str, Node]
    ) -> Document:
        """Return a group's *document* with its copies of arrays as they are stored.

        *stored* is what an edit replaces: copies that were not edited stay.
        """
        known = {relative: node.stored for relative, node in nodes.items()}
        copies = {relative: metadata.document for relative, metadata in known.items() if metadata is not None}
        return Consolidated(self._view.lens, self._fs.hierarchy.as_stored(path)).put(stored, document, copies)

    async def _refresh_copies(self, path: str) -> None:
        """Bring copies of an array that was sharded on its way, in the groups above it, to what is stored now."""
        while path:
            path = path.rpartition("/")[0]
            try:
                await self._refresh_copies_in(path)
            except (RefusedError, StaleError) as reason:
                log.warning("the consolidated metadata of %s is out of date: %s", path or "the source", reason)

    async def _refresh_copies_in(self, path: str) -> None:
        """Do so in one group, again if another host changes its document meanwhile."""
        for attempt in range(_ATTEMPTS):
            look = self._fs.hierarchy.look_again if attempt else self._fs.hierarchy.node
            node = await look(path)
            group = node.stored
            if not isinstance(group, GroupMetadata):
                return
            nodes = await self._nodes_told(path, copies_told(group.document))
            document = self._put_copies(path, None, group.document, nodes)
            if document == group.document:
                return
            key, content, expected = join_key(path, DOCUMENT), encode_json(document), Expected(node.document_stat)
            try:
                await self._fs.store.replace(key, content, expected=expected)
            except StaleError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                self._fs.hierarchy.forget(path)
                return


def _text_of(node: Node) -> bytes:
    """Return the document of a node, which may have been removed a moment ago."""
    assert node.metadata is not None
    return node.document if node.document is not None else encode_json(node.metadata.document)


def _require_seen(shown: Node | None, stored: Node, edited: ArrayMetadata | GroupMetadata) -> None:
    """Raise `RefusedError` if *edited* removes chunks that its writer cannot have known of.

    That is an array that another program has given the shape of *stored*, where the mount showed another one.
    """
    if shown is None or not isinstance(shown.metadata, ArrayMetadata) or not isinstance(edited, ArrayMetadata):
        return
    if stored.any_array is None or not isinstance(stored.metadata, ArrayMetadata):
        return
    was, now, wanted = shown.metadata.shape, stored.metadata.shape, edited.shape
    shrinks = len(now) == len(wanted) and any(new < old for new, old in zip(wanted, now, strict=True))
    if was != now and shrinks:
        raise RefusedError(f"another program has changed the shape from {was} to {now}; read the document again")
