"""The maps of `map` as a page: a summary of problems, the grid of shards of each array, and what is in a shard.

No script, no other file, no network, in light and in dark; no name in a dataset becomes part of the page.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from shardfs.bulk.map import ArrayMap
from shardfs.bulk.pictures import Cell, Grid, describe_cell, describe_shard, share_of, summary_of, text_of
from shardfs.dataset.maintenance.verify import Layout, ShardUse, Use
from shardfs.errors import counted, size

MAX_ROWS: Final = 48
MAX_COLUMNS: Final = 96
_WIDTH: Final = 960
_SIDE: Final = 24
_BAR: Final = 14
_PARTS: Final = 240
_MANY_DEAD: Final = 0.1
"""From which share of dead bytes on a shard is drawn, and named among the problems."""
_MAX_NAMED: Final = 8
_MAX_PROBLEMS: Final = 100

_WORDS: Final = {
    Use.LIVE: "live", Use.DEAD: "dead", Use.INDEX: "index", Use.GAP: "gap (zeros)", Use.FOREIGN: "foreign prefix",
}  # fmt: skip
_LEGEND: Final = (
    ("none", "not stored"), ("part", "partly full"), ("full", "full"), ("wasteful", "dead bytes"),
    ("damaged", "damaged"),
)  # fmt: skip

STYLES: Final = """
.map { display: block; max-width: 100%; height: auto; margin: .5rem 0; }
.map .none { fill: none; stroke: currentColor; stroke-opacity: .35; stroke-dasharray: 2 2; }
.map .part { fill: #6fb7a0; } .map .full, .map .live { fill: #2b7f68; }
.map .wasteful { fill: #d9962a; } .map .damaged { fill: #c42b24; }
.map .dead { fill: #c86a2b; } .map .index { fill: #3a78c8; }
.map .gap { fill: #9aa5b1; } .map .foreign { fill: #a347ba; }
.map text { fill: currentColor; font: 13px system-ui, sans-serif; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: .5rem 0; }
.key { list-style: none; font-size: .875rem; }
.key .map { display: inline-block; width: 1em; height: 1em; vertical-align: -.1em; margin: 0 .35em 0 0; }
"""
"""The rules for maps in a page."""

_PAGE: Final = """
:root {
  color-scheme: light dark;
  --page: #fff; --text: #1c2126; --quiet: #5a6570; --line: #d5dae0; --bad: #b3261e; --good: #1d6b4f;
}
@media (prefers-color-scheme: dark) {
  :root { --page: #14181c; --text: #e6e9ec; --quiet: #9aa5b1; --line: #343c45; --bad: #ff8a80; --good: #7fd1ae; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--page); color: var(--text); }
body { font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 2rem 0 .25rem; }
h1, h2, li, td, th, p { overflow-wrap: anywhere; }
a { color: inherit; } p { margin: .35rem 0; }
.quiet { color: var(--quiet); } .problem { color: var(--bad); } .fine { color: var(--good); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { text-align: right; white-space: nowrap; } td:first-child { min-width: 9rem; }
"""


def section(found: ArrayMap) -> Iterator[str]:
    """Yield the parts of the map of one array: what is stored, the grid, and the shards with damage or dead bytes."""
    yield f"<p>{text_of(summary_of(found))}</p>\n"
    if found.error is not None:
        yield f'<p class="problem">damaged: {text_of(found.error)}</p>\n'
    if not found.uses:
        return
    grid = Grid.of(found, MAX_ROWS, MAX_COLUMNS)
    names = () if found.array.grid.is_scattered else found.array.document.get("dimension_names") or ()
    yield f'<p class="quiet">{text_of(grid.caption(names))}</p>\n'
    yield from _grid(grid)
    yield from _key(found)
    yield from _shards(found)


def _grid(grid: Grid) -> Iterator[str]:
    width = max(map(len, grid.cells))
    side = max(6, min(_SIDE, _WIDTH // width))
    gap = 1 if side > 8 else 0.5
    label = f"{len(grid.cells)} rows of cells"
    yield (
        f'<svg class="map" width="{width * side}" viewBox="0 0 {width * side} {len(grid.cells) * side}" role="img" '
        f'aria-label="Shards: {label}">\n'
    )
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            title = text_of(describe_cell(grid, row, column, cell))
            yield (
                f'<rect class="{_state(cell)}" x="{column * side + gap}" y="{row * side + gap}" '
                f'width="{side - 2 * gap}" height="{side - 2 * gap}"><title>{title}</title></rect>'
            )
        yield "\n"
    yield "</svg>\n"


def _state(cell: Cell) -> str:
    if not cell.uses:
        return "none"
    if cell.damaged:
        return "damaged"
    if cell.dead >= _MANY_DEAD * (cell.nbytes or 1):
        return "wasteful"
    return "full" if cell.fullness >= 1 else "part"


def _key(found: ArrayMap) -> Iterator[str]:
    names = dict(_LEGEND)
    if found.array.grid.is_scattered:
        del names["part"]
        names["full"] = "stored; not known how full"
    items = (f"<li>{_swatch(state)}{word}</li>" for state, word in names.items())
    yield f'<ul class="key" aria-label="Colours of cells">{"".join(items)}</ul>\n'


def _swatch(state: str) -> str:
    square = f'<rect class="{state}" x="1" y="1" width="8" height="8"/>'
    return f'<svg class="map" viewBox="0 0 10 10" aria-hidden="true">{square}</svg>'


def _shards(found: ArrayMap) -> Iterator[str]:
    """Yield what is in the shards that are damaged or have dead bytes; in one, if all are alike."""
    layouts = {use.key: layout for use, layout in found.layouts}
    bad = [use for use in _worst(found) if use.error is not None or _share_dead(use) >= _MANY_DEAD]
    named = bad[:_MAX_NAMED] or [use for use, _ in found.layouts[:1]]
    for use in named:
        problem = ' class="problem"' if use.error is not None else ""
        yield f"<p{problem}>{text_of(describe_shard(use, found))}</p>\n"
        layout = layouts.get(use.key)
        if layout is not None:
            yield from _layout(layout)
    if len(bad) > len(named):
        more = f"{counted(len(bad) - len(named), 'shard')} more with damage or dead bytes"
        yield f"<p>{more}: <code>shardfs map --json</code> names all.</p>\n"
    if any(layouts.get(use.key) is not None for use in named):
        items = (f"<li>{_swatch(use.name.lower())}{word}</li>" for use, word in _WORDS.items())
        yield f'<ul class="key" aria-label="Colours of bytes in a shard">{"".join(items)}</ul>\n'


def _worst(found: ArrayMap) -> list[ShardUse]:
    return [use for _, use in found.most_wasteful(len(found.uses))]


def _share_dead(use: ShardUse) -> float:
    return (use.dead or 0) / (use.size or 1)


def _layout(layout: Layout) -> Iterator[str]:
    step = _WIDTH / _PARTS
    label = "Bytes of this shard, from the first to the last"
    yield f'<svg class="map" width="{_WIDTH}" viewBox="0 0 {_WIDTH} {_BAR}" role="img" aria-label="{label}">'
    at = 0
    for use, run in groupby(layout.cells(_PARTS)):
        length = len(list(run))
        yield (
            f'<rect class="{use.name.lower()}" x="{at * step:g}" y="0" width="{length * step:g}" height="{_BAR}">'
            f"<title>{_WORDS[use]}</title></rect>"
        )
        at += length
    yield "</svg>\n"


def page(url: str, maps: Sequence[ArrayMap], reasons: Mapping[str, str], instead: str | None) -> Iterator[str]:
    """Yield the parts of a page of all maps; *reasons* say, by path, why arrays have none."""
    title = text_of(f"Map of {url}")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    # Whatever names contain, the page loads and runs nothing.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{title}</title>\n<style>{_PAGE}{STYLES}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    yield from _summary(maps, reasons)
    if instead is not None:
        yield f"<p>There are no Zarr v3 arrays here: {text_of(instead)}.</p>\n"
    if maps:
        yield from _overview(maps)
    for number, found in enumerate(maps):
        yield f'<section id="array{number}">\n<h2>{text_of(found.path)}</h2>\n'
        yield from section(found)
        yield "</section>\n"
    if reasons:
        yield '<section id="others">\n<h2>Without a map</h2>\n<ul>\n'
        for path, reason in reasons.items():
            yield f"<li>no map: {text_of(path or '(root)')}: {text_of(reason)}</li>\n"
        yield "</ul>\n</section>\n"
    yield "</main>\n</body>\n</html>\n"


def _summary(maps: Sequence[ArrayMap], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong, first of all."""
    problems: list[tuple[str, str]] = []
    for number, found in enumerate(maps):
        where = f'<a href="#array{number}">{text_of(found.path)}</a>'
        if found.error is not None:
            problems.append(("problem", f"{where}: its shards cannot be listed: {text_of(found.error)}"))
        damaged = [use for _, use in found.uses if use.error is not None]
        problems += [("problem", f"{where}: {text_of(f'{use.key}: {use.error}')}") for use in damaged[:_MAX_NAMED]]
        if len(damaged) > _MAX_NAMED:
            problems.append(("problem", f"{where}: {counted(len(damaged) - _MAX_NAMED, 'damaged shard')} more"))
        nbytes, dead = sum(use.size for _, use in found.uses), sum(use.dead or 0 for _, use in found.uses)
        if dead >= _MANY_DEAD * (nbytes or 1):
            words = f"{size(dead)} of {size(nbytes)} ({share_of(dead, nbytes)}) are dead bytes"
            problems.append(("wasteful", f"{where}: {words}: <code>shardfs compact</code> removes them"))
    heading = '<section id="problems">\n<h2>Problems</h2>\n'
    if not problems:
        note = f"; {counted(len(reasons), 'array')} without a map" if reasons else ""
        yield f'{heading}<p class="fine">No damaged shards, and few dead bytes{note}.</p>\n</section>\n'
        return
    yield f"{heading}<ul>\n"
    for kind, words in problems[:_MAX_PROBLEMS]:
        yield f'<li class="{kind}">{words}</li>\n'
    yield "</ul>\n"
    if len(problems) > _MAX_PROBLEMS:
        yield f"<p>{len(problems) - _MAX_PROBLEMS:,} more problems are named with the arrays.</p>\n"
    yield "</section>\n"


def _overview(maps: Sequence[ArrayMap]) -> Iterator[str]:
    yield '<section id="overview">\n<h2>Arrays</h2>\n'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Arrays">\n<table>\n'
    yield '<thead><tr><th scope="col">Array</th><th scope="col" class="number">Shards stored</th>'
    yield '<th scope="col" class="number">Size</th><th scope="col" class="number">Dead</th>'
    yield '<th scope="col" class="number">Damaged</th></tr></thead>\n<tbody>\n'
    for number, found in enumerate(maps):
        nbytes, dead = sum(use.size for _, use in found.uses), sum(use.dead or 0 for _, use in found.uses)
        damaged = sum(use.error is not None for _, use in found.uses)
        cells = (
            f"{len(found.uses):,} of {math.prod(found.shape):,}",
            size(nbytes),
            share_of(dead, nbytes),
            f"{damaged:,}",
        )
        yield f'<tr><td><a href="#array{number}">{text_of(found.path)}</a></td>'
        yield "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>\n"
    yield "</tbody>\n</table>\n</div>\n</section>\n"
