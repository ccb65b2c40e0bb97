"""Unmounting: waiting until the daemon has ended, and learning from its last metrics whether everything is stored."""

import errno
import os
import select
import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.errors import BusyError, MountPointError, StoreError, UnfinishedError, counted
from shardfs.fuse import control
from shardfs.fuse.control import Daemon, find_daemon, find_mount
from shardfs.fuse.mountpoint import count_mounts, mounted_path, run_fusermount
from shardfs.fuse.progress import CommitProgress, pending, stored_nbytes
from shardfs.stores.base import Descriptor

_PASSING_SECONDS, _PAUSE_SECONDS = 1.0, 0.05
"""How long a mount that is in use is tried, and how often: who looks at all mounts, as df does, has it for a moment."""

_REST: Final = "stays in the journal, for the next mount with --write or `shardfs recover`"


def unmount(
    mountpoint: str,
    timeout: float = control.TIMEOUT,
    report: Callable[[str], None] = lambda _: None,
    *,
    force: bool = False,
) -> Sequence[str]:
    """Unmount, and return when everything is in the shards and the daemon is gone; with *force*, also if it is in use.

    *report* is called every second with the progress: how much is pending, and how fast it is committed. If mounts are
    on top of each other, all of them are unmounted. Returns what to know of what was written.

    Raises `MountPointError` if that is impossible, and nothing was changed; `StoreError` if it is unmounted, but not
    everything could be committed; `UnfinishedError` if the daemon does not answer, makes no progress for *timeout*
    seconds, or cannot be seen by this process.
    """
    path = mounted_path(mountpoint)
    return [
        note
        for _ in range(count_mounts(path))
        if (note := _unmount_upper(path, timeout, report, force=force)) is not None
    ]


def _unmount_upper(path: str, timeout: float, report: Callable[[str], None], *, force: bool) -> str | None:
    """Unmount the topmost mount at *path*; returns what to know of what was written."""
    mount = find_mount(path)
    if mount is not None and os.geteuid() not in (0, mount.uid):
        raise MountPointError(f"{path} cannot be unmounted: {mount.privacy}")
    metrics = None
    try:
        metrics = control.ask(path, timeout)
    except OSError as error:
        # It may have died, or be just ending, or somebody cut the connection and it still commits.
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            why = control.explain(path, error)
            if error.errno == errno.EIO:  # for example, if its source is in a mount that died
                why += f"; unmount it with: fusermount3 -u {shlex.quote(path)}"
            raise MountPointError(f"{path} cannot be unmounted: {why}") from None
    daemon = find_daemon(path, metrics)
    if metrics is not None:
        try:
            _unmount_unused(path)
        except BusyError:
            if daemon is None or not force:
                raise
            os.kill(daemon.pid, signal.SIGTERM)  # with which it commits, and unmounts what is in use
    elif count_mounts(path):
        run_fusermount("-u", "-z", path)
    if daemon is not None:
        return _wait(path, daemon, timeout, report)
    elif metrics is not None and metrics.access != "read-only":
        raise UnfinishedError(
            f"{path} is unmounted, but its daemon cannot be seen from here, as in another container: it may go on, and "
            f"what it cannot finish {_REST}"
        )
    return None


def _unmount_unused(path: str) -> None:
    """Unmount what no program uses; raises `BusyError` if one does, and goes on to."""
    until = time.monotonic() + _PASSING_SECONDS
    while True:
        try:
            run_fusermount("-u", path)
        except BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _wait(path: str, daemon: Daemon, timeout: float, report: Callable[[str], None]) -> str | None:
    """Return when a daemon has ended, and everything that was written is stored: what to know of that."""
    who = f"its daemon, process {daemon.pid},"
    progress, poll = CommitProgress(), select.poll()
    latest, seen, moved = daemon.latest(), None, time.monotonic()
    with suppress(ProcessLookupError):
        process = Descriptor(os.pidfd_open(daemon.pid))
        poll.register(process.fd, select.POLLIN)
        while not poll.poll(1000 * min(1.0, timeout / 2)):
            latest = daemon.latest() or latest
            what = "nothing is known of its progress" if latest is None else progress.describe(latest)
            if latest is not None and not latest.pending_chunks and not latest.other_sessions:
                what += ", so a bind mount, a container or a mount namespace may have the mount still"
            done = None if latest is None else (latest.pending_chunks, stored_nbytes(latest))
            if done != seen:
                seen, moved = done, time.monotonic()
            if time.monotonic() >= moved + timeout:
                raise UnfinishedError(
                    f"{path} is unmounted, but {who} made no progress for {timeout:g} s; {what}; it goes on, and what "
                    f"it cannot finish {_REST}; {_log(latest)} says why"
                )
            report(f"{what}; waiting for {who} to end")
    latest = daemon.latest() or latest
    if latest is None or (latest.access != "read-only" and not latest.is_committed):
        raise StoreError(f"{path} is unmounted, but not everything is stored{what_stays(latest)}")
    nunsharded = latest.counts.get("unsharded_arrays")
    if not isinstance(nunsharded, int) or not nunsharded:
        return None
    return (
        f"{counted(nunsharded, 'new array')} could not be sharded as --shards says, and stored as files of chunks: "
        f"{_log(latest)} says why"
    )


def what_stays(latest: StatisticsSnapshot | None) -> str:
    """Return what is not stored, and where it is, by the last metrics of a daemon."""
    if latest is not None and latest.is_journal_gone:
        rest = "the rest is lost: somebody removed the journal, or the source with it"
    elif latest is not None and not latest.pending_chunks and isinstance(error := latest.counts.get("last_error"), str):
        rest = f"{error}; what is in a journal stays there"  # it is what another session published
    else:
        rest = f"the rest {_REST}"
    what = f" ({pending(latest)})" if latest is not None and latest.pending_chunks else ""
    return f"{what}: {rest}; {_log(latest)} says why"


def _log(metrics: StatisticsSnapshot | None) -> str:
    return "its log" if metrics is None or metrics.log is None else metrics.log
