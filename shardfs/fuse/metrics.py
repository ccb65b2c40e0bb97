"""Figures for Prometheus: their text format, and a server of the latest snapshot."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shardfs.dataset.statistics import Snapshot
from shardfs.errors import printable

_LABELS: Final = ("version", "source", "mountpoint", "view", "access")
"""Texts that do not change during a mount: the labels of `shardfs_mount_info`."""


class _Figures(Collector):
    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterable[Metric]:
        """Yield the figures of one snapshot."""
        snapshot = self._latest()
        yield InfoMetricFamily(
            "shardfs_mount",
            "What is mounted where.",
            {name: printable(getattr(snapshot, name) or "") for name in _LABELS},
        )
        for figure, value in snapshot.figures():
            if not isinstance(value, str) and figure.kind != "text":
                kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                family = kind(f"shardfs_{figure.name}", figure.help, labels=[figure.label] if figure.label else [])
                rows = value if isinstance(value, Mapping) else {None: value}
                for label, number in rows.items():
                    family.add_metric([] if label is None else [label], number)
                yield family


def exposition(snapshot: Snapshot) -> str:
    """Return the figures in the text format of Prometheus."""
    return generate_latest(_registry(lambda: snapshot)).decode()


def serve_metrics(host: str, port: int, latest: Callable[[], Snapshot]) -> str:
    """Serve the *latest* snapshot from threads; returns the URL. Raises `OSError` if it cannot listen there."""
    server, _ = start_http_server(port, host, _registry(latest))
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"


def _registry(latest: Callable[[], Snapshot]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(latest))
    return registry
