"""Lenses: how stored documents are shown in a view, and how edits of what is shown are stored. Pure.

One direction makes the shown document from the stored one, or raises the reason why nothing is shown. The other takes
an edited document, and returns the document to be stored, or raises the reason why the edit is refused. Whatever was
not edited stays as it is stored, spelling included.

Lenses, and what they generate, can be sent to another process, where large documents are processed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardfs.errors import NotShownError, RefusedError
from shardfs.format.codecs import ChunkCodec, FillCodec
from shardfs.format.document import Document, Json
from shardfs.format.foreign import Foreign
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens.unsharded import UnshardedArray
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata
from shardfs.format.npy import NpyFile


class NodeContext(NamedTuple):
    """What a document does not say itself.

    *in_image*: the node is in an OME-Zarr image. *as_stored* are the paths, relative to the node, of sharded arrays
    that are shown as stored because their writers write shards. What only *drafts* of the specification allow is read.
    *path* is that of the node, and *above* the nearest array above it, where Zarr has no nodes; both *in_image* and
    *above* are known if the hierarchy `looks_above`.
    """

    in_image: bool = False
    as_stored: frozenset[str] = frozenset()
    drafts: tuple[str, ...] = ()
    path: str = ""
    above: "ArrayAbove | None" = None


class ArrayAbove(NamedTuple):
    """An array in whose directory a node is, at any depth, and its own *context*."""

    metadata: ArrayMetadata
    context: NodeContext

    def __str__(self) -> str:
        return f"the array {self.context.path}" if self.context.path else "the array that is the source"


NO_CONTEXT: Final = NodeContext()


@dataclass(frozen=True)
class FillValues:
    """The elements for missing chunks: *stored* by the v3 document, *shown* by the `.zarray`.

    *codec* is set if they differ, and readers would so get wrong elements for missing chunks.
    """

    stored: bytes
    shown: bytes
    codec: FillCodec | None


class ChunkForm(NamedTuple):
    """How chunks are shown: their names, decoded by *codec* if there is one, and *fill* for missing ones."""

    key_encoding: ChunkKeyEncoding
    codec: ChunkCodec | None = None
    fill: FillValues | None = None


class NpyForm(NamedTuple):
    """An array as one *file*: *codec* decodes chunks, *fill* is the element of missing ones."""

    file: NpyFile
    codec: ChunkCodec
    fill: bytes


@dataclass(frozen=True)
class Shown:
    """What a view generates for one node: *documents* by name, and how its *chunks* are shown, if they are.

    *reason* is set if the node is not shown at all, *caveat* if some readers get wrong values.
    """

    documents: Mapping[str, bytes] = field(default_factory=dict)
    chunks: ChunkForm | None = None
    npy: NpyForm | None = None
    reason: str | None = None
    caveat: str | None = None

    @property
    def nbytes(self) -> int:
        """Size of the documents."""
        return sum(map(len, self.documents.values()))


class Lens(ABC):
    """The pure part of a view.

    *shows_copies*: documents of groups are shown with their copies of other documents. It shows arrays that only
    *drafts* of the specification allow.

    `put(stored, get(stored))` is the stored document, and `get(put(stored, shown))` means the same as *shown*.
    """

    shows_copies = False
    drafts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the view in messages."""
        return type(self).__name__.lower()

    @property
    def translates(self) -> bool:
        """Whether arrays are shown in another format, unsharded ones too; some may not be shown at all."""
        return True

    @property
    def looks_above(self) -> bool:
        """Whether how a node is shown depends on the nodes above it.

        Whether it is shown at all may, too: what is inside an array that is skipped is not even looked at by a mount.
        """
        return False

    @abstractmethod
    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document that is shown; `stored.document` itself if the array is shown as stored.

        Raises `NotShownError` or `NotUnshardable` with the reason if it is not shown at all.
        """

    def put(self, stored: ArrayMetadata, shown: ArrayMetadata) -> Document:
        """Return the document to be stored for the array *stored* after an edit to *shown*.

        Raises `RefusedError` with the reason if the edit changes what stored bytes mean.
        """
        raise RefusedError("an array cannot be changed like this")

    def show(self, stored: Metadata, array: UnshardedArray | None, context: NodeContext) -> Shown:
        """Return what is generated for a node; *array* is its description if it is an array.

        Raises `NotShownError` or `NotUnshardable` with the reason if nothing is shown.
        """
        raise NotShownError("it has no form in this view")

    def check_name(self, context: NodeContext) -> None:
        """Raise `NotShownError` with the reason if the view has no name for a node, though it shows the array above."""
        return

    def show_foreign(self, foreign: Foreign) -> Shown:
        """Return what is generated for a node of another format: the same in all views, if it has no form in Zarr."""
        if foreign.metadata is not None:
            return self.show_foreign_array(foreign)
        if foreign.group is not None and self.translates:
            return self.show_foreign_group(foreign.group)
        return Shown(foreign.documents)

    def show_foreign_array(self, foreign: Foreign) -> Shown:
        """Return what is generated for an array of another format."""
        return Shown(reason=foreign.reason or f"it is {foreign.kind}, which {self.name} does not show")

    def show_foreign_group(self, group: GroupMetadata) -> Shown:
        """Return what is generated for a node of another format as a *group* of Zarr: by default nothing."""
        return Shown()

    def show_broken(self, reason: str, document: Json) -> Shown:
        """Return what is generated for a node whose document cannot be used for this *reason*: by default nothing.

        *document* is what could be parsed of it, else None.
        """
        return Shown()

    def means_the_same(self, name: str, shown: bytes, written: bytes) -> bool:
        """Whether a document *name*, as it was *written* and as it is *shown*, means the same."""
        return False
