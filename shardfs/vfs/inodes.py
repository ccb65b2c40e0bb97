"""Inode numbers: computed for chunks, rows of a table for everything else.

Numbers below 2^46 are rows of a table, counted up. Larger numbers are given to arrays in ranges, each as large as the
array needs. A number in a range combines a position, of a chunk or a directory of chunks, with a generation, which
distinguishes versions of a chunk. So the numbers of chunks take no memory, however many there are.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import attrgetter, lt
from typing import Final, NamedTuple

from shardfs.dataset.path_table import is_below
from shardfs.errors import StaleError, StoreError
from shardfs.format.grid import coords_in_c_order, index_in_c_order
from shardfs.format.sharding import Coords

GENERATIONS: Final = 1024
MISSING: Final = GENERATIONS - 1
"""The generation of a missing chunk that is shown."""
_FIRST: Final = 1 << 46
_END: Final = 1 << 64

_MAX_UNTOLD: Final = 2**14
_MAX_EARLIER: Final = 16

ROOT: Final = 1
GONE: Final = "gone"
"""The identity of a stored file or directory that has no name any more, whatever its path stands for now."""


def in_table(ino: int) -> bool:
    """Whether *ino* belongs to the table rather than to a chunk tree."""
    return ino < _FIRST


@dataclass(slots=True, eq=False)
class InodeRow:
    """An inode of the table.

    Either it has an *entry* of its own, which for a chunk is its `TreePosition`, or *kind* makes the entry from a path;
    then *identity* tells whether the path still stands for it. *path* is the path under which it was last found, which
    it may have lost since. *nlink* is the number of its names, of which only this one is known: the kernel looks a name
    up before it uses it. *became* is the path of the chunk or document that a passthrough file is renamed to: who
    writes to it gets an error. *nwriters* is how often it is open for writing; *is_direct*: it was created beside
    chunks, and is still open since.
    """

    ino: int
    kind: Hashable
    identity: object = None
    nlink: int = 1
    entry: object = None
    key: Hashable = None
    lookups: int = 0
    path: str = ""
    became: str = ""
    nwriters: int = 0
    is_direct: bool = False

    def becomes(self, path: str) -> None:
        """Note that the file is being renamed to the chunk or document *path*; "" if it is not, after all."""
        self.became = path

    def opened(self, *, is_writable: bool, is_direct: bool) -> None:
        """Note that the file was opened."""
        self.nwriters += is_writable
        self.is_direct |= is_direct

    def closed(self) -> None:
        """Note that a writer closed the file."""
        self.nwriters -= 1
        self.is_direct &= self.nwriters > 0


class Inodes:
    """The table: rows for everything that is not in a chunk tree, kept until the kernel forgets them.

    Of those that the kernel was not told of, *max_untold* stay, those found last: requests that will tell it are under
    way.
    A row is found by its number, by its path, or by its key, which identifies a file with several names.
    """

    def __init__(self, max_untold: int = _MAX_UNTOLD) -> None:
        self._max_untold = max_untold
        self._rows: dict[int, InodeRow] = {}
        self._keys: dict[Hashable, InodeRow] = {}
        self._paths: dict[str, InodeRow] = {}
        self._untold: dict[int, InodeRow] = {}  # without references since they were made, found last at the end
        self._last = ROOT - 1

    def __len__(self) -> int:
        return len(self._rows)

    def reserve(self) -> int:
        """Return an unused number, for `keep`."""
        self._last += 1
        return self._last

    def keep(
        self, ino: int, kind: Hashable, *, path: str | None = None, identity: object = None, entry: object = None
    ) -> None:
        """Let the reserved number *ino* stand for an entry of this *kind* from now on."""
        row = self._rows.get(ino)
        if row is None:
            row = self._add(InodeRow(ino, kind))
        elif entry is None or row.entry is None:
            self._forget_names(row)
            row.path = ""
        row.kind, row.identity, row.entry = kind, identity, entry
        if path is not None:
            row.path = path

    def number(self, kind: Hashable, path: str, identity: object, *, nlink: int = 1, key: Hashable = None) -> int:
        """Return the number of the file found under *path*.

        All names of a file that has a *key* share one number.
        """
        row = self._paths.get(path) if key is None else self._keys.get(key)
        if key is None and row is not None and (row.kind, row.identity) != (kind, identity):
            row = None
        if row is None:
            row = self._add(InodeRow(self.reserve(), kind, identity, key=key))
        elif self._untold.pop(row.ino, None) is not None:
            self._untold[row.ino] = row
        row.nlink = nlink
        self._bind(row, path)
        return row.ino

    def keyed(self, key: Hashable, kind: Hashable, entry: object) -> int:
        """Return the number of the *entry* identified by *key*."""
        row = self._keys.get(key) or self._add(InodeRow(self.reserve(), kind, entry=entry, key=key))
        return row.ino

    def _add(self, row: InodeRow) -> InodeRow:
        self._rows[row.ino] = self._untold[row.ino] = row
        if row.key is not None:
            self._keys[row.key] = row
        if len(self._untold) > self._max_untold:
            self._drop(next(iter(self._untold.values())))
        return row

    def row(self, ino: int) -> InodeRow:
        """Return the row *ino*; raises `StaleError` if there is none."""
        try:
            return self._rows[ino]
        except KeyError:
            raise StaleError(f"inode {ino} is not known any more") from None

    def name_of(self, ino: int) -> str:
        """Return a current path of a file, "" if none is known."""
        row = self._rows.get(ino)
        return row.path if row is not None and self._paths.get(row.path) is row else ""

    def removed(self, path: str) -> None:
        """Note that nothing has a name any more, or another file; of a stored file, `removing` does.

        A file without names keeps its number to itself, even if the store reuses its identity for a new file: programs
        that wait for a lock file compare numbers.
        """
        row = self._paths.pop(path, None)
        if row is not None:
            row.nlink -= 1
            if row.nlink <= 0:
                self._retire(row)

    @contextmanager
    def removing(self, path: str) -> Iterator[None]:
        """Note that a name is removed, or gets another file, in the block; if that fails, it is what it was.

        It is noted first: as soon as the store has removed a file, a new one may get its identity, and is not taken for
        it then.
        """
        row = self._paths.get(path)
        before = copy(row)
        self.removed(path)
        try:
            yield
        except BaseException:
            if row is not None and before is not None:
                self.restore(row, before)
            raise

    def restore(self, row: InodeRow, before: InodeRow) -> None:
        """Let *row* be the file with the name that it was *before*: it is no other file, after all."""
        row.kind, row.identity, row.entry, row.key = before.kind, before.identity, before.entry, before.key
        row.nlink = before.nlink
        if row.key is not None:
            self._keys[row.key] = row
        self._bind(row, before.path)

    def moved(self, old: str, new: str) -> None:
        """Follow a file that was moved in the store, replacing what had the path *new*."""
        row = self.row_at(old)
        self.removed(new)
        if row is not None:
            self._bind(row, new)

    def moved_directory(self, old: str, new: str) -> None:
        """Follow a directory that was moved in the store, with all below it, replacing what had the path *new*."""
        self.removed(new)
        for path in [path for path in self._paths if is_below(path, old)]:
            self._bind(self._paths[path], new + path[len(old) :])

    def retain(self, ino: int) -> None:
        """Count a reference, if *ino* is known."""
        row = self._rows.get(ino)
        if row is not None:
            row.lookups += 1
            self._untold.pop(ino, None)

    def drop_references(self, ino: int, lookups: int) -> None:
        """Drop *lookups* references."""
        row = self._rows.get(ino)
        if row is None or ino == ROOT:
            return
        row.lookups -= lookups
        if row.lookups <= 0:
            self._drop(row)

    def row_at(self, path: str) -> InodeRow | None:
        """Return the row that has *path*."""
        return self._paths.get(path)

    def _bind(self, row: InodeRow, path: str) -> None:
        """Let *row* have *path*, and no other row."""
        if self._paths.get(row.path) is row:
            del self._paths[row.path]
        row.path = path
        self._paths[path] = row

    def _forget_names(self, row: InodeRow) -> None:
        """Make *row* unreachable by path and key; its own `path` stays."""
        if self._keys.get(row.key) is row:
            del self._keys[row.key]
        if self._paths.get(row.path) is row:
            del self._paths[row.path]
        row.key = None

    def _retire(self, row: InodeRow) -> None:
        self._forget_names(row)
        row.identity = GONE

    def _drop(self, row: InodeRow) -> None:
        self._untold.pop(row.ino, None)
        del self._rows[row.ino]
        self._forget_names(row)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkNumbering:
    """Numbers all chunks of a grid, and all directories above them: their positions. Compared by identity.

    Directories come first, by depth and then in C order; the chunks come last. So positions and coordinates are
    computed from each other. *axes* says how many coordinates there are at each depth: 0, 1, … for nested keys, 0 and
    all for flat ones. *bases* are the first positions of each depth.
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
        """The number of positions."""
        return self.bases[-1] + prod(self.grid_shape)

    def of_chunk(self, coords: Coords) -> int:
        """Return the position of the chunk at *coords*."""
        return self.bases[-1] + index_in_c_order(coords, self.grid_shape)

    def of_directory(self, coords: Coords) -> int:
        """Return the position of the directory with these *coords*, fewer than the grid has axes."""
        return self.bases[len(coords)] + index_in_c_order(coords, self.grid_shape[: len(coords)])

    def parent(self, position: int) -> tuple[int, int]:
        """Return the position of the directory that holds a chunk of a nested key, and the chunk's last coordinate."""
        directory, last = divmod(position - self.bases[-1], self.grid_shape[-1])
        return self.bases[-2] + directory, last

    def coords(self, position: int) -> Coords:
        """Return the coordinates of the chunk, or of the directory, at *position*."""
        depth = bisect_right(self.bases, position) - 1
        return coords_in_c_order(position - self.bases[depth], self.grid_shape[: self.axes[depth]])


@dataclass(slots=True, eq=False)
class ArrayNumbers:
    """The inode numbers of the array at *path*: one for each position in *numbering*, per generation, from *start* on.

    *key* changes when the chunks of the array do, and *kind* when they do by more than the shape. *epoch* counts how
    often its *layout* was dropped, and with it the versions that were seen.
    """

    path: str
    key: bytes
    kind: bytes
    start: int
    numbering: ChunkNumbering
    layout: int | None = None
    epoch: int = 0

    @property
    def npositions(self) -> int:
        """The number of positions."""
        return self.numbering.count

    def use_layout(self, layout: int) -> None:
        """Number the versions in *layout*; which were seen in an earlier one is not known any more."""
        self.epoch += self.layout not in (None, layout)
        self.layout = layout

    def ino(self, generation: int, position: int) -> int:
        """Return the number of *position*; generations wrap around at 1024."""
        return self.start + generation % GENERATIONS * self.npositions + position

    def version(self, generation: int, position: int) -> int:
        """Return the number of a version of a stored chunk; generations wrap around at 1023, never `MISSING`."""
        return self.ino((generation + self.epoch) % MISSING, position)

    def repeats(self, generation: int) -> bool:
        """Whether the number of such a version may have been that of an earlier one."""
        return generation + self.epoch >= MISSING

    def position(self, ino: int) -> int:
        """Return the position of which *ino* is a number."""
        return (ino - self.start) % self.npositions

    def directory_in(self, later: "ArrayNumbers", position: int) -> int | None:
        """Return the position in *later* numbers of the directory at *position*; None if there is no such directory."""
        if self.kind != later.kind or position >= self.numbering.bases[-1]:
            return None
        coords = self.numbering.coords(position)
        return later.numbering.of_directory(coords) if all(map(lt, coords, later.numbering.grid_shape)) else None


class TreePosition(NamedTuple):
    """Where a chunk, or a directory of chunks, that has a row is in the tree: its array and its position there.

    There may be thousands of rows of arrays that have another shape by now: they keep no trees.
    """

    numbers: ArrayNumbers
    position: int


class ArrayRanges:
    """The ranges of inode numbers given to arrays.

    No range is given twice, so inodes of a removed array stay stale. So do those of chunks when an array gets another
    range. Its directories stay what they are if only the shape has changed: programs work on in them, and the kernel
    finds chunks by them for as long as it caches their names. For that, the last `_MAX_EARLIER` ranges stay known.
    """

    def __init__(self) -> None:
        self._known: list[ArrayNumbers] = []  # sorted by start
        self._by_path: dict[str, list[ArrayNumbers]] = {}  # the present ones at the end
        self._next = _FIRST

    def add(self, path: str, key: bytes, kind: bytes, numbering: ChunkNumbering) -> ArrayNumbers:
        """Give the array at *path* a new range."""
        if self._next + numbering.count * GENERATIONS > _END:
            raise StoreError("the arrays that were opened through this mount have used all inode numbers; mount again")
        of_array = self._by_path.setdefault(path, [])
        if len(of_array) > _MAX_EARLIER:
            self._forget(of_array.pop(0))
        numbers = ArrayNumbers(path, key, kind, self._next, numbering)
        self._next += numbering.count * GENERATIONS
        of_array.append(numbers)
        self._known.append(numbers)
        return numbers

    def at(self, path: str) -> ArrayNumbers | None:
        """Return the numbers of the array at *path*."""
        of_array = self._by_path.get(path)
        return of_array[-1] if of_array else None

    def remove(self, path: str) -> None:
        """Make the inodes of an array stale."""
        for numbers in self._by_path.pop(path, ()):
            self._forget(numbers)

    def remove_below(self, *paths: str) -> None:
        """Make the inodes of the arrays at and below *paths* stale."""
        gone = {path for path in self._by_path if any(is_below(path, above) for above in paths)}
        starts = {numbers.start for path in gone for numbers in self._by_path.pop(path)}
        self._known = [numbers for numbers in self._known if numbers.start not in starts]

    def find(self, ino: int) -> TreePosition:
        """Return where *ino* is now; raises `StaleError`."""
        known = self._known
        i = bisect_right(known, ino, key=_start) - 1
        if i >= 0 and ino - known[i].start < known[i].npositions * GENERATIONS:
            numbers = known[i]
            present = self.present(TreePosition(numbers, numbers.position(ino)))
            if present.numbers is self.at(numbers.path):
                return present
        raise StaleError("the array has changed")

    def present(self, known: TreePosition) -> TreePosition:
        """Return where a directory is since its array has another range; all else is where it was."""
        numbers, position = known
        of_array = self._by_path.get(numbers.path, [])
        if numbers in of_array[:-1]:
            now = numbers.directory_in(of_array[-1], position)
            if now is not None:
                return TreePosition(of_array[-1], now)
        return known

    def _forget(self, numbers: ArrayNumbers) -> None:
        i = bisect_right(self._known, numbers.start, key=_start)
        self._known = self._known[: i - 1] + self._known[i:]  # another thread may be in `find`


_start: Final = attrgetter("start")
