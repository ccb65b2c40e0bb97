"""One request and its reply on a connection: all that is known of h11 and of sockets.

A client may take its time, but not more than `ClientLimits` say without any progress. A reply that cannot be completed
breaks the connection, so that nobody takes a part for the whole.
"""

import http
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import h11
import trio

from shardfs.errors import ShardfsError
from shardfs.serve.options import ClientLimits
from shardfs.stores.base import Buffer
from shardfs.stores.parallel import open_nursery

log = logging.getLogger(__name__)

Header = tuple[str, str]

READING: Final = ("GET", "HEAD", "OPTIONS")
"""The methods that change nothing."""

_RECEIVE_NBYTES: Final = 64 * 2**10
_DISCARDED_NBYTES: Final = 64 * 2**10
"""How much of a body that nobody wants is read so that the connection can be used again."""
_LINGER_SECONDS: Final = 2.0
_HEADER_NBYTES: Final = 4
"""What a header takes beside its name and value."""
_ABORT: Final = struct.pack("ii", 1, 0)


class ClientGoneError(Exception):
    """The client closed the connection, or was too slow."""


class ClientError(ShardfsError):
    """The request cannot be answered as it is: the reply has the *status*, and the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """A client that is connected; *is_ending* lets it have the reply to its present request, and no other."""

    def __init__(self, stream: trio.SocketStream, limits: ClientLimits) -> None:
        self.limits = limits
        self.is_ending = False
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_nbytes)
        self._waiting: trio.CancelScope | None = None
        self._sends = False

    @property
    def is_loopback(self) -> bool:
        """Whether the client reached an address of this machine that nobody else reaches."""
        address: str = self._stream.socket.getsockname()[0]
        return address == "::1" or address.startswith(("127.", "::ffff:127."))

    def end(self) -> None:
        """Close the connection as soon as the present request, if there is one, is answered."""
        self.is_ending = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def next_exchange(self) -> "Exchange | None":
        """Wait for the next request; None at the end.

        Raises `ClientError` for one that is malformed or too large, and `ClientGoneError`.
        """
        if self._h11.our_state is not h11.IDLE:
            if self._h11.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                return None
            self._h11.start_next_cycle()
        begun, is_begun = trio.current_time(), False
        while True:
            event = self._next_event()
            if isinstance(event, h11.Request):
                exchange = Exchange(self, event)
                if not exchange.has_body:
                    self._next_event()  # the end of the request
                return exchange
            if event is not h11.NEED_DATA:
                return None
            if self.is_ending:
                return None
            if not is_begun and self._h11.trailing_data[0]:
                begun, is_begun = trio.current_time(), True
            seconds = self.limits.head_seconds if is_begun else self.limits.idle_seconds
            with trio.move_on_at(begun + seconds) as self._waiting:
                await self._receive()
            is_over, self._waiting = self._waiting.cancelled_caught, None
            if is_over and is_begun and not self.is_ending:
                raise ClientError(408, f"the head of a request took more than {self.limits.head_seconds:g} seconds")
            if is_over:
                return None

    @asynccontextmanager
    async def while_present(self) -> AsyncIterator[None]:
        """Do a block that takes long, and neither reads nor replies, for as long as the client is there.

        If it goes away, the block is cancelled, and `ClientGoneError` raised. One that has sent another request already
        is taken to be there.
        """
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            try:
                await trio.lowlevel.wait_readable(self._stream.socket)
                is_gone = not await self._stream.socket.recv(1, socket.MSG_PEEK)
            except OSError:
                is_gone = True
            if is_gone:
                nursery.cancel_scope.cancel()

        async with open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
        if is_gone:
            raise ClientGoneError

    async def read_body(self) -> bytes | None:
        """Return the next piece of the body of the present request; None at its end."""
        while True:
            if self._h11.they_are_waiting_for_100_continue:
                continues = h11.InformationalResponse(status_code=100, headers=[])
                await self._send(self._h11.send(continues) or b"")
            event = self._next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None
            if event is not h11.NEED_DATA:
                raise ClientGoneError
            with trio.move_on_after(self.limits.body_seconds) as scope:
                await self._receive()
            if scope.cancelled_caught:
                raise ClientError(408, f"no byte of the body came for {self.limits.body_seconds:g} seconds")

    async def finish_body(self) -> None:
        """Read what is left of a body, if it is little and comes by itself."""
        if self._h11.their_state is not h11.SEND_BODY:
            return
        rest = 0
        with suppress(ClientError), trio.move_on_after(_LINGER_SECONDS):
            while self._h11.their_state is h11.SEND_BODY and not self._h11.they_are_waiting_for_100_continue:
                piece = await self.read_body()
                rest += len(piece or b"")
                if piece is None or rest > _DISCARDED_NBYTES:
                    return

    @property
    def has_unread_body(self) -> bool:
        """Whether something of the body of the request has not been read."""
        return self._h11.their_state is h11.SEND_BODY

    async def send_head(self, status: int, headers: Sequence[Header], first: Buffer = b"") -> None:
        """Send the head of a reply, and the *first* bytes of its body."""
        head = self._h11.send(h11.Response(status_code=status, headers=list(headers), reason=_reason(status))) or b""
        self._sends = True
        await self._send(head, *self._packed(first))

    async def refuse(self, error: "ClientError") -> None:
        """Reply to what is no request."""
        if self._h11.our_state is h11.IDLE or self._h11.our_state is h11.SEND_RESPONSE:
            text = f"{error}\n".encode(errors="backslashreplace")
            headers = [*_date(), ("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
            await self.send_head(error.status, [*headers, ("Connection", "close")], text)
            await self.send_end()

    async def send_piece(self, piece: Buffer) -> None:
        """Send more of the body."""
        await self._send(*self._packed(piece))

    def _packed(self, piece: Buffer) -> list[Buffer]:
        if not len(piece):
            return []
        return [*(self._h11.send_with_data_passthrough(h11.Data(data=piece)) or [])]  # type: ignore[arg-type]

    async def send_end(self) -> None:
        """End the reply."""
        await self._send(self._h11.send(h11.EndOfMessage()) or b"")
        self._sends = False

    @property
    def has_begun_to_reply(self) -> bool:
        """Whether the head of a reply was sent, so that it cannot become an error any more."""
        return self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    def abort(self) -> None:
        """Break the connection: the client sees that the reply has no end."""
        with suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._stream.socket.close()

    async def close(self) -> None:
        """Close the connection; first let the client read the reply to a request that was not read to its end."""
        if self._sends:
            self.abort()
            return
        with trio.move_on_after(_LINGER_SECONDS) as scope, suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            scope.shield = True
            if self._h11.their_state in (h11.SEND_BODY, h11.ERROR):
                await self._stream.send_eof()
                while await self._stream.receive_some(_RECEIVE_NBYTES):
                    pass
        await trio.aclose_forcefully(self._stream)

    def _next_event(self) -> object:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise ClientError(error.error_status_hint or 400, f"this is not HTTP/1.1: {error}") from None

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(_RECEIVE_NBYTES)
            self._h11.receive_data(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            raise ClientGoneError from None

    async def _send(self, *parts: Buffer) -> None:
        """Send all *parts*, in one call if the client takes them; each byte it takes begins the time limit again."""
        rest = [memoryview(part).cast("B") for part in parts if len(part)]
        while rest:
            with trio.move_on_after(self.limits.reply_seconds) as scope:
                try:
                    nsent = await self._stream.socket.sendmsg(rest)
                except OSError:
                    raise ClientGoneError from None
            if scope.cancelled_caught:
                raise ClientGoneError
            while rest and nsent >= len(rest[0]):
                nsent -= len(rest.pop(0))
            if nsent:
                rest[0] = rest[0][nsent:]


class Exchange:
    """A request, and the reply to it; *head* are headers that any reply to it has."""

    def __init__(self, connection: Connection, request: h11.Request) -> None:
        self.connection = connection
        self.method = request.method.decode("ascii")
        self.target = request.target
        self.version = request.http_version
        self.head: list[Header] = []
        self._headers: dict[bytes, list[bytes]] = {}
        for name, value in request.headers:
            self._headers.setdefault(name, []).append(value)
        self.status = 0
        self.nsent = 0

    def header(self, name: str) -> str | None:
        """Return the value of a header, several joined by commas; None if it is not there."""
        values = self._headers.get(name.lower().encode("ascii"))
        return b", ".join(values).decode("latin-1") if values is not None else None

    @property
    def has_body(self) -> bool:
        """Whether the request comes with a body, perhaps an empty one."""
        return b"content-length" in self._headers or b"transfer-encoding" in self._headers

    def check(self) -> None:
        """Raise `ClientError` for what two servers might understand differently, and what is too much."""
        if self.version not in (b"1.0", b"1.1"):
            raise ClientError(505, "this server speaks HTTP/1.1")
        has_length, coding = self.header("content-length") is not None, self.header("transfer-encoding")
        if coding is not None and (has_length or self.version == b"1.0"):
            raise ClientError(400, "Transfer-Encoding contradicts Content-Length, or HTTP/1.0")
        if (
            sum(len(name) + len(value) + _HEADER_NBYTES for name, values in self._headers.items() for value in values)
            > self.connection.limits.head_nbytes
        ):
            raise ClientError(431, "the head is too large")
        if len(self.target) > self.connection.limits.target_nbytes:
            raise ClientError(414, "the target is too long")
        expected = self.header("expect")
        if expected is not None and expected.lower() != "100-continue":
            raise ClientError(417, "only 100-continue can be expected")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the request; raises `ClientError` if it is too large or too slow."""
        limits, nbytes, waited = self.connection.limits, 0, 0.0
        limit = limits.body_nbytes
        length = self.header("content-length")
        if length is not None and (len(length) > 18 or int(length) > limit):
            raise ClientError(413, f"a body has at most {limit:,} bytes here")
        begun = trio.current_time()
        while (piece := await self.connection.read_body()) is not None:
            nbytes += len(piece)
            if nbytes > limit:
                raise ClientError(413, f"a body has at most {limit:,} bytes here")
            waited += trio.current_time() - begun
            if waited > limits.body_seconds + nbytes / limits.body_rate:
                raise ClientError(408, f"the body comes at less than {limits.body_rate:g} bytes per second")
            yield piece
            begun = trio.current_time()  # what was done with the piece is not the client's time

    async def reply(
        self,
        status: int,
        headers: Sequence[Header] = (),
        pieces: AsyncIterator[Buffer] | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Send a reply whose body are *pieces*, together *nbytes* bytes; None if their number is not known.

        The head is not sent before the first piece is there, so an error that prevents it can still be answered.
        """
        first: Buffer = b""
        sends_body = self.method != "HEAD" and pieces is not None and status not in (204, 304)
        if sends_body:
            assert pieces is not None
            first = await anext(pieces, b"")
        await self.connection.finish_body()
        length = [("Content-Length", str(nbytes))] if nbytes is not None and status not in (204, 304) else []
        must_close = self.connection.is_ending or self.connection.has_unread_body
        ending = [("Connection", "close")] if must_close else []
        self.status = status
        await self.connection.send_head(status, [*_date(), *self.head, *headers, *length, *ending], first)
        self.nsent += len(first)
        if sends_body:
            assert pieces is not None
            async for piece in pieces:
                await self.connection.send_piece(piece)
                self.nsent += len(piece)
        await self.connection.send_end()

    async def reply_line(self, status: int, text: str, headers: Sequence[Header] = ()) -> None:
        """Reply with one line of plain text, which no cache keeps."""
        data = f"{text}\n".encode(errors="backslashreplace")
        plain = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        await self.reply(status, [*plain, *headers], only(data), len(data))

    @property
    def line(self) -> str:
        """The request and its reply, for the log: without the query, in which programs put secrets."""
        path = quote(self.target.partition(b"?")[0][:500], safe="/%:@!$&'()*+,;=")
        return f"{self.method} {path} {self.status or 'broken off'} {self.nsent}"


def _date() -> list[Header]:
    return [("Date", http_date(int(time.time())))]


@lru_cache(maxsize=512)
def http_date(seconds: int) -> str:
    """Return a time in seconds since 1970 in the form of HTTP (RFC 9110, section 5.6.7)."""
    return formatdate(seconds, usegmt=True)


def _reason(status: int) -> str:
    return http.HTTPStatus(status).phrase


async def only(data: bytes) -> AsyncIterator[Buffer]:
    """Yield *data*, the whole body of a reply."""
    yield data
