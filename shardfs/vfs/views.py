"""Views: which documents a node shows instead of, or beside, those that are stored, and how its chunks are shown.

A view is one way to show a dataset.  It knows documents and names; what is stored below it is the same for all of them.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Hierarchy, Node
from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.codecs import ChunkCodec
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import Lens
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.vfs.missing import Missing

if TYPE_CHECKING:
    from shardfs.vfs.entries.passthrough import Directory

log = logging.getLogger(__name__)

Metadata = ArrayMetadata | GroupMetadata


class ChunkView(NamedTuple):
    """How the chunks of *array* are shown: under which names, and decoded by *codec*, or as they are without one.

    *missing* stands for chunks that are not there, where those are shown too.
    """

    array: Array
    key_encoding: ChunkKeyEncoding
    codec: ChunkCodec | None
    missing: Missing | None = None

    @property
    def shown_missing(self) -> Missing | None:
        """What is shown for a chunk that is not there; None if nothing is.

        An array that is made through the mount shows what its writer wrote, who takes it for an error if more is there.
        """
        return self.missing if self.array.layout.directories is None else None

    @property
    def listed_missing(self) -> Missing | None:
        """The same in a listing."""
        missing = self.shown_missing
        return missing if missing is not None and missing.is_listed else None

    def has_chunks_of(self, other: "ChunkView") -> bool:
        """Whether the chunks lie where those of *other* lie, mean what they mean, and show alike."""
        here, there = self.array, other.array
        if (here.layout, here.fingerprint) != (there.layout, there.fingerprint):
            return False
        return (self.key_encoding, self.codec) == (other.key_encoding, other.codec)

    def reads_like(self, other: "ChunkView") -> bool:
        """Whether bytes that were written for a chunk of *other* are what a reader of this one takes them for."""
        here, there = self.array, other.array
        if (here.grid.chunk_shape, here.document["data_type"]) != (there.grid.chunk_shape, there.document["data_type"]):
            return False
        return self.codec is not None or here.codecs == there.codecs


@dataclass(frozen=True)
class Appearance:
    """What a view makes of one node: generated *documents* by name, and how its *chunks* are shown.

    *reason* is there for a node that is not shown at all, *caveat* for one that some readers get wrong values of.
    """

    documents: Mapping[str, bytes] = field(default_factory=dict)
    chunk_view: ChunkView | None = None
    reason: str | None = None
    caveat: str | None = None


class View(Protocol):
    """One way to show a dataset."""

    @property
    def directory(self) -> "type[Directory]":
        """The class of nodes for stored directories."""

    @property
    def document_names(self) -> frozenset[str]:
        """The names that documents have, in any directory."""

    @property
    def translates(self) -> bool:
        """Whether arrays are shown in another form: unsharded ones too, and some perhaps not at all."""

    @property
    def looks_above(self) -> bool:
        """Whether what a node is shown as depends on the groups above it."""

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the generated documents of *node* by name; each hides what is stored under that name."""

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of *node* are shown; None where what is stored there passes through."""

    def left_out(self, node: Node) -> str | None:
        """Return the reason why *node* is not shown at all; None if it is shown."""

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name*, in the directory of *node*, is not shown, as it belongs to another view."""


async def _nothing_in(path: str) -> Mapping[str, bytes]:
    return {}


@dataclass(frozen=True)
class Edit:
    """A document that a program wrote, or removed: then *written* is None.

    *node* is what is stored.  If it has no document of v3, *beside* are other documents of its directory, stored as
    they were written, and *documents_in* gives those of another directory; *directories_in* gives the names of the
    directories in one.  *is_new*: a node that begins with this one, or that it tells of and that is not there yet,
    becomes v3.
    """

    node: Node
    name: str
    written: bytes | None
    beside: Mapping[str, bytes] = field(default_factory=dict)
    is_new: bool = False
    documents_in: Callable[[str], Awaitable[Mapping[str, bytes]]] = _nothing_in
    directories_in: Callable[[str], Awaitable[Iterable[str]]] = _nothing_in


class EditableView(View, Protocol):
    """A view through which a dataset may be changed."""

    @property
    def lens(self) -> Lens:
        """How the documents of arrays are shown, and copies of them in consolidated metadata."""

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the names that chunks have of an array that a program makes of *node*, with the document *new*."""

    async def edit(self, hierarchy: Hierarchy, edit: Edit) -> Metadata | None:
        """Return the unsharded v3 document of a node after an edit of one of its documents.

        None is for a document that is stored as it is written, and for a node that goes with the one that was removed.
        Raises `RefusedError` or `MetadataError` for one that cannot be brought into the store, and `NotUnshardable`
        with the reason why a new one cannot become v3.
        """


class Appearances:
    """What a view makes of nodes, worked out once for each version of a node; says in the log what is left out."""

    def __init__(self, appear: Callable[[Node], Appearance], what: str) -> None:
        self._appear = appear
        self._what = what
        self._known: WeakKeyDictionary[Node, Appearance] = WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()

    def of(self, node: Node) -> Appearance:
        """Return the appearance of *node*."""
        found = self._known.get(node)
        if found is None:
            try:
                found = self._appear(node)
            except (NotShownError, NotUnshardable, MetadataError) as error:
                found = Appearance(reason=str(error))
            self._known[node] = found
            told = found.reason or found.caveat
            if told is not None and (node.path, told) not in self._told:
                self._told.add((node.path, told))
                what = "is left out of" if found.reason is not None else "is not right to all readers of"
                log.warning("%s %s the %s view: %s", node.path or "the source", what, self._what, told)
        return found
