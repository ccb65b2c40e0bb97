"""`shardfs doctor`: what keeps this machine from mounting, or SOURCE from being mounted, each with the way out."""

import importlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version

import click
import trio

from shardfs.cli.findings import DoctorFinding, failure
from shardfs.cli.mounts import find_rows
from shardfs.cli.options import command, json_option, optional_source_argument
from shardfs.cli.output import complain, show
from shardfs.cli.sharing import try_sharing
from shardfs.cli.sources import store_options
from shardfs.dataset.hierarchy import Source, open_source
from shardfs.dataset.journal.recovery import recover_command
from shardfs.dataset.state.holding import hold
from shardfs.dataset.state.sessions import SessionRow, sessions_of
from shardfs.dataset.state.slots import Slot, all_slots, slots_of
from shardfs.errors import ShardfsError, UsageError
from shardfs.fuse.mountpoint import ONLY_ROOT_ALLOWS_OTHER, check_fuse, users_may_allow_other
from shardfs.fuse.versions import fuse_versions
from shardfs.stores.base import Store
from shardfs.stores.url import REMOTE_LIBRARIES, StoreOptions, how_to_install
from shardfs.version import __version__


@command(
    examples="""
    shardfs doctor
    shardfs doctor data.zarr
    shardfs doctor --write s3://bucket/data.zarr
    shardfs doctor --shared /project/data
    """
)
@optional_source_argument
@store_options
@click.option("--write", is_flag=True, help="Also test whether SOURCE can be written; in S3 with a temporary object.")
@click.option(
    "--shared",
    metavar="DIR",
    help="Try whether two hosts may write below DIR at once; run it on both at the same time. It takes about a minute.",
)
@json_option
def doctor(source: str | None, store_options: StoreOptions, write: bool, shared: str | None, as_json: bool) -> None:
    """Find out what keeps this machine from mounting, or SOURCE from being read or written, and what to do about it.

    Exit status 1 if there is a problem. A note is not a problem: it matters to some users only.
    """
    if shared is not None:
        if source is not None or write:
            raise UsageError("--shared tries a directory, and takes neither SOURCE nor --write")
        findings = list(try_sharing(shared, complain))
    else:
        findings = list(_machine())
    if source is not None:
        findings += trio.run(_source, source, store_options, write)
    lines = []
    for finding in findings:
        lines.append(f"{finding.kind:<9}{finding.what}")
        lines += [f"{'':<9}→ {finding.way_out}"] if finding.way_out else []
    show([asdict(finding) for finding in findings], lines, as_json=as_json)
    if any(finding.kind == "problem" for finding in findings):
        sys.exit(1)


def _machine() -> Iterator[DoctorFinding]:
    python = f"Python {platform.python_version()}"
    yield DoctorFinding("ok", f"shardfs {__version__}, {python}, {platform.system()} {platform.release()}")
    try:
        check_fuse()
    except ShardfsError as error:
        yield failure(error)
    else:
        yield DoctorFinding("ok", "/dev/fuse can be opened, and mounting is allowed")
    yield _allow_other()
    try:
        yield DoctorFinding("ok", fuse_versions())
    except ShardfsError as error:
        yield failure(error)
    yield from map(_library, REMOTE_LIBRARIES)
    for row in find_rows():
        if row.state in ("dead", "silent"):
            yield DoctorFinding("problem", f"the mount at {row.mountpoint} is {row.state}", row.note)
    try:
        for slot in all_slots():
            yield from _leftovers(slot)
    except ShardfsError as error:
        yield failure(error)


def _allow_other() -> DoctorFinding:
    if users_may_allow_other():
        return DoctorFinding("ok", "users can use --allow-other: user_allow_other is in /etc/fuse.conf")
    what, _, way_out = ONLY_ROOT_ALLOWS_OTHER.partition("; ")
    return DoctorFinding("note", what, way_out)


def _library(name: str) -> DoctorFinding:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return DoctorFinding("note", f"{name} cannot be used: {error}", f"for s3:// sources: {how_to_install('s3')}")
    return DoctorFinding("ok", f"{name} {version(name)}")


def _leftovers(slot: Slot) -> Iterator[DoctorFinding]:
    """Say what an ended process has left in a slot."""
    found = slot.state.left() if slot.holder is None else []
    if found:
        what = f"{slot.state.root}, of {slot.address or 'an unknown source'}, has {' and '.join(found)}"
        command = f"`{recover_command(slot.address)}`" if slot.address is not None else "`shardfs recover`"
        yield DoctorFinding("problem", what, f"{command} shows it; the next mount with --write takes it over")


async def _source(source: str, options: StoreOptions, write: bool) -> list[DoctorFinding]:
    try:
        async with open_source(source, options) as opened:
            return await _look_at(opened, write)
    except ShardfsError as error:
        return [failure(error)]


async def _look_at(source: Source, write: bool) -> list[DoctorFinding]:
    store = source.store
    findings = [DoctorFinding("ok", f"{store.url} can be read")]
    for row in sessions_of(store):
        if row.state == "writing":
            findings.append(DoctorFinding("note", f"{store.url} is being written by {row}"))
        elif row.state == "unknown":
            findings.append(DoctorFinding("problem", *_doubt(row, store.url)))
    if store.root is not None:  # else they were found with those of all remote sources
        for slot in slots_of(store):
            findings += _leftovers(slot)
    if write:
        findings.append(await _writing(source.writable))
    return findings


def _doubt(row: SessionRow, url: str) -> tuple[str, str]:
    """Return what to know, and to do, about a session of which nobody here can tell whether it is alive."""
    what = f"{url} may be written by {row}: locks of that host are not seen here, so nobody writes beside it"
    return what, f"end it there; if that host or process is gone for good, remove {row.slot}/lock"


async def _writing(store: Store) -> DoctorFinding:
    """Do what a mount does before it begins to write, unless there is something to recover first."""
    if any(slot.state.has_journal() for slot in slots_of(store)):
        return DoctorFinding(
            "note", f"it was not tested whether {store.url} can be written, because there is a journal"
        )
    try:
        with hold(store) as state:
            await store.start_writing(state.root, state.key, single_writer=False)
    except ShardfsError as error:
        return failure(error)
    return DoctorFinding(
        "ok", f"{store.url} can be written" + (", by several hosts at a time" if store.root is None else "")
    )
