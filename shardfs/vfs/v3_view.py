"""The Zarr v3 view: inner chunks are the chunks, encoded as they are stored or as decoded array bytes."""

from collections.abc import Mapping
from typing import Final

from shardfs.dataset.hierarchy import DOCUMENT, Hierarchy, Node
from shardfs.errors import NotShownError
from shardfs.format.document import encode_json
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import Lens
from shardfs.format.lens.consolidated import Consolidated
from shardfs.format.lens.decoded import Decoded, codec_of, decoded_document, require_decoded
from shardfs.format.lens.unsharded import Unsharded, describe
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_document
from shardfs.vfs.entries.passthrough import Directory
from shardfs.vfs.views import Appearance, Appearances, ChunkView, Edit, Metadata

_NAMES: Final = frozenset({DOCUMENT})


class ZarrV3:
    """Zarr v3 without sharding codecs; *decoded* shows chunks decoded, which takes arrays that are not sharded too."""

    directory = Directory
    looks_above = False
    document_names = _NAMES

    def __init__(self, *, decoded: bool = False) -> None:
        self.translates = decoded
        self._decoded = decoded
        self.lens: Lens = Decoded() if decoded else Unsharded()
        self._appearances = Appearances(self._appear, "decoded v3")

    def documents(self, node: Node) -> Mapping[str, bytes]:
        """Return the unsharded document of an array, or a group's with its consolidated copies unsharded."""
        return self._appearances.of(node).documents

    def chunk_view(self, node: Node) -> ChunkView | None:
        """Return how the chunks of a sharded array are shown, or of any array if they are decoded."""
        return self._appearances.of(node).chunk_view

    def left_out(self, node: Node) -> str | None:
        """Return the reason why an array cannot be shown decoded; without decoding nothing is left out."""
        return self._appearances.of(node).reason

    def hides(self, node: Node, name: str) -> bool:
        """Say that nothing is hidden: this is the format that is stored."""
        return False

    def key_encoding(self, node: Node, new: ArrayMetadata) -> ChunkKeyEncoding:
        """Return what the document says."""
        return ChunkKeyEncoding.parse(new.chunk_key_encoding)

    async def edit(self, hierarchy: Hierarchy, edit: Edit) -> Metadata | None:
        """Return what was written."""
        if edit.written is None:
            return None
        node, edited = edit.node, parse_document(edit.written)
        if not self._decoded or not isinstance(edited, ArrayMetadata) or edited.is_sharded:
            return edited
        if self.chunk_view(node) is None or not isinstance(node.metadata, ArrayMetadata):
            require_decoded(edited)
        return edited

    def _appear(self, node: Node) -> Appearance:
        metadata = node.metadata
        if isinstance(metadata, GroupMetadata):
            document = Consolidated(self.lens, node.as_stored).get(metadata.document)
            return Appearance({} if document is metadata.document else {DOCUMENT: encode_json(document)})
        if not isinstance(metadata, ArrayMetadata):
            return Appearance()
        array = node.array
        if self._decoded:
            if array is None and metadata.is_sharded and node.reason is None:
                return Appearance()  # its writer writes shards through this mount
            shown = describe(metadata)
            array, codec, document = node.any_array, codec_of(shown), decoded_document(shown)
            if array is None:
                raise NotShownError(node.reason or "the document is nested too deeply to be compared")
            chunk_view = ChunkView(array, shown.key_encoding, codec)
        elif array is not None:
            chunk_view, document = ChunkView(array, array.layout.key_encoding, None), array.document
        else:
            return Appearance()
        return Appearance({} if node.document is None else {DOCUMENT: encode_json(document)}, chunk_view)
