"""`shardfs map`: pictures of where chunks are, in the grid of shards and in a shard."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from shardfs.bulk import map_page
from shardfs.bulk.engine import in_session
from shardfs.bulk.map import map_source
from shardfs.bulk.pictures import Line, draw
from shardfs.cli.options import array_argument, command, draft_option, json_option
from shardfs.cli.output import progress, replacing, show, terminal_width
from shardfs.cli.sources import executor, source_options, workers_options
from shardfs.errors import printable
from shardfs.stores.url import StoreOptions

_MAX_ROWS: Final = 16
_MAX_WIDTH: Final = 100
_COLORS: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "name": {"bold": True},
    "error": {"fg": "red"},
    "damaged": {"fg": "white", "bg": "red"},
    "missing": {"fg": "bright_black"},
    "live": {"fg": "green"},
    "wasteful": {"fg": "yellow"},
    "dead": {"fg": "red"},
    "index": {"fg": "blue"},
    "gap": {"fg": "bright_black"},
    "foreign": {"fg": "magenta"},
}
"""Each style of a line in a terminal."""


@command(
    examples="""
    shardfs map data.zarr
    shardfs map data.zarr group/image
    shardfs map --html map.html data.zarr
    shardfs map --json data.zarr | jq '.arrays[].shards[] | select(.error)'
    """
)
@source_options
@array_argument
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page for a browser to this file: problems first, then the map of each array; it needs no other file.",
)
@draft_option
@json_option
@workers_options
def map(
    source: str,
    store_options: StoreOptions,
    array: str | None,
    page: Path | None,
    draft: str | None,
    as_json: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Show where the chunks of SOURCE are: which shards of each array are stored, how full they are, and what is dead.

    No index refers to dead bytes; `shardfs compact` removes them. With ARRAY, a path in SOURCE, also show the layout
    inside its shards; if there are many, of the damaged ones and those with the most dead bytes. Exit status 1 if
    consolidated metadata describes an array or a group that has no document of its own there.
    """
    draws = page is not None or (array is not None and not as_json)
    with executor(jobs, dask, store_options, source) as chosen:
        work = partial(map_source, array=array, draws=draws, executor=chosen, jobs=jobs, progress=progress)
        found = in_session(source, store_options, work, draft=draft)
    maps, reasons = found.maps, found.reasons
    if page is not None:
        with replacing(page) as file:
            file.writelines(map_page.page(found.url, maps, reasons, found.instead))
    if as_json:
        show(found.as_dict(), (), as_json=True)
    elif page is not None:
        click.echo(printable(f"{page} written"))
    else:
        color = False if os.environ.get("NO_COLOR") else None
        width = min(terminal_width(sys.stdout) or _MAX_WIDTH, _MAX_WIDTH) - 4
        for line in draw(maps, reasons, _MAX_ROWS, width):
            click.echo(_colored(line), color=color)
        if found.instead is not None:
            click.echo(f"There are no Zarr v3 arrays here: {printable(found.instead)}.")
    if found.has_unread:
        sys.exit(1)


def _colored(line: Line) -> str:
    """Return a line with its colours."""
    return "".join(click.style(printable(text), reset=bool(style), **_COLORS[style]) for text, style in line)
