"""`shardfs serve` from the opening of the source to the last commit."""

import logging
import signal
from collections.abc import Callable
from typing import Final

import trio

from shardfs.dataset.hierarchy import open_source
from shardfs.dataset.maintenance.walk import foreign_format
from shardfs.serve.options import ServeOptions
from shardfs.serve.server import Server, listen, url_of
from shardfs.serve.site import Site
from shardfs.stores.parallel import open_nursery
from shardfs.stores.url import StoreOptions
from shardfs.vfs.all_views import open_views

log = logging.getLogger(__name__)

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
    listeners = await listen(*options.address)
    async with (
        open_source(url, store_options, ttl=options.metadata_ttl) as source,
        open_views(source, options) as views,
        open_nursery() as nursery,
    ):
        server = Server(Site(views, options).answer, options.limits)
        await nursery.start(_end_on_signal, server)
        ready(url_of(listeners[0]), None if source.names is None else foreign_format(source.names))
        await server.run(listeners)
        nursery.cancel_scope.cancel()
    log.info("%s is no longer served", url)


async def _end_on_signal(server: Server, task_status: "trio.TaskStatus[None]") -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            log.info("%s: no new requests; those under way are answered, and what was written is committed",
                     signal.Signals(number).name)  # fmt: skip
            server.end()
