"""A web server of files, with a log of its requests, and with faults that a test chooses.

It is also the endpoint of a cloud: directories at its top are buckets, which it lists in the words of S3, which are
those of Google, too, and of Azure. No signature is checked.
"""

import email.utils
import gzip
import hashlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

NAMES = {
    "outside": ("elsewhere", "/top", "{prefix}"),
    "odd": ("../above", "{prefix}../above", "{prefix}a//b", "{prefix}./c", "{prefix}/"),
}
"""What a listing with one of these faults has beside what is there."""

MOST_NBYTES = 2**28
PIECE_NBYTES = 2**16
"""When a body that never ends does end, if somebody reads it."""


def _relay(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(2**16):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


@dataclass
class Web:
    """Files below *root*, served at *port*. *log* has method, path and `Range` of each request.

    *faults* holds for all replies with bytes; *refused* are the paths that get 403; *absent* is the status of what is
    not there; *moved* are paths that lead to others; the next *failures* replies have the status *failing*. Without
    *etags*, a version is known by `Last-Modified`; without *conditions*, nobody heeds what a request expects.

    *endless* has a body that never ends, by status, and *nsent* is how much of such bodies was offered. If it
    *hangs_up*, it closes each connection after a reply, without saying so before. *nconnections* and *proxy_words*
    count connections, and collect what names and passwords were sent to it as a proxy. *signed* counts requests that
    had a signature or a password for this server, and *authorizations* collects these. *token* is what `/token` gives.
    A listing has pages of *page* names.
    """

    root: Path
    port: int = 0
    log: list[tuple[str, str, str]] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    absent: int = 404
    failures: int = 0
    failing: int = 503
    etags: bool = True
    conditions: bool = True
    endless: set[int] = field(default_factory=set)
    nsent: int = 0
    hangs_up: bool = False
    nconnections: int = 0
    proxy_words: set[str] = field(default_factory=set)
    signed: int = 0
    authorizations: set[str] = field(default_factory=set)
    token: str = "a-token"
    page: int = 1000
    nlistings: int = 0
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def asked(self) -> list[tuple[str, str, str]]:
        """The requests since the last call."""
        log, self.log = self.log, []
        return log


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: ClassVar[Web]

    def setup(self) -> None:
        super().setup()
        self.web.nconnections += 1

    def do_CONNECT(self) -> None:
        """Be a proxy for TLS."""
        host, _, port = self.path.rpartition(":")
        self.web.log.append((self.command, self.path, ""))
        self.web.proxy_words.add(self.headers.get("Proxy-Authorization", ""))
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            there.settimeout(30)
            other = threading.Thread(target=_relay, args=(there, self.connection), daemon=True)
            other.start()
            _relay(self.connection, there)
        other.join()
        self.close_connection = True

    def do_GET(self) -> None:
        self.web.proxy_words.add(self.headers.get("Proxy-Authorization", ""))
        web, path = self.web, unquote(urlsplit(self.path).path)
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        wanted = self.headers.get("Range") or self.headers.get("x-ms-range", "")
        web.signed += "Authorization" in self.headers
        web.authorizations.add(self.headers.get("Authorization", ""))
        web.log.append((self.command, path, wanted))
        if web.failures:
            web.failures -= 1
            self._send(web.failing, {}, b"try later")
            return
        if path in web.moved:
            self._send(302, {"Location": web.moved[path]}, b"")
            return
        if "404 of a proxy" in web.faults or (self.command == "GET" and "404 of a proxy to GET" in web.faults):
            self._send(404, {}, b"<html>no backend")
            return
        file = web.root / path.lstrip("/")
        if path not in web.refused and ("list-type" in query or query.get("comp") == "list"):
            self._list(path.strip("/"), query)
            return
        if self.command == "HEAD" and file.parent == web.root and file.is_dir():  # a bucket
            self._send(200, {}, b"")
            return
        if path in web.refused or not file.is_file():
            self._send(403 if path in web.refused else web.absent, {"x-ms-error-code": "BlobNotFound"}, _ABSENT)
            return
        data, status, headers = file.read_bytes(), 200, {}
        seconds = int(file.stat().st_mtime)
        etag = _etag(file)
        if "changing" in web.faults:
            etag = f'"{len(web.log)}"'
        if web.etags and "no version" not in web.faults:
            headers["ETag"] = f"W/{etag}" if "weak" in web.faults else etag
        if "no version" not in web.faults:
            headers["Last-Modified"] = email.utils.formatdate(seconds, usegmt=True)
        if web.conditions and self._is_other(etag, seconds):
            self._send(412, {}, b"")
            return
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
        if found and "whole" not in web.faults:
            start = max(0, len(data) - int(found[2])) if not found[1] else int(found[1])
            stop = len(data) if not found[1] or not found[2] else min(len(data), int(found[2]) + 1)
            if start >= len(data) or ("no suffix" in web.faults and not found[1]):
                self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
                return
            shift = "other range" in web.faults
            headers["Content-Range"] = f"bytes {start + shift}-{stop + shift - 1}/{len(data)}"
            if "huge" in web.faults:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{2**63}"
            data, status = data[start:stop], 206
            if "no range" in web.faults:
                del headers["Content-Range"]
            if "nonsense range" in web.faults:
                headers["Content-Range"] = "bytes a few of many"
        if "compressed" in web.faults and self.command == "GET":
            headers["Content-Encoding"] = "gzip"
        if "longer" in web.faults and self.command == "GET":
            data += b"more"
        if "shorter" in web.faults and self.command == "GET":
            data = data[:-1]
        self._send(status, headers, data)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        """Take a body, and change nothing."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.web.log.append((self.command, unquote(urlsplit(self.path).path), ""))
        self._send(self.web.failing, {"ETag": '"new"'}, b"")

    def do_POST(self) -> None:
        """Give a token to whoever asks for one."""
        if self.path != "/token":
            self.do_PUT()
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token = {"access_token": self.web.token, "expires_in": 3600, "token_type": "Bearer"}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(token).encode())

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        """Send a page of the keys of a bucket."""
        web, is_azure = self.web, "comp" in query
        web.nlistings += 1
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("marker" if is_azure else "continuation-token", query.get("start-after", ""))
        root = web.root / bucket
        names: dict[str, Path | None] = {}
        for file in sorted(root.rglob("*")):
            key = str(file.relative_to(root))
            if file.is_file() and key.startswith(prefix):
                below, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                names[f"{prefix}{below}/" if slash else key] = None if slash else file
        others = [name.format(prefix=prefix) for fault in web.faults for name in NAMES.get(fault, ())]
        names |= dict.fromkeys(others, Path(__file__))
        repeats = {"same page", "page after page", "empty pages"} & web.faults
        later = sorted(name for name in names if name > token or repeats)
        found = [] if "empty pages" in web.faults else later[: web.page]
        after = found[-1] if len(later) > web.page else ""
        if repeats:
            after = "again" if "same page" in web.faults else str(web.nlistings)
        body = (_azure if is_azure else _s3)([(name, names[name]) for name in found], after).encode()
        body = _BODIES.get(next(iter(web.faults), ""), lambda body: body)(body)
        headers = {"Content-Type": "application/xml"}
        if "compressed listing" in web.faults:
            headers["Content-Encoding"], body = "gzip", gzip.compress(body)
        self._send(200, headers, body)

    def _is_other(self, etag: str, seconds: int) -> bool:
        match, since = self.headers.get("If-Match"), self.headers.get("If-Unmodified-Since")
        is_newer = since is not None and seconds > email.utils.parsedate_to_datetime(since).timestamp()
        return is_newer if match is None else match != etag

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        is_endless = status in self.web.endless and self.command != "HEAD"
        is_huge = "breaks off" in self.web.faults and self.command == "GET"
        self.send_header("Content-Length", str(2**40 if is_endless or is_huge else len(body)))
        # Counted before it is sent: a client that hangs up at the headers finds the count of what it was offered.
        self.web.nsent += PIECE_NBYTES if is_endless else 0
        self.end_headers()
        self.close_connection = self.web.hangs_up or is_huge or self.close_connection
        with suppress(ConnectionError):  # of a client that hangs up at the headers
            while is_endless and self.web.nsent < MOST_NBYTES:
                self.wfile.write(bytes(PIECE_NBYTES))
                self.web.nsent += PIECE_NBYTES
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


_ABSENT = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>nothing for you</Message></Error>"
_BODIES: dict[str, Callable[[bytes], bytes]] = {
    "page of HTML": lambda _: b"<html><body>Welcome",
    "JSON": lambda _: b'{"items": []}',
    "half of a listing": lambda body: body[: len(body) // 2],
    "huge sizes": lambda body: re.sub(rb"(<Size>|<Content-Length>)\d+", rb"\g<1>99999999999999999999", body),
    "negative sizes": lambda body: re.sub(rb"(<Size>|<Content-Length>)", rb"\g<1>-", body),
    "no times": lambda body: re.sub(rb"(<Last-?Modified>)[^<]*", rb"\1yesterday", body),
    "entities": lambda body: (
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]>' + body.replace(b"zarr", b"&b;")
    ),
}
"""Faults of the body of a listing."""


def _s3(names: list[tuple[str, Path | None]], after: str) -> str:
    rows = []
    for name, file in names:
        if file is None:
            rows.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            continue
        modified = email.utils.formatdate(file.stat().st_mtime)
        modified = email.utils.parsedate_to_datetime(modified).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        values = {"Key": escape(name), "LastModified": modified, "ETag": _etag(file), "Size": file.stat().st_size}
        rows.append(f"<Contents>{_members(values)}</Contents>")
    more = {"IsTruncated": "true", "NextContinuationToken": escape(after)} if after else {"IsTruncated": "false"}
    head = _members({"Name": "bucket", "KeyCount": len(names), "MaxKeys": 1000, **more})
    return f"<?xml version='1.0'?><ListBucketResult>{head}{''.join(rows)}</ListBucketResult>"


def _azure(names: list[tuple[str, Path | None]], after: str) -> str:
    rows = []
    for name, file in names:
        if file is None:
            rows.append(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>")
            continue
        modified = email.utils.formatdate(file.stat().st_mtime, usegmt=True)
        values = {"Last-Modified": modified, "Content-Length": file.stat().st_size, "Etag": _etag(file)}
        values["Content-Type"] = "application/octet-stream"
        rows.append(f"<Blob><Name>{escape(name)}</Name><Properties>{_members(values)}</Properties></Blob>")
    rest = f"<Blobs>{''.join(rows)}</Blobs><NextMarker>{escape(after)}</NextMarker>"
    return f"<?xml version='1.0'?><EnumerationResults ContainerName='bucket'>{rest}</EnumerationResults>"


def _members(values: dict[str, object]) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in values.items())


def _etag(file: Path) -> str:
    return f'"{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"'


@contextmanager
def web_server(root: Path, tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Serve the files below *root* for the length of a block; with *tls*, as https."""
    web = Web(root, scheme="https" if tls else "http")
    handler = type("Handler", (_Handler,), {"web": web})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        web.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()
