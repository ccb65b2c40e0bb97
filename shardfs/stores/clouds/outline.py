"""What a store has to know of documents if nothing else says what names there are: `NamesBelow`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


class NamesBelow(Protocol):
    """What the documents of a node say of the names below it; all paths are relative to that."""

    @property
    def below(self) -> Mapping[str, frozenset[str]]:
        """The names of directories that lead to nodes, by directory."""

    @property
    def may_have(self) -> frozenset[str]:
        """Names of nodes that the documents do not mention."""

    @property
    def documents(self) -> Mapping[str, frozenset[str]]:
        """The names of documents that are known to be there, by directory."""

    def is_closed(self, path: str) -> bool:
        """Whether the directory *path* is one of shards, or of chunks, so that there are no nodes below it."""

    def is_directory(self, path: str) -> bool | None:
        """Whether *path* is a directory, or a file; None if the documents do not say."""

    def count(self, path: str) -> int | None:
        """Return how many names a grid has in the directory *path*; None if nobody knows what names there are."""

    def shard_names(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield those names, and whether each is a directory."""


class OutlineOf(Protocol):
    """What reads documents of nodes, and says which there may be, as no listing tells."""

    @property
    def nodes(self) -> Sequence[Sequence[str]]:
        """The documents that a node may have, by their paths: the first of each row is there if any is."""

    @property
    def below(self) -> Mapping[str, Sequence[Sequence[str]]]:
        """The rows that nodes below a source may have, by the first document of its own: they are of one format."""

    @property
    def looked_for(self) -> Mapping[str, bool]:
        """The documents that are looked for in each directory, and whether other files have their names, too."""

    @property
    def sources(self) -> str:
        """In words, what a source can be that lists nothing."""

    async def __call__(self, path: str, documents: Mapping[str, bytes]) -> NamesBelow | None:
        """Return what the documents of the node at *path*, by paths relative to it, say; None if they are none.

        It lets others have their turn if that takes long. What is no sound document says nothing.
        """
