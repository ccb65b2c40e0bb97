"""A run of `pack` or `unpack`, which fills a destination: checks before it begins, its order, its report."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from shardfs.bulk.delivery import (
    Delivered,
    Item,
    Job,
    MadeOf,
    StoreTask,
    deliver,
    each_delivered,
    left_out,
    state_of,
)
from shardfs.bulk.engine import Context, Outcome, run_tasks
from shardfs.bulk.manifest import Manifest, open_manifest
from shardfs.dataset.slots import has_journal, hold
from shardfs.dataset.state import needed
from shardfs.dataset.wal.recovery import recover_command
from shardfs.errors import (
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    UsageError,
    counted,
)
from shardfs.stores.base import Kind, NewObject, Stat, Store, is_reserved
from shardfs.stores.url import StoreOptions, is_remote, open_store, url_of

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # the kernel's escapes for spaces and the like
_OURS: Final = "fuse.shardfs"


@dataclass
class Report:
    """The result of a run, and its progress while it lasts.

    *done* of about *total* objects are finished. *problems* list everything that is missing from the destination, or
    wrong in it, and why. *notes* list what else was left out because it belongs to no array.
    """

    done: int = 0
    total: int = 0
    stored: int = 0
    unchanged: int = 0
    removed: int = 0
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunOptions:
    """How a run treats the destination, and who does the work.

    *syncs*: what is there and unchanged stays; otherwise the destination must be empty. *compares*: with that, bytes
    are compared. *progress* is called with the report whenever something is done.
    """

    syncs: bool = False
    compares: bool = False
    executor: Executor | None = None
    jobs: int | None = None
    progress: Callable[[Report], None] = lambda report: None


@dataclass
class Plan(ABC):
    """What a destination is to contain: objects stored by tasks, and *documents* by key, parents first.

    *last* is the object to be stored when all others are. There are *nnodes* arrays and groups. *report* counts
    everything as if all arrays had all their chunks, and lists what is left out. As text, a plan is the command that
    makes it; a run that continues with another plan must have the same text.
    """

    report: Report = field(init=False, default_factory=Report)
    nnodes: int = field(init=False, default=0)
    documents: dict[str, bytes] = field(init=False, default_factory=dict)
    last: StoreTask | None = field(init=False, default=None)

    @abstractmethod
    def look(self, job: Job, context: Context) -> AsyncIterator[str]:
        """Look at all nodes before anything is written; yields lines about them.

        Raises the error that prevents reading the source, and `UsageError` for whatever prevents the whole run.
        """

    @abstractmethod
    def tasks(self, job: Job, context: Context, manifest: Manifest) -> AsyncIterator[StoreTask]:
        """Yield the tasks; the keys that they store are first recorded in *manifest*."""


async def fill(
    source: str,
    destination: str,
    plan: Plan,
    how: RunOptions,
    options: StoreOptions,
    announce: Callable[[str], None] = lambda line: None,
    *,
    is_dry: bool = False,
) -> Report:
    """Fill *destination* with what *plan* makes of *source*; nothing is written if it *is_dry*.

    *announce* is called, line by line, with what to know before anything is written. Raises `SourceError` and
    `UsageError` before that, and `NoSpaceError` if there is no room left.
    """
    context = Context()
    job = await _begin(source, destination, options, how, context)
    async for line in plan.look(job, context):
        announce(line)
    if not plan.nnodes and not plan.report.problems:  # perhaps a disk is not mounted: all of DEST would be removed
        raise SourceError(f"{source} has no Zarr arrays or groups; check that it is the right folder, and mounted")
    if not is_dry:
        return await _fill(job, context, plan, how)
    how.progress(plan.report)
    return plan.report


async def _fill(job: Job, context: Context, plan: Plan, how: RunOptions) -> Report:
    """Fill the destination of *job*.

    Documents come last, and that of the root at the very end, so that nobody takes the destination for complete before.
    """
    report, source = plan.report, job.reading(context)
    is_pending = has_journal(source.store)
    _open(job.destination, job.options, make=True)
    store = job.storing(context)
    with ExitStack() as held:
        if store.root is not None:
            held.enter_context(hold(store))
        manifest = held.enter_context(open_manifest(store.address))
        is_empty = await _is_empty(store)
        if not how.syncs:
            if not is_empty:  # another run has been here since the first check
                raise _not_empty(job)
            manifest.clear()
        manifest.require(f"{plan} {source.store.address}", is_empty=is_empty)
        await store.clear_unfinished(manifest.unfinished())
        how.progress(report)

        def take(delivered: Sequence[Delivered]) -> None:
            fatal = next((each.fatal for each in delivered if each.fatal is not None), None)
            manifest.done(each for each in delivered if not each.problems and each.fatal is None)
            if fatal is not None:
                raise type(fatal)(f"{fatal}; what is stored stays, and --sync goes on with it")
            for each in delivered:
                report.problems.extend(each.problems)
                report.done += 1
                report.stored += each.is_stored
                report.unchanged += each.is_unchanged and not each.problems
                report.nbytes += each.nbytes
            how.progress(report)

        def done(outcome: Outcome[Sequence[Delivered]]) -> None:
            if outcome.error is not None:
                items = cast(StoreTask, outcome.task).items
                report.problems += [left_out(item.key, outcome.error) for item in items]
                report.done += len(items)
            take(outcome.result or ())

        tasks = plan.tasks(job, context, manifest)
        await run_tasks(tasks, done, context=context, executor=how.executor, jobs=how.jobs)
        await source.store.check()  # if it is gone or replaced, nothing was found, and everything would be removed
        if plan.last is not None:
            take(await plan.last.run(context))
        for item in manifest.items(list(plan.documents)[::-1]):
            text = plan.documents[item.key]
            take(await each_delivered([item], partial(_store_text, job, store, text=text)))
        if is_pending or has_journal(source.store):
            report.problems.append(
                "SOURCE has a journal of chunks that may not be committed, which are not in DEST: unmount SOURCE, or "
                f"run `{recover_command(source.store.address, '--apply')}`, then go on with --sync"
            )
        if not report.problems:
            for key, state in manifest.left():
                if (problem := await _remove(store, key, state)) is not None:
                    report.problems.append(problem)
                    continue
                await _remove_emptied(store, key)
                manifest.forget(key)
                report.removed += 1
        elif nleft := sum(1 for _ in manifest.left()):
            left = f"{counted(nleft, 'object')} of DEST that SOURCE has no more"
            report.problems.append(f"nothing was removed: {left} stay until a run ends without problems")
        if report.stored or report.removed:
            await store.settle()
        await store.clear_unfinished(())
    how.progress(report)
    return report


async def _remove(store: Store, key: str, state: str | None) -> str | None:
    """Remove an object that was stored in this *state*, and is not in the source any more.

    Returns the error that prevents it. An object in another state is somebody else's. The *state* of what a killed run
    stored is unknown.
    """
    try:
        now = await store.stat(key)
        if now.kind is Kind.DIRECTORY and not store.rewrites:
            return None  # the file is gone, and there is a directory of its name
        if state is not None and state != state_of(now):
            return f"{key} is not in SOURCE any more, and was changed since it was stored: remove it, or move it away"
        await store.discard(key)
    except (NotFoundError, NotADirectoryHereError):
        return None
    except ShardfsError as error:
        return f"{key} is not in SOURCE any more, and cannot be removed: {error}"
    return None


async def _remove_emptied(store: Store, key: str) -> None:
    """Remove the directories above *key*, which was removed, as far as they are empty now, and can be removed."""
    while not store.rewrites and (key := key.rpartition("/")[0]):
        try:
            await store.rmdir(key)
        except NotFoundError:
            continue  # a run that was killed has removed it
        except ShardfsError:
            return


async def _store_text(job: Job, store: Store, item: Item, text: bytes) -> Delivered:
    async def produce(new: NewObject) -> Stat:
        await new.write([text])
        return await new.finish()

    return await deliver(job, store, item, MadeOf(text), len(text), produce)


async def _begin(source: str, destination: str, options: StoreOptions, how: RunOptions, context: Context) -> Job:
    """Return the job that reads SOURCE and stores in DEST, which is not created yet.

    Raises `SourceError` if the source cannot be read, and `UsageError` if DEST overlaps it, or is not empty and not to
    be synced.
    """
    job = Job(url_of(source), url_of(destination), options, how.compares)
    await job.reading(context).store.check()
    (old, _), (new, mounted) = _place(job.source), _place(job.destination)
    if mounted is not None:
        way_out = f"choose another directory, or unmount it, and let DEST be {mounted}"
        raise UsageError(f"DEST {job.destination} lies on a mount of shardfs: {way_out}")
    if _is_within(old, new) or _is_within(new, old):
        raise UsageError(f"DEST {job.destination} and SOURCE {job.source} overlap: one lies within the other")
    store = _open(job.destination, options)
    if store is not None and not how.syncs and not await _is_empty(store):
        raise _not_empty(job)
    return job


def _not_empty(job: Job) -> UsageError:
    way_out = "choose another DEST, or add --sync to go on with an earlier run"
    return UsageError(f"{job.destination} is not empty; {way_out}")


async def _is_empty(store: Store) -> bool:
    try:
        return all(is_reserved(entry.name) for entry in await store.list(""))
    except NotFoundError:
        return True


def _is_within(url: str, other: str) -> bool:
    """Whether *url* is *other*, or is within it."""
    return f"{url.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def _place(url: str) -> tuple[str, str | None]:
    """Return an identifier of a directory wherever it is mounted: its file system, and its path there.

    For a directory in a mount of shardfs, also its place in the source of that mount, else None.
    """
    if is_remote(url):
        return url, None
    device, top, point, kind, source = "", "/", "/", "", ""
    with suppress(OSError), open("/proc/self/mountinfo", newline="\n", errors="surrogateescape") as lines:
        for line in lines:
            parts = [_ESCAPED.sub(lambda code: chr(int(code[1], 8)), part) for part in line.split(" ")]
            if _is_within(url, parts[4]) and len(parts[4]) >= len(point):  # the last one hides the earlier ones
                device, top, point = parts[2:5]
                kind, source = parts[parts.index("-") + 1 :][:2]
    below = os.path.relpath(url, point)
    place = os.path.normpath(os.path.join(top, below))
    return (f"{device}:{place}" if device else url), (f"{source}/{below}".removesuffix("/.") if kind == _OURS else None)


def _open(url: str, options: StoreOptions, *, make: bool = False) -> Store | None:
    """Open DEST, creating a missing directory if it is to be created, else None.

    Raises `SourceError` if it cannot be created, or written.
    """
    if is_remote(url):
        return open_store(url, options)
    if not make and not os.path.lexists(url):
        return None
    with needed(url):
        os.makedirs(url, exist_ok=True)
    if not os.access(url, os.W_OK | os.X_OK):
        raise SourceError(f"{url} cannot be written: permission denied")
    return open_store(url)
