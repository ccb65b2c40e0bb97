"""Consolidated metadata of groups: each copy of an array's document is shown as the array itself is, and back.

Source: discussion of consolidated metadata for the Zarr core specification 3.1, as zarr-python writes it: a member
`consolidated_metadata` with `kind` "inline" and `metadata`, a map of relative paths to documents.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.document import Document, Json, canonical
from shardfs.format.lens.unsharded import reshard_copy
from shardfs.format.metadata import ArrayMetadata, parse_node
from shardfs.format.normal_form import fingerprint

Present = Callable[[ArrayMetadata], dict[str, Any] | None]
"""Gives the document that is shown for a stored one, None if that is shown itself.

Raises `NotShownError` or `NotUnshardable` if the array is not shown at all.
"""

Accept = Callable[[ArrayMetadata, ArrayMetadata], ArrayMetadata]
"""Turns an edited copy, given after what is stored, into the unsharded document with the encoded chunks' codecs."""

MAX_PATH_LENGTH: Final = 4096
"""Length of a path up to which it can be that of a node."""

_FINGERPRINTED: Final = frozenset({"chunk_grid", "chunk_key_encoding", "codecs", "data_type"})
_ANY_ARRAY: Final = {"zarr_format": 3, "node_type": "array", "shape": [], "fill_value": None}
_NOT_SHOWN: Final = (NotShownError, NotUnshardable)


def unshard_consolidated(
    document: Document, present: Present, as_stored: Collection[str] = (), prefix: str = ""
) -> dict[str, Any] | None:
    """Return a group's document with copies of arrays as *present* shows them; None if all are shown as they are.

    A copy of an array that is not shown is left out.  Copies that cannot be read stay as they are, and so do those at
    the paths *as_stored*, and consolidated metadata of an unknown kind.  *prefix* is put before paths in *document*
    where it is itself a copy.
    """
    copies = inline_copies(document)
    if copies is None:
        return None
    shown: dict[str, Json] = {}
    is_changed = False
    for path, copy in copies.items():
        try:
            rewritten = _unshard_copy(copy, present, as_stored, prefix + path)
        except _NOT_SHOWN:
            is_changed = True
            continue
        is_changed = is_changed or rewritten is not None
        shown[path] = copy if rewritten is None else rewritten
    return _with_copies(document, shown) if is_changed else None


def reshard_consolidated(
    edited: Document,
    stored: Document | None,
    stored_copy: Callable[[str], Json | None],
    present: Present,
    accept: Accept,
    as_stored: Collection[str] = (),
) -> dict[str, Any]:
    """Return a group's edited document with every copy of an array as it is stored; the way back of the above.

    *stored* is the group's stored document, if there is one.  Copies in it of arrays that are not shown are put back,
    and copies that were not edited stay as they are.  *stored_copy* gives the stored document of the node at a path
    relative to the group, or None if there is none.  Copies at the paths *as_stored* are taken as they are.  Raises
    `RefusedError`, naming the path, for a copy that describes other stored bytes than these.
    """
    try:
        return _Resharding(stored_copy, present, accept, as_stored).group(edited, stored, "")
    except RecursionError:
        raise RefusedError("the consolidated metadata is nested too deeply") from None


def inline_copies(document: Document) -> dict[str, Json] | None:
    """Return the copies in a group's document by path; None if it has no consolidated metadata of a known kind."""
    consolidated = document.get("consolidated_metadata")
    if not isinstance(consolidated, dict) or consolidated.get("kind", "inline") != "inline":
        return None
    copies = consolidated.get("metadata")
    return copies if isinstance(copies, dict) else None


def without_copies(document: Document, is_left_out: Callable[[str], bool], prefix: str = "") -> dict[str, Any]:
    """Return a group's document without copies, on any level, of nodes that are left out.

    *is_left_out* is asked with the paths of copies, behind *prefix*.
    """
    copies = inline_copies(document)
    if copies is None:
        return dict(document)
    kept = {
        path: without_copies(copy, is_left_out, f"{prefix}{path}/") if isinstance(copy, dict) else copy
        for path, copy in copies.items()
        if not is_left_out(prefix + path)
    }
    return _with_copies(document, kept)


def every_copy(document: Document) -> Iterator[tuple[str, Json]]:
    """Yield the copies in a group's document, and then those within copies of groups, by path relative to the group."""
    groups = deque([("", document)])
    while groups:
        prefix, group = groups.popleft()
        for name, copy in (inline_copies(group) or {}).items():
            path = prefix + name
            yield path, copy
            if isinstance(copy, dict) and len(path) < MAX_PATH_LENGTH:
                groups.append((f"{path}/", copy))


def says_the_same(one: Json, other: Json) -> bool:
    """Whether two documents of a node, copies in them included, say the same, in whatever spelling."""
    try:
        return _says_the_same(one, other, {})
    except (MetadataError, RecursionError):
        return False


def _says_the_same(one: Json, other: Json, alike: dict[tuple[str, str], bool]) -> bool:
    """Do what `says_the_same` does; *alike* remembers spellings that were compared: most copies share a few."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.get("node_type") == other.get("node_type") == "array":
            if canonical(_rest(one)) != canonical(_rest(other)):
                return False
            places = _place(one), _place(other)
            if places not in alike:
                alike[places] = _lie_alike(*places)
            return alike[places]
        copies, others = inline_copies(one), inline_copies(other)
        if copies is not None and others is not None:
            is_same = canonical(_with_copies(one, {})) == canonical(_with_copies(other, {}))
            is_same = is_same and copies.keys() == others.keys()
            return is_same and all(_says_the_same(copy, others[path], alike) for path, copy in copies.items())
    return canonical(one) == canonical(other)


def _rest(array: Document) -> dict[str, Json]:
    """Return what the fingerprint of an array does not tell."""
    return {member: value for member, value in array.items() if member not in _FINGERPRINTED}


def _place(array: Document) -> str:
    return canonical({member: array.get(member) for member in _FINGERPRINTED})


def _lie_alike(one: str, other: str) -> bool:
    """Whether arrays at these places have one fingerprint."""
    if one == other:
        return True
    arrays = [parse_node({**_ANY_ARRAY, **json.loads(place)}) for place in (one, other)]
    return len({fingerprint(array) for array in arrays if isinstance(array, ArrayMetadata)}) == 1


def _unshard_copy(copy: Json, present: Present, as_stored: Collection[str], path: str) -> dict[str, Any] | None:
    try:
        node = parse_node(copy)
        if isinstance(node, ArrayMetadata):
            return None if path in as_stored else present(node)
        return unshard_consolidated(node.document, present, as_stored, f"{path}/")
    except (MetadataError, RecursionError):
        return None


@dataclass(frozen=True)
class _Resharding:
    """The way back of one group's document, on the terms of `reshard_consolidated`."""

    stored_copy: Callable[[str], Json | None]
    present: Present
    accept: Accept
    as_stored: Collection[str]

    def group(self, edited: Document, stored: Document | None, prefix: str) -> dict[str, Any]:
        """Return the document of the group at *prefix*, or a copy of it."""
        copies = inline_copies(edited)
        if copies is None:
            return dict(edited)
        before = inline_copies(stored) or {} if isinstance(stored, dict) else {}
        result = {path: self._copy(copy, before.get(path), f"{prefix}{path}") for path, copy in copies.items()}
        hidden = {path: copy for path, copy in before.items() if path not in result and self._is_left_out(copy)}
        if hidden:
            every = result | hidden
            result = {path: every[path] for path in before if path in every} | result
        return _with_copies(edited, result) if result else dict(edited)

    def _copy(self, copy: Json, before: Json, path: str) -> Json:
        try:
            node = parse_node(copy)
        except MetadataError:
            return copy
        if not isinstance(node, ArrayMetadata):
            return self.group(node.document, before, f"{path}/")
        if path in self.as_stored:
            return copy
        try:
            stored = parse_node(self.stored_copy(path))
            if not isinstance(stored, ArrayMetadata) or self.present(stored) is None:
                return copy
        except (MetadataError, *_NOT_SHOWN):
            return copy
        try:
            if canonical(copy) == canonical(before):
                return copy
            return self._array(copy, node, stored)
        except (MetadataError, RefusedError) as error:
            raise RefusedError(f"the copy of {path!r}: {error}") from None

    def _array(self, copy: Json, node: ArrayMetadata, stored: ArrayMetadata) -> Json:
        """Return the copy of an array, which may be that of the stored document too."""
        try:
            return reshard_copy(stored, self.accept(stored, node))
        except RefusedError:
            if fingerprint(node) == fingerprint(stored):
                return copy
            raise

    def _is_left_out(self, copy: Json) -> bool:
        try:
            node = parse_node(copy)
            if isinstance(node, ArrayMetadata):
                self.present(node)
        except MetadataError:
            return False
        except _NOT_SHOWN:
            return True
        return False


def _with_copies(document: Document, copies: dict[str, Json]) -> dict[str, Any]:
    return {**document, "consolidated_metadata": {**document["consolidated_metadata"], "metadata": copies}}
