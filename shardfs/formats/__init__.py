"""Formats other than Zarr: what a format is, and the table of those that there are.

**To add a format**, write a package with a subclass of `Format`, and an instance of it called `FORMAT`. Then add one
line: in shardfs to `_TABLE`; in a package of your own to its `pyproject.toml`,

    [project.entry-points."shardfs.formats"]
    npy = "my_package.npy:FORMAT"

Import from here; `shardfs.format` has more that is pure: `dtype` (data types of NumPy as those of Zarr v3), `document`
(JSON of which each number is checked), `sharding` (grids and levels). A format is only read. It has one of two ways in,
or both.

- *A directory in any source is an array, or leads to several*: `Format.find` looks at its documents and returns a
  `Foreign`, which says where chunks are: `ForeignChunks` have a grid (`ForeignGrid.cut`), the names of files, and an
  `IndexCodecs`, a subclass of which finds the chunks in a file. With that, everything else is done: mounts in all
  views but `npy`, `serve`, `shardfs.open`, `pack`, `unpack`, `verify`, `info`, `map`; `refs` refuses it.
- *A file is a SOURCE*: `Format.takes` says of which, and `Format.open` returns what is in it, as a `Reader`: one of
  two. A `SingleFile` is for one array of which an index, at the beginning of the file or in what `find` has read, says
  where all chunks are: a directory with this file in it, which `find` then meets. A `TreeStore` is for all others: a
  tree, as in HDF5 or a ZIP file, and an array whose chunks are found one by one. The format says which keys there are,
  and where in the file the bytes of each are. Arrays in it are keys of Zarr: a `zarr.json` that the format makes, and
  chunks, each a range of the file, or made by the format. So what shardfs does with unsharded Zarr, it does with
  these, `--view npy` and `refs` included. A format that knows where chunks are without waiting can say so in any
  thread (`DirectContents`): then single chunks take a third of the time.

Documents and files are hostile input. Check each number before you allocate by it. Raise `MetadataError` for what is
not supported, and `CorruptionError` for what is damaged, both of `shardfs.errors`; say what it is, and the way out. A
file that changes while it is read is a `StaleError`, which a `Snapshot` raises by itself: read from one, and keep none
of its bytes longer than that. Reading never blocks the event loop: what takes more than a millisecond is for a thread
(`parse`, `trio.to_thread.run_sync`).
"""

import logging
from functools import cache
from importlib import import_module
from typing import Final

from shardfs.format.document import Extension
from shardfs.format.foreign import (
    NEW_GROUP,
    Foreign,
    ForeignChunks,
    ForeignCodec,
    ForeignGrid,
    ForeignMetadata,
    OneShard,
    ValueNames,
    ValuePart,
    regular_grid,
)
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding
from shardfs.format.index import EMPTY, NO_INDEX, IndexCodecs, ShardIndex
from shardfs.format.outline import Outline
from shardfs.format.sharding import ShardGrid, ShardingLevel
from shardfs.formats.base import FIRST_NBYTES, Candidate, FileSource, Format, FoundNode, SourceDirectory
from shardfs.formats.others import load_others
from shardfs.formats.single import SingleFile
from shardfs.formats.virtual import (
    MAX_MADE_NBYTES,
    BrokenPart,
    DirectContents,
    FileContents,
    InlinePart,
    LatePart,
    MadePart,
    RangePart,
    TreeStore,
    VirtualStore,
    parse,
)
from shardfs.stores.base import Buffer, Kind, ListedName, Reader, Snapshot

__all__ = [
    "EMPTY",
    "FIRST_NBYTES",
    "MAX_MADE_NBYTES",
    "NEW_GROUP",
    "NO_INDEX",
    "BrokenPart",
    "Buffer",
    "Candidate",
    "ChunkGrid",
    "ChunkKeyEncoding",
    "DirectContents",
    "Extension",
    "FileContents",
    "FileSource",
    "Foreign",
    "ForeignChunks",
    "ForeignCodec",
    "ForeignGrid",
    "ForeignMetadata",
    "Format",
    "FoundNode",
    "IndexCodecs",
    "InlinePart",
    "Kind",
    "LatePart",
    "ListedName",
    "MadePart",
    "OneShard",
    "Outline",
    "RangePart",
    "Reader",
    "ShardGrid",
    "ShardIndex",
    "ShardingLevel",
    "SingleFile",
    "Snapshot",
    "SourceDirectory",
    "TreeStore",
    "ValueNames",
    "ValuePart",
    "VirtualStore",
    "documents",
    "format_faults",
    "formats",
    "parse",
    "regular_grid",
]

log = logging.getLogger(__name__)

GROUP: Final = "shardfs.formats"
"""The group of entry points of formats in other packages."""

_TABLE: Final = (
    "shardfs.formats.zarr.v3",
    "shardfs.formats.precomputed",
    "shardfs.formats.zarr.v2",
    "shardfs.formats.wkw",
    "shardfs.formats.b2nd",
    "shardfs.formats.references",
    "shardfs.formats.hdf5",
    "shardfs.formats.icechunk",
    "shardfs.formats.zip",
    "shardfs.formats.n5",
)
"""The formats of shardfs, in the order in which they are asked: modules with a `FORMAT`."""


@cache
def load_formats() -> tuple[tuple[Format, ...], tuple[str, ...]]:
    """Return all formats, those of the table first, and what is wrong with those of others that are not used."""
    own: list[Format] = [import_module(module).FORMAT for module in _TABLE]
    others, faults = load_others(GROUP, frozenset(each.name for each in own))
    for fault in faults:
        log.warning("%s", fault)
    return (*own, *others), tuple(faults)


def formats() -> tuple[Format, ...]:
    """Return all formats: those of the table, then those of other packages; one that cannot be used is logged."""
    return load_formats()[0]


def format_faults() -> tuple[str, ...]:
    """Return a line on each format of another package that is not used; none before somebody has asked for formats."""
    return load_formats()[1] if load_formats.cache_info().currsize else ()


def documents() -> frozenset[str]:
    """Return the names of files that may make a directory one of any format."""
    return frozenset[str]().union(*(each.documents for each in formats()))
