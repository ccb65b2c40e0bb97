"""Directories in which nothing is stored: a bucket does not have them, so this mount alone knows them."""

from collections.abc import Set as AbstractSet
from typing import Final

from shardfs.stores.base import join_key

_NOTHING: Final[AbstractSet[str]] = frozenset()


class Directories:
    """A tree of directories by their keys; above each all are in it.  The source itself is always there."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def has(self, key: str) -> bool:
        """Whether the directory *key* is known here."""
        parent, _, name = key.rpartition("/")
        return name in self._names.get(parent, _NOTHING)

    def children(self, key: str) -> AbstractSet[str]:
        """Return the names of the directories in *key* that are known here."""
        return self._names.get(key, _NOTHING)

    def add(self, key: str) -> None:
        """Know a directory, and all above it."""
        while key and not self.has(key):
            parent, _, name = key.rpartition("/")
            self._names.setdefault(parent, set()).add(name)
            key = parent

    def remove(self, key: str) -> None:
        """Forget a directory with all below it; those above it stay."""
        for name in list(self.children(key)):
            self.remove(join_key(key, name))
        parent, _, name = key.rpartition("/")
        names = self._names.get(parent)
        if names is not None:
            names.discard(name)
            if not names:
                del self._names[parent]

    def settle(self, key: str) -> None:
        """Forget a directory in which something is stored now, and those above it, which it stands for."""
        while key and not self.children(key):
            self.remove(key)
            key = key.rpartition("/")[0]

    def move(self, key: str, to: str) -> None:
        """Give a directory, with all below it, the name *to*."""
        self.add(to)
        for name in list(self.children(key)):
            self.move(join_key(key, name), join_key(to, name))
        self.remove(key)
