"""What a view generates from a stored document: the texts of documents, and how chunks are shown.

Pure, from bytes to values that can be sent to another process, where large documents are processed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from shardfs.errors import MetadataError, NotShownError, NotUnshardable
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import Document, Json, encode_json, parse_json
from shardfs.format.dtype import fill_element
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import Lens, consolidated, v2
from shardfs.format.lens.consolidated import Consolidated
from shardfs.format.lens.npy import NpyFile
from shardfs.format.lens.unsharded import Decoded, Unsharded, UnshardedArray, codec_of, decoded_document, describe
from shardfs.format.lens.v2 import V2
from shardfs.format.lens.v2_attributes import (
    FillValues,
    fill_values,
    has_missing_value,
    is_image,
    naming_no_axes,
    odd_missing_value,
    v2_attributes,
)
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, fingerprint, parse_document

ZARR_JSON: Final = "zarr.json"
ATTRIBUTES: Final = ".json"
"""The suffix of the names under which `NpyForm` shows attributes."""

_STORED_FILLS: Final = (
    "xarray and netCDF take its fill value, which is not its _FillValue, as missing value: mount without "
    "--fill-missing no"
)
_BULK: Final = frozenset({"attributes", "consolidated_metadata"})


def says_the_same(name: str, shown: bytes, written: bytes) -> bool:
    """Whether a document *name*, as it was *written* and as it is *shown*, means the same."""
    if name != ZARR_JSON:
        return v2.says_the_same(name, shown, written)
    try:
        return consolidated.says_the_same(parse_json(shown), parse_json(written))
    except MetadataError:
        return False


class Context(NamedTuple):
    """What a document does not say itself.

    *in_image*: the node is in an OME-Zarr image. *as_stored* are the paths, relative to the node, of sharded arrays
    that are shown as stored because their writers write shards.
    """

    in_image: bool = False
    as_stored: frozenset[str] = frozenset()


NO_CONTEXT: Final = Context()


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


class Shower(ABC):
    """The pure part of a view, called *name* in messages.

    *translates*: arrays are shown in another format, including unsharded ones, and some may not be shown at all.
    *looks_above*: how a node is shown depends on the groups above it.
    """

    name: str
    translates = True
    looks_above = False

    @abstractmethod
    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Return what is generated for a node; *array* is its description if it is an array.

        Raises `NotShownError` or `NotUnshardable` with the reason if nothing is shown.
        """

    def show_broken(self, reason: str) -> Shown:
        """Return what is generated for a node whose document cannot be read for this *reason*: by default nothing."""
        return Shown()


class V3Shower(Shower):
    """Zarr v3 without sharding codecs; if it *decodes*, chunks are decoded, also those of unsharded arrays."""

    def __init__(self, decodes: bool = False) -> None:
        self.name = "decoded v3" if decodes else "v3"
        self.translates = decodes
        self.lens: Lens = Decoded() if decodes else Unsharded()

    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Show the unsharded document of an array; for a group, unsharded consolidated copies."""
        if isinstance(stored, GroupMetadata):
            document = Consolidated(self.lens, context.as_stored).get(stored.document)
            return Shown({} if document is stored.document else {ZARR_JSON: encode_json(document)})
        if array is None or not (self.translates or stored.is_sharded):
            return Shown()
        codec = codec_of(array) if self.translates else None
        shown = decoded_document(array) if self.translates else array.document
        return Shown({ZARR_JSON: encode_json(shown)}, ChunkForm(array.key_encoding, codec))


class V2Shower(Shower):
    """Zarr v2, by *lens*: OME-Zarr images become version 0.4, and nodes stored as v2 pass through."""

    looks_above = True

    def __init__(self, lens: V2) -> None:
        self.name = "decoded v2" if lens.decodes else "v2"
        self.lens = lens

    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Show the v2 documents of a node, and fill values for missing chunks if readers would assume another value."""
        lens = self.lens.within(context.in_image)
        documents = {name: encode_json(document) for name, document in lens.documents(stored).items()}
        if array is None:
            return Shown(documents)
        if not context.in_image:
            array = replace(array, document=naming_no_axes(array.document))
        codec = codec_of(array) if lens.decodes else None
        fill, caveat = self._fill(array, context.in_image)
        return Shown(documents, ChunkForm(ChunkKeyEncoding("v2", lens.separator), codec, fill), caveat=caveat)

    def show_broken(self, reason: str) -> Shown:
        """Leave the node out: other files beside it are not v2."""
        return Shown(reason=reason)

    def _fill(self, array: UnshardedArray, in_image: bool) -> tuple[FillValues | None, str | None]:
        """Return the fill value to show for missing chunks, and why some readers get wrong values nevertheless."""
        names = array.document.get("dimension_names")
        if isinstance(names, list) and None in names and len({*names}) > 1:
            return None, "only some of its axes have names: xarray opens it natively, but finds no dimensions in v2"
        if in_image or not has_missing_value(array.document):
            return None, None
        try:
            values = fill_values(array)
            if not self.lens.fills_missing:
                return None, _STORED_FILLS if values.codec is not None else None
        except NotShownError as reason:
            return None, f"xarray takes values that equal the fill value as missing: {reason}"
        return values if values.codec is not None else None, odd_missing_value(array.document)


class NpyShower(Shower):
    """Arrays as .npy files, and attributes as JSON."""

    name = "npy"

    def show(self, stored: Metadata, array: UnshardedArray | None, context: Context) -> Shown:
        """Show the file of an array, and the attributes of a node."""
        attributes: Document = stored.document.get("attributes", {})
        if isinstance(stored, ArrayMetadata) and attributes:
            # With axis names, and the missing value as a number, as in v2.
            attributes = {**attributes, **v2_attributes(stored.document)}
        documents = {ATTRIBUTES: encode_json(attributes)} if attributes else {}
        return Shown(documents, npy=None if array is None else _npy_form(array))


class Contents(NamedTuple):
    """What the document of a node says.

    *array* describes an array with this *fingerprint*; if it must be shown as stored, *reason* says why. *in_image*: it
    is a group with metadata of OME-Zarr 0.5, or is below one.
    """

    metadata: Metadata
    in_image: bool
    array: UnshardedArray | None = None
    fingerprint: bytes = b""
    reason: str | None = None
    shown: Shown | None = None


def read_document(document: bytes, shower: Shower | None, context: Context) -> Contents:
    """Return what a stored document says, and what the view *shower* generates; raises `MetadataError`."""
    stored = parse_document(document)
    in_image = context.in_image or (isinstance(stored, GroupMetadata) and is_image(stored.document))
    context = context._replace(in_image=in_image)
    array, mark, fault = _describe(stored, context)
    shown = _show(shower, stored, array, fault, context) if shower is not None else None
    is_sharded = isinstance(stored, ArrayMetadata) and stored.is_sharded
    return Contents(stored, in_image, array, mark, fault if is_sharded else None, shown)


def read_large_document(document: bytes, shower: Shower | None, context: Context) -> Contents:
    """Return the same without attributes and copies, which are in the generated texts."""
    found = read_document(document, shower, context)
    array = None if found.array is None else replace(found.array, document=_without_bulk(found.array.document))
    metadata = replace(found.metadata, document=_without_bulk(found.metadata.document))
    return found._replace(metadata=metadata, array=array)


def shown_by(shower: Shower, stored: Metadata, context: Context) -> Shown:
    """Return what a view generates for a node that was read before."""
    array, _, fault = _describe(stored, context)
    return _show(shower, stored, array, fault, context)


def _describe(stored: Metadata, context: Context) -> tuple[UnshardedArray | None, bytes, str | None]:
    """Return the description of an array and its fingerprint, or the reason why there is none."""
    if isinstance(stored, GroupMetadata) or (stored.is_sharded and "" in context.as_stored):
        return None, b"", None
    try:
        return describe(stored), fingerprint(stored), None
    except (MetadataError, NotUnshardable) as error:
        return None, b"", str(error)


def _show(shower: Shower, stored: Metadata, array: UnshardedArray | None, fault: str | None, context: Context) -> Shown:
    if isinstance(stored, ArrayMetadata) and array is None:
        return Shown(reason=fault if shower.translates else None)
    try:
        return shower.show(stored, array, context)
    except (NotShownError, NotUnshardable, MetadataError) as error:
        return Shown(reason=str(error))


def _npy_form(array: UnshardedArray) -> NpyForm:
    codec = codec_of(array)
    file = NpyFile.of(codec.data_type, tuple(array.document["shape"]), codec.chunk_shape)
    return NpyForm(file, codec, fill_element(array.document["data_type"], array.document["fill_value"]))


def _without_bulk(document: Document) -> dict[str, Json]:
    return {member: value for member, value in document.items() if member not in _BULK}
