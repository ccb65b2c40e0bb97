"""Unmounting: waiting until the daemon is gone, and finding out from the disk whether everything is stored."""

import errno
import os
import select
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Final

from shardfs.dataset.slots import kept_files
from shardfs.dataset.state import StateDirectory, find_holder
from shardfs.dataset.statistics import Snapshot
from shardfs.dataset.wal.records import Erase, Put
from shardfs.dataset.wal.recovery import read_left
from shardfs.errors import MountPointError, ShardfsError, StoreError, UnfinishedError
from shardfs.fuse import control
from shardfs.fuse.control import find_daemon, find_mount, open_figures, pid_of, read_figures
from shardfs.fuse.mountpoint import count_mounts, mounted_path, run_fusermount
from shardfs.fuse.progress import Progress
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import open_directory

_STEP_SECONDS: Final = 0.1
_WORD_SECONDS: Final = 1.0


def unmount(mountpoint: str, timeout: float = control.TIMEOUT, say: Callable[[str], None] = lambda _: None) -> None:
    """Unmount, and return when everything is in the shards and the daemon is gone.

    *say* is called every second with the progress: how much is pending, and how fast it is committed. Where mounts are
    on top of each other, all of them are unmounted. Raises `MountPointError` if that is impossible, and nothing was
    changed; `StoreError` if it is unmounted, but not everything could be committed; `UnfinishedError` if the daemon
    does not answer, makes no progress for *timeout* seconds, or writes where this process cannot see it.
    """
    path = mounted_path(mountpoint)
    for _ in range(count_mounts(path)):
        _unmount_upper(path, timeout, say)


def _unmount_upper(path: str, timeout: float, say: Callable[[str], None]) -> None:
    """Unmount the topmost mount at *path*."""
    mount = find_mount(path)
    if mount is not None and os.geteuid() not in (0, mount.uid):
        raise MountPointError(f"{path} cannot be unmounted: {mount.privacy}")
    try:
        figures = control.ask(path, timeout)
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            why = control.explain(path, error)
            if error.errno == errno.EIO:  # for example, if its source is in a mount that died
                why += f"; unmount it with: fusermount3 -u {shlex.quote(path)}"
            raise MountPointError(f"{path} cannot be unmounted: {why}") from None
        # It died, or is just ending, or somebody cut the connection and it still commits.
        ending = _Ending(path, None, find_daemon(path))
        with suppress(MountPointError) if count_mounts(path) == 0 else nullcontext():
            run_fusermount("-u", "-z", path)
        ending.wait(timeout, say)
    else:
        ending = _Ending(path, figures, pid_of(figures))
        run_fusermount("-u", path)
        ending.wait(timeout, say)
        ending.check()


_KEPT: Final = "nothing is pending, so a bind mount, a container or a mount namespace may have the mount still"


class _Ending:
    """The end of the daemon of a mount, created before it is unmounted.

    *figures* are its answer, None if it did not answer; *pid* is its process, None if it cannot be seen from here.
    """

    def __init__(self, path: str, figures: Snapshot | None, pid: int | None) -> None:
        self._path = path
        self._pid = pid
        self._poll = select.poll()
        self._process: Descriptor | None = None
        self._progress = Progress()
        self._figures = None if pid is None else open_figures(pid)
        with suppress(ProcessLookupError):
            if pid is not None:
                self._process = Descriptor(os.pidfd_open(pid))
                self._poll.register(self._process.fd, select.POLLIN)
        log = None if figures is None else figures.log
        self._why = f"; {log} says why" if log is not None else "; its log says why"
        self._source = None if figures is None else figures.written
        self._state = None if figures is None else _state_of(figures)
        if self._state is not None:
            self._conflicts = sum(_sizes(self._state.conflicts).values())
            self._kept = len(kept_files(self._state, in_use=True))

    def wait(self, timeout: float, say: Callable[[str], None]) -> None:
        """Return when the daemon is gone; raises `UnfinishedError` if it makes no progress for *timeout* seconds."""
        who = f", process {self._pid}," if self._process is not None else ""
        moved = time.monotonic()
        next_word = moved + min(_WORD_SECONDS, timeout / 2)
        seen = self._done()
        while not self._has_ended():
            now = time.monotonic()
            if (done := self._done()) != seen:
                seen, moved = done, now
            if now >= moved + timeout:
                raise UnfinishedError(
                    f"{self._path} is unmounted, but its daemon{who} is not done, and made no progress for "
                    f"{timeout:g} s; {self._left() or _KEPT}; it goes on, and what it cannot finish stays in the "
                    f"journal, for the next mount with --write or `shardfs recover`{self._why}"
                )
            if now >= next_word:
                latest = self._latest()
                what = self._progress.tell(latest) if latest is not None and latest.pending_chunks else self._left()
                say(f"{what or _KEPT}; waiting for the daemon{who} to end")
                next_word = now + _WORD_SECONDS

    def check(self) -> None:
        """Raise `StoreError` if not everything that was written is in the shards, `UnfinishedError` if that is unknown.

        It is unknown if the daemon writes where this process cannot see it, as in another container.
        """
        if self._source is None:
            return
        if self._state is None:
            raise UnfinishedError(
                f"{self._path} is unmounted, but {self._source}, which its daemon writes, cannot be seen from here: it "
                "may go on, and what it cannot finish stays in the journal there, for the next mount with --write "
                f"or `shardfs recover`{self._why}"
            )
        if left := self._left():
            raise StoreError(
                f"{self._path} is unmounted, but not everything is in the shards ({left}): the rest stays in the "
                f"journal, for the next mount with --write or `shardfs recover`{self._why}"
            )
        if sum(_sizes(self._state.conflicts).values()) > self._conflicts:
            raise StoreError(
                f"{self._path} is unmounted, but not everything is in the shards: another program changed arrays, and "
                "chunks that no longer fit them were put aside; `shardfs recover` shows them"
                f"{self._why}"
            )
        if len(kept_files(self._state)) > self._kept:
            raise StoreError(
                f"{self._path} is unmounted, but not every file could be stored; `shardfs recover` shows those that "
                f"are kept on this machine{self._why}"
            )

    def _has_ended(self) -> bool:
        """Whether the daemon is gone, within a moment."""
        if self._process is not None:
            return bool(self._poll.poll(1000 * _STEP_SECONDS))
        if self._state is None or find_holder(self._state) is None:
            return True
        time.sleep(_STEP_SECONDS)
        return False

    def _latest(self) -> Snapshot | None:
        """Return the latest figures of the daemon, if they can be seen from here."""
        with suppress(OSError, ValueError):
            return None if self._figures is None else read_figures(self._figures)
        return None

    def _done(self) -> object:
        """Return what changes when the daemon makes progress."""
        latest = self._latest()
        sent = None if latest is None else latest.store.get("bytes_sent")
        return sent, None if self._state is None else (_sizes(self._state.journal), _sizes(self._state.spools))

    def _left(self) -> str:
        """Return what is not in the store yet, in words; nothing if everything is."""
        if self._state is None:
            return ""
        try:
            changes = (record for record in read_left(self._state.journal).records if isinstance(record, Put | Erase))
            nchunks = len({(change.path, change.coords) for change in changes})
        except ShardfsError as error:
            return f"a journal that cannot be read: {error}"
        if not nchunks:
            return ""
        return f"{nchunks:,} chunks not in their shards" if nchunks > 1 else "1 chunk not in its shard"


def _state_of(figures: Snapshot) -> StateDirectory | None:
    """Return a descriptor of the directory that a daemon writes to; None if it cannot be read from here.

    A daemon in a container may see another directory under that path.
    """
    if figures.written is None:
        return None
    with suppress(ShardfsError, OSError):
        opened = open_directory(figures.written)
        state = StateDirectory(figures.written, opened)
        os.listdir(state.path)
        if figures.written_id in (None, control.id_of(opened.path)):
            return state
    return None


def _sizes(directory: str) -> dict[str, int]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    except OSError:
        return {}
