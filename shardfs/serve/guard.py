"""Who may ask: the host that a request names, the origin of the page that sends it, and the token."""

import binascii
import re
from base64 import b64decode
from ipaddress import AddressValueError, IPv6Address
from secrets import compare_digest
from typing import Final

from shardfs.serve.exchange import READING, ClientError, Exchange, Header
from shardfs.serve.options import ServeOptions, is_loopback

CHALLENGES: Final = (("WWW-Authenticate", 'Basic realm="shardfs"'), ("WWW-Authenticate", 'Bearer realm="shardfs"'))
"""What a reply to a request without the token says: browsers ask their user for a password, and programs send it."""

_EXPOSED: Final = "Content-Range, Content-Length, ETag, Accept-Ranges, Last-Modified"
_MAX_AGE: Final = "86400"
_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]*))(?::[0-9]{0,5})?", re.ASCII)
"""An address of version 6 in brackets, or a name or address; no user in front, and nothing but a port behind."""

_AUTHORITY: Final = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)


class Guard:
    """Lets requests in, and informs browsers which pages may see the replies.

    - A server on loopback answers only to the names of this machine: another name means that a page of a stranger
      lets its own host name resolve to 127.0.0.1, and so passes for one of ours.
    - Pages of other origins may read as *options* say. They may write only if their origin is named: "*" is for
      reading.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._cors = frozenset(options.cors)
        self._token = options.token.encode() if options.token is not None else None
        self._writes = options.write

    def check(self, exchange: Exchange) -> None:
        """Raise `ClientError` for a request that is refused; else let its reply have the headers for browsers."""
        host = self._host(exchange)
        name = _name(host) if host is not None else None
        if exchange.connection.is_loopback and name is not None and not is_loopback(name):
            raise ClientError(421, f"this server is at a loopback address, and {name} is none of its names")
        origin = exchange.header("origin")
        exchange.head.extend(self._for_origin(origin))
        is_own = origin is not None and host is not None and origin.partition("://")[2].lower() == host.lower()
        if exchange.method not in READING and origin is not None and not is_own and origin not in self._cors:
            raise ClientError(403, f"pages of {origin} may not write: name them with --cors")

    def admits(self, exchange: Exchange) -> bool:
        """Whether the request has the token, if it needs one: as such, or as the password of any user."""
        if self._token is None:
            return True
        scheme, _, text = (exchange.header("authorization") or "").partition(" ")
        given = text.strip().encode("latin-1")
        match scheme.lower():
            case "bearer":
                return compare_digest(given, self._token)
            case "basic":
                return compare_digest(_password(given), self._token)
        return False

    def for_preflight(self, exchange: Exchange) -> list[Header]:
        """Return the headers that tell a browser what a page may ask for; none for one that may not."""
        origin, method = exchange.header("origin"), exchange.header("access-control-request-method")
        if method is None or not ({"*", origin} & self._cors):
            return []
        methods = [*READING, "PUT", "DELETE", "POST"] if self._writes and origin in self._cors else READING
        found = [("Access-Control-Allow-Methods", ", ".join(methods)), ("Access-Control-Max-Age", _MAX_AGE)]
        wanted = exchange.header("access-control-request-headers")
        if wanted is not None and _NAMES.fullmatch(wanted):
            found.append(("Access-Control-Allow-Headers", wanted))
        if (exchange.header("access-control-request-private-network") or "").lower() == "true":
            found.append(("Access-Control-Allow-Private-Network", "true"))
        return found

    def _for_origin(self, origin: str | None) -> list[Header]:
        exposed = ("Access-Control-Expose-Headers", _EXPOSED)
        if "*" in self._cors:
            return [("Access-Control-Allow-Origin", "*"), exposed]
        varies = ("Vary", "Origin")
        if origin is None or origin not in self._cors:
            return [varies]
        return [("Access-Control-Allow-Origin", origin), exposed, varies]

    def origin(self, exchange: Exchange) -> str:
        """Return the URL of this server as the client knows it, with a slash; a proxy says if that is https."""
        scheme = "https" if (exchange.header("x-forwarded-proto") or "").strip().lower() == "https" else "http"
        return f"{scheme}://{self._host(exchange) or 'localhost'}/"

    @staticmethod
    def _host(exchange: Exchange) -> str | None:
        """Return the host that the request names; one in the target counts instead of the header."""
        found = _AUTHORITY.match(exchange.target)
        return found[1].decode("latin-1") if found is not None else exchange.header("host")


def _password(credentials: bytes) -> bytes:
    """Return the password in credentials of the scheme Basic; "" for what are none."""
    try:
        return b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _name(host: str) -> str:
    """Return *host* without its port; raises `ClientError` for what is no host with or without a port."""
    found = _HOST.fullmatch(host)
    if found is None:
        raise ClientError(400, f"{host[:100]!r} is no name or address of a host")
    address, name = found[1], found[2]
    if address is not None:
        try:
            IPv6Address(address)
        except AddressValueError:
            raise ClientError(400, f"[{address[:100]}] is no address of a host") from None
        return address
    return name
