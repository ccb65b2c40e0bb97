"""Missing values as the fill value of a `.zarray`, and back to the attribute that xarray writes to v3."""

import base64
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import NotShownError
from shardfs.format.codecs import ChunkCodec
from shardfs.format.document import canonical
from shardfs.format.lens.unsharded import UnshardedArray, describe
from shardfs.format.lens.v2 import array_documents, edit_array, new_array
from shardfs.format.lens.v2_attributes import fill_values, naming_no_axes
from shardfs.format.metadata import parse_array
from tests.support.corpus import BIG, BLOSC, CRC32C, GZIP, LITTLE, ZSTD, array, extension, sharding, transpose
from tests.support.json_values import json_values

NAMES = ["y", "x"]
_FORMATS = {"float16": "<e", "float32": "<f", "float64": "<d"}


def base64_of(number: float) -> str:
    return base64.b64encode(struct.pack("<d", number)).decode()


def text(document: Any) -> bytes:
    return json.dumps(document).encode()


def plain(data_type: str = "float32", fill_value: Any = 0, **members: Any) -> dict[str, Any]:
    codec = LITTLE if data_type != "string" else {"name": "vlen-utf8"}
    members = {"dimension_names": NAMES, **members}
    return array((7, 11), (4, 6), codec, GZIP, data_type=data_type, fill_value=fill_value, **members)


def shown(document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """`.zarray` and `.zattrs`."""
    documents = array_documents(parse_array(document), ".", shows_missing=True)
    return documents[".zarray"], documents.get(".zattrs", {})


def edited(document: Any, name: str, written: Any) -> dict[str, Any]:
    return dict(edit_array(parse_array(document), name, text(written), ".", shows_missing=True).document)


def floats(data_type: str) -> st.SearchStrategy[float]:
    width: Any = {"float16": 16, "float32": 32, "float64": 64}[data_type]
    return st.floats(width=width)


@st.composite
def missing_values(draw: st.DrawFn) -> tuple[str, Any, Any]:
    """A data type, the attribute of v3, and the fill value of v2."""
    data_type = draw(st.sampled_from(["float16", "float32", "float64", "int16", "uint8", "int64", "bool", "string"]))
    if data_type in _FORMATS:
        number = draw(floats(data_type))
        number = math.nan if math.isnan(number) else number
        named = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return data_type, base64_of(number), "NaN" if math.isnan(number) else named.get(number, number)
    if data_type == "bool":
        value: Any = draw(st.booleans())
    elif data_type == "string":
        value = draw(st.text(max_size=3))
    else:
        limits = np.iinfo(data_type)
        value = draw(st.integers(int(limits.min), int(limits.max)))
    return data_type, value, value


@pytest.mark.slow
@settings(max_examples=100)
@given(missing_values())
def test_the_attribute_is_the_fill_value_and_back(missing: tuple[str, Any, Any]) -> None:
    data_type, attribute, fill_value = missing
    default = {"bool": False, "string": ""}.get(data_type, 0)
    stored = plain(data_type, default, attributes={"units": "m", "_FillValue": attribute})
    zarray, zattrs = shown(stored)
    assert canonical(zarray["fill_value"]) == canonical(fill_value)
    number = float(fill_value) if data_type in _FORMATS else fill_value
    assert canonical(zattrs) == canonical({"units": "m", "_FillValue": number, "_ARRAY_DIMENSIONS": NAMES})
    for name, document in ((".zarray", zarray), (".zattrs", zattrs)):
        assert canonical(edited(stored, name, document)) == canonical(stored), "nothing changes"

    without = plain(data_type, default, attributes={"units": "m"})
    assert shown(without)[0]["fill_value"] is None
    assert "_FillValue" not in shown(without)[1]
    assert canonical(edited(without, ".zarray", zarray)) == canonical(stored)
    assert canonical(edited(without, ".zattrs", zattrs)) == canonical(stored)
    assert canonical(edited(stored, ".zarray", {**zarray, "fill_value": None})) == canonical(without)
    kept = {name: value for name, value in zattrs.items() if name != "_FillValue"}
    assert canonical(edited(stored, ".zattrs", {**kept, "new": 1})["attributes"]) == canonical(
        {**stored["attributes"], "new": 1}
    ), "xarray writes it to the .zarray only"


@pytest.mark.slow
@settings(max_examples=100)
@given(missing_values(), st.booleans())
def test_an_array_that_gets_names_for_its_axes_goes_on_showing_its_fill_value(
    missing: tuple[str, Any, Any], is_null: bool
) -> None:
    """`.zarray` is written first, and zarr-python 2 gives it a fill value that nobody chose."""
    data_type, attribute, fill_value = missing
    codecs = {"filters": [{"id": "vlen-utf8"}] if data_type == "string" else None, "compressor": None}
    dtype = {"bool": "|b1", "string": "|O"}.get(data_type) or np.dtype(data_type).str
    value = None if is_null else fill_value
    written = {"zarr_format": 2, "shape": [7, 11], "chunks": [4, 6], "dtype": dtype, "order": "C", **codecs}
    zarray = {**written, "fill_value": value}
    first = new_array(text(zarray), None, ".", fills_missing=True)
    both = new_array(text(zarray), text({"_ARRAY_DIMENSIONS": NAMES}), ".", fills_missing=True)
    later = edit_array(first, ".zattrs", text({"_ARRAY_DIMENSIONS": NAMES}), ".", shows_missing=True)
    assert canonical(both.document) == canonical(later.document)
    assert canonical(both.document["attributes"]) == canonical({} if is_null else {"_FillValue": attribute})
    nameless = edit_array(later, ".zattrs", text({}), ".", shows_missing=True)
    for document in (first, later, nameless):
        found = array_documents(document, ".", shows_missing=True)[".zarray"]["fill_value"]
        assert canonical(found) == canonical(value)


def test_without_names_the_stored_fill_value_is_shown_until_they_are_back() -> None:
    stored = plain("int16", 3, attributes={"units": "m", "_FillValue": 7})
    nameless = edited(stored, ".zattrs", {})
    zarray, zattrs = shown(nameless)
    assert zarray["fill_value"] == 3, "as missing chunks are read in v3"
    assert zattrs == {}
    grown = edited(nameless, ".zarray", {**zarray, "shape": [9, 11]})
    assert grown == {**nameless, "shape": [9, 11]}
    named = edited(grown, ".zattrs", {"units": "m", "_ARRAY_DIMENSIONS": NAMES})
    assert named == {**stored, "shape": [9, 11]}
    refilled = edited(nameless, ".zarray", {**zarray, "fill_value": 4})
    assert refilled["fill_value"] == 4
    assert edited(refilled, ".zattrs", {"_ARRAY_DIMENSIONS": NAMES})["attributes"] == {"_FillValue": 4}


def test_an_array_without_axes_says_that_it_names_none() -> None:
    attributes = {"_FillValue": base64_of(math.nan)}
    alone = array((), (), LITTLE, data_type="float64", fill_value=0, attributes=attributes)
    assert shown(alone)[0]["fill_value"] == 0
    stored = naming_no_axes(alone)
    zarray, zattrs = shown(stored)
    assert zarray["fill_value"] == "NaN"
    assert canonical(zattrs) == canonical({"_FillValue": math.nan, "_ARRAY_DIMENSIONS": []})
    assert edited(stored, ".zattrs", {**zattrs, "a": 1})["attributes"] == {**attributes, "a": 1}
    # One that zarr-python 2 makes has no names, and its fill value is none of missing values.
    written = {"filters": None, "compressor": None, "order": "C", "dtype": "<f8", "zarr_format": 2, "fill_value": 3.0}
    made = new_array(text({**written, "shape": [], "chunks": []}), None, ".", fills_missing=True)
    assert naming_no_axes(made.document) == made.document
    assert array_documents(made, ".", shows_missing=True).keys() == {".zarray"}
    assert array_documents(made, ".", shows_missing=True)[".zarray"]["fill_value"] == 3
    other = edited(made.document, ".zarray", {**shown(made.document)[0], "fill_value": 4})
    assert (other["fill_value"], shown(naming_no_axes(other))[0]["fill_value"]) == (4, 4)
    named = edit_array(made, ".zattrs", text({"_ARRAY_DIMENSIONS": []}), ".", shows_missing=True)
    assert named.document["attributes"] == {"_FillValue": base64_of(3)}


@pytest.mark.slow
@given(st.sampled_from(["float32", "int16", "bool", "string"]), json_values)
@settings(max_examples=100)
def test_whatever_the_attribute_says_is_shown_or_skipped_and_comes_back(data_type: str, value: Any) -> None:
    default = {"bool": False, "string": ""}.get(data_type, 0)
    stored = plain(data_type, default, attributes={"_FillValue": value})
    for name, document in zip((".zarray", ".zattrs"), shown(stored), strict=True):
        assert canonical(edited(stored, name, document)) == canonical(stored)
    if data_type in ("float32", "int16"):
        assert isinstance(shown(stored)[1].get("_FillValue", 0), int | float), "text ends the process of netCDF-C"


CHAINS = [
    [LITTLE],
    [BIG],
    [LITTLE, ZSTD],
    [BIG, GZIP, CRC32C],
    [transpose(1, 0), BIG, BLOSC],
    [transpose(1, 0), sharding((3, 2), LITTLE, ZSTD)],
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("data_type", "fill_value"), [("float32", -1.5), ("uint16", 513), ("complex64", [1, 2])])
def test_a_chunk_of_a_fill_value_is_encoded_as_any_other(chain: Any, data_type: str, fill_value: Any) -> None:
    document = array((8, 6), (4, 6), *chain, data_type=data_type, fill_value=fill_value, dimension_names=NAMES)
    described = describe(parse_array(document))
    values = fill_values(described)
    codec = ChunkCodec.parse(data_type, described.grid.chunk_shape, described.codecs)
    count = math.prod(described.grid.chunk_shape)
    pattern, nbytes = values.codec.chunk(values.stored)
    assert pattern * (nbytes // len(pattern)) == codec.encode(values.stored * count)


def test_chunks_that_cannot_be_encoded_are_told_why() -> None:
    delta = extension("numcodecs.delta", dtype="<f4")
    document = array((8, 6), (4, 6), delta, LITTLE, data_type="float32", dimension_names=NAMES)
    with pytest.raises(NotShownError, match="delta"):
        fill_values(describe(parse_array(document)))
    same = {**document, "fill_value": -1, "attributes": {"_FillValue": base64_of(-1)}}
    assert fill_values(describe(parse_array(same))).codec is None, "and where none is made, it does not matter"


@pytest.mark.parametrize(("fill_value", "missing"), [("x" * 1000, "y"), ("", "y" * 1000), ("x" * 1000, None)])
def test_a_chunk_of_texts_that_would_be_too_large_to_make_is_told_why(fill_value: str, missing: str | None) -> None:
    def described(nchunk: int) -> UnshardedArray:
        members = {"fill_value": fill_value, "attributes": {} if missing is None else {"_FillValue": missing}}
        codecs = [{"name": "vlen-utf8"}, GZIP]
        return describe(
            parse_array(array((nchunk,), (nchunk,), *codecs, data_type="string", dimension_names=["x"], **members))
        )

    assert fill_values(described(1000)).codec is not None
    with pytest.raises(NotShownError, match="67108864 elements, are not encoded here"):
        fill_values(described(2**26))
