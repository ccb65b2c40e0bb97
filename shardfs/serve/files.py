"""GET and HEAD: the bytes of a file, or the names in a directory."""

import hashlib
import json
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final
from urllib.parse import quote

from shardfs.errors import IsADirectoryHereError
from shardfs.serve.conditions import RequestConditions
from shardfs.serve.exchange import Exchange, Header, http_date, only
from shardfs.stores.base import Buffer, Kind
from shardfs.vfs.handles import Attributes
from shardfs.vfs.paths import Listed, Paths, pieces_of

_PIECE_NBYTES: Final = 2**20
"""How much of a file one client has in memory."""

_JSON: Final = "application/json"
_TYPES: Final = {
    "json": _JSON, "zarray": _JSON, "zgroup": _JSON, "zattrs": _JSON, "zmetadata": _JSON,
    "md": "text/plain; charset=utf-8", "txt": "text/plain; charset=utf-8",
}  # fmt: skip
"""The media type of a file by the end of its name. None makes a browser run what a dataset contains."""

_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
_KINDS: Final = {Kind.FILE: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "link", Kind.SPECIAL: "special"}


async def is_answered(exchange: Exchange, version: str | None, head: Sequence[Header]) -> bool:
    """Answer a reader who has this *version* already, with *head*, and nobody else; return whether it was one.

    Raises `PreconditionFailedError` for who wants another version or none.
    """
    if not RequestConditions.of(exchange).is_known(version):
        return False
    await exchange.reply(304, head)
    return True


async def show(
    exchange: Exchange,
    paths: Paths,
    path: str,
    *,
    must_be_directory: bool,
    may_be_cached: bool,
    show_directory: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send the file or the listing at *path*; raises the error that prevents it.

    *may_be_cached*: the client need not ask again for as long as the tree would not look again. *show_directory* sends
    a directory in another form than JSON.
    """
    if show_directory is None:
        show_directory = partial(_list, exchange, paths, path)
    if must_be_directory:
        await show_directory()
        return
    try:
        await _send(exchange, paths, path, may_be_cached=may_be_cached)
    except IsADirectoryHereError:
        if exchange.connection.has_begun_to_reply:
            raise
        await show_directory()


def prefers_html(exchange: Exchange) -> bool:
    """Whether a request asks for HTML rather than JSON, as that of a person with a browser does."""
    weights = {}
    for part in (exchange.header("accept") or "").lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        given = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        weights[kind] = float(given) if _WEIGHT.fullmatch(given) else 0.0
    return weights.get("text/html", 0.0) > weights.get(_JSON, 0.0) or weights.get("text/html", 0.0) == 1.0


async def send(exchange: Exchange, data: bytes, media_type: str) -> None:
    """Send what is no file of the dataset."""
    version = hashlib.sha256(data).hexdigest()[:32]
    head = [("ETag", f'"{version}"'), ("Cache-Control", "no-cache")]
    if await is_answered(exchange, version, head):
        return
    head += [("Content-Type", media_type), ("X-Content-Type-Options", "nosniff")]
    await exchange.reply(200, head, only(data), len(data))


async def _send(exchange: Exchange, paths: Paths, path: str, *, may_be_cached: bool) -> None:
    async with paths.open_version(path) as (handle, version):
        attributes = handle.attributes if may_be_cached else handle.attributes._replace(ttl=0.0)
        head = headers_of(attributes, version)
        if await is_answered(exchange, version, head):
            return
        head += [
            ("Accept-Ranges", "bytes"),
            ("Content-Type", _TYPES.get(path.rpartition("/")[2].rpartition(".")[2], "application/octet-stream")),
            ("X-Content-Type-Options", "nosniff"),
        ]
        start, stop, is_part = RequestConditions.of(exchange).selected(version, attributes.size)
        if is_part and start == stop:
            await exchange.reply_line(416, f"the file has {attributes.size} bytes", [
                ("Content-Range", f"bytes */{attributes.size}"), *headers_of(attributes, version)[:1],
            ])  # fmt: skip
            return
        if is_part:
            head.append(("Content-Range", f"bytes {start}-{stop - 1}/{attributes.size}"))
        async with aclosing(pieces_of(handle, path, start, stop, _PIECE_NBYTES)) as pieces:
            await exchange.reply(206 if is_part else 200, head, pieces, stop - start)


def headers_of(attributes: Attributes, version: str | None) -> list[Header]:
    """Return the headers that tell a client which version it has, and for how long it may take it for the present."""
    found = [("ETag", f'"{version}"')] if version is not None else []
    seconds = int(min(attributes.ttl, 2**31))
    return [
        *found,
        ("Last-Modified", http_date(min(max(0, attributes.own_mtime_ns) // 10**9, int(time.time())))),
        ("Cache-Control", f"max-age={seconds}" if seconds else "no-cache"),
    ]


async def _list(exchange: Exchange, paths: Paths, path: str) -> None:
    """Send the names in a directory as JSON, while they are being found."""
    head = [("Cache-Control", "no-cache"), ("Vary", "Accept")]
    async with paths.listing(path) as batches, aclosing(_listing(path, batches)) as pieces:
        if not await is_answered(exchange, None, head):
            await exchange.reply(200, [("Content-Type", _JSON), *head], pieces)


async def _listing(path: str, batches: AsyncIterator[list[Listed]]) -> AsyncGenerator[Buffer, None]:
    lines = [f'{{"path": {json.dumps(path)}, "entries": [']
    separator, nbytes = "\n", 0
    async for batch in batches:
        for listed in batch:
            lines.append(separator + json.dumps(_entry(listed)))
            separator = ",\n"
            nbytes += len(lines[-1])
        if nbytes > _PIECE_NBYTES // 16:
            yield "".join(lines).encode()
            lines, nbytes = [], 0
    lines.append("\n]}\n")
    yield "".join(lines).encode()


def _entry(listed: Listed) -> dict[str, object]:
    is_directory = listed.kind is Kind.DIRECTORY
    size = {"size": listed.size} if listed.kind is Kind.FILE and listed.size is not None else {}
    href = quote(os.fsencode(listed.name), safe="") + ("/" if is_directory else "")
    return {"name": listed.name, "kind": _KINDS[listed.kind], **size, "href": href}
