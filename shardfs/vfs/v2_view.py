"""The Zarr v2 view: documents and chunk names of Zarr v2, with the chunks of the arrays that are stored as v3."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from shardfs.dataset.hierarchy import DOCUMENT, Hierarchy, Node
from shardfs.errors import (
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotShownError,
    NotUnshardable,
    RefusedError,
)
from shardfs.format.chunk_key import ChunkKeyEncoding
from shardfs.format.consolidated import every_copy, inline_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Json, encode_json, parse_node
from shardfs.format.normal_form import canonical
from shardfs.format.plain import accept_plain, codec_of, plain_document, require_plain
from shardfs.format.unshard import describe
from shardfs.format.v2_attributes import v2_attributes, with_attributes
from shardfs.format.v2_documents import (
    V2_NAMES,
    ZARRAY,
    ZATTRS,
    ZGROUP,
    ZMETADATA,
    array_documents,
    group_documents,
    is_relative_path,
)
from shardfs.format.v2_edits import check_document, edit_array, edit_group, new_array, new_group, parse_consolidated
from shardfs.stores.base import join_key
from shardfs.vfs.nodes import Directory
from shardfs.vfs.views import Appearance, Appearances, Edit, Face, Metadata

log = logging.getLogger(__name__)


class ZarrV2:
    """Zarr v2, with chunk keys joined by *separator*; *plain* shows chunks decoded.

    What is stored as v2 passes through.
    """

    directory = Directory
    document_names = V2_NAMES
    translates = True

    def __init__(self, separator: str = ".", *, plain: bool = False) -> None:
        self._encoding = ChunkKeyEncoding("v2", separator)
        self._plain = plain
        self._appearances = Appearances(self._appear, "decoded v2" if plain else "v2")

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the v2 documents of a node that is stored as v3."""
        return self._appearances.of(node).documents

    def face(self, node: Node) -> Face | None:
        """Return how the chunks of an array that is stored as v3 are shown."""
        return self._appearances.of(node).face

    def left_out(self, node: Node) -> str | None:
        """Return the reason why a node that is stored as v3 has no v2 form."""
        return self._appearances.of(node).reason

    def hides(self, node: Node, name: str) -> bool:
        """Whether *name* is the v3 document, or a v2 document that is stored beside one."""
        return name == DOCUMENT or (name in V2_NAMES and node.document is not None)

    def key_encoding(self, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return the v2 names."""
        return self._encoding

    async def edit(self, hierarchy: Hierarchy, edit: Edit) -> Metadata | None:
        """Return the v3 document of a node with what a program changed in one of its v2 documents."""
        node, name, written = edit.node, edit.name, edit.written
        is_main = name in (ZARRAY, ZGROUP)
        if written is None and is_main:
            return None
        if isinstance(node.metadata, ArrayMetadata) and (node.document is not None or is_main):
            return self._edit_array(node.metadata, edit)
        if isinstance(node.metadata, GroupMetadata) and node.document is not None:
            if name == ZARRAY:
                raise RefusedError("a group is stored there")
            if name == ZMETADATA and written is not None:
                return await self._consolidate(hierarchy, edit, node.metadata, written)
            return edit_group(node.metadata, name, written)
        if written is None:
            return None
        check_document(name, written)
        return await self._begin(hierarchy, edit, written) if edit.is_new and is_main else None

    def _edit_array(self, stored: ArrayMetadata, edit: Edit) -> ArrayMetadata:
        if edit.name not in (ZARRAY, ZATTRS):
            raise RefusedError("an array is stored there")
        edited = edit_array(self._shown(stored), edit.name, edit.written, self._encoding.separator)
        if edit.node.document is None:
            edited = edit_array(edited, ZATTRS, edit.beside.get(ZATTRS), self._encoding.separator)
        return accept_plain(describe(stored), edited) if self._plain else edited

    async def _begin(self, hierarchy: Hierarchy, edit: Edit, written: bytes) -> Metadata:
        """Return the v3 document of a new node, consolidated if its `.zmetadata` came first."""
        if edit.name == ZGROUP and ZARRAY in edit.beside:  # which would go, as what is in the document does
            raise RefusedError("an array is stored there")
        if edit.name == ZARRAY and ZGROUP in edit.beside:
            raise RefusedError("a group is stored there")
        new = self._new(edit.name, written, edit.beside)
        consolidated = edit.beside.get(ZMETADATA)
        if consolidated is None or not isinstance(new, GroupMetadata):
            return new
        try:
            return await self._consolidate(hierarchy, edit, new, consolidated)
        except (MetadataError, RefusedError) as reason:
            log.warning("%s is not consolidated any more: %s", edit.node.path or "the source", reason)
            return new

    def _new(self, name: str, written: bytes, beside: Mapping[str, bytes]) -> Metadata:
        if name == ZGROUP:
            return new_group(written, beside.get(ZATTRS))
        array = new_array(written, beside.get(ZATTRS), self._encoding.separator)
        if self._plain:
            require_plain(array)
        return array

    def present_copy(self, stored: ArrayMetadata) -> dict[str, Json] | None:
        """Return the unsharded v3 document of an array that has a v2 form."""
        shown = self._shown(stored)
        array_documents(shown, self._encoding.separator)  # or the reason why there is none
        return dict(shown.document)

    def accept_copy(self, stored: ArrayMetadata, edited: ArrayMetadata) -> ArrayMetadata:
        """Return the copy: copies are made from what is stored."""
        return edited

    def _appear(self, node: Node) -> Appearance:
        metadata = node.metadata
        if metadata is None:
            return Appearance(reason=node.reason)
        if isinstance(metadata, GroupMetadata):
            documents = group_documents(metadata, self._encoding.separator, self._copy)
            return Appearance(_texts(documents))
        shown = describe(metadata)
        codec = codec_of(shown) if self._plain else None
        documents = array_documents(self._shown(metadata), self._encoding.separator)
        array = node.any_array
        if array is None:
            raise NotShownError(node.reason or "the document is nested too deeply to be compared")
        return Appearance({} if node.document is None else _texts(documents), Face(array, self._encoding, codec))

    def _shown(self, stored: ArrayMetadata) -> ArrayMetadata:
        """Return the unsharded v3 document that the v2 documents are made from."""
        node = parse_node(self._copy(stored))
        assert isinstance(node, ArrayMetadata)
        return node

    def _copy(self, stored: ArrayMetadata) -> dict[str, Any]:
        shown = describe(stored)
        return plain_document(shown) if self._plain else shown.document

    async def _consolidate(
        self, hierarchy: Hierarchy, edit: Edit, group: GroupMetadata, written: bytes
    ) -> GroupMetadata:
        """Return the group's document with copies of the nodes that *written* has copies of, as they are stored."""
        copies: dict[str, Json] = {}
        given = parse_consolidated(written)
        for path, documents in given.items():
            try:
                if not path:
                    self._check_copy(group, documents)
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
            return self._check_copy(found.metadata, documents)
        stored = await edit.documents_in(path)
        name = next((name for name in (ZARRAY, ZGROUP) if name in documents), None)
        if not edit.is_new or name is None or ZARRAY in stored or ZGROUP in stored:
            raise RefusedError("it is not stored as Zarr v3, and cannot have a copy here")
        texts = _texts(documents)
        return self._new(name, texts[name], texts)

    def _check_copy(self, stored: Metadata, documents: Mapping[str, dict[str, Json]]) -> Metadata:
        """Return *stored*, with attributes that are on their way; raises `RefusedError` for a copy of anything else."""
        shown = self._shown(stored) if isinstance(stored, ArrayMetadata) else stored
        copied = stored
        for name, copy in documents.items():
            if name == ZATTRS and not v2_attributes(shown.document):
                ndim = stored.ndim if isinstance(stored, ArrayMetadata) else None
                copied = parse_node(with_attributes(stored.document, ndim, copy))
                continue
            text = encode_json(copy)
            if isinstance(shown, ArrayMetadata):
                edited: Metadata = edit_array(shown, name, text, self._encoding.separator)
            else:
                edited = edit_group(shown, name, text)
            if canonical(edited.document) != canonical(shown.document):
                raise RefusedError(f"its {name} is not what is there")
        return copied


def _texts(documents: Mapping[str, Json]) -> dict[str, bytes]:
    return {name: encode_json(document) for name, document in documents.items()}
