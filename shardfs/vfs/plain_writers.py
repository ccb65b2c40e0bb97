"""Plain files that are open to be written, by the numbers of their handles."""

from collections.abc import Callable

from shardfs.dataset.hierarchy import is_below
from shardfs.vfs.handles import PlainHandle


def _nameless(_: int) -> str:
    return ""


class PlainWriters(dict[int, PlainHandle]):
    """Handles that write what passes through; each knows the present key of its file."""

    def has(self, key: str) -> bool:
        """Whether somebody writes the file *key*."""
        return any(handle.key == key for handle in self.values())

    def let_go(self, key: str, name_of: Callable[[int], str] = _nameless) -> None:
        """Know a file by the name that *name_of* tells by its number, if any, after *key* was removed or replaced."""
        for handle in self.values():
            if handle.key == key:
                handle.key = name_of(handle.ino)

    def follow(self, old: str, new: str, name_of: Callable[[int], str] = _nameless) -> None:
        """Know files by their new names after *old* was moved to *new*, with all below it."""
        self.let_go(new, name_of)
        for handle in self.values():
            if is_below(handle.key, old):
                handle.key = new + handle.key[len(old) :]
