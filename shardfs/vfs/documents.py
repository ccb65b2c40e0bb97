"""Publishing documents: what a program wrote in the view is converted, and stored."""

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.consolidated import is_in_any
from shardfs.dataset.emptying import empty_outside
from shardfs.dataset.journal.records import Shrink
from shardfs.dataset.journal.recovery import finish_shrink
from shardfs.dataset.maintenance.others import OtherSessions
from shardfs.dataset.node import DOCUMENT, BrokenNode, Node, Plain, RemovedArray, groups_above
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.dataset.writer import ChunkWriter
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
from shardfs.format.lens.show import Copies
from shardfs.format.lens.unsharded import check_resized, shard_new
from shardfs.format.lens.v2 import ZATTRS, ZMETADATA, is_relative_path
from shardfs.format.lens.v3 import Consolidated, ShardedCopy, copies_in_text, put_text, true_text
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, parse_array, parse_document
from shardfs.stores.base import ABSENT, ANY, Expected, NewPermissions, Stat, join_key
from shardfs.vfs.entries.base import Chunks, Entry, PublishedEntry
from shardfs.vfs.entries.document import NO_ATTRIBUTES
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import FileHandle
from shardfs.vfs.orphans import OrphanChunks
from shardfs.vfs.seen import SeenArrays, SeenVersions
from shardfs.vfs.texts import DocumentText
from shardfs.vfs.views import Edit, EditableView

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5


@dataclass(frozen=True)
class _Publication:
    """A document as a program wrote it."""

    entry: PublishedEntry
    written: bytes
    permissions: NewPermissions
    mtime_ns: int | None = None
    exclusive: bool = False


class Documents:
    """The documents of a filesystem that may be changed.

    *chunks_per_shard* says how new arrays are sharded; None stores them as they are written.
    """

    def __init__(
        self,
        fs: Filesystem,
        writer: ChunkWriter,
        orphans: OrphanChunks,
        others: OtherSessions,
        *,
        chunks_per_shard: tuple[int, ...] | None,
    ) -> None:
        assert isinstance(fs.view, EditableView)
        self._fs = fs
        self._view = fs.view
        self._writer = writer
        self._orphans = orphans
        self._others = others
        self._chunks_per_shard = chunks_per_shard
        self._seen = SeenVersions()
        self._shrinking: dict[str, trio.Event] = {}  # by path: arrays that are being made smaller; set at the end
        self._arrays = SeenArrays()

    def was_read(self, entry: Entry, handle: FileHandle) -> None:
        """Note that a program has opened a file to read it: if it is a document, it may replace this version."""
        key = entry.stored_key() if isinstance(entry, PublishedEntry) and entry.is_document else None
        if key is not None:
            self._seen.read(key, handle.attributes.status)
            self._note_array(entry.node_path, handle.attributes.status.version)
            hierarchy = self._fs.hierarchy
            node = hierarchy.last_seen(entry.node_path)
            for relative in node.copies if node is not None else ():
                path = join_key(entry.node_path, relative.strip("/"))
                if path in self._arrays:
                    self._note_array(path, hierarchy.copies.shown_version(entry.node_path, relative))

    def _note_array(self, path: str, version: object) -> None:
        """Note that programs know the array at *path* as this *version* of its document describes it."""
        node = self._fs.hierarchy.last_seen(path)
        array, now = (node.any_array, node.document_stat) if node is not None else (None, None)
        if array is not None and now is not None and now.version == version:
            self._arrays.described(path, array.fingerprint)
        else:
            self._arrays.forget(path)

    def require_known(self, array: Array) -> None:
        """Raise `StaleError` if *array* replaced another one with other chunks, and no program here has read so.

        A program that knows the old one would go on otherwise. What it writes cannot be decoded as the new one, and
        what it removes is another part of it. Programs that have read nothing may know anything.
        """
        path = array.layout.path
        if path in self._arrays and not self._arrays.is_known(path, array.fingerprint):
            raise StaleError(
                f"{path or 'the array'} was replaced by an array with another data type, codecs or chunks: read its "
                f"{DOCUMENT} again, and write chunks for that"
            )

    async def require_known_below(self, path: str) -> None:
        """Do what `require_known` does, for the arrays at *path* and below, as they are stored now."""
        for known in self._arrays.below(path):
            with suppress(NotFoundError, NotADirectoryHereError):
                array = (await self._fs.hierarchy.look_again(known)).any_array
                if array is not None:
                    self.require_known(array)

    def was_touched(self, key: str, old: Stat, new: Stat) -> None:
        """Note that a program has changed attributes of the stored document *key*."""
        self._seen.touched(key, old, new)

    async def publish(
        self,
        entry: PublishedEntry,
        written: bytes,
        permissions: NewPermissions,
        mtime_ns: int | None = None,
        *,
        exclusive: bool,
    ) -> None:
        """Make *written* the content of the document *entry*, with the modification time *mtime_ns*, or now.

        Raises `RefusedError` if it is invalid or cannot be stored; the old document stays then. With *exclusive*,
        raises `ExistsError` if there is a document.
        """
        shown = self._fs.hierarchy.last_seen(entry.node_path)
        if shown is not None and isinstance(shown.kind, Plain):
            self._seen.read(join_key(entry.node_path, DOCUMENT), ABSENT)
        node = await self._fs.hierarchy.look_again(entry.node_path)
        if exclusive and await entry.current() is not None:
            raise ExistsError(f"{entry.path} exists")
        publication = _Publication(entry, written, permissions, mtime_ns, exclusive)
        try:
            node = await self._without_emptied(node, entry, written)
            if node.sharded_copy is not None:
                _require_description(node, entry, written)
            if len(written) > LARGE_NBYTES and entry.name == DOCUMENT:
                copies = await self._fs.worker.call(copies_in_text, written)
                if copies is not None:
                    await self._publish_group(node, written, copies, publication)
                    return
            edited = await self._edit(node, entry, written)
            _require_chunk_lengths(node, edited)
            if edited is None:
                await self._store_as_written(node, publication)
            else:
                _require_seen(shown, node, edited)
                await self._publish(node, edited, publication)
        except StaleError:
            if not await self._is_said_already(publication):
                raise
        except (MetadataError, RefusedError) as error:
            raise RefusedError(f"{entry.path} is refused: {error}") from None

    async def _is_said_already(self, publication: _Publication) -> bool:
        """Whether another session, which was faster, has stored a document that says the same; then that is taken."""
        entry, fs = publication.entry, self._fs
        await fs.refresh(entry.node_path)
        shown = (await fs.documents(await fs.hierarchy.look_again(entry.node_path))).get(entry.name)
        means_the_same = self._view.lens.means_the_same
        if publication.exclusive or shown is None:
            return False
        if not await fs.worker.work(means_the_same, entry.name, shown.text, publication.written):
            return False
        await self._orphans.absorb(entry.node_path)
        return True

    async def remove(self, entry: PublishedEntry) -> None:
        """Remove a document.

        The directory of an array stays that array until it is empty or gets another document. The removed one stays
        stored until then, or until all is committed: see `RemovedArray`.
        """
        fs, store = self._fs, self._fs.writable.store
        node = await fs.hierarchy.look_again(entry.node_path)
        documents = await fs.documents(node)
        edited = await self._view.edit(Edit(fs, node, entry.name, None))
        if edited is not None and entry.name in documents:
            await self._publish(node, edited, _Publication(entry, b"", {"mode": 0o644}))
            fs.texts.forget(entry.path)
            return
        copies = fs.hierarchy.copies
        copies.outdate(node.path, await copies.described_below(node.path))
        if entry.name == DOCUMENT and isinstance(node.kind, RemovedArray):
            raise NotFoundError(f"{entry.path} does not exist")
        if entry.name not in documents:
            await store.unlink(entry.path)
            self._seen.removed(entry.path, ABSENT)
            if entry.name == DOCUMENT:
                fs.hierarchy.show_unsharded(node.path)
            fs.hierarchy.forget(node.path)
        else:
            for other in self._view.document_names - {DOCUMENT}:
                key = join_key(node.path, other)
                if other in documents and other != entry.name:  # it is removed by a request of its own
                    await store.replace(key, documents[other].text, ANY)
                else:  # documents that the v3 document hid must not appear again
                    with suppress(NotFoundError, IsADirectoryHereError):
                        await store.unlink(key)
            self._seen.removed(join_key(node.path, DOCUMENT), node.document_stat or ABSENT)
            self._arrays.forget(node.path)
            if not fs.hierarchy.keep_removed(node):
                await store.unlink(join_key(node.path, DOCUMENT))
                fs.hierarchy.forget(node.path)
        fs.texts.forget(entry.path)

    async def _without_emptied(self, node: Node, entry: PublishedEntry, written: bytes) -> Node:
        """Return *node*, without its array if the document was removed and no chunk is left.

        It stays if the document *written* is an edit of the removed one: unpacking programs remove a file, and editors
        rename it, before they write it.
        """
        chunks, stored = self._fs.chunk_tree(node), node.metadata
        if node.document is not None or chunks is None or not await chunks.is_empty():
            return node
        with suppress(MetadataError, RefusedError):
            edited = await self._edit(node, entry, written)
            if edited is None:
                return node
            if isinstance(stored, ArrayMetadata) and isinstance(edited, ArrayMetadata):
                self._view.lens.put(stored, edited)  # raises if it does not describe the same chunks
                if self._fs.hierarchy.given_up(node.path):
                    await chunks.prune()
                return node
        await self.end(chunks)
        return await self._fs.hierarchy.node(node.path, fresh=True)

    async def end(self, chunks: Chunks) -> None:
        """End a removed array without chunks: remove what is stored of it. The caller holds its lock exclusively."""
        hierarchy = self._fs.hierarchy
        await chunks.prune()
        removed = await hierarchy.removed(chunks.path)
        if removed is not None:
            await removed.drop(self._fs.writable.store)
        hierarchy.gone(chunks.path)

    async def _edit(self, node: Node, entry: PublishedEntry, written: bytes) -> Metadata | None:
        """Return the unsharded v3 document that was written; None if it is stored as it is."""
        beside = await self._fs.stored_documents(node.path) if node.document is None else {}
        is_new = self._chunks_per_shard is not None and entry.name not in beside
        try:
            return await self._view.edit(Edit(self._fs, node, entry.name, written, beside, is_new))
        except NotUnshardable as reason:
            log.warning("%s is stored as it is written: %s", node.path or "the array", reason)
            return None

    async def _publish(self, node: Node, edited: Metadata, publication: _Publication) -> None:
        chunk_view = self._view.chunk_view(node)
        stored = node.stored or node.metadata
        if isinstance(edited, GroupMetadata):
            is_v3 = publication.entry.name == DOCUMENT
            text = publication.written if is_v3 else encode_json(edited.document)
            copies = await self._fs.worker.work(copies_in_text, text)
            await self._publish_group(node, text, copies or {}, publication)
        elif edited.is_sharded:
            await self._require_no_chunks(node, "a sharded array")
            self._fs.hierarchy.show_as_stored(node.path)
            try:
                await self._store_document(node, edited.document, edited.document, publication)
            except ShardfsError:
                self._fs.hierarchy.show_unsharded(node.path)
                with suppress(ShardfsError):
                    await self._fs.refresh(node.path)
                raise
        elif chunk_view is not None and isinstance(stored, ArrayMetadata):
            await self._edit_array(node, chunk_view.array, stored, edited, publication)
        elif node.document is None:
            await self._new_array(node, edited, publication)
        else:
            await self._store_document(node, edited.document, edited.document, publication)

    async def _publish_group(self, node: Node, written: bytes, copies: Copies, publication: _Publication) -> None:
        """Store the v3 document *written* of a group, with its *copies* of the documents of other nodes.

        A node that its writer describes before it is created is what the copy says. A sharded array is then shown as
        stored: its writer writes shards.
        """
        hierarchy = self._fs.hierarchy
        await self._require_no_chunks(node, "a group")
        nodes = await self._described_nodes(node.path, copies)
        # Else they are those that are stored, of which some may be out of date: only the attributes were written.
        are_written = publication.entry.name in (DOCUMENT, ZMETADATA) or node.document is None
        for relative, sharded in copies.items() if are_written else ():
            path, below = join_key(node.path, relative.strip("/")), nodes.get(relative)
            if below is not None and below.sharded_copy is not None:
                if sharded != below.sharded_copy:
                    raise RefusedError(f"the copy of {relative!r}: {below.reason}")
            elif (below is None or isinstance(below.kind, Plain)) and is_relative_path(relative.strip("/")):
                hierarchy.copies.announce(path)
                if sharded is not None:
                    hierarchy.show_as_stored(path)
        stored = node.document if isinstance(node.metadata, GroupMetadata) else None
        await self._store(node, await self._with_copies(node, stored, written, nodes), publication)

    async def let_others_commit(self, path: str) -> None:
        """Let all other sessions commit what is below *path*, before an array there is made, resized or moved.

        What they have published is of the array as it was: it must not come into another one, or be taken for part of
        it. What becomes of other arrays is no matter. Raises `StoreError` if one of them does not.
        """
        for error in await self._others.flush(below=path):
            raise StoreError(f"{path or 'the array'} is not changed while another session has to commit: {error}")

    async def _edit_array(
        self, node: Node, array: Array, stored: ArrayMetadata, edited: ArrayMetadata, publication: _Publication
    ) -> None:
        """Change the document of an array, and remove the chunks that are outside its new shape."""
        if node.path in self._orphans.later.values():  # an error came when it was stored first, or others write some
            await self._orphans.absorb(node.path)
        commits = self._writer.commits
        document = self._view.lens.put(stored, edited)
        check_resized(stored, document)
        store = partial(self._store_document, node, document, edited.document, publication)
        if edited.shape != stored.shape:
            await commits.flush(below=node.path)  # a new shape renumbers the chunks
            await self.let_others_commit(node.path)
            # Else what is still to be removed would be shown again.
            for shrink in commits.journal.shrinks(node.path):
                await self._finish_shrink(shrink)
        if all(new >= old for new, old in zip(edited.shape, stored.shape, strict=True)):
            await store()
            if edited.shape != stored.shape:
                commits.growth.grew(node.path, stored.shape)
            return
        with self._under_way(node.path):
            shrink = await self._writer.shrink(node.path, stored.shape)
            try:
                await store()
            except StoreError:  # it may have been stored all the same: the next mount finds out
                raise
            except ShardfsError:
                now = (await self._fs.hierarchy.look_again(node.path)).metadata
                if not isinstance(now, ArrayMetadata) or now.shape != edited.shape:
                    await commits.journal.release_soon([shrink])
                raise
            try:
                await empty_outside(commits, array, edited.shape)
            finally:
                self._fs.hierarchy.retire(array)
            await commits.journal.release_soon([shrink])

    @contextmanager
    def _under_way(self, path: str) -> Iterator[None]:
        """Let others wait for the end of the block, in which the array at *path* is made smaller."""
        ended = self._shrinking[path] = trio.Event()
        try:
            yield
        finally:
            del self._shrinking[path]
            ended.set()

    async def finish_shrinks(self, below: str) -> None:
        """Finish making arrays at and below the path *below* smaller: what is under way, and what was interrupted.

        Another session may ask for it while programs use these arrays, so no lock is needed. Raises the first error
        that prevents it, after all were tried.
        """
        failure: ShardfsError | None = None
        for shrink in self._writer.commits.journal.shrinks_below(below):
            while (ended := self._shrinking.get(shrink.path)) is not None:
                await ended.wait()
            try:
                node = await self._fs.hierarchy.look_again(shrink.path)
                if not isinstance(node.kind, Plain):
                    await self._finish_shrink(shrink)
            except (NotFoundError, NotADirectoryHereError):
                pass  # the array is gone, with all its chunks
            except ShardfsError as error:
                failure = failure or type(error)(f"{shrink.path or 'the array'} is still made smaller: {error}")
        if failure is not None:
            raise failure

    async def _finish_shrink(self, shrink: Shrink) -> None:
        """Finish what was interrupted; raises the error that prevents it."""
        commits = self._writer.commits
        await finish_shrink(self._writer.source, commits, shrink)
        await commits.journal.release_soon([shrink])

    async def _new_array(self, node: Node, edited: ArrayMetadata, publication: _Publication) -> None:
        """Store the document of a new array, sharded if asked for and possible.

        Chunks that came before it are taken in.
        """
        await self.let_others_commit(node.path)
        document: Document | None = None
        if self._chunks_per_shard is not None:
            try:
                document = shard_new(edited, self._chunks_per_shard)
            except NotUnshardable as reason:
                log.warning("%s is stored unsharded: %s", node.path or "the array", reason)
                self._writer.source.statistics.unsharded_arrays += 1
                if publication.entry.name != DOCUMENT:
                    document = dict(edited.document)
        if document is None:
            await self._store_as_written(node, publication)
            await self._begin(node.path, node.path)
            return
        aside = self._orphans.directory_of(node.path, parse_array(document))
        async with self._fs.writable.store.documents_locked(node.path):
            await self._require_no_document(node.path, publication)
            await self._orphans.put_aside(node.path, aside, self._view.key_encoding(node, edited), edited.ndim)
            self._fs.hierarchy.show_unsharded(node.path)
            try:
                await self._store_document(node, document, edited.document, publication)
            except StoreError:  # it may have been stored all the same: a flush, or the next mount, finds out
                raise
            except ShardfsError:
                if (await self._fs.hierarchy.look_again(node.path)).document is None:
                    await self._orphans.put_back(node.path, aside)
                raise
        await self._begin(node.path, aside)
        await self._orphans.absorb(node.path)
        if self._others.nlive:  # what they write from now on is newer, and of one chunk the last commit counts
            with suppress(ShardfsError):
                await self._writer.commits.flush(below=node.path)
        await self._refresh_copies(node.path)

    async def _require_no_document(self, path: str, publication: _Publication) -> None:
        """Raise an error if another session has stored a document meanwhile: what look like early chunks are shards."""
        if (await self._fs.hierarchy.look_again(path)).document is None:
            return
        if publication.exclusive:
            raise ExistsError(f"{publication.entry.path} exists")
        reason = f"another session has stored {join_key(path, DOCUMENT)} meanwhile; read it again"
        await self._fs.writable.store.keep(join_key(path, DOCUMENT), publication.written, reason)
        raise StaleError(reason)

    async def _refresh_copies(self, path: str) -> None:
        """Correct the copies of a new array, which its writer may have described before it was sharded."""
        try:
            await self.correct_copies([path])
            copies = self._fs.hierarchy.copies
            copies.correct_later(await copies.described_below(path))  # once more at the end: attributes may come later
        except (RefusedError, StaleError) as reason:
            log.warning("the consolidated metadata above %s is out of date: %s", path, reason)

    async def _begin(self, path: str, directory: str) -> None:
        """Note that the array at *path* is being created, with the directories of chunks that are below *directory*."""
        self._writer.commits.growth.began(path)
        chunks = self._fs.chunk_tree(await self._fs.hierarchy.node(path))
        if chunks is not None:
            chunks.begin()
            await self._orphans.make_directories(chunks, directory)

    async def _store_document(
        self, node: Node, document: Document, edited: Document, publication: _Publication
    ) -> None:
        """Store *document*, in the words in which it was written if those say the same.

        *edited* is the unsharded form of what was written.
        """
        is_same = publication.entry.name == DOCUMENT and document == edited
        await self._store(node, publication.written if is_same else encode_json(document), publication)

    async def _store(self, node: Node, content: bytes, publication: _Publication) -> None:
        _require_readable(content)
        fs, entry, key = self._fs, publication.entry, join_key(node.path, DOCUMENT)
        # The document will contain what these say.
        beside = {} if entry.name == DOCUMENT or node.document is not None else await fs.stored_documents(node.path)
        texts: dict[str, DocumentText] = {}
        async with self._changing(node.path):
            stored = await self._replace(node, key, content, publication)
            for name, text in beside.items():
                path = join_key(node.path, name)
                with suppress(NotFoundError):  # another host was faster
                    texts[name] = DocumentText(text, (await self._fs.writable.store.stat(path)).mtime_ns)
                    await self._fs.writable.store.unlink(path)
        self._note_array(node.path, stored.version)
        texts[entry.name] = DocumentText(publication.written, publication.mtime_ns or stored.mtime_ns)
        await self._keep_texts(node.path, texts)

    @asynccontextmanager
    async def _changing(self, path: str) -> AsyncIterator[None]:
        """Load the node at *path* again after the block, which changes it; an error of the block is the one raised."""
        try:
            yield
        except BaseException:
            with suppress(ShardfsError):
                await self._fs.refresh(path)
            raise
        await self._fs.refresh(path)

    async def _replace(self, node: Node, key: str, content: bytes, publication: _Publication) -> Stat:
        """Store *content* under *key* in the directory of *node*, over a version that programs can know.

        If another session was first, raises `StaleError`; what was written to a bucket is kept on this machine.
        """
        store, now = self._fs.writable.store, await self._stored_now(node, key)
        is_exclusive = publication.exclusive and now is None
        if is_exclusive:
            expected: Expected = ABSENT
        else:
            expected = self._seen.expected(key, now)
        try:
            stored = await store.replace(
                key, content, expected, mtime_ns=publication.mtime_ns, **publication.permissions
            )
        except (ExistsError, StaleError) as error:
            if is_exclusive:
                raise
            await store.keep(key, content, str(error))
            raise StaleError(str(error)) from None
        self._seen.stored(key, expected, stored)
        return stored

    async def _stored_now(self, node: Node, key: str) -> Stat | None:
        """Return what is stored under *key* in the directory of *node*, perhaps hidden; None if nothing is."""
        if key != join_key(node.path, DOCUMENT):
            try:
                return await self._fs.writable.store.fresh(key)
            except (NotFoundError, NotADirectoryHereError):
                return None
        removed = await self._fs.hierarchy.removed(node.path) if node.document is None else None
        return await removed.stored() if removed is not None else node.document_stat

    async def _keep_texts(self, path: str, written: Mapping[str, DocumentText]) -> None:
        """Show the documents of a node in the words in which they were *written*, if these say the same."""
        fs = self._fs
        shown = self._view.documents(await fs.hierarchy.copies.consolidated(await fs.hierarchy.node(path)))
        for name in self._view.document_names:
            text = written.get(name) or fs.texts.known(join_key(path, name))
            generated = shown.get(name, NO_ATTRIBUTES if name == ZATTRS and shown else None)
            if text is None:
                continue
            means_the_same = self._view.lens.means_the_same
            is_same = generated is not None and await fs.worker.work(means_the_same, name, generated, text.text)
            fs.texts.keep(join_key(path, name), text, shown.get(name), is_same=is_same)

    async def _store_as_written(self, node: Node, publication: _Publication) -> None:
        entry, written, mtime_ns = publication.entry, publication.written, publication.mtime_ns
        async with self._changing(node.path):
            stored = await self._replace(node, entry.path, written, publication)
        self._note_array(node.path, stored.version)
        await self._keep_texts(node.path, {entry.name: DocumentText(written, mtime_ns or stored.mtime_ns)})

    async def _require_no_chunks(self, node: Node, what: str) -> None:
        chunks = self._fs.chunk_tree(node)
        if chunks is not None and not await chunks.is_empty():
            raise RefusedError(f"the directory holds chunks of an array, and cannot become {what}")
        if chunks is not None:
            await self.end(chunks)

    async def _described_nodes(self, path: str, copies: Iterable[str]) -> dict[str, Node]:
        """Return the nodes whose documents are copied in the document of the group at *path*."""
        nodes: dict[str, Node] = {}
        for relative in copies:
            await trio.lowlevel.checkpoint()  # there may be thousands
            if ".." not in relative.split("/"):
                with suppress(NotFoundError, NotADirectoryHereError):
                    nodes[relative] = await self._fs.hierarchy.node(join_key(path, relative.strip("/")))
        return nodes

    async def _with_copies(self, group: Node, stored: bytes | None, written: bytes, nodes: Mapping[str, Node]) -> bytes:
        """Return *written*, the document of a *group*, with its copies of *nodes* in their stored form.

        *stored* is the document that is replaced: copies in it stay if the tree does not show what they are about.
        """
        hierarchy = self._fs.hierarchy
        hidden = [path for path in group.copies if is_relative_path(path)] if stored is not None else []
        below = await self._described_nodes(group.path, hidden)
        unusable = frozenset(path for path, node in below.items() if node.metadata is None)
        lens = Consolidated(self._view.lens, hierarchy.as_stored(group.path), unusable)
        return await self._fs.worker.work(put_text, lens, stored, written, _texts_of(nodes))

    async def correct_copies(self, paths: Collection[str]) -> None:
        """Make the stored copies of the nodes at *paths*, in the groups above, say what these are now.

        Of a node that is not there, or whose document was removed, no copy stays. Raises the error that prevents it.
        """
        for group in sorted({group for path in paths for group, _ in groups_above(path)}):
            await self._correct_copies_in(group, paths)
        self._fs.hierarchy.copies.corrected(paths)

    async def _correct_copies_in(self, path: str, paths: Collection[str]) -> None:
        """Correct the copies in one group; again if another host changes its document meanwhile."""
        hierarchy = self._fs.hierarchy
        for attempt in range(_ATTEMPTS):
            try:
                node = await (hierarchy.look_again(path) if attempt else hierarchy.node(path, fresh=True))
            except (NotFoundError, NotADirectoryHereError):
                return
            outdated = [relative for relative in node.copies if join_key(path, relative) in paths]
            if not outdated or not isinstance(node.metadata, GroupMetadata) or node.document is None:
                return
            nodes = await self._described_nodes(path, outdated)
            texts: dict[str, bytes | None] = dict.fromkeys(node.copies)  # the others stay as they are
            for relative in outdated:
                below = nodes.get(relative)
                if below is None or isinstance(below.kind, Plain | RemovedArray):
                    del texts[relative]
                elif not isinstance(below.kind, BrokenNode):  # of which the copy may be the only description
                    texts[relative] = below.document
            gone = node.copies.keys() - texts.keys()
            texts = {relative: text for relative, text in texts.items() if not is_in_any(relative, gone)}
            content = await self._fs.worker.work(true_text, node.document, texts)
            if content == node.document:
                return
            _require_readable(content)
            try:
                key, old = join_key(path, DOCUMENT), node.document_stat or ABSENT
                self._seen.stored(key, old, await self._fs.writable.store.replace(key, content, old))
            except StaleError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                hierarchy.forget(path)
                await self._keep_texts(path, {})
                return


def _texts_of(nodes: Mapping[str, Node]) -> dict[str, bytes]:
    """Return the stored documents of *nodes*, also of one that was just removed."""
    return {
        relative: node.document if node.document is not None else encode_json(node.metadata.document)
        for relative, node in nodes.items()
        if node.metadata is not None
    }


def _require_readable(content: bytes) -> None:
    if len(content) > MAX_DOCUMENT_NBYTES:
        raise RefusedError(f"it would have {len(content)} bytes as it is stored, more than {MAX_DOCUMENT_NBYTES}")


def _require_chunk_lengths(node: Node, edited: Metadata | None) -> None:
    """Raise `RefusedError` for chunks of length 0, which Zarr forbids, unless the array has them already."""
    if not isinstance(edited, ArrayMetadata) or not _has_empty_chunks(edited):
        return
    stored = node.stored or node.metadata
    if not isinstance(stored, ArrayMetadata) or not _has_empty_chunks(stored):
        raise RefusedError("Zarr forbids chunks of length 0; give chunks a length of 1 or more along every axis")


def _has_empty_chunks(array: ArrayMetadata) -> bool:
    """Whether chunks have the length 0 along an axis, as zarr-python wrote them for axes of length 0."""
    edges = array.chunk_grid.configuration.get("chunk_shape")
    return array.chunk_grid.name == "regular" and isinstance(edges, list) and 0 in edges


def _require_description(node: Node, entry: PublishedEntry, written: bytes) -> None:
    """Raise `RefusedError` unless a document describes the shards in the directory of *node*, which lacks one."""
    described = parse_document(written) if entry.name == DOCUMENT else None
    if described is None or ShardedCopy.of(described.document) != node.sharded_copy:
        raise RefusedError(str(node.reason))


def _require_seen(shown: Node | None, stored: Node, edited: ArrayMetadata | GroupMetadata) -> None:
    """Raise `RefusedError` if *edited* would remove chunks that its writer cannot know of.

    Another program has given the array the shape in *stored* since the mount showed it.
    """
    if shown is None or not isinstance(shown.metadata, ArrayMetadata) or not isinstance(edited, ArrayMetadata):
        return
    if stored.any_array is None or not isinstance(stored.metadata, ArrayMetadata):
        return
    was, now, wanted = shown.metadata.shape, stored.metadata.shape, edited.shape
    shrinks = len(now) == len(wanted) and any(new < old for new, old in zip(wanted, now, strict=True))
    if was != now and shrinks:
        raise RefusedError(f"another program has changed the shape from {was} to {now}; read the document again")
