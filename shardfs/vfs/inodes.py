"""Inode numbers: computed for chunks, and rows of a table for everything else.

Numbers below 2^46 count up, in a table.  Those from there on are given to arrays in ranges, as large as each needs: a
number is generation and position in the range of its array.  The position is that of a chunk or of a directory above
chunks, and the generation tells versions of a chunk apart.  So a chunk's number is computed, however many there are.
"""

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import attrgetter
from typing import Final

from shardfs.dataset.hierarchy import is_below
from shardfs.errors import StaleError, StoreError
from shardfs.format.grid import coords_in_c_order, index_in_c_order
from shardfs.format.sharding import Coords

GENERATIONS: Final = 1024
MISSING: Final = GENERATIONS - 1
"""The generation of a chunk that is shown and not stored."""
_FIRST: Final = 1 << 46
_END: Final = 1 << 64

ROOT: Final = 1
GONE: Final = "gone"
"""The identity of a stored file or directory that has no name any more, whatever its path stands for."""


def in_table(ino: int) -> bool:
    """Whether *ino* belongs to the table, not to a chunk tree."""
    return ino < _FIRST


@dataclass(slots=True, eq=False)
class Row:
    """What the table knows of one number.

    *kind* makes the entry of something with a path, whose *identity* tells whether the path still stands for it; a row
    with an *entry* of its own has neither.  *path* is the one by which it was found last, on the mount as it is now; it
    may have lost that since.  *nlink* is how many names it has, and *others* are those that are known beside *path*.
    """

    ino: int
    kind: Hashable
    identity: object = None
    nlink: int = 1
    entry: object = None
    key: Hashable = None
    lookups: int = 0
    path: str = ""
    others: tuple[str, ...] = ()


class Inodes:
    """Rows of what is not in a chunk tree: numbers count up, and are forgotten when the kernel forgets them.

    A row is found by its number, by its path, or by its key: what identifies a file of several names.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._keys: dict[Hashable, Row] = {}
        self._paths: dict[str, Row] = {}
        self._new: set[int] = set()  # which the kernel was not told of
        self._last = ROOT - 1

    def __len__(self) -> int:
        return len(self._rows)

    def reserve(self) -> int:
        """Return a number that nothing has, for `keep`."""
        self._last += 1
        return self._last

    def keep(
        self, ino: int, kind: Hashable, *, path: str | None = None, identity: object = None, entry: object = None
    ) -> None:
        """Let *ino*, which was given out, stand for something of this *kind* from now on, whatever it stood for."""
        row = self._rows.get(ino)
        if row is None:
            row = self._add(Row(ino, kind))
        elif entry is None or row.entry is None:
            self._forget_names(row)
            row.path = ""
        row.kind, row.identity, row.entry = kind, identity, entry
        if path is not None:
            row.path = path

    def number(self, kind: Hashable, path: str, identity: object, *, nlink: int = 1, key: Hashable = None) -> int:
        """Return the number of what was found under *path*: one for all names of a file, which its *key* identifies."""
        row = self._paths.get(path) if key is None else self._keys.get(key)
        if key is None and row is not None and (row.kind, row.identity) != (kind, identity):
            row = None
        if row is None:
            row = self._add(Row(self.reserve(), kind, identity, key=key))
        row.nlink = nlink
        self._bind(row, path)
        return row.ino

    def keyed(self, key: Hashable, kind: Hashable, entry: object) -> int:
        """Return the number of the *entry* that *key* identifies."""
        row = self._keys.get(key) or self._add(Row(self.reserve(), kind, entry=entry, key=key))
        return row.ino

    def _add(self, row: Row) -> Row:
        self._rows[row.ino] = row
        self._new.add(row.ino)
        if row.key is not None:
            self._keys[row.key] = row
        return row

    def row(self, ino: int) -> Row:
        """Return the row with the number *ino*; raises `StaleError` if it is forgotten."""
        try:
            return self._rows[ino]
        except KeyError:
            raise StaleError(f"inode {ino} is not known any more") from None

    def name_of(self, ino: int) -> str:
        """Return a path that a file has now, "" if none is known."""
        row = self._rows.get(ino)
        return names[-1] if row is not None and (names := self._names(row)) else ""

    def removed(self, path: str) -> None:
        """Know that a name was removed, or is that of something else now.

        The number of a file without a name is that of no other, though the store may give a new file the identity of
        one that is gone: who waits for a lock file compares numbers.
        """
        row = self._unbind(path)
        if row is not None:
            row.nlink -= 1
            if row.nlink <= 0:
                self._retire(row)

    def retire(self, key: Hashable) -> None:
        """Give the number of what *key* identifies, and is gone, to nothing else."""
        row = self._keys.get(key)
        if row is not None:
            self._retire(row)

    def moved(self, old: str, new: str) -> bool:
        """Follow a file that was moved in the store, in place of what had the path *new*.

        Returns False for two names of one file, which both stay.
        """
        row = self.row_at(old)
        if row is not None and row is self.row_at(new):
            return False
        self.removed(new)
        if row is not None:
            self._unbind(old)
            self._bind(row, new)
        return True

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store, with all below it, in place of what had the path *new*."""
        self.removed(new)
        for path in [path for path in self._paths if is_below(path, old)]:
            row = self._unbind(path)
            if row is not None:
                self._bind(row, new + path[len(old) :])

    def retain(self, ino: int) -> None:
        """Count one more reference of the kernel."""
        row = self._rows.get(ino)
        if row is not None:
            row.lookups += 1
            self._new.discard(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """Take back *lookups* references of the kernel."""
        row = self._rows.get(ino)
        if row is None or ino == ROOT:
            return
        row.lookups -= lookups
        if row.lookups <= 0:
            self._drop(row)

    def sweep(self) -> None:
        """Drop rows that were never looked up."""
        for ino in list(self._new):
            self._drop(self._rows[ino])

    def row_at(self, path: str) -> Row | None:
        """Return the row that has *path*."""
        return self._paths.get(path)

    def _names(self, row: Row) -> list[str]:
        """Return the names that *row* is known to have now, in the order in which they were found."""
        return [path for path in (*row.others, row.path) if self._paths.get(path) is row]

    def _bind(self, row: Row, path: str) -> None:
        """Let *row* have *path*, and no other row; it keeps the names found last, as many as it has links."""
        if row.path == path and self._paths.get(path) is row:
            return
        self._unbind(path)
        names = self._names(row)
        nlost = max(0, len(names) + 1 - max(row.nlink, 1))
        for lost in names[:nlost]:
            del self._paths[lost]
        row.path, row.others, self._paths[path] = path, tuple(names[nlost:]), row

    def _unbind(self, path: str) -> Row | None:
        """Take *path* from the row that has it, which goes on under another name if it has one; return that row."""
        row = self._paths.pop(path, None)
        if row is not None and row.others:
            *others, row.path = self._names(row)
            row.others = tuple(others)
        return row

    def _forget_names(self, row: Row) -> None:
        """Forget by what *row* is found; it keeps its path."""
        if row.key is not None and self._keys.get(row.key) is row:
            del self._keys[row.key]
        for path in self._names(row):
            del self._paths[path]
        row.key, row.others = None, ()

    def _retire(self, row: Row) -> None:
        self._forget_names(row)
        row.identity = GONE

    def _drop(self, row: Row) -> None:
        self._new.discard(row.ino)
        del self._rows[row.ino]
        self._forget_names(row)


@dataclass(frozen=True, slots=True)
class ChunkNumbering:
    """Every chunk of a grid, and every directory above chunks, as one number: its position.

    The directories of each depth follow each other in C order, depth by depth, and the chunks come last; so a position
    is found from coordinates, and coordinates from a position, without a table.  *axes* are how many coordinates the
    names above a thing give at each depth: 0, 1, … for nested keys, 0 and all for flat ones; *bases* are the first
    positions of each depth.
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
        """How many positions there are."""
        return self.bases[-1] + prod(self.grid_shape)

    def of_chunk(self, coords: Coords) -> int:
        """Return the position of the chunk at *coords*."""
        return self.bases[-1] + index_in_c_order(coords, self.grid_shape)

    def of_directory(self, coords: Coords) -> int:
        """Return the position of the directory whose path gives *coords*, which are fewer than all."""
        return self.bases[len(coords)] + index_in_c_order(coords, self.grid_shape[: len(coords)])

    def parent(self, position: int) -> tuple[int, int]:
        """Return the position of the directory that holds a chunk of a nested key, and the chunk's last coordinate."""
        directory, last = divmod(position - self.bases[-1], self.grid_shape[-1])
        return self.bases[-2] + directory, last

    def coords(self, position: int) -> Coords:
        """Return the coordinates of a chunk, or those that the path of a directory gives."""
        depth = bisect_right(self.bases, position) - 1
        return coords_in_c_order(position - self.bases[depth], self.grid_shape[: self.axes[depth]])


@dataclass(slots=True, eq=False)
class ArrayNumbers:
    """The numbers of the array at *path*: for each generation *npositions*, from *start* on.

    *key* tells whether an array there has the same chunks still.  *epoch* counts how often its *layout* was forgotten,
    and with it which versions were seen.
    """

    path: str
    key: bytes
    start: int
    npositions: int
    layout: int = 0
    epoch: int = 0

    def ino(self, generation: int, position: int) -> int:
        """Return the number of *position*; generations repeat after 1024."""
        return self.start + generation % GENERATIONS * self.npositions + position

    def version(self, generation: int, position: int) -> int:
        """Return the number of a version of a stored chunk; its generations repeat after 1023, never `MISSING`."""
        return self.ino((generation + self.epoch) % MISSING, position)

    def position(self, ino: int) -> int:
        """Return the position, of which `ino` made a number."""
        return (ino - self.start) % self.npositions


class ArrayRanges:
    """Who has which numbers.  None is given again, so an inode of an array that is gone is stale for good."""

    def __init__(self) -> None:
        self._known: list[ArrayNumbers] = []  # by their starts
        self._by_path: dict[str, ArrayNumbers] = {}
        self._next = _FIRST

    def add(self, path: str, key: bytes, npositions: int) -> ArrayNumbers:
        """Give numbers to the array at *path*, in place of those that one there had."""
        if self._next + npositions * GENERATIONS > _END:
            raise StoreError("the arrays that were opened through this mount have used all inode numbers; mount again")
        self.remove(path)
        numbers = self._by_path[path] = ArrayNumbers(path, key, self._next, npositions)
        self._next += npositions * GENERATIONS
        self._known.append(numbers)
        return numbers

    def at(self, path: str) -> ArrayNumbers | None:
        """Return the numbers of the array at *path*."""
        return self._by_path.get(path)

    def remove(self, path: str) -> None:
        """Make the inodes of an array stale."""
        numbers = self._by_path.pop(path, None)
        if numbers is not None:
            del self._known[bisect_right(self._known, numbers.start, key=_start) - 1]

    def remove_below(self, *paths: str) -> None:
        """Make the inodes of the arrays at and below *paths* stale."""
        for path in [path for path in self._by_path if any(is_below(path, above) for above in paths)]:
            self.remove(path)

    def find(self, ino: int) -> ArrayNumbers:
        """Return the numbers of which *ino* is one; raises `StaleError`."""
        i = bisect_right(self._known, ino, key=_start) - 1
        if i < 0 or ino - self._known[i].start >= self._known[i].npositions * GENERATIONS:
            raise StaleError("the array has changed")
        return self._known[i]


_start: Final = attrgetter("start")
