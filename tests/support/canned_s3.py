"""A server that answers with what a test says, for replies that no server at hand gives; it may be asked as a proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str], tuple[int, bytes]]
"""Gives status and body for the target of a request."""


@dataclass(frozen=True)
class Canned:
    """Where it is, and the targets of all requests that came, each with the host that was meant."""

    url: str
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def canned(answer: Answer) -> Iterator[Canned]:
    """Run the server for the length of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append((self.headers["Host"], self.path))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as the library calls it

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Canned(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def listing(prefix: str, *names: str) -> bytes:
    """A reply to a request for a listing; *names* that end in a slash are common prefixes."""
    keys = "".join(
        f"<Contents><Key>{name}</Key><Size>1</Size><ETag>&quot;1&quot;</ETag>"
        "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
        for name in names
        if not name.endswith("/")
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in names if name.endswith("/")
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>{keys}{prefixes}"
        "</ListBucketResult>"
    ).encode()
