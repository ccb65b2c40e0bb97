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
  views, `serve`, `shardfs.open`, `pack`, `unpack`, `verify`, `info`, `map`.
- *A file is a SOURCE*: `Format.takes` says of which, and `Format.open` returns what is in it, as a `Reader`. If the
  file is one array, that is a `SingleFile`, a directory with this file in it, which `find` then meets. If there is a
  tree in it, as in HDF5 or a ZIP file, that is a `TreeStore`: the format says which keys there are, and where in the
  file the bytes of each are. Arrays in it are keys of Zarr: a `zarr.json` that the format makes, and chunks, each a
  range of the file, or made by the format. So what shardfs does with unsharded Zarr, it does with these.

Documents and files are hostile input. Check each number before you allocate by it. Raise `MetadataError` for what is
not supported, and `CorruptionError` for what is damaged, both of `shardfs.errors`; say what it is, and the way out. A
file that changes while it is read is a `StaleError`, which a `Snapshot` raises by itself: read from one, and keep none
of its bytes longer than that. Reading never blocks the event loop: what takes more than a millisecond is for a thread
(`parse`, `trio.to_thread.run_sync`).
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import ClassVar, Final, NamedTuple

import trio

from shardfs.errors import MetadataError, SourceError
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
from shardfs.formats.single import SingleFile
from shardfs.formats.virtual import (
    MAX_MADE_NBYTES,
    BrokenPart,
    FileContents,
    InlinePart,
    LatePart,
    MadePart,
    RangePart,
    TreeStore,
    VirtualStore,
    parse,
)
from shardfs.stores.base import Buffer, Kind, ListedName, Reader, Snapshot, Stat, join_key
from shardfs.stores.files import AnyLocation, TargetFiles
from shardfs.stores.url import StoreOptions

__all__ = [
    "EMPTY",
    "MAX_MADE_NBYTES",
    "NEW_GROUP",
    "NO_INDEX",
    "BrokenPart",
    "Buffer",
    "Candidate",
    "ChunkGrid",
    "ChunkKeyEncoding",
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

_USUAL_NBYTES: Final = 256 * 2**10  # most documents are shorter, and so take one request

Row = tuple[str, ...]
"""Documents of a node that are asked for together."""


class SourceDirectory(NamedTuple):
    """The directory at *path* of a *store*, with the status *stat*, of which somebody asks what it is."""

    store: Reader
    path: str
    stat: Stat

    def key(self, name: str) -> str:
        """Return the key of *name* in it."""
        return join_key(self.path, name)

    async def version(self, name: str) -> Hashable:
        """Return the version of the file *name*; raises `NotFoundError`. It costs no request that `read` does not."""
        return (await self.store.stat(self.key(name))).version

    async def read(self, name: str, most: int, first: int = _USUAL_NBYTES) -> tuple[bytes, Stat]:
        """Return the document *name*, all of it from one version, and its status.

        Raises `NotFoundError`, and `MetadataError` if it has more than *most* bytes. *first* are about its size: so
        many bytes come with one request.
        """
        snapshot = await self.store.open(self.key(name), head_nbytes=first)
        if snapshot.size > most:
            raise MetadataError(f"the document has {snapshot.size} bytes, more than {most}")
        return bytes(await snapshot.read(0, snapshot.size)), snapshot.stat


class FoundNode(NamedTuple):
    """What a directory is in a format: *node*, described by a document with the status *origin*.

    *node* is None if there is a document of that name, and it is that of something else: it is remembered, and
    not parsed again while it is the same. *stamp* is whatever `Format.find` compares to see that nothing has changed.
    """

    node: Foreign | None
    origin: Stat
    stamp: Hashable


@dataclass(frozen=True)
class Candidate:
    """What a user has typed as SOURCE: something of this *name*.

    *is_file*, *is_directory*: it is one, or may be one, if it is remote; a URL that ends with a slash is no file. A
    local one is at *path*, and a local file begins with the bytes *first*; of what is remote only the name is known.
    """

    name: str
    is_file: bool
    is_directory: bool
    path: str | None = None
    first: bytes = b""


@dataclass(frozen=True)
class FileSource:
    """A SOURCE that a format takes: the file, or the directory, *name* in the location *home*, known to users as *url*.

    *files* reads what is in that location, by keys relative to it. Names and versions may be cached for *ttl* seconds.
    *options* are those of the user, and *open_location* opens other locations that the file leads to, and that the user
    allows: it returns the location, and a reader of it, or raises `SourceError`. *session* is for tasks that are to end
    when the source is closed.
    """

    url: str
    home: AnyLocation
    files: TargetFiles
    name: str
    ttl: float
    options: StoreOptions
    open_location: Callable[[str], tuple[AnyLocation, TargetFiles]]
    session: trio.Nursery


class Format:
    """A format that is only read. A subclass overrides what it has; everything has a default."""

    name: ClassVar[str]
    """How it is called in messages: one word."""

    documents: ClassVar[frozenset[str]] = frozenset()
    """The names of files that may make a directory one of this format."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """What the name of a file that is a SOURCE ends with."""

    sources: ClassVar[str] = ""
    """In words, of which sources `options` are."""

    options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `StoreOptions` that only sources of this format take."""

    web: ClassVar[Sequence[tuple[Row, Sequence[Row]]]] = ()
    """The documents that are asked for on web servers, which list nothing, in the order in which they are.

    A row has the paths of documents of one node, relative to that: the first is there if it is a node. With it come the
    rows, of any format, that nodes below a source with such a document may have.
    """

    web_source: ClassVar[str] = ""
    """In words, what a SOURCE of this format is on a web server."""

    is_usual: ClassVar[frozenset[str]] = frozenset()
    """Which of `documents` are names of other files, too, which are looked for below a node of another format."""

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return what *directory* is, None if it is nothing of this format.

        Called for each directory without a `zarr.json`, so at most one document may be asked for to find that out.
        *known* is what this method returned of the directory before: return that very object if nothing has changed,
        at the cost of a look at the versions of documents. `NotFoundError` of the document need not be caught, nor
        `StaleError`: the caller tries again. What is damaged or not supported is no error: it is a `Foreign` with a
        *reason*, so that what is stored is shown as it is, and `info` and the log say why.
        """
        return None

    def takes(self, source: Candidate) -> bool:
        """Whether *source* is a file, or a directory, that `open` opens; by default a file with one of `suffixes`."""
        return source.is_file and bool(self.suffixes) and source.name.endswith(self.suffixes)

    def open(self, source: FileSource) -> Reader:
        """Return a reader of what is in *source*, which `takes` took; nothing is read yet.

        Raises `SourceError` if that is impossible here, because a library is missing for example.
        """
        raise SourceError(f"{source.url} is no source")

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return what the *documents* of one of `web`, by path, say of the names below the node at *path*.

        None if they are none of this format. For sources on web servers, which list nothing; pure.
        """
        return None

    def remark(self, names: frozenset[str]) -> str | None:
        """Return what a directory with these *names* is, and what to do, if that is not to mount it."""
        return None


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats: those of the table, then those of other packages; one that cannot be loaded is logged."""
    from importlib.metadata import entry_points  # imported only here: it takes long, and plain Zarr needs no format

    found: list[Format] = [import_module(module).FORMAT for module in _TABLE]
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
        except Exception as error:  # in code of others
            log.warning("the format %s (%s) cannot be loaded: %r", point.name, point.value, error)
            continue
        if isinstance(loaded, Format) and loaded.name in {each.name for each in found}:
            log.warning("the format %s (%s) has the name %s of another one", point.name, point.value, loaded.name)
        elif isinstance(loaded, Format):
            found.append(loaded)
        else:
            log.warning("the format %s (%s) is no shardfs.formats.Format", point.name, point.value)
    return tuple(found)


def documents() -> frozenset[str]:
    """Return the names of files that may make a directory one of any format."""
    return frozenset[str]().union(*(each.documents for each in formats()))
