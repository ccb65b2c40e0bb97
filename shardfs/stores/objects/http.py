"""Single HTTP requests, by libcurl: a reply is judged by its headers before any of its body is kept.

Nothing is allocated by what a reply states: a body takes as much memory as has come of it, and no more than was asked
for. All methods block, and may be called from several threads. A request that goes by a kept connection, which the
server then closes without a word, is sent again on a new one by libcurl itself; `Http.take_resent` counts that.
"""

import math
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit
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
    WITH_PASSWORD,
    Cause,
    FailedRequest,
    Failure,
    invalid,
)
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.objects.replies import states_more
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
_MAX_PROXIES: Final = 64
"""Of how many servers it is known whether there is a proxy for them: others redirect to as many as they like."""

_ORIGIN: Final = re.compile(r"([^/]*//)(?:[^/?#]*@)?([^/?#]*)")
_STATUS: Final = re.compile(r"[0-9]{3}")
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
        self._idle: list[_Link] = []
        self._proxy_of = lru_cache(_MAX_PROXIES)(_proxy_of)
        self._of_thread = threading.local()

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
        if _CONTROL.search("".join(headers.values())):
            raise FailedRequest(NONSENSE)
        silence = self.timeouts.reading if silence is None else silence
        for _ in range(_MAX_REDIRECTS + 1):
            signed = sign(method, url, headers) if sign is not None and origin == first else headers
            reply = self._perform(method, url, signed, self._proxy_of(origin), silence, judge, excess)
            if reply.status not in _REDIRECTS:
                return reply
            to = reply.headers.get("location")
            if to is None or "x-amz-bucket-region" in reply.headers:
                return reply
            url = _redirected(url, to)
            origin = _origin(url)
        raise FailedRequest(TOO_MANY_REDIRECTS)

    def take_resent(self) -> int:
        """Return how often libcurl has sent requests of this thread again, since the last call."""
        count: int = getattr(self._of_thread, "resent", 0)
        self._of_thread.resent = 0
        return count

    def _perform(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        proxy: str,
        silence: float,
        judge: Judge,
        excess: Failure,
    ) -> Reply:
        try:
            link = self._idle.pop()
        except IndexError:
            link = _Link(self.timeouts, self._certificates)
        try:
            return link.perform(method, url, headers, proxy, silence, judge, excess)
        finally:
            if link.nsent > 1:
                self._of_thread.resent = getattr(self._of_thread, "resent", 0) + link.nsent - 1
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(link)


def _proxy_of(origin: str) -> str:
    """Return the URL of the proxy for a server, as the environment has it; "" if there is none."""
    parts, proxies = urlsplit(origin), getproxies()
    proxy = proxies.get(parts.scheme, proxies.get("all")) or ""
    return "" if proxy_bypass(parts.hostname or "") else proxy


def _origin(url: str) -> str:
    """Return the part of a URL that names its server, for messages too: no password, and nothing of a query."""
    found = _ORIGIN.match(url)
    return "" if found is None else found[1] + found[2]


def _redirected(url: str, to: str) -> str:
    """Return the URL to which a reply from *url* leads; raises `FailedRequest`."""
    try:
        parts = urlsplit(urljoin(url, to))
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    if not is_server:
        raise FailedRequest(NO_URL)
    if "@" in parts.netloc:
        raise FailedRequest(WITH_PASSWORD)
    if url.startswith("https:") and parts.scheme != "https":
        raise FailedRequest(LESS_SAFE)
    return parts.geturl()


class _Link:
    """A handle of libcurl with its connections, set up once, and what comes of the request that it makes.

    *nsent* is how often the last request was sent. No callback may raise anything: `_take_body` returns what ends the
    transfer. Headers are only gathered, in *lines*, until the body begins: each callback costs as much as the work on a
    line.
    """

    def __init__(self, timeouts: Timeouts, certificates: str | None) -> None:
        self._timeouts = timeouts
        self._certificates = certificates
        self._handle = pycurl.Curl()
        self.nsent = 0
        self._is_head = False
        self._proxy = ""
        self._silence = -1.0
        self._lines: list[bytes] = []
        self._begin(_refuse, NONSENSE)
        self._set_up()

    def perform(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        proxy: str,
        silence: float,
        judge: Judge,
        excess: Failure,
    ) -> Reply:
        """Make a request, and return the reply; raises `FailedRequest`."""
        handle = self._handle
        self.nsent = 0
        self._begin(judge, excess)
        failure: Failure | None = None
        try:
            handle.setopt(pycurl.URL, url)
            handle.setopt(pycurl.HTTPHEADER, [f"{n}: {value}".encode("latin-1") for n, value in headers.items()])
            if self._is_head != (method == "HEAD") or self._proxy != proxy or self._silence != silence:
                self._change(method == "HEAD", proxy, silence)
            handle.perform()
        except pycurl.error as error:
            if not self._is_explained():
                failure = self._failed(error, url, silence)
        except UnicodeError:  # of a name that no host has
            failure = NO_URL
        if failure is None and not self._has_begun:
            self._read_headers()
        failure = self._failure or failure
        reply = Reply(self._status, self._headers, memoryview(self._body))
        self._begin(_refuse, NONSENSE)  # so that nothing here keeps a body
        if failure is not None:
            raise FailedRequest(failure)
        return reply

    def _set_up(self) -> None:
        """Set what is the same for all requests."""
        timeouts, set_option = self._timeouts, self._handle.setopt
        set_option(pycurl.PATH_AS_IS, 1)
        set_option(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        set_option(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        set_option(pycurl.USERAGENT, _AGENT)
        set_option(pycurl.PROXY, "")
        set_option(pycurl.NOPROXY, "")  # `Http` has looked at that
        set_option(_SUPPRESS_CONNECT_HEADERS, 1)
        set_option(pycurl.NOSIGNAL, 1)
        set_option(pycurl.MAXCONNECTS, _MAX_CONNECTIONS)
        set_option(pycurl.BUFFERSIZE, _BUFFER_NBYTES)
        set_option(pycurl.CONNECTTIMEOUT_MS, max(1, round(timeouts.connect * 1000)))
        set_option(pycurl.TIMEOUT_MS, max(1, round(timeouts.whole * 1000)))
        set_option(pycurl.LOW_SPEED_LIMIT, min(max(1, round(timeouts.rate)), _MOST_RATE))
        set_option(pycurl.PREREQFUNCTION, self._count_sent)
        set_option(pycurl.HEADERFUNCTION, self._lines.append)
        set_option(pycurl.WRITEFUNCTION, self._take_body)
        if self._certificates is not None:
            set_option(pycurl.CAINFO, self._certificates)
            return
        paths = ssl.get_default_verify_paths()  # which SSL_CERT_FILE and SSL_CERT_DIR change
        if paths.cafile is not None:
            set_option(pycurl.CAINFO, paths.cafile)
        if paths.capath is not None:
            set_option(pycurl.CAPATH, paths.capath)
        if paths.cafile is None and paths.capath is None:
            set_option(pycurl.SSL_OPTIONS, pycurl.SSLOPT_NATIVE_CA)

    def _change(self, is_head: bool, proxy: str, silence: float) -> None:
        """Set what is seldom different from the request before."""
        self._is_head, self._proxy, self._silence = is_head, proxy, silence
        self._handle.setopt(pycurl.NOBODY if is_head else pycurl.HTTPGET, 1)
        self._handle.setopt(pycurl.PROXY, proxy)
        self._handle.setopt(pycurl.LOW_SPEED_TIME, max(1, round(silence)))

    def _begin(self, judge: Judge, excess: Failure) -> None:
        """Forget the last request."""
        self._lines.clear()
        self._judge = judge
        self._excess = excess
        self._failure: Failure | None = None
        self._has_begun = False
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._most = 0
        self._began = self._last = -math.inf

    def _count_sent(self, *addresses: object) -> int:
        """Count that the request is sent, on a connection between these *addresses*."""
        self.nsent += 1
        return _GO_ON

    def _take_body(self, data: bytes) -> int | None:
        """Take some of the body; before the first of it, decide what of it is wanted."""
        self._last = now = time.monotonic()
        if not self._has_begun:
            self._began = now
            self._read_headers()
        body = self._body
        if self._failure is not None:
            return -1
        if len(body) + len(data) > self._most:
            if self._status < _NO_SUCCESS:
                self._failure = self._excess
            return -1
        body += data
        if self._timeouts.is_too_slow(len(body), now - self._began):
            self._failure = SLOW
            return -1
        return None

    def _read_headers(self) -> None:
        """Read the headers; what follows a body says nothing, nor does a reply that says that another one comes."""
        self._has_begun = True
        headers = self._headers
        for line in b"".join(self._lines).decode("latin-1").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers.setdefault(name.lower().rstrip(), value.strip())
            elif line.startswith("HTTP/"):
                words = line.split(None, 2)
                self._status = int(words[1]) if len(words) > 1 and _STATUS.fullmatch(words[1]) else 0
                headers.clear()
        if self._status >= _NO_SUCCESS:
            length = headers.get("content-length", "")
            self._most = 0 if states_more(length, MAX_ERROR_NBYTES) else MAX_ERROR_NBYTES
            return
        try:
            self._most = self._judge(self._status, headers)
        except FailedRequest as error:
            self._failure = error.failure

    def _is_explained(self) -> bool:
        """Whether the status tells why there is nothing, whatever became of the body that goes with it."""
        if not self._has_begun and self._lines and not self._lines[-1].strip():
            self._read_headers()
        return self._has_begun and self._status >= _NO_SUCCESS

    def _failed(self, error: pycurl.error, url: str, silence: float) -> Failure:
        """Return what a number of libcurl means."""
        number, words = error.args
        is_late = number == pycurl.E_OPERATION_TIMEDOUT
        if number in _CONNECTING or (is_late and not self._handle.getinfo(pycurl.PRETRANSFER_TIME)):
            return self._not_connected(number, url)
        if is_late:
            return SLOW if time.monotonic() - self._last < silence else SILENT
        if number in _REPLIES:
            return _REPLIES[number]
        return invalid("Content-Length") if "Content-Length" in words else NONSENSE

    def _not_connected(self, number: int, url: str) -> Failure:
        """Return why a connection could not be made."""
        endpoint, handle = _origin(url), self._handle
        if number in (pycurl.E_SSL_CACERT, pycurl.E_SSL_CACERT_BADFILE):
            result = handle.getinfo(pycurl.SSL_VERIFYRESULT)
            variable = "SSL_CERT_FILE" if self._certificates is None else "AWS_CA_BUNDLE"
            unknown = _UNKNOWN_AUTHORITY.format(variable=variable)
            reason = _UNTRUSTED.get(result, unknown) if number == pycurl.E_SSL_CACERT else _NO_CERTIFICATES
            return Failure(Cause.NOT_TRUSTED, f"{endpoint} is not trusted: {reason}")
        where = endpoint
        if self._proxy:
            full = self._proxy if "://" in self._proxy else f"//{self._proxy}"
            shown = urlsplit(full).netloc.rpartition("@")[2]  # without a password
            variable = f"{endpoint.partition(':')[0].upper()}_PROXY"
            where = f"the proxy {shown} ({variable}), through which {endpoint} is asked,"
        if number == pycurl.E_OPERATION_TIMEDOUT:
            reason, is_silent = SILENT.reason, True
        elif self._proxy and handle.getinfo(pycurl.HTTP_CONNECTCODE) >= _NO_SUCCESS:
            reason, is_silent = "it does not connect to the server", False
        else:
            reason = _CONNECTING[number] or _ERRNOS.get(handle.getinfo(pycurl.OS_ERRNO), "")
            is_silent = False
        what = f"{where} cannot be reached: {reason}" if reason else f"{where} cannot be reached"
        return Failure(Cause.NOT_SENT, what, is_silent=is_silent)


def _refuse(status: int, headers: Mapping[str, str]) -> int:
    """Want nothing: no request is being made."""
    return 0


_GO_ON: Final[int] = pycurl.PREREQFUNC_OK

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
