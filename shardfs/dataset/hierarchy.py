"""Nodes: which directories of the source are arrays and groups, and which arrays can be shown unsharded."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

import trio

from shardfs.dataset.array import Array
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.shard_cache import ShardCache
from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    StaleError,
    StoreError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES, Document
from shardfs.format.lens.consolidated import every_copy, inline_copies
from shardfs.format.lens.unsharded import UnshardedArray, describe, unshard
from shardfs.format.lens.v2_attributes import is_image
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_document
from shardfs.format.normal_form import fingerprint
from shardfs.stores.base import Stat, Store, join_key
from shardfs.stores.ttl import derived_at, within_ttl

log = logging.getLogger(__name__)

DOCUMENT: Final = "zarr.json"
_MAX_NODES: Final = 4096
_MAX_NODES_NBYTES: Final = 64 * 2**20
_ATTEMPTS: Final = 4
_THREAD_NBYTES: Final = 256 * 2**10
_FIRST_NBYTES: Final = 256 * 2**10  # most documents are shorter, and are one request then
_SETTLED_NS: Final = 2 * 10**9
_VERDICTS: Final = (MetadataError, NotUnshardable, CorruptionError, IsADirectoryHereError, AccessDeniedError)
"""What makes a node be shown as stored; a passing error is passed on instead."""


@dataclass(frozen=True, eq=False)
class Node:
    """A directory of the source, whose own state is *stat*.

    *document* is its stored `zarr.json`, with *document_stat*, or None; *metadata* what it says, None if it is absent
    or broken.  *array* is there for a sharded array that can be shown unsharded; for a document that cannot be shown
    as anything but what is stored, *reason* says why.  *whole* is there for an array that is stored unsharded, if its
    chunks have one shape: views that show more than the stored files reach its chunks by it.  An array whose document
    was removed through the mount is there still, with its *metadata* and without a document.  *as_stored* is what
    `Hierarchy.as_stored` says of a group.  *in_image* says that it is a group with metadata of OME-Zarr 0.5, or lies
    below one, if the hierarchy was asked to look above.
    """

    path: str
    stat: Stat
    document: bytes | None = None
    document_stat: Stat | None = None
    metadata: ArrayMetadata | GroupMetadata | None = None
    array: Array | None = None
    reason: str | None = None
    whole: Array | None = None
    as_stored: frozenset[str] = frozenset()
    in_image: bool = False

    @property
    def any_array(self) -> Array | None:
        """The array, whether it is stored sharded or not."""
        return self.array or self.whole

    @property
    def memory(self) -> int:
        """Bytes of the stored document, to which all else that a node holds is in proportion."""
        return len(self.document or b"")


class Hierarchy:
    """The nodes below a source, looked at again when they were last checked *ttl* seconds ago.

    *shows_whole* says that the chunks of unsharded arrays are shown as such, too, and not just as the files that they
    are: such an array is then as careful of what becomes of its document as a sharded one.  *looks_above*: what a node
    is shown as depends on the groups above it, too.
    """

    def __init__(
        self, store: Store, shards: ShardCache, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._shards = shards
        self._ttl = ttl
        self.clock = clock
        self.shows_whole = False
        self.looks_above = False
        self._loading: dict[str, trio.Event] = {}
        self._nbytes = 0
        # Inode numbers hang on layouts: one that is in use, or has something to remember, is used on.
        self._layouts: WeakValueDictionary[str, ArrayLayout] = WeakValueDictionary()
        self._made: dict[str, ArrayLayout] = {}
        self._shown: dict[str, int] = {}  # paths of arrays that programs know as such, with their documents' identities
        self._nodes: OrderedDict[str, tuple[Node, float]] = OrderedDict()
        self._left: dict[str, Node] = {}
        self._as_stored: set[str] = set()

    async def node(self, path: str, *, fresh: bool = False) -> Node:
        """Return the node at the directory *path*, as it was at most *ttl* seconds ago; *fresh* is as it is now."""
        while True:
            known = self._nodes.get(path)
            now = self.clock()
            if known is not None and not fresh and within_ttl(known[1], now, self._ttl):
                return known[0]
            if path not in self._loading:
                break
            await self._loading[path].wait()
        event = self._loading[path] = trio.Event()
        try:
            node = await self._load(path, known[0] if known else None)
            if self.looks_above:
                node = await self._below_groups(node, known[0] if known else None)
        finally:
            del self._loading[path]
            event.set()
        self._remember(node, derived_at(now))
        return node

    def last_seen(self, path: str) -> Node | None:
        """Return the node at *path* as it was shown last, however long ago; None if it is not known."""
        known = self._nodes.get(path)
        return known[0] if known is not None else None

    async def look_again(self, path: str) -> Node:
        """Return the node at *path* as it is now, whatever the store believes."""
        self._store.forget(join_key(path, DOCUMENT))
        return await self.node(path, fresh=True)

    async def array(self, path: str, *, fresh: bool = False) -> Array | None:
        """Return the array at *path*, sharded or not; None if there is none, or nothing at all."""
        try:
            return (await self.node(path, fresh=fresh)).any_array
        except (NotFoundError, NotADirectoryHereError):
            return None

    def forget(self, path: str) -> None:
        """Look at the node at *path*, and at all below it, again when they are wanted next."""
        for known in [known for known in self._nodes if is_below(known, path)]:
            self._nbytes -= self._nodes.pop(known)[0].memory

    def leave(self, node: Node) -> None:
        """Let the directory of *node* stay the array that it is when its document goes, until it is emptied."""
        if node.array is not None or (self.shows_whole and node.whole is not None):
            self._left[node.path] = replace(node, document=None, document_stat=None)
        self.show_unsharded(node.path)
        self.forget(node.path)

    def abandon(self, path: str) -> None:
        """Forget what the directories at *path* and below were: they are gone, or another thing now."""
        tables: tuple[MutableMapping[str, Any], ...] = (self._left, self._layouts, self._made, self._shown)
        for table in tables:
            for known in [known for known in table if is_below(known, path)]:
                table.pop(known, None)
        for known in [known for known in self._as_stored if is_below(known, path)]:
            self.show_unsharded(known)
        self.forget(path)

    def moved(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*: what is shown as it is stored below it stays so."""
        as_stored = [new + path[len(old) :] for path in self._as_stored if is_below(path, old)]
        self.abandon(old)
        self.abandon(new)
        for path in as_stored:
            self.show_as_stored(path)

    def begin(self, layout: ArrayLayout) -> None:
        """Note that an array is made through the mount now: directories of chunks are there when they were made."""
        layout.directories = {}
        self._made[layout.path] = layout

    def show_as_stored(self, path: str) -> None:
        """Show the sharded array at *path* as it is stored from now on: its writer writes shards."""
        if path not in self._as_stored:
            self._as_stored.add(path)
            self._forget_copies(path)
        self.forget(path)

    def show_unsharded(self, path: str) -> None:
        """Show the array at *path* unsharded from now on, whatever it was before."""
        if path in self._as_stored:
            self._as_stored.remove(path)
            self._forget_copies(path)

    def _forget_copies(self, path: str) -> None:
        """Look again at the groups above *path* whose consolidated metadata tells of it."""
        above = path
        while above:
            above = above.rpartition("/")[0]
            group = self._nodes[above][0].metadata if above in self._nodes else None
            copies = inline_copies(group.document) if isinstance(group, GroupMetadata) else None
            relative = path.removeprefix(above).lstrip("/")
            if copies is not None and any(is_below(relative, copy.strip("/")) for copy in copies):
                self._nbytes -= self._nodes.pop(above)[0].memory

    def as_stored(self, path: str, group: Document) -> frozenset[str]:
        """Return which arrays that *group*, the document at *path*, has copies of are shown as they are stored.

        Their paths are relative, as they are in the document.
        """
        if not self._as_stored or inline_copies(group) is None:
            return frozenset()
        return frozenset(copy for copy, _ in every_copy(group) if join_key(path, copy.strip("/")) in self._as_stored)

    def _remember(self, node: Node, now: float) -> None:
        before = self._nodes.pop(node.path, None)
        self._nbytes += node.memory - (before[0].memory if before else 0)
        self._nodes[node.path] = (node, now)
        while len(self._nodes) > 1 and (len(self._nodes) > _MAX_NODES or self._nbytes > _MAX_NODES_NBYTES):
            _, (evicted, _) = self._nodes.popitem(last=False)
            self._nbytes -= evicted.memory

    def remaining(self, path: str) -> float:
        """Return for how many seconds the node at *path* may be trusted still."""
        known = self._nodes.get(path)
        return max(0.0, known[1] + self._ttl - self.clock()) if known else 0.0

    async def _load(self, path: str, known: Node | None) -> Node:
        stat = await self._store.stat(path)
        key = join_key(path, DOCUMENT)
        document: bytes | None = None
        document_stat: Stat | None = None
        metadata: ArrayMetadata | GroupMetadata | None = None
        reason: str | None = None
        try:
            if known is not None and known.document_stat is not None:
                version = (await self._store.stat(key)).version
                is_same = (stat.version, version) == (known.stat.version, known.document_stat.version)
                if is_same and path in self._nodes:  # else it was forgotten meanwhile
                    return known
            document, document_stat = await self._read(key)
            if len(document) > _THREAD_NBYTES:
                metadata = await trio.to_thread.run_sync(parse_document, document)
            else:
                metadata = parse_document(document)
            self._left.pop(path, None)
            if isinstance(metadata, ArrayMetadata) and metadata.is_sharded and path not in self._as_stored:
                array = self._array(path, unshard(metadata), metadata)
                self._shown[path] = hash(document_stat.identity)
                return Node(path, stat, document, document_stat, metadata, array)
            if isinstance(metadata, ArrayMetadata) and not metadata.is_sharded:
                with suppress(MetadataError, NotUnshardable):
                    array = self._array(path, describe(metadata), metadata)
                    if self.shows_whole:
                        self._shown[path] = hash(document_stat.identity)
                    return Node(path, stat, document, document_stat, metadata, whole=array)
            as_stored = frozenset() if isinstance(metadata, ArrayMetadata) else self.as_stored(path, metadata.document)
            return Node(path, stat, document, document_stat, metadata, as_stored=as_stored)
        except (NotFoundError, NotADirectoryHereError):
            left = self._left.get(path)
            return Node(path, stat) if left is None else replace(left, stat=stat)
        except _VERDICTS as error:
            reason = str(error)
            # Whoever has read an array's document must not be given shards in place of its chunks.  Of a remote source
            # that holds for all: credentials expire, and are renewed.
            shown = self._shown.get(path)
            if isinstance(error, AccessDeniedError) and (shown is not None or self._store.root is None):
                raise
            if shown is not None and _is_being_written(shown, document_stat):
                raise StoreError(f"{key} is being written: {reason}") from None
        if known is None or known.reason != reason:
            log.warning("%s is shown as stored: %s", path or "the source", reason)
        return Node(path, stat, document, document_stat, metadata, reason=reason)

    async def _below_groups(self, node: Node, known: Node | None) -> Node:
        """Return *node* with what the groups above it say of it; where one is broken, it stays what was *known*."""
        document = node.metadata.document if isinstance(node.metadata, GroupMetadata) else None
        in_image, is_broken = document is not None and is_image(document), node.reason is not None
        if node.path and not in_image:
            with suppress(NotFoundError, NotADirectoryHereError):
                above = await self.node(node.path.rpartition("/")[0])
                in_image, is_broken = above.in_image, is_broken or above.reason is not None
        if is_broken and known is not None:
            in_image = known.in_image
        return node if node.in_image == in_image else replace(node, in_image=in_image)

    async def _read(self, key: str) -> tuple[bytes, Stat]:
        """Read a document of one version, also while another program is writing it."""
        attempts = _ATTEMPTS
        while True:
            snapshot = await self._store.open(key, head_nbytes=_FIRST_NBYTES)
            if snapshot.size > MAX_DOCUMENT_NBYTES:
                raise MetadataError(f"the document has {snapshot.size} bytes, more than {MAX_DOCUMENT_NBYTES}")
            try:
                return bytes(await snapshot.read(0, snapshot.size)), snapshot.stat
            except StaleError:
                attempts -= 1
                if not attempts:
                    raise

    def _array(self, path: str, unsharded: UnshardedArray, metadata: ArrayMetadata) -> Array:
        """Return the array at *path*, with the layout of an earlier document if its chunks lie where they lay."""
        layout = self._layouts.get(path)
        if layout is None or (layout.grid, layout.key_encoding) != (unsharded.grid, unsharded.key_encoding):
            layout = self._layouts[path] = ArrayLayout(path, unsharded.grid, unsharded.key_encoding)
        return Array(layout, unsharded, self._shards, fingerprint(metadata))


def is_below(path: str, directory: str) -> bool:
    """Whether *path* is *directory* or lies below it."""
    return not directory or path == directory or path.startswith(directory + "/")


def _is_being_written(identity: int, now: Stat | None) -> bool:
    """Whether the file of this *identity* was changed in place a moment ago, so that it may be half a document."""
    return now is not None and hash(now.identity) == identity and abs(time.time_ns() - now.mtime_ns) < _SETTLED_NS
