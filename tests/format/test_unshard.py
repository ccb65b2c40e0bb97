"""The unsharded document: a native reader takes it, finds the values in it, and nothing else of it has changed."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v3 import ArrayV3Metadata

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.metadata import ArrayMetadata, parse_document, parse_node
from shardfs.format.unshard import POSITION_BITS, UnshardedArray, count_positions, unshard
from tests.support.corpus import (
    BASE,
    BIG,
    CASES,
    CRC32C,
    GZIP,
    LITTLE,
    Case,
    array,
    edited,
    extension,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.encoder import chunk_key, named
from tests.support.parametrize import each_case, every_case

REPLACED = {"chunk_grid", "chunk_key_encoding", "codecs"}
UNKNOWN_TO_ZARR = {"opaque-codec", "zero-bytes", "opaque-serializer"}


def unsharded(document: dict[str, Any]) -> UnshardedArray:
    parsed = parse_document(json.dumps(document).encode())
    assert isinstance(parsed, ArrayMetadata)
    return unshard(parsed)


def reason(document: dict[str, Any]) -> str:
    with pytest.raises((MetadataError, NotUnshardable)) as caught:
        unsharded(document)
    return str(caught.value)


@every_case
def test_only_grid_keys_and_codecs_are_replaced(case: Case) -> None:
    shown = unsharded(case.document).document
    assert list(shown) == list(case.document)
    kept = case.document.keys() - REPLACED
    assert json.dumps([shown[key] for key in kept]) == json.dumps([case.document[key] for key in kept])


@every_case
def test_extensions_are_written_long_and_without_must_understand(case: Case) -> None:
    shown = unsharded(case.document).document
    assert shown["chunk_grid"]["name"] == "regular"
    for each in [shown["chunk_grid"], shown["chunk_key_encoding"], *shown["codecs"]]:
        assert set(each) <= {"name", "configuration"}
        assert isinstance(each["name"], str)
        assert each["name"] not in ("sharding_indexed", "endian", "example.hint")


@every_case
def test_keys_are_encoded_as_they_were(case: Case) -> None:
    shown = unsharded(case.document).document
    for coords in ((), (3,), (1, 20), (0, 1, 2)):
        assert chunk_key(shown, coords) == chunk_key(case.document, coords)


@each_case(case for case in CASES if case.name not in UNKNOWN_TO_ZARR)
def test_zarr_reads_the_values_from_the_inner_chunks(case: Case) -> None:
    encoded = case.encode()
    shown = unsharded(case.document).document
    files = {chunk_key(shown, coords): data for coords, data in encoded.inner.items()}
    new_buffer = default_buffer_prototype().buffer.from_bytes
    text = {"zarr.json": json.dumps(shown).encode()}
    store = zarr.storage.MemoryStore({key: new_buffer(data) for key, data in (files | text).items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = np.asarray(zarr.open_array(store, mode="r")[...])
    assert (values.shape, values.dtype) == (encoded.values.shape, encoded.values.dtype)
    if values.dtype.kind == "T":
        assert values.tolist() == encoded.values.tolist()
    else:
        assert values.tobytes() == encoded.values.tobytes()


@pytest.mark.parametrize("name", sorted(UNKNOWN_TO_ZARR))
def test_codecs_that_nobody_knows_are_passed_on(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    shown = unsharded(case.document).document
    stored = named(case.document["codecs"][0])[1]["codecs"]
    assert [named(codec) for codec in shown["codecs"]] == [named(codec) for codec in stored]
    with pytest.raises((ValueError, KeyError)):
        ArrayV3Metadata.from_dict(shown)


ZLIB = {"name": "numcodecs.zlib", "configuration": {}}


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [
        ([sharding((2, 3), "endian", "crc32c")], [{"name": "bytes"}, {"name": "crc32c"}]),
        ([sharding((2, 3), extension("endian", endian="big"))], [BIG]),
        ([transpose(1, 0), sharding((3, 2), GZIP | {"must_understand": True}, LITTLE)], None),
        ([transpose(1, 0), sharding((3, 2), LITTLE, CRC32C)], [transpose(1, 0), LITTLE, CRC32C]),
        ([transpose(1, 0), sharding((3, 2), transpose(1, 0), LITTLE)], [transpose(1, 0), transpose(1, 0), LITTLE]),
        ([transpose(1, 0), sharding((6, 4), transpose(1, 0), sharding((2, 3)))], [LITTLE]),
        ([sharding((2, 3), LITTLE, GZIP | {"must_understand": False})], [LITTLE, GZIP]),
        ([sharding((2, 3)), GZIP], [LITTLE]),
        # zarr-python refuses a codec of numcodecs that has no configuration
        ([sharding((2, 3), LITTLE, ZLIB)], [LITTLE, ZLIB]),
        ([transpose(1, 0), sharding((6, 4), sharding((3, 2), LITTLE, ZLIB))], [transpose(1, 0), LITTLE, ZLIB]),
    ],
)
def test_codecs_of_the_unsharded_array(codecs: list[Any], expected: list[Any] | None) -> None:
    document = array((8, 12), (4, 6), *codecs)
    if expected is None:
        assert "gzip" in reason(document)
    else:
        assert unsharded(document).document["codecs"] == expected


def test_the_inner_shape_is_shown_in_the_axes_of_the_array() -> None:
    nested = sharding((10, 4, 6), transpose(0, 2, 1), sharding((5, 3, 2)))
    shown = unsharded(array((5, 9, 13), (4, 6, 20), transpose(2, 0, 1), nested)).document
    assert shown["chunk_grid"] == extension("regular", chunk_shape=[2, 3, 5])
    shown = unsharded(array((10, 9), regular_bounded(4, 6), sharding((2, 3)))).document
    assert shown["chunk_grid"] == extension("regular", chunk_shape=[2, 3])


def test_an_array_that_is_not_sharded_says_so() -> None:
    assert "not sharded" in reason(array((4,), (2,), LITTLE))


@pytest.mark.parametrize("separator", ["/", "."])
def test_more_inner_chunks_than_inode_numbers_can_count_are_a_reason(separator: str) -> None:
    def line(length: int) -> dict[str, Any]:
        keys = extension("default", separator=separator)
        return array((length,), (2**20,), sharding((1,)), chunk_key_encoding=keys)

    most = 2**POSITION_BITS - 1
    assert count_positions((most,)) == 2**POSITION_BITS
    assert unsharded(line(most)).grid.nchunks == most
    assert "inode" in reason(line(most + 1))


def test_positions_count_chunks_and_directories() -> None:
    assert count_positions(()) == 1
    assert count_positions((5,)) == 6
    assert count_positions((2, 3, 4)) == 1 + 2 + 6 + 24
    assert count_positions((2, 0, 4)) == 3


@pytest.mark.parametrize(
    "document",
    [
        edited(("shape",), [10**4000, 10**4000]),
        array((10**4000,) * 8, (10**4000,) * 8, sharding((1,) * 8)),
        array((7,) * 8, (10**4000,) * 8, sharding((1,) * 8)),
        array((10**4000,), (10**4000 + 1,), sharding((2,))),
    ],
    ids=["inner chunks", "index entries and chunks", "index entries", "edges"],
)
def test_numbers_of_thousands_of_digits_are_a_reason(document: dict[str, Any]) -> None:
    nbytes = len(reason(document))
    assert nbytes < 1000


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("codecs",), [extension("\ud800" * 5), sharding((2, 3))]),
        (("codecs",), [sharding((2, 3)), extension("\udfff\n\x1b[31m" * 5)]),
        (("codecs",), [extension("x" * 100_000), sharding((2, 3))]),
        (("codecs",), [sharding((2, 3), **{"y" * 100_000: 1})]),
        (("codecs",), [sharding((2, 3), **{f"member {i}": 1 for i in range(1000)})]),
        (("codecs",), [sharding((2, 3), index_codecs=[extension("z" * 100_000)])]),
        (("chunk_grid",), extension("g" * 100_000)),
        (("chunk_grid",), extension("regular", chunk_shape=[4, 6], **{"\ud800": 1})),
        (("chunk_key_encoding",), extension("k" * 100_000)),
        (("chunk_key_encoding",), extension("default", separator="s" * 100_000)),
    ],
    ids=lambda value: ascii(value)[-12:],
)
def test_a_reason_is_a_short_line_of_text(place: tuple[Any, ...], value: Any) -> None:
    """It becomes an extended attribute, of at most 64 KiB, and a line of the log."""
    text = reason(edited(place, value, BASE))
    nbytes = len(text.encode(errors="replace"))
    assert nbytes < 1000
    assert text.isprintable()


@pytest.mark.parametrize(("depth", "is_shown"), [(16, True), (17, False)])
def test_shards_nest_up_to_16_deep(depth: int, is_shown: bool) -> None:
    codecs: list[Any] = [LITTLE]
    for level in range(depth):
        codecs = [sharding((2**level,), *codecs)]
    metadata = parse_node(array((2**depth,), (2**depth,), *codecs))
    assert isinstance(metadata, ArrayMetadata)
    if is_shown:
        assert len(unshard(metadata).grid.levels) == depth
    else:
        with pytest.raises(NotUnshardable):
            unshard(metadata)
