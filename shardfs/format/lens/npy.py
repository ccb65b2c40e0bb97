"""The lens that shows arrays as `.npy` files, read-only."""

from typing import Final

from shardfs.format.document import Document, attributes_of, encode_json
from shardfs.format.dtype import fill_element
from shardfs.format.lens import Context, Lens, NpyForm, Shown
from shardfs.format.lens.unsharded import UnshardedArray, codec_of
from shardfs.format.lens.v2_attributes import v2_attributes
from shardfs.format.metadata import ArrayMetadata, Metadata
from shardfs.format.npy import NpyFile

ATTRIBUTES: Final = ".json"
"""The suffix of the names under which attributes are shown."""


class Npy(Lens):
    """The lens without a way back that shows arrays as .npy files, and attributes as JSON."""

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document of the array, whose attributes are shown, as it is stored."""
        return stored.document

    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Show the file of an array, and the attributes of a node."""
        attributes = attributes_of(stored.document)
        if isinstance(stored, ArrayMetadata) and attributes:
            # With axis names, and the missing value as a number, as in v2.
            attributes = {**attributes, **v2_attributes(stored.document)}
        documents = {ATTRIBUTES: encode_json(attributes)} if attributes else {}
        if array is None:
            return Shown(documents)
        codec, document = codec_of(array), array.document
        file = NpyFile.of(codec.data_type, tuple(document["shape"]), codec.chunk_shape)
        fill = fill_element(document["data_type"], document["fill_value"])
        return Shown(documents, npy=NpyForm(file, codec, fill))
