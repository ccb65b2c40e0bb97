"""The server: connections, each a task, from the first client to the last reply."""

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from shardfs.errors import ShardfsError, SourceError
from shardfs.serve.exchange import ClientError, ClientGoneError, Connection, Exchange
from shardfs.serve.metrics import Traffic
from shardfs.serve.options import ClientLimits
from shardfs.stores.parallel import open_nursery

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_PAUSE_SECONDS: Final = 0.1
_PATIENCE_SECONDS: Final = 1.0
_MAX_TURNED_AWAY: Final = 64
"""How many clients get a reply at a time that there is no connection for them; others get none."""
_NO_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


async def listen(host: str, port: int) -> Sequence[trio.SocketListener]:
    """Listen at *host* and *port*, 0 being any; raises `SourceError` if that is not possible."""
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        way_out = "choose another address or port with --listen"
        raise SourceError(f"cannot listen at {host} port {port}: {error.strerror or error}; {way_out}") from None


def url_of(listener: trio.SocketListener) -> str:
    """Return the URL at which a listener is reached."""
    host, port = listener.socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Server:
    """Lets clients in, at most as many as *limits* say, and gives each of their requests to *answer*.

    What comes and goes is counted in *traffic*.
    """

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]], limits: ClientLimits, traffic: Traffic) -> None:
        self._answer = answer
        self._traffic = traffic
        self._limits = limits
        self._connections: set[Connection] = set()
        self._ending = trio.Event()

    def end(self) -> None:
        """Let nobody in any more, and end when the requests that are being answered are."""
        self._ending.set()
        for connection in self._connections:
            connection.end()

    async def run(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve until `end` is called, and for at most so many seconds more as *limits* say."""
        async with open_nursery() as clients:
            async with open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, clients)
                await self._ending.wait()
                accepting.cancel_scope.cancel()
            for listener in listeners:
                await listener.aclose()
            clients.cancel_scope.deadline = trio.current_time() + self._limits.drain_seconds
        if clients.cancel_scope.cancelled_caught:
            log.warning("requests that took more than %g seconds are given up", self._limits.drain_seconds)

    async def _accept(self, listener: trio.SocketListener, clients: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                log.error("no client can be let in: %s", error.strerror)  # noqa: TRY400 - not our fault
                await trio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._connections) >= self._limits.connections:
                self._traffic.turned_away()
                if len(clients.child_tasks) < self._limits.connections + _MAX_TURNED_AWAY:
                    clients.start_soon(_turn_away, stream)
                else:
                    await trio.aclose_forcefully(stream)
                continue
            connection = Connection(stream, self._limits)
            self._connections.add(connection)
            self._traffic.connected(1)
            clients.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            while await self._next(connection):
                pass
        except ClientGoneError:
            connection.abort()
        finally:
            self._connections.discard(connection)
            self._traffic.connected(-1)
            await connection.close()

    async def _next(self, connection: Connection) -> bool:
        """Answer the next request; return whether another one may come."""
        try:
            exchange = await connection.next_exchange()
        except ClientError as error:
            await connection.refuse(error)
            return False
        if exchange is None:
            return False
        begun = time.perf_counter()
        try:
            await self._answer(exchange)
        except ShardfsError as error:
            log.warning("%s: the reply breaks off: %s", exchange.line, error)
            connection.abort()
            return False
        except (ClientGoneError, trio.Cancelled):
            raise
        except Exception:
            log.exception("%s: unexpectedly, there is no reply", exchange.line)
            if connection.has_begun_to_reply:
                connection.abort()
                return False
            connection.end()
            await exchange.reply_line(500, "this is a fault of shardfs; its log says more")
        finally:
            self._traffic.replied(exchange.method, exchange.status, exchange.nsent)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s in %.1f ms", exchange.line, 1e3 * (time.perf_counter() - begun))
        return True


async def _turn_away(stream: trio.SocketStream) -> None:
    """Say that the server is full, and let the client read it: it may be sending its request."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(_PATIENCE_SECONDS):
        await stream.send_all(_FULL)
        await stream.send_eof()
        while await stream.receive_some():
            pass
    await trio.aclose_forcefully(stream)
