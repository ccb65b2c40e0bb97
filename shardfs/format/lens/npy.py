"""The lens that shows arrays as `.npy` files, read-only."""

from typing import Final

from shardfs.errors import NotShownError
from shardfs.format.document import Document, attributes_of, encode_json
from shardfs.format.dtype import fill_element
from shardfs.format.lens import Lens, NodeContext, NpyForm, Shown
from shardfs.format.lens.unsharded import UnshardedArray, codec_of
from shardfs.format.lens.v2_attributes import v2_attributes
from shardfs.format.metadata import ArrayMetadata, Metadata
from shardfs.format.npy import NpyFile

ATTRIBUTES: Final = ".json"
"""The suffix of the names under which attributes are shown."""

ARRAY: Final = ".npy"
"""The suffix of the names under which arrays are shown."""

_MAX_NAME_NBYTES: Final = 255  # the limit of Linux


class Npy(Lens):
    """The lens without a way back that shows arrays as .npy files, and attributes as JSON."""

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the document of the array, whose attributes are shown, as it is stored."""
        return stored.document

    def check_name(self, context: NodeContext) -> None:
        """Refuse what is inside an array that is a file; the directory of one that is the source is shown."""
        above = context.above
        if above is not None and above.context.path:
            raise NotShownError(f"it is inside {above}, which is a file here: move it out of that, or use --view v3")

    def show(self, stored: Metadata, array: UnshardedArray | None, context: NodeContext) -> Shown:
        """Show the file of an array, and the attributes of a node."""
        attributes = attributes_of(stored.document)
        if isinstance(stored, ArrayMetadata) and attributes:
            # With axis names, and the missing value as a number, as in v2.
            attributes = {**attributes, **v2_attributes(stored.document)}
        documents = {ATTRIBUTES: encode_json(attributes)} if attributes else {}
        if array is None:
            return Shown(documents)
        name = context.path.rpartition("/")[2] + ARRAY
        if len(name.encode(errors="surrogateescape")) > _MAX_NAME_NBYTES:
            raise NotShownError(f"its name with {ARRAY} would have more than {_MAX_NAME_NBYTES} bytes: use --view v3")
        codec, document = codec_of(array), array.document
        file = NpyFile.of(codec.data_type, tuple(document["shape"]), codec.chunk_shape)
        fill = fill_element(document["data_type"], document["fill_value"])
        return Shown(documents, npy=NpyForm(file, codec, fill))
