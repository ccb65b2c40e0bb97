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
from sys import intern
from typing import Final

from shardfs.dataset.hierarchy import is_below
from shardfs.errors import StaleError, StoreError
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
class _Name:
    """A path that a row has, or that leads to such: a name below its parent, so that a directory is moved alone.

    *row* is the one that has it now.  It is among its parent's *children* as long as there is a row, or a child.  Most
    directories are those of arrays, with one document: such a name is there without a dictionary.
    """

    parent: "_Name | None"
    text: str
    children: "dict[str, _Name] | _Name | None" = None
    row: "Row | None" = None

    def child(self, text: str) -> "_Name | None":
        """Return the name *text* below this one."""
        if isinstance(self.children, dict):
            return self.children.get(text)
        return self.children if self.children is not None and self.children.text == text else None

    def add(self, child: "_Name") -> None:
        """Let *child* be below this, in place of another of its text."""
        if isinstance(self.children, _Name) and self.children.text != child.text:
            self.children = {self.children.text: self.children}
        if isinstance(self.children, dict):
            self.children[child.text] = child
        else:
            self.children = child

    @property
    def path(self) -> str:
        parts = []
        name = self
        while name.parent is not None:
            parts.append(name.text)
            name = name.parent
        return "/".join(reversed(parts))


@dataclass(slots=True, eq=False)
class Row:
    """What the table knows of one number.

    *kind* makes the entry of something with a path, whose *identity* tells whether the path still stands for it; a row
    with an *entry* of its own has neither.  *name* is the one that it was found by last, and may have lost since.
    *nlink* is how many names it has, and *others* are those that are known beside that.
    """

    ino: int
    kind: Hashable
    identity: object = None
    nlink: int = 1
    entry: object = None
    key: Hashable = None
    lookups: int = 0
    name: _Name | None = None
    others: tuple[_Name, ...] = ()

    @property
    def path(self) -> str:
        """The path by which it was found last, on the mount as it is now."""
        return self.name.path if self.name is not None else ""

    @property
    def names(self) -> list[_Name]:
        """The names that it is known to have now, in the order in which they were found."""
        return [name for name in (*self.others, self.name) if name is not None and name.row is self]


class Inodes:
    """Rows of what is not in a chunk tree: numbers count up, and are forgotten when the kernel forgets them.

    A row is found by its number, by its path, or by its key: what identifies a file of several names.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._keys: dict[Hashable, Row] = {}
        self._top = _Name(None, "")
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
            self._let_go(row)
        row.kind, row.identity, row.entry = kind, identity, entry
        if path is not None:
            row.name = self._at(path)

    def number(self, kind: Hashable, path: str, identity: object, *, nlink: int = 1, key: Hashable = None) -> int:
        """Return the number of what was found under *path*: one for all names of a file, which its *key* identifies."""
        name = self._at(path)
        if key is not None:
            row = self._keys.get(key)
        else:
            row = name.row
            if row is not None and (row.kind, row.identity) != (kind, identity):
                row = None
        if row is None:
            row = self._add(Row(self.reserve(), kind, identity, key=key))
        row.nlink = nlink
        _bind(row, name)
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
        return names[-1].path if row is not None and (names := row.names) else ""

    def below(self, path: str) -> list[tuple[str, Row]]:
        """Return the rows of what is below *path*, and its path."""
        name, found = self._find(path), []
        todo = [(name, path)] if name is not None else []
        while todo:
            name, path = todo.pop()
            children = [name.children] if isinstance(name.children, _Name) else (name.children or {}).values()
            for child in children:
                below = f"{path}/{child.text}" if path else child.text
                todo.append((child, below))
                if child.row is not None:
                    found.append((below, child.row))
        return found

    def removed(self, path: str) -> None:
        """Know that a name was removed, or is that of something else now.

        The number of a file without a name is that of no other, though the store may give a new file the identity of
        one that is gone: who waits for a lock file compares numbers.
        """
        name = self._find(path)
        if name is None or name.row is None:
            return
        row = name.row
        _free(name)
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
        name = self._find(old)
        if row is not None and name is not None:
            _free(name)
            _bind(row, self._at(new))
        return True

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store, with all below it, in place of what had the path *new*."""
        self.removed(new)
        name = self._find(old)
        if name is None or name.parent is None:
            return
        parent, _, text = new.rpartition("/")
        before, above = name.parent, self._at(parent)
        _cut_off(name)
        name.parent, name.text = above, text
        above.add(name)  # in place of another: what was below that is stale, under its old path
        _prune(before)

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
        name = self._find(path)
        return name.row if name is not None else None

    def _find(self, path: str) -> _Name | None:
        name = self._top
        for text in path.split("/") if path else ():
            child = name.child(text)
            if child is None:
                return None
            name = child
        return name

    def _at(self, path: str) -> _Name:
        """Return the name of *path*."""
        name = self._top
        for text in path.split("/") if path else ():
            child = name.child(text)
            if child is None:
                child = _Name(name, intern(text))
                name.add(child)
            name = child
        return name

    def _retire(self, row: Row) -> None:
        if row.key is not None:
            self._keys.pop(row.key, None)
            row.key = None
        for name in row.names:
            _free(name)
        row.identity = GONE

    def _let_go(self, row: Row) -> None:
        """Forget by what *row* is found, and its path."""
        if row.key is not None and self._keys.get(row.key) is row:
            del self._keys[row.key]
        row.key = None
        for name in row.names:
            _free(name)
        if row.name is not None:
            _prune(row.name)
        row.name = None

    def _drop(self, row: Row) -> None:
        self._new.discard(row.ino)
        del self._rows[row.ino]
        self._let_go(row)


def _bind(row: Row, name: _Name) -> None:
    """Let *row* have *name*, and no other row; it keeps the names that were found last, as many as it has links."""
    if name.row is row:
        if row.name is not name:
            row.others = tuple(other for other in row.names if other is not name)
            row.name = name
        return
    if name.row is not None:
        _unbind(name)
    known, before = row.names, row.name
    nlost = max(0, len(known) + 1 - max(row.nlink, 1))
    row.name, row.others, name.row = name, tuple(known[nlost:]), row
    for lost in known[:nlost]:
        lost.row = None
        _prune(lost)
    if before is not None:
        _prune(before)


def _unbind(name: _Name) -> None:
    """Take *name* from the row that has it, which keeps the path if it has no other."""
    row, name.row = name.row, None
    if row is not None and row.others:
        *others, row.name = row.names
        row.others = tuple(others)


def _free(name: _Name) -> None:
    """Take *name* from the row that has it, for no other to have it."""
    _unbind(name)
    _prune(name)


def _prune(name: _Name) -> None:
    """Forget *name*, and those above it, if nothing has it and nothing is below it."""
    while name.parent is not None and name.row is None and not name.children and _cut_off(name):
        name = name.parent


def _cut_off(name: _Name) -> bool:
    """Take *name* from the children of its parent; return whether it was there."""
    parent = name.parent
    if parent is None or parent.child(name.text) is not name:
        return False
    if isinstance(parent.children, dict):
        del parent.children[name.text]
    else:
        parent.children = None
    return True


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
        return self.bases[-1] + self._index(coords)

    def of_directory(self, coords: Coords) -> int:
        """Return the position of the directory whose path gives *coords*, which are fewer than all."""
        return self.bases[len(coords)] + self._index(coords)

    def parent(self, position: int) -> tuple[int, int]:
        """Return the position of the directory that holds a chunk of a nested key, and the chunk's last coordinate."""
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
