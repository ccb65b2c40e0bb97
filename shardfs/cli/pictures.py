"""What a map shows of an array: its grid of shards as a picture of so many cells, and the shards that waste most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.verify import Layout, ShardUse, Use
from shardfs.errors import counted
from shardfs.format.sharding import Coords
from shardfs.fuse.progress import size


@dataclass(slots=True)
class ArrayMap:
    """The stored shards of *array*, in C order, and the *layouts* of those that are drawn, None if that cannot be.

    *error* says why not all of them were found.
    """

    array: Array
    uses: list[tuple[Coords, ShardUse]] = field(default_factory=list)
    layouts: list[tuple[ShardUse, Layout | None]] = field(default_factory=list)
    error: str | None = None

    @property
    def path(self) -> str:
        """What people call the array."""
        return self.array.layout.path or "(root)"

    @property
    def shape(self) -> tuple[int, ...]:
        """How many shards the grid has along each axis."""
        return tuple(dimension.nchunks for dimension in self.array.grid.shards.dimensions)

    @property
    def is_found(self) -> bool:
        """Whether there is anything to be drawn."""
        return bool(self.uses) or self.error is not None

    @property
    def count(self) -> int:
        """How many shards the grid has."""
        return math.prod(self.shape)

    @property
    def full(self) -> int:
        """How many shards have all their chunks."""
        return sum(use.error is None and use.chunks >= use.capacity for _, use in self.uses)

    @property
    def damaged(self) -> int:
        """How many shards are damaged."""
        return sum(use.error is not None for _, use in self.uses)

    @property
    def wasteful(self) -> int:
        """How many shards have dead bytes."""
        return sum(bool(use.dead) for _, use in self.uses)

    @property
    def chunks(self) -> int:
        """How many chunks are stored."""
        return sum(use.chunks for _, use in self.uses)

    @property
    def nbytes(self) -> int:
        """How many bytes are stored."""
        return sum(use.size for _, use in self.uses)

    @property
    def dead(self) -> int:
        """How many of these nothing refers to."""
        return sum(use.dead or 0 for _, use in self.uses)

    @property
    def dead_share(self) -> str:
        """Which share of the bytes that is, if it is known of a shard at least."""
        is_known = not self.uses or any(use.dead is not None for _, use in self.uses)
        return share(self.dead, self.nbytes) if is_known else "?"

    @property
    def summary(self) -> str:
        """How much of the array is stored."""
        damaged = f", {self.damaged:,} damaged" if self.damaged else ""
        wasteful = f", {self.wasteful:,} with dead bytes" if self.wasteful else ""
        return (
            f"{len(self.uses):,} of {counted(self.count, 'shard')} stored, {self.full:,} full{damaged}{wasteful}; "
            f"{self.chunks:,} of {counted(self.array.grid.nchunks, 'chunk')}; "
            f"{size(self.nbytes)}, {self.dead_share} dead"
        )

    def most_wasteful(self, count: int) -> list[tuple[Coords, ShardUse]]:
        """Return *count* shards: damaged ones, half of them if there are others, then those with most dead bytes."""
        found = sorted(self.uses, key=lambda each: (each[1].error is None, -(each[1].dead or 0)))
        damaged, sound = found[: self.damaged], found[self.damaged :]
        first = damaged[: max(count - len(sound), count // 2)]
        return first + sound[: count - len(first)]

    def caption(self, grid: "Grid") -> str:
        """Say what the rows and columns of a picture are."""
        axes = [f"{length:,}" for length in self.shape]
        for axis, name in enumerate(self.array.document.get("dimension_names") or ()):
            axes[axis] += f" {name}" if name else ""
        text = f"{' × '.join(axes[grid.split or 0 :]) or '1'} across"
        if grid.split is not None:
            text = f"{' × '.join(axes[: grid.split]) or '1'} down, {text}"
        elif len(grid.cells) > 1:
            text += " and on in the next row"
        if grid.each == 1:
            return text
        cells = f"{len(grid.cells):,} × {len(grid.cells[0]):,} cells"
        return f"{text}, drawn as {cells} of up to {grid.down:,} × {grid.across:,} shards"


@dataclass(slots=True)
class Cell:
    """Some *shards* that are neighbours; *filled* is the sum of the shares of their chunks that are stored."""

    shards: int
    stored: int = 0
    damaged: int = 0
    filled: float = 0.0
    nbytes: int = 0
    dead: int = 0

    @property
    def fullness(self) -> float:
        """Which share of the chunks is stored."""
        return self.filled / self.shards

    @property
    def dead_share(self) -> float:
        """Which share of the bytes is dead."""
        return self.dead / self.nbytes if self.nbytes else 0.0

    def add(self, use: ShardUse) -> None:
        """Take in a shard."""
        self.stored += 1
        self.damaged += use.error is not None
        self.filled += min(use.chunks / use.capacity, 1.0) if use.capacity else 0.0
        self.nbytes += use.size
        self.dead += use.dead or 0


@dataclass(frozen=True, slots=True)
class Grid:
    """A picture of a grid of shards: rows are the axes before *split*, columns the others, each in C order.

    There are *width* shards in a row, and a cell stands for *down* × *across* of them.  If all axes but one have a
    single shard, the shards go on from row to row, and there is no *split*; the last row may be shorter.
    """

    shape: tuple[int, ...]
    split: int | None
    width: int
    down: int
    across: int
    cells: list[list[Cell]]

    @classmethod
    def of(cls, array: ArrayMap, max_rows: int, max_columns: int) -> "Grid":
        """Make a picture of no more than so many cells."""
        shape, total = array.shape, array.count
        split: int | None = None
        if max(shape, default=1) == total:
            across = max(-(-total // (max_rows * max_columns)), 1)
            width, down = min(max_columns * across, total), 1
            height = -(-total // width) if total else 0
        else:
            sides = [(math.prod(shape[:at]), math.prod(shape[at:])) for at in range(len(shape) + 1)]
            split = min(range(len(sides)), key=lambda at: max(sides[at]))  # as square as can be
            height, width = sides[split]
            down, across = -(-height // max_rows) or 1, -(-width // max_columns) or 1
        cells = [
            [
                Cell(min(down, height - row) * min(across, width - column, total - row * width - column))
                for column in range(0, min(width, total - row * width), across)
            ]
            for row in range(0, height, down)
        ]
        for coords, use in array.uses:
            row, column = divmod(_ravel(coords, shape), width)
            cells[row // down][column // across].add(use)
        return cls(shape, split, width, down, across, cells)

    @property
    def each(self) -> int:
        """How many shards a cell has at most."""
        return self.down * self.across

    def first(self, row: int, column: int) -> Coords:
        """Return the coordinates of the first shard of a cell."""
        return _unravel(row * self.down * self.width + column * self.across, self.shape)


WORDS: Final = {
    Use.LIVE: "live",
    Use.DEAD: "dead",
    Use.INDEX: "index",
    Use.GAP: "gap (zeros)",
    Use.FOREIGN: "foreign prefix",
}


def describe(use: ShardUse) -> str:
    """Say in a line what a shard holds."""
    if use.error is not None:
        return f"{use.key}: {size(use.size)}, damaged: {use.error}"
    waste = "encoded as a whole" if use.dead is None else f"{size(use.dead)} ({share(use.dead, use.size)}) dead"
    return f"{use.key}: {size(use.size)}, {use.chunks:,} of {counted(use.capacity, 'chunk')}, {waste}"


def share(part: int, whole: int) -> str:
    """Return a share in percent; only none at all is 0 %."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 1 or not part else "< 1 %"


def _ravel(coords: Coords, shape: Sequence[int]) -> int:
    position = 0
    for index, length in zip(coords, shape, strict=True):
        position = position * length + index
    return position


def _unravel(position: int, shape: Sequence[int]) -> Coords:
    coords = []
    for length in reversed(shape):
        position, index = divmod(position, length)
        coords.append(index)
    return tuple(reversed(coords))
