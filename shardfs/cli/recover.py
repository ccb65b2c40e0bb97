"""`shardfs recover`: what killed mounts and other programs left, and its repair."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from shardfs import errors
from shardfs.bulk.engine import in_session
from shardfs.cli.options import command, json_option, optional_source_argument
from shardfs.cli.output import progress, show
from shardfs.cli.sources import single_writer_option, store_options
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.recover import Finding, list_slots, recover_source, show_source
from shardfs.dataset.state.sessions import SessionRow, sessions_of
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs recover data.zarr
    shardfs recover --apply data.zarr
    shardfs recover
    """
)
@optional_source_argument
@store_options
@single_writer_option
@click.option("--apply", is_flag=True, help="Commit journals, apply conflicts, and repair torn shards.")
@json_option
def recover(source: str | None, store_options: StoreOptions, single_writer: bool, apply: bool, as_json: bool) -> None:
    """Show what a killed mount or another killed program left in SOURCE; repair it with --apply.

    A journal holds chunks that were written through a mount and not committed. Changes that no longer fit what is
    stored are conflicts, which only --apply applies. A torn shard, which nothing can read, is cut back to its last
    valid index if that has a checksum; the removed bytes are kept in a file in .shardfs/torn. Exit status 1 if
    something is left that cannot be repaired, or is not repaired yet.

    Journals of s3:// sources, and files that could not be stored, are on the machine that wrote them. Look at the list
    before you use --apply: it applies all conflicts, and stores all of those files over what is there by then. To
    discard a file, remove it first. Without SOURCE, the command lists what is left on this machine, each with the
    command that recovers it. What a running mount uses has to wait until you unmount it.
    """
    found: list[Finding] = []
    sessions: Sequence[SessionRow] = ()

    async def work(opened: Source) -> None:
        nonlocal sessions
        if apply:
            await recover_source(opened, found, single_writer, progress)
        else:
            await show_source(opened, found, progress)
        sessions = sessions_of(opened.store)

    if source is not None:
        in_session(source, store_options, work)
    elif apply:
        raise errors.UsageError("--apply needs a SOURCE; without it, `shardfs recover` lists those with a journal here")
    else:
        list_slots(found)
    is_left = any(finding.left for finding in found)
    lines = [finding.message for finding in found] or ["nothing to recover"]
    rows = [asdict(row) for row in sessions]
    show(
        {"left": is_left, "findings": [asdict(finding) for finding in found], "sessions": rows}, lines, as_json=as_json
    )
    if is_left:
        sys.exit(1)
