"""A map as one page for a browser: no script, no other file, no network, in light and in dark."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Final, TextIO

from shardfs.cli.pictures import WORDS, ArrayMap, Cell, Grid, describe, share
from shardfs.dataset.maintenance.verify import Layout, Use
from shardfs.errors import counted, printable
from shardfs.fuse.progress import size

_MAX_ROWS: Final = 56
_MAX_COLUMNS: Final = 72
_NCELLS: Final = 480
_TILE: Final = 14
_LARGE_TILE: Final = 24
_FEW_COLUMNS: Final = 24
_GAP: Final = 2

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
td svg { display: inline; width: 5rem; max-width: none; height: .6rem; margin-left: .6rem; background: var(--missing);
  border-radius: 3px; }
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
    """Write the page about the source at *url*; *reasons* say why arrays are not in it, by path."""
    for part in _page(url, maps, reasons):
        file.write(part + "\n")


def _page(url: str, maps: Sequence[ArrayMap], reasons: Mapping[str, str]) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # Whatever a name manages to be, it loads and runs nothing.
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>Map of {_text(url)}</title>\n<style>{_STYLE}</style>"
    yield f"<h1>{_text(url)}</h1>\n<p>Where the chunks of {counted(len(maps), 'sharded array')} are</p>"
    yield _legend()
    yield '<div class="wide">\n<table>\n<tr><th>array<th>stored shards<th>all shards<th>full<th>damaged'
    yield "<th>stored chunks<th>all chunks<th>bytes<th>dead"
    for number, found in enumerate(maps):
        name = f'<a href="#a{number}">{_text(found.path)}</a>' if found.is_found else _text(found.path)
        chunks = found.array.grid.nchunks
        filled = 100 * found.chunks // chunks if chunks else 0
        bar = f'<rect width="{filled}" height="1" class="live"/>'
        bar = f'<svg viewBox="0 0 100 1" preserveAspectRatio="none">{bar}</svg>'
        yield (
            f"<tr><td>{name}<td>{len(found.uses):,}<td>{found.count:,}<td>{found.full:,}<td>{found.damaged:,}"
            f"<td>{found.chunks:,}{bar}<td>{chunks:,}<td>{size(found.nbytes)}<td>{found.dead_share}"
        )
    yield "</table>\n</div>"
    for number, found in enumerate(maps):
        if not found.is_found:
            continue
        yield f'<section id="a{number}">\n<h2>{_text(found.path)}</h2>\n<p>{_text(found.summary)}</p>'
        if found.error is not None:
            yield f'<p class="damaged">damaged: {_text(found.error)}</p>'
        yield from _grid(found)
        yield from _shards(found)
        yield "</section>"
    if reasons:
        yield "<section>\n<h2>Not shown</h2>"
        yield from (f"<p>{_text(path or '(root)')}: {_text(reason)}</p>" for path, reason in reasons.items())
        yield "</section>"
    yield "</html>"


def _grid(found: ArrayMap) -> Iterator[str]:
    """Yield the grid of shards: blue by how full a cell is, filled up with orange by how much is dead."""
    if not found.uses:
        return
    grid = Grid.of(found, _MAX_ROWS, _MAX_COLUMNS)
    tile = _LARGE_TILE if len(grid.cells[0]) <= _FEW_COLUMNS else _TILE
    width, height = tile * len(grid.cells[0]), tile * len(grid.cells)
    yield f'<svg class="grid" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    for row, cells in enumerate(grid.cells):
        for column, cell in enumerate(cells):
            x, y, side = column * tile, row * tile, tile - _GAP
            rectangle = f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="2"'
            kind = "damaged" if cell.damaged else "live"
            opacity = "" if cell.damaged else f' fill-opacity="{0.25 + 0.75 * cell.fullness:.2f}"'
            drawn = f'{rectangle} class="missing"/>'
            if cell.stored:
                drawn += f'{rectangle} class="{kind}"{opacity}/>'
            if dead := round(side * cell.dead_share, 1):
                drawn += f'<rect x="{x}" y="{y + side - dead:g}" width="{side}" height="{dead:g}" class="dead"/>'
            yield f"<g><title>{_text(_say(grid, row, column, cell))}</title>{drawn}</g>"
    yield f"</svg>\n<p>{_text(found.caption(grid))}</p>"


def _say(grid: Grid, row: int, column: int, cell: Cell) -> str:
    coords = ", ".join(map(str, grid.first(row, column))) or "the only one"
    if cell.shards == 1:
        text = f"shard {coords}: " + ("stored" if cell.stored else "missing")
    else:
        text = f"{cell.shards:,} shards from {coords} on: {cell.stored:,} stored"
    if cell.stored:
        text += f", {100 * cell.fullness:.0f} % full, {size(cell.nbytes)}, {share(cell.dead, cell.nbytes)} dead"
    return text + (f", {cell.damaged:,} damaged" if cell.damaged else "")


def _shards(found: ArrayMap) -> Iterator[str]:
    """Yield what lies where in some shards, from their first byte to the last."""
    if not found.layouts:
        return
    is_open = " open" if found.dead or found.damaged else ""
    order = ["damaged"] * any(use.error is not None for use, _ in found.layouts)
    order += ["most dead bytes"] * any(use.dead for use, _ in found.layouts)
    how = f": {', then '.join(f'{what} first' if what == order[0] else what for what in order)}" if order else ""
    yield f"<details{is_open}><summary>{counted(len(found.layouts), 'shard')}{how}</summary>"
    for use, layout in found.layouts:
        bar = "" if layout is None else _bar(layout)
        yield f"<figure><figcaption>{_text(describe(use))}</figcaption>{bar}</figure>"
    yield "</details>"


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
    """Return what may be any name as text of the page."""
    return escape(printable(text))
