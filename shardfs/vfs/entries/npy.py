"""The npy view: directories, an .npy file for each array, and a .json file for the attributes of each array and group.

Generated names hide stored ones. The directory of an array and its chunks are hidden too. Any range of an .npy file is
assembled from the chunks that it touches.
"""

import os
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import trio

from shardfs.dataset.array import Array, Extent
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.dataset.shard import OpenShard
from shardfs.errors import NotADirectoryHereError, NotFoundError, ShardfsError, StaleError, StoreError
from shardfs.format.lens import NpyForm, Shown
from shardfs.format.lens.npy import ARRAY, ATTRIBUTES
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.npy import Copy
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer, Kind, is_reserved, join_key
from shardfs.stores.parallel import QuickLock, for_each
from shardfs.vfs.chunk_cache import DecodedChunk, VersionKey
from shardfs.vfs.entries.base import Entry, Tree, TreeView
from shardfs.vfs.entries.passthrough import Directory
from shardfs.vfs.handles import Attributes, Batch, DocumentHandle, FileHandle

_AT_ONCE: Final = 16
_MAX_NAME_NBYTES: Final = 255  # the limit of Linux
_MAX_COPIES: Final = 2**7
_MAX_AHEAD_NBYTES: Final = 2**20
_MAX_AHEAD: Final = 16
_MAX_KNOWN: Final = 2**14
_MAX_RANGE_NBYTES: Final = 64 * 2**20

Elements = np.ndarray[tuple[int, ...], np.dtype[Any]]


class NpyFiles(TreeView, Protocol):
    """What the files of this view ask it; `NpyView` says what each of these is."""

    source_name: str
    nopened: Counter[str]
    ahead: "OrderedDict[NpyHandle, Ahead]"

    def attributes(self, node: Node) -> bytes | None:
        """Return the attributes of *node* as JSON; None if it has none, or is not shown."""

    def shown(self, node: Node) -> Shown:
        """Return what is generated for *node*."""


class NpyDirectory(Directory):
    """The directory of a group, of an array that is the source itself, or of no node at all."""

    __slots__ = ()

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of a generated file, or of a stored one."""
        node, view = await self._node(), _view_of(self)
        for suffix in _KINDS:
            if name.endswith(suffix):
                base = name.removesuffix(suffix)
                below = await self._child(node, base)
                files = self._files_of(below, base) if below is not None else {}
                if name not in files and not self.path:
                    files = self._files_of(node, view.source_name)
                if name in files:
                    return files[name]
        if view.hides(node, name) or node.has_shards_at(name):
            return self.fs.nothing()
        attributes = await self.fs.lookup_stored(self.path, name)
        if attributes.status.kind in (Kind.DIRECTORY, Kind.SYMLINK):
            below = await self._child(node, name)
            if below is not None and isinstance(below.metadata, ArrayMetadata):
                return self.fs.nothing()
        return attributes

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield generated files, then stored names."""
        node, view = await self._node(), _view_of(self)
        children: dict[str, Node] = {}

        async def look(name: str) -> None:
            try:
                child = await self._child(node, name)
            except ShardfsError:  # which is raised again when somebody looks the name up
                child = self.fs.hierarchy.last_seen(join_key(self.path, name))
            if child is not None:
                children[name] = child

        kinds = (Kind.DIRECTORY, Kind.SYMLINK)
        entries = await self.fs.hierarchy.list(self.path)
        names = [entry.name for entry in entries if entry.kind in kinds and not node.has_shards_at(entry.name)]
        await for_each(sorted(names), look, _AT_ONCE)
        generated = {} if self.path else self._files_of(node, view.source_name)
        for name, below in children.items():
            generated |= self._files_of(below, name)

        def hides(name: str) -> bool:
            is_array = name in children and isinstance(children[name].metadata, ArrayMetadata)
            return is_array or name in generated or view.hides(node, name) or node.has_shards_at(name)

        async for batch in self.fs.list_stored(self.path, cookie, hides, dict(sorted(generated.items()))):
            yield batch

    async def _node(self) -> Node:
        node = await self.node()
        if self.path and isinstance(node.metadata, ArrayMetadata):
            raise StaleError(f"{self.path} is now an array, shown as a file")
        return node

    async def _child(self, node: Node, name: str) -> Node | None:
        """Return the node *name* in this directory, which is that of *node*; None if there is none."""
        if name in ("", ".", "..") or is_reserved(name) or node.has_shards_at(name):
            return None
        try:
            return await self.fs.hierarchy.node(join_key(self.path, name))
        except (NotFoundError, NotADirectoryHereError):
            return None

    def _files_of(self, node: Node, name: str) -> dict[str, Attributes]:
        """Return the files generated for *node*, whose name is *name*."""
        if node.metadata is None or node.document_stat is None or _view_of(self).skipped(node) is not None:
            return {}
        files: dict[str, Attributes] = {}
        for suffix, kind in _KINDS.items():
            file = kind(self.fs, node.path, node.document_stat.version)
            if file.nbytes_in(node) is not None and len(os.fsencode(name + suffix)) <= _MAX_NAME_NBYTES:
                file.keep_inode(self.fs.inodes.keyed((kind, node.path, file.identity), kind, file))
                files[name + suffix] = file.attributes_in(node)
        return files


class NodeFile(Entry, ABC):
    """A file generated for the node at *path*; *identity* is the version of the stored document."""

    __slots__ = ("_path", "identity")

    def __init__(self, fs: Tree, path: str, identity: object) -> None:
        super().__init__(fs)
        self._path = path
        self.identity = identity

    @property
    def path(self) -> str:
        """The path of the node."""
        return self._path

    def keep_inode(self, ino: int) -> None:
        """Let the number *ino* stand for the file."""
        self.ino = ino

    async def attributes(self) -> Attributes:
        """Return the attributes of the stored document, with the size of the generated file."""
        return self.attributes_in(await self.node())

    def stored_key(self) -> str | None:
        """Return the key of the stored document."""
        return join_key(self.path, DOCUMENT)

    def attributes_in(self, node: Node) -> Attributes:
        """Return the attributes of the file as generated for *node*."""
        nbytes = self.nbytes_in(node)
        if nbytes is None or node.document_stat is None:
            raise StaleError(f"{self.path or 'the source'} no longer has this form")
        return Attributes(self.ino, nbytes, self.fs.hierarchy.remaining(self.path), node.document_stat)

    @abstractmethod
    def nbytes_in(self, node: Node) -> int | None:
        """Return the size of the file as generated for *node*; None if there is none."""

    async def node(self, *, fresh: bool = False) -> Node:
        """Return the node; raises `StaleError` if its document has another version by now."""
        try:
            node = await self.fs.hierarchy.node(self.path, fresh=fresh)
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        if node.document_stat is None or node.document_stat.version != self.identity:
            raise StaleError(f"the document of {self.path or 'the source'} was replaced")
        return node


class AttributesNode(NodeFile):
    """The attributes of an array or a group as a JSON file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int | None:
        """Return the size of the text."""
        text = _view_of(self).attributes(node)
        return len(text) if text is not None else None

    async def open(self) -> FileHandle:
        """Open the current text."""
        node = await self.node(fresh=True)
        return DocumentHandle(self.attributes_in(node), _view_of(self).attributes(node) or b"")


class NpyNode(NodeFile):
    """An array as an .npy file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int | None:
        """Return the size of the file."""
        form = _view_of(self).shown(node).npy
        return form.file.nbytes if form is not None and node.any_array is not None else None

    @property
    def nopened(self) -> int:
        """How often the file was opened."""
        return _view_of(self).nopened[self.path]

    async def open(self) -> FileHandle:
        """Open the array in its current state."""
        node = await self.node(fresh=True)
        attributes = self.attributes_in(node)
        _view_of(self).nopened[self.path] += 1
        return NpyHandle(self, attributes, self.shown_in(node), _view_of(self).ahead)

    def shown_in(self, node: Node) -> "NpyArray":
        """Return the array of *node*, whatever the version of its document."""
        form = _view_of(self).shown(node).npy
        if form is None or node.any_array is None:
            raise StaleError(f"{self.path or 'the source'} is no longer an array with an .npy form")
        return NpyArray(node.any_array, form)


class NpyArray(NamedTuple):
    """An array, and its *form* as an .npy file."""

    array: Array
    form: NpyForm

    @property
    def layout(self) -> tuple[object, ...]:
        """Equal for arrays that may differ in shape, but have their common elements at the same offsets of the file."""
        grid = self.array.grid
        edges = [dimension.runs for dimension in grid.shards.dimensions]
        return edges, grid.chunk_shape, grid.levels, self.array.layout.key_encoding, self.form.codec, self.form.fill


_KINDS: Final[dict[str, type[AttributesNode | NpyNode]]] = {ATTRIBUTES: AttributesNode, ARRAY: NpyNode}


class Ahead(NamedTuple):
    """Bytes *start* to *stop* − 1 of the elements of an array, read ahead for a sequential reader."""

    start: int
    stop: int
    data: memoryview


class NpyHandle(FileHandle):
    """An open .npy file, with the shape that the array had when it was opened.

    A chunk is looked up when it is first read, and stays the same version for as long as it is cached. When the file is
    opened again, all chunks are looked up again: the kernel has one page cache per file, so earlier readers get what
    the new one reads.

    For sequential readers, up to 1 MiB is read ahead, a few requests of the kernel. *all_ahead* holds that for the open
    files that were read last.
    """

    def __init__(
        self, node: NpyNode, attributes: Attributes, shown: NpyArray, all_ahead: "OrderedDict[NpyHandle, Ahead]"
    ) -> None:
        super().__init__(attributes)
        self._node = node
        self._layout = shown.layout
        self.array, (self._file, self._codec, fill) = shown
        self.array.listing.forget()
        self._chunks = node.fs.chunk_cache
        self._item = self._file.item
        self._source_strides = tuple(n * self._item.itemsize for n in self._file.chunk_strides)
        self._fill: Elements = np.frombuffer(fill, self._item)
        self._known: dict[Coords, VersionKey | None] = {}  # None: the chunk is missing
        self._all_ahead = all_ahead
        self._reading_on = QuickLock()
        self._end = 0
        self._in_order = 0
        self._valid_until = float("-inf")
        self._nopened = node.nopened
        # Chunks without a codec on a local disk need no thread.
        self._limit = 1 if self._codec.is_identity and not node.fs.store.rewrites else _AT_ONCE
        # How many elements one plan may always cover: with many chunks of one element it would be long.
        last = min((*self._file.shape[-1:], *self._file.chunk_shape[-1:]), default=1)
        self._max_planned = _MAX_COPIES * max(1, last)

    async def read(self, offset: int, nbytes: int) -> Buffer:
        """Return up to *nbytes* bytes from *offset*; raises `StaleError` if the array was replaced."""
        file = self._file
        stop = min(offset + nbytes, file.nbytes)
        if stop <= max(offset, len(file.header)):
            return file.header[offset:stop]
        await self._check()
        in_order = self._in_order if offset == self._end else None
        self._end, self._in_order = stop, stop - offset + (in_order or 0)
        start, end = max(offset - len(file.header), 0), stop - len(file.header)
        data = await (self._gather(start, end) if in_order is None else self._read_on(start, end, in_order))
        return data if offset >= len(file.header) else file.header[offset:] + bytes(data)

    async def _read_on(self, start: int, stop: int, in_order: int) -> Buffer:
        """Return the bytes *start* to *stop* − 1 of the elements, for a reader of *in_order* bytes before them."""
        parts = []
        async with self._reading_on:
            while start < stop:
                ahead = self._all_ahead.pop(self, None)
                if ahead is None or not ahead.start <= start < ahead.stop:
                    ahead = await self._put_together(start, stop, in_order)
                parts.append(ahead.data[start - ahead.start : stop - ahead.start])
                if ahead.stop > stop and self._nopened == self._node.nopened:
                    self._all_ahead[self] = ahead
                    if len(self._all_ahead) > _MAX_AHEAD:
                        self._all_ahead.popitem(last=False)
                start = ahead.stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _put_together(self, start: int, stop: int, in_order: int) -> Ahead:
        """Return the requested bytes, and up to as many more as were read before: one large step costs less."""
        file = self._file
        end = file.boundary(start, start + min(in_order, _MAX_AHEAD_NBYTES))
        if end > stop and file.ncopies(start // file.item_nbytes, -(-end // file.item_nbytes)) <= _MAX_COPIES:
            try:
                return Ahead(start, end, await self._gather(start, end, is_in_order=True))
            except ShardfsError:
                self._in_order = 0  # the requested bytes may be sound
        return Ahead(start, stop, await self._gather(start, stop, is_in_order=True))

    async def _gather(self, start: int, stop: int, *, is_in_order: bool = False) -> memoryview:
        """Return the bytes *start* to *stop* − 1 of the elements."""
        file = self._file
        first, last = start // file.item_nbytes, -(-stop // file.item_nbytes)
        out = np.empty(last - first, self._item)
        at = first
        while at < last:
            behind = last
            while behind - at > self._max_planned and file.ncopies(at, behind) > _MAX_COPIES:
                behind = at + (behind - at) // 2
            await self._fill_in(out[at - first : behind - first], file.plan(at, behind), is_in_order)
            at = behind
        skipped = start - first * file.item_nbytes
        return out.view(np.uint8).data[skipped : skipped + stop - start]

    async def _check(self) -> None:
        """Raise `StaleError` if the array no longer has the chunks that it had when the file was opened."""
        if self._nopened != self._node.nopened:
            self._nopened = self._node.nopened
            self._known.clear()
            self._all_ahead.pop(self, None)
            self.array.listing.forget()
        hierarchy = self._node.fs.hierarchy
        if hierarchy.clock() < self._valid_until:
            return
        try:
            now = self._node.shown_in(await hierarchy.node(self._node.path))
        except NotFoundError:
            raise StaleError(f"{self._node.path} is gone") from None
        if now.layout != self._layout:
            raise StaleError(f"the array {self.array.layout.path or 'at the root'} has changed")
        self._valid_until = hierarchy.clock() + hierarchy.remaining(self.array.layout.path)

    async def _fill_in(self, out: Elements, plan: dict[Coords, list[Copy]], is_in_order: bool) -> None:
        await trio.lowlevel.checkpoint()  # let other requests run
        if len(self._known) + len(plan) > _MAX_KNOWN:
            self._known.clear()
        missing = {}
        for coords, copies in plan.items():
            version = self._known.get(coords)
            data = self._chunks.known(version, self._codec) if version is not None else None
            if data is None and (version is not None or coords not in self._known):
                missing[coords] = copies
            else:
                self._copy(copies, data, 0, out)

        async def fetch(coords: Coords) -> None:
            await self._fetch(coords, missing[coords], out, is_in_order)

        await for_each(missing, fetch, self._limit)

    async def _fetch(self, coords: Coords, copies: list[Copy], out: Elements, is_in_order: bool) -> None:
        nopened = self._nopened
        try:
            extent = (await self.array.find(coords, fresh=coords not in self._known))[1]
            first, data = await self._bytes_of(coords, extent, copies, is_in_order)
        except StaleError:  # the cached state was out of date, and no byte was returned yet
            extent = (await self.array.find(coords, fresh=True))[1]
            first, data = await self._bytes_of(coords, extent, copies, is_in_order)
        if nopened == self._nopened:  # else it may be out of date for who opened the file meanwhile
            self._known[coords] = VersionKey.of(self.array.layout, coords, extent) if extent is not None else None
        self._copy(copies, data, first, out)

    async def _bytes_of(
        self, coords: Coords, extent: Extent | None, copies: list[Copy], is_in_order: bool
    ) -> tuple[int, Buffer | None]:
        """Return the decoded bytes of a chunk that *copies* need, and the offset at which they begin.

        The bytes are None for a missing chunk.
        """
        if extent is None:
            return 0, None
        if is_in_order and isinstance(extent.source, OpenShard):
            extent.source.expect()
        chunk = DecodedChunk(self._chunks, self.array.layout, coords, extent, self._codec)
        if self._codec.is_identity:
            first = min(copy.source for copy in copies) * self._item.itemsize
            last = max(map(self._stop, copies))
            if last - first > _MAX_RANGE_NBYTES:
                raise StoreError(
                    f"a chunk of {self.array.layout.path or 'the array'} is too large: {chunk.nbytes} bytes"
                )
            return first, await chunk.read(first, last - first)
        return 0, await chunk.get()

    def _stop(self, copy: Copy) -> int:
        """Return where the last element of *copy* ends in the decoded bytes of a chunk."""
        steps = sum((n - 1) * stride for n, stride in zip(copy.shape, self._source_strides, strict=True))
        return (copy.source + 1) * self._item.itemsize + steps

    def _copy(self, copies: list[Copy], data: Buffer | None, first: int, out: Elements) -> None:
        nbytes = self._item.itemsize
        for shape, source, target, target_strides in copies:
            strides = [n * nbytes for n in target_strides]
            part: Elements = np.ndarray(shape, self._item, out, target * nbytes, strides)
            if data is None:
                part[...] = self._fill[0]
            else:
                part[...] = np.ndarray(shape, self._item, data, source * nbytes - first, self._source_strides)


def _view_of(node: Entry) -> NpyFiles:
    return cast(NpyFiles, node.fs.view)
