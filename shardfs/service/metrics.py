"""The metrics of this process, whatever it does with a source."""

import os
import time

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.layout import Pending
from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.service.log import path as log_path
from shardfs.service.process import resident_nbytes
from shardfs.version import __version__


class ProcessMetrics:
    """What does not change of the metrics: *source* is shown at *mountpoint*, in this *view*, with this *access*."""

    def __init__(self, source: Source, mountpoint: str, *, view: str, access: str) -> None:
        self._source = source
        self._mountpoint = mountpoint
        self._view = view
        self._access = access
        self._begun = time.monotonic()

    def snapshot(self, pending: Pending, nopen_files: int, nothers: int | None) -> StatisticsSnapshot:
        """Return the metrics now; *pending* is what is not committed, *nothers* how many other sessions write."""
        return StatisticsSnapshot(
            version=__version__,
            source=self._source.store.url,
            mountpoint=self._mountpoint,
            view=self._view,
            access=self._access,
            pid=os.getpid(),
            log=log_path(),
            uptime_seconds=time.monotonic() - self._begun,
            memory_bytes=resident_nbytes(),
            open_files=nopen_files,
            pending_chunks=pending.nchunks,
            pending_bytes=pending.nbytes,
            pending_age_seconds=pending.age,
            pending_reason=pending.reason,
            other_sessions=nothers,
            counts=self._source.statistics.counts(),
            store=self._source.store.statistics(),
        )
