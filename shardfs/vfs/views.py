"""Views: which documents a node shows instead of, or beside, those that are stored."""

from collections.abc import Mapping
from typing import Protocol
from weakref import WeakKeyDictionary

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.format.consolidated import unshard_consolidated
from shardfs.format.metadata import GroupMetadata, encode_json


class View(Protocol):
    """One face of a dataset."""

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the generated documents of *node* by name; each hides what is stored under that name."""


class UnshardedV3:
    """Zarr v3 without sharding codecs: inner chunks are the chunks."""

    def __init__(self) -> None:
        self._documents: WeakKeyDictionary[Node, Mapping[str, bytes]] = WeakKeyDictionary()

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the unsharded document of a sharded array, or a group's with its consolidated copies unsharded."""
        documents = self._documents.get(node)
        if documents is None:
            documents = self._documents[node] = self._generate(node)
        return documents

    def _generate(self, node: Node) -> Mapping[str, bytes]:
        if node.document is None:
            return {}
        if node.array is not None:
            return {DOCUMENT: encode_json(node.array.document)}
        if isinstance(node.metadata, GroupMetadata):
            rewritten = unshard_consolidated(node.metadata.document)
            return {} if rewritten is None else {DOCUMENT: encode_json(rewritten)}
        return {}
