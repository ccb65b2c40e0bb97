"""Zarr v2 documents for nodes that are stored as Zarr v3, and the way back.

Chunks stay as they are: a v3 codec chain either has a v2 form with the same bytes, or none. Libraries add members for
which numcodecs has defaults, omit those that say nothing, and spell missing filters and a missing dimension separator
in several ways.

Sources: Zarr storage specification 2, "Metadata"; `.zmetadata` as zarr-python 2 writes it; zarr-python 2.18,
zarr-python 3.1 and tensorstore 0.1 as observed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shardfs.errors import MetadataError, NotShownError, NotUnshardable, RefusedError
from shardfs.format.codecs import is_in_order
from shardfs.format.document import (
    MAX_NDIM,
    Document,
    Json,
    brief,
    canonical,
    encode_json,
    is_version,
    parse_json,
    parse_lengths,
)
from shardfs.format.dtype import (
    DataType,
    parse_v2_dtype,
    reordered_fill,
    v2_element,
    v2_fill_element,
    v3_data_type,
    v3_fill_value,
)
from shardfs.format.foreign import ForeignChunks
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.lens import ChunkForm, FillValues, NodeContext, Shown
from shardfs.format.lens.unsharded import (
    UnshardedArray,
    codec_of,
    decoded_document,
    describe,
    require_decoded,
)
from shardfs.format.lens.v2_attributes import (
    FILL_VALUE,
    SEPARATOR,
    fill_values,
    has_missing_value,
    is_image,
    naming_no_axes,
    odd_missing_value,
    saying,
    shown_fill_value,
    v2_attributes,
    with_attributes,
    with_fill_value,
)
from shardfs.format.lens.v2_codecs import codecs_of, normal_codec, object_data_type, v2_codecs, v3_codecs
from shardfs.format.lens.v3 import MAX_PATH_LENGTH, V3, every_copy, inline_copies
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, Metadata, parse_array, parse_group, parse_node

ZARRAY: Final = ".zarray"
ZGROUP: Final = ".zgroup"
ZATTRS: Final = ".zattrs"
ZMETADATA: Final = ".zmetadata"
V2_NAMES: Final = frozenset({ZARRAY, ZGROUP, ZATTRS, ZMETADATA})
_STORED_FILLS: Final = (
    "xarray and netCDF take its fill value, which is not its _FillValue, as missing value: mount without "
    "--fill-missing no"
)
_MISSING_BYTES: Final = (
    "zarr-python 2 reads elements that are not stored as None instead of empty bytes, whatever fill value v2 has"
)
_REQUIRED: Final = ("shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters")


def array_documents(array: ArrayMetadata, separator: str, *, shows_missing: bool = False) -> dict[str, dict[str, Any]]:
    """Return `.zarray`, and `.zattrs` if there are attributes, of an unsharded v3 array with a regular grid.

    *separator* is the dimension separator. With *shows_missing*, the fill value is the missing value, as xarray takes
    it, if the array may have missing values. Raises `NotShownError` with the reason why there is no v2 form.
    """
    try:
        return _with_attributes({ZARRAY: _zarray(array, separator, shows_missing)}, array.document)
    except MetadataError as error:
        raise NotShownError(str(error)) from None


def can_show_missing(array: UnshardedArray) -> bool:
    """Whether the fill value of *array* can be its missing value, if it may have missing values.

    It cannot if readers would take missing chunks for missing values, and no chunk can be made to show instead.
    """
    try:
        fill_values(array)
    except NotShownError:
        return False
    return True


@dataclass(frozen=True)
class V2(V3):
    """The lens of Zarr v2, with chunk keys joined by *separator*, and decoded chunks if it *decodes*.

    With *fills_missing*, the fill value of an array that may have missing values is the missing value, as xarray takes
    it. See `within` for nodes *in_image*.
    """

    separator: str = "."
    fills_missing: bool = True
    in_image: bool = False
    translates = True
    looks_above = True

    def within(self, in_image: bool) -> "V2":
        """Return the lens for nodes of an OME-Zarr image, or for others if not *in_image*.

        Arrays of images have the separator "/" and no missing values.
        """
        return replace(self, separator=SEPARATOR, fills_missing=False, in_image=True) if in_image else self

    def get(self, stored: ArrayMetadata) -> Document:
        """Return the unsharded v3 document for a copy of an array that has a v2 form."""
        shown = self._shown(describe(stored))
        array_documents(shown, self.separator)  # or the reason why it is impossible
        return shown.document

    def show(self, stored: Metadata, array: UnshardedArray | None, context: NodeContext) -> Shown:
        """Show the v2 documents of a node, and fill values for missing chunks if readers would assume another value."""
        lens = self.within(context.in_image)
        documents = {name: encode_json(document) for name, document in lens.documents(stored).items()}
        if array is None:
            return Shown(documents)
        if not context.in_image:
            array = replace(array, document=naming_no_axes(array.document))
        codec = codec_of(array) if self.decodes else None
        fill, caveat = lens._fill(array)
        if DataType.parse(array.document["data_type"]).dtype.kind == "O":
            caveat = "; ".join(filter(None, (caveat, _MISSING_BYTES)))
        return Shown(documents, ChunkForm(ChunkKeyEncoding("v2", lens.separator), codec, fill), caveat=caveat)

    def check_name(self, context: NodeContext) -> None:
        """Refuse names that v2 gives to documents, and to chunks of the array above."""
        names = V2_NAMES.intersection(context.path.split("/"))
        if names:
            raise NotShownError(f"the name {min(names)} is that of a document of Zarr v2: rename it, or use --view v3")
        above = context.above
        if above is None:
            return
        name = context.path[len(above.context.path) :].lstrip("/").partition("/")[0]
        separator = self.within(above.context.in_image).separator
        if ChunkKeyEncoding("v2", separator).begins(name, above.metadata.ndim):
            raise NotShownError(f"the name {name} is that of chunks of {above}: move it out of that, or use --view v3")

    def show_foreign_group(self, group: GroupMetadata) -> Shown:
        """Show a group."""
        return Shown({name: encode_json(document) for name, document in self.documents(group).items()})

    def _show_as_array(self, chunks: ForeignChunks) -> Shown:
        """Show an array as one of Zarr v2."""
        document, codec = self._as_array(chunks)
        documents = array_documents(parse_array(document), self.separator)
        form = ChunkForm(ChunkKeyEncoding("v2", self.separator), codec)
        return Shown({name: encode_json(each) for name, each in documents.items()}, form)

    def show_broken(self, reason: str, document: Json) -> Shown:
        """Leave the node out: other files beside it are not v2."""
        return Shown(reason=reason)

    def _fill(self, array: UnshardedArray) -> tuple[FillValues | None, str | None]:
        """Return the fill value to show for missing chunks, and why some readers get wrong values nevertheless."""
        names = array.document.get("dimension_names")
        if isinstance(names, list) and None in names and len({*names}) > 1:
            return None, "only some of its axes have names: xarray opens it natively, but finds no dimensions in v2"
        if self.in_image or not has_missing_value(array.document):
            return None, None
        try:
            values = fill_values(array)
            if not self.fills_missing:
                return None, _STORED_FILLS if values.codec is not None else None
        except NotShownError as reason:
            return None, f"xarray takes values that equal the fill value as missing: {reason}"
        return values if values.codec is not None else None, odd_missing_value(array.document)

    def documents(self, stored: Metadata) -> dict[str, dict[str, Any]]:
        """Return the v2 documents of a node by name; raises `NotShownError` or `NotUnshardable` if it has none.

        A consolidated group has a `.zmetadata` with the copies that have a v2 form.
        """
        if isinstance(stored, ArrayMetadata):
            shown, shows_missing = self._array(stored)
            return array_documents(shown, self.separator, shows_missing=shows_missing)
        documents = _with_attributes({ZGROUP: {"zarr_format": 2}}, stored.document)
        if inline_copies(stored.document) is None:
            return documents
        metadata: dict[str, Any] = dict(documents)
        copies = list(every_copy(stored.document))
        images = {path for path, copy in copies if isinstance(copy, dict) and is_image(copy)}
        for path, copy in copies:
            if is_relative_path(path):
                parts = path.split("/")
                groups = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
                for name, document in self.within(not images.isdisjoint(groups))._copied(copy).items():
                    metadata.setdefault(f"{path}/{name}", document)
        return {**documents, ZMETADATA: {"zarr_consolidated_format": 1, "metadata": metadata}}

    def edit(
        self, stored: Metadata, name: str, written: bytes | None, beside: Mapping[str, bytes] | None = None
    ) -> Metadata:
        """Return the v3 metadata of a node after its document *name* was *written*, or removed (None).

        If the stored document was removed before, *beside* are the v2 documents in the directory.
        """
        if isinstance(stored, GroupMetadata):
            if name == ZARRAY:
                raise RefusedError("a group is stored there")
            return edit_group(stored, name, written)
        if name not in (ZARRAY, ZATTRS):
            raise RefusedError("an array is stored there")
        shown, shows_missing = self._array(stored)
        edited = edit_array(shown, name, written, self.separator, shows_missing=shows_missing)
        if beside is not None:
            edited = edit_array(edited, ZATTRS, beside.get(ZATTRS), self.separator, shows_missing=shows_missing)
        names = stored.document.get("dimension_names")
        if names is not None or "dimension_names" not in shown.document:
            return edited
        document = {member: value for member, value in edited.document.items() if member != "dimension_names"}
        if "dimension_names" in stored.document:
            document["dimension_names"] = names
        return replace(edited, document=document)

    def new(self, name: str, written: bytes, beside: Mapping[str, bytes]) -> Metadata:
        """Return the v3 metadata of a node made by a `.zarray` or `.zgroup`; *beside* are its other v2 documents.

        Raises what `new_array` does.
        """
        zattrs = beside.get(ZATTRS)
        if name == ZGROUP:
            _parse(ZGROUP, written)
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            return parse_group(with_attributes(document, _parse(ZATTRS, zattrs)))
        array = new_array(written, zattrs, self.separator, fills_missing=self.fills_missing)
        if self.decodes:
            require_decoded(array)
        return array

    def put_copies(self, stored: Metadata, documents: Mapping[str, dict[str, Json]]) -> Metadata:
        """Return *stored* with the attributes of its copies in a `.zmetadata`, where their own have not arrived yet.

        Raises `RefusedError` for a copy that differs otherwise from what is stored.
        """
        copied = named = shown = stored
        if isinstance(stored, ArrayMetadata):
            shown = self._shown(describe(stored))
            named = stored if self.in_image else replace(stored, document=naming_no_axes(stored.document))
        for name, copy in documents.items():
            if name == ZATTRS and not v2_attributes(named.document):
                shows_missing = isinstance(named, ArrayMetadata) and self._array(named)[1]
                copied = parse_node(with_attributes(named.document, copy, shows_missing=shows_missing))
            elif canonical(self.edit(stored, name, encode_json(copy)).document) != canonical(shown.document):
                raise RefusedError(f"its {name} is not the one that is stored")
        return copied

    def means_the_same(self, name: str, shown: bytes, written: bytes) -> bool:
        """Whether two documents *name* mean the same.

        The one *written* may omit the missing value from a `.zattrs`, as xarray does: the `.zarray` has it.
        """
        try:
            if name != ZMETADATA:
                return _is_same(name, _parse(name, shown), _parse(name, written))
            these, those = _copies(shown), _copies(written)
            return these.keys() == those.keys() and all(
                _is_same(key[1], copy, those[key]) for key, copy in these.items()
            )
        except MetadataError:
            return False

    def _array(self, stored: ArrayMetadata) -> tuple[ArrayMetadata, bool]:
        """Return the unsharded v3 document that the v2 documents are made from, with what xarray omits.

        The second value is whether its fill value is the missing value, if it may have missing values.
        """
        described = describe(stored)
        if not self.in_image:
            described = replace(described, document=naming_no_axes(described.document))
        return self._shown(described), self.fills_missing and can_show_missing(described)

    def _shown(self, described: UnshardedArray) -> ArrayMetadata:
        return parse_array(decoded_document(described) if self.decodes else described.document)

    def _copied(self, copy: Json) -> dict[str, dict[str, Any]]:
        """Return the v2 documents of a copy, without a `.zmetadata` of its own; none if it has no v2 form."""
        try:
            node = parse_node(copy)
            if isinstance(node, GroupMetadata):
                return _with_attributes({ZGROUP: {"zarr_format": 2}}, node.document)
            return self.documents(node)
        except (MetadataError, NotShownError, NotUnshardable):
            return {}


def _zarray(array: ArrayMetadata, separator: str, shows_missing: bool) -> dict[str, Any]:
    data_type, grid = array.document["data_type"], array.chunk_grid
    if grid.name != "regular":
        raise NotShownError(f"a chunk grid that is {brief(grid.name)} has no Zarr v2 form")
    chunk_shape = parse_lengths(grid.configuration.get("chunk_shape"), "chunk_shape", minimum=1, ndim=array.ndim)
    encoding = v2_codecs(array.codecs, chunk_shape, DataType.parse(data_type))
    fill_value = shown_fill_value(array.document, shows_missing=shows_missing)
    document = {
        **encoding,
        "chunks": list(chunk_shape),
        "dimension_separator": separator,
        "fill_value": reordered_fill(parse_v2_dtype(encoding["dtype"]), fill_value),
        "shape": list(array.shape),
        "zarr_format": 2,
    }
    return dict(sorted(document.items()))


def _with_attributes(documents: dict[str, dict[str, Any]], document: Document) -> dict[str, dict[str, Any]]:
    attributes = v2_attributes(document)
    return {**documents, ZATTRS: attributes} if attributes else documents


def edit_array(
    shown: ArrayMetadata, name: str, written: bytes | None, separator: str, *, shows_missing: bool = False
) -> ArrayMetadata:
    """Return *shown*, an unsharded v3 document, with the changes that a program made in its document *name*.

    It is shown as by `array_documents` with the same *separator* and *shows_missing*. Shape, fill value, attributes and
    `_ARRAY_DIMENSIONS`, which become dimension names, may change. *written* is None if a `.zattrs` was removed. Raises
    `RefusedError` for any other change, and `MetadataError` for an invalid document.
    """
    if name == ZATTRS:
        return parse_array(with_attributes(shown.document, _parse(ZATTRS, written), shows_missing=shows_missing))
    if name != ZARRAY or written is None:
        raise RefusedError(f"{name} of an array cannot be changed like this")
    zarray = _parse(ZARRAY, written)
    try:
        require_same_encoding(array_documents(shown, separator, shows_missing=shows_missing)[ZARRAY], zarray)
    except NotShownError as error:
        raise RefusedError(str(error)) from None
    document = {**shown.document, "shape": zarray["shape"]}
    fill_value = reordered_fill(parse_v2_dtype(zarray["dtype"]), zarray["fill_value"])
    return parse_array(with_fill_value(document, fill_value, shows_missing=shows_missing))


def edit_group(shown: GroupMetadata, name: str, written: bytes | None) -> GroupMetadata:
    """Return *shown* with the changes that a program made in its `.zgroup` or `.zattrs`; like `edit_array`.

    Of `.zmetadata`, only the removal is an edit here; see `parse_consolidated`.
    """
    if name == ZATTRS:
        return parse_group(with_attributes(shown.document, _parse(ZATTRS, written)))
    if name == ZGROUP and written is not None:
        _parse(ZGROUP, written)
        return shown
    if name == ZMETADATA and written is None:
        return parse_group(
            {member: value for member, value in shown.document.items() if member != "consolidated_metadata"}
        )
    raise RefusedError(f"{name} of a group cannot be changed like this")


def new_array(zarray: bytes, zattrs: bytes | None, separator: str, *, fills_missing: bool = False) -> ArrayMetadata:
    """Return the unsharded v3 document of an array that a program writes as v2; its chunks stay byte for byte.

    Raises `NotUnshardable` with the reason why there is none, `RefusedError` for a dimension separator other than
    *separator*, and `MetadataError` for an invalid document.
    """
    written, attributes = _parse(ZARRAY, zarray), _parse(ZATTRS, zattrs)
    require_separator({**written, "dimension_separator": written.get("dimension_separator") or "."}, separator)
    if 0 in written["chunks"]:
        raise NotUnshardable("chunks of length 0 have no Zarr v3 form")
    try:
        array = parse_array(_new_document(written))
        is_null = written["fill_value"] is None and array_documents(array, separator)[ZARRAY]["fill_value"] is not None
        if is_null or not array.shape:
            array = parse_array(saying(array.document, fill_value=written["fill_value"]))
        shows_missing = fills_missing and can_show_missing(describe(array))
        array = parse_array(with_attributes(array.document, attributes, shows_missing=shows_missing))
        # What is stored must be shown as it was written: its writer continues with what it reads.
        require_same_encoding(array_documents(array, separator)[ZARRAY], written)
    except (MetadataError, NotShownError, RefusedError) as error:
        raise NotUnshardable(str(error)) from None
    return array


def _new_document(zarray: dict[str, Json]) -> dict[str, Any]:
    codecs, dtype, chunk_shape = codecs_of(zarray), parse_v2_dtype(zarray["dtype"]), tuple(zarray["chunks"])
    data_type = object_data_type(codecs) if dtype.hasobject else v3_data_type(dtype)
    fill_value: Json = zarray["fill_value"]
    if fill_value is not None or dtype.hasobject:
        fill_value = v3_fill_value(data_type, v2_fill_element(data_type, fill_value))
    else:  # zero, empty text, not a time
        fill_value = "NaT" if dtype.kind in "mM" else v3_fill_value(data_type, bytes(dtype.itemsize))
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": zarray["shape"],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": v3_codecs(codecs, zarray["order"], chunk_shape, dtype),
        "attributes": {},
    }


def parse_consolidated(written: bytes) -> dict[str, dict[str, Json]]:
    """Return the copies of documents in a `.zmetadata`, by path relative to the group ("" is itself) and name.

    Raises `MetadataError` if it is invalid, or has invalid names or paths.
    """
    document = _check(ZATTRS, parse_json(written))
    version = document.get("zarr_consolidated_format")
    if not is_version(version, 1):
        raise MetadataError(f"zarr_consolidated_format must be 1, not {brief(version)}")
    copies: dict[str, dict[str, Json]] = {}
    for key, copy in _check(ZATTRS, document.get("metadata")).items():
        path, _, name = key.rpartition("/")
        if name not in (ZARRAY, ZGROUP, ZATTRS) or ("/" in key and not is_relative_path(path)):
            raise MetadataError(f"the key {brief(key)} of consolidated metadata does not name a document")
        copies.setdefault(path, {})[name] = _check(name, copy)
    return copies


def check_document(name: str, written: bytes) -> None:
    """Raise `MetadataError` if *written* is no valid v2 document of this name, to be stored as it is written."""
    if name == ZMETADATA:
        parse_consolidated(written)
    else:
        _parse(name, written)


def _parse(name: str, written: bytes | None) -> dict[str, Json]:
    """Parse a `.zarray`, `.zgroup` or `.zattrs`; a missing one equals an empty one. Raises `MetadataError`."""
    return {} if written is None else _check(name, parse_json(written))


def _check(name: str, document: Json) -> dict[str, Json]:
    """Check a document; members that are not in the specification are kept and ignored."""
    if not isinstance(document, dict):
        raise MetadataError(f"the document must be an object, not {brief(document)}")
    version = document.get("zarr_format")
    if name != ZATTRS and not is_version(version, 2):
        raise MetadataError(f"zarr_format must be 2, not {brief(version)}")
    if name == ZARRAY:
        _check_zarray(document)
    return document


def _check_zarray(zarray: dict[str, Json]) -> None:
    missing = [member for member in _REQUIRED if member not in zarray]
    if missing:
        raise MetadataError(f"required members are missing: {', '.join(missing)}")
    shape = parse_lengths(zarray["shape"], "shape", minimum=0)
    if len(shape) > MAX_NDIM:
        raise MetadataError(f"the array has {len(shape)} axes, more than {MAX_NDIM}")
    parse_lengths(zarray["chunks"], "chunks", minimum=0, ndim=len(shape))
    parse_v2_dtype(zarray["dtype"])
    if zarray["order"] not in ("C", "F"):
        raise MetadataError(f'order must be "C" or "F", not {brief(zarray["order"])}')
    if zarray.get("dimension_separator") not in (None, ".", "/"):
        raise MetadataError(f'dimension_separator must be "." or "/", not {brief(zarray["dimension_separator"])}')
    if zarray["filters"] is not None and not isinstance(zarray["filters"], list):
        raise MetadataError(f"filters must be a list of codecs or null, not {brief(zarray['filters'])}")
    for codec in codecs_of(zarray):
        if not isinstance(codec, dict) or not isinstance(codec.get("id"), str):
            raise MetadataError(f"a codec must be an object with an id, not {brief(codec)}")


def require_same_encoding(shown: Document, written: Document) -> None:
    """Raise `RefusedError` if *written* differs from *shown* in where chunks are or what they mean.

    Both are checked `.zarray` documents. Fill values and lengths of the array may differ.
    """
    require_separator(written, shown["dimension_separator"])
    old, new = _encoding(shown), _encoding(written)
    for what in old:
        if canonical(new[what]) != canonical(old[what]):
            raise RefusedError(f"{what} {canonical(new[what])[:120]} instead of {canonical(old[what])[:120]}")


def _encoding(zarray: Document) -> dict[str, Json]:
    """Return what a checked `.zarray` says about chunks but for their names, independent of its spelling."""
    dtype, chunks = parse_v2_dtype(zarray["dtype"]), zarray["chunks"]
    return {
        "chunks": chunks,
        "dtype": np.lib.format.dtype_to_descr(dtype),
        "order": "C" if is_in_order(range(len(chunks))[::-1], chunks) else zarray["order"],
        "filters and compressor": [normal_codec(codec, dtype) for codec in codecs_of(zarray)],
    }


def _copies(zmetadata: bytes) -> dict[tuple[str, str], Json]:
    """Return the copies in a `.zmetadata` by path and name, without empty ones."""
    found = parse_consolidated(zmetadata).items()
    return {(path, name): copy for path, copies in found for name, copy in copies.items() if copy or name != ZATTRS}


def _is_same(name: str, one: Document, other: Document) -> bool:
    if name == ZATTRS and FILL_VALUE not in other:
        one = {attribute: value for attribute, value in one.items() if attribute != FILL_VALUE}
    return canonical(one) == canonical(other) or canonical(_meaning(name, one)) == canonical(_meaning(name, other))


def _meaning(name: str, document: Document) -> Document:
    """Return what a checked document says, independent of its spelling."""
    if name != ZARRAY:
        return document if name == ZATTRS else {}
    dtype, value, shape = parse_v2_dtype(document["dtype"]), document["fill_value"], document["shape"]
    if value is not None and not dtype.hasobject:
        value = v2_element(dtype, value).hex()
    separator = document.get("dimension_separator") or "." if len(shape) > 1 else None  # as readers take it
    return {**_encoding(document), "shape": shape, "fill_value": value, "separator": separator}


def require_separator(written: Document, separator: str) -> None:
    """Raise `RefusedError` if a `.zarray` has a dimension separator other than *separator*.

    It may be missing, and any one is accepted for an array with fewer than two axes: its chunk keys have none.
    """
    asked = written.get("dimension_separator")
    if asked is not None and asked != separator and len(written["shape"]) > 1:
        raise RefusedError(
            f"the dimension separator is {brief(asked)}, and {brief(separator)} in this mount: "
            f"write with dimension_separator={separator!r}, or mount with --dimension-separator {asked} "
            "(but an OME-Zarr image has / in any mount: write that with '/')"
        )


def is_relative_path(path: str) -> bool:
    """Whether *path* is a path below a group, of names that a filesystem can have."""
    return len(path) <= MAX_PATH_LENGTH and all(
        part not in ("", ".", "..") and "\0" not in part for part in path.split("/")
    )
