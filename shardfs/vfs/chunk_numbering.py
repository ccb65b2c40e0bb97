"""ChunkNumbering: every chunk of a grid, and every directory above chunks, as one number.

The directories of each depth follow each other in C order, depth by depth, and the chunks come last; so a number is
found from coordinates, and coordinates from a number, without a table.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from shardfs.format.sharding import Coords


@dataclass(frozen=True, slots=True)
class ChunkNumbering:
    """The numbering of one chunk tree.

    *axes* are how many coordinates the names above a thing give at each depth: 0, 1, … for nested keys, 0 and all for
    flat ones; *bases* are the first numbers of each depth.
    """

    grid_shape: tuple[int, ...]
    axes: tuple[int, ...]
    bases: tuple[int, ...]

    @classmethod
    def of(cls, grid_shape: tuple[int, ...], *, nested: bool) -> "ChunkNumbering":
        """Number a grid whose keys have one path component per axis (*nested*), or one for all."""
        ndim = len(grid_shape)
        axes = tuple(range(ndim + 1)) if nested else (0, ndim)
        counts = [prod(grid_shape[:n]) for n in axes]
        return cls(grid_shape, axes, (0, *accumulate(counts[:-1])))

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return self.bases[-1] + prod(self.grid_shape)

    def of_chunk(self, coords: Coords) -> int:
        """Return the number of the chunk at *coords*."""
        return self.bases[-1] + self._index(coords)

    def of_directory(self, coords: Coords) -> int:
        """Return the number of the directory whose path gives *coords*, which are fewer than all."""
        return self.bases[len(coords)] + self._index(coords)

    def is_chunk(self, position: int) -> bool:
        """Whether *position* is that of a chunk."""
        return position >= self.bases[-1]

    def child(self, directory: int, last: int) -> int:
        """Return the number of the chunk of a nested key in the lowest directory, by its last coordinate."""
        return self.bases[-1] + (directory - self.bases[-2]) * self.grid_shape[-1] + last

    def parent(self, position: int) -> tuple[int, int]:
        """Return the number of the directory that holds a chunk of a nested key, and the chunk's last coordinate."""
        directory, last = divmod(position - self.bases[-1], self.grid_shape[-1])
        return self.bases[-2] + directory, last

    def coords(self, position: int) -> Coords:
        """Return the coordinates of a chunk, or those that the path of a directory gives."""
        depth = bisect_right(self.bases, position) - 1
        index = position - self.bases[depth]
        coords = []
        for length in reversed(self.grid_shape[: self.axes[depth]]):
            index, coordinate = divmod(index, length)
            coords.append(coordinate)
        return tuple(reversed(coords))

    def _index(self, coords: Coords) -> int:
        index = 0
        for coordinate, length in zip(coords, self.grid_shape, strict=False):
            index = index * length + coordinate
        return index
