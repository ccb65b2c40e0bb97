"""Chunks that any thread reads without the event loop: those of open shards, and those that the store finds at once."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import lt

from shardfs.dataset.array import Array
from shardfs.dataset.node import StoredArray
from shardfs.errors import StaleError
from shardfs.format.grid import parse_coordinate
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer
from shardfs.stores.direct import DirectReader
from shardfs.vfs.entries.chunk import ChunkTree
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import ArrayNumbers, TreePosition, in_table

DirectRead = Callable[[int, int | None, bool], Buffer | None]
"""Returns bytes of a chunk, from a start to a stop as those of a slice; None if the event loop is needed.

If the last argument is true, it waits for disks and decoders, else it raises `WouldWaitError`.
"""


class DirectChunks:
    """The chunks of *fs*, for any thread."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self._finds_stored = isinstance(fs.store, DirectReader) and not fs.view.translates

    def find(self, directory: int, names: Sequence[str]) -> DirectRead | None:
        """Return what reads the chunk that *names* lead to from the directory with this number.

        None if they lead to no chunk of an array that is known here.
        """
        fs = self._fs
        try:
            if not in_table(directory):
                return self._in_tree(*fs.ranges.find(directory), names)
            row = fs.inodes.row(directory)
        except StaleError:
            return None
        if isinstance(row.entry, TreePosition):
            return self._in_tree(*fs.ranges.present(row.entry), names)
        if row.kind is not fs.view.directory or fs.inodes.row_at(row.path) is not row:
            return None
        numbers = fs.ranges.at(row.path)
        if numbers is not None:
            return self._in_tree(numbers, None, names)
        return self._stored(row.path, names) if self._finds_stored else None

    def _in_tree(self, numbers: ArrayNumbers, position: int | None, names: Sequence[str]) -> DirectRead | None:
        """Do so from the directory at *position* of a chunk tree; None is that of the array."""
        tree = self._fs.known_tree(numbers)
        coords = _coords_below(tree, position, names) if tree is not None else None
        return partial(self._read_in_tree, tree, coords) if tree is not None and coords is not None else None

    def _read_in_tree(
        self, tree: ChunkTree, coords: Coords, start: int, stop: int | None, waits: bool
    ) -> Buffer | None:
        if tree.has_history or not tree.is_checked:
            return None
        chunk = tree.array.find_known(coords, waits=waits)
        if chunk is None or tree.codec is None:
            return None if chunk is None else chunk.read(start, stop, waits=waits)
        codec = tree.codec.at(coords)
        return self._fs.chunk_cache.read_known(tree.array.layout, coords, chunk, codec, start, stop, waits=waits)

    def _stored(self, path: str, names: Sequence[str]) -> DirectRead | None:
        """Do so from the array at *path*, if it is unsharded, and its chunks are shown as they are stored."""
        node = self._fs.hierarchy.known(path)
        array = node.kind.array if node is not None and isinstance(node.kind, StoredArray) else None
        if array is None or not array.grid.is_unsharded:
            return None
        coords = array.layout.key_encoding.decode("/".join(names), array.grid.ndim)
        if coords is None or not all(map(lt, coords, array.grid.grid_shape)):
            return None
        if self._fs.hierarchy.copies.may_describe(path, names[:-1]):
            return None
        return partial(_read_stored, array, coords)


def _read_stored(array: Array, coords: Coords, start: int, stop: int | None, waits: bool) -> Buffer | None:
    chunk = array.find_known(coords, waits=waits)
    return None if chunk is None else chunk.read(start, stop, waits=waits)


def _coords_below(tree: ChunkTree, position: int | None, names: Sequence[str]) -> Coords | None:
    """Return the coordinates of the chunk that *names* lead to from a directory; None if they lead to none."""
    ndim, shape = tree.array.grid.ndim, tree.array.grid.grid_shape
    if position is None or not tree.is_nested:
        coords = tree.encoding.decode("/".join(names), ndim)
    else:
        numbers = [*tree.numbering.coords(position), *map(parse_coordinate, names)]
        coords = tuple(number for number in numbers if number is not None)
        coords = coords if len(numbers) == ndim else None
    return coords if coords is not None and len(coords) == ndim and all(map(lt, coords, shape)) else None
