"""Names that are to be changed: what one stands for, or would stand for, in a directory of the tree."""

import os
from dataclasses import dataclass

from shardfs.errors import NotADirectoryHereError, NotPermittedError, RefusedError
from shardfs.format.sharding import Coords
from shardfs.stores.base import is_reserved, join_key
from shardfs.vfs.chunk_tree import ChunkTree
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import in_table, unpack
from shardfs.vfs.nodes import ChunkDirectory, Directory


@dataclass(frozen=True)
class ChunkName:
    """An inner chunk within the grid, there or not."""

    chunks: ChunkTree
    coords: Coords

    @property
    def path(self) -> str:
        """The name, for messages."""
        return join_key(self.chunks.array.layout.path, self.chunks.key(self.coords))


@dataclass(frozen=True)
class ChunkDirectoryName:
    """A directory above chunks; *coords* are those that its path gives."""

    chunks: ChunkTree
    coords: Coords


@dataclass(frozen=True)
class DocumentName:
    """The metadata document *name* in the directory *directory*, there or not."""

    directory: str
    name: str

    @property
    def path(self) -> str:
        """The name, as a key."""
        return join_key(self.directory, self.name)


@dataclass(frozen=True)
class PlainName:
    """Anything else: stored as it is under the key *path*.  *is_scratch*: beside chunks, not in the dataset."""

    path: str
    is_scratch: bool = False


Name = ChunkName | ChunkDirectoryName | DocumentName | PlainName


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asks: the owner of what is new."""

    uid: int
    gid: int


async def resolve(fs: Filesystem, parent: int, name: bytes) -> Name:
    """Return what *name* in the directory *parent* stands for; raises `NotPermittedError` for names of our own."""
    text = os.fsdecode(name)
    if is_reserved(text):
        raise NotPermittedError(f"{text} is a name that shardfs keeps for itself")
    if not in_table(parent):
        number, _, position = unpack(parent)
        return await _resolve_in_chunks(fs, fs.numbers.tree(number), position, text)
    node = fs.node(parent)
    if isinstance(node, ChunkDirectory):
        return await _resolve_in_chunks(fs, node.chunks, node.position, text)
    if not isinstance(node, Directory):
        raise NotADirectoryHereError("this is no directory")
    is_scratch = fs.is_scratch(node.path)
    if text in fs.view.document_names and not is_scratch:
        return DocumentName(node.path, text)
    stored = await node.hierarchy_node()
    known = fs.chunk_tree(stored)
    if known is not None and known.owns_in_array(text):
        return _of_chunks(known, await known.coords_of(None, text))
    if known is not None and known.is_scratch(text):
        return await _beside_chunks(fs, node.path, text)
    if node.hides(stored, known, text):
        raise NotPermittedError(f"{join_key(node.path, text)} is not shown, and cannot be written, in this view")
    return PlainName(join_key(node.path, text), is_scratch=is_scratch)


async def resolve_published(fs: Filesystem, parent: int, name: bytes) -> ChunkName | DocumentName | None:
    """Return what *name* stands for if that is published as a whole; looks at nothing that is stored."""
    text = os.fsdecode(name)
    node = fs.node(parent) if in_table(parent) else None
    position: int | None = None
    if isinstance(node, ChunkDirectory):
        chunks, position = node.chunks, node.position
        is_owned = chunks.owns(text)
    elif isinstance(node, Directory):
        if fs.is_document(join_key(node.path, text)):
            return DocumentName(node.path, text)
        known = fs.chunk_tree(await node.hierarchy_node())
        if known is None:
            return None
        chunks, is_owned = known, known.owns_in_array(text)
    elif node is None:
        number, _, position = unpack(parent)
        chunks = fs.numbers.tree(number)
        is_owned = chunks.owns(text)
    else:
        return None
    if not is_owned:
        return None
    try:
        found = _of_chunks(chunks, await chunks.coords_of(position, text))
    except RefusedError:  # beyond the grid
        return None
    return found if isinstance(found, ChunkName) else None


async def _resolve_in_chunks(fs: Filesystem, chunks: ChunkTree, position: int, text: str) -> Name:
    if chunks.owns(text):
        return _of_chunks(chunks, await chunks.coords_of(position, text))
    return await _beside_chunks(fs, chunks.stored_path(position), text)


async def _beside_chunks(fs: Filesystem, directory: str, text: str) -> PlainName:
    place = await fs.stored.place_beside_chunks(directory, text)
    return PlainName(join_key(place, text), is_scratch=place != directory)


def _of_chunks(chunks: ChunkTree, coords: Coords) -> ChunkName | ChunkDirectoryName:
    grid = chunks.array.grid
    is_root = bool(chunks.root) and not coords
    return ChunkDirectoryName(chunks, coords) if is_root or len(coords) < grid.ndim else ChunkName(chunks, coords)
