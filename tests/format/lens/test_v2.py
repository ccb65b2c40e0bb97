"""Zarr v2 documents: what shows of a Zarr v3 array and group, and why something does not."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, NotShownError
from shardfs.format.document import encode_json
from shardfs.format.lens.v2 import V2, array_documents
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_array, parse_node
from tests.support.corpus import BIG, BLOSC, CRC32C, GZIP, LITTLE, array, extension, rectilinear, transpose
from tests.support.json_values import json_values, places, replaced

PLAIN = array((7, 11), (4, 6), LITTLE)
ZARRAY = {
    "chunks": [4, 6],
    "compressor": None,
    "dimension_separator": ".",
    "dtype": "<u2",
    "fill_value": 0,
    "filters": None,
    "order": "C",
    "shape": [7, 11],
    "zarr_format": 2,
}
STRUCT = extension("structured", fields=[["a", "int16"], ["b", extension("raw_bytes", length_bytes=2)]])


def group(**members: Any) -> GroupMetadata:
    return GroupMetadata({"zarr_format": 3, "node_type": "group", **members})


def shown(*codecs: Any, ndim: int = 2, **members: Any) -> dict[str, Any]:
    document = array((7, 11, 5)[:ndim], (4, 6, 2)[:ndim], *codecs, **{"data_type": "uint16", **members})
    return array_documents(parse_array(document), ".")[".zarray"]


@pytest.mark.parametrize(
    ("codecs", "members"),
    [
        ([{"name": "endian", "configuration": {"endian": "big"}}], {"dtype": ">u2"}),
        ([{"name": "bytes"}], {}),
        ([LITTLE, "gzip"], {"compressor": {"id": "gzip", "level": 5}}),
        ([LITTLE, extension("gzip", level=10)], {"compressor": {"id": "gzip", "level": 9}}),
        ([LITTLE, extension("gzip", level=-1)], {"compressor": {"id": "gzip", "level": 6}}),
        ([LITTLE, extension("zstd", level=23)], {"compressor": {"id": "zstd", "level": 22}}),
        ([LITTLE, extension("gzip", level=10**400)], {"compressor": {"id": "gzip", "level": 9}}),
        ([LITTLE, extension("zstd", level=-(10**400))], {"compressor": {"id": "zstd", "level": -131072}}),
        (
            [LITTLE, extension("blosc", cname="lz4", clevel=10**400, shuffle="shuffle", blocksize=-(10**400))],
            {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": 1, "blocksize": 0}},
        ),
        ([LITTLE, extension("zstd", level=-5, checksum=True)], {"compressor": {"id": "zstd", "level": -5}}),
        ([LITTLE, BLOSC], {"compressor": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 1, "blocksize": 0}}),
        (
            [LITTLE, extension("blosc", cname="lz4", clevel=9, shuffle="bitshuffle", blocksize=64)],
            {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": 2, "blocksize": 64}},
        ),
        ([LITTLE, CRC32C], {"compressor": {"id": "crc32c", "location": "end"}}),
        ([transpose(0, 1), LITTLE], {}),
        ([transpose(1, 0), LITTLE], {"order": "F"}),
        ([LITTLE, extension("numcodecs.shuffle")], {"compressor": {"id": "shuffle", "elementsize": 2}}),
        ([extension("numcodecs.pcodec", level=8)], {"compressor": {"id": "pcodec", "level": 8}}),
        ([{"name": "example.hint", "must_understand": False}, LITTLE], {}),
    ],
)
def test_codecs_are_filters_compressor_order_and_byte_order(codecs: list[Any], members: dict[str, Any]) -> None:
    assert shown(*codecs) == {**ZARRAY, **members}


@pytest.mark.parametrize(
    ("chunk_shape", "order", "letter"),
    [
        ([4, 1, 2], [1, 0, 2], "C"),
        ([4, 1, 2], [2, 0, 1], "F"),
        ([1, 1, 2], [2, 1, 0], "C"),
        ([4, 6, 2], [2, 1, 0], "F"),
    ],
)
def test_axes_of_length_1_may_move(chunk_shape: list[int], order: list[int], letter: str) -> None:
    assert shown(transpose(*order), LITTLE, ndim=3, chunk_grid=extension("regular", chunk_shape=chunk_shape))[
        "order"
    ] == letter  # fmt: skip


@pytest.mark.parametrize(
    ("codecs", "members", "reason"),
    [
        ([transpose(0, 2, 1), LITTLE], {}, "transpose to [0, 2, 1]; a mount with --decode shows"),
        ([LITTLE, extension("example.opaque")], {}, "'example.opaque'"),
        ([extension("example.opaque"), LITTLE], {}, "'example.opaque'"),
        ([extension("zfp")], {}, "'zfp'"),
        ([extension("numcodecs.astype", encode_dtype="<i4"), BIG], {"data_type": "uint8"}, "big-endian"),
        ([transpose(2, 1, 0), extension("numcodecs.zfpy", mode=4)], {}, "numcodecs.zfpy of transposed"),
        ([extension("packbits")], {"data_type": "bool", "fill_value": False}, "'packbits'"),
        ([LITTLE, extension("numcodecs.pickle")], {}, "'numcodecs.pickle'"),
        ([LITTLE, extension("numcodecs.zlib", id="pickle")], {}, "has the id 'pickle'"),
        ([LITTLE, extension("gzip", level=1, extra=1)], {}, "extra"),
        ([LITTLE, extension("blosc", cname="new")], {}, "cname of blosc"),
        ([extension("numcodecs.delta", dtype="<u2"), BIG], {}, "big-endian"),
        ([extension("numcodecs.delta", dtype=">u2"), LITTLE], {}, "big-endian"),
        ([extension("numcodecs.delta", dtype="<u2"), transpose(2, 1, 0), LITTLE], {}, "behind the codec delta"),
        ([LITTLE], {"data_type": "bfloat16"}, "bfloat16"),
        ([LITTLE], {"data_type": "int4"}, "int4"),
        ([LITTLE], {"data_type": "example.unknown"}, "example.unknown"),
        ([BIG], {"data_type": STRUCT, "fill_value": "AAAAAA=="}, "big-endian"),
        ([LITTLE], {"data_type": "float32", "fill_value": "0x7fc00001"}, "NaN 0x7fc00001"),
        ([LITTLE], {"data_type": "complex64", "fill_value": [0, "0x7fc00001"]}, "NaN 0x7fc00001"),
        ([LITTLE], {"data_type": "float32", "fill_value": "none"}, "fill value"),
        ([LITTLE], {"data_type": "string", "fill_value": ""}, "codec bytes of string"),
        ([extension("vlen-utf8")], {"data_type": "uint16"}, "codec vlen-utf8"),
        ([extension("vlen-bytes")], {"data_type": "variable_length_bytes", "fill_value": "AAAA"}, "fill value"),
        ([LITTLE], {"chunk_grid": extension("rectilinear", kind="inline", chunk_shapes=[4, 6, 2])}, "rectilinear"),
    ],
)
def test_an_array_without_a_v2_form_is_told_why(codecs: list[Any], members: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotShownError) as error:
        shown(*codecs, ndim=3, **members)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("members", "attributes"),
    [
        ({"attributes": {"a": 2**70}}, {"a": 2**70}),
        ({"dimension_names": ["y", "x"]}, {"_ARRAY_DIMENSIONS": ["y", "x"]}),
        ({"dimension_names": ["", ""], "attributes": {"a": 1}}, {"a": 1, "_ARRAY_DIMENSIONS": ["", ""]}),
        ({"dimension_names": [None, "x"], "attributes": {"a": 1}}, {"a": 1}),
        ({"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}, {"_ARRAY_DIMENSIONS": ["y", "x"]}),
        (
            {"attributes": {"_ARRAY_DIMENSIONS": ["p", "q"]}, "dimension_names": ["y", "x"]},
            {"_ARRAY_DIMENSIONS": ["y", "x"]},
        ),
    ],
)
def test_dimension_names_are_an_attribute_if_all_have_one(members: dict[str, Any], attributes: dict[str, Any]) -> None:
    assert array_documents(parse_array({**PLAIN, **members}), ".")[".zattrs"] == attributes


def test_consolidated_metadata_has_the_documents_of_every_copy_that_has_a_v2_form() -> None:
    copy = {**PLAIN, "data_type": "uint16", "fill_value": 0, "attributes": {"a": 1}}
    turned = {**copy, "codecs": [{"name": "example.opaque"}, LITTLE]}
    inner = {"kind": "inline", "must_understand": False, "metadata": {"deep": copy}}
    copies = {
        "one": copy,
        "inner": {"zarr_format": 3, "node_type": "group", "consolidated_metadata": inner},
        "inner/deep": copy,
        "unshardable": {**copy, "chunk_grid": rectilinear([4, 3], 6)},
        "turned": turned,
        "broken": {**copy, "shape": 7},
        "nothing": None,
        "../up": copy,
        "/root": copy,
        "a//b": copy,
        "": copy,
        "x" * 5000: copy,
        "nul\0": copy,
    }
    documents = V2(fills_missing=False).documents(
        group(attributes={"g": 1}, consolidated_metadata={"kind": "inline", "metadata": copies})
    )
    zarray = ZARRAY
    assert documents[".zmetadata"] == {
        "zarr_consolidated_format": 1,
        "metadata": {
            ".zgroup": {"zarr_format": 2},
            ".zattrs": {"g": 1},
            "one/.zarray": zarray,
            "one/.zattrs": {"a": 1},
            "inner/.zgroup": {"zarr_format": 2},
            "inner/deep/.zarray": zarray,
            "inner/deep/.zattrs": {"a": 1},
        },
    }


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100)
def test_every_document_shows_or_has_a_reason_not_to(data: st.DataObject) -> None:
    document: Any = array((7, 11), (4, 6), transpose(1, 0), LITTLE, BLOSC, GZIP, attributes={"a": 1})
    document = {**document, "dimension_names": ["y", "x"]}
    for _ in range(data.draw(st.integers(1, 3))):
        document = replaced(document, data.draw(st.sampled_from(places(document))), data.draw(json_values))
    try:
        node = parse_node(document)
    except MetadataError:
        return
    if isinstance(node, ArrayMetadata) and not node.is_sharded:
        try:
            documents = array_documents(node, "/")
        except NotShownError:
            return
        assert all(json.loads(encode_json(made)) is not None for made in documents.values())


def test_an_integer_of_any_size_is_judged_wherever_it_is() -> None:
    document: Any = array((7, 11), (4, 6), transpose(1, 0), LITTLE, BLOSC, extension("zstd", level=1), GZIP, CRC32C)
    for place in places(document):
        for value in (10**400, -(10**400), [10**400]):
            with suppress(MetadataError, NotShownError):
                array_documents(parse_array(replaced(document, place, value)), "/")
