"""The pictures of `map`: the grid of shards of an array as cells, and the layout of its most wasteful shards.

Also as one page for a browser: no script, no other file, no network, in light and in dark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Final, TextIO

from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.verify import Layout, ShardUse, Use
from shardfs.errors import counted, printable
from shardfs.format.grid import coords_in_c_order, index_in_c_order
from shardfs.format.sharding import Coords
from shardfs.fuse.progress import size


@dataclass(slots=True)
class Cell:
    """Some neighbouring *shards*, and the sums over those that are *stored*.

    *filled* is the sum of the shares of their chunks that are stored.
    """

    shards: int
    stored: int = 0
    full: int = 0
    damaged: int = 0
    wasteful: int = 0
    filled: float = 0.0
    chunks: int = 0
    nbytes: int = 0
    dead: int = 0

    def add(self, use: ShardUse) -> None:
        """Add a shard."""
        is_damaged = use.error is not None
        self.stored += 1
        self.damaged += is_damaged
        self.full += not is_damaged and use.chunks >= use.capacity
        self.wasteful += bool(use.dead)
        self.filled += min(use.chunks / use.capacity, 1.0) if use.capacity else 0.0
        self.chunks += use.chunks
        self.nbytes += use.size
        self.dead += use.dead or 0

    @property
    def fullness(self) -> float:
        """The share of chunks that are stored."""
        return self.filled / self.shards

    @property
    def dead_share(self) -> float:
        """The share of bytes that are dead."""
        return self.dead / self.nbytes if self.nbytes else 0.0


@dataclass(slots=True)
class ArrayMap:
    """The stored shards of *array*, in C order, and the *layouts* of those that are drawn, None if impossible.

    *error* says why not all of them were found.
    """

    array: Array
    uses: list[tuple[Coords, ShardUse]] = field(default_factory=list)
    layouts: list[tuple[ShardUse, Layout | None]] = field(default_factory=list)
    error: str | None = None

    @property
    def path(self) -> str:
        """The name of the array for people."""
        return self.array.layout.path or "(root)"

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of shards along each axis."""
        return tuple(dimension.nchunks for dimension in self.array.grid.shards.dimensions)

    @property
    def total(self) -> Cell:
        """The sums over all shards."""
        found = Cell(math.prod(self.shape))
        for _, use in self.uses:
            found.add(use)
        return found

    @property
    def summary(self) -> str:
        """How much of the array is stored."""
        total = self.total
        damaged = f", {total.damaged:,} damaged" if total.damaged else ""
        wasteful = f", {total.wasteful:,} with dead bytes" if total.wasteful else ""
        is_known = not self.uses or any(use.dead is not None for _, use in self.uses)
        return (
            f"{total.stored:,} of {counted(total.shards, 'shard')} stored, {total.full:,} full{damaged}{wasteful}; "
            f"{total.chunks:,} of {counted(self.array.grid.nchunks, 'chunk')}; "
            f"{size(total.nbytes)}, {share(total.dead, total.nbytes) if is_known else '?'} dead"
        )

    def most_wasteful(self, count: int) -> list[tuple[Coords, ShardUse]]:
        """Return *count* shards: damaged ones, then those with most dead bytes."""
        return sorted(self.uses, key=lambda each: (each[1].error is None, -(each[1].dead or 0)))[:count]


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
            cells[row // down][column // across].add(use)
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


WORDS: Final = {
    Use.LIVE: "live",
    Use.DEAD: "dead",
    Use.INDEX: "index",
    Use.GAP: "gap (zeros)",
    Use.FOREIGN: "foreign prefix",
}


def describe(use: ShardUse) -> str:
    """Describe a shard in one line."""
    if use.error is not None:
        return f"{use.key}: {size(use.size)}, damaged: {use.error}"
    waste = "encoded as a whole" if use.dead is None else f"{size(use.dead)} ({share(use.dead, use.size)}) dead"
    return f"{use.key}: {size(use.size)}, {use.chunks:,} of {counted(use.capacity, 'chunk')}, {waste}"


def share(part: int, whole: int) -> str:
    """Return a share in percent; only a share of exactly none is shown as 0 %."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f} %" if percent >= 1 or not part else "< 1 %"


_MAX_ROWS: Final = 56
_MAX_COLUMNS: Final = 72
_NCELLS: Final = 480
_TILE: Final = 16

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2430; --faint: #667080; --line: #dfe3e9;
  --missing: #e8ebf0; --live: #2b7bba; --dead: #e8743b; --index: #7b57b8; --gap: #c3c9d2; --foreign: #2f9e77;
  --damaged: #c8102e; }
@media (prefers-color-scheme: dark) { :root { --page: #12161c; --card: #1b2129; --text: #e4e8ee; --faint: #98a3b3;
  --line: #313a46; --missing: #2a323d; --live: #4c9fe0; --dead: #f08a54; --index: #a98be0; --gap: #566273;
  --foreign: #4cc296; --damaged: #ff5468; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 72rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1, h2 { font-weight: 600; line-height: 1.25; overflow-wrap: anywhere; margin: 0; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; }
p { margin: .3rem 0; color: var(--faint); overflow-wrap: anywhere; }
a { color: inherit; }
section, table, .legend { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
section { margin-top: 1rem; padding: 1.1rem 1.3rem; }
table { width: 100%; margin: 1rem 0; border-spacing: 0; font-variant-numeric: tabular-nums; }
td, th { padding: .35rem .8rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
th { font-weight: 500; color: var(--faint); border-top: 0; }
td:first-child, th:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
.wide { overflow-x: auto; }
.legend + .legend { margin-top: .4rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding: .7rem 1.2rem; margin-top: 1rem;
  font-size: .87rem; }
b { font-weight: 600; min-width: 5.5em; }
.legend svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: .45em; }
svg { display: block; max-width: 100%; } .legend svg { display: inline; }
.grid { height: auto; margin: .8rem 0 .3rem; }
.bar { width: 100%; height: 16px; border-radius: 4px; background: var(--missing); }
figure { margin: .7rem 0 0; font-size: .87rem; } figcaption { overflow-wrap: anywhere; margin-bottom: .2rem; }
details { margin-top: .7rem; } summary { cursor: pointer; color: var(--faint); }
.missing { fill: var(--missing); } .live { fill: var(--live); } .dead { fill: var(--dead); }
.index { fill: var(--index); } .gap { fill: var(--gap); } .foreign { fill: var(--foreign); }
.damaged { fill: var(--damaged); color: var(--damaged); }
"""


def write_page(file: TextIO, url: str, maps: Sequence[ArrayMap], reasons: Mapping[str, str]) -> None:
    """Write the page about the source at *url*; *reasons* say, by path, why arrays are not in it."""
    for part in _page(url, maps, reasons):
        file.write(part + "\n")


def _page(url: str, maps: Sequence[ArrayMap], reasons: Mapping[str, str]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # Whatever names contain, the page loads and runs nothing.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>Map of {_text(url)}</title>\n<style>{_STYLE}</style>"
    yield f"<h1>{_text(url)}</h1>\n<p>Where the chunks of {counted(len(maps), 'sharded array')} are</p>"
    yield _legend()
    yield '<div class="wide">\n<table>\n<tr><th>array<th>stored shards<th>all shards<th>full<th>damaged'
    yield "<th>stored chunks<th>all chunks<th>bytes<th>dead"
    for number, found in enumerate(maps):
        total = found.total
        figures = (total.stored, total.shards, total.full, total.damaged, total.chunks, found.array.grid.nchunks)
        cells = [*(f"{figure:,}" for figure in figures), size(total.nbytes), share(total.dead, total.nbytes)]
        yield f'<tr><td><a href="#a{number}">{_text(found.path)}</a><td>{"<td>".join(cells)}'
    yield "</table>\n</div>"
    for number, found in enumerate(maps):
        yield f'<section id="a{number}">\n<h2>{_text(found.path)}</h2>\n<p>{_text(found.summary)}</p>'
        if found.error is not None:
            yield f'<p class="damaged">damaged: {_text(found.error)}</p>'
        if found.uses:
            yield from _grid(found)
        if found.layouts:
            yield f"<details open><summary>{counted(len(found.layouts), 'shard')}, with most dead bytes first</summary>"
            for use, layout in found.layouts:
                bar = "" if layout is None else _bar(layout)
                yield f"<figure><figcaption>{_text(describe(use))}</figcaption>{bar}</figure>"
            yield "</details>"
        yield "</section>"
    if reasons:
        yield "<section>\n<h2>Not shown</h2>"
        yield from (f"<p>{_text(path or '(root)')}: {_text(reason)}</p>" for path, reason in reasons.items())
        yield "</section>"
    yield "</html>"


def _grid(found: ArrayMap) -> Iterator[str]:
    """Yield the grid of shards: blue for how full a cell is, topped with orange for how much is dead."""
    grid = Grid.of(found, _MAX_ROWS, _MAX_COLUMNS)
    width, height = _TILE * len(grid.cells[0]), _TILE * len(grid.cells)
    yield f'<svg class="grid" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            x, y, side = column * _TILE, row * _TILE, _TILE - 2
            dead = side * cell.dead_share
            tile = f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="2" fill-opacity="%.2f" class="%s"/>'
            drawn = tile % (1, "missing")
            if cell.stored:
                drawn += tile % ((1, "damaged") if cell.damaged else (0.25 + 0.75 * cell.fullness, "live"))
                drawn += f'<rect x="{x}" y="{y + side - dead:.1f}" width="{side}" height="{dead:.1f}" class="dead"/>'
            yield f"<g><title>{_text(_say(grid, row, column, cell))}</title>{drawn}</g>"
    yield f"</svg>\n<p>{_text(grid.caption(found.array.document.get('dimension_names') or ()))}</p>"


def _say(grid: Grid, row: int, column: int, cell: Cell) -> str:
    coords = ", ".join(map(str, grid.first(row, column))) or "the only one"
    text = f"{counted(cell.shards, 'shard')} from {coords} on: {cell.stored:,} stored"
    if cell.stored:
        text += f", {100 * cell.fullness:.0f} % full, {size(cell.nbytes)}, {share(cell.dead, cell.nbytes)} dead"
    return text + (f", {cell.damaged:,} damaged" if cell.damaged else "")


def _bar(layout: Layout) -> str:
    cells, at, parts = layout.cells(_NCELLS), 0, []
    for use, run in groupby(cells):
        length = len(list(run))
        parts.append(f'<rect x="{at}" width="{length}" height="1" class="{use.name.lower()}"/>')
        at += length
    box = f'viewBox="0 0 {_NCELLS} 1" preserveAspectRatio="none" shape-rendering="crispEdges"'
    return f'<svg class="bar" {box}>{"".join(parts)}</svg>'


def _legend() -> str:
    cells = {"missing": "missing", "live": "full (paler: partly filled)", "damaged": "damaged"}
    cells["dead"] = "height of the bar: share of dead bytes"
    layouts = {use.name.lower(): WORDS[use] for use in (Use.LIVE, Use.DEAD, Use.INDEX, Use.GAP, Use.FOREIGN)}
    tile = '<span><svg viewBox="0 0 14 14"><rect width="14" height="14" rx="2" class="{}"/></svg>{}</span>'
    return "\n".join(
        f'<div class="legend"><b>{title}</b>{"".join(tile.format(name, text) for name, text in tiles.items())}</div>'
        for title, tiles in (("Shards", cells), ("In a shard", layouts))
    )


def _text(text: str) -> str:
    """Return any name as text for the page."""
    return escape(printable(text))
