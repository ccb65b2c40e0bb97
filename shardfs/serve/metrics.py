"""The metrics of a server: what it counts of its clients, and what Prometheus and systemd get."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from shardfs.dataset.statistics import StatisticsSnapshot
from shardfs.errors import counted
from shardfs.serve.options import ServeOptions
from shardfs.service.metrics import ProcessMetrics
from shardfs.service.prometheus import SERVER, exposition
from shardfs.vfs.all_views import Views

_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST"})
_OF_A_MOUNT: Final = frozenset({"requests", "errors", "bytes_read"})
"""Counts of the requests of a kernel, of which a server has none."""


class Traffic:
    """What a server counts: its *nconnections*, and since it began how many clients were *turned_away*, and replies."""

    def __init__(self) -> None:
        self.nconnections = 0
        self.nturned_away = 0
        self._nreplies: Counter[tuple[str, str]] = Counter()
        self._sent_nbytes = 0

    def connected(self, change: int) -> None:
        """Count a client that comes (1) or goes (-1)."""
        self.nconnections += change

    def turned_away(self) -> None:
        """Count a client for whom there was no connection."""
        self.nturned_away += 1

    def replied(self, method: str, status: int, nbytes: int) -> None:
        """Count a reply with *nbytes* bytes of body; 0 is the status of none.

        Methods that mean nothing are counted as one: whoever asks may not choose names of metrics.
        """
        self._nreplies[method if method in _METHODS else "other", str(status or "none")] += 1
        self._sent_nbytes += nbytes

    def metrics(self) -> Iterable[Metric]:
        """Yield the metrics."""
        replies = CounterMetricFamily("shardfs_http_replies", "Replies to requests.", labels=["method", "status"])
        for labels, count in sorted(self._nreplies.items()):
            replies.add_metric(labels, count)
        yield replies
        yield CounterMetricFamily("shardfs_http_sent_bytes", "Bytes of their bodies.", self._sent_nbytes)
        yield CounterMetricFamily(
            "shardfs_http_turned_away", "Clients for whom there was no connection left.", self.nturned_away
        )
        yield GaugeMetricFamily("shardfs_http_connections", "Clients that are connected.", self.nconnections)


class ServerMetrics:
    """The metrics of a server at *url*: its *traffic*, and those of the source that *views* shows."""

    def __init__(self, views: Views, options: ServeOptions, url: str) -> None:
        self.traffic = Traffic()
        self._views = views
        self._url = url
        self._process = ProcessMetrics(views.main.source, url, view=options.view_words, access=options.access)

    def exposition(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return exposition({self._url: self._take()}, SERVER, self.traffic.metrics)

    @property
    def status(self) -> str:
        """What is going on, in a few words."""
        clients, pending = counted(self.traffic.nconnections, "client"), self._views.main.pending()
        chunks = f", {counted(pending.nchunks, 'chunk')} pending" if pending.nchunks else ""
        return f"{clients}{chunks}{f': {pending.reason}' if pending.reason else ''}"

    def _take(self) -> StatisticsSnapshot:
        nopen_files = sum(len(paths.fs.open_files) for paths in self._views.all)
        snapshot = self._process.snapshot(self._views.main.pending(), nopen_files, self._views.main.nothers)
        counts = {name: value for name, value in snapshot.counts.items() if name not in _OF_A_MOUNT}
        return replace(snapshot, counts=counts)
