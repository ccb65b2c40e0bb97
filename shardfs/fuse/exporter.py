"""A thread that serves the metrics of mounts to Prometheus."""

import socket
import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from shardfs.service.prometheus import Latest, registry


def serve_metrics(host: str, port: int, latest: Callable[[], Latest]) -> str:
    """Serve the *latest* metrics from a thread, one request at a time; returns the URL.

    Raises `OSError` if it cannot listen there.
    """
    family, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][::4]
    server = type("Server", (_Server,), {"address_family": family})((str(address[0]), port), _Handler)
    server.set_app(make_wsgi_app(registry(latest)))
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
