"""Figures for Prometheus: their text format, and a thread that serves the latest snapshot."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from shardfs.dataset.statistics import Snapshot
from shardfs.errors import printable

_LABELS: Final = ("version", "source", "mountpoint", "view", "access")
"""Texts that do not change during a mount: the labels of `shardfs_mount_info`."""


_USUAL: Final = {
    "errors": ("EACCES", "EDQUOT", "EINVAL", "EIO", "EMFILE", "ENOENT", "ENOSPC", "EPERM", "EROFS", "ESTALE")
}
"""Rows that are there from the start: Prometheus sees no increase in a series that begins with its first error."""


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
                rows: dict[str | None, float] = dict.fromkeys(_USUAL.get(figure.name, ()), 0)
                if isinstance(value, Mapping):
                    rows.update((label, number) for label, number in value.items())
                else:
                    rows[None] = value
                for label, number in rows.items():
                    family.add_metric([] if label is None else [label], number)
                yield family


def exposition(snapshot: Snapshot) -> str:
    """Return the figures in the text format of Prometheus."""
    return generate_latest(_registry(lambda: snapshot)).decode()


def serve_metrics(host: str, port: int, latest: Callable[[], Snapshot]) -> str:
    """Serve the *latest* snapshot from a thread, one request at a time; returns the URL.

    Raises `OSError` if it cannot listen there.
    """
    family, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][::4]
    server = type("Server", (_Server,), {"address_family": family})((str(address[0]), port), _Handler)
    server.set_app(make_wsgi_app(_registry(latest)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"


class _Server(WSGIServer):
    def handle_error(self, *_: object) -> None:
        """Log nothing about clients that disconnect or stay silent."""


class _Handler(WSGIRequestHandler):
    """Waits only briefly for a client, so that clients cost at most one thread and one descriptor."""

    timeout = 2.0

    def log_message(self, *_: object) -> None:
        """Log nothing about scrapes."""


def _registry(latest: Callable[[], Snapshot]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(latest))
    return registry
