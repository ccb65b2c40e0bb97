"""Consolidated metadata of groups: each inline copy of an array's document is rewritten from itself, and back.

Source: Zarr core specification 3.1 discussion of consolidated metadata as zarr-python writes it: a member
`consolidated_metadata` with `kind` "inline" and `metadata`, a map of relative paths to documents.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shardfs.errors import MetadataError, NotUnshardable, RefusedError
from shardfs.format.fingerprint import fingerprint
from shardfs.format.metadata import ArrayMetadata, Document, Json, parse_node
from shardfs.format.reshard import describe_sharded
from shardfs.format.unshard import unshard


def unshard_consolidated(document: Document) -> dict[str, Any] | None:
    """Return a group's document with the copies of sharded arrays described as unsharded; None if there are none.

    A copy that cannot be read or described so stays as it is, as does consolidated metadata of an unknown kind.
    """
    copies = _inline_copies(document)
    rewritten = {path: _unshard_copy(copy) for path, copy in copies.items()}
    if all(copy is None for copy in rewritten.values()):
        return None
    return _with_copies(document, {path: copies[path] if copy is None else copy for path, copy in rewritten.items()})


def reshard_consolidated(edited: Document, stored_copy: Callable[[str], Json | None]) -> dict[str, Any]:
    """Return a group's edited document with every copy of an array that shows unsharded as it is stored.

    *stored_copy* gives the stored document of the node at a path relative to the group, or None if there is none.
    Raises `RefusedError`, naming the path, for a copy that describes other stored bytes than these.
    """
    try:
        return _reshard_copies(edited, "", stored_copy)
    except RecursionError:
        raise RefusedError("the consolidated metadata is nested too deeply") from None


def copy_paths(document: Document, prefix: str = "") -> Iterator[str]:
    """Yield the path, relative to the group, of every copy in its document, and of those within copies of groups."""
    for path, copy in _inline_copies(document).items():
        yield prefix + path
        if isinstance(copy, dict):
            yield from copy_paths(copy, f"{prefix}{path}/")


def _unshard_copy(copy: Json) -> dict[str, Any] | None:
    try:
        node = parse_node(copy)
        return unshard(node).document if isinstance(node, ArrayMetadata) else unshard_consolidated(node.document)
    except (MetadataError, NotUnshardable, RecursionError):
        return None


def _reshard_copies(edited: Document, prefix: str, stored_copy: Callable[[str], Json | None]) -> dict[str, Any]:
    copies = _inline_copies(edited)
    if not copies:
        return dict(edited)
    return _with_copies(
        edited, {path: _reshard_copy(copy, f"{prefix}{path}", stored_copy) for path, copy in copies.items()}
    )


def _reshard_copy(copy: Json, path: str, stored_copy: Callable[[str], Json | None]) -> Json:
    try:
        node = parse_node(copy)
    except MetadataError:
        return copy
    if not isinstance(node, ArrayMetadata):
        return _reshard_copies(node.document, f"{path}/", stored_copy)
    try:
        stored = parse_node(stored_copy(path))
        if not isinstance(stored, ArrayMetadata):
            return copy
        unshard(stored)
    except (MetadataError, NotUnshardable):
        return copy
    try:
        if not node.is_sharded:
            return describe_sharded(stored, node)
        if fingerprint(node) == fingerprint(stored):
            return copy
    except (MetadataError, RefusedError) as error:
        raise RefusedError(f"the copy of {path!r}: {error}") from None
    raise RefusedError(f"the copy of {path!r} is that of another sharded array")


def _inline_copies(document: Document) -> dict[str, Json]:
    """Return the copies in a group's document by path; none if there are none, or of an unknown kind."""
    consolidated = document.get("consolidated_metadata")
    if not isinstance(consolidated, dict) or consolidated.get("kind", "inline") != "inline":
        return {}
    copies = consolidated.get("metadata")
    return copies if isinstance(copies, dict) else {}


def _with_copies(document: Document, copies: dict[str, Json]) -> dict[str, Any]:
    return {**document, "consolidated_metadata": {**document["consolidated_metadata"], "metadata": copies}}
