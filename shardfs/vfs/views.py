"""Views: which documents a node shows, how its chunks are shown, and how edits are converted back.

What is stored is the same for all views. The documents of a view are generated when the stored one is read
(`format.lens.show`); here they meet the arrays, and edited documents are converted back.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import trio

from shardfs.dataset.node import DOCUMENT, Node
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
from shardfs.format.fence import contained
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import Lens, Shown
from shardfs.format.lens.npy import ARRAY, ATTRIBUTES, Npy
from shardfs.format.lens.show import shown_by
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
from shardfs.format.lens.v3 import V3, every_copy, inline_copies, without_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, parse_document, parse_group
from shardfs.stores.base import Kind, Reader, is_reserved, join_key
from shardfs.stores.cache import Cache
from shardfs.vfs.chunk_cache import ChunkView, Missing, Repeated
from shardfs.vfs.entries.base import Tree
from shardfs.vfs.entries.npy import Ahead, NpyDirectory, NpyHandle
from shardfs.vfs.entries.passthrough import Directory

log = logging.getLogger(__name__)

_MAX_FILLS_NBYTES: Final = 64 * 2**20


class View:
    """A way to show a dataset; *lens* converts the documents of nodes.

    *document_names* are the names of documents in any directory, *directory* is the class of stored directories.
    """

    directory: type[Directory] = Directory
    document_names: frozenset[str] = frozenset()

    def __init__(self, lens: Lens) -> None:
        self.lens = lens
        self.translates = lens.translates
        """Whether arrays are shown in another format, unsharded ones too; some may not be shown at all."""
        self._chunk_views: WeakKeyDictionary[Node, ChunkView] = WeakKeyDictionary()
        self._fills: Cache[tuple[Missing, bytes], Repeated] = Cache(lambda fill: len(fill.pattern), _MAX_FILLS_NBYTES)

    def shown(self, node: Node) -> Shown:
        """Return what is generated for *node*; nothing if its hierarchy was not given this view."""
        if node.shown is not None:
            return node.shown
        with contained(node.path or "the source"):
            if node.foreign is not None:
                return self.lens.show_foreign(node.foreign)
            if node.metadata is not None:
                return shown_by(self.lens, node.metadata, node.context._replace(in_image=node.in_image))
            return Shown() if node.reason is None else self.lens.show_broken(node.reason, None)

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the generated documents of *node* by name; each hides the stored file of that name."""
        return self.shown(node).documents if node.document is not None else {}

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of *node* are shown; None if its files pass through."""
        if node.any_array is None:
            return None
        chunk_view = self._chunk_views.get(node)
        chunks = self.shown(node).chunks if chunk_view is None else None
        if chunks is not None:
            fill, is_listed = chunks.fill, node.document is not None
            missing = Missing(fill, chunks.codec, self._fills, is_listed=is_listed) if fill is not None else None
            chunk_view = ChunkView(node.any_array, chunks.key_encoding, chunks.codec, missing)
            self._chunk_views[node] = chunk_view
        return chunk_view

    def fixed(self, node: Node) -> Mapping[str, bytes]:
        """Return the documents generated for a *node* that is only read, by name."""
        return self.shown(node).documents if node.is_read_only else {}

    def is_group(self, node: Node) -> bool:
        """Whether *node* is shown as a group of Zarr."""
        documents = self.shown(node).documents
        return isinstance(node.metadata, GroupMetadata) or (
            node.any_array is None and not self.document_names.isdisjoint(documents)
        )

    def skipped(self, node: Node) -> str | None:
        """Return why *node* is not shown at all; None if it is shown."""
        return self.shown(node).reason

    def shows_among_shards(self, node: Node) -> bool:
        """Whether directories among the shards of an array are shown: those of its chunks have the same names then."""
        chunk_view = self.chunk_view(node)
        if chunk_view is None:  # its files pass through, if it is shown at all
            return not self.translates
        return chunk_view.key_encoding == chunk_view.array.layout.key_encoding

    def files_beside(self, node: Node) -> Collection[str]:
        """Return the paths of the files that are generated for *node* beside its directory: they hide stored names."""
        return ()

    def caveat(self, node: Node) -> str | None:
        """Return why some readers get wrong values from an array; None if all are right."""
        return self.shown(node).caveat

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name*, in the directory of *node*, belongs to another view, or to a format that is not shown."""
        is_described = name in node.describing and node.reason is None
        return is_described and name not in self.shown(node).documents


@dataclass(frozen=True)
class Edit:
    """A document that a program wrote, or removed if *written* is None.

    *node* is the stored node. If it has no v3 document, *beside* are other documents stored in its directory. *is_new*:
    the edit creates the node, or a parent's document describes it before it exists; it becomes v3.
    """

    fs: Tree
    node: Node
    name: str
    written: bytes | None
    beside: Mapping[str, bytes] = field(default_factory=dict)
    is_new: bool = False


class EditableView(View, ABC):
    """A view through which a dataset may be changed."""

    @abstractmethod
    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the chunk keys of an array that a program creates at *node* with the document *new*."""

    @abstractmethod
    async def edit(self, edit: Edit) -> Metadata | None:
        """Return the unsharded v3 document of a node after an edit of one of its documents.

        Returns None if the document is stored as it is written, or is removed together with its node. Raises
        `RefusedError` or `MetadataError` if it cannot be stored, and `NotUnshardable` with the reason if a new one has
        no v3 form.
        """


class ZarrV3(EditableView):
    """Zarr v3 without sharding codecs; with *decoded*, chunks are decoded, also those of unsharded arrays.

    Arrays that only *drafts* of the specification allow are shown too.
    """

    document_names = frozenset({DOCUMENT})

    def __init__(self, *, decoded: bool = False, drafts: tuple[str, ...] = ()) -> None:
        super().__init__(V3(decodes=decoded, drafts=drafts))

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the chunk keys that the document names."""
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
    """Zarr v2, with chunk keys joined by *separator*; with *decoded*, chunks are decoded.

    For arrays that may have missing values, the fill value is the missing value, as xarray takes it, and missing chunks
    are shown where readers would take them for missing values; without *fills_missing*, fill values are the stored
    ones. OME-Zarr images are shown as version 0.4. Nodes stored as v2 pass through.
    """

    document_names = V2_NAMES
    lens: V2

    def __init__(self, separator: str = ".", *, decoded: bool = False, fills_missing: bool = True) -> None:
        super().__init__(V2(separator, decodes=decoded, fills_missing=fills_missing))

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is the v3 document, or a v2 document stored beside one."""
        is_v3 = name == DOCUMENT or (name in V2_NAMES and node.document is not None)
        return is_v3 or super().hides(node, name)

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the chunk keys of v2."""
        return ChunkKeyEncoding("v2", self.lens.within(node.in_image).separator)

    async def edit(self, edit: Edit) -> Metadata | None:
        """Return the v3 document of a node after an edit of one of its v2 documents."""
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
        """Return the v3 document of a new node; consolidated if its `.zmetadata` came first."""
        if edit.name == ZGROUP and ZARRAY in edit.beside:  # which would be lost with the old document
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
        """Return the group's document with copies of the nodes that *written* copies, in their stored form."""
        copies: dict[str, Json] = {}
        given = parse_consolidated(written)
        for path, documents in given.items():
            await trio.lowlevel.checkpoint()  # there may be thousands
            try:
                if not path:
                    self.lens.put_copies(group, documents)
                else:
                    copied = await self._copied(edit, join_key(edit.node.path, path), documents)
                    copies[path] = without_copies(copied.document)  # those below are given with paths of their own
            except (MetadataError, NotShownError, NotUnshardable, RefusedError) as error:
                raise RefusedError(f"the copy of {path or 'the group'}: {error}") from None
        copies |= await self._not_given(edit, group, given)
        consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
        return parse_group({**group.document, "consolidated_metadata": consolidated})

    async def _not_given(
        self, edit: Edit, group: GroupMetadata, given: Mapping[str, Mapping[str, Json]]
    ) -> dict[str, Json]:
        """Return the stored documents, by path, of nodes that have no v2 form and so are not among those *given*.

        Readers of consolidated metadata see no other nodes. Of a node whose document is broken, the copy stays. Raises
        `RefusedError` for a node that is shown, and was described until now.
        """
        known: dict[str, Json] = {}
        consolidated = inline_copies(group.document)
        before = dict(every_copy(group.document))
        pending = [*before] if consolidated is not None else [""]
        while pending:
            path = pending.pop()
            await trio.lowlevel.checkpoint()
            key = join_key(edit.node.path, path) if path else edit.node.path
            if path not in given and is_relative_path(path):
                try:
                    node = await edit.fs.hierarchy.node(key)
                except (NotFoundError, NotADirectoryHereError):
                    continue
                if node.metadata is None and node.reason is not None:
                    known |= {path: before[path]} if path in before else {}
                    continue
                if self.skipped(node) is not None:
                    known |= {} if node.metadata is None else {path: (node.stored or node.metadata).document}
                    continue
                if node.document is not None or {ZARRAY, ZGROUP} & (await edit.fs.stored_documents(key)).keys():
                    raise RefusedError(f"it leaves out {path}, which its readers would no longer find")
            if consolidated is None and ZARRAY not in given.get(path, {}):
                for entry in await edit.fs.store.list(key):
                    if entry.kind is Kind.DIRECTORY and not is_reserved(entry.name):
                        pending.append(f"{path}/{entry.name}".lstrip("/"))
        return known

    async def _copied(self, edit: Edit, path: str, documents: Mapping[str, dict[str, Json]]) -> Metadata:
        """Return the stored document of the node at *path*, or that of a node which is being created there."""
        node: Node | None = None
        with suppress(NotFoundError, NotADirectoryHereError):
            node = await edit.fs.hierarchy.node(path)
        if node is not None and node.document is not None and node.metadata is not None:
            return self.lens.within(node.in_image).put_copies(node.stored or node.metadata, documents)
        stored = await edit.fs.stored_documents(path)
        name = next((name for name in (ZARRAY, ZGROUP) if name in documents), None)
        if not edit.is_new or name is None or ZARRAY in stored or ZGROUP in stored:
            raise RefusedError(
                "it is stored as Zarr v2, of which a group of Zarr v3 can have no copy; written anew through a mount "
                "with --shards, it is stored as v3"
            )
        texts = {shown: encode_json(document) for shown, document in documents.items()}
        return self.lens.within((node or edit.node).in_image).new(name, texts[name], texts)


class NpyView(View):
    """Each array is a file NAME.npy, attributes are NAME.json, and groups are directories.

    The files of the source itself are named after the last part of *url*. *nopened* counts how often the file of each
    array was opened, by path.
    """

    directory = NpyDirectory

    def __init__(self, url: str) -> None:
        super().__init__(Npy())
        self.source_name = name_of_source(url)
        self.nopened: Counter[str] = Counter()
        self.ahead: OrderedDict[NpyHandle, Ahead] = OrderedDict()

    def chunk_view(self, node: Node) -> None:
        """Return None: chunks are not shown."""

    def files_beside(self, node: Node) -> Collection[str]:
        """Return the file of an array, and that of attributes."""
        shown, name = self.shown(node), node.path or self.source_name
        suffixes = [*shown.documents, *([ARRAY] if shown.npy is not None else [])]
        return [name + suffix for suffix in suffixes if node.document is not None]

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return none: the files of this view have names of their own."""
        return {}

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is a Zarr v3 document, which would describe what is not there."""
        is_v3 = name == DOCUMENT and (node.metadata is not None or bool(node.copies))
        return is_v3 or super().hides(node, name)

    def attributes(self, node: Node) -> bytes | None:
        """Return the attributes of *node* as JSON; None if it has none, or is not shown."""
        return self.shown(node).documents.get(ATTRIBUTES)


def name_of_source(url: str) -> str:
    """Return what the files of the source at *url* are named after, where an array or a group is a file."""
    return url.rstrip("/").rpartition("/")[2] or "root"


def make_view(
    name: str,
    store: Reader,
    *,
    decoded: bool = False,
    separator: str | None = None,
    fills_missing: bool = True,
    drafts: tuple[str, ...] = (),
) -> View:
    """Return the view *name* of *store*: "v3", "v2" or "npy".

    *decoded*: chunks are decoded. *separator* joins the chunk keys of v2; None is ".". Without *fills_missing*, v2
    shows stored fill values, and no file for a missing chunk. v3 also shows arrays that only *drafts* of the
    specification allow.

    Raises `UsageError` for a view that does not exist, or that contradicts the options.
    """
    match name:
        case "v2" | "npy" if drafts:
            raise UsageError("--draft needs --view v3")
        case "npy" if decoded:
            raise UsageError("--view npy is always decoded: leave out --decode")
        case "npy":
            return NpyView(store.url)
        case "v3":
            return ZarrV3(decoded=decoded, drafts=drafts)
        case "v2":
            return ZarrV2(separator or ".", decoded=decoded, fills_missing=fills_missing)
        case _:
            raise UsageError(f"there is no view {name!r}")
