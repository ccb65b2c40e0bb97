"""What a target stands for, and who answers: the site of one source.

| target | what |
|---|---|
| `/…` | a file or a directory of the view of `--view` |
| `/-/v3/…`, `/-/v2/…`, `/-/decoded/v3/…`, `/-/npy/…` | a file or a directory of that view |
| `/-/…` | what is no file: `OWN` says what |
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    IsADirectoryHereError,
    LockedError,
    NoSpaceError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    NotShownError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    SourceError,
    StaleError,
    TooLargeError,
    TooManyOpenFilesError,
    UnreachableError,
    UnsupportedError,
    printable,
)
from shardfs.serve import changes, files
from shardfs.serve.conditions import PreconditionFailedError
from shardfs.serve.exchange import READING, ClientError, Exchange, only
from shardfs.serve.guard import CHALLENGES, Guard
from shardfs.serve.metrics import ServerMetrics
from shardfs.serve.options import ServeOptions
from shardfs.serve.pages.colors import TABLES
from shardfs.serve.pages.html import asset
from shardfs.serve.pages.page import PageAddress, PageBuilder
from shardfs.serve.pages.picture import bar
from shardfs.serve.pages.planes import Planes
from shardfs.serve.pages.query import Query
from shardfs.vfs.all_views import Views
from shardfs.vfs.paths import Paths

_ATTEMPTS: Final = 5
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ORIGIN: Final = re.compile(rb"[a-z][a-z0-9+.-]*://[^/?#]*", re.IGNORECASE)
_STATUS: Final[Mapping[type[ShardfsError], int]] = {
    NotFoundError: 404,
    NotADirectoryHereError: 404,
    NotShownError: 422,  # there is no picture of it
    SourceError: 404,  # the source has no such view
    PreconditionFailedError: 412,
    IsADirectoryHereError: 409,
    NotEmptyError: 409,
    RefusedError: 422,
    NotPermittedError: 403,
    ReadOnlyError: 403,
    TooLargeError: 413,
    NoSpaceError: 507,
    LockedError: 503,
    ConflictError: 409,
    StaleError: 503,
    UnreachableError: 503,
    TooManyOpenFilesError: 503,
    # The store refuses; browsers and some stores take 403 for a chunk that is not there.
    AccessDeniedError: 500,
    UnsupportedError: 501,
}
"""The status of each error, the first class that it is counts; all others are 500, and never 404."""


class Resource(NamedTuple):
    """A file or a directory: its *path* in the view *paths*, whose targets begin with *prefix*.

    *is_directory*: the target ends with a slash, so it can be nothing else.
    """

    paths: Paths
    path: str
    prefix: str
    is_directory: bool


class Site:
    """Answers the requests for one source, which *views* shows; *metrics* are those of the server."""

    def __init__(self, views: Views, options: ServeOptions, metrics: ServerMetrics) -> None:
        self.views = views
        self.metrics = metrics
        self.options = options
        self.decoded = views.others["decoded/v3"]
        self.pages = PageBuilder(views)
        self.planes = Planes(may_be_cached=not options.write)
        self._guard = Guard(options)

    async def answer(self, exchange: Exchange) -> None:
        """Reply to a request, whatever comes; raises the error that comes after the reply has begun."""
        try:
            exchange.check()
            self._guard.check(exchange)
            await self._answer(exchange)
        except ClientError as error:
            if exchange.connection.has_begun_to_reply:
                raise
            exchange.connection.end()
            await exchange.reply_line(error.status, str(error))
        except ShardfsError as error:
            if exchange.connection.has_begun_to_reply:
                raise
            status, path = status_of(error), "/".join(names_in(exchange.target))
            is_named = status < 500 or path in str(error)
            await self._reply_reason(exchange, status, str(error) if is_named else printable(f"{path}: {error}"))

    async def _reply_reason(self, exchange: Exchange, status: int, reason: str) -> None:
        """Reply with a reason: to a person who wants a page with one, to everybody else with a line."""
        names = _names_of_page(exchange)
        if names is None or not self._guard.admits(exchange):
            await exchange.reply_line(status, reason)
            return
        names = names[:-1] if names[-1] == "" else names
        depth = len(names) if exchange.target.partition(b"?")[0].endswith(b"/") else len(names) - 1
        up = "../" * depth or "./"
        ways = [(name, up + "/".join(quote(os.fsencode(each), safe="") for each in names[:end]) + "/")
                for end, name in enumerate(names[:-1], 1)]  # fmt: skip
        await self.pages.show_error(exchange, status, reason, up, [("/", up), *ways])

    async def _answer(self, exchange: Exchange) -> None:
        names = names_in(exchange.target) if exchange.target != b"*" or exchange.method != "OPTIONS" else [""]
        if exchange.method == "OPTIONS":
            allowed = ("Allow", ", ".join(self._methods))
            await exchange.reply(204, [allowed, *self._guard.for_preflight(exchange)])
            return
        own = _own(names) if names[0] == "-" and self._view_in(names) is None else None
        if own is not healthy and not self._guard.admits(exchange):
            where = "as the password of any user, or in the header Authorization: Bearer"
            await exchange.reply_line(401, f"this server wants its token, {where}", CHALLENGES)
            return
        if own is not None:
            await own(self, exchange)
        elif exchange.method in ("GET", "HEAD"):
            await self._show(exchange, self.resource(names))
        elif exchange.method not in self._methods:
            why = "such a method has no meaning here" if self.options.write else "this server only reads"
            await self.refuse(exchange, self._methods, why)
        else:
            await self._change(exchange, self.resource(names))

    async def _change(self, exchange: Exchange, resource: Resource) -> None:
        """Write or remove a file."""
        if resource.paths is not self.views.main:
            own = next((f"/-/{name}/" for name, paths in self.views.others.items() if paths is self.views.main), "/")
            await self.refuse(exchange, READING, f"this view only reads: write to {own}")
        elif resource.is_directory:
            raise IsADirectoryHereError(f"{resource.path or 'the source'} is a directory")
        else:
            change = changes.put if exchange.method == "PUT" else changes.delete
            await change(exchange, self.views, resource.path)

    async def _show(self, exchange: Exchange, resource: Resource) -> None:
        """Send a file or a directory; what is replaced before anything of it was sent is looked at again."""
        for attempt in range(_ATTEMPTS):
            try:
                await files.show(
                    exchange,
                    resource.paths,
                    resource.path,
                    must_be_directory=resource.is_directory,
                    may_be_cached=not self.options.write,
                    show_directory=partial(self._page, exchange, resource) if files.prefers_html(exchange) else None,
                )
            except StaleError:
                if exchange.connection.has_begun_to_reply or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def _page(self, exchange: Exchange, resource: Resource) -> None:
        """Send the page of a directory; its links need a target that ends with a slash."""
        names, query = names_in(exchange.target), query_of(exchange.target)
        if names[-1] != "":
            with_slash = f"./{quote(os.fsencode(names[-1]), safe='')}/{f'?{query}' if query else ''}"
            await exchange.reply(
                308, [("Location", with_slash), ("Cache-Control", "no-cache"), ("Vary", "Accept")], nbytes=0
            )
            return
        up = "../" * (len(names) - 1) or "./"
        origin = self._guard.origin(exchange)
        await self.pages.show(exchange, PageAddress(resource.paths, resource.path, resource.prefix, up, origin, query))

    @property
    def _methods(self) -> tuple[str, ...]:
        return (*READING, "PUT", "DELETE") if self.options.write else READING

    def resource(self, names: list[str]) -> Resource:
        """Return what the *names* in a target stand for; raises `SourceError` if there is no such view."""
        paths: Paths | SourceError = self.views.main
        prefix = ""
        if (view := self._view_in(names)) is not None:
            paths, prefix = self.views.others[view], f"-/{view}/"
            names = names[1 + len(view.split("/")) :] or [""]
        if isinstance(paths, SourceError):
            raise SourceError(str(paths))
        is_directory = names[-1] == ""
        if is_directory:
            names = names[:-1]
        return Resource(paths, path_of(names), prefix, is_directory)

    def _view_in(self, names: list[str]) -> str | None:
        """Return the view that the *names* in a target begin with; they have `-` before it, as no dataset has."""
        return next(
            (view for view in self.views.others if names[: 2 + view.count("/")] == ["-", *view.split("/")]), None
        )

    async def refuse(self, exchange: Exchange, allowed: tuple[str, ...], why: str) -> None:
        """Reply that the method is not for this target."""
        await exchange.reply_line(405, why, [("Allow", ", ".join(allowed))])


def names_in(target: bytes) -> list[str]:
    """Return the names in a target, decoded, "" being the directory behind a last slash.

    Raises `ClientError` for what is no target.
    """
    origin = _ORIGIN.match(target)
    path = (target if origin is None else target[origin.end() :]).partition(b"?")[0] or b"/"
    if not path.startswith(b"/") or b"#" in path or _BAD_ESCAPE.search(path):
        raise ClientError(400, "the target is no path")
    return [unquote_to_bytes(name).decode("utf-8", "surrogateescape") for name in path[1:].split(b"/")]


def path_of(names: list[str]) -> str:
    """Return the path of these *names*; raises `NotFoundError` if no file has such a name."""
    if any(name in ("", ".", "..") or "/" in name or "\0" in name for name in names):
        raise NotFoundError("no file has such a name")
    return "/".join(names)


def query_of(target: bytes) -> str:
    """Return the query of a target, as it is."""
    return target.partition(b"?")[2].decode("ascii", "replace")


def status_of(error: ShardfsError) -> int:
    """Return the status that reports an error."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


def _names_of_page(exchange: Exchange) -> list[str] | None:
    """Return the names in the target of a request for a page; None if it is one for something else."""
    if exchange.method not in ("GET", "HEAD") or not files.prefers_html(exchange):
        return None
    names = names_in(exchange.target)
    is_own = names[0] == "-" and len(names) > 1 and f"{names[1]}/" in OWN
    return None if is_own else names


async def healthy(site: Site, exchange: Exchange) -> None:
    """Reply that the server answers."""
    if exchange.method in READING:
        await exchange.reply_line(200, "ok")
    else:
        await site.refuse(exchange, READING, "that can only be read")


async def flush(site: Site, exchange: Exchange) -> None:
    """Commit everything that was published."""
    if exchange.method == "POST" and site.options.write:
        await changes.flush(exchange, site.views)
    else:
        why = "only POST commits" if site.options.write else "this server only reads"
        await site.refuse(exchange, ("OPTIONS", "POST") if site.options.write else ("OPTIONS",), why)


async def drawn(site: Site, exchange: Exchange) -> None:
    """Send a picture, a plot, or what is under a pointer."""
    if exchange.method not in READING:
        await site.refuse(exchange, READING, "that can only be read")
        return
    if isinstance(site.decoded, SourceError):
        raise SourceError(str(site.decoded))
    name, path = _below(exchange)
    query = Query.parse(query_of(exchange.target))
    answers = {"plane": site.planes.show, "plot": site.planes.plot, "values": site.planes.values}
    await answers[name](exchange, site.decoded, path, query)


async def contents(site: Site, exchange: Exchange) -> None:
    """Send what a page of a group asks for."""
    if exchange.method not in READING:
        await site.refuse(exchange, READING, "that can only be read")
        return
    await site.pages.contents(exchange, _below(exchange)[1], counts=query_of(exchange.target) == "sizes=1")


def _below(exchange: Exchange) -> tuple[str, str]:
    """Return the name below `/-/` and the path that follow in a target."""
    _, name, *names = [*names_in(exchange.target), ""]
    while names and names[-1] == "":
        names.pop()
    return name, path_of(names)


async def colour_bar(site: Site, exchange: Exchange) -> None:
    """Send a table of colours."""
    name = names_in(exchange.target)[-1].removesuffix(".png")
    if exchange.method not in READING:
        await site.refuse(exchange, READING, "that can only be read")
    elif name not in TABLES:
        await nothing(site, exchange)
    else:
        await files.send(exchange, bar(name), "image/png")


async def page_part(site: Site, exchange: Exchange) -> None:
    """Send what pages load."""
    if exchange.method in READING:
        name = names_in(exchange.target)[-1]
        kinds = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
        await files.send(exchange, asset(name), kinds[name.rpartition(".")[2]])
    else:
        await site.refuse(exchange, READING, "that can only be read")


async def metrics(site: Site, exchange: Exchange) -> None:
    """Reply with metrics for Prometheus."""
    if exchange.method in READING:
        text = site.metrics.exposition().encode()
        plain = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8"), ("Cache-Control", "no-store")]
        await exchange.reply(200, plain, only(text), len(text))
    else:
        await site.refuse(exchange, READING, "that can only be read")


def _own(names: list[str]) -> Callable[[Site, Exchange], Awaitable[None]]:
    """Return who answers for these *names*, the first of which is `-`."""
    return OWN.get("/".join(names[1:])) or OWN.get(f"{names[1] if len(names) > 1 else ''}/", nothing)


async def nothing(site: Site, exchange: Exchange) -> None:
    """Reply that there is no such thing."""
    raise NotFoundError("there is nothing of that name below /-/")


OWN: Final[Mapping[str, Callable[[Site, Exchange], Awaitable[None]]]] = {
    "healthy": healthy,
    "metrics": metrics,
    "flush": flush,
    "page.css": page_part,
    "page.js": page_part,
    "icon.svg": page_part,
    "plane/": drawn,
    "plot/": drawn,
    "values/": drawn,
    "contents/": contents,
    "bar/": colour_bar,
}
"""What is below `/-/`, by name; a name that ends with a slash is that of all below it."""
