"""Directories, made of the common prefixes of object keys, from paged listings."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from shardfs.errors import AccessDeniedError, NotFoundError, printable
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.location import DOCUMENT, Location
from shardfs.stores.s3.requests import ListPage, ObjectStat
from shardfs.stores.s3.seen import Known
from shardfs.stores.ttl import within_ttl

log = logging.getLogger(__name__)

_MAX_NAMES: Final = 1_000_000
_MAX_ASKED: Final = 10_000
_LOOKUP_LIMIT: Final = 10  # names that may sort between an object and what lies below it: few


@dataclass(slots=True, eq=False)
class Listing:
    """All names in a directory, each with the state of its object; None stands for a directory.

    *has_marker* says that an object stands for the directory itself, so that it may be empty, *has_hidden* that there
    are names that are not shown.  The pages were asked for from *started* on, and the last came at *time*.  What is
    *doubtful* was forgotten since.
    """

    names: dict[str, ObjectStat | None] = field(default_factory=dict)
    has_marker: bool = False
    has_hidden: bool = False
    started: float = 0.0
    time: float = 0.0
    doubtful: set[str] = field(default_factory=set)

    @property
    def is_missing(self) -> bool:
        """Whether there is no such directory."""
        return not (self.names or self.has_marker or self.has_hidden)

    def find(self, name: str) -> Known | None:
        """Return what *name* stands for; None if that is doubtful."""
        if name in self.doubtful:
            return None
        if name not in self.names:
            return Known(None, False)
        stat = self.names[name]
        return Known(stat, stat is None)

    def put(self, name: str, known: Known) -> None:
        """Correct what is said of *name*."""
        self.doubtful.discard(name)
        if known.is_directory:
            self.names[name] = None
        elif known.stat is not None:
            self.names[name] = known.stat
        else:
            self.names.pop(name, None)


@dataclass(slots=True, eq=False)
class _Walk:
    """A listing that is being fetched; who has the lock fetches the next pages.  *changes* were made meanwhile."""

    listing: Listing
    changes: dict[str, Known] = field(default_factory=dict)
    token: str | None = None
    npages: int = 0
    is_complete: bool = False
    users: int = 0
    lock: trio.Lock = field(default_factory=trio.Lock)


@dataclass(slots=True)
class _Asked:
    """When a name in a directory that was not listed was asked for, and whether that *is_long* for one page."""

    time: float
    is_long: bool = False


class Listings:
    """The directories of a source, each believed for *ttl* seconds, up to *max_names* names in all."""

    def __init__(
        self,
        client: S3Client,
        location: Location,
        *,
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
        max_names: int = _MAX_NAMES,
    ) -> None:
        self._client = client
        self._location = location
        self._ttl = ttl
        self._clock = clock
        self._max_names = max_names
        self._nnames = 0
        self._listings: OrderedDict[str, Listing] = OrderedDict()
        self._walks: dict[str, _Walk] = {}
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._has_hidden = False
        self.is_allowed = True
        """Whether listing is allowed; else objects are looked up by themselves, and directories by their document."""

    def find(self, key: str) -> Listing | None:
        """Return the listing of the directory *key* that is believed; None if there is none."""
        listing = self._listings.get(key)
        if listing is None:
            return None
        now = self._clock()
        if now - listing.time >= self._ttl and not within_ttl(listing.started, now, self._ttl):
            return None
        with suppress(KeyError):  # another thread may drop it at any time
            self._listings.move_to_end(key)
        return listing

    async def list(self, key: str) -> Listing:
        """Return the listing of the directory *key*, which is fetched once for all who ask meanwhile."""
        listing = self.find(key)
        if listing is not None and not listing.doubtful:
            return listing
        return (await self._walk(key)).listing

    async def glance(self, key: str) -> None:
        """Fetch the listing of the directory *key* if it has one page, and names in it are asked for repeatedly.

        Programs that write files beside others and rename them ask for a new name each time.
        """
        if self.find(key) is not None or not self.is_allowed:
            return
        now, asked = self._clock(), self._asked.get(key)
        if asked is None or now - asked.time >= self._ttl:
            self._asked[key] = _Asked(now)
            self._asked.move_to_end(key)
            if len(self._asked) > _MAX_ASKED:
                self._asked.popitem(last=False)
        elif not asked.is_long:
            asked.is_long = not (await self._walk(key, max_pages=1)).is_complete

    async def lookup(self, key: str) -> Known:
        """Return what *key* stands for, asking the store for this key alone."""
        full = self._location.object_key(key)
        if not self.is_allowed:
            return await self._look_up_unlisted(full)
        below = full + "/"
        stat: ObjectStat | None = None
        token: str | None = None
        while True:
            page = await self._client.list_page(full, token=token, limit=_LOOKUP_LIMIT)
            stat = dict(page.objects).get(full, stat)
            if below in page.prefixes:
                return Known(stat, True)
            last = max((name.encode() for name in [*page.prefixes, *dict(page.objects)]), default=b"")
            token = page.token
            if token is None or last > below.encode():
                return Known(stat, False)

    async def _look_up_unlisted(self, full: str) -> Known:
        """Return what a key stands for where listing is not allowed: a directory is one with a document.

        S3 does not say then that there is no object: it refuses.  Some servers do say it, but not whether others lie
        below.  Either way the name is refused, as chunks must not be taken for absent, but for names that programs try
        everywhere, and that no chunk has.
        """
        refusal = AccessDeniedError(f"{full} may be a directory, which cannot be told without permission to list")
        for name, known in ((f"{full}/{DOCUMENT}", Known(None, True)), (full, None)):
            try:
                stat, _ = await self._client.head(name)
            except NotFoundError:
                continue
            except AccessDeniedError as error:
                refusal = error
            else:
                return known or Known(stat, False)
        last = full.rpartition("/")[2]
        if last != DOCUMENT and not last.startswith("."):
            raise refusal
        return Known(None, None)

    def put(self, key: str, name: str, known: Known) -> None:
        """Correct what is said of *name* in the directory *key*, also in a listing that is on its way."""
        listing = self._listings.get(key)
        if listing is not None:
            self._nnames -= len(listing.names)
            listing.put(name, known)
            self._nnames += len(listing.names)
        if key in self._walks:
            self._walks[key].changes[name] = known

    def doubt(self, key: str, name: str) -> None:
        """Ask again for *name* in the directory *key*; may be called in any thread."""
        listing = self._listings.get(key)
        if listing is not None:
            listing.doubtful.add(name)

    def drop(self, key: str) -> None:
        """Believe the listing of *key* no longer."""
        listing = self._listings.pop(key, None)
        if listing is not None:
            self._nnames -= len(listing.names)

    async def _walk(self, key: str, *, max_pages: int | None = None) -> _Walk:
        walk = self._walks.setdefault(key, _Walk(Listing(started=self._clock())))
        walk.users += 1
        try:
            async with walk.lock:
                while not walk.is_complete and (max_pages is None or walk.npages < max_pages):
                    await self._next_page(key, walk)
        finally:
            walk.users -= 1
            if self._walks.get(key) is walk and (walk.is_complete or not walk.users):
                del self._walks[key]
        return walk

    async def _next_page(self, key: str, walk: _Walk) -> None:
        prefix = self._location.directory_prefix(key)
        page = await self._client.list_page(prefix, token=walk.token)
        self._add(prefix, page, walk.listing)
        walk.token = page.token
        walk.npages += 1
        if page.token is None:
            for name, known in walk.changes.items():
                walk.listing.put(name, known)
            walk.listing.time = self._clock()
            walk.is_complete = True
            self._remember(key, walk.listing)

    def _add(self, prefix: str, page: ListPage, listing: Listing) -> None:
        for full, stat in page.objects:
            name = full[len(prefix) :]
            if not name:
                listing.has_marker = True
            elif is_name(name):
                listing.names[name] = stat  # if others lie below it, that comes later
            else:
                self._hide(full, listing)
        for full in page.prefixes:
            name = full[len(prefix) : -1]
            if is_name(name):
                listing.names[name] = None
            else:
                self._hide(full, listing)

    def _hide(self, full: str, listing: Listing) -> None:
        listing.has_hidden = True
        if not self._has_hidden:
            self._has_hidden = True
            log.warning(
                "objects that no file system can show are hidden, as s3://%s/%s", self._location.bucket, printable(full)
            )

    def _remember(self, key: str, listing: Listing) -> None:
        self.drop(key)
        self._listings[key] = listing
        self._nnames += len(listing.names)
        while self._nnames > self._max_names and len(self._listings) > 1:
            self.drop(next(iter(self._listings)))


def is_name(name: str) -> bool:
    """Whether a file system can show *name*."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def is_shown(key: str) -> bool:
    """Whether a file system can show *key*."""
    return not key or all(map(is_name, key.split("/")))
