"""Headers and files of WKW: what they say, where blocks are, and what is refused."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, MetadataError
from shardfs.formats.wkw.array import NAMES, WkwGrid, WkwHeader, WkwIndex, find_layer, parse_array


def header(block: int = 1, file: int = 1, kind: int = 1, voxel: int = 1, nbytes: int = 1, begin: int = 0) -> bytes:
    return b"WKW" + bytes([1, file << 4 | block, kind, voxel, nbytes]) + struct.pack("<Q", begin)


def morton(position: tuple[int, ...]) -> int:
    return sum((position[axis] >> bit & 1) << 3 * bit + axis for bit in range(8) for axis in range(3))


@pytest.mark.slow
@given(st.integers(0, 3), st.integers(0, 3), st.data())
def test_each_block_is_where_its_morton_code_says(block: int, file: int, data: st.DataObject) -> None:
    parsed = WkwHeader.parse(header(block, file, voxel=2, nbytes=6))
    length = parsed.file_length
    grid = WkwGrid.of(parsed, (3, 2 * length, 3 * length, length))
    coords = tuple(data.draw(st.integers(0, n - 1)) for n in grid.grid_shape)
    place = grid.locate(coords)
    assert grid.coords(place) == coords
    assert NAMES.decode(NAMES.encode(place.shard), 4) == place.shard
    per_file = 1 << file
    assert place.shard == (0, *(index // per_file for index in coords[1:]))
    index = WkwIndex("little", (), (), parsed)
    size = 16 + parsed.nblocks * parsed.block_nbytes
    opened = index.decode(header(block, file, voxel=2, nbytes=6, begin=16), grid.index_shape(place.shard), size)
    number = morton(tuple(n % per_file for n in coords[1:]))
    assert opened.range(place.entries[0]) == (16 + number * parsed.block_nbytes, parsed.block_nbytes)


def test_ends_of_compressed_blocks_are_ranges() -> None:
    parsed, size = WkwHeader.parse(header(kind=2)), 16 + 8 * 8 + 100
    ends = [85, 90, 70, 70, 75, 2**64 - 1, 3, 180]
    encoded = header(kind=3, begin=80) + struct.pack("<8Q", *ends)
    index = WkwIndex("little", (), (), parsed).decode(encoded, (1, 2, 2, 2), size)
    expected = {0: (80, 5), 1: (85, 5), 2: None, 3: None, 4: (70, 5), 5: None, 6: None, 7: (3, 177)}
    for position in np.ndindex(2, 2, 2):
        entry, number = int(np.ravel_multi_index(position, (2, 2, 2))), morton(position)
        if expected[number] is None:
            with pytest.raises(CorruptionError, match="names bytes"):
                index.range(entry)
        else:
            assert index.range(entry) == expected[number]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"WKW\1", "no header"),
        (b"WKW\2" + header()[4:], "version 2"),
        (header(kind=4), "type 4"),
        (header(voxel=11), "type 11"),
        (header(voxel=2, nbytes=3), "no channels"),
        (header(nbytes=0), "no channels"),
        (header(file=8), "larger than"),
        (header(file=15, block=15), "larger than"),
        (header(file=7, block=15), "larger than"),
    ],
)
def test_headers_that_cannot_be_read_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(MetadataError, match=message):
        WkwHeader.parse(data)
    found = parse_array(data, None, [])
    assert found is not None
    assert found.chunks is None
    assert found.reason is not None


@pytest.mark.parametrize("begin", [0, 15, 30, 2**63, 2**64 - 1])
def test_blocks_begin_within_the_file_and_behind_its_index(begin: int) -> None:
    index = WkwIndex("little", (), (), WkwHeader.parse(header()))
    with pytest.raises(CorruptionError, match="begin at byte"):
        index.decode(header(begin=begin), (1, 2, 2, 2), 29)


@pytest.mark.parametrize("other", [header(block=2), header(kind=2), header(voxel=7), header(nbytes=2), b"text" * 4])
def test_a_file_that_is_not_as_the_array_is_damaged(other: bytes) -> None:
    index = WkwIndex("little", (), (), WkwHeader.parse(header()))
    with pytest.raises(CorruptionError, match=r"header\.wkw says|no header"):
        index.decode(other[:8] + struct.pack("<Q", 16), (1, 2, 2, 2), 100)


def test_other_names_are_no_files() -> None:
    for key in ("z0/y0/x0.wkw_tmp", "z00/y0/x0.wkw", "y0/z0/x0.wkw", "z-1/y0/x0.wkw", "z0/y0/x0", "z0/y0/x².wkw"):
        assert NAMES.decode(key, 4) is None
    assert NAMES.begins("z12", 4)
    assert NAMES.leads("z12/y3")
    assert not any(map(NAMES.leads, ("z", "zx", "z1/x1", "z1/y1/x1", "header.wkw", "z" + "1" * 30)))


def properties(box: Any, **members: Any) -> dict[str, Any]:
    described = {"name": "color", "boundingBox": box, **members}
    return {"scale": [1, 2, 3.5], "dataLayers": [{"name": "other"}, described]}


BOX = {"topLeft": [10, 20, 30], "width": 90, "height": 5, "depth": 1}


@pytest.mark.parametrize(
    ("magnification", "members", "shape"),
    [
        ("1", {}, (100, 25, 31)),
        ("4", {}, (25, 7, 8)),
        ("2-2-1", {}, (50, 13, 31)),
        ("2", {"mags": [{"mag": [2, 2, 1], "path": "./color/2"}]}, (50, 13, 31)),
        ("x", {"wkwResolutions": [{"resolution": 8, "path": "color/x"}]}, (13, 4, 4)),
    ],
)
def test_a_bounding_box_is_in_voxels_of_the_first_magnification(
    magnification: str, members: dict[str, Any], shape: tuple[int, ...]
) -> None:
    found = find_layer(properties(BOX, **members), f"color/{magnification}")
    assert found is not None
    assert found.shape == shape
    assert found.attributes["voxel_size"] == {"factor": [1, 2, 3.5], "unit": "nanometer"}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"dataLayers": 3},
        {"dataLayers": [1, {"name": "color"}]},
        properties([1, 2]),
        properties({**BOX, "width": "90"}),
        properties({**BOX, "width": 2**62}),
        properties({**BOX, "topLeft": [1, 2]}),
        properties({**BOX, "topLeft": [1.5, 2, 3]}),
        properties(BOX, mags=[{"path": "color/1", "mag": 0}]),
        properties(BOX, mags=[{"path": "color/1", "mag": [2**80, 1, 1]}]),
    ],
)
def test_properties_that_cannot_be_used_say_nothing(document: Any) -> None:
    assert find_layer(document, "color/1") is None


def test_more_blocks_than_can_be_counted_are_a_reason() -> None:
    box = {"topLeft": [0, 0, 0], "width": 2**40, "height": 2**40, "depth": 2**40}
    found = parse_array(header(), find_layer(properties(box), "color/1"), [])
    assert found is not None
    assert found.reason is not None
    assert "count" in found.reason


def test_an_array_without_files_has_no_voxels() -> None:
    found = parse_array(header(nbytes=3), None, [])
    assert found is not None
    assert found.metadata.shape == (3, 0, 0, 0)
