"""The Zarr v2 view: documents and chunk names of Zarr v2, with the chunks of the arrays that are stored as v3."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from shardfs.dataset.hierarchy import DOCUMENT, Hierarchy, Node
from shardfs.errors import (
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotShownError,
    NotUnshardable,
    RefusedError,
)
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import Json, encode_json
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens.consolidated import every_copy, inline_copies
from shardfs.format.lens.decoded import codec_of
from shardfs.format.lens.unsharded import UnshardedArray, describe
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
from shardfs.format.lens.v2_attributes import (
    SEPARATOR,
    fill_values,
    has_missing_value,
    odd_missing_value,
)
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_node
from shardfs.stores.base import join_key
from shardfs.vfs.entries.passthrough import Directory
from shardfs.vfs.missing import Missing
from shardfs.vfs.views import Appearance, Appearances, ChunkView, Edit, Metadata

log = logging.getLogger(__name__)
_STORED_FILLS: Final = (
    "xarray and netCDF take its fill value for missing values, which is not its _FillValue: mount without "
    "--fill-missing no"
)


class ZarrV2:
    """Zarr v2, with chunk keys joined by *separator*; *decoded* shows chunks decoded.

    Fill values are missing values, as xarray takes them, where arrays may have such, and what is not stored is shown
    where it would be taken for one; if not *fills_missing*, fill values are those that are stored.  OME-Zarr images are
    those of version 0.4.  What is stored as v2 passes through.
    """

    directory = Directory
    looks_above = True
    document_names = V2_NAMES
    translates = True

    def __init__(self, separator: str = ".", *, decoded: bool = False, fills_missing: bool = True) -> None:
        self._encoding = ChunkKeyEncoding("v2", separator)
        self._in_images = ChunkKeyEncoding("v2", SEPARATOR)
        self.lens = V2(separator, decodes=decoded, fills_missing=fills_missing)
        self._appearances = Appearances(self._appear, "decoded v2" if decoded else "v2")

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the v2 documents of a node that is stored as v3."""
        return self._appearances.of(node).documents

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of an array that is stored as v3 are shown."""
        return self._appearances.of(node).chunk_view

    def left_out(self, node: Node) -> str | None:
        """Return the reason why a node that is stored as v3 has no v2 form."""
        return self._appearances.of(node).reason

    def caveat(self, node: Node) -> str | None:
        """Return why some readers get wrong values of an array; None if there is no reason."""
        return self._appearances.of(node).caveat

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is the v3 document, or a v2 document that is stored beside one."""
        return name == DOCUMENT or (name in V2_NAMES and node.document is not None)

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the v2 names."""
        return self._encoding_of(node)

    async def edit(self, hierarchy: Hierarchy, edit: Edit) -> Metadata | None:
        """Return the v3 document of a node with what a program changed in one of its v2 documents."""
        node, name, written = edit.node, edit.name, edit.written
        is_main = name in (ZARRAY, ZGROUP)
        if written is None and is_main:
            return None
        stored, is_stored = node.metadata, node.document is not None
        if isinstance(stored, GroupMetadata) and name == ZMETADATA and is_stored and written is not None:
            return await self._consolidate(hierarchy, edit, stored, written)
        if stored is not None and (is_stored or (is_main and isinstance(stored, ArrayMetadata))):
            beside = None if is_stored else edit.beside
            return self.lens.edit(stored, name, written, in_image=node.in_image, beside=beside)
        if written is None:
            return None
        check_document(name, written)
        return await self._begin(hierarchy, edit, written) if edit.is_new and is_main else None

    async def _begin(self, hierarchy: Hierarchy, edit: Edit, written: bytes) -> Metadata:
        """Return the v3 document of a new node, consolidated if its `.zmetadata` came first."""
        if edit.name == ZGROUP and ZARRAY in edit.beside:  # which would go, as what is in the document does
            raise RefusedError("an array is stored there")
        if edit.name == ZARRAY and ZGROUP in edit.beside:
            raise RefusedError("a group is stored there")
        new = self.lens.new(edit.name, written, edit.beside, in_image=edit.node.in_image)
        consolidated = edit.beside.get(ZMETADATA)
        if consolidated is None or not isinstance(new, GroupMetadata):
            return new
        try:
            return await self._consolidate(hierarchy, edit, new, consolidated)
        except (MetadataError, RefusedError) as reason:
            log.warning("%s is not consolidated any more: %s", edit.node.path or "the source", reason)
            return new

    def _appear(self, node: Node) -> Appearance:
        metadata = node.metadata
        if metadata is None:
            return Appearance(reason=node.reason)
        documents = self.lens.documents(metadata, in_image=node.in_image)
        if isinstance(metadata, GroupMetadata):
            return Appearance(_texts(documents))
        shown = describe(metadata)
        codec = codec_of(shown) if self.lens.decodes else None
        array = node.any_array
        if array is None:
            raise NotShownError(node.reason or "the document is nested too deeply to be compared")
        missing, caveat = self._missing(node, shown, codec)
        texts = {} if node.document is None else _texts(documents)
        return Appearance(texts, ChunkView(array, self._encoding_of(node), codec, missing), caveat=caveat)

    def _encoding_of(self, node: Node) -> ChunkKeyEncoding:
        return self._in_images if node.in_image else self._encoding

    def _missing(
        self, node: Node, shown: UnshardedArray, codec: ChunkCodec | None
    ) -> tuple[Missing | None, str | None]:
        """Return what stands for chunks that are not stored, and why some readers get wrong values nevertheless."""
        names = shown.document.get("dimension_names")
        if isinstance(names, list) and None in names and len({*names}) > 1:
            return None, "only some of its axes have names: xarray, which opens it natively, finds no dimensions in v2"
        if node.in_image or not has_missing_value(shown.document):
            return None, None
        try:
            values = fill_values(shown)
            if not self.lens.fills_missing:
                return None, _STORED_FILLS if values.codec is not None else None
        except NotShownError as reason:
            return None, f"xarray takes values that equal the fill value for missing ones: {reason}"
        missing = Missing(values, codec, is_listed=node.document is not None) if values.codec is not None else None
        return missing, odd_missing_value(shown.document)

    async def _consolidate(
        self, hierarchy: Hierarchy, edit: Edit, group: GroupMetadata, written: bytes
    ) -> GroupMetadata:
        """Return the group's document with copies of the nodes that *written* has copies of, as they are stored."""
        copies: dict[str, Json] = {}
        given = parse_consolidated(written)
        for path, documents in given.items():
            try:
                if not path:
                    self.lens.put_copies(group, documents)
                else:
                    copied = await self._copied(hierarchy, edit, join_key(edit.node.path, path), documents)
                    copies[path] = copied.document
            except (MetadataError, NotShownError, NotUnshardable, RefusedError) as error:
                raise RefusedError(f"the copy of {path or 'the group'}: {error}") from None
        copies |= await self._not_given(hierarchy, edit, group, given)
        consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
        edited = parse_node({**group.document, "consolidated_metadata": consolidated})
        assert isinstance(edited, GroupMetadata)
        return edited

    async def _not_given(
        self, hierarchy: Hierarchy, edit: Edit, group: GroupMetadata, given: Mapping[str, Mapping[str, Json]]
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
            key = join_key(edit.node.path, path) if path else edit.node.path
            if path not in given and is_relative_path(path):
                try:
                    node = await hierarchy.node(key)
                except (NotFoundError, NotADirectoryHereError):
                    continue
                if self.left_out(node) is not None:
                    found |= {} if node.metadata is None else {path: node.metadata.document}
                    continue
                if node.document is not None or {ZARRAY, ZGROUP} & (await edit.documents_in(key)).keys():
                    raise RefusedError(f"it leaves {path} out, which its readers would not find any more")
            if consolidated is None and ZARRAY not in given.get(path, {}):
                pending += [f"{path}/{name}".lstrip("/") for name in await edit.directories_in(key)]
        return found

    async def _copied(
        self, hierarchy: Hierarchy, edit: Edit, path: str, documents: Mapping[str, dict[str, Json]]
    ) -> Metadata:
        """Return the stored document of the node at *path*, or the one of a new node that is on its way there."""
        found: Node | None = None
        with suppress(NotFoundError, NotADirectoryHereError):
            found = await hierarchy.node(path)
        if found is not None and found.document is not None and found.metadata is not None:
            return self.lens.put_copies(found.metadata, documents, in_image=found.in_image)
        stored = await edit.documents_in(path)
        name = next((name for name in (ZARRAY, ZGROUP) if name in documents), None)
        if not edit.is_new or name is None or ZARRAY in stored or ZGROUP in stored:
            raise RefusedError("it is not stored as Zarr v3, and cannot have a copy here")
        texts = _texts(documents)
        return self.lens.new(name, texts[name], texts, in_image=(found or edit.node).in_image)


def _texts(documents: Mapping[str, Json]) -> dict[str, bytes]:
    return {name: encode_json(document) for name, document in documents.items()}
