"""What a store has to know of documents if nothing else says what names there are: `Outline`."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol


class Outline(Protocol):
    """What the document of a node says of the names below it; all paths are relative to that."""

    @property
    def below(self) -> Mapping[str, frozenset[str]]:
        """The names of directories that lead to nodes, by directory."""

    @property
    def may_have(self) -> frozenset[str]:
        """Names of nodes that the document does not mention."""

    @property
    def is_array(self) -> bool:
        """Whether the node is an array, so that there are no nodes below it."""

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* is a directory, or a file; None if the document does not say."""

    def count(self, path: str) -> int:
        """Return how many names the grid of an array has in the directory *path*."""

    def shard_names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""


OutlineOf = Callable[[bytes], Awaitable[Outline]]
"""Reads a document, and lets others have their turn if that takes long; what is no sound document says nothing."""
