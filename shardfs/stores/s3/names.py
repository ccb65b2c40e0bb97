"""What the names of a source stand for: put together from single objects that were seen, and listings."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.listing import Listing, Listings, is_shown
from shardfs.stores.s3.location import Location
from shardfs.stores.s3.requests import ObjectStat
from shardfs.stores.s3.seen import Known, Seen

_GONE: Final = Known(None, False)
_DIRECTORY: Final = Known(None, True)


class Names:
    """What is known of the names below *location*, believed for *ttl* seconds and corrected by our own changes."""

    def __init__(
        self, client: S3Client, location: Location, *, ttl: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self.seen = Seen(ttl, clock)
        self.listings = Listings(client, location, ttl=ttl, clock=clock)

    def find(self, key: str) -> Known | None:
        """Return what is believed of *key*, also for what is known of the directories above; None if nothing is."""
        found = self._find(key)
        if found is None:
            above = map(self._find, _ancestors(key))
            if any(known is not None and known.is_directory is False for known in above):
                return _GONE
        return found

    async def known(self, key: str) -> Known:
        """Return what *key* stands for: as is believed, else what the store says."""
        found = self.find(key)
        if found is None or not found.is_settled:
            await self.listings.glance(_split(key)[0])
            found = self.find(key)
        if found is not None and found.is_settled:
            return found
        now, serial = self.clock(), self.seen.serial
        answer = await self.listings.lookup(key)
        self.seen.note(key, answer, time=now, serial=serial)
        return self.find(key) or answer

    async def list(self, key: str) -> Listing:
        """Return the names in the directory *key*; a listing that is missing is of no directory."""
        return await self.listings.list(key)

    def forget(self, key: str) -> None:
        """Believe nothing of *key*, nor that nothing is above it; may be called in any thread for no directory."""
        self.seen.forget(key)
        self.listings.doubt(*_split(key))
        self.listings.drop(key)
        for above in _ancestors(key):  # else *key* is taken for absent again, for there is no directory for it
            known = self._find(above)
            if known is not None and known.is_directory is False:
                self.seen.forget(above)
                self.listings.doubt(*_split(above))

    def note(self, key: str, stat: ObjectStat | None) -> None:
        """Note that our own change gave the object *key* the state *stat*, or removed it."""
        before = self._find(key)
        self._put(key, Known(stat, before is not None and before.is_directory is True))
        if stat is not None:
            self._make_directories(key)
        else:
            self._leave(key)

    def note_directory(self, key: str, *, exists: bool) -> None:
        """Note that our own change made the object that stands for the directory *key* itself, or removed it."""
        listing = self.listings.find(key)
        if listing is not None:
            listing.has_marker = exists
        if exists:
            self._put(key, _DIRECTORY)
            self._make_directories(key)
        elif listing is None:
            self.forget(key)
        elif listing.is_missing:
            self._put(key, _GONE)
            self._leave(key)

    def _find(self, key: str) -> Known | None:
        if not key:
            return _DIRECTORY
        if not is_shown(key):
            return _GONE
        parent, name = _split(key)
        listing = self.listings.find(parent)
        listed = listing.find(name) if listing is not None else None
        record = self.seen.find(key, since=listing.started if listing is not None and listed is not None else None)
        found = record or listed
        if found is not None and found.is_directory is None and listed is not None:
            found = found._replace(is_directory=listed.is_directory)
        own = self.listings.find(key)
        if (found is None or found.is_directory is None) and own is not None and not own.is_missing:
            return _DIRECTORY
        return found

    def _put(self, key: str, known: Known) -> None:
        self.seen.note_change(key, known)
        self.listings.put(*_split(key), known)

    def _make_directories(self, key: str) -> None:
        for above in _ancestors(key):
            self._put(above, _DIRECTORY)

    def _leave(self, key: str) -> None:
        """Find out, as far as can be, whether the directories above *key*, which is gone, went with it."""
        for above in _ancestors(key):
            listing = self.listings.find(above)
            if listing is None:
                self.forget(above)
            elif listing.is_missing:
                self._put(above, _GONE)
            else:
                break


def _split(key: str) -> tuple[str, str]:
    parent, _, name = key.rpartition("/")
    return parent, name


def _ancestors(key: str) -> Iterator[str]:
    """Yield the directories above *key*, the nearest first, without the source itself."""
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key
