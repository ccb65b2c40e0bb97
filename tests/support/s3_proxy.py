"""A proxy between S3 clients and a server: it writes down what is asked for, takes its time, and breaks what it should.

    with S3Proxy(server.endpoint_url) as proxy:
        proxy.latency = 0.02
        proxy.fail("PutObject", LostReply(), key="c/0/0")
        ...
        assert proxy.log.operations() == {"GetObject": 2}

As a command it only takes its time: `python -m tests.support.s3_proxy --target http://127.0.0.1:4566 --latency 0.02`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from time import perf_counter_ns
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.support.http1 import BUFFER, Message, read_reply, read_request
from tests.support.s3_faults import (
    Before,
    Fault,
    Hang,
    HangMidBody,
    Ignore,
    LostReply,
    LostRequest,
    Match,
    NoETag,
    Reply,
    Rule,
    Then,
    Truncated,
)
from tests.support.s3_log import Request, RequestLog

_HOP_BY_HOP = ("connection", "keep-alive", "proxy-connection")
_Result = TypeVar("_Result")


class S3Proxy:
    """A proxy before the server at *target*, an HTTP URL, in a thread of its own for the length of a `with` block.

    *latency* is in seconds, for each request, and may be set at any time. With *tls* it is one of https.
    """

    def __init__(self, target: str, *, port: int = 0, latency: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        url = urlsplit(target)
        self.latency = latency
        self.log = RequestLog()
        self._server_address = (url.hostname or "127.0.0.1", url.port or 80)
        self._rules: list[Rule] = []
        self._place = _bound(port)  # keeps the port while nothing listens there
        self._port = self._place.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self._failures: list[Exception] = []
        self._listener: asyncio.Server | None = None
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="s3-proxy", daemon=True)

    def __enter__(self) -> S3Proxy:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._place.close()
        if self._failures:
            raise self._failures[0]

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def fail(self, match: Match, fault: Fault, *, key: str = "", times: int | None = 1, after: int = 0) -> Rule:
        """Let requests meet a fault: the first *times* ones, or all if None, of those *after* so many others.

        Meant are requests that *match*, with *key* in their keys. A request meets the first fault that is meant for
        it, and every `Ignore` before that.
        """
        rule = Rule(match, fault, key, times, after)
        self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Let no further request meet a fault."""
        self._rules = []

    def unused(self) -> list[Rule]:
        """Faults that no request met so far: a test with such a fault proves nothing."""
        return [rule for rule in self._rules if not rule.hits]

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections, and end those that are open, for the length of a `with` block."""
        self._run(self._refuse())
        try:
            yield
        finally:
            self._run(self._listen())

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        listener = _bound(self._port)
        self._listener = await asyncio.start_server(
            self._connected, sock=listener, limit=BUFFER, backlog=1024, ssl=self._tls
        )

    async def _refuse(self) -> None:
        if self._listener:
            self._listener.close()
            await asyncio.sleep(0)  # connections that were accepted by now are known then
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        server = _Server(*self._server_address)
        try:
            while (message := await read_request(reader, writer)) is not None:
                if not await self._serve(message, server, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except Exception as error:  # of what a test lets happen, too: it is raised where the proxy ends
            self._failures.append(error)
        finally:
            self._connections.discard(task)
            server.close()
            writer.close()

    async def _serve(self, message: Message, server: _Server, writer: asyncio.StreamWriter) -> bool:
        """Answer a request, well or badly; returns whether the connection goes on."""
        request = Request.of(message)
        self.log.add(request)
        fault = self._fault_for(request, message)
        try:
            await asyncio.sleep(self.latency)
            reply = await self._reply(request, message, fault, server)
        finally:
            request.finished = perf_counter_ns()
        if reply is None:
            return False
        return await self._send(reply, request, fault, writer) and not message.closes

    def _fault_for(self, request: Request, message: Message) -> Fault | None:
        for rule in self._rules:
            if rule.takes(request):
                if not isinstance(rule.fault, Ignore):
                    return rule.fault
                message.headers = message.without(rule.fault.header.lower())
        return None

    async def _reply(self, request: Request, message: Message, fault: Fault | None, server: _Server) -> Message | None:
        """Return what is to be answered; None if nothing is."""
        match fault:
            case LostRequest():
                return None
            case Reply(forwarded=False):
                return _error(fault, request)
            case Hang():
                await _released(fault)
            case Before():
                await self._call(fault)
        reply = await server.ask(message, request.method)
        match fault:
            case LostReply():
                return None
            case Then():
                await self._call(fault)
                return None
            case Reply():
                return _error(fault, request)
            case NoETag():
                return _without_etag(reply)
        return reply

    async def _call(self, fault: Before | Then) -> None:
        await self._loop.run_in_executor(None, fault.action)

    async def _send(self, reply: Message, request: Request, fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
        request.status = reply.status
        request.bytes_out = len(reply.body)
        writer.write(reply.head())
        match fault:
            case Truncated():
                request.bytes_out = min(fault.nbytes, len(reply.body))
                writer.write(reply.body[: fault.nbytes])
                await writer.drain()
                return False
            case HangMidBody():
                writer.write(reply.body[: fault.nbytes])
                await writer.drain()
                await _released(fault)
                writer.write(reply.body[fault.nbytes :])
            case _:
                writer.write(reply.body)
        await writer.drain()
        return True


class _Server:
    """The connection to the server on behalf of one client's."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, message: Message, method: str) -> Message:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=BUFFER)
        reader, writer = self._streams
        forwarded = Message(message.start, message.without(*_HOP_BY_HOP), message.body)
        writer.write(forwarded.head())
        writer.write(forwarded.body)
        await writer.drain()
        reply = await read_reply(reader, method)
        if reply.closes:
            self.close()
        _, _, status = reply.start.partition(" ")
        return Message(f"HTTP/1.1 {status}", reply.without(*_HOP_BY_HOP), reply.body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _released(fault: Hang | HangMidBody) -> None:
    await asyncio.shield(asyncio.wrap_future(fault.released))


def _error(fault: Reply, request: Request) -> Message:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{fault.code}</Code><Message>made by the test</Message><RequestId>0</RequestId></Error>"
    ).encode()
    headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body))), *fault.headers.items()]
    return Message(f"HTTP/1.1 {fault.status} {fault.code}", headers, b"" if request.method == "HEAD" else body)


def _without_etag(reply: Message) -> Message:
    body = re.sub(rb"<ETag>.*</ETag>", b"<ETag></ETag>", reply.body)
    assert body != reply.body, "the reply has no ETag in its body"
    return Message(reply.start, [*reply.without("content-length"), ("Content-Length", str(len(body)))], body)


def _bound(port: int) -> socket.socket:
    place = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio does not know it, and replies are held back
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", port))
    return place


def main() -> None:
    """Run until interrupted; the first line of the output is the URL."""
    parser = argparse.ArgumentParser(description="Stand before an S3 server, and take time for each request.")
    parser.add_argument("--target", required=True, help="URL of the server")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that each request takes longer")
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0 for any free port")
    options = parser.parse_args()
    ended = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    with S3Proxy(options.target, port=options.port, latency=options.latency) as proxy:
        print(proxy.url, flush=True)
        signal.sigwait(ended)


if __name__ == "__main__":
    main()
