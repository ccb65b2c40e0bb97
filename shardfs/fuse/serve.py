"""A mount inside its daemon: the event loop, signals, and the end."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Sequence
from typing import Final

import pyfuse3
import trio

from shardfs.dataset.hierarchy import Source, open_source
from shardfs.dataset.maintenance.walk import unsharded
from shardfs.errors import FuseUnavailableError, ShardfsError
from shardfs.fuse.metrics import MountMetrics
from shardfs.fuse.mountpoint import open_mount_point
from shardfs.fuse.operations import Operations, WritingOperations
from shardfs.fuse.options import MountOptions
from shardfs.fuse.waiting import look_before_sleeping
from shardfs.service.log import is_on_a_terminal
from shardfs.service.process import raise_file_limit
from shardfs.stores.local.syscalls import keep_freed_memory
from shardfs.stores.parallel import open_nursery
from shardfs.stores.url import StoreOptions
from shardfs.vfs.session import Session, notes_on, open_tree

log = logging.getLogger(__name__)

_MAX_REQUESTS: Final = 512
"""How many requests are worked on at once.

These are more than stores answer at once, so that those waiting for a slow store leave room for others. Each has a
buffer of 1 MiB, of which it touches only what it receives.
"""
_GRACE_SECONDS: Final = 5.0
"""Seconds that a mount ended by a signal waits for answers, if nothing more can be committed."""
_WAY_OUT: Final = "SIGKILL ends it now, and leaves that in the journal"
_LOGGED: Final = ("version", "source", "mountpoint", "access", "view", "pid")
"""The metrics with which the log begins."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(
    url: str,
    store_options: StoreOptions,
    path: str,
    options: MountOptions,
    ready: Callable[[str | None], None],
    *,
    name: str,
    how: Sequence[str],
) -> bool:
    """Mount the source at *url* at *path*; answer requests until it is unmounted or gets a signal.

    *name* is the source in the table of mounts, as it is in fstab, where it must be found; *how* are all options, for
    the log. *ready* is called when the mount answers, with a note if the source may not be what the user thinks.

    Returns whether everything that was written is in the shards. Raises `SourceError` if the source cannot be read, or
    is to be written to and another mount does so, and the error that prevents replaying a journal.
    """

    async def run() -> bool:
        max_open = raise_file_limit() // 4
        async with open_source(url, store_options, ttl=options.metadata_ttl, max_open=max_open) as source:
            return await _serve(source, path, options, ready, name, how)

    return trio.run(run)


async def _serve(
    source: Source,
    path: str,
    options: MountOptions,
    ready: Callable[[str | None], None],
    name: str,
    how: Sequence[str],
) -> bool:
    url, notes = source.store.url, await notes_on(source, options)
    async with open_tree(source, options, door="mount", mountpoint=path) as session:
        metrics = MountMetrics(session, path, options)
        operations = Operations(session.fs, source.statistics, metrics.publish, options)
        if session.writing is not None:
            operations = WritingOperations(session.writing.fs, source.statistics, metrics.publish, options)
        begun = metrics.latest
        log.info(
            "shardfs %s mounts %s at %s, %s, view %s, process %d, with %s",
            *(begun.version, begun.source, path, begun.access, begun.view, begun.pid, " ".join(how) or "no options"),
            extra={key: getattr(begun, key) for key in _LOGGED} | {"options": list(how)},
        )
        directory = open_mount_point(path)
        # Root mounts by the descriptor, since others may rename what is in the path; fusermount3 looks by itself.
        is_direct = os.geteuid() == 0 and "auto_unmount" not in options.fuse_options
        _mount(operations, directory.path if is_direct else path, options, name)
        clean = False
        try:
            is_committed = await _Daemon(session, metrics).run(ready, notes)
            clean = True
        except ShardfsError:
            clean = True  # it could not start, and nobody has seen it
            raise
        finally:
            # The mount of a failed daemon is left to answer ENOTCONN: an empty directory would look like deleted data.
            pyfuse3.close(unmount=clean)
        log.info("%s is no longer mounted at %s", url, path)
        return is_committed


class _Bytes(str):
    """An option of libfuse that contains a file name; pyfuse3 takes options for ASCII."""

    def encode(self, *_: str) -> bytes:
        """Return the bytes of the name."""
        return super().encode("utf-8", "surrogateescape")


def _mount(operations: Operations, path: str, options: MountOptions, name: str) -> None:
    fuse_options = {
        "default_permissions",
        "rw" if options.write else "ro",
        _Bytes("fsname=" + name.replace("\\", "\\\\").replace(",", "\\,")),  # escaped for libfuse
        "subtype=shardfs",
        *options.fuse_options,
    }
    if options.allow_other:
        fuse_options.add("allow_other")
    look_before_sleeping(lambda: operations.pending == 0)
    keep_freed_memory()
    gc.freeze()  # imported objects stay: scanning all of them takes a tenth of a second each time
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until there is something to unmount
    try:
        pyfuse3.init(operations, path, fuse_options)
    except RuntimeError as error:
        raise FuseUnavailableError(f"{path} could not be mounted: {error}") from None


async def answer_requests() -> None:
    """Answer requests until the mount ends."""
    try:
        await pyfuse3.main(max_tasks=_MAX_REQUESTS)
    except* ConnectionAbortedError:
        pass  # so the kernel says that the mount has ended if it was just handing over a request, else by ENODEV


class _Daemon:
    """A mount from its first request to its end."""

    def __init__(self, session: Session, metrics: MountMetrics) -> None:
        self._session = session
        self._metrics = metrics
        self._url = session.source.store.url
        self._is_given_up = False  # it was asked to end, and what is pending could not be committed
        self._has_conflicts = False  # it was asked to end, and something no longer fitted the source, at least

    async def run(self, ready: Callable[[str | None], None], notes: Sequence[str]) -> bool:
        """Answer requests until the mount ends; return whether everything that was written is in the shards.

        *ready* is called when the mount answers, with what the user should know: *notes*, and what is found on the way.
        """
        async with open_nursery() as nursery:
            nursery.start_soon(self._metrics.run)
            is_committed = await self._serve(ready, notes)
            self._metrics.ended(is_committed)
            nursery.cancel_scope.cancel()
        return is_committed

    async def _serve(self, ready: Callable[[str | None], None], notes: Sequence[str]) -> bool:
        session = self._session
        problems = await session.start()
        fs = session.fs
        if not notes and fs.store.root is not None and not fs.view.translates:  # a remote source would need a request
            is_unsharded = unsharded(await fs.hierarchy.node(""))
            notes = [is_unsharded] if is_unsharded is not None else []
        note = "; ".join(part for part in (problems, await self._metrics.serve(), *notes) if part) or None
        async with trio.open_nursery() as watching:  # until everything is done: a signal would end it half-way
            async with trio.open_nursery() as nursery:
                await watching.start(self._end_on_signal, nursery)
                nursery.start_soon(session.run)
                nursery.start_soon(self._announce, ready, note)
                await answer_requests()
                self._metrics.end()
                nursery.cancel_scope.cancel()
            is_committed = await session.finish(commit=not self._is_given_up)
            is_committed = is_committed and not self._has_conflicts
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # all that is left is to unmount and to release the lock
            watching.cancel_scope.cancel()
        return is_committed

    async def _announce(self, ready: Callable[[str | None], None], note: str | None) -> None:
        self._metrics.ready()
        try:
            ready(note)
        except OSError:
            log.warning("nobody waits for the mount of %s; unmounting", self._url)
            pyfuse3.terminate()

    async def _end_on_signal(self, requests: trio.Nursery, task_status: "trio.TaskStatus[None]") -> None:
        # If the log goes to a terminal, that was closed, which ends the mount; otherwise the log file was renamed.
        ends_on_hangup = is_on_a_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if number == signal.SIGHUP and not ends_on_hangup:
                    log.info("SIGHUP: the log goes on in the file that has its name now")
                elif self._metrics.ending.is_set():
                    log.info(
                        "the mount ends when what was written is in the shards: %s changes nothing, %s", name, _WAY_OUT
                    )
                else:
                    self._metrics.end()
                    log.info("unmounting on %s", name)
                    requests.start_soon(self._end_requests, requests.cancel_scope)

    async def _end_requests(self, requests: trio.CancelScope) -> None:
        self._has_conflicts = not await self._session.commit()
        self._is_given_up = self._session.is_stuck
        pyfuse3.terminate()
        if self._session.writing is None or self._is_given_up:
            await trio.sleep(_GRACE_SECONDS)
            log.warning("requests that wait for %s are given up", self._url)
            requests.cancel()
