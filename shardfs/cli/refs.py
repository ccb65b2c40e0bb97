"""`shardfs refs`: kerchunk references, for machines that cannot mount."""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

import click
import trio

from shardfs import errors
from shardfs.cli.options import command
from shardfs.cli.output import complain, progress, replacing
from shardfs.cli.sources import open_source, source_options
from shardfs.dataset.hierarchy import Node, Source
from shardfs.dataset.maintenance.walk import no_progress, walk_nodes, what_else
from shardfs.errors import MetadataError, NotShownError, NotUnshardable, ShardfsError
from shardfs.format.metadata import GroupMetadata
from shardfs.stores.url import StoreOptions
from shardfs.vfs.kerchunk import Reference, array_references, document_references
from shardfs.vfs.views import View, make_view


@command(
    examples="""
    shardfs refs data.zarr > references.json
    shardfs refs --output references.json data.zarr
    shardfs refs --view v2 --output references.json s3://bucket/data.zarr
    """
)
@source_options
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option(
    "--view",
    type=click.Choice(["v3", "v2"]),
    default="v3",
    show_default=True,
    help="Reference unsharded Zarr v3, or Zarr v2, which kerchunk's engine for xarray needs.",
)
@click.option("--skip-encoded", is_flag=True, help="Leave out arrays whose shards are encoded as a whole.")
def refs(source: str, store_options: StoreOptions, output: Path | None, view: str, skip_encoded: bool) -> None:
    """Print kerchunk references to every inner chunk of SOURCE, for machines that cannot mount.

    References describe what a mount would show now; write them again when the source changes.

    An array with an unreadable chunk is left out, because readers would take a missing chunk as fill value. So is an
    array that the view cannot show. Each is named with the reason. If something could not be read, the exit status is
    1, and the file of --output stays as it was; on standard output all other arrays are printed.
    """
    opened = open_source(source, store_options)
    shown = make_view(view, opened.store)
    if output is None:
        if trio.run(write_references, opened, sys.stdout, shown, skip_encoded):
            sys.exit(1)
        return
    with replacing(output) as file:
        if trio.run(write_references, opened, file, shown, skip_encoded):
            raise errors.CorruptionError(f"{output} is left as it was; without --output, the other arrays are printed")


async def write_references(source: Source, file: TextIO, view: View, skip_encoded: bool) -> int:
    """Write kerchunk references to what *view* shows as JSON, one line each.

    Returns how many arrays are left out, with a line each on standard error, as they could not be read or referenced.
    Not counted are those that the view does not show and, if *skip_encoded*, those whose shards are encoded as a whole.
    """
    source.hierarchy.looks_above = view.shower.looks_above
    groups, left_out, failed, separator = [], set(), 0, "\n"
    file.write('{"version": 1, "refs": {')
    arrays: list[Node] = []
    async for node in walk_nodes(source):
        if isinstance(node.metadata, GroupMetadata):
            groups.append(node.path)
        else:
            arrays.append(node)
    nchunks = {node.path: node.any_array.grid.nchunks for node in arrays if node.any_array is not None}
    show = no_progress if file.isatty() else progress
    with show("referencing", sum(nchunks.values()), "chunk") as advance:
        for node in arrays:
            count = 0
            try:
                if node.metadata is None:
                    raise MetadataError(str(node.reason))
                with TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="") as aside:
                    before = separator
                    async for key, reference in array_references(source, view, node):
                        aside.write(f"{before}{_line(key, reference)}")
                        before = ",\n"
                        count += 1
                        advance(1)
                    aside.seek(0)
                    shutil.copyfileobj(aside, file)
                    separator = before
                continue
            except NotShownError as error:
                reason = str(error)
            except NotUnshardable as error:
                failed += not skip_encoded
                reason = str(error) if skip_encoded else f"{error}; mount it, or leave it out with --skip-encoded"
            except ShardfsError as error:
                failed += 1
                reason = str(error)
            finally:
                advance(nchunks.get(node.path, count) - count)
            left_out.add(node.path)
            complain(f"{node.path or 'the source'} cannot be referenced: {reason}")
    if not arrays:
        complain(f"there are no Zarr v3 arrays here: {await what_else(source)}")
    for path in groups:  # at last, when it is known which arrays their copies would tell of for nothing
        for key, text in document_references(view, await source.hierarchy.node(path), left_out):
            file.write(f"{separator}{_line(key, text)}")
            separator = ",\n"
    file.write("\n}}\n")
    return failed


def _line(key: str, reference: Reference) -> str:
    return f"{json.dumps(key)}: {json.dumps(reference)}"
