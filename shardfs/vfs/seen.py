"""Which versions of documents the programs of a session know, as others may store them, too: `SeenVersions`."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from shardfs.stores.base import ABSENT, ANY, Expected, Stat, is_same_version

_MAX_KEYS: Final = 10_000


@dataclass(slots=True)
class _Seen:
    """What programs know of one stored document: what they *read* last, and what this mount has *stored*, or ANY.

    They are kept apart, because a program may get a version to read that the mount has replaced meanwhile. One that
    *is_removed* may be stored still, and hidden, or not. *meaning* is the fingerprint of the array in the last version
    that they know, *since* when they read that; None if it is not known.
    """

    read: Expected = ANY
    stored: Expected = ANY
    is_removed: bool = False
    meaning: bytes | None = None
    since: int = 0

    def has(self, version: Expected) -> bool:
        """Whether *version* is one of these."""
        return (version is ABSENT and self.is_removed) or any(map(partial(_is_same, version), (self.read, self.stored)))

    def last(self) -> Expected:
        """Return one of these."""
        return next((known for known in (self.read, self.stored) if known is not ANY), ABSENT)


class SeenVersions:
    """The versions of stored documents that programs have read, or the mount has stored, by key: at most `_MAX_KEYS`.

    A mount cannot tell its programs apart: what one knows, all do. To look at names and sizes is not to read: whoever
    has read an earlier version would replace one that it has not seen.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._nreads = 0

    def read(self, key: str, version: Expected) -> None:
        """Note that a program read *version*, or that it learned that there is none."""
        self._nreads += 1
        seen = self._of(key)
        seen.read, seen.meaning, seen.since = version, None, self._nreads

    def meant(self, key: str, version: Expected, meaning: bytes) -> None:
        """Note that *version* describes an array whose fingerprint is *meaning*."""
        seen = self._seen.get(key)
        if seen is not None and seen.has(version):
            seen.meaning = meaning

    def may_mean(self, key: str, meaning: bytes, describing: Iterable[str]) -> bool:
        """Whether programs may know that the array described by *key* has the fingerprint *meaning*.

        They may if they know no other one, or have read one of the documents *describing* it, too, since then.
        """
        seen = self._seen.get(key)
        if seen is None or seen.meaning is None or seen.meaning == meaning:
            return True
        others = (self._seen.get(other) for other in describing)
        return any(other is not None and other.since > seen.since for other in others)

    def stored(self, key: str, old: Expected, new: Expected) -> None:
        """Note that this mount has replaced *old* by *new*; whoever does not know *old* does not know *new* either."""
        seen = self._of(key)
        if old is ANY or seen.has(old) or seen == _Seen():
            seen.stored, seen.is_removed, seen.meaning = new, False, None

    def touched(self, key: str, old: Stat, new: Stat) -> None:
        """Note that a program has set the time of the document, which had the status *old*."""
        seen = self._of(key)
        if _is_same(seen.read, old):
            seen.read = new
        if _is_same(seen.stored, old):
            seen.stored = new

    def removed(self, key: str, old: Expected) -> None:
        """Note that a program has removed the document, whose version was *old*."""
        seen = self._of(key)
        seen.stored, seen.is_removed, seen.meaning = old, True, None

    def expected(self, key: str, now: Stat | None) -> Expected:
        """Return what a program replaces, where *now* is stored: that, if it can know it, else what it has read."""
        version: Expected = now if now is not None else ABSENT
        seen = self._of(key)
        if seen == _Seen() or seen.has(version):
            return version
        return seen.last()

    def _of(self, key: str) -> _Seen:
        seen = self._seen.setdefault(key, _Seen())
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_KEYS:
            self._seen.popitem(last=False)
        return seen


def _is_same(one: Expected, other: Expected) -> bool:
    if isinstance(one, Stat) and isinstance(other, Stat):
        return is_same_version(one, other)
    return one is other
