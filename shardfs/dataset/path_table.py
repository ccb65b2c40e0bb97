"""Paths: what is below what, and a table that finds that without a look at all else."""

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

V = TypeVar("V")


class PathTable(MutableMapping[str, V]):
    """Values by path, "" being the root."""

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._names: dict[str, set[str]] = {}  # of each directory with values below it, those in it that lead there

    def __getitem__(self, path: str) -> V:
        return self._values[path]

    def __setitem__(self, path: str, value: V) -> None:
        self._values[path] = value
        while path:
            path, _, name = path.rpartition("/")
            names = self._names.setdefault(path, set())
            if name in names:
                return
            names.add(name)

    def __delitem__(self, path: str) -> None:
        del self._values[path]
        while path and path not in self._values and path not in self._names:
            path, _, name = path.rpartition("/")
            self._names[path].discard(name)
            if self._names[path]:
                return
            del self._names[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def below(self, directory: str) -> list[str]:
        """Return the paths of values at *directory* and below it; takes as many steps as there are on the way."""
        paths: list[str] = []
        pending = [directory]
        while pending:
            path = pending.pop()
            if path in self._values:
                paths.append(path)
            pending += [f"{path}/{name}" if path else name for name in self._names.get(path, ())]
        return paths


def is_below(path: str, directory: str) -> bool:
    """Whether *path* is *directory* or is below it."""
    return not directory or path == directory or path.startswith(directory + "/")
