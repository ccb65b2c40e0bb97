"""What a store has to know of documents if nothing else says what names there are: `NamesBelow`."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol

from shardfs.stores.objects.requests import DOCUMENT

_V3: Final = (DOCUMENT,)
_INFO: Final = ("info",)
_V2: Final = ((".zarray", ".zattrs"), (".zgroup", ".zattrs"))
_PROPERTIES: Final = ("datasource-properties.json",)
_WKW: Final = ("header.wkw", "../../datasource-properties.json")
NODES: Final = (_V3, _INFO, (".zmetadata",), *_V2, _PROPERTIES, _WKW)
"""The documents that a node may have, by their paths: the first of each is there if any is."""

BELOW: Final = {
    DOCUMENT: (_V3,),
    "info": (_INFO,),
    ".zmetadata": _V2,
    ".zarray": _V2,
    ".zgroup": _V2,
    _PROPERTIES[0]: (_WKW, _V3),
    _WKW[0]: (),
}
"""The documents that nodes below a source with such a document may have: its format is that of all of them."""


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


OutlineOf = Callable[[str, Mapping[str, bytes]], Awaitable[NamesBelow | None]]
"""Reads the documents of the node at a path, by their own paths relative to it; None if they are none.

It lets others have their turn if that takes long. What is no sound document says nothing.
"""
