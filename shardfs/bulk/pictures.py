"""The pictures of `map`: the grid of shards of an array as cells, and the layout of its most wasteful shards.

They are lines of text in several styles, which a terminal shows in colours. `map_page` has them for a browser.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Final, NamedTuple

from shardfs.bulk.map import ArrayMap
from shardfs.dataset.maintenance.verify import Layout, ShardUse, Use
from shardfs.errors import counted, printable, size
from shardfs.format.grid import coords_in_c_order, index_in_c_order
from shardfs.format.sharding import Coords


class TextPart(NamedTuple):
    """A part of a line: *text* in a *style*."""

    text: str
    style: str = ""


Line = Sequence[TextPart]

_LAYOUT: Final = {
    Use.LIVE: ("█", "live"),
    Use.DEAD: ("x", "dead"),
    Use.INDEX: ("I", "index"),
    Use.GAP: ("·", "gap (zeros)"),
    Use.FOREIGN: ("F", "foreign prefix"),
}
_MIN_DEAD: Final = 0.1
_MAX_DAMAGED: Final = 16
"""How many damaged shards of an array are named where no layouts are drawn."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Some neighbouring *shards*, and the *uses* of those that are stored."""

    shards: int
    uses: list[ShardUse] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        """How many are damaged."""
        return sum(use.error is not None for use in self.uses)

    @property
    def nbytes(self) -> int:
        """Their size."""
        return sum(use.size for use in self.uses)

    @property
    def dead(self) -> int:
        """Bytes of them that nothing refers to."""
        return sum(use.dead or 0 for use in self.uses)

    @property
    def fullness(self) -> float:
        """The share of chunks that are stored; of shards, where nobody knows how many chunks belong to one."""
        return sum(min(use.chunks / use.capacity, 1.0) if use.capacity else 1.0 for use in self.uses) / self.shards


@dataclass(frozen=True, slots=True)
class Grid:
    """A picture of a grid of shards: a cell stands for *down* × *across* of them.

    Rows are the axes before *split*, columns the others, each in C order; a row has *width* shards. If all axes but one
    have a single shard, the shards continue from row to row, and the last row may be shorter.
    """

    shape: tuple[int, ...]
    split: int
    width: int
    down: int
    across: int
    cells: list[list[Cell]]

    @classmethod
    def of(cls, array: ArrayMap, max_rows: int, max_columns: int) -> "Grid":
        """Make a picture of at most so many cells."""
        shape, total = array.shape, math.prod(array.shape)
        sides = [(math.prod(shape[:at]), math.prod(shape[at:])) for at in range(len(shape) + 1)]
        split = min(range(len(sides)), key=lambda at: max(sides[at]))  # as square as possible
        height, width = sides[split]
        down, across = -(-height // max_rows) or 1, -(-width // max_columns) or 1
        if max(shape, default=1) == total:
            split, down, across = 0, 1, -(-total // (max_rows * max_columns)) or 1
            width = min(max_columns * across, total)
            height = -(-total // width) if total else 0
        cells = [
            [
                Cell(min(down, height - row) * min(across, width - column, total - row * width - column))
                for column in range(0, min(width, total - row * width), across)
            ]
            for row in range(0, height, down)
        ]
        for coords, use in array.uses:
            row, column = divmod(index_in_c_order(coords, shape), width)
            cells[row // down][column // across].uses.append(use)
        return cls(shape, split, width, down, across, cells)

    def first(self, row: int, column: int) -> Coords:
        """Return the coordinates of the first shard of a cell."""
        return coords_in_c_order(row * self.down * self.width + column * self.across, self.shape)

    def caption(self, names: Sequence[str | None]) -> str:
        """Say what the rows and columns are, of an array whose axes have these names, if any."""
        axes = [f"{length:,}" for length in self.shape]
        for axis, name in enumerate(names):
            axes[axis] += f" {name}" if name else ""
        text = f"{' × '.join(axes[self.split :]) or '1'} across"
        if self.split:
            text = f"{' × '.join(axes[: self.split])} down, {text}"
        elif len(self.cells) > 1:
            text += " and on in the next row"
        is_one = self.down * self.across == 1
        return text if is_one else f"{text}, with up to {self.down:,} × {self.across:,} shards in a cell"


def share_of(part: int, whole: int) -> str:
    """Return a share in percent; only a share of exactly none is shown as 0 %."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 1 or not part else "< 1 %"


def describe_shard(use: ShardUse, found: ArrayMap) -> str:
    """Describe a shard of an array in one line."""
    if use.error is not None:
        return f"{use.key}: {size(use.size)}, damaged: {use.error}"
    waste = "encoded as a whole" if use.capacity else "dead bytes are not counted"
    if use.dead is not None:
        waste = f"{size(use.dead)} ({share_of(use.dead, use.size)}) dead"
    return f"{use.key}: {size(use.size)}, {_count(use.chunks, use.capacity, _noun(found))}, {waste}"


def _noun(found: ArrayMap) -> str:
    """Return what is in the shards: chunks, or values of which nobody knows how many there may be."""
    return "chunk" if found.array.grid.nchunks else "value"


def _count(chunks: int, most: int, noun: str) -> str:
    """Say how many *chunks* there are, of *most* if anybody knows."""
    return f"{chunks:,} of {counted(most, noun)}" if most else counted(chunks, noun)


def summary_of(found: ArrayMap) -> str:
    """Return how much of an array is stored."""
    total = Cell(math.prod(found.shape), [use for _, use in found.uses])
    chunks = _count(sum(use.chunks for use in total.uses), found.array.grid.nchunks, _noun(found))
    full = f", {sum(use.error is None and use.chunks >= use.capacity for use in total.uses):,} full"
    full = "" if found.array.grid.is_scattered else full
    wasteful = sum(bool(use.dead) for use in total.uses)
    damaged = f", {total.damaged:,} damaged" if total.damaged else ""
    damaged += f", {wasteful:,} with dead bytes" if wasteful else ""
    dead = f", {share_of(total.dead, total.nbytes)} dead"
    if found.uses and all(use.dead is None for use in total.uses):  # where a format is only read, nothing removes them
        dead = "" if found.array.grid.is_read_only else ", ? dead"
    return (
        f"{len(found.uses):,} of {counted(total.shards, 'shard')} stored{full}{damaged}; {chunks}; "
        f"{size(total.nbytes)}{dead}"
    )


def draw(maps: Sequence[ArrayMap], reasons: Mapping[str, str], max_rows: int, width: int) -> Iterator[Line]:
    """Yield the lines of all pictures, *width* characters wide; *reasons* say, by path, why arrays have none."""
    for found in maps:
        yield [TextPart(found.path, "name"), TextPart(f"  {summary_of(found)}")]
        if found.error is not None:
            yield [TextPart(f"  damaged: {found.error}", "error")]
        if not found.uses:
            continue
        grid = Grid.of(found, max_rows, width)
        names = () if found.array.grid.is_scattered else found.array.document.get("dimension_names") or ()
        yield [TextPart(f"  {grid.caption(names)}")]
        for cells in grid.cells:
            wide = 2 if 2 * len(cells) <= width else 1
            yield [TextPart("    "), *(_cell(cell, wide) for cell in cells)]
        damaged = [(use, None) for _, use in found.most_wasteful(_MAX_DAMAGED) if use.error is not None]
        for use, layout in found.layouts or damaged:
            yield [TextPart(f"  {describe_shard(use, found)}")]
            if layout is not None:
                yield [TextPart("    "), *_bar(layout, width)]
        if 0 < len(found.layouts) < len(found.uses):
            yield [
                TextPart(f"  {counted(len(found.uses) - len(found.layouts), 'shard')} more, with no more dead bytes")
            ]
    for path, reason in reasons.items():
        yield [TextPart(f"no map: {path or '(root)'}: {reason}")]
    if any(found.uses for found in maps):
        full = "full" + (", or not known how full" if any(found.array.grid.is_scattered for found in maps) else "")
        yield [TextPart(f"Shards: · missing  ░▒▓ partly  █ {full}  1…9 tenths of dead bytes  ! damaged")]
        legend = (
            (TextPart(f"  {sign}", use.name.lower()), TextPart(f" {word}")) for use, (sign, word) in _LAYOUT.items()
        )
        yield [TextPart("In a shard:"), *(part for pair in legend for part in pair)]


def describe_cell(grid: Grid, row: int, column: int, cell: Cell) -> str:
    """Describe the shards of a cell in one line."""
    coords = ", ".join(map(str, grid.first(row, column))) or "the only one"
    text = f"{counted(cell.shards, 'shard')} from {coords} on: {len(cell.uses):,} stored"
    if not cell.uses:
        return text
    text += f", {100 * cell.fullness:.0f} % full" if all(use.capacity for use in cell.uses) else ""
    text += f", {size(cell.nbytes)}, {share_of(cell.dead, cell.nbytes)} dead"
    return f"{text}, {cell.damaged:,} damaged" if cell.damaged else text


def _cell(cell: Cell, wide: int) -> TextPart:
    if not cell.uses:
        return TextPart("·" * wide, "missing")
    fullness, dead = cell.fullness, cell.dead / (cell.nbytes or 1)
    if cell.damaged:
        return TextPart("!" * wide, "damaged")
    if dead >= _MIN_DEAD:
        return TextPart(str(min(int(10 * dead), 9)) * wide, "dead" if dead >= 0.5 else "wasteful")
    return TextPart(("█" if fullness >= 1 else "░▒▓"[min(int(3 * fullness), 2)]) * wide, "live")


def _bar(layout: Layout, width: int) -> Iterator[TextPart]:
    for use, run in groupby(layout.cells(width)):
        yield TextPart(_LAYOUT[use][0] * len(list(run)), use.name.lower())


def text_of(text: str) -> str:
    """Return any name as text for a page."""
    return escape(printable(text))
