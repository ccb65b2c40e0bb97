"""A proxy between S3 clients and a server: it writes down what is asked for, takes its time, and breaks what it should.

with S3Proxy(server.endpoint_url) as proxy:
    proxy.latency = 0.02
    proxy.fail("PutObject", LostReply(), key="c/0/0")
    ...
    assert proxy.log.operations() == {"GetObject": 2}
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from tests.support.s3_faults import (
    Before,
    Changed,
    Drip,
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

_NOT_PASSED_ON = ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "expect")


class S3Proxy:
    """A proxy before the server at *target*, an HTTP URL, with a thread for each connection, for a `with` block.

    *latency* is in seconds, for each request, and may be set at any time. With *tls* it is one of https.
    """

    def __init__(self, target: str, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = urlsplit(target).netloc
        self.latency = 0.0
        self.log = RequestLog()
        self.failures: list[BaseException] = []
        self._tls = tls
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._place = _bound(0)  # keeps the port while nothing listens there
        self._port = self._place.getsockname()[1]
        self._server: _Server | None = None

    def __enter__(self) -> S3Proxy:
        self._listen()
        return self

    def __exit__(self, *error: object) -> None:
        self._refuse()
        self._place.close()
        if self.failures:
            raise self.failures[0]

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
        self._refuse()
        try:
            yield
        finally:
            self._listen()

    def fault_for(self, request: Request, headers: dict[str, str]) -> Fault | None:
        """The fault that a request meets; what it should not say is removed from its *headers*."""
        with self._lock:
            for rule in self._rules:
                if rule.takes(request):
                    if not isinstance(rule.fault, Ignore):
                        return rule.fault
                    headers.pop(rule.fault.header.lower(), None)
        return None

    def _listen(self) -> None:
        self._server = _Server(self, _bound(self._port), self._tls)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="s3-proxy", daemon=True).start()

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.end()
            self._server = None


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True
    block_on_close = False

    def __init__(self, proxy: S3Proxy, place: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(place.getsockname(), _Connection, bind_and_activate=False)
        self.proxy = proxy
        self.socket.close()
        self.socket = place
        self._tls = tls
        self._open: set[socket.socket] = set()
        self.server_activate()

    def get_request(self) -> tuple[socket.socket, Any]:
        found, address = super().get_request()
        if self._tls is not None:
            found = self._tls.wrap_socket(found, server_side=True, do_handshake_on_connect=False)
        self._open.add(found)
        return found, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        """Listen no more, and end all connections."""
        self.shutdown()
        self.server_close()
        for found in list(self._open):
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # of what a test lets happen, too
            self.proxy.failures.append(error)


@dataclass
class _Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class _Connection(BaseHTTPRequestHandler):
    """One client's connection, and one to the server on its behalf."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._onward = HTTPConnection(self.server.proxy.target)

    def finish(self) -> None:
        self._onward.close()
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def serve(self) -> None:
        """Answer a request, well or badly."""
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request.of(self.command, self.path, headers, len(body))
        proxy.log.add(request)
        fault = proxy.fault_for(request, headers)
        try:
            time.sleep(proxy.latency)
            answer = self._answer(headers, body, fault)
        finally:
            request.finished = perf_counter_ns()
        if answer is None:
            self.close_connection = True
        else:
            self._send(answer, request, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = serve  # noqa: N815 - as the library calls them

    def _answer(self, headers: dict[str, str], body: bytes, fault: Fault | None) -> _Answer | None:
        """Return what is to be answered; None if nothing is."""
        match fault:
            case LostRequest():
                return None
            case Reply(forwarded=False):
                return self._error(fault)
            case Hang():
                fault.released.result()
            case Before():
                fault.action()
        self._onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name not in _NOT_PASSED_ON:
                self._onward.putheader(name, value)
        self._onward.endheaders(body or None)
        reply = self._onward.getresponse()
        answer = _Answer(reply.status, reply.reason, reply.getheaders(), reply.read())
        match fault:
            case LostReply():
                return None
            case Then():
                fault.action()
                return None
            case Reply():
                return self._error(fault)
            case NoETag():
                without = re.sub(rb"<ETag>.*</ETag>", b"<ETag></ETag>", answer.body)
                assert without != answer.body, "the reply has no ETag in its body"
                answer.body = without
            case Changed():
                changed = {name.lower(): value for name, value in answer.headers}
                answer.body = fault.change(changed, answer.body)
                answer.headers = list(changed.items())
        return answer

    def _error(self, fault: Reply) -> _Answer:
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{fault.code}</Code><Message>made by the test</Message><RequestId>0</RequestId></Error>"
        ).encode()
        return _Answer(fault.status, fault.code, [("Content-Type", "application/xml"), *fault.headers.items()], body)

    def _send(self, answer: _Answer, request: Request, fault: Fault | None) -> None:
        body = b"" if self.command == "HEAD" else answer.body
        nbytes = fault.nbytes if isinstance(fault, Truncated | HangMidBody) else len(body)
        request.status = answer.status
        request.bytes_out = min(nbytes, len(body)) if isinstance(fault, Truncated) else len(body)
        has_length = self.command == "HEAD" or answer.status == 204  # of a body that does not come
        dropped = _NOT_PASSED_ON if has_length else (*_NOT_PASSED_ON, "content-length")
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers:
            if name.lower() not in dropped:
                self.send_header(name, value)
        if not has_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if isinstance(fault, Drip):
            for place in range(nbytes):
                self.wfile.write(body[place : place + 1])
                time.sleep(fault.seconds)
            return
        self.wfile.write(body[:nbytes])
        if isinstance(fault, HangMidBody):
            fault.released.result()
            self.wfile.write(body[nbytes:])
        if isinstance(fault, Truncated):
            self.close_connection = True


def _bound(port: int) -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", port))
    return place
