"""Which ranges of which objects the cache has, as far as this process knows: pure, and about 100 bytes per entry."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from shardfs.stores.range_entry import KEY_NBYTES, name_of, prefix_of, range_of

_LAST: Final = b"\xff" * KEY_NBYTES
"""Appended to the beginning of keys, it makes what is no less than any of them."""


def drawer_of(key: bytes) -> str:
    """Return the name of the drawer that an entry is in; all entries of an object share one of 4096."""
    return key[:2].hex()[:3]


class RangeIndex:
    """Keys of entries, in drawers.

    No entry lies within another of its version.  Ordered by their beginnings, entries of a version are then ordered by
    their ends too: the last one that begins early enough is the only one that may hold a range.
    """

    def __init__(self) -> None:
        self._drawers: dict[str, list[bytes]] = {}

    def keys(self, drawer: str) -> Sequence[bytes]:
        """Return the keys in a drawer, in order."""
        return tuple(self._drawers.get(drawer, ()))

    def find(self, key: bytes) -> bytes | None:
        """Return the key of the entry that holds the range of *key*, if there is one."""
        keys = self._drawers.get(drawer_of(key), [])
        at = bisect_right(keys, _beginning(key) + _LAST) - 1
        if at < 0 or prefix_of(keys[at]) != prefix_of(key):
            return None
        return keys[at] if _end(keys[at]) >= _end(key) else None

    def add(self, key: bytes) -> list[bytes]:
        """Take in an entry; return those that it makes useless: what lies within it, or itself if it is within another.

        They are not in the index any more.
        """
        holder = self.find(key)
        if holder is not None:
            return [] if holder == key else [key]
        keys = self._drawers.setdefault(drawer_of(key), [])
        begin = end = bisect_left(keys, _beginning(key))
        while end < len(keys) and prefix_of(keys[end]) == prefix_of(key) and _end(keys[end]) <= _end(key):
            end += 1
        within = keys[begin:end]
        keys[begin:end] = [key]
        return within

    def discard(self, key: bytes) -> None:
        """Remove an entry, if it is there."""
        keys = self._drawers.get(drawer_of(key), [])
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at] == key:
            del keys[at]

    def discard_other_versions(self, key: bytes) -> list[bytes]:
        """Remove and return the entries for the same object that are of another version than *key*."""
        keys = self._drawers.get(drawer_of(key), [])
        removed: list[bytes] = []
        for begin, end in (
            (bisect_right(keys, prefix_of(key) + _LAST), bisect_right(keys, name_of(key) + _LAST)),
            (bisect_left(keys, name_of(key)), bisect_left(keys, prefix_of(key))),
        ):
            removed += keys[begin:end]
            del keys[begin:end]
        return removed

    def replace(self, drawer: str, keys: Iterable[bytes]) -> list[bytes]:
        """Let a drawer hold *keys* and nothing else; return those of them that lie within others, and are left out."""
        kept: list[bytes] = []
        within: list[bytes] = []
        for key in sorted(keys):
            if kept and prefix_of(kept[-1]) == prefix_of(key):
                if _end(kept[-1]) >= _end(key):
                    within.append(key)
                    continue
                if _beginning(kept[-1]) == _beginning(key):
                    within.append(kept.pop())
            kept.append(key)
        self._drawers[drawer] = kept
        return within


def _beginning(key: bytes) -> bytes:
    """Return what the keys of all entries begin with that begin where *key* does."""
    return key[: KEY_NBYTES - 8]


def _end(key: bytes) -> int:
    return sum(range_of(key))
