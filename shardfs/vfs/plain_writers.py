"""Plain files that are open to be written, by the numbers of their handles."""

from shardfs.dataset.hierarchy import is_below
from shardfs.vfs.handles import PlainHandle


class PlainWriters(dict[int, PlainHandle]):
    """Handles that write what passes through; each knows the present key of its file."""

    def has(self, key: str) -> bool:
        """Whether somebody writes the file *key*."""
        return any(handle.key == key for handle in self.values())

    def let_go(self, key: str) -> None:
        """Know a file without a name after *key* was removed, or became the name of another."""
        for handle in self.values():
            if handle.key == key:
                handle.key = ""

    def follow(self, old: str, new: str) -> None:
        """Know files by their new names after *old* was moved to *new*, with all below it."""
        self.let_go(new)
        for handle in self.values():
            if is_below(handle.key, old):
                handle.key = new + handle.key[len(old) :]
