"""Single requests to a web server, by `http.client`.

It reads no more than it is asked to, so that no reply takes more memory than what was asked for, whatever its status.
"""

import io
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache, partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from shardfs.stores.clouds.attempts import (
    TIMEOUTS,
    Timeouts,
    check_key,
    modified_of,
    object_stat,
    read_body,
    require_version,
)
from shardfs.stores.clouds.errors import (
    COMPRESSED,
    CUT_SHORT,
    LESS_SAFE,
    NO_CONTENT_LENGTH,
    NO_CONTENT_RANGE,
    NO_LAST_MODIFIED,
    NO_RANGES,
    NO_REPLY,
    NO_URL,
    NOT_CONNECTED,
    NOT_TRUSTED,
    OTHER_RANGE,
    SILENT,
    TOO_MANY_REDIRECTS,
    TOO_MUCH,
    FailedAttempt,
    Failure,
)
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.requests import (
    Fetched,
    ListPage,
    ObjectStat,
    Range,
)
from shardfs.version import __version__

_PIECE_NBYTES: Final = 2**18
_MAX_IDLE: Final = 64
_MAX_REDIRECTS: Final = 10
_MAX_ERROR_NBYTES: Final = 2**16
"""How much of the body of an error is read, so that its connection can be used again; else that is closed."""

_OK: Final = 200
_PARTIAL: Final = 206
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")
_NUMBER: Final = re.compile(r"\d{1,20}")
_PORTS: Final = {"http": 80, "https": 443}


class _Server(NamedTuple):
    """To whom a connection is."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: SplitResult) -> "_Server":
        """Return the server of a URL; raises `FailedAttempt`."""
        try:
            host, port = url.hostname, url.port
        except ValueError:
            host, port = None, None
        if url.scheme not in _PORTS or not host:
            raise FailedAttempt(NO_REPLY)
        return cls(url.scheme, host, port if port is not None else _PORTS[url.scheme])


class _Reader(io.RawIOBase):
    """The bytes that come by a connection; none is waited for longer than the server may be silent, nor without end."""

    def __init__(self, connection: socket.socket, timeouts: Timeouts) -> None:
        super().__init__()
        self._connection = connection
        self._raw = connection.makefile("rb", buffering=0)
        self._timeouts = timeouts
        self._end = time.monotonic() + timeouts.silence + timeouts.grace

    def begin_body(self) -> None:
        """Wait for all of the body, now that the headers are here."""
        self._end = time.monotonic() + self._timeouts.whole

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - as `io` has it
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        self._connection.settimeout(min(self._timeouts.silence, rest))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Reply(HTTPResponse):
    """A reply, of which nothing is waited for without end."""

    def __init__(self, connection: socket.socket, method: str | None = None, *, timeouts: Timeouts) -> None:
        self._reader = _Reader(connection, timeouts)
        super().__init__(self, method=method)  # type: ignore[arg-type]

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the bytes that come, for the class above."""
        return io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the headers."""
        super().begin()
        self._reader.begin_body()

    def end(self) -> bool:
        """Return whether all of it was read, so that another one can follow."""
        if self.length == 0:
            self.read()  # nothing, but now it is closed
        return self.isclosed() and not self.will_close


class _Link(NamedTuple):
    """A connection to a server, perhaps by a proxy, which gets *prefix* before each path, and *headers*."""

    connection: HTTPConnection
    prefix: str
    headers: Mapping[str, str]


class _Idle:
    """Links that are open and not in use, by server. Of more than `_MAX_IDLE`, the longest unused ones are closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._links: list[tuple[_Server, _Link]] = []

    def take(self, server: _Server) -> _Link | None:
        """Return the one that was used last; None if there is none."""
        with self._lock:
            for place in range(len(self._links) - 1, -1, -1):
                if self._links[place][0] == server:
                    return self._links.pop(place)[1]
        return None

    def put(self, server: _Server, link: _Link) -> None:
        """Keep one for the next request."""
        with self._lock:
            self._links.append((server, link))
            oldest = self._links.pop(0)[1] if len(self._links) > _MAX_IDLE else None
        if oldest is not None:
            oldest.connection.close()

    def __del__(self) -> None:
        for _, link in self._links:
            link.connection.close()


class WebAttempts:
    """Requests to the web server of *location*; see `Attempts`. It lists nothing."""

    def __init__(self, location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> None:
        self._location = location
        self._timeouts = timeouts
        self._idle = _Idle()
        self._lock = Lock()
        self._tls: ssl.SSLContext | None = None

    def head(self, key: str) -> ObjectStat:
        """Return the state of an object."""
        with self._reply("HEAD", key, {}) as reply:
            length = reply.headers.get("Content-Length", "")
            if _NUMBER.fullmatch(length) is None:
                raise FailedAttempt(NO_CONTENT_LENGTH)
            return _stat_of(reply, int(length))

    def get(self, key: str, part: Range, etag: str | None) -> Fetched:
        """Return a range of an object, of the version *etag* if given."""
        is_suffix = part.offset < 0
        wanted = f"-{part.nbytes}" if is_suffix else f"{part.offset}-{part.offset + part.nbytes - 1}"
        headers = {"Range": f"bytes={wanted}"}
        modified = modified_of(etag) if etag is not None else None
        if modified is not None:
            headers["If-Unmodified-Since"] = formatdate(modified, usegmt=True)
        elif etag is not None:
            headers["If-Match"] = etag
        with self._reply("GET", key, headers) as reply:
            if reply.status != _PARTIAL:
                raise FailedAttempt(NO_RANGES)
            content_range = _CONTENT_RANGE.fullmatch(reply.headers.get("Content-Range", ""))
            if content_range is None:
                raise FailedAttempt(NO_CONTENT_RANGE)
            start, last, size = map(int, content_range.groups())
            stat = _stat_of(reply, size)
            require_version(etag, stat)
            nbytes = last + 1 - start
            if (start, nbytes) != part.within(size):
                raise FailedAttempt(OTHER_RANGE)
            if reply.length is not None and reply.length != nbytes:
                raise FailedAttempt(TOO_MUCH if reply.length > nbytes else CUT_SHORT)
            return Fetched(stat, start, read_body(_pieces(reply), nbytes, self._timeouts))

    def list(self, prefix: str) -> ListPage:
        """Raise an error: nobody asks, because `store.WebStore` has names from documents."""
        raise NotImplementedError

    def has_below(self, prefix: str) -> bool:
        """Raise an error: nobody asks, because `store.WebStore` has names from documents."""
        raise NotImplementedError

    @contextmanager
    def _reply(self, method: str, key: str, headers: Mapping[str, str]) -> Iterator[_Reply]:
        """Yield a reply that is a success, perhaps behind redirects; raises `FailedAttempt`, also in the block."""
        check_key(key)
        url = self._location.url_of(key)
        with _failures():
            for _ in range(_MAX_REDIRECTS + 1):
                parts = urlsplit(url)
                server = _Server.of(parts)
                with self._exchange(method, server, parts, headers) as reply:
                    if reply.status in (_OK, _PARTIAL):
                        if reply.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
                            raise FailedAttempt(COMPRESSED)
                        yield reply
                        return
                    if reply.length is not None and reply.length <= _MAX_ERROR_NBYTES:
                        with suppress(FailedAttempt, OSError, HTTPException):  # the status is known
                            read_body(_pieces(reply), reply.length, self._timeouts)
                    if reply.status not in _REDIRECTS or "Location" not in reply.headers:
                        raise FailedAttempt(Failure.of_status(reply.status))
                    url = _redirected(url, reply.headers["Location"])
                    if server.scheme == "https" and urlsplit(url).scheme != "https":
                        raise FailedAttempt(LESS_SAFE)
            raise FailedAttempt(TOO_MANY_REDIRECTS)

    @contextmanager
    def _exchange(
        self, method: str, server: _Server, parts: SplitResult, headers: Mapping[str, str]
    ) -> Iterator[_Reply]:
        """Send a request; yield the reply, of which the headers are read, and close the connection or keep it.

        A connection that was not in use may have been closed by the server: then another one is tried.
        """
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        reply: _Reply | None = None
        while reply is None:
            idle = self._idle.take(server)
            link = idle if idle is not None else self._connect(server)
            try:
                link.connection.putrequest(method, link.prefix + target, skip_accept_encoding=True)
                for name, value in {**_HEADERS, **link.headers, **headers}.items():
                    link.connection.putheader(name, value)
                link.connection.endheaders()
                reply = link.connection.getresponse()  # type: ignore[assignment]
            except (ConnectionResetError, BrokenPipeError):
                link.connection.close()
                if idle is None:
                    raise
            except BaseException:
                link.connection.close()
                raise
        is_over = False
        try:
            yield reply
            is_over = True
        except FailedAttempt:
            is_over = True
            raise
        finally:
            if is_over and reply.end():
                self._idle.put(server, link)
            else:
                reply.close()
                link.connection.close()

    def _connect(self, server: _Server) -> _Link:
        proxy, prefix, headers = _proxy_of(server), "", {}
        host, port = (proxy.hostname or "", proxy.port or _PORTS["http"]) if proxy else (server.host, server.port)
        connection: HTTPConnection
        if server.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=self._timeouts.connect, context=self._context())
        else:
            connection = HTTPConnection(host, port, timeout=self._timeouts.connect)
        if proxy is not None:
            if proxy.username is not None:
                words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
                headers["Proxy-Authorization"] = f"Basic {b64encode(words.encode()).decode()}"
            if server.scheme == "https":
                connection.set_tunnel(server.host, server.port, headers)
                headers = {}
            else:
                host = f"[{server.host}]" if ":" in server.host else server.host
                prefix = f"http://{host}:{server.port}"
        connection.response_class = partial(_Reply, timeouts=self._timeouts)  # type: ignore[assignment]
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            raise FailedAttempt(NOT_TRUSTED) from None
        except (OSError, UnicodeError):
            raise FailedAttempt(NOT_CONNECTED) from None
        connection.sock.settimeout(self._timeouts.silence)
        return _Link(connection, prefix, headers)

    def _context(self) -> ssl.SSLContext:
        with self._lock:  # made when it is needed, because that takes some milliseconds
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls


_HEADERS: Final[Mapping[str, str]] = {"Accept-Encoding": "identity", "User-Agent": f"shardfs/{__version__}"}


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what `http.client` raises into `FailedAttempt`."""
    try:
        yield
    except TimeoutError:
        raise FailedAttempt(SILENT) from None
    except IncompleteRead:
        raise FailedAttempt(CUT_SHORT) from None
    except (OSError, HTTPException, UnicodeError):
        raise FailedAttempt(NO_REPLY) from None


def _redirected(url: str, location: str) -> str:
    """Return the URL to which a reply from *url* leads; raises `FailedAttempt`."""
    try:
        return urlsplit(urljoin(url, location)).geturl()
    except ValueError:
        raise FailedAttempt(NO_URL) from None


def _pieces(reply: _Reply) -> Iterator[bytes]:
    return iter(partial(reply.read1, _PIECE_NBYTES), b"")


def _stat_of(reply: _Reply, size: int) -> ObjectStat:
    modified = reply.headers.get("Last-Modified")
    try:
        seconds = _seconds_of(modified) if modified is not None else None
    except (ValueError, OverflowError):
        raise FailedAttempt(NO_LAST_MODIFIED) from None
    return object_stat(size, reply.headers.get("ETag"), seconds)


@lru_cache(maxsize=256)
def _seconds_of(date: str) -> int:
    return int(parsedate_to_datetime(date).timestamp())


def _proxy_of(server: _Server) -> SplitResult | None:
    """Return the proxy for a server in the environment; None if there is none."""
    proxies = getproxies()
    proxy = proxies.get(server.scheme, proxies.get("all"))
    if not proxy or proxy_bypass(server.host):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")
