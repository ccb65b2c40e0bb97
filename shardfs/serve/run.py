"""`shardfs serve` from the opening of the source to the last commit."""

import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import trio

from shardfs.dataset.hierarchy import open_source
from shardfs.serve.metrics import ServerMetrics
from shardfs.serve.options import ServeOptions
from shardfs.serve.server import Server, listen, url_of
from shardfs.serve.site import Site
from shardfs.service.log import LastError
from shardfs.service.process import Systemd, more_time, raise_file_limit
from shardfs.stores.parallel import open_nursery
from shardfs.stores.url import StoreOptions
from shardfs.vfs.all_views import open_views
from shardfs.vfs.session import notes_on

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 10.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def serve(
    url: str, store_options: StoreOptions, options: ServeOptions, ready: Callable[[str, str | None], None]
) -> None:
    """Serve the source at *url* until a signal ends it; then everything that was published is committed.

    *ready* is called with the URL of the server when it answers, and with a note if the source may not be what the
    user thinks. Raises `SourceError` if the source cannot be opened or nobody can be listened to, and `StoreError` if
    something could not be committed.
    """
    trio.run(_serve, url, store_options, options, ready)


async def _serve(
    url: str, store_options: StoreOptions, options: ServeOptions, ready: Callable[[str, str | None], None]
) -> None:
    max_open = raise_file_limit() // 4  # connections take one each, too
    listeners = await listen(*options.address)
    address, systemd = url_of(listeners[0]), Systemd()
    async with open_nursery() as nursery:
        report = _Report(systemd)
        nursery.start_soon(report.run)
        async with AsyncExitStack() as stack:
            opening = open_source(url, store_options, ttl=options.metadata_ttl, max_open=max_open)
            source = await stack.enter_async_context(opening)
            notes = await notes_on(source, options)
            views = await stack.enter_async_context(open_views(source, options))
            logging.getLogger("shardfs").addHandler(LastError(source.statistics))
            metrics = ServerMetrics(views, options, address)
            server = Server(Site(views, options, metrics).answer, options.limits, metrics.traffic)
            await nursery.start(_end_on_signal, server, report)
            ready(address, "; ".join(part for part in (views.main.problems, *notes) if part) or None)
            report.is_ready(metrics)
            await server.run(listeners)
        nursery.cancel_scope.cancel()
    log.info("%s is no longer served", url)


class _Report:
    """Informs systemd how the server is, and asks for more time while a journal is replayed, and while it commits."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._metrics: ServerMetrics | None = None
        self._is_ready = False

    def is_ready(self, metrics: ServerMetrics) -> None:
        """Report that the server answers."""
        self._metrics, self._is_ready = metrics, True
        self._systemd.notify("READY=1", f"STATUS={metrics.status}")

    def is_ending(self) -> None:
        """Report that it ends as soon as all is committed."""
        self._is_ready = False
        self._systemd.notify("STOPPING=1", more_time(3 * _PERIOD_SECONDS))

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            more = [] if self._is_ready else [more_time(3 * _PERIOD_SECONDS)]
            status = [f"STATUS={self._metrics.status}"] if self._metrics is not None else []
            self._systemd.notify("WATCHDOG=1", *status, *more)
            await trio.sleep(min(_PERIOD_SECONDS, self._systemd.seconds))


async def _end_on_signal(server: Server, report: _Report, task_status: "trio.TaskStatus[None]") -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            name = signal.Signals(number).name
            log.info("%s: requests under way are answered, and what was written is committed", name)
            report.is_ending()
            server.end()
