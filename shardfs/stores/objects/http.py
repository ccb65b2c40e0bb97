"""Single HTTP requests, by libcurl: a reply is judged by its headers before any of its body is kept.

Nothing is allocated by what a reply states: a body takes as much memory as has come of it, and no more than was asked
for. All methods block, and may be called from several threads. A request that goes by a kept connection, which the
server then closes without a word, is sent again on a new one by libcurl itself.
"""

import math
import re
import ssl
import time
from collections.abc import Callable, Mapping
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import pycurl

from shardfs.stores.objects.failures import (
    BROKEN,
    LESS_SAFE,
    NO_URL,
    NONSENSE,
    SILENT,
    SLOW,
    TOO_MANY_REDIRECTS,
    TOO_MUCH,
    TRUNCATED,
    Cause,
    FailedRequest,
    Failure,
    invalid,
)
from shardfs.stores.objects.pace import Meter, Timeouts
from shardfs.version import __version__

Judge = Callable[[int, Mapping[str, str]], int]
"""Returns how many bytes the body of a success has, by status and headers, at most; or raises `FailedRequest`."""

Sign = Callable[[str, str, Mapping[str, str]], Mapping[str, str]]
"""Returns the headers of a request to a URL with all that the server wants to see, such as a signature."""

MAX_ERROR_NBYTES: Final = 2**16
"""How much is read of the body of a reply that is no success; of one that states more, nothing is read."""

_MAX_IDLE: Final = 64
_MAX_CONNECTIONS: Final = 2
"""How many connections a handle keeps: to the server, and to where it redirects."""

_BUFFER_NBYTES: Final = 2**17
_MOST_RATE: Final = 2**31 - 1
_MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NO_SUCCESS: Final = 300
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
"""What no header has in it: where a line ends, another one would begin."""

_AGENT: Final = f"shardfs/{__version__}"


class Reply(NamedTuple):
    """A reply; the names of its *headers* are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked for."""
        return self.status < _NO_SUCCESS


class Http:
    """Requests to any server, each sent once; connections that are open stay so for the next ones.

    *certificates* is a file of those to trust, as AWS_CA_BUNDLE names one; None stands for those of the system.
    """

    def __init__(self, timeouts: Timeouts, certificates: str | None = None) -> None:
        self.timeouts = timeouts
        self._certificates = certificates
        self._idle: list[pycurl.Curl] = []
        self._proxies: dict[tuple[str, str], str] = {}

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        judge: Judge,
        *,
        sign: Sign | None = None,
        excess: Failure = TOO_MUCH,
        silence: float | None = None,
    ) -> Reply:
        """Return the reply to a request without a body, behind redirects if there are any; raises `FailedRequest`.

        A reply that is no success is returned with as much of its body as explains it. If the body of another is longer
        than *judge* allows, that is the failure *excess*. Another server is not sent what *sign* adds. *silence* is for
        how many seconds the server may say nothing.
        """
        first = origin = _origin(url)
        if any(map(_CONTROL.search, headers.values())):
            raise FailedRequest(NONSENSE)
        silence = self.timeouts.reading if silence is None else silence
        for _ in range(_MAX_REDIRECTS + 1):
            signed = sign(method, url, headers) if sign is not None and origin == first else headers
            exchange = _Exchange(judge, excess, self.timeouts)
            reply = self._perform(method, url, origin, signed, exchange, silence)
            to = reply.headers.get("location")
            if reply.status not in _REDIRECTS or to is None or "x-amz-bucket-region" in reply.headers:
                return reply
            try:
                url = urlsplit(urljoin(url, to)).geturl()
            except ValueError:
                raise FailedRequest(NO_URL) from None
            if origin.scheme == "https" and urlsplit(url).scheme != "https":
                raise FailedRequest(LESS_SAFE)
            origin = _origin(url)
        raise FailedRequest(TOO_MANY_REDIRECTS)

    def _perform(
        self,
        method: str,
        url: str,
        server: "_Server",
        headers: Mapping[str, str],
        exchange: "_Exchange",
        silence: float,
    ) -> Reply:
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = pycurl.Curl()
        proxy = self._proxy_of(server)
        failure: Failure | None = None
        try:
            self._set_up(handle, method, url, proxy, headers, exchange, silence)
            handle.perform()
        except pycurl.error as error:
            if not exchange.is_explained():
                failure = self._failure(handle, error, url, proxy) or exchange.stalled(silence)
        except UnicodeError:  # of a name that no host has
            failure = NO_URL
        reply = exchange.reply() if failure is None else None
        failure = exchange.failure or failure
        if len(self._idle) < _MAX_IDLE:
            handle.reset()  # which keeps its connections
            self._idle.append(handle)
        if reply is None:
            raise FailedRequest(failure or NONSENSE)
        return reply

    def _set_up(
        self,
        handle: pycurl.Curl,
        method: str,
        url: str,
        proxy: str,
        headers: Mapping[str, str],
        exchange: "_Exchange",
        silence: float,
    ) -> None:
        set_option = handle.setopt
        set_option(pycurl.URL, url)
        set_option(pycurl.PATH_AS_IS, 1)
        set_option(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        set_option(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        set_option(pycurl.HTTPHEADER, [f"{name}: {value}".encode("latin-1") for name, value in headers.items()])
        set_option(pycurl.USERAGENT, _AGENT)
        if method == "HEAD":
            set_option(pycurl.NOBODY, 1)
        set_option(pycurl.PROXY, proxy)
        set_option(pycurl.NOPROXY, "")  # `_proxy_of` has looked at that
        if proxy:
            set_option(_SUPPRESS_CONNECT_HEADERS, 1)
        if url.startswith("https"):
            self._trust(handle)
        set_option(pycurl.NOSIGNAL, 1)
        set_option(pycurl.MAXCONNECTS, _MAX_CONNECTIONS)
        set_option(pycurl.BUFFERSIZE, _BUFFER_NBYTES)
        set_option(pycurl.CONNECTTIMEOUT_MS, max(1, round(self.timeouts.connect * 1000)))
        set_option(pycurl.TIMEOUT_MS, max(1, round(self.timeouts.whole * 1000)))
        set_option(pycurl.LOW_SPEED_TIME, max(1, round(silence)))
        set_option(pycurl.LOW_SPEED_LIMIT, min(max(1, round(self.timeouts.rate)), _MOST_RATE))
        set_option(pycurl.HEADERFUNCTION, exchange.lines.append)
        set_option(pycurl.WRITEFUNCTION, exchange.take_body)

    def _trust(self, handle: pycurl.Curl) -> None:
        """Name the certificates to trust: those that OpenSSL would, which SSL_CERT_FILE and SSL_CERT_DIR change."""
        if self._certificates is not None:
            handle.setopt(pycurl.CAINFO, self._certificates)
            return
        paths = ssl.get_default_verify_paths()
        if paths.cafile is not None:
            handle.setopt(pycurl.CAINFO, paths.cafile)
        if paths.capath is not None:
            handle.setopt(pycurl.CAPATH, paths.capath)
        if paths.cafile is None and paths.capath is None:
            handle.setopt(pycurl.SSL_OPTIONS, pycurl.SSLOPT_NATIVE_CA)

    def _proxy_of(self, server: "_Server") -> str:
        """Return the URL of the proxy for a server, as the environment has it; "" if there is none."""
        known = self._proxies.get((server.scheme, server.host))
        if known is None:
            proxies = getproxies()
            proxy = proxies.get(server.scheme, proxies.get("all")) or ""
            known = self._proxies[server.scheme, server.host] = "" if proxy_bypass(server.host) else proxy
        return known

    def _failure(self, handle: pycurl.Curl, error: pycurl.error, url: str, proxy: str) -> Failure | None:
        """Return what a number of libcurl means; None for a connection by which too little comes."""
        number, words = error.args
        if number in _CONNECTING or (
            number == pycurl.E_OPERATION_TIMEDOUT and not handle.getinfo(pycurl.PRETRANSFER_TIME)
        ):
            return self._not_connected(handle, number, url, proxy)
        if number == pycurl.E_OPERATION_TIMEDOUT:
            return None
        if number in _REPLIES:
            return _REPLIES[number]
        return invalid("Content-Length") if "Content-Length" in words else NONSENSE

    def _not_connected(self, handle: pycurl.Curl, number: int, url: str, proxy: str) -> Failure:
        """Return why a connection could not be made."""
        parts = urlsplit(url)
        endpoint = f"{parts.scheme}://{parts.netloc}"
        if number in (pycurl.E_SSL_CACERT, pycurl.E_SSL_CACERT_BADFILE):
            result = handle.getinfo(pycurl.SSL_VERIFYRESULT)
            variable = "SSL_CERT_FILE" if self._certificates is None else "AWS_CA_BUNDLE"
            unknown = _UNKNOWN_AUTHORITY.format(variable=variable)
            reason = _UNTRUSTED.get(result, unknown) if number == pycurl.E_SSL_CACERT else _NO_CERTIFICATES
            return Failure(Cause.NOT_TRUSTED, f"{endpoint} is not trusted: {reason}")
        where = endpoint
        if proxy:
            shown = urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]  # without a password
            where = f"the proxy {shown} ({parts.scheme.upper()}_PROXY), through which {endpoint} is asked,"
        if number == pycurl.E_OPERATION_TIMEDOUT:
            reason, is_silent = SILENT.reason, True
        elif proxy and handle.getinfo(pycurl.HTTP_CONNECTCODE) >= _NO_SUCCESS:
            reason, is_silent = "it does not connect to the server", False
        else:
            reason = _CONNECTING[number] or _ERRNOS.get(handle.getinfo(pycurl.OS_ERRNO), "")
            is_silent = False
        what = f"{where} cannot be reached: {reason}" if reason else f"{where} cannot be reached"
        return Failure(Cause.NOT_SENT, what, is_silent=is_silent)


class _Server(NamedTuple):
    """To whom a connection is."""

    scheme: str
    host: str
    port: int | None


def _origin(url: str) -> _Server:
    """Return the server of a URL; raises `FailedRequest`."""
    try:
        parts: SplitResult = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise FailedRequest(NO_URL)
    return _Server(parts.scheme, host, port)


class _Exchange:
    """What comes of one request, as libcurl hands it over; *failure* is why the rest is not wanted.

    No callback may raise anything: `take_body` returns what ends the transfer. Headers are only gathered, in *lines*,
    until the body begins: each callback costs as much as the work on a line.
    """

    __slots__ = (
        "_body",
        "_excess",
        "_has_begun",
        "_headers",
        "_judge",
        "_last",
        "_meter",
        "_most",
        "_status",
        "_timeouts",
        "failure",
        "lines",
    )

    def __init__(self, judge: Judge, excess: Failure, timeouts: Timeouts) -> None:
        self.lines: list[bytes] = []
        self.failure: Failure | None = None
        self._judge = judge
        self._excess = excess
        self._timeouts = timeouts
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._most = 0
        self._has_begun = False
        self._last = -math.inf
        self._meter: Meter | None = None

    def is_explained(self) -> bool:
        """Whether the status tells why there is nothing, whatever became of the body that goes with it."""
        if not self._has_begun and self.lines and not self.lines[-1].strip():
            self._begin_body()
        return self._has_begun and self._status >= _NO_SUCCESS

    def reply(self) -> Reply | None:
        """Return the reply, now that nothing more comes; None if it is a failure."""
        if not self._has_begun:
            self._begin_body()
        return Reply(self._status, self._headers, memoryview(self._body)) if self.failure is None else None

    def stalled(self, silence: float) -> Failure:
        """Return what it is called that too little comes."""
        return SLOW if time.monotonic() - self._last < silence else SILENT

    def take_body(self, data: bytes) -> int | None:
        """Take some of the body; before the first of it, decide what of it is wanted."""
        self._last = time.monotonic()
        if not self._has_begun:
            self._begin_body()
            self._meter = Meter(self._timeouts)
        if self.failure is not None:
            return -1
        if len(self._body) + len(data) > self._most:
            if self._status < _NO_SUCCESS:
                self.failure = self._excess
            return -1
        self._body += data
        if self._meter is not None and self._meter.is_slow_after(len(data)):
            self.failure = SLOW
            return -1
        return None

    def _begin_body(self) -> None:
        """Read the headers; what follows a body says nothing, nor does a reply that says that another one comes."""
        self._has_begun = True
        for line in b"".join(self.lines).decode("latin-1").split("\r\n"):
            if line.startswith("HTTP/"):
                words = line.split(None, 2)
                self._status = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
                self._headers = {}
                continue
            name, colon, value = line.partition(":")
            if colon:
                self._headers.setdefault(name.strip().lower(), value.strip())
        if self._status >= _NO_SUCCESS:
            length = self._headers.get("content-length", "")
            self._most = 0 if length.isdecimal() and int(length) > MAX_ERROR_NBYTES else MAX_ERROR_NBYTES
            return
        try:
            self._most = self._judge(self._status, self._headers)
        except FailedRequest as error:
            self.failure = error.failure


_SUPPRESS_CONNECT_HEADERS: Final = 265
"""An option by which the reply of a proxy is no part of that of the server; pycurl has no name for it."""

_E_PROXY: Final = 97
"""What libcurl says of a proxy that refuses; pycurl has no name for it."""

_CONNECTING: Final[Mapping[int, str]] = {
    pycurl.E_COULDNT_RESOLVE_PROXY: "its name cannot be resolved",
    pycurl.E_COULDNT_RESOLVE_HOST: "its name cannot be resolved",
    pycurl.E_COULDNT_CONNECT: "",
    pycurl.E_SSL_CONNECT_ERROR: "TLS failed; does its URL begin with http://?",
    pycurl.E_SSL_CACERT: "",
    pycurl.E_SSL_CACERT_BADFILE: "",
    _E_PROXY: "it does not connect to the server",
}
"""What keeps a connection from being made."""

_ERRNOS: Final[Mapping[int, str]] = {
    ECONNREFUSED: "the connection is refused",
    ENETUNREACH: "there is no network",
    EHOSTUNREACH: "there is no network",
}
_UNKNOWN_AUTHORITY: Final = (
    "its certificate is signed by an unknown authority; {variable} can name a file with certificates to trust"
)
_NO_CERTIFICATES: Final = "the file with the certificates to trust cannot be read"
_UNTRUSTED: Final[Mapping[int, str]] = {
    **dict.fromkeys((0, 1, 62, 64), "its certificate is for another name"),  # libcurl itself compares names
    9: "its certificate is not valid yet; is the clock of this machine right?",
    10: "its certificate has expired",
}
"""By the numbers of OpenSSL (X509_V_ERR)."""

_REPLIES: Final[Mapping[int, Failure]] = {
    pycurl.E_PARTIAL_FILE: TRUNCATED,
    pycurl.E_GOT_NOTHING: BROKEN,
    pycurl.E_RECV_ERROR: BROKEN,
    pycurl.E_SEND_ERROR: BROKEN,
}
