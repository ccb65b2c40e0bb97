"""The metrics of a mount, taken in its daemon, and who gets them: other processes, Prometheus, systemd."""

import logging
import math
import os
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.fuse.control import METRICS_FILE, METRICS_NBYTES
from shardfs.fuse.options import MountOptions
from shardfs.fuse.progress import CommitProgress
from shardfs.service.log import LastError
from shardfs.service.metrics import ProcessMetrics
from shardfs.service.process import Systemd, more_time
from shardfs.vfs.options import parse_address
from shardfs.vfs.session import Session

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 10.0
_LINE_SECONDS: Final = 10.0

_MORE_TIME: Final = more_time(3 * _IDLE_SECONDS)


class MountMetrics:
    """The metrics of one mount; other threads, and `control.Daemon`, may read the latest snapshot at any time.

    *ending* is set by `end`.
    """

    def __init__(self, session: Session, mountpoint: str, options: MountOptions) -> None:
        self._session = session
        self._mountpoint = mountpoint
        self._options = options
        self._process = ProcessMetrics(session.source, mountpoint, view=options.view_words, access=options.access)
        self._file = os.memfd_create(METRICS_FILE)
        self._is_committed: bool | None = None
        self._is_journal_gone: bool | None = None
        self._systemd = Systemd()
        self._is_ready = False
        self.ending = trio.Event()
        self.latest = self._take()
        logging.getLogger("shardfs").addHandler(LastError(session.source.statistics))

    def _take(self) -> StatisticsSnapshot:
        return replace(
            self._process.snapshot(self._session.pending(), len(self._session.fs.open_files), self._session.nothers),
            file=os.fstat(self._file).st_ino,
            is_committed=self._is_committed,
            is_journal_gone=self._is_journal_gone,
        )

    async def serve(self) -> str | None:
        """Serve the latest snapshot to Prometheus, if that is wanted; returns the error that prevents it."""
        if self._options.metrics is None:
            return None
        # Imported only here, because it loads a web server.
        from shardfs.fuse.exporter import serve_metrics

        host, port = parse_address("--metrics", self._options.metrics)
        try:
            address = await trio.to_thread.run_sync(serve_metrics, host, port, lambda: {self._mountpoint: self.latest})
            log.info("metrics are at %s", address)
        except OSError as error:
            problem = f"no metrics at {host}:{port}: {error.strerror}"
            log.warning("%s", problem)
            return problem
        return None

    def ready(self) -> None:
        """Report that the mount answers."""
        self._is_ready = True
        self._systemd.notify("READY=1")

    def end(self) -> None:
        """Report that the mount is ending, which takes as long as the commit."""
        self.ending.set()
        self._systemd.notify("STOPPING=1", _MORE_TIME)

    def ended(self, is_committed: bool) -> None:
        """Leave the last metrics, with the result, for those who wait for the end of this process."""
        self._is_committed, self._is_journal_gone = is_committed, self._session.is_journal_gone
        self.publish()

    async def run(self) -> None:
        """Keep the latest snapshot up to date, and notify systemd, until cancelled.

        Once the mount is ending, log every ten seconds what is pending.
        """
        progress = CommitProgress()
        next_line = math.inf
        while True:
            self.publish()
            status, now, is_ending = progress.describe(self.latest), trio.current_time(), self.ending.is_set()
            # Both ends may take longer than systemd waits.
            more = () if self._is_ready and not is_ending else (_MORE_TIME,)
            self._systemd.notify(f"STATUS={status}", "WATCHDOG=1", *more)
            if is_ending and self.latest.pending_chunks:
                next_line = min(next_line, now + _LINE_SECONDS)
                if now >= next_line:
                    log.info("%s: %s", self.latest.source, status)
                    next_line = now + _LINE_SECONDS
            # A mount with nothing to do must not keep a processor awake.
            is_wanted = is_ending or self.latest.pending_chunks or self._options.metrics is not None
            seconds = min(_PERIOD_SECONDS if is_wanted else _IDLE_SECONDS, self._systemd.seconds)
            if is_ending:
                await trio.sleep(seconds)
            else:
                with trio.move_on_after(seconds):
                    await self.ending.wait()

    def publish(self) -> StatisticsSnapshot:
        """Take a snapshot now, and let others see it."""
        self.latest = self._take()
        with suppress(OSError):
            # Written by one call, always of the same length: others may read it at any time.
            os.pwrite(self._file, self.latest.encode().ljust(METRICS_NBYTES), 0)
        return self.latest
