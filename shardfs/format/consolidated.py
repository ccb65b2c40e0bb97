"""Consolidated metadata of groups: each inline copy of an array's document is rewritten from itself.

Source: Zarr core specification 3.1 discussion of consolidated metadata as zarr-python writes it: a member
`consolidated_metadata` with `kind` "inline" and `metadata`, a map of relative paths to documents.
"""

from typing import Any

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.metadata import ArrayMetadata, Document, Json, parse_node
from shardfs.format.unshard import unshard


def unshard_consolidated(document: Document) -> dict[str, Any] | None:
    """Return a group's document with the copies of sharded arrays described as unsharded; None if there are none.

    A copy that cannot be read or described so stays as it is, as does consolidated metadata of an unknown kind.
    """
    consolidated = document.get("consolidated_metadata")
    if not isinstance(consolidated, dict) or consolidated.get("kind", "inline") != "inline":
        return None
    copies = consolidated.get("metadata")
    if not isinstance(copies, dict):
        return None
    rewritten = {path: _unshard_copy(copy) for path, copy in copies.items()}
    if all(copy is None for copy in rewritten.values()):
        return None
    merged = {path: copies[path] if copy is None else copy for path, copy in rewritten.items()}
    return {**document, "consolidated_metadata": {**consolidated, "metadata": merged}}


def _unshard_copy(copy: Json) -> dict[str, Any] | None:
    try:
        node = parse_node(copy)
        return unshard(node).document if isinstance(node, ArrayMetadata) else unshard_consolidated(node.document)
    except (MetadataError, NotUnshardable, RecursionError):
        return None
