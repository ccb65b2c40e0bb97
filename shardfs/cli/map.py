"""`shardfs map`: pictures of where chunks are, in the grid of shards and in a shard."""

import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from shardfs.bulk.shards import look_at_shards
from shardfs.cli import pictures
from shardfs.cli.options import array_argument, command, json_option
from shardfs.cli.output import progress, replacing, show, terminal_width
from shardfs.cli.pictures import ArrayMap, draw, for_terminal
from shardfs.cli.sources import executor, in_session, source_options, workers_options
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.verify import ShardUse, lay_out, measure
from shardfs.dataset.maintenance.walk import array_nodes, walk_all_shards, what_else
from shardfs.dataset.node import Node
from shardfs.errors import ShardfsError, printable
from shardfs.stores.url import StoreOptions

_MAX_ROWS: Final = 16
_MAX_WIDTH: Final = 100
_MAX_PAGE_ROWS: Final = 56
_PAGE_WIDTH: Final = 112
_MAX_DRAWN: Final = 16
"""For how many shards of an array the layout is shown."""
_MAX_DRAWN_IN_ALL: Final = 1000


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
    help="Write the pictures to this file, as one self-contained page for a browser.",
)
@json_option
@workers_options
def map(
    source: str,
    store_options: StoreOptions,
    array: str | None,
    page: Path | None,
    as_json: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Show where the chunks of SOURCE are: which shards of each array are stored, how full they are, and what is dead.

    No index refers to dead bytes; `shardfs compact` removes them. With ARRAY, a path in SOURCE, also show the layout
    inside its shards; if there are many, of the damaged ones and those with the most dead bytes.
    """
    is_brief = page is None and (array is None or as_json)
    with executor(jobs, dask, store_options, source) as chosen:
        found = in_session(source, store_options, _look, store_options, array, is_brief, jobs, chosen)
    maps, reasons = found.maps, found.reasons
    if page is not None:
        with replacing(page) as file:
            lines = draw(maps, reasons, _MAX_PAGE_ROWS, _PAGE_WIDTH)
            file.writelines(pictures.page(f"Map of {found.url}", lines))
    if as_json:
        show({"arrays": [_item(each) for each in maps], "not_shown": reasons}, (), as_json=True)
    elif page is not None:
        click.echo(printable(f"{page} written"))
    else:
        color = False if os.environ.get("NO_COLOR") else None
        width = min(terminal_width(sys.stdout) or _MAX_WIDTH, _MAX_WIDTH) - 4
        for line in draw(maps, reasons, _MAX_ROWS, width):
            click.echo(for_terminal(line), color=color)
        if found.instead is not None:
            click.echo(f"There are no Zarr v3 arrays here: {printable(found.instead)}.")


class _Maps(NamedTuple):
    """Maps of the source at *url*; *reasons* say by path why there is none, *instead* what is there without arrays."""

    url: str
    maps: list[ArrayMap]
    reasons: dict[str, str]
    instead: str | None


async def _look(
    source: Source,
    options: StoreOptions,
    array: str | None,
    is_brief: bool,
    jobs: int | None,
    executor: Executor | None,
) -> _Maps:
    """Return the map of every sharded array, or of that at *array*; if it *is_brief*, without layouts of shards."""
    maps: dict[str, ArrayMap] = {}
    reasons: dict[str, str] = {}

    async def nodes() -> AsyncIterator[Node]:
        async for node in array_nodes(source, array):
            if node.array is not None:
                maps[node.path] = ArrayMap(node.array)
                yield node
            else:
                reasons[node.path] = node.reason or "it is not sharded: each chunk is a file of its own"

    def failed(path: str, error: ShardfsError) -> None:
        maps[path].error = str(error)

    found = await look_at_shards(
        source,
        options,
        walk_all_shards(nodes(), "mapping", progress, failed),
        measure,
        reads_chunks=False,
        executor=executor,
        jobs=jobs,
    )
    for each in found:
        use = each.result or ShardUse(each.key, 0, 0, 0, None, str(each.error))
        maps[each.path].uses.append((each.coords, use))
    if not is_brief and maps:
        count = min(_MAX_DRAWN, max(_MAX_DRAWN_IN_ALL // len(maps), 1))
        drawn = [(each, coords, use) for each in maps.values() for coords, use in each.most_wasteful(count)]
        with progress("drawing", len(drawn), "shard") as advance:
            for drawing, coords, use in drawn:
                drawing.layouts.append((use, await lay_out(drawing.array, coords)))
                advance(1)
    instead = await what_else(source) if not maps and not reasons else None
    return _Maps(source.store.url, list(maps.values()), reasons, instead)


def _item(found: ArrayMap) -> dict[str, Any]:
    return {
        "path": found.array.layout.path,
        "grid": list(found.shape),
        "shards": [{**asdict(use), "dead": use.dead} for _, use in found.uses],
        "error": found.error,
    }
