"""Nodes: which directories of a source are arrays and groups, and which arrays can be shown unsharded.

`Source` has everything needed to read a source: every command and every mount begins with one.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from stat import S_IFDIR
from typing import Final, ParamSpec, TypeVar

from shardfs.dataset.array import Array
from shardfs.dataset.chunk_set import ChunkSet
from shardfs.dataset.consolidated import ConsolidatedMetadata, says_the_same
from shardfs.dataset.foreign import Outlines, find_foreign
from shardfs.dataset.node import (
    DOCUMENT,
    BrokenNode,
    ForeignNode,
    Group,
    Node,
    Plain,
    RemovedArray,
    StoredArray,
    groups_above,
)
from shardfs.dataset.path_table import PathTable, is_below
from shardfs.dataset.shard_cache import ShardCache
from shardfs.dataset.source import open_checked
from shardfs.dataset.statistics import Statistics
from shardfs.dataset.worker import LARGE_NBYTES, Worker
from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    StoreError,
    TooDeepError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.fence import contained
from shardfs.format.foreign import Foreign
from shardfs.format.lens import ArrayAbove, Lens, NodeContext, Shown
from shardfs.format.lens.show import (
    Contents,
    Rest,
    read_broken,
    read_document,
    read_large_document,
)
from shardfs.format.lens.unsharded import UnshardedArray, describe_foreign
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.formats import FoundNode
from shardfs.stores.base import Kind, ListedName, Reader, Stat, Store, is_reserved, join_key, writable
from shardfs.stores.cache import Cache, while_it_changes
from shardfs.stores.ttl import derived_at, part_of_request, within_ttl
from shardfs.stores.url import DEFAULTS, StoreOptions, open_session

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_MAX_NODES: Final = 512
_MAX_NODES_NBYTES: Final = 3 * MAX_DOCUMENT_NBYTES  # the largest document, what is shown of it, and some others
_FIRST_NBYTES: Final = 256 * 2**10  # most documents are shorter, and so take one request
_MAX_DEPTH: Final = 100  # what a directory is depends on all those above it
_SETTLED_NS: Final = 2 * 10**9
_MAX_SEEN: Final = 100_000
_MAX_LOGGED: Final = 10_000
_VERDICTS: Final = (MetadataError, NotUnshardable, CorruptionError, IsADirectoryHereError, AccessDeniedError)
"""Errors that make a node be shown as stored; transient errors are raised instead."""


class Hierarchy:
    """The nodes of a source; each is checked again *ttl* seconds after it was last checked.

    *takes_unsharded*: unsharded arrays are shown as arrays too, not just as stored files; they are then protected
    against half-written documents like sharded ones. *looks_above*: how a node is shown depends on the nodes above it.
    *copies* make what groups say of nodes below them. Arrays that only *drafts* of the specification allow are read.
    """

    def __init__(
        self, store: Reader, shards: ShardCache, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._shards = shards
        self.ttl = ttl
        self.clock = clock
        self.takes_unsharded = False
        self.looks_above = False
        self.drafts: tuple[str, ...] = ()
        self._lens: Lens | None = None
        self._worker: Worker | None = None
        self._logged: Cache[str, str] = Cache(lambda _: 0, 0, _MAX_LOGGED)
        self._seen_arrays = _SeenArrays()
        self._seen_foreign: Cache[str, str] = Cache(lambda _: 0, 0, _MAX_SEEN)  # the files that describe them
        self._nodes: Cache[str, tuple[Node, float]] = Cache(
            lambda known: known[0].memory, _MAX_NODES_NBYTES, _MAX_NODES
        )
        self._removed: PathTable[RemovedArray] = PathTable()
        self._as_stored: PathTable[None] = PathTable()
        self.copies = ConsolidatedMetadata(self, store)

    def beside(self) -> "Hierarchy":
        """Return another hierarchy of the same source, for another view; what is pending here is seen there at once.

        Until it is given a worker, large documents are processed by the one that this has now.
        """
        other = Hierarchy(self._store, self._shards, ttl=self.ttl, clock=self.clock)
        other._worker = self._worker
        return other

    def show(self, lens: Lens, worker: Worker | None = None) -> None:
        """Let *lens* generate what nodes show; *worker* processes large documents."""
        self._lens, self._worker = lens, worker
        self.copies.show(lens, worker)
        self.takes_unsharded, self.looks_above, self.drafts = lens.translates, lens.looks_above, lens.drafts

    def look_above(self, *, looks: bool = True) -> None:
        """Find out of each node what the nodes above it say of how it is shown, or do not."""
        self.looks_above = looks

    def read_drafts(self, drafts: tuple[str, ...]) -> None:
        """Read arrays that only these *drafts* of the specification allow, where no lens says which."""
        self.drafts = drafts

    async def node(self, path: str, *, fresh: bool = False) -> Node:
        """Return the node at the directory *path*, checked at most *ttl* seconds ago, or now if *fresh*.

        Raises `TooDeepError` below more than 100 directories.
        """
        if path.count("/") >= _MAX_DEPTH:
            raise TooDeepError(
                f"more than {_MAX_DEPTH} directories are above this one: move it up, or mount a part: {path}"
            )

        async def is_current(known: tuple[Node, float]) -> bool:
            return not fresh and not known[0].is_outdated and within_ttl(known[1], self.clock(), self.ttl)

        async def load() -> tuple[Node, float]:
            known, now = self._nodes.peek(path), self.clock()
            with part_of_request(now), contained(path or "the source"):
                return await self._load(path, known[0] if known is not None else None), derived_at(now)

        return (await self._nodes.get(path, load, is_current))[0]

    def last_seen(self, path: str) -> Node | None:
        """Return the cached node at *path*, however old it is; None if there is none."""
        known = self._nodes.peek(path)
        return known[0] if known is not None else None

    def known(self, path: str) -> Node | None:
        """Return the node at *path* if it is cached and need not be looked at again; in any thread."""
        known = self._nodes.peek(path)
        if known is None or known[0].is_outdated or not within_ttl(known[1], self.clock(), self.ttl):
            return None
        return known[0]

    async def stat(self, path: str) -> Stat:
        """Return the status of *path*: of what is stored, or of a directory that exists because a document names it.

        Raises `NotFoundError` and what else the store raises.
        """
        try:
            return await self._store.stat(path)
        except NotFoundError:
            if (directory := await self._described(path)) is None:
                raise
            return directory

    async def list(self, path: str) -> Sequence[ListedName]:
        """Return the names in the directory *path*: the stored ones, and those of directories that documents name."""
        described = await self._described_in(path)
        try:
            stored = await self._store.list(path)
        except NotFoundError:
            if not described and await self._described(path) is None:
                raise
            stored = ()
        missing = described - {entry.name for entry in stored} if described else ()
        return [*stored, *(ListedName(name, Kind.DIRECTORY) for name in sorted(missing))] if missing else stored

    async def _described(self, path: str) -> Stat | None:
        """Return the status of the directory *path*, which is not stored, if a document above names it."""
        above, _, name = path.rpartition("/")
        async for node, relative in self._describing(above):
            if name in node.described.get(relative, ()) and (origin := node.origin) is not None:
                mode = S_IFDIR | 0o111 | origin.mode & 0o777
                version, identity = ("described", origin.version), ("described", path)
                return origin._replace(
                    kind=Kind.DIRECTORY, size=0, version=version, identity=identity, mode=mode, nlink=2, rdev=0
                )
        return None

    async def _described_in(self, path: str) -> frozenset[str]:
        """Return the names of the directories in *path* that a document in it, or above it, names."""
        async for node, relative in self._describing(path):
            if relative in node.described:
                return node.described[relative]
        return frozenset()

    async def _describing(self, path: str) -> AsyncIterator[tuple[Node, str]]:
        """Yield the nodes whose documents name directories, from the root down to *path*, with the way from each to it.

        In a node of Zarr nothing is named, and in an array there is nothing but chunks. Down from the root, as then
        nobody asks of a directory that is not stored what it names.
        """
        known = self.last_seen(path)
        if any(map(is_reserved, path.split("/"))) or (known is not None and known.document is not None):
            return
        way = [(path, ""), *groups_above(path)] if path else [("", "")]
        for above, relative in reversed(way):
            try:
                node = await self.node(above)
            except (NotFoundError, NotADirectoryHereError):
                return
            if node.described:
                yield node, relative
            if node.metadata is not None and not isinstance(node.metadata, GroupMetadata):
                return  # below an array there are its chunks

    async def look_again(self, path: str) -> Node:
        """Return the current node at *path*, bypassing the cache of the store too."""
        self._store.forget(join_key(path, DOCUMENT))
        return await self.node(path, fresh=True)

    async def array(self, path: str, *, fresh: bool = False) -> Array | None:
        """Return the array at *path*, sharded or not; None if there is none.

        Raises `MetadataError` if its document is broken, which says nothing about the array.
        """
        try:
            node = await self.node(path, fresh=fresh)
        except (NotFoundError, NotADirectoryHereError):
            return None
        if node.metadata is None and node.reason is not None:
            raise MetadataError(f"{join_key(path, DOCUMENT)} cannot be read: {node.reason}")
        return node.any_array

    def forget(self, path: str) -> None:
        """Load the node at *path*, and those below it, again when they are next wanted."""
        for known in [known for known in self._nodes.known() if is_below(known, path)]:
            self._nodes.forget(known)
        self.copies.forget(path)

    def keep_removed(self, node: Node) -> bool:
        """Show *node* as what it is without its document, which a program removes; return whether an array stays.

        If one does, it is a `RemovedArray`, and the caller leaves the document stored; else the caller removes it.
        """
        is_array = self._is_shown(node)
        if is_array and isinstance(node.kind, StoredArray):
            self._removed[node.path] = RemovedArray(self._store, node.path, node.kind)
        self.show_unsharded(node.path)
        self.forget(node.path)
        return is_array

    @property
    def all_removed(self) -> Sequence[RemovedArray]:
        """The arrays whose documents were removed, as long as no other document was found there."""
        return list(self._removed.values())

    async def removed(self, path: str) -> RemovedArray | None:
        """Return the array at *path* whose document was removed, unless somebody has stored another document since."""
        while (removed := self._removed.get(path)) is not None:
            is_current = await removed.is_current()
            if self._removed.get(path) is not removed:  # meanwhile it was ended, or another document removed
                continue
            if is_current:
                return removed
            del self._removed[path]
        return None

    def given_up(self, path: str) -> ChunkSet | None:
        """Return the damaged chunks that were removed of the array at *path*; None unless its document was removed."""
        removed = self._removed.get(path)
        return removed.given_up if removed is not None else None

    def gone(self, path: str) -> None:
        """Forget everything about the directories at *path* and below: they are gone, or something else now."""
        self._shards.layouts.end_below(path)
        for known in self._removed.below(path):
            del self._removed[known]
        as_stored = self._as_stored.below(path)
        for known in as_stored:
            del self._as_stored[known]
        if as_stored:
            self._forget_above(path)
        self._seen_arrays.forget(path)
        self._seen_foreign.forget(path)
        self.forget(path)

    def moved(self, old: str, new: str) -> None:
        """Follow a directory that was moved from *old* to *new*.

        Arrays below it that are shown as stored stay so, and arrays whose documents were removed stay without.
        """
        as_stored = [new + path[len(old) :] for path in self._as_stored.below(old)]
        removed = [self._removed[path].moved(new + path[len(old) :]) for path in self._removed.below(old)]
        self.gone(old)
        self.gone(new)
        self._as_stored.update(dict.fromkeys(as_stored))
        self._removed.update({known.path: known for known in removed})
        if as_stored:
            self._forget_above(new)

    def show_as_stored(self, path: str) -> None:
        """Show the sharded array at *path* as stored from now on: its writer writes shards."""
        if path not in self._as_stored:
            self._as_stored[path] = None
            self._forget_above(path)
        self.forget(path)

    def show_unsharded(self, path: str) -> None:
        """Show the array at *path* unsharded from now on."""
        if path in self._as_stored:
            del self._as_stored[path]
            self._forget_above(path)

    def _forget_above(self, path: str) -> None:
        """Load the groups above *path* again: how they are shown depends on what is shown as stored there, or below."""
        for group, _ in groups_above(path):
            self._nodes.forget(group)
        self.copies.forget(path)

    def as_stored(self, path: str) -> frozenset[str]:
        """Return which arrays at *path* and below are shown as stored, by paths relative to it."""
        return frozenset(known[len(path) :].strip("/") for known in self._as_stored.below(path))

    def remaining(self, path: str) -> float:
        """Return for how many seconds the node at *path* may still be trusted."""
        known = self._nodes.peek(path)
        return max(0.0, known[1] + self.ttl - self.clock()) if known else 0.0

    async def _load(self, path: str, known: Node | None) -> Node:
        node = await self._load_own(path, known)
        group, copy = "", None
        is_usable = isinstance(node.kind, StoredArray | RemovedArray) and node.reason is None
        if not is_usable and path not in self._as_stored:
            group, copy = await self.copies.above(path)
            if says_the_same(node, copy):
                return node
        if copy == node.sharded_copy:
            return node
        if node.sharded_copy is not None:
            node = await self._load_own(path, None)
        if copy is None:
            return node
        has = "is missing" if node.reason is None else f"cannot be used ({node.reason})"
        has = "is that of a group" if isinstance(node.kind, Group) else has
        reason = (
            f"its {DOCUMENT} {has}, and the consolidated metadata of {group or 'the source'} says that it is a sharded "
            "array; shards must not be taken for chunks, so they are neither read nor changed here: without a mount, "
            f"restore {DOCUMENT}, or write the consolidated metadata anew"
        )
        if known is None or known.reason != reason:
            log.warning("%s cannot be read: %s", path or "the source", reason)
        rest = await self._read_broken(node.document, reason)
        broken = BrokenNode(
            reason, node.document, node.document_stat, rest.copies, rest.has_unknown_copies, sharded_copy=copy
        )
        return replace(node, kind=broken, shown=rest.shown)

    async def work(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a module on documents: beside this process if one is large, and there is a worker."""
        if self._worker is None:
            return function(*args, **kwargs)
        return await self._worker.work(function, *args, **kwargs)

    async def _read_broken(self, document: bytes | None, reason: str) -> Rest:
        return await self.work(read_broken, document, self._lens, reason)

    async def _load_own(self, path: str, known: Node | None) -> Node:
        """Load a node without regard to what groups above it say."""
        if known is not None and isinstance(known.kind, Plain):  # else its document is likely to be there
            await self._store.expect_names(path)
        stat, context = await self.stat(path), await self._context(path, known)
        key = join_key(path, DOCUMENT)
        node = Node(path, stat, in_image=context.in_image, context=context)
        removed = await self.removed(path)
        if removed is not None:
            if known is not None and known.kind is removed and known.context == context:
                return replace(known, stat=stat)
            return await self._load_removed(node, removed)
        stored: tuple[bytes, Stat] | tuple[None, None] = None, None
        try:
            if known is not None and known.document_stat is not None:
                version = (await self._store.stat(key)).version
                is_same = (stat.version, version) == (known.stat.version, known.document_stat.version)
                if is_same and known.context == context:
                    return known
            stored = document, document_stat = await while_it_changes(partial(self.read_document, key))
            try:
                contents = await self._parse(document, context)
            except MetadataError:
                if not await self._distrust(key):
                    raise
                stored = document, document_stat = await while_it_changes(partial(self.read_document, key))
                contents = await self._parse(document, context)
        except (NotFoundError, NotADirectoryHereError):
            return await self._load_without(node, known)
        except _VERDICTS as error:
            # For a remote source this says nothing about the document: credentials expire and are renewed.
            if isinstance(error, AccessDeniedError) and (self._seen_arrays.may_have(path) or self._store.root is None):
                raise
            reason = str(error)
            if isinstance(error, IsADirectoryHereError):
                reason += "; Zarr forbids nodes with this name: rename it"
            in_image = known.in_image if known is not None else context.in_image
            rest = await self._read_broken(stored[0], reason)
            is_too_large = stored[0] is None and isinstance(error, MetadataError)
            is_unknown = rest.has_unknown_copies or is_too_large
            broken = replace(BrokenNode(reason, *stored), copies=rest.copies, has_unknown_copies=is_unknown)
            node = replace(node, kind=broken, in_image=in_image, shown=rest.shown)
        else:
            self.copies.created(path)
            kind = self._kind(path, contents, document, document_stat)
            node = replace(node, kind=kind, in_image=contents.in_image, shown=contents.shown)
        # Programs that have read the array's document must not get shards in place of chunks.
        if node.reason is not None and self._is_being_written(path, node.document_stat):
            raise StoreError(f"{key} is being written: {node.reason}")
        if self._is_shown(node) and node.document_stat is not None:
            self._seen_arrays.add(path, node.document_stat)
        self._log(node, known)
        return node

    async def _load_without(self, node: Node, known: Node | None) -> Node:
        """Return *node*, which has no `zarr.json`, as what it is in another format, if it is something in one."""
        if self._store.only_zarr:
            return node
        for above, relative in groups_above(node.path):
            with suppress(NotFoundError, NotADirectoryHereError):
                within = (await self.node(above)).kind
                below = within.foreign.below.get(relative) if isinstance(within, ForeignNode) else None
                if below is not None and isinstance(within, ForeignNode):
                    return self._foreign(node, below, known, within=within)
        was = known.kind if known is not None else None
        if not isinstance(was, ForeignNode):  # else one document is asked for: that of the known format
            await self._store.expect_names(node.path)
        seen: Mapping[str, FoundNode] = {}
        if isinstance(was, ForeignNode):
            seen = was.answers
        elif isinstance(was, Plain):
            seen = was.seen
        answer, now = await find_foreign(self._store, node.stat, node.path, seen)
        if answer is not None and answer.node is not None:
            if answer.node.reason is None:
                self._seen_foreign.put(node.path, answer.node.describing)
            else:
                await self._require_unread(node.path, answer.node.reason)
            return self._foreign(node, answer.node, known, now)
        await self._require_unread(node.path)
        return replace(node, kind=Plain(now)) if now else node

    async def _require_unread(self, path: str, reason: str | None = None) -> None:
        """Raise `StoreError` if programs may have read the node at *path* in a format that cannot be read now.

        Its document is there, and *reason* says what is wrong with it; without one, it may have been removed. Nothing
        that programs look for in the node is absent: they would take it for fill values.
        """
        if (name := self._seen_foreign.peek(path)) is None:
            return
        if reason is None:
            try:
                await self._store.stat(join_key(path, name))
            except (NotFoundError, NotADirectoryHereError):
                self._seen_foreign.forget(path)
                return
        why = reason or "it is of another kind"
        raise StoreError(f"{join_key(path, name)} is not what it was: {why}; to see what it is now, open it again")

    def _foreign(
        self,
        node: Node,
        foreign: Foreign,
        known: Node | None,
        answers: Mapping[str, FoundNode] | None = None,
        *,
        within: ForeignNode | None = None,
    ) -> Node:
        """Return *node* as one of another format, of which formats gave *answers*, or described *within* one."""
        was = known.kind if known is not None else None
        if known is not None and isinstance(was, ForeignNode) and was.foreign is foreign:
            return known if known.stat.version == node.stat.version else replace(known, stat=node.stat)
        chunks = foreign.chunks
        shards = None
        if chunks is not None:
            version = next(iter(answers.values())).origin.version if answers and foreign.is_its_own_shard else None
            shards = self._array(node.path, describe_foreign(chunks), chunks.fingerprint, version)
        shown = self._generated(lambda lens: lens.show_foreign(foreign))
        node = replace(node, kind=ForeignNode(foreign, answers or {}, within, shards), shown=shown)
        self._log(node, known)
        return node

    def _generated(self, show: Callable[[Lens], Shown]) -> Shown | None:
        return None if self._lens is None else show(self._lens)

    async def _load_removed(self, node: Node, removed: RemovedArray) -> Node:
        """Return *node* as what its removed document says."""
        was = removed.was
        contents = await self._parse(was.document, node.context)
        kind = self._kind(node.path, contents, was.document, was.document_stat)
        if isinstance(kind, StoredArray):
            removed.read_as(kind)  # its directory may have been moved
        return replace(node, kind=removed, in_image=contents.in_image, shown=contents.shown)

    def _kind(self, path: str, contents: Contents, document: bytes, document_stat: Stat) -> Group | StoredArray:
        if isinstance(contents.metadata, GroupMetadata):
            return Group(contents.metadata, document, document_stat, contents.copies)
        array = self._array(path, contents.array, contents.fingerprint) if contents.array is not None else None
        return StoredArray(contents.metadata, document, document_stat, array, contents.reason)

    def _is_being_written(self, path: str, now: Stat | None) -> bool:
        """Whether the document of an array that was shown was just changed in place, so that it may be half of one."""
        is_new = now is not None and abs(time.time_ns() - now.mtime_ns) < _SETTLED_NS
        return now is not None and is_new and self._seen_arrays.may_have_file(path, now)

    def _is_shown(self, node: Node) -> bool:
        """Whether a node is shown as an array, which must not be taken for stored files."""
        return node.array is not None or (self.takes_unsharded and node.any_array is not None)

    def _log(self, node: Node, known: Node | None) -> None:
        """Log once what is shown as stored, what the view cannot show, and what some readers get wrong."""
        path, shown = node.path or "the source", node.shown
        problem = (shown.reason or shown.caveat) if shown is not None else None
        is_shown = shown is None or shown.reason is None
        if is_shown and node.reason is not None and (known is None or known.reason != node.reason):
            log.warning("%s is shown as stored: %s", path, node.reason)
        if self._lens is not None and problem is not None and self._logged.peek(path) != problem:
            self._logged.put(path, problem)
            what = "is not read correctly by all users of" if is_shown else "is skipped in"
            what = "cannot be shown in" if node.metadata is None else what
            log.warning("%s %s the %s view: %s", path, what, self._lens.name, problem)

    async def _context(self, path: str, known: Node | None) -> NodeContext:
        """Return what must be known to show the node at *path*; below a broken group, what was known before."""
        context = NodeContext(as_stored=self.as_stored(path), drafts=self.drafts, path=path)
        if self.looks_above and path:
            with suppress(NotFoundError, NotADirectoryHereError):
                node = await self.node(path.rpartition("/")[0])
                if node.reason is not None and known is not None:
                    return context._replace(in_image=known.context.in_image, above=known.context.above)
                above = node.context.above
                if isinstance(node.metadata, ArrayMetadata):
                    above = ArrayAbove(node.metadata, node.context)
                return context._replace(in_image=node.in_image, above=above)
        return context

    async def read_document(self, key: str) -> tuple[bytes, Stat]:
        """Read a document, all of it from one version."""
        return await self._read(key, MAX_DOCUMENT_NBYTES)

    async def _read(self, key: str, most: int) -> tuple[bytes, Stat]:
        snapshot = await self._store.open(key, head_nbytes=_FIRST_NBYTES)
        if snapshot.size > most:
            raise MetadataError(f"the document has {snapshot.size} bytes, more than {most}")
        return bytes(await snapshot.read(0, snapshot.size)), snapshot.stat

    async def _parse(self, document: bytes, context: NodeContext) -> Contents:
        if self._worker is not None and len(document) > LARGE_NBYTES:
            return await self._worker.call(read_large_document, document, self._lens, context)
        return read_document(document, self._lens, context)

    async def _distrust(self, key: str) -> bool:
        """Forget the bytes of a broken document; return whether they may come otherwise next time."""
        snapshot = await self._store.open(key, head_nbytes=_FIRST_NBYTES)
        return await snapshot.distrust(0, snapshot.size)

    def retire(self, array: Array) -> None:
        """Forget the shards of an array as it was before it got another layout, if it did."""
        self._shards.layouts.replaced(array.layout)

    def _array(self, path: str, unsharded: UnshardedArray, fingerprint: bytes, version: Hashable = None) -> Array:
        """Return the array at *path*, with the layout of an earlier document if its chunks are where they were.

        *version* is that of `ArrayLayout`.
        """
        layout = self._shards.layouts.of(path, unsharded.grid, unsharded.key_encoding, version)
        return Array(layout, unsharded, self._shards, fingerprint)


class _SeenArrays:
    """The arrays whose documents programs may have read, with the identities of these: the `_MAX_SEEN` seen last.

    Of any other, programs may have read it too, as soon as one was forgotten.
    """

    def __init__(self) -> None:
        self._identities: Cache[str, int] = Cache(lambda _: 0, 0, _MAX_SEEN)
        self._has_forgotten = False

    def add(self, path: str, document: Stat) -> None:
        """Note that the array at *path* is shown."""
        is_new = self._identities.peek(path) is None
        self._has_forgotten |= is_new and self._identities.count >= _MAX_SEEN
        self._identities.put(path, hash(document.identity))

    def forget(self, path: str) -> None:
        """Note that what is at *path* from now on is something else."""
        self._identities.forget(path)

    def may_have(self, path: str) -> bool:
        """Whether programs may have read the document of an array at *path*."""
        return self._has_forgotten or self._identities.peek(path) is not None

    def may_have_file(self, path: str, document: Stat) -> bool:
        """Whether programs may have read another version of the file *document* as that of the array at *path*."""
        identity = self._identities.peek(path)
        return self._has_forgotten if identity is None else identity == hash(document.identity)


@dataclass(frozen=True, eq=False)
class Source:
    """A store, its open shards, and its nodes. Compared by identity.

    *names* are those at the top when it was opened, None if they are unknown, or too many. *options* are those with
    which other processes open it.
    """

    store: Reader
    statistics: Statistics
    shards: ShardCache
    hierarchy: Hierarchy
    names: Sequence[ListedName] | None = None
    options: StoreOptions = DEFAULTS

    @cached_property
    def writable(self) -> Store:
        """The store, as one that may be changed; raises `SourceError` if it can only be read."""
        return writable(self.store)

    @classmethod
    def of(
        cls,
        store: Reader,
        *,
        ttl: float | None = None,
        max_open: int = 512,
        names: Sequence[ListedName] | None = None,
        options: StoreOptions = DEFAULTS,
    ) -> "Source":
        """Read *store*, trusting what was seen for *ttl* seconds, by default the store's own TTL."""
        ttl = store.ttl if ttl is None else ttl
        statistics = Statistics()
        shards = ShardCache(store, ttl=ttl, statistics=statistics, max_open=max_open)
        return cls(store, statistics, shards, Hierarchy(store, shards, ttl=ttl), names, options)

    def beside(self) -> "Source":
        """Return the same source for another view: it shares everything but the nodes, which views show differently."""
        return replace(self, hierarchy=self.hierarchy.beside())


@asynccontextmanager
async def open_source(
    url: str, options: StoreOptions | None = None, *, ttl: float | None = None, max_open: int = 512
) -> AsyncIterator[Source]:
    """Open a source for the length of the block, which is its session: all that it owns ends there.

    The arguments are those of `open_checked` and `Source.of`. Raises `SourceError` if the source cannot be read.
    """
    async with open_outlines() as outlines, open_session() as session:
        store, names, known = await open_checked(session, url, options or DEFAULTS, outline_of=outlines, ttl=ttl)
        yield Source.of(store, max_open=max_open, names=names, options=known)


@asynccontextmanager
async def open_outlines() -> AsyncIterator[Outlines]:
    """Yield what reads documents of sources that list nothing: the large ones in a process that ends with the block."""
    worker = Worker()
    try:
        yield Outlines(worker)
    finally:
        await worker.end()
