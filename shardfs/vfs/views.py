"""Views: which documents a node shows instead of, or beside, those that are stored, and how its chunks are shown.

What is stored below a view is the same for all of them.  What a view makes of a document is worked out when that is
read (`format.lens.show`); here it meets the arrays, and what a program wrote is brought back.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import trio

from shardfs.dataset.hierarchy import DOCUMENT, Node
from shardfs.errors import (
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotShownError,
    NotUnshardable,
    RefusedError,
    UsageError,
)
from shardfs.format.document import Json, encode_json
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import Lens
from shardfs.format.lens.consolidated import every_copy, inline_copies
from shardfs.format.lens.show import ATTRIBUTES, NpyShower, Shower, Shown, V2Shower, V3Shower, shown_by
from shardfs.format.lens.unsharded import require_decoded
from shardfs.format.lens.v2 import (
    V2,
    V2_NAMES,
    ZARRAY,
    ZGROUP,
    ZMETADATA,
    check_document,
    is_relative_path,
    parse_consolidated,
)
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, parse_document, parse_group
from shardfs.stores.base import Kind, Store, is_reserved, join_key
from shardfs.vfs.chunk_cache import ChunkView, Missing
from shardfs.vfs.entries.npy import Ahead, NpyDirectory, NpyHandle
from shardfs.vfs.entries.passthrough import Directory

if TYPE_CHECKING:
    from shardfs.vfs.filesystem import Filesystem

log = logging.getLogger(__name__)


class View:
    """One way to show a dataset: *shower* makes documents of documents.

    *document_names* are those that documents have in any directory, *directory* is the class of stored directories.
    """

    directory: type[Directory] = Directory
    document_names: frozenset[str] = frozenset()

    def __init__(self, shower: Shower) -> None:
        self.shower = shower
        self.translates = shower.translates
        """Whether arrays are shown in another form: unsharded ones too, and some perhaps not at all."""
        self._chunk_views: WeakKeyDictionary[Node, ChunkView] = WeakKeyDictionary()

    def shown(self, node: Node) -> Shown:
        """Return what is shown of *node*, which a hierarchy that was not told of the view does not know."""
        if node.shown is not None:
            return node.shown
        if node.metadata is not None:
            return shown_by(self.shower, node.metadata, node.context._replace(in_image=node.in_image))
        return Shown() if node.reason is None else self.shower.show_broken(node.reason)

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the generated documents of *node* by name; each hides what is stored under that name."""
        return self.shown(node).documents if node.document is not None else {}

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of *node* are shown; None where what is stored there passes through."""
        if node.any_array is None:
            return None
        found = self._chunk_views.get(node)
        chunks = self.shown(node).chunks if found is None else None
        if chunks is not None:
            missing = Missing(chunks.fill, chunks.codec, is_listed=node.document is not None) if chunks.fill else None
            found = ChunkView(node.any_array, chunks.key_encoding, chunks.codec, missing)
            self._chunk_views[node] = found
        return found

    def left_out(self, node: Node) -> str | None:
        """Return the reason why *node* is not shown at all; None if it is shown."""
        return self.shown(node).reason

    def caveat(self, node: Node) -> str | None:
        """Return why some readers get wrong values of an array; None if there is no reason."""
        return self.shown(node).caveat

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name*, in the directory of *node*, is not shown, as it belongs to another view."""
        return False


@dataclass(frozen=True)
class Edit:
    """A document that a program wrote, or removed: then *written* is None.

    *node* is what is stored.  If it has no document of v3, *beside* are other documents of its directory, stored as
    they were written.  *is_new*: a node that begins with this one, or that it tells of and that is not there yet,
    becomes v3.
    """

    fs: "Filesystem"
    node: Node
    name: str
    written: bytes | None
    beside: Mapping[str, bytes] = field(default_factory=dict)
    is_new: bool = False


class EditableView(View, ABC):
    """A view through which a dataset may be changed.

    *lens* is how the documents of arrays are shown, and copies of them in consolidated metadata.
    """

    lens: Lens

    @abstractmethod
    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the names that chunks have of an array that a program makes of *node*, with the document *new*."""

    @abstractmethod
    async def edit(self, edit: Edit) -> Metadata | None:
        """Return the unsharded v3 document of a node after an edit of one of its documents.

        None is for a document that is stored as it is written, and for a node that goes with the one that was removed.
        Raises `RefusedError` or `MetadataError` for one that cannot be brought into the store, and `NotUnshardable`
        with the reason why a new one cannot become v3.
        """


class ZarrV3(EditableView):
    """Zarr v3 without sharding codecs; *decoded* shows chunks decoded, which takes arrays that are not sharded too."""

    document_names = frozenset({DOCUMENT})

    def __init__(self, *, decoded: bool = False) -> None:
        shower = V3Shower(decoded)
        super().__init__(shower)
        self.lens = shower.lens

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return what the document says."""
        return ChunkKeyEncoding.parse(new.chunk_key_encoding)

    async def edit(self, edit: Edit) -> Metadata | None:
        """Return what was written."""
        if edit.written is None:
            return None
        node, edited = edit.node, parse_document(edit.written)
        if not self.translates or not isinstance(edited, ArrayMetadata) or edited.is_sharded:
            return edited
        if self.chunk_view(node) is None or not isinstance(node.metadata, ArrayMetadata):
            require_decoded(edited)
        return edited


class ZarrV2(EditableView):
    """Zarr v2, with chunk keys joined by *separator*; *decoded* shows chunks decoded.

    Fill values are missing values, as xarray takes them, where arrays may have such, and what is not stored is shown
    where it would be taken for one; if not *fills_missing*, fill values are those that are stored.  OME-Zarr images are
    those of version 0.4.  What is stored as v2 passes through.
    """

    document_names = V2_NAMES
    lens: V2

    def __init__(self, separator: str = ".", *, decoded: bool = False, fills_missing: bool = True) -> None:
        self.lens = V2(separator, decodes=decoded, fills_missing=fills_missing)
        super().__init__(V2Shower(self.lens))

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is the v3 document, or a v2 document that is stored beside one."""
        return name == DOCUMENT or (name in V2_NAMES and node.document is not None)

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the v2 names."""
        return ChunkKeyEncoding("v2", self.lens.within(node.in_image).separator)

    async def edit(self, edit: Edit) -> Metadata | None:
        """Return the v3 document of a node with what a program changed in one of its v2 documents."""
        node, name, written = edit.node, edit.name, edit.written
        is_main = name in (ZARRAY, ZGROUP)
        if written is None and is_main:
            return None
        stored, is_stored = node.stored, node.document is not None
        if isinstance(stored, GroupMetadata) and name == ZMETADATA and is_stored and written is not None:
            return await self._consolidate(edit, stored, written)
        if stored is not None and (is_stored or (is_main and isinstance(stored, ArrayMetadata))):
            beside = None if is_stored else edit.beside
            return self.lens.within(node.in_image).edit(stored, name, written, beside)
        if written is None:
            return None
        check_document(name, written)
        return await self._begin(edit, written) if edit.is_new and is_main else None

    async def _begin(self, edit: Edit, written: bytes) -> Metadata:
        """Return the v3 document of a new node, consolidated if its `.zmetadata` came first."""
        if edit.name == ZGROUP and ZARRAY in edit.beside:  # which would go, as what is in the document does
            raise RefusedError("an array is stored there")
        if edit.name == ZARRAY and ZGROUP in edit.beside:
            raise RefusedError("a group is stored there")
        new = self.lens.within(edit.node.in_image).new(edit.name, written, edit.beside)
        consolidated = edit.beside.get(ZMETADATA)
        if consolidated is None or not isinstance(new, GroupMetadata):
            return new
        try:
            return await self._consolidate(edit, new, consolidated)
        except (MetadataError, RefusedError) as reason:
            log.warning("%s is no longer consolidated: %s", edit.node.path or "the source", reason)
            return new

    async def _consolidate(self, edit: Edit, group: GroupMetadata, written: bytes) -> GroupMetadata:
        """Return the group's document with copies of the nodes that *written* has copies of, as they are stored."""
        copies: dict[str, Json] = {}
        given = parse_consolidated(written)
        for path, documents in given.items():
            await trio.lowlevel.checkpoint()  # there may be thousands
            try:
                if not path:
                    self.lens.put_copies(group, documents)
                else:
                    copied = await self._copied(edit, join_key(edit.node.path, path), documents)
                    copies[path] = copied.document
            except (MetadataError, NotShownError, NotUnshardable, RefusedError) as error:
                raise RefusedError(f"the copy of {path or 'the group'}: {error}") from None
        copies |= await self._not_given(edit, group, given)
        consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
        return parse_group({**group.document, "consolidated_metadata": consolidated})

    async def _not_given(
        self, edit: Edit, group: GroupMetadata, given: Mapping[str, Mapping[str, Json]]
    ) -> dict[str, Json]:
        """Return the stored documents, by path, of nodes that have no v2 form and so are not among those *given*.

        Readers find a node that is not in the consolidated metadata no more.  Raises `RefusedError` for one that is
        shown, and was found until now.
        """
        found: dict[str, Json] = {}
        consolidated = inline_copies(group.document)
        pending = [path for path, _ in every_copy(group.document)] if consolidated is not None else [""]
        while pending:
            path = pending.pop()
            await trio.lowlevel.checkpoint()
            key = join_key(edit.node.path, path) if path else edit.node.path
            if path not in given and is_relative_path(path):
                try:
                    node = await edit.fs.hierarchy.node(key)
                except (NotFoundError, NotADirectoryHereError):
                    continue
                if self.left_out(node) is not None:
                    found |= {} if node.metadata is None else {path: (node.stored or node.metadata).document}
                    continue
                if node.document is not None or {ZARRAY, ZGROUP} & (await edit.fs.stored_documents(key)).keys():
                    raise RefusedError(f"it leaves out {path}, which its readers would no longer find")
            if consolidated is None and ZARRAY not in given.get(path, {}):
                for entry in await edit.fs.store.list(key):
                    if entry.kind is Kind.DIRECTORY and not is_reserved(entry.name):
                        pending.append(f"{path}/{entry.name}".lstrip("/"))
        return found

    async def _copied(self, edit: Edit, path: str, documents: Mapping[str, dict[str, Json]]) -> Metadata:
        """Return the stored document of the node at *path*, or the one of a new node that is on its way there."""
        found: Node | None = None
        with suppress(NotFoundError, NotADirectoryHereError):
            found = await edit.fs.hierarchy.node(path)
        if found is not None and found.document is not None and found.metadata is not None:
            return self.lens.within(found.in_image).put_copies(found.stored or found.metadata, documents)
        stored = await edit.fs.stored_documents(path)
        name = next((name for name in (ZARRAY, ZGROUP) if name in documents), None)
        if not edit.is_new or name is None or ZARRAY in stored or ZGROUP in stored:
            raise RefusedError(
                "it is not stored as Zarr v3, and cannot have a copy here; a mount with --shards stores it so"
            )
        texts = {each: encode_json(document) for each, document in documents.items()}
        return self.lens.within((found or edit.node).in_image).new(name, texts[name], texts)


class NpyView(View):
    """Every array is one file NAME.npy, attributes are NAME.json, and groups are folders.

    What belongs to the source at *url* itself is named by the last part of that.  *nopened* counts how many times the
    file of each array was opened, by the path of the array.
    """

    directory = NpyDirectory

    def __init__(self, url: str) -> None:
        super().__init__(NpyShower())
        self.source_name = url.rstrip("/").rpartition("/")[2] or "root"
        self.nopened: Counter[str] = Counter()
        self.ahead: OrderedDict[NpyHandle, Ahead] = OrderedDict()

    def chunk_view(self, node: Node) -> None:
        """Return None: chunks are not shown."""

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return none: files of this view have names of their own."""
        return {}

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is a document of Zarr v3, which would say what is not there."""
        return name == DOCUMENT and node.metadata is not None

    def attributes(self, node: Node) -> bytes | None:
        """Return the attributes of *node* as JSON text; None if it has none, or is not shown."""
        return self.shown(node).documents.get(ATTRIBUTES)


def make_view(
    name: str, store: Store, *, decoded: bool = False, separator: str | None = None, fills_missing: bool = True
) -> View:
    """Return the view *name* of *store*: "v3", "v2" or "npy".

    *decoded*: chunks are decoded; *separator* joins the chunk keys of v2, "." if it is None; if not *fills_missing*, v2
    shows the stored fill values, and no file for what is not stored.
    """
    match name:
        case "npy" if decoded:
            raise UsageError("--view npy is always decoded: leave out --decode")
        case "npy":
            return NpyView(store.url)
        case "v3":
            return ZarrV3(decoded=decoded)
        case "v2":
            return ZarrV2(separator or ".", decoded=decoded, fills_missing=fills_missing)
        case _:
            raise UsageError(f"there is no view {name!r}")
