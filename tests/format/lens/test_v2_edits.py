"""Zarr v2 documents that a program wrote: what they change of the Zarr v3 documents that they stand for."""

import base64
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, NotUnshardable, RefusedError
from shardfs.format.document import canonical, encode_json
from shardfs.format.dtype import fill_element, parse_v2_dtype
from shardfs.format.lens.v2 import (
    V2,
    array_documents,
    check_document,
    edit_array,
    edit_group,
    new_array,
    parse_consolidated,
)
from shardfs.format.metadata import GroupMetadata, parse_array
from tests.support.corpus import BIG, BLOSC, CRC32C, GZIP, LITTLE, ZSTD, array, extension, transpose
from tests.support.json_values import json_values, places, replaced

ZARRAY: dict[str, Any] = {
    "chunks": [4, 6],
    "compressor": {"id": "gzip", "level": 5},
    "dimension_separator": ".",
    "dtype": "<u2",
    "fill_value": 3,
    "filters": None,
    "order": "C",
    "shape": [7, 11],
    "zarr_format": 2,
}
SHOWN = array((7, 11), (4, 6), LITTLE, GZIP, data_type="uint16", fill_value=3)
NAMED = {"dimension_names": ["y", "x"]}
HALF_NAMED = {"dimension_names": [None, "x"]}
DIMENSIONS = "_ARRAY_DIMENSIONS"


def text(document: Any) -> bytes:
    return json.dumps(document).encode()


def edited(shown: dict[str, Any], name: str, written: Any) -> dict[str, Any]:
    return dict(edit_array(parse_array(shown), name, None if written is None else text(written), ".").document)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"filters": []},
        {"fill_value": 3.0},
        {"fill_value": None},
        {"dimension_separator": None},
        {"filters": [{"id": "gzip", "level": 5}], "compressor": None},
        {"unknown": 1},
    ],
)
def test_other_spellings_of_what_is_shown_change_nothing(members: dict[str, Any]) -> None:
    written = {**ZARRAY, **members}
    if written["dimension_separator"] is None:
        del written["dimension_separator"]
    assert edited(SHOWN, ".zarray", written) == SHOWN


@pytest.mark.parametrize(
    ("shown", "codec", "written"),
    [
        (ZSTD, "compressor", {"id": "zstd", "level": 3, "checksum": False}),
        (BLOSC, "compressor", {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "typesize": None}),
        (CRC32C, "compressor", {"id": "crc32c"}),
        (extension("numcodecs.zlib"), "compressor", {"id": "zlib", "level": 1}),
        (extension("numcodecs.lzma", preset=1), "compressor", {"id": "lzma", "preset": 1, "check": -1, "format": 1}),
        (extension("numcodecs.crc32"), "compressor", {"id": "crc32", "location": "start"}),
    ],
)
def test_members_of_codecs_that_libraries_add_or_drop_change_nothing(shown: Any, codec: str, written: Any) -> None:
    stored = {**SHOWN, "codecs": [LITTLE, shown]}
    assert edited(stored, ".zarray", {**ZARRAY, codec: written}) == stored


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"shape": [7]}, "chunks [4] instead of [4,6]"),
        ({"chunks": [4, 5]}, "chunks"),
        ({"dtype": ">u2"}, 'dtype ">u2" instead of "<u2"'),
        ({"order": "F"}, 'order "F" instead of "C"'),
        ({"dimension_separator": "/"}, "write with dimension_separator='.', or mount with --dimension-separator / "),
        ({"compressor": None}, 'compressor [] instead of [{"id":"gzip","level":5}]'),
        ({"compressor": {"id": "zlib", "level": 5}}, '"zlib"'),
        ({"compressor": {"id": "gzip", "level": 6}}, '"level":6'),
        ({"filters": [{"id": "delta", "dtype": "<u2"}]}, '"delta"'),
    ],
)
def test_what_would_change_the_meaning_of_chunks_is_refused(members: dict[str, Any], reason: str) -> None:
    written = {**ZARRAY, **members}
    if "shape" in members:
        written["chunks"] = [4]
    with pytest.raises(RefusedError) as error:
        edited(SHOWN, ".zarray", written)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "members",
    [
        *({"fill_value": value} for value in (-1, 65536, 0.5, "0x3", "three", [3], {})),
        {"shape": [-1, 2]},
        {"zarr_format": 3},
        {"order": "A"},
        {"dtype": "no type"},
        {"dtype": []},
        {"dtype": [["a"]]},
        {"compressor": "gzip"},
        {"filters": "gzip"},
        {"filters": [{}]},
        {"chunks": [4]},
        {"dimension_separator": "x"},
    ],
)
def test_a_document_that_is_none_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(MetadataError):
        edited(SHOWN, ".zarray", {**ZARRAY, **members})


@pytest.mark.parametrize(
    ("data_type", "stored", "written", "expected"),
    [
        ("uint16", 3, 4, 4),
        ("uint64", 0, 2**64 - 1, 2**64 - 1),
        ("bool", False, 1, True),
        ("float32", 0.1, 0.10000000149011612, 0.1),
        ("float32", "0x7fc00000", "NaN", "0x7fc00000"),
        ("float64", 0.0, "NaN", "NaN"),
        ("float64", "NaN", float("nan"), "NaN"),
        ("float64", 0, 1, 1.0),
        ("complex64", [0, 0], [1, "Infinity"], [1.0, "Infinity"]),
        ("complex64", [0, "Infinity"], ["NaN", "Infinity"], [0, "Infinity"]),
        ("complex64", [0, 0], 2, [2.0, 0.0]),
        (extension("numpy.datetime64", unit="s", scale_factor=1), "NaT", -(2**63), "NaT"),
        (extension("numpy.datetime64", unit="s", scale_factor=1), 0, "NaT", -(2**63)),
        (extension("fixed_length_utf32", length_bytes=8), "", "ab", "ab"),
        (extension("fixed_length_utf32", length_bytes=8), "", 0, "0"),
        (extension("null_terminated_bytes", length_bytes=3), "YQ==", "YQAA", "YQ=="),
        (extension("raw_bytes", length_bytes=2), "AAE=", "AQA=", "AQA="),
        ("r16", [0, 1], "AAE=", [0, 1]),
        ("r16", [0, 1], "AQA=", [1, 0]),
    ],
)
def test_a_fill_value_changes_if_it_means_another_element(
    data_type: Any, stored: Any, written: Any, expected: Any
) -> None:
    shown = {**SHOWN, "data_type": data_type, "fill_value": stored}
    zarray = array_documents(parse_array(shown), ".")[".zarray"]
    assert json.dumps(edited(shown, ".zarray", {**zarray, "fill_value": written})["fill_value"]) == json.dumps(expected)


@pytest.mark.parametrize(
    ("shown", "written", "expected"),
    [
        ({}, {"a": 1}, {"attributes": {"a": 1}}),
        ({}, {DIMENSIONS: ["p", "q"]}, {"dimension_names": ["p", "q"]}),
        ({}, {DIMENSIONS: ["p"]}, {"attributes": {DIMENSIONS: ["p"]}}),
        ({}, {DIMENSIONS: ["p", None]}, {"attributes": {DIMENSIONS: ["p", None]}}),
        ({}, {DIMENSIONS: "pq"}, {"attributes": {DIMENSIONS: "pq"}}),
        ({"attributes": {"a": 1}}, None, {"attributes": {}}),
        ({"attributes": {"a": 1}, **NAMED}, None, {"attributes": {}}),
        (NAMED, {}, {}),
        (NAMED, {"a": 1}, {"attributes": {"a": 1}}),
        (NAMED, {"a": 1, DIMENSIONS: ["y", "x"]}, {"attributes": {"a": 1}, **NAMED}),
        (NAMED, {DIMENSIONS: ["y"]}, {"attributes": {DIMENSIONS: ["y"]}}),
        (HALF_NAMED, {"a": 1}, {"attributes": {"a": 1}, **HALF_NAMED}),
        (HALF_NAMED, {DIMENSIONS: ["p", "q"]}, {"dimension_names": ["p", "q"]}),
        (
            {"attributes": {DIMENSIONS: ["p", "q"]}},
            {DIMENSIONS: ["p", "q"], "a": 1},
            {"attributes": {DIMENSIONS: ["p", "q"], "a": 1}},
        ),
        ({"attributes": {DIMENSIONS: ["p", "q"]}}, {DIMENSIONS: ["y", "x"]}, {"attributes": {}, **NAMED}),
        (
            {"attributes": {DIMENSIONS: 1}, **NAMED},
            {DIMENSIONS: ["y", "x"], "a": 1},
            {"attributes": {DIMENSIONS: 1, "a": 1}, **NAMED},
        ),
        ({"attributes": {"a": 1}}, {"a": True}, {"attributes": {"a": True}}),
    ],
)
def test_attributes_change_with_the_names_of_dimensions(
    shown: dict[str, Any], written: Any, expected: dict[str, Any]
) -> None:
    base = {member: value for member, value in SHOWN.items() if member != "attributes"}
    assert canonical(edited({**base, **shown}, ".zattrs", written)) == canonical({**base, **expected})


def test_a_group_changes_its_attributes_and_loses_consolidated_metadata() -> None:
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {}}
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}, "consolidated_metadata": consolidated}
    group = GroupMetadata(document)
    written = {DIMENSIONS: ["x"]}
    assert edit_group(group, ".zattrs", text(written)).document == {**document, "attributes": written}
    assert edit_group(group, ".zattrs", None).document == {**document, "attributes": {}}
    assert edit_group(group, ".zgroup", b'{"zarr_format": 2}').document == document
    del document["consolidated_metadata"]
    assert edit_group(group, ".zmetadata", None).document == document
    with pytest.raises(MetadataError):
        edit_group(group, ".zgroup", b'{"zarr_format": 3}')


codecs = st.sampled_from(
    [[LITTLE], [BIG, ZSTD], [transpose(1, 0), LITTLE, BLOSC], [LITTLE, GZIP, CRC32C], [transpose(0, 1), BIG]]
)
names = st.none() | st.lists(st.none() | st.text(max_size=2), min_size=2, max_size=2)
attributes = st.none() | st.dictionaries(st.text(max_size=2) | st.just(DIMENSIONS), json_values | names, max_size=3)
typed_fill_values = st.one_of(
    st.tuples(st.just("int64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False) .map(
        lambda value: value if abs(value) < float("inf") else "Infinity" if value > 0 else "-Infinity"
    )),
    st.tuples(st.just("float32"), st.sampled_from(["NaN", "0x7fc00000", "0x00000001", "-Infinity", 1, 0.1, -0.0])),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("r16"), st.lists(st.integers(0, 255), min_size=2, max_size=2)),
    st.tuples(st.just(extension("fixed_length_utf32", length_bytes=8)), st.sampled_from(["", "a", "\ud800", "é€"])),
    st.tuples(
        st.just("complex128"), st.tuples(*[st.sampled_from(["NaN", "Infinity", -0.0, 1.5, 2**53 + 1])] * 2).map(list)
    ),
)  # fmt: skip


@pytest.mark.slow
@given(codecs, names, attributes, typed_fill_values, st.sampled_from("./"))
@settings(max_examples=133)
def test_writing_what_is_shown_changes_nothing(
    codecs: Any, names: Any, attributes: Any, typed_fill_value: tuple[Any, Any], separator: str
) -> None:
    data_type, fill_value = typed_fill_value
    members = {"dimension_names": names, **({} if attributes is None else {"attributes": attributes})}
    document = array((7, 11), (4, 6), *codecs, data_type=data_type, fill_value=fill_value, **members)
    node = parse_array(document)
    for name, shown in array_documents(node, separator).items():
        assert canonical(edit_array(node, name, text(shown), separator).document) == canonical(document)
    group = GroupMetadata({"zarr_format": 3, "node_type": "group", "attributes": attributes or {}})
    for name, shown in V2(separator).documents(group).items():
        assert canonical(edit_group(group, name, text(shown)).document) == canonical(group.document)


def test_consolidated_metadata_is_read_by_path_and_name() -> None:
    metadata = {
        ".zgroup": {"zarr_format": 2},
        ".zattrs": {"a": 1},
        "a/b/.zarray": ZARRAY,
        "a/b/.zattrs": {},
        "a/.zgroup": {"zarr_format": 2},
    }
    written = text({"zarr_consolidated_format": 1, "metadata": metadata})
    assert parse_consolidated(written) == {
        "": {".zgroup": {"zarr_format": 2}, ".zattrs": {"a": 1}},
        "a/b": {".zarray": ZARRAY, ".zattrs": {}},
        "a": {".zgroup": {"zarr_format": 2}},
    }
    check_document(".zmetadata", written)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"metadata": {}},
        {"zarr_consolidated_format": True, "metadata": {}},
        {"zarr_consolidated_format": 2, "metadata": {}},
        {"zarr_consolidated_format": 1},
        *(
            {"zarr_consolidated_format": 1, "metadata": {key: {}}}
            for key in ("", "a", ".zother", "/.zattrs", "a//.zattrs", "../.zattrs", "a/./.zattrs", "/a/.zattrs")
        ),
        {"zarr_consolidated_format": 1, "metadata": {"x" * 5000 + "/.zattrs": {}}},
        {"zarr_consolidated_format": 1, "metadata": {".zmetadata": {}}},
        {"zarr_consolidated_format": 1, "metadata": {".zattrs": []}},
        {"zarr_consolidated_format": 1, "metadata": {"a/.zarray": {}}},
    ],
)
def test_what_is_no_consolidated_metadata_is_refused(document: Any) -> None:
    with pytest.raises(MetadataError):
        check_document(".zmetadata", text(document))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=166)
def test_whatever_is_written_is_taken_or_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([".zarray", ".zarray", ".zattrs", ".zgroup", ".zmetadata"]))
    codec = data.draw(
        st.sampled_from(
            [
                {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
                {"id": "lzma", "filters": [{"id": 3, "dist": 1}], "preset": 1},
                {"id": "gzip", "level": 5},
            ]
        )
    )
    zarray = {**ZARRAY, "compressor": codec, "filters": [{"id": "delta", "dtype": "<u2"}]}
    written: Any = {
        ".zarray": data.draw(st.sampled_from([zarray, {**zarray, "dtype": [["a", "<i2"]], "filters": None}])),
        ".zattrs": {"a": 1, DIMENSIONS: ["y", "x"]},
        ".zgroup": {"zarr_format": 2},
        ".zmetadata": {"zarr_consolidated_format": 1, "metadata": {".zattrs": {}, "a/.zarray": zarray}},
    }[name]
    for _ in range(data.draw(st.integers(1, 2))):
        written = replaced(written, data.draw(st.sampled_from(places(written))), data.draw(json_values))
    for take in (
        lambda: check_document(name, text(written)),
        lambda: edit_array(parse_array({**SHOWN, **NAMED}), name, text(written), "."),
        lambda: edit_group(GroupMetadata({"zarr_format": 3, "node_type": "group"}), name, text(written)),
        lambda: new_array(text(written if name == ".zarray" else zarray), text(written), "."),
        lambda: array_documents(new_array(text(written), None, "."), "."),
    ):
        with suppress(MetadataError, RefusedError, NotUnshardable):
            take()


STRUCTS = [
    ([["a", ">i4"], ["b", "|S3"]], extension("struct", fields=[
        {"name": "a", "data_type": "int32"},
        {"name": "b", "data_type": extension("null_terminated_bytes", length_bytes=3)},
    ])),
    ([["a", ">c8"], ["in", [["t", ">M8[s]"], ["u", ">U2"]]]], extension("struct", fields=[
        {"name": "a", "data_type": "complex64"},
        {"name": "in", "data_type": extension("struct", fields=[
            {"name": "t", "data_type": extension("numpy.datetime64", unit="s", scale_factor=1)},
            {"name": "u", "data_type": extension("fixed_length_utf32", length_bytes=8)},
        ])},
    ])),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "data_type"), STRUCTS, ids=["flat", "nested"])
def test_the_fill_value_of_a_struct_has_the_byte_order_of_its_dtype(dtype: Any, data_type: Any) -> None:
    """As zarr-python 2 reads it: the base64 is an element of the dtype."""
    big = parse_v2_dtype(dtype)
    first, second = (np.arange(start, start + big.itemsize, dtype=np.uint8).tobytes() for start in (1, 65))
    little = np.frombuffer(first, big).astype(big.newbyteorder("<")).tobytes()
    fill = base64.b64encode(little).decode()
    stored = parse_array(array((7, 11), (4, 6), extension("bytes", endian="big"), data_type=data_type, fill_value=fill))
    zarray = array_documents(stored, ".")[".zarray"]
    assert zarray["dtype"] == dtype
    assert base64.b64decode(zarray["fill_value"]) == first
    assert edit_array(stored, ".zarray", encode_json(zarray), ".").document == stored.document
    written = {**zarray, "fill_value": base64.b64encode(second).decode()}
    edited = edit_array(stored, ".zarray", encode_json(written), ".")
    assert array_documents(edited, ".")[".zarray"] == written
    found = np.frombuffer(fill_element(data_type, edited.document["fill_value"]), big.newbyteorder("<"))
    assert found.tolist() == np.frombuffer(second, big).tolist()
