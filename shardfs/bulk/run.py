"""A run of `pack` or `unpack`, which fills a destination: checks before it begins, its order, its report."""

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from shardfs.bulk.delivery import Delivered, Item, Job, StoreTask, skipped, state_of
from shardfs.bulk.engine import WorkerContext, in_batches, open_context, run_tasks
from shardfs.bulk.manifest import Manifest, open_manifest
from shardfs.dataset.journal.recovery import find_unstored
from shardfs.dataset.maintenance.walk import EMPTY, NO_ZARR, what_else
from shardfs.dataset.source import is_remote, url_of
from shardfs.dataset.state.directory import needed
from shardfs.dataset.state.holding import hold_alone
from shardfs.errors import (
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ShardfsError,
    SourceError,
    StaleError,
    UsageError,
    counted,
)
from shardfs.formats import VirtualStore
from shardfs.stores.base import Reader, Store, is_reserved
from shardfs.stores.parallel import for_each
from shardfs.stores.url import StoreOptions

_NOT_LISTED: Final = (
    "SOURCE is on a web server, which lists nothing: only nodes that documents name are copied, and no other files"
)
_DOCUMENTS: Final = 64  # stored at a time
_LOOKS_AT_ONCE: Final = 64  # requests for documents of SOURCE


@dataclass
class RunReport:
    """The result of a run, and its progress while it lasts.

    *done* of about *total* objects are finished. *problems* list everything that is missing from the destination, or
    wrong in it, and why. *notes* list what else was skipped because it belongs to no array.
    """

    done: int = 0
    total: int = 0
    stored: int = 0
    unchanged: int = 0
    removed: int = 0
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, nobjects: int) -> None:
        """Note that so many more objects are to be finished, as far as is known."""
        self.total += nobjects


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
    progress: Callable[[RunReport], None] = lambda report: None


@dataclass
class Plan(ABC):
    """What a destination is to contain.

    *sources* are the keys of the documents of all arrays and groups of the source, with their states when they were
    read; *documents* are those of the destination, parents first. *report* counts everything as if all arrays had all
    their chunks, and lists what is skipped. As text, a plan is the command that makes it; a run that continues with
    another plan must have the same text.
    """

    report: RunReport = field(init=False, default_factory=RunReport)
    sources: dict[str, str] = field(init=False, default_factory=dict)
    documents: list[str] = field(init=False, default_factory=list)

    @abstractmethod
    def look(self, job: Job, context: WorkerContext) -> AsyncIterator[str]:
        """Look at all nodes before anything is written; yields lines about them.

        Raises the error that prevents reading the source, and `UsageError` for whatever prevents the whole run.
        """

    @abstractmethod
    def tasks(self, job: Job, context: WorkerContext, manifest: Manifest) -> AsyncIterator[StoreTask]:
        """Yield the tasks that store everything but documents; the keys are first recorded in *manifest*."""

    @abstractmethod
    def store_documents(self, job: Job, items: tuple[Item, ...]) -> StoreTask:
        """Return the task that stores these documents."""


async def fill(
    source: str,
    destination: str,
    plan: Plan,
    how: RunOptions,
    options: StoreOptions,
    announce: Callable[[str], None] = lambda line: None,
    *,
    is_dry: bool = False,
) -> RunReport:
    """Fill *destination* with what *plan* makes of *source*; nothing is written if it *is_dry*.

    *announce* is called, line by line, with what to know before anything is written. Raises `SourceError` and
    `UsageError` before that, and `NoSpaceError` if there is no space left.
    """
    async with open_context() as context:
        options = await context.checked(url_of(source), options)
        job = Job(url_of(source), url_of(destination), options, how.compares)
        if _is_within(job.source, job.destination) or _is_within(job.destination, job.source):
            what = f"DEST {job.destination} and SOURCE {job.source} overlap: one lies within the other"
            raise UsageError(f"{what}; choose a DEST that is neither in SOURCE nor around it")
        if _is_there(job.destination) and not how.syncs and not await _is_empty(job.made(context).writable):
            raise _not_empty(job)
        if not job.reading(context).store.lists:
            announce(_NOT_LISTED)
        async for line in plan.look(job, context):
            announce(line)
        is_there = plan.sources or plan.report.problems or isinstance(job.reading(context).store, VirtualStore)
        if not is_there:  # perhaps a disk is not mounted: all of DEST would be removed
            read = job.reading(context)
            what = await what_else(read) if read.store.lists else NO_ZARR
            is_known = what not in (EMPTY, NO_ZARR)
            way_out = f": {what}" if is_known else "; check that it is the right folder, and mounted"
            raise SourceError(f"{source} has no Zarr arrays or groups{' of v3' if is_known else ''}{way_out}")
        if not is_dry:
            await _fill(job, context, plan, how)
        how.progress(plan.report)
        return plan.report


async def _fill(job: Job, context: WorkerContext, plan: Plan, how: RunOptions) -> None:
    """Fill the destination of *job*.

    Documents come last, and those of the root at the very end, so that nobody takes the destination for complete
    before.
    """
    report, source = plan.report, job.reading(context).store
    unstored = find_unstored(source)
    if not is_remote(job.destination):
        with needed(job.destination):
            os.makedirs(job.destination, exist_ok=True)
    store = job.made(context).writable
    with ExitStack() as held:
        if store.root is not None:
            held.enter_context(hold_alone(store))
        manifest = held.enter_context(open_manifest(store.address))
        is_empty, unfinished = await _is_empty(store), manifest.unfinished()
        if not how.syncs:
            if not is_empty:  # another run has been here since the first check
                raise _not_empty(job)
            manifest.clear()
        manifest.require(f"{plan} {source.address}", is_empty=is_empty)
        await store.clear_unfinished(unfinished)
        how.progress(report)

        def take(delivered: Sequence[Delivered]) -> None:
            manifest.done(item for item in delivered if item.state)
            lost: dict[str, list[str]] = {}
            for item in delivered:
                if item.fatal is not None:
                    raise type(item.fatal)(f"{item.fatal}; what is stored stays, and --sync goes on with it")
                report.problems.extend(item.problems)
                if item.lost:
                    lost.setdefault(item.lost, []).append(item.key)
                report.done += 1
                report.stored += item.is_stored
                report.unchanged += item.is_unchanged and not item.problems
                report.nbytes += item.nbytes
            for error, keys in lost.items():  # one damaged shard has many chunks
                more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
                report.problems.append(f"skipped: {keys[0]}{more}: {error}" if more else skipped(keys[0], error))
            how.progress(report)

        tasks = plan.tasks(job, context, manifest)
        await run_tasks(tasks, take, context=context, executor=how.executor, jobs=how.jobs)
        await source.check()  # if it is gone or replaced, nothing was found, and everything would be removed
        report.problems += await _changed(source, plan.sources)
        if report.stored:  # a power cut leaves no documents without what they describe
            await store.sync_new_objects()
        for keys in _bottom_up(plan.documents):
            take(await plan.store_documents(job, manifest.items(keys)).run(context))
        if (unstored := unstored or find_unstored(source)) is not None:
            report.problems.append(
                f"SOURCE has {unstored.what}, which are not in DEST: {unstored.way_out}, then go on with --sync"
            )
        await _remove_stale(store, manifest, report, is_known=source.lists)
        if report.stored or report.removed:
            await store.sync_new_objects()
        await store.clear_unfinished(())


async def _changed(source: Reader, documents: Mapping[str, str]) -> list[str]:
    """Return a line for each of the *documents* that is not stored any more in the state in which it was read."""
    problems: dict[str, str] = {}

    async def look(key: str) -> None:
        try:
            if state_of(await source.fresh(key)) == documents[key]:
                return
            problems[key] = f"{key} of SOURCE was changed or removed meanwhile; go on with --sync"
        except (NotFoundError, NotADirectoryHereError, IsADirectoryHereError):
            problems[key] = f"{key} of SOURCE was changed or removed meanwhile; go on with --sync"
        except ShardfsError as error:
            problems[key] = f"{key} of SOURCE cannot be read any more: {error}"

    await for_each(documents, look, _LOOKS_AT_ONCE if source.rewrites else 1)
    return [problems[key] for key in documents if key in problems]


def _bottom_up(documents: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the keys of documents in batches, parents after all that is below them; those of the root at the end."""
    yield from in_batches([key for key in reversed(documents) if "/" in key], _DOCUMENTS)
    yield [key for key in documents if "/" not in key]


async def _remove_stale(store: Store, manifest: Manifest, report: RunReport, *, is_known: bool) -> None:
    """Remove what earlier runs stored and this one did not, if there was no problem.

    Unless it *is_known* all that the source has, that may only not be named any more, and stays.
    """
    if report.problems or not is_known:
        if nleft := sum(1 for _ in manifest.stale()):
            left = f"{counted(nleft, 'object')} of DEST that SOURCE has no more"
            until = "until a run ends without problems" if is_known else "because SOURCE does not list what it has"
            report.problems.append(f"nothing was removed: {left} stay {until}")
        return
    for key, state in manifest.stale():
        try:
            await _remove(store, key, state)
        except ShardfsError as error:
            report.problems.append(f"{key} is not in SOURCE any more, and cannot be removed: {error}")
            continue
        manifest.forget(key)
        report.removed += 1


async def _remove(store: Store, key: str, state: str | None) -> None:
    """Remove an object that was stored in this *state*, and the directories above it that are empty then.

    An object in another state is somebody else's; the *state* of what a killed run stored is unknown. Raises the error
    that prevents removing the object.
    """
    with suppress(NotFoundError, NotADirectoryHereError, IsADirectoryHereError):  # else it is gone
        if state is not None and state != state_of(await store.fresh(key)):
            raise StaleError("it was changed since it was stored; remove it, or move it away")
        await store.discard(key)
    while not store.rewrites and (key := key.rpartition("/")[0]):
        try:
            await store.rmdir(key)
        except NotFoundError:
            continue  # a run that was killed has removed it
        except ShardfsError:
            return


def _not_empty(job: Job) -> UsageError:
    way_out = "choose another DEST, or add --sync to go on with an earlier run"
    return UsageError(f"{job.destination} is not empty; {way_out}")


async def _is_empty(store: Reader) -> bool:
    """Whether nothing is stored there now."""
    store.forget("")
    try:
        return all(is_reserved(entry.name) for entry in await store.list(""))
    except NotFoundError:
        return True


def _is_there(url: str) -> bool:
    """Whether a directory may exist; one that may not be looked at is met when it is opened."""
    return is_remote(url) or os.path.exists(url)


def _is_within(url: str, other: str) -> bool:
    """Whether *url*, which need not exist, is *other* or is within it, by whatever path."""
    if is_remote(url) or is_remote(other):
        return _is_below(url, other)
    with suppress(OSError):  # what may not be looked at is met when it is opened
        around = os.stat(other)
        for directory in (url, *map(str, PurePath(url).parents)):
            with suppress(OSError):
                if os.path.samestat(os.stat(directory), around):
                    return True
    return False


def _is_below(path: str, other: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")
