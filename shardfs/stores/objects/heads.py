"""What the keys of a source are: one cache, with one TTL, corrected by our own changes.

`Heads` owns it. A key has a record (results of requests for this key alone), and a directory has a listing (results of
LIST for all names in it); the later of the two counts. `forget` invalidates them, and replies on their way.

Bounds: `_MAX_KEYS` records, `_MAX_PROPERTIES` properties, and `_MAX_NAMES` names in listings; the least recently used
are dropped. `_MAX_DIRECTORIES` directories without anything in them; those that were added first are dropped.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio

from shardfs.errors import AccessDeniedError, ConflictError, NotFoundError, StoreError, printable
from shardfs.stores.base import join_key
from shardfs.stores.objects.requests import (
    DOCUMENT,
    Fetched,
    ListPage,
    ObjectStat,
    Properties,
    Range,
    Requests,
    page_with_keys,
)
from shardfs.stores.ttl import within_ttl

log = logging.getLogger(__name__)

_MAX_KEYS: Final = 100_000
_MAX_PROPERTIES: Final = 1000
_MAX_NAMES: Final = 1_000_000
_MAX_OF_ONE: Final = 10
"""How many times that a single listing may have, so that a server which lists without end fills no memory."""
_MAX_DIRECTORIES: Final = 1_000_000
_MAX_DOUBTFUL: Final = 1000
"""How many names of a listing may be forgotten, until all of it is."""

_LOOKUP_LIMIT: Final = 10
"""How many names are asked for to look up one: some may sort between an object and the keys below it, as `a.b`."""

_NEVER: Final = float("-inf")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object has the name, in this *version*, and no keys below it were seen."""

    version: ObjectStat


@dataclass(frozen=True, slots=True)
class KnownDirectory:
    """There are keys below the name. If an object has it too, nobody is shown that; only `Heads.head` asks for it."""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is neither an object nor a key below it."""


@dataclass(frozen=True, slots=True)
class NoObject:
    """No object has the name; whether there are keys below it, only a listing tells."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known."""


Known = FoundObject | KnownDirectory | Absent | NoObject | Unknown
"""What is known of a name.

A request for the object alone tells whether it is `FoundObject` or there is `NoObject`. Only a listing tells a
`KnownDirectory` from what is `Absent`, and that a directory has the name of an object too.
"""


@dataclass(slots=True)
class _Record:
    """What is known about one key.

    It was *known* at *time*. *changed* is the value of `Heads.serial` after we last changed or forgot the key. For a
    directory: when a name in it was *asked* for, and whether its listing *is_long*.
    """

    known: Known = field(default_factory=Unknown)
    time: float = _NEVER
    changed: int = 0
    asked: float = _NEVER
    is_long: bool = False


@dataclass(slots=True, eq=False)
class Listing:
    """All names in a directory, each with the state of its object; None stands for a directory.

    One with *hidden* keys exists even without names: an object stands for the directory itself, or there are names that
    no file system can show. Its pages were requested from *started* on, and the last came at *time*. *doubtful*
    names were forgotten since. While pages are missing, the holder of the lock fetches the next one. *changes* were
    made meanwhile.
    """

    started: float
    names: dict[str, ObjectStat | None] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    time: float = _NEVER
    doubtful: set[str] = field(default_factory=set)
    is_complete: bool = False
    token: str | None = None
    npages: int = 0
    changes: dict[str, FoundObject | KnownDirectory | Absent] = field(default_factory=dict)
    lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def nnames(self) -> int:
        """How many names count for the memory that it takes."""
        return 1 + len(self.names) + len(self.hidden)

    @property
    def is_missing(self) -> bool:
        """Whether there is no such directory."""
        return not (self.names or self.hidden)

    @property
    def is_forgotten(self) -> bool:
        """Whether it was forgotten, or a name in it, since it began."""
        return self.started == _NEVER or bool(self.doubtful)

    def forget(self) -> None:
        """Trust nothing in it, not even what comes yet."""
        self.started = self.time = _NEVER

    def find(self, name: str) -> Known:
        """Return what *name* is."""
        if name in self.doubtful:
            return Unknown()
        if name not in self.names:
            return Absent()
        version = self.names[name]
        return FoundObject(version) if version is not None else KnownDirectory()

    def put(self, name: str, known: FoundObject | KnownDirectory | Absent) -> None:
        """Correct the entry of *name*."""
        self.doubtful.discard(name)
        match known:
            case FoundObject(version):
                self.names[name] = version
            case KnownDirectory():
                self.names[name] = None
            case Absent():
                self.names.pop(name, None)


class Directories:
    """Directories without anything stored in them: a bucket has none, so only this mount knows them, until it ends.

    A row is made by who makes such a directory, or removes what is stored in one, and goes when something is stored
    there. Of more than `_MAX_DIRECTORIES`, the first are forgotten: a program finds that they do not exist.
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}
        """The names in each directory above."""
        self._count = 0

    def __contains__(self, key: str) -> bool:
        parent, name = split(key)
        return name in self._names.get(parent, ())

    def children(self, key: str) -> Iterator[str]:
        """Yield the names of the known directories in *key*."""
        yield from self._names.get(key, ())

    def add_with_parents(self, key: str) -> None:
        """Add a directory, and all above it."""
        for directory in filter(None, (key, *_ancestors(key))):
            if directory not in self:
                parent, name = split(directory)
                self._names.setdefault(parent, {})[name] = None
                self._count += 1
        while self._count > _MAX_DIRECTORIES:
            parent = next(iter(self._names))
            self.discard(join_key(parent, next(iter(self._names[parent]))))

    def discard(self, key: str) -> None:
        """Forget a directory."""
        if key in self:
            parent, name = split(key)
            del self._names[parent][name]
            self._count -= 1
            if not self._names[parent]:
                del self._names[parent]

    def discard_with_parents(self, key: str) -> None:
        """Forget a directory in which something is stored now, and those above it: they exist by that."""
        for directory in (key, *_ancestors(key)):
            self.discard(directory)


class Heads:
    """What the keys of a source are, trusted for *ttl* seconds.

    A reply is ignored if we changed or forgot its key while it was under way: *serial* counts that.

    `forget` runs in any thread. It holds the lock, and so does whoever adds records, or trusts replies.
    """

    def __init__(
        self,
        client: Requests,
        *,
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
        max_names: int = _MAX_NAMES,
    ) -> None:
        self._client = client
        self._ttl = ttl
        self._clock = clock
        self._max_names = max_names
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._properties: OrderedDict[str, tuple[str, Properties]] = OrderedDict()
        self._listings: OrderedDict[str, Listing] = OrderedDict()
        self._walks: dict[str, Listing] = {}
        self._lock = threading.RLock()
        self._nnames = 0
        self._has_hidden = False
        self.serial = 0
        self.directories = Directories()
        self._keeps_properties = False
        self._can_list = True

    def keep_properties(self) -> None:
        """Fetch everything with its properties from now on, so that a change needs no request for them."""
        self._keeps_properties = True

    def do_not_list(self) -> None:
        """Look up objects one by one from now on, and directories by their document: listing is not allowed."""
        self._can_list = False

    def find(self, key: str) -> Known:
        """Return what *key* is, without a request."""
        return KnownDirectory() if key in self.directories else self.find_stored(key)

    def find_stored(self, key: str) -> Known:
        """Return what *key* is in the bucket, without a request, using what is known about the directories above."""
        known = self._find(key)
        if isinstance(known, Unknown) and any(isinstance(self._find(above), Absent) for above in _ancestors(key)):
            return Absent()
        return known

    async def stored(self, key: str) -> Known:
        """Return what *key* is in the bucket, by a request if that is not known.

        Without permission to list, it may be `NoObject`; else it is `FoundObject`, a `KnownDirectory` or `Absent`.
        """
        if isinstance(self.find_stored(key), Unknown | NoObject):
            await self._list_once(split(key)[0])
        known = self.find_stored(key)
        if not isinstance(known, Unknown | NoObject):
            return known
        now, serial = self._clock(), self.serial
        answer = await self._look_up(key)
        self._note(key, answer, now, serial)
        known = self.find_stored(key)
        return answer if isinstance(known, Unknown) else known

    async def head(self, key: str) -> ObjectStat:
        """Return the state of the object *key*, by one request; raises `NotFoundError`."""
        return (await self.fetched(key)).stat

    async def fetched(self, key: str) -> Fetched:
        """Return the state of the object *key* with its properties, by one request; raises `NotFoundError`."""
        return await self._ask(key, lambda: self._client.head(key))

    async def get(self, key: str, part: Range) -> Fetched:
        """Return a range of the object *key* and its state, by one request; raises `NotFoundError`."""
        with_properties = self._keeps_properties
        return await self._ask(key, lambda: self._client.get(key, part, with_properties=with_properties))

    async def properties(self, key: str, etag: str) -> Properties:
        """Return the properties of the version *etag* of *key*; raises `ConflictError` if it has another one.

        Takes no request if they came with that version.
        """
        known = self._properties.get(key)
        if known is not None and known[0] == etag:
            return known[1]
        present = await self.fetched(key)
        if present.stat.etag != etag or present.properties is None:
            raise ConflictError(f"{key} was replaced")
        return present.properties

    async def expect_names(self, key: str) -> None:
        """Fetch the listing of the directory *key*, if it may have one page: several names in it will be asked for."""
        record = self._records.get(key)
        is_long = record is not None and record.is_long
        if is_long or not self._can_list or self._listing(key) is not None or isinstance(self.find_stored(key), Absent):
            return
        now = self._clock()
        with suppress(AccessDeniedError):  # then each name takes a request
            is_long = not (await self._walk(key, max_pages=1)).is_complete
        if is_long:
            with self._lock:
                record = self._record(key)
                record.asked, record.is_long = now, True

    async def list(self, key: str) -> Listing:
        """Return the names in the directory *key*, fetched once for all who want them."""
        listing = self._listing(key)
        if listing is not None and not listing.doubtful:
            return listing
        pending = self._walks.get(key)
        if pending is not None and pending.is_forgotten:
            await self._walk(key)
        return await self._walk(key)

    def forget(self, key: str) -> None:
        """Trust nothing known about *key*, nor that a directory above it is missing; may be called in any thread.

        Replies that are on their way are not trusted either.
        """
        with self._lock:
            self._doubt(key)
            for listing in filter(None, (self._listings.get(key), self._walks.get(key))):
                listing.forget()
            for above in _ancestors(key):  # else *key* would be taken for missing again, because its directory is
                if isinstance(self._find(above), Absent):
                    self._doubt(above)
                else:
                    self._refuse_replies(above)

    def changed(self, key: str, stat: ObjectStat | None, properties: Properties | None = None) -> None:
        """Note that our own change gave the object *key* the state *stat*, or removed it; and what that means above."""
        with self._lock:
            if not isinstance(self._find(key), KnownDirectory):
                self._put(key, FoundObject(stat) if stat is not None else Absent())
            else:
                self._put(key, KnownDirectory())
            if stat is not None and properties is not None:
                _use(self._properties, key, (stat.etag, properties), _MAX_PROPERTIES)
            else:
                self._properties.pop(key, None)
            for above in _ancestors(key):
                listing = self._listing(above)
                if stat is not None:
                    self._put(above, KnownDirectory())
                elif listing is None:
                    self._doubt(above)
                elif listing.is_missing:
                    self._put(above, Absent())
                else:
                    break

    def _find(self, key: str) -> Known:
        """Return what *key* is in the bucket, as far as its record and listings tell."""
        if not key:
            return KnownDirectory()
        if not all(map(_is_name, key.split("/"))):
            return Absent()
        parent, name = split(key)
        listing = self._listing(parent)
        known = listed = listing.find(name) if listing is not None else Unknown()
        record = self._records.get(key)
        if record is not None and within_ttl(record.time, self._clock(), self._ttl):
            self._touch(self._records, key)
            if listing is None or isinstance(listed, Unknown) or record.time >= listing.started:
                known = _with_keys_below(record.known, listed)
        own = self._listing(key)
        return _with_keys_below(known, KnownDirectory()) if own is not None and not own.is_missing else known

    def _record(self, key: str) -> _Record:
        """Return the record of *key*, an empty one if there is none; the least recently used one may be dropped."""
        return _use(self._records, key, self._records.get(key) or _Record(), _MAX_KEYS)

    async def _ask(self, key: str, ask: Callable[[], Awaitable[Fetched]]) -> Fetched:
        """Make a request for the object *key*, and note the result."""
        now, serial = self._clock(), self.serial
        try:
            reply = await ask()
        except NotFoundError:
            self._note(key, NoObject(), now, serial)
            raise not_found(key) from None
        self._note(key, FoundObject(reply.stat), now, serial)
        if reply.properties is not None:
            _use(self._properties, key, (reply.stat.etag, reply.properties), _MAX_PROPERTIES)
        return reply

    def _note(self, key: str, known: Known, time: float, serial: int) -> None:
        """Note what the store replied about *key* to a request of that *time*, sent when `serial` had that value."""
        with self._lock:
            record = self._record(key)
            if record.changed > serial:
                return
            if within_ttl(record.time, self._clock(), self._ttl):
                known = _with_keys_below(known, record.known)
            record.known, record.time = known, time

    def _put(self, key: str, known: FoundObject | KnownDirectory | Absent) -> None:
        """Note the result of our own change of *key*, also in present and pending listings."""
        self.serial += 1
        record = self._record(key)
        record.known, record.time, record.changed = known, self._clock(), self.serial
        parent, name = split(key)
        listing = self._listings.get(parent)
        if listing is not None:
            self._nnames -= listing.nnames
            listing.put(name, known)
            self._nnames += listing.nnames
        if parent in self._walks:
            self._walks[parent].changes[name] = known

    def _doubt(self, key: str) -> None:
        """Trust neither what is known about *key*, nor replies that are on their way."""
        self._refuse_replies(key)
        self._record(key).time = _NEVER
        parent, name = split(key)
        listing = self._listings.get(parent)
        if listing is not None:
            listing.doubtful.add(name)
            if len(listing.doubtful) > _MAX_DOUBTFUL:
                self._drop(parent)

    def _refuse_replies(self, key: str) -> None:
        """Trust no reply about *key* that is on its way."""
        self.serial += 1
        self._record(key).changed = self.serial
        parent, name = split(key)
        walk = self._walks.get(parent)
        if walk is not None:
            walk.doubtful.add(name)
            walk.changes.pop(name, None)

    def _listing(self, key: str) -> Listing | None:
        """Return the complete listing of the directory *key* within its TTL; None if there is none."""
        listing = self._listings.get(key)
        if listing is None:
            return None
        now = self._clock()
        if now - listing.time >= self._ttl and not within_ttl(listing.started, now, self._ttl):
            return None
        self._touch(self._listings, key)
        return listing

    def _touch(self, cache: OrderedDict[str, Any], key: str) -> None:
        with suppress(KeyError):  # `forget` runs in any thread, and another may drop it meanwhile
            cache.move_to_end(key)

    async def _list_once(self, key: str) -> None:
        """Fetch the listing of the directory *key*, if names in it are asked for repeatedly and it has one page.

        Programs that write files beside others and rename them ask for a new name each time.
        """
        if self._listing(key) is not None or not self._can_list:
            return
        with self._lock:
            record, now = self._record(key), self._clock()
        if now - record.asked >= self._ttl:
            record.asked, record.is_long = now, False
        elif not record.is_long:
            record.is_long = not (await self._walk(key, max_pages=1)).is_complete

    async def _look_up(self, key: str) -> Known:
        """Return what *key* is, by requests for this key alone."""
        if not self._can_list:
            return await self._look_up_unlisted(key)
        below = key + "/"
        page = await page_with_keys(self._client, key, limit=_LOOKUP_LIMIT)
        objects, is_directory = dict(page.objects), below in page.prefixes
        last = max((name.encode() for name in [*page.prefixes, *objects]), default=b"")
        if page.token is not None and last < below.encode():
            is_directory = bool((await page_with_keys(self._client, below, delimiter="", limit=1)).objects)
        if is_directory:
            return KnownDirectory()
        return FoundObject(objects[key]) if key in objects else Absent()

    async def _look_up_unlisted(self, key: str) -> Known:
        """Return what a key is if listing is not allowed: a directory is a key with a document.

        S3 then refuses to say that an object does not exist. Some servers do say so, but not whether there are keys
        below it. In both cases the lookup fails, so that chunks are not taken for missing, except for names that
        programs try everywhere, and that no chunk has.
        """
        refusal = AccessDeniedError(f"{key} may be a directory, which cannot be told without permission to list")
        for name in (f"{key}/{DOCUMENT}", key):
            try:
                version = (await self._client.head(name)).stat
            except NotFoundError:
                continue
            except AccessDeniedError as error:
                refusal = error
            else:
                return FoundObject(version) if name == key else KnownDirectory()
        last = split(key)[1]
        if last != DOCUMENT and not last.startswith("."):
            raise refusal
        return NoObject()

    async def _walk(self, key: str, *, max_pages: int | None = None) -> Listing:
        listing = self._walks.setdefault(key, Listing(self._clock()))
        try:
            async with listing.lock:
                while not listing.is_complete and (max_pages is None or listing.npages < max_pages):
                    prefix = f"{key}/" if key else ""
                    page = await page_with_keys(self._client, prefix, token=listing.token)
                    self._add_page(listing, prefix, page)
                    if page.token is None:
                        self._complete(key, listing)
        finally:
            if self._walks.get(key) is listing and (listing.is_complete or not listing.lock.locked()):
                del self._walks[key]
        return listing

    def _add_page(self, listing: Listing, prefix: str, page: ListPage) -> None:
        """Add a page; raises `StoreError` if it brings nothing new, and neither would any number of further ones."""
        before = len(listing.names) + len(listing.hidden)
        objects = [(full, full[len(prefix) :], stat) for full, stat in page.objects]  # there may be keys below them
        for full, name, stat in [*objects, *((full, full[len(prefix) : -1], None) for full in page.prefixes)]:
            if _is_name(name):
                listing.names[name] = stat
                continue
            listing.hidden.add(full)
            if not self._has_hidden and (full != prefix or stat is None):
                self._has_hidden = True
                where = printable(self._client.location.url_of(full))
                log.warning("objects that no file system can show are hidden, as %s", where)
        if len(listing.names) + len(listing.hidden) > _MAX_OF_ONE * self._max_names:
            where = self._client.location.url_of(prefix)
            raise StoreError(f"{where} cannot be listed: it has more names than {_MAX_OF_ONE * self._max_names:,}")
        listing.token = page.token
        listing.npages += 1
        if page.token is not None and len(listing.names) + len(listing.hidden) == before:
            where = self._client.location.url_of(prefix)
            raise StoreError(f"{where} cannot be listed: the server gives the same keys again and again")

    def _complete(self, key: str, listing: Listing) -> None:
        with self._lock:
            for name, known in listing.changes.items():
                listing.put(name, known)
            if listing.started != _NEVER:
                listing.time = self._clock()
            listing.is_complete = True
            self._drop(key)
            self._listings[key] = listing
            self._nnames += listing.nnames
            while self._nnames > self._max_names and len(self._listings) > 1:
                self._drop(next(iter(self._listings)))

    def _drop(self, key: str) -> None:
        listing = self._listings.pop(key, None)
        if listing is not None:
            self._nnames -= listing.nnames


def _use(cache: OrderedDict[str, _T], key: str, value: _T, limit: int) -> _T:
    """Store *value* in a cache as the most recently used; the least recently used may be dropped."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > limit:
        cache.popitem(last=False)
    return value


def _with_keys_below(known: Known, listed: Known) -> Known:
    """Return what is *known* by a request for an object alone, and by what was *listed* of its name."""
    match known, listed:
        case (FoundObject() | NoObject() | Unknown(), KnownDirectory()) | (NoObject(), Absent()):
            return listed
        case _:
            return known


def split(key: str) -> tuple[str, str]:
    """Return the directory of a key, and its name there."""
    parent, _, name = key.rpartition("/")
    return parent, name


def not_found(key: str) -> NotFoundError:
    """Return the error that *key* does not exist."""
    return NotFoundError(f"{key} does not exist")


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _ancestors(key: str) -> Iterator[str]:
    """Yield the directories above *key*, the nearest first, without the source itself."""
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key
