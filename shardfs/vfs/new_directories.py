"""The directories of chunks of an array that is being created."""

from collections.abc import Collection
from typing import Final

from shardfs.format.sharding import Coords

_MAX_DIRECTORIES: Final = 1_000_000


class NewDirectories:
    """Which directories of chunks exist in an array that is being created, by their coordinates.

    Programs made them, or they were found to have chunks. At most `_MAX_DIRECTORIES` are known: of an array with more,
    nobody can say any more which do not exist.
    """

    def __init__(self) -> None:
        self._children: dict[Coords, set[int]] = {}
        self._count = 0

    @property
    def is_full(self) -> bool:
        """Whether there are too many."""
        return self._count > _MAX_DIRECTORIES

    def has(self, coords: Coords) -> bool:
        """Whether the directory at *coords* is known to exist."""
        return coords[-1] in self._children.get(coords[:-1], ()) if coords else coords in self._children

    def in_directory(self, prefix: Coords) -> Collection[int]:
        """Return the next coordinates of those in the directory at *prefix*."""
        return self._children.get(prefix, ())

    def add(self, coords: Coords) -> None:
        """Note that a directory exists, with those above it."""
        self._children.setdefault((), set())
        for depth, index in enumerate(coords):
            children = self._children.setdefault(coords[:depth], set())
            self._count += index not in children
            children.add(index)

    def remove(self, coords: Coords) -> None:
        """Note that a directory is gone, with those below it."""
        if coords and coords[-1] in (siblings := self._children.get(coords[:-1], set())):
            siblings.remove(coords[-1])
            self._count -= 1
        pending = [coords]
        while pending:
            prefix = pending.pop()
            children = self._children.pop(prefix, set())
            self._count -= len(children)
            pending += [(*prefix, index) for index in children]
