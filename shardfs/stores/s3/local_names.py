"""Names that only this mount knows: files that are not sent yet, and directories, which a bucket does not have."""

from collections.abc import Mapping
from typing import Final

from shardfs.errors import ExistsError, NotADirectoryHereError
from shardfs.stores.base import Kind, join_key

_NOTHING: Final[Mapping[str, Kind]] = {}


class LocalNames:
    """A tree of files and directories, by their keys; the source itself is always there.

    Above what it holds, all directories are in it.
    """

    def __init__(self) -> None:
        self._children: dict[str, dict[str, Kind]] = {}

    def kind(self, key: str) -> Kind | None:
        """Return what *key* stands for, None if it is not here."""
        parent, _, name = key.rpartition("/")
        return self._children.get(parent, _NOTHING).get(name)

    def children(self, key: str) -> Mapping[str, Kind]:
        """Return the names in a directory."""
        return self._children.get(key, _NOTHING)

    def add(self, key: str, kind: Kind) -> None:
        """Take in a file or a directory, and all directories above it.

        Raises `NotADirectoryHereError` if a file is among those, `ExistsError` where a file and a directory meet.
        """
        parent, _, name = key.rpartition("/")
        if parent:
            if self.kind(parent) is Kind.FILE:
                raise NotADirectoryHereError(f"{parent} is no directory")
            self.add(parent, Kind.DIRECTORY)
        if self.kind(key) not in (None, kind):
            raise ExistsError(f"{key} exists")
        if key:
            self._children.setdefault(parent, {})[name] = kind

    def remove(self, key: str) -> None:
        """Let go of a file, or of a directory with all below it; the directories above it stay."""
        for name in list(self.children(key)):
            self.remove(join_key(key, name))
        parent, _, name = key.rpartition("/")
        names = self._children.get(parent)
        if names is not None and names.pop(name, None) is not None and not names:
            del self._children[parent]

    def settle(self, key: str) -> None:
        """Let go of a file that is an object now, and of the directories above it, which it stands for."""
        while key and not self.children(key):
            self.remove(key)
            key = key.rpartition("/")[0]

    def move(self, key: str, to: str) -> None:
        """Give *key*, with all below it, the name *to*, which is not here."""
        kind = self.kind(key)
        if kind is None:
            return
        self.add(to, kind)
        for name in list(self.children(key)):
            self.move(join_key(key, name), join_key(to, name))
        self.remove(key)
