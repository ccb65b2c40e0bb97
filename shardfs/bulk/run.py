"""A run of bulk work that fills a destination: checked before it begins, gone on with, and told about."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from shardfs.bulk.delivery import Delivered, Item, Job, Mark, deliver, each_delivered, state_of
from shardfs.bulk.engine import Context, Outcome, Task, run_tasks
from shardfs.bulk.manifest import Manifest, open_manifest
from shardfs.dataset.maintenance.walk import prune
from shardfs.dataset.slots import has_journal, hold
from shardfs.dataset.source import Source
from shardfs.dataset.state import needed
from shardfs.dataset.wal.recovery import recover_command
from shardfs.errors import (
    NoSpaceError,
    NotADirectoryHereError,
    NotFoundError,
    ReadOnlyError,
    ShardfsError,
    SourceError,
    UsageError,
)
from shardfs.stores.base import Kind, NewObject, Stat, Store, is_reserved
from shardfs.stores.url import StoreOptions, is_remote, open_store, url_of


@dataclass
class Report:
    """The result of a run, and its progress while it lasts.

    *problems* name everything that is missing from the destination, or wrong in it, and why.
    """

    stored: int = 0
    unchanged: int = 0
    removed: int = 0
    nbytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Filling:
    """How a run goes about the destination, and who does the work.

    *syncs*: what is there and unchanged stays; else the destination has to be empty.  *compares*: bytes are compared,
    too.  *progress* is told of the report whenever something was done.
    """

    syncs: bool = False
    compares: bool = False
    executor: Executor | None = None
    jobs: int | None = None
    progress: Callable[[Report], None] = lambda report: None

    @property
    def goes_on(self) -> bool:
        """Whether the destination may have something in it."""
        return self.syncs or self.compares


class Contents(Protocol):
    """What a destination is to have: objects that tasks store, and *documents* by key, parents first."""

    @property
    def problems(self) -> Sequence[str]:
        """What is left out beforehand, and why."""

    @property
    def documents(self) -> Mapping[str, bytes]:
        """The documents."""

    def tasks(self, job: Job, source: Source, manifest: Manifest) -> AsyncIterator[Task[Sequence[Delivered]]]:
        """Yield the tasks; the keys of what they store are noted in *manifest* before."""


async def fill(job: Job, context: Context, contents: Contents, made_by: str, filling: Filling) -> Report:
    """Have the destination of *job* filled with *contents*.

    *made_by* says by what; a run that goes on with another has to say the same.
    Documents come last, and that of the root at the very end: before, nobody takes the destination for complete.
    Raises `SourceError` and `UsageError` before anything is written, and `NoSpaceError` if there is no room left.
    """
    report, source = Report(), job.reading(context)
    is_pending = has_journal(source.store)
    _open(job.destination, job.options, make=True)
    store = job.storing(context)
    with ExitStack() as held:
        if store.root is not None:
            held.enter_context(hold(store))
        manifest = held.enter_context(open_manifest(store.address, anew=not filling.goes_on))
        manifest.require(f"{made_by} {source.store.address}")
        await store.clear_unfinished(manifest.unfinished())

        def take(delivered: Sequence[Delivered]) -> None:
            for each in delivered:
                if each.problems:
                    report.problems.extend(each.problems)
                else:
                    manifest.done(each.key, each.made_of, each.state)
                report.stored += bool(each.nbytes)
                report.unchanged += each.nbytes is None and not each.problems
                report.nbytes += each.nbytes or 0
            filling.progress(report)

        def done(outcome: Outcome[Sequence[Delivered]]) -> None:
            if isinstance(outcome.error, NoSpaceError | ReadOnlyError):
                raise type(outcome.error)(f"{outcome.error}; what is stored stays, and --sync goes on with it")
            if outcome.error is not None:
                report.problems.append(f"{outcome.task.name}: {outcome.error}")
            take(outcome.result or ())

        tasks = contents.tasks(job, source, manifest)
        await run_tasks(tasks, done, context=context, executor=filling.executor, jobs=filling.jobs)
        for item in manifest.items(list(contents.documents)[::-1]):
            text = contents.documents[item.key]
            take(await each_delivered([item], partial(_store_text, job, store, text=text)))
        report.problems.extend(contents.problems)
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
                manifest.forget(key)
                report.removed += 1
            if report.removed and not store.rewrites:
                for entry in await store.list(""):
                    if entry.kind is Kind.DIRECTORY and not is_reserved(entry.name):
                        await prune(store, entry.name)
        if report.stored or report.removed:
            await store.settle()
        await store.clear_unfinished(())
    return report


async def _remove(store: Store, key: str, state: str | None) -> str | None:
    """Remove an object that the source has no more, and that was stored in this *state*; returns what keeps it there.

    What is in another state now is somebody else's.  No *state* is known of what a killed run has stored.
    """
    try:
        now = await store.stat(key)
        if state is not None and state != state_of(now):
            return f"{key} is not in SOURCE any more, and was changed since it was stored: remove it, or move it away"
        await store.discard(key)
    except (NotFoundError, NotADirectoryHereError):
        return None
    except ShardfsError as error:
        return f"{key} is not in SOURCE any more, and cannot be removed: {error}"
    return None


async def _store_text(job: Job, store: Store, item: Item, text: bytes) -> Delivered:
    async def produce(new: NewObject) -> Stat:
        await new.write([text])
        return await new.finish()

    return await deliver(job, store, item, Mark(text), len(text), produce)


async def begin(source: str, destination: str, options: StoreOptions, filling: Filling, context: Context) -> Job:
    """Return the job that reads SOURCE and stores in DEST, which is not made yet.

    Raises `SourceError` if the source cannot be read, and `UsageError` if DEST overlaps it, or is not empty and not to
    be filled up.
    """
    job = Job(url_of(source), url_of(destination), options, filling.compares)
    await job.reading(context).store.check()
    if _is_within(job.source, job.destination) or _is_within(job.destination, job.source):
        raise UsageError(f"DEST {job.destination} and SOURCE {job.source} overlap: one lies within the other")
    store = _open(job.destination, options)
    if store is not None and not filling.goes_on:
        with suppress(NotFoundError):
            if not all(is_reserved(entry.name) for entry in await store.list("")):
                way_out = "choose another DEST, or add --sync to go on with an earlier run"
                raise UsageError(f"{job.destination} is not empty; {way_out}")
    return job


def _is_within(url: str, other: str) -> bool:
    """Whether *url* is the same as *other*, or lies in it; a directory also where it is mounted a second time."""
    if f"{url.rstrip('/')}/".startswith(f"{other.rstrip('/')}/"):
        return True
    if is_remote(url) or is_remote(other) or not os.path.exists(other):
        return False
    path = Path(url)
    return any(above.exists() and above.samefile(other) for above in (path, *path.parents))


def _open(url: str, options: StoreOptions, *, make: bool = False) -> Store | None:
    """Open DEST; a directory that is not there is made, if it is to be, else None.

    Raises `SourceError` if it cannot be made, or written.
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
