"""As much of HTTP/1.1 as a proxy between an S3 client and a server needs: whole messages, one after the other."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

LARGEST_BODY: Final = 1 << 30
"""Bytes of a body that are kept in memory at most."""
BUFFER: Final = 1 << 20
"""Bytes that a stream holds back, and the most that a head may have."""

Headers = list[tuple[str, str]]


class MalformedError(Exception):
    """What came is no HTTP/1.1."""


@dataclass(slots=True)
class Message:
    """A request or a reply; *headers* are as they came, in their order."""

    start: str
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The first header of a name, which is in lower case."""
        return next((value for known, value in self.headers if known.lower() == name), None)

    def without(self, *names: str) -> Headers:
        """All headers but those of some names, which are in lower case."""
        return [(known, value) for known, value in self.headers if known.lower() not in names]

    @property
    def status(self) -> int:
        """Status of a reply."""
        return int(self.start.split(" ", 2)[1])

    @property
    def closes(self) -> bool:
        """Whether no other message follows this one."""
        connection = (self.header("connection") or "").lower()
        return connection == "close" or (self.start.startswith("HTTP/1.0") and connection != "keep-alive")

    def head(self) -> bytes:
        """All that comes before the body."""
        lines = [self.start, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message | None:
    """Read a request, and encourage a client that waits for that; None where it ended the connection instead."""
    message = await _read_head(reader)
    if message is not None:
        if (message.header("expect") or "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await _read_body(reader, message, until_end=False)
        message.headers = message.without("expect")
    return message


async def read_reply(reader: asyncio.StreamReader, method: str) -> Message:
    """Read the reply to a request of a method; raises `ConnectionError` if none comes."""
    while (message := await _read_head(reader)) is not None:
        if message.status >= 200:
            if method != "HEAD" and message.status not in (204, 304):
                await _read_body(reader, message, until_end=True)
            return message
    raise ConnectionResetError("the server ended the connection")


async def _read_head(reader: asyncio.StreamReader) -> Message | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ConnectionResetError("a head was cut short") from None
        return None
    except asyncio.LimitOverrunError:
        raise MalformedError("a head that is too long") from None
    start, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedError(line)
        headers.append((name, value.strip()))
    return Message(start, headers)


async def _read_body(reader: asyncio.StreamReader, message: Message, *, until_end: bool) -> None:
    if (message.header("transfer-encoding") or "").lower() == "chunked":
        message.body = await _read_chunks(reader)
        message.headers = [*message.without("transfer-encoding"), ("Content-Length", str(len(message.body)))]
    elif (length := message.header("content-length")) is not None:
        message.body = await reader.readexactly(_checked(int(length)))
    elif until_end:
        message.body = await reader.read(-1)
        message.headers.append(("Content-Length", str(len(message.body))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts, total = [], 0
    while nbytes := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        total = _checked(total + nbytes)
        parts.append(await reader.readexactly(nbytes))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(parts)


def _checked(nbytes: int) -> int:
    if not 0 <= nbytes <= LARGEST_BODY:
        raise MalformedError(f"a body of {nbytes} bytes")
    return nbytes
