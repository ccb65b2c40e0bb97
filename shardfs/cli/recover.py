"""`shardfs recover`: what killed mounts and other programs left, and its repair."""

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Final

import click

from shardfs import errors
from shardfs.bulk.engine import in_session
from shardfs.cli.options import command, json_option, optional_source_argument
from shardfs.cli.output import progress, show
from shardfs.cli.sources import single_writer_option, store_options
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.recover import (
    Leftover,
    list_slots,
    owners_of_leftovers,
    recover_source,
    show_source,
)
from shardfs.dataset.state.sessions import SessionRow, sessions_of
from shardfs.errors import counted
from shardfs.stores.url import StoreOptions

try:
    import pwd
except ImportError:  # on Windows, where nothing is recovered
    pwd = None  # type: ignore[assignment]


_MAX_NAMED: Final = 10  # chunks of one array of which the same is to be said


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
@click.option("--verbose", is_flag=True, help="Name each chunk, however many there are of an array.")
@json_option
def recover(
    source: str | None, store_options: StoreOptions, single_writer: bool, apply: bool, verbose: bool, as_json: bool
) -> None:
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
    found: list[Leftover] = []
    sessions: Sequence[SessionRow] = ()
    if source is not None:
        work: Callable[..., Awaitable[None]] = partial(show_source, progress=progress)
        if apply:
            work = partial(recover_source, single_writer=single_writer, progress=progress)
            for owner in in_session(source, store_options, _owners) if os.geteuid() == 0 else ():
                found += _as_user(owner, partial(_found, source, store_options, work))
        found += _found(source, store_options, work)
        sessions = in_session(source, store_options, _sessions)
    elif apply:
        raise errors.UsageError("--apply needs a SOURCE; without it, `shardfs recover` lists those with a journal here")
    else:
        list_slots(found)
    is_left = any(finding.left for finding in found)
    lines = _lines(found, verbose=verbose) or ["nothing to recover"]
    rows = [asdict(row) for row in sessions]
    show(
        {"left": is_left, "findings": [asdict(finding) for finding in found], "sessions": rows}, lines, as_json=as_json
    )
    if is_left:
        sys.exit(1)


def _lines(found: Sequence[Leftover], *, verbose: bool) -> list[str]:
    """Return one line for each, or unless *verbose* one for many chunks of an array of which the same is to be said."""
    alike: dict[str, list[Leftover]] = {}
    for finding in found:
        alike.setdefault(finding.of_many or finding.message, []).append(finding)
    lines: list[str] = []
    for of_many, group in alike.items():
        if verbose or len(group) <= _MAX_NAMED or group[0].of_many is None:
            lines += [finding.message for finding in group]
        else:
            what = of_many.replace("{}", counted(len(group), "chunk"), 1)
            lines.append(f"{what} (--verbose names each)")
    return lines


async def _owners(source: Source) -> Sequence[int]:
    return owners_of_leftovers(source.store)


async def _sessions(source: Source) -> Sequence[SessionRow]:
    return sessions_of(source.store)


def _found(source: str, options: StoreOptions, work: Callable[..., Awaitable[None]]) -> list[Leftover]:
    found: list[Leftover] = []
    in_session(source, options, partial(work, findings=found))
    return found


def _as_user(uid: int, work: Callable[[], list[Leftover]]) -> list[Leftover]:
    """Return what *work* finds in a process that has become another user: it changes what that one may change."""
    who = errors.SourceError(f"what user {uid} left could not be recovered as that user")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _become(uid)
            try:
                found = work()
            except errors.ShardfsError as error:
                found = [Leftover("slot", f"as user {uid}: {error}", left=True)]
            with os.fdopen(writing, "w") as file:
                json.dump([asdict(finding) for finding in found], file)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise who
    return [Leftover(**finding) for finding in json.loads(said)]


def _become(uid: int) -> None:
    """Give up the permissions of root for those of another user, for good."""
    gid, groups = uid, list[int]()
    with suppress(KeyError):
        user = pwd.getpwuid(uid)
        gid, groups = user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
