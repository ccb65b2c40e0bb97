"""What a dataset becomes in Zarr, from what is said of it: shapes of chunks, where they are, documents, refusals."""

import json
import math
from typing import Any

import numpy as np
import pytest

from shardfs.errors import CorruptionError, MetadataError
from shardfs.formats.hdf5.arrays import Hdf5Array, parse_array

CHUNKED: dict[str, Any] = {
    "kind": "dataset",
    "type": "<f4",
    "is_exact": True,
    "inner": [],
    "shape": [10, 7],
    "extent": [10, 7],
    "layout": "chunked",
    "chunks": [4, 3],
    "has_lookup": True,
    "filters": [],
    "fill": None,
}
CONTIGUOUS = {**CHUNKED, "layout": "contiguous", "offset": 4096}


def contiguous(shape: list[int], **members: Any) -> Hdf5Array:
    return parse_array({**CONTIGUOUS, "shape": shape, "extent": shape, **members})


def document(**members: Any) -> Any:
    array = parse_array({**CHUNKED, **members})
    return json.loads(array.document({}, (None,) * len(array.extent)))


@pytest.mark.parametrize(
    "shape", [[3], [10, 7], [1237, 1023], [2, 3, 4096, 4096], [5, 2**24], [1, 1, 2**22 + 1], [2**21, 3], [0, 5], []]
)
def test_contiguous_elements_are_cut_into_chunks_in_one_piece_each(shape: list[int]) -> None:
    array = contiguous(shape)
    assert math.prod(array.chunk_shape) * 4 <= 4 * 2**20
    coordinates = list(np.ndindex(*array.grid))
    end = 4096
    for coords in coordinates[:500]:
        row = array.row(coords)
        assert row.offset == end, "chunks are one behind the other"
        end += row.nbytes
        assert row.nbytes + row.npadding == array.chunk_nbytes
    if len(coordinates) <= 500:
        assert end == 4096 + 4 * math.prod(shape)


def test_rows_divide_an_axis_where_they_can() -> None:
    assert contiguous([4096, 1024]).chunk_shape == (1024, 1024)
    assert contiguous([3 * 700, 1024]).chunk_shape == (700, 1024)
    assert contiguous([2099, 1024]).chunk_shape == (1024, 1024), "a prime"


def test_fill_values_are_those_of_the_file_to_the_bit() -> None:
    for dtype, value in (("<f4", 1e20), (">f8", -np.inf), ("<i8", -(2**63)), ("<u8", 2**64 - 1), ("|b1", True)):
        element = np.array(value, np.dtype(dtype).newbyteorder("<")).tobytes()
        found = document(type=dtype, fill=element.hex())["fill_value"]
        assert found == ("-Infinity" if value == -np.inf else np.array(value, dtype).item())
    assert document(fill="0000c07f")["fill_value"] == "NaN"
    assert document(fill="0100c07f")["fill_value"] == "0x7fc00001"
    assert document(fill="0000c0ff")["fill_value"] == "0xffc00000"


@pytest.mark.parametrize(
    ("code", "name"),
    [(4, "szip"), (5, "nbit"), (6, "scale-offset"), (32004, "lz4"), (32008, "bitshuffle"), (32026, "blosc2")],
)
def test_filters_that_zarr_has_no_codec_for_are_refused_by_name(code: int, name: str) -> None:
    with pytest.raises(MetadataError, match=f"no codec for the filter {name} \\({code}\\)"):
        parse_array({**CHUNKED, "filters": [[code, [1, 2], "whatever"]]})


def test_an_unknown_filter_is_refused_by_the_name_that_the_file_gives_it() -> None:
    with pytest.raises(MetadataError, match="the filter 'my filter' \\(40000\\)"):
        parse_array({**CHUNKED, "filters": [[40000, [], "my filter"]]})


@pytest.mark.parametrize("members", [{"type": "string"}, {"is_exact": False}, {"filters": [[32000, [], "lzf"]]}])
def test_what_h5py_would_have_to_read_by_a_plugin_is_refused(members: dict[str, Any]) -> None:
    filters = [*members.get("filters", []), [32015, [3], "zstd"]]
    with pytest.raises(MetadataError, match="h5py has no filter zstd"):
        parse_array({**CHUNKED, **members, "filters": filters})


HOSTILE: dict[str, dict[str, Any]] = {
    "a negative length": {"shape": [-1, 7]},
    "a length that is no number": {"shape": ["7", 7]},
    "a length of 64 bits": {"shape": [2**64, 7], "extent": [2**64, 7]},
    "more elements than 63 bits": {"shape": [2**62, 2**62], "extent": [2**62, 2**62]},
    "chunks of nothing": {"chunks": [0, 3]},
    "chunks of other axes": {"chunks": [3]},
    "an extent of other axes": {"extent": [3]},
    "100 axes": {"shape": [1] * 100, "extent": [1] * 100, "chunks": [1] * 100},
    "elements of a gigabyte": {"type": "V1000000000"},
    "a type that is none": {"type": "evil"},
    "an object": {"type": "|O"},
    "no type": {"type": None},
    "made chunks of 4 TB": {"chunks": [2**20, 2**20], "is_exact": False},
    "made text of 4 TB": {"chunks": [2**20, 2**20], "type": "string"},
    "filters that are none": {"filters": [["gzip"]]},
    "values of filters that are none": {"filters": [[1, ["9"], "deflate"]]},
    "1000 filters": {"filters": [[1, [9], "deflate"]] * 1000},
    "a fill value of another size": {"fill": "00"},
    "a fill value that is none": {"fill": "xx"},
    "an unknown layout with filters": {"layout": "other", "filters": [[1, [9], "deflate"]]},
    "an address that is none": {"layout": "contiguous", "offset": -5},
    "an address of text": {"layout": "contiguous", "offset": "5"},
    "an axis within elements that is none": {"inner": [0]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_hostile_file_says_is_refused_and_allocates_nothing(name: str) -> None:
    with pytest.raises((MetadataError, CorruptionError)):
        parse_array({**CHUNKED, **HOSTILE[name]})


def test_missing_members_are_damage() -> None:
    for member in CHUNKED.keys() - {"kind", "has_lookup"}:
        with pytest.raises(CorruptionError):
            parse_array({name: value for name, value in CHUNKED.items() if name != member})


def test_text_of_other_lengths_than_it_says_is_refused() -> None:
    array = parse_array({**CHUNKED, "type": "string", "is_exact": False, "chunks": [2, 2]})
    sound = np.array([1, 0, 2, 0], "<u4").tobytes() + b"abc"
    assert array.encoded_text(sound, (2, 2))[:4] == b"\x04\0\0\0"
    for data in (sound + b"x", sound[:-1], sound[:8], np.full(4, 2**32 - 1, "<u4").tobytes(), sound[:16] + b"a\xffb"):
        with pytest.raises(ValueError):
            array.encoded_text(data, (2, 2))
