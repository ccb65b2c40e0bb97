"""A network that takes its time: what a client sends to a server arrives later, and the answer comes at once.

It knows of HTTP only how a request begins, to count them in a log, a line for each: whatever is sent before an answer
is awaited is delayed once, as on a long line. So each request takes `--latency` seconds longer, any number of them at
the same time, and a large body is no slower than a small one; a client that asks for leave to send its body waits
twice. As a line it is as wide as one CPU copies fast. The first line of the output is the port.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
from collections import deque
from pathlib import Path
from typing import BinaryIO, cast

_REQUEST = re.compile(rb"[A-Z]{3,7} \S+ HTTP/1\.1\r\n")


class _ToClient(asyncio.Protocol):
    """The connection to the server: its bytes go to the client at once."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _set_up(transport)

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.close()


class _ToServer(asyncio.Protocol):
    """The connection from a client: its bytes, and its end, go to the server later."""

    def __init__(self, port: int, latency: float, log: BinaryIO) -> None:
        self._port = port
        self._latency = latency
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._sent: deque[bytes | None] = deque()
        self._client: asyncio.Transport
        self._server: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _set_up(transport)
        self._client = cast(asyncio.Transport, transport)
        self._client.pause_reading()
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            transport, _ = await self._loop.create_connection(lambda: _ToClient(self._client), "127.0.0.1", self._port)
        except OSError:
            self._client.abort()
            return
        self._server = transport
        self._client.resume_reading()

    def data_received(self, data: bytes) -> None:
        request = _REQUEST.match(data)
        if request is not None:
            self._log.write(request[0])
        self._delay(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._delay(None)

    def _delay(self, data: bytes | None) -> None:
        # Timers of the same moment may go off in any order: each takes what was sent first.
        self._sent.append(data)
        self._loop.call_later(self._latency, self._arrive)

    def _arrive(self) -> None:
        data = self._sent.popleft()
        if self._server is None:
            return
        if data is None:
            self._server.close()
        else:
            self._server.write(data)


def _set_up(transport: asyncio.BaseTransport) -> None:
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _serve(port: int, latency: float, log: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _ToServer(port, latency, log), "127.0.0.1", 0, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=int, required=True, help="the port of the server, on this machine")
    parser.add_argument("--latency", type=float, required=True, help="in seconds")
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    with arguments.log.open("wb", buffering=0) as log:
        asyncio.run(_serve(arguments.to, arguments.latency, log))


if __name__ == "__main__":
    main()
