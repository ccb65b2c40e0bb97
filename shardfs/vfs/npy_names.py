"""The names of the npy view: which files stand for arrays and attributes, and which stored names they hide."""

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from shardfs.dataset.hierarchy import Hierarchy, Node
from shardfs.dataset.maintenance.walk import walk_nodes
from shardfs.dataset.source import Source
from shardfs.errors import MetadataError, NotADirectoryHereError, NotFoundError, ShardfsError
from shardfs.format.grid import ChunkKeyEncoding, parse_coordinate
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.stores.base import Kind, Store, is_reserved, join_key
from shardfs.vfs.at_once import for_each

if TYPE_CHECKING:
    from shardfs.vfs.views import NpyView

NPY: Final = ".npy"
JSON: Final = ".json"
_AT_ONCE: Final = 16
_MAX_NAME_NBYTES: Final = 255  # what Linux takes


class Generated(NamedTuple):
    """A file that stands for the array of *node*, or for the attributes of *node*, as its *suffix* says."""

    node: Node
    suffix: str


@dataclass(frozen=True)
class NpyNames:
    """What a directory shows: *generated* files by name, beside what is stored there and not *hidden*.

    *problems* are the reasons why something is not to be seen, by its stored name or path.
    """

    generated: Mapping[str, Generated]
    hidden: frozenset[str]
    problems: Mapping[str, str] = field(default_factory=dict)


def files_of(view: "NpyView", node: Node, name: str) -> dict[str, Generated]:
    """Return the files that stand for *node*, which is called *name*."""
    metadata = node.metadata
    if not isinstance(metadata, ArrayMetadata | GroupMetadata) or view.left_out(node) is not None:
        return {}
    files = {name + NPY: Generated(node, NPY)} if isinstance(metadata, ArrayMetadata) else {}
    if view.attributes(node) is not None:
        files[name + JSON] = Generated(node, JSON)
    return files


def is_chunk_name(node: Node, name: str) -> bool:
    """Whether *name*, in the directory of an array, belongs to its chunks."""
    metadata = node.metadata
    if not isinstance(metadata, ArrayMetadata):
        return False
    try:
        encoding = ChunkKeyEncoding.parse(metadata.chunk_key_encoding)
    except MetadataError:
        return False
    root = encoding.root(metadata.ndim)
    if root:
        return name == root
    if encoding.is_nested(metadata.ndim):
        return parse_coordinate(name) is not None
    return encoding.decode(name, metadata.ndim) is not None


async def child(hierarchy: Hierarchy, node: Node, name: str) -> Node | None:
    """Return the node *name* in the directory of *node*, None if there is none."""
    if name in ("", ".", "..") or is_reserved(name) or isinstance(node.metadata, ArrayMetadata):
        return None
    try:
        return await hierarchy.node(join_key(node.path, name))
    except (NotFoundError, NotADirectoryHereError):
        return None


async def names_in(view: "NpyView", hierarchy: Hierarchy, store: Store, node: Node) -> NpyNames:
    """Look at the directory of *node*, and at all nodes in it."""
    entries = [entry for entry in await store.list(node.path) if not is_reserved(entry.name)]
    children: dict[str, Node] = {}

    async def look(name: str) -> None:
        try:
            found = await child(hierarchy, node, name)
        except ShardfsError:  # which comes again when somebody looks at the name
            found = hierarchy.last_seen(join_key(node.path, name))
        if found is not None:
            children[name] = found

    kinds = (Kind.DIRECTORY, Kind.SYMLINK)
    await for_each(sorted(entry.name for entry in entries if entry.kind in kinds), look, _AT_ONCE)
    hidden = {entry.name for entry in entries if view.hides(node, entry.name) or is_chunk_name(node, entry.name)}
    hidden |= {name for name, each in children.items() if isinstance(each.metadata, ArrayMetadata)}
    own = files_of(view, node, view.source_name) if not node.path else {}
    below = {name: file for each in sorted(children) for name, file in files_of(view, children[each], each).items()}
    problems = {
        name: f"{view.source_name}{file.suffix} is a file of {below[name].node.path}, not of the source itself"
        for name, file in own.items()
        if name in below
    }
    generated = own | below
    for name in [name for name in generated if len(os.fsencode(name)) > _MAX_NAME_NBYTES]:
        problems[join_key(node.path, name)] = f"its name is longer than the {_MAX_NAME_NBYTES} bytes that one can have"
        del generated[name]
    for entry in entries:
        if entry.name in generated and entry.name not in hidden:
            of = generated[entry.name].node.path or "the source"
            problems[join_key(node.path, entry.name)] = f"a file of that name stands for {of}"
    return NpyNames(generated, frozenset(hidden | generated.keys()), problems)


async def npy_problems(source: Source, view: "NpyView") -> AsyncIterator[tuple[str, str]]:
    """Yield path and reason of everything below *source* that the view does not show; the source itself is "".

    These are arrays without an .npy form, and stored names that the name of a generated file hides.
    """
    seen: set[str] = set()
    async for node in walk_nodes(source):
        reason = view.left_out(node)
        if reason is not None:
            yield node.path, reason
        directory = node.path.rpartition("/")[0]
        for path in {directory, node.path if isinstance(node.metadata, GroupMetadata) else directory} - seen:
            seen.add(path)
            try:
                above = await source.hierarchy.node(path)
                problems = (await names_in(view, source.hierarchy, source.store, above)).problems
            except ShardfsError:  # a directory that cannot be listed is reported as a node
                continue
            for name, problem in problems.items():
                yield name, problem
