"""The npy view: directories, an .npy file for each array, a .json file for the attributes of arrays and groups.

Generated names hide stored ones, and so does what belongs to an array: its directory and its chunks.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from shardfs.dataset.hierarchy import DOCUMENT, Hierarchy, Node
from shardfs.dataset.maintenance.walk import walk_nodes
from shardfs.dataset.source import Source
from shardfs.errors import MetadataError, NotADirectoryHereError, NotFoundError, ShardfsError, StaleError
from shardfs.format.grid import ChunkKeyEncoding, parse_coordinate
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.stores.base import Kind, Store, is_reserved, join_key
from shardfs.vfs.at_once import for_each
from shardfs.vfs.attributes import Attributes
from shardfs.vfs.entries.base import Entry
from shardfs.vfs.entries.passthrough import Directory
from shardfs.vfs.handles import Batch, DocumentHandle, FileHandle
from shardfs.vfs.npy_file import NpyArray, NpyHandle

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem
    from shardfs.vfs.views import NpyView

NPY: Final = ".npy"
JSON: Final = ".json"
_AT_ONCE: Final = 16
_MAX_NAME_NBYTES: Final = 255  # what Linux takes


class Generated(NamedTuple):
    """A file that stands for the array of *node*, or for the attributes of *node*, as its *suffix* says."""

    node: Node
    suffix: str


@dataclass(frozen=True)
class NpyNames:
    """What a directory shows: *generated* files by name, beside what is stored there and not *hidden*.

    *problems* are the reasons why something is not to be seen, by its stored name or path.
    """

    generated: Mapping[str, Generated]
    hidden: frozenset[str]
    problems: Mapping[str, str] = field(default_factory=dict)


def files_of(view: "NpyView", node: Node, name: str) -> dict[str, Generated]:
    """Return the files that stand for *node*, which is called *name*."""
    metadata = node.metadata
    if not isinstance(metadata, ArrayMetadata | GroupMetadata) or view.left_out(node) is not None:
        return {}
    files = {name + NPY: Generated(node, NPY)} if isinstance(metadata, ArrayMetadata) else {}
    if view.attributes(node) is not None:
        files[name + JSON] = Generated(node, JSON)
    return files


def is_chunk_name(node: Node, name: str) -> bool:
    """Whether *name*, in the directory of an array, belongs to its chunks."""
    metadata = node.metadata
    if not isinstance(metadata, ArrayMetadata):
        return False
    try:
        encoding = ChunkKeyEncoding.parse(metadata.chunk_key_encoding)
    except MetadataError:
        return False
    root = encoding.root(metadata.ndim)
    if root:
        return name == root
    if encoding.is_nested(metadata.ndim):
        return parse_coordinate(name) is not None
    return encoding.decode(name, metadata.ndim) is not None


async def child(hierarchy: Hierarchy, node: Node, name: str) -> Node | None:
    """Return the node *name* in the directory of *node*, None if there is none."""
    if name in ("", ".", "..") or is_reserved(name) or isinstance(node.metadata, ArrayMetadata):
        return None
    try:
        return await hierarchy.node(join_key(node.path, name))
    except (NotFoundError, NotADirectoryHereError):
        return None


async def names_in(view: "NpyView", hierarchy: Hierarchy, store: Store, node: Node) -> NpyNames:
    """Look at the directory of *node*, and at all nodes in it."""
    entries = [entry for entry in await store.list(node.path) if not is_reserved(entry.name)]
    children: dict[str, Node] = {}

    async def look(name: str) -> None:
        try:
            found = await child(hierarchy, node, name)
        except ShardfsError:  # which comes again when somebody looks at the name
            found = hierarchy.last_seen(join_key(node.path, name))
        if found is not None:
            children[name] = found

    kinds = (Kind.DIRECTORY, Kind.SYMLINK)
    await for_each(sorted(entry.name for entry in entries if entry.kind in kinds), look, _AT_ONCE)
    hidden = {entry.name for entry in entries if view.hides(node, entry.name) or is_chunk_name(node, entry.name)}
    hidden |= {name for name, each in children.items() if isinstance(each.metadata, ArrayMetadata)}
    own = files_of(view, node, view.source_name) if not node.path else {}
    below = {name: file for each in sorted(children) for name, file in files_of(view, children[each], each).items()}
    problems = {
        name: f"{view.source_name}{file.suffix} is a file of {below[name].node.path}, not of the source itself"
        for name, file in own.items()
        if name in below
    }
    generated = own | below
    for name in [name for name in generated if len(os.fsencode(name)) > _MAX_NAME_NBYTES]:
        problems[join_key(node.path, name)] = f"its name is longer than the {_MAX_NAME_NBYTES} bytes that one can have"
        del generated[name]
    for entry in entries:
        if entry.name in generated and entry.name not in hidden:
            of = generated[entry.name].node.path or "the source"
            problems[join_key(node.path, entry.name)] = f"a file of that name stands for {of}"
    return NpyNames(generated, frozenset(hidden | generated.keys()), problems)


class NpyDirectory(Directory):
    """A directory: of a group, of anything that is no array, or of an array that is the source itself."""

    __slots__ = ()

    async def lookup(self, name: str) -> Attributes:
        """Return the attributes of a generated file, or of what is stored."""
        node = await self._node()
        generated = await self._generated(node, name)
        if generated is not None:
            return self._attributes_of(generated)
        if self._view.hides(node, name) or is_chunk_name(node, name):
            return self.fs.stored.nothing()
        attributes = await self.fs.stored.lookup(self.path, name)
        if attributes.status.kind in (Kind.DIRECTORY, Kind.SYMLINK):
            below = await child(self.fs.hierarchy, node, name)
            if below is not None and isinstance(below.metadata, ArrayMetadata):
                return self.fs.stored.nothing()
        return attributes

    async def list(self, cookie: int) -> AsyncGenerator[Batch, None]:
        """Yield generated files, then stored names."""
        node = await self._node()
        names = await names_in(self._view, self.fs.hierarchy, self.fs.store, node)
        for path, problem in names.problems.items():
            self._view.tell_once(f"{path} is not shown: {problem}")
        generated = {name: self._attributes_of(names.generated[name]) for name in sorted(names.generated)}
        async for batch in self.fs.stored.list(self.path, cookie, generated, names.hidden.__contains__):
            yield batch

    @property
    def _view(self) -> "NpyView":
        return _view_of(self)

    async def _node(self) -> Node:
        node = await self.node()
        if self.path and isinstance(node.metadata, ArrayMetadata):
            raise StaleError(f"{self.path} is an array by now, and shown as a file")
        return node

    async def _generated(self, node: Node, name: str) -> Generated | None:
        for suffix in (NPY, JSON):
            if not name.endswith(suffix):
                continue
            base = name.removesuffix(suffix)
            below = await child(self.fs.hierarchy, node, base)
            files = files_of(self._view, below, base) if below is not None else {}
            if name not in files and not self.path:
                files = files_of(self._view, node, self._view.source_name)
            return files.get(name)
        return None

    def _attributes_of(self, generated: Generated) -> Attributes:
        node = generated.node
        assert node.document_stat is not None
        kind = NpyNode if generated.suffix == NPY else AttributesNode
        file = kind(self.fs, node.path, node.document_stat.version)
        file.ino = self.fs.inodes.keyed((kind, node.path, file.identity), kind, file)
        return file.attributes_in(node)


class NodeFile(Entry, ABC):
    """A file that stands for something of the node at *path*; *identity* is the version of the node's document."""

    __slots__ = ("_path", "identity")

    def __init__(self, fs: "Filesystem", path: str, identity: object) -> None:
        super().__init__(fs)
        self._path = path
        self.identity = identity

    @property
    def path(self) -> str:
        """The path of the node."""
        return self._path

    async def attributes(self) -> Attributes:
        """Return the attributes of the stored document, with the size of the file that is shown."""
        return self.attributes_in(await self.node())

    async def attribute(self, name: bytes) -> bytes:
        """Return an extended attribute of the stored document."""
        return await self.fs.store.attribute(join_key(self.path, DOCUMENT), name)

    async def attribute_names(self) -> Sequence[bytes]:
        """Return the names of its extended attributes."""
        return await self.fs.store.attributes(join_key(self.path, DOCUMENT))

    def attributes_in(self, node: Node) -> Attributes:
        """Return the attributes as *node* is now."""
        assert node.document_stat is not None
        ttl = self.fs.hierarchy.remaining(self.path)
        return Attributes(self.ino, self.nbytes_in(node), ttl, node.document_stat)

    @abstractmethod
    def nbytes_in(self, node: Node) -> int:
        """Return the size of the file, as *node* is now."""

    async def node(self, *, fresh: bool = False) -> Node:
        """Return the node; raises `StaleError` if its document has another version now."""
        try:
            node = await self.fs.hierarchy.node(self.path, fresh=fresh)
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None
        if node.document_stat is None or node.document_stat.version != self.identity:
            raise StaleError(f"the document of {self.path or 'the source'} was replaced")
        return node


class NpyNode(NodeFile):
    """An array as an .npy file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int:
        """Return the size of the file."""
        return self._shown_in(node).file.nbytes

    @property
    def nopened(self) -> int:
        """How many times the file was opened."""
        return _view_of(self).nopened[self.path]

    async def open(self) -> FileHandle:
        """Open the array as it is now."""
        node = await self.node(fresh=True)
        shown = self._shown_in(node)
        shown.array.listing.forget()
        _view_of(self).nopened[self.path] += 1
        room = self.fs.chunk_cache.max_nbytes
        if shown.at_once_nbytes > room:
            _view_of(self).tell_once(
                f"{self.path or 'the source'}: reading it in order decodes chunks more than once; "
                f"--decode-cache {-(-shown.at_once_nbytes // 2**20)}M keeps what is needed again"
            )
        return NpyHandle(self, self.attributes_in(node), shown, _view_of(self).ahead)

    async def shown(self) -> NpyArray:
        """Return the array as it is now, whatever the version of its document."""
        try:
            return self._shown_in(await self.fs.hierarchy.node(self.path))
        except NotFoundError:
            raise StaleError(f"{self.path} is gone") from None

    def _shown_in(self, node: Node) -> NpyArray:
        shown = _view_of(self).array(node)
        if shown is None:
            raise StaleError(f"{self.path or 'the source'} is no array with an .npy form any more")
        return shown


class AttributesNode(NodeFile):
    """The attributes of an array or a group as a JSON file."""

    __slots__ = ()

    def nbytes_in(self, node: Node) -> int:
        """Return the size of the text."""
        return len(_view_of(self).attributes(node) or b"")

    async def open(self) -> FileHandle:
        """Open the text as it is now."""
        node = await self.node(fresh=True)
        return DocumentHandle(self.attributes_in(node), _view_of(self).attributes(node) or b"")


def _view_of(node: Entry) -> "NpyView":
    return cast("NpyView", node.fs.view)


async def npy_problems(source: Source, view: "NpyView") -> AsyncIterator[tuple[str, str]]:
    """Yield path and reason of everything below *source* that the view does not show; the source itself is "".

    These are arrays without an .npy form, and stored names that the name of a generated file hides.
    """
    seen: set[str] = set()
    async for node in walk_nodes(source):
        reason = view.left_out(node)
        if reason is not None:
            yield node.path, reason
        directory = node.path.rpartition("/")[0]
        for path in {directory, node.path if isinstance(node.metadata, GroupMetadata) else directory} - seen:
            seen.add(path)
            try:
                above = await source.hierarchy.node(path)
                problems = (await names_in(view, source.hierarchy, source.store, above)).problems
            except ShardfsError:  # a directory that cannot be listed is reported as a node
                continue
            for name, problem in problems.items():
                yield name, problem
