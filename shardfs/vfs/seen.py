"""What the programs of a session know of documents, which others may store, too: `SeenVersions` and `SeenArrays`."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from shardfs.dataset.path_table import is_below
from shardfs.stores.base import ABSENT, ANY, Expected, Stat, is_same_version

_MAX_KEYS: Final = 10_000


@dataclass(slots=True)
class _Seen:
    """What programs know of one stored document: what they *read* last, and what this mount has *stored*, or ANY.

    They are kept apart, because a program may get a version to read that the mount has replaced meanwhile. One that
    *is_removed* may be stored still, and hidden, or not.
    """

    read: Expected = ANY
    stored: Expected = ANY
    is_removed: bool = False

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

    def read(self, key: str, version: Expected) -> None:
        """Note that a program read *version*, or that it learned that there is none."""
        self._of(key).read = version

    def stored(self, key: str, old: Expected, new: Expected) -> None:
        """Note that this mount has replaced *old* by *new*; whoever does not know *old* does not know *new* either."""
        seen = self._of(key)
        if old is ANY or seen.has(old) or seen == _Seen():
            seen.stored, seen.is_removed = new, False

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
        seen.stored, seen.is_removed = old, True

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


class SeenArrays:
    """Which arrays programs know, by path: the fingerprint in the last document that they read or stored.

    At most `_MAX_KEYS` are known.
    """

    def __init__(self) -> None:
        self._fingerprints: OrderedDict[str, bytes] = OrderedDict()

    def described(self, path: str, fingerprint: bytes) -> None:
        """Note that programs know the array at *path* as one with this *fingerprint*."""
        self._fingerprints[path] = fingerprint
        self._fingerprints.move_to_end(path)
        if len(self._fingerprints) > _MAX_KEYS:
            self._fingerprints.popitem(last=False)

    def forget(self, path: str) -> None:
        """Note that it is not known what programs know of *path*."""
        self._fingerprints.pop(path, None)

    def below(self, path: str) -> Sequence[str]:
        """Return the paths of which it is known, at and below *path*."""
        return [known for known in self._fingerprints if is_below(known, path)]

    def __contains__(self, path: str) -> bool:
        return path in self._fingerprints

    def is_known(self, path: str, fingerprint: bytes) -> bool:
        """Whether programs know the array at *path*, of which they know something, as one with this *fingerprint*."""
        self._fingerprints.move_to_end(path)
        return self._fingerprints[path] == fingerprint


def _is_same(one: Expected, other: Expected) -> bool:
    if isinstance(one, Stat) and isinstance(other, Stat):
        return is_same_version(one, other)
    return one is other
