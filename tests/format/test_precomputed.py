"""Volumes in the format precomputed: against tensorstore, which writes them, and what is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.dataset.foreign import outline_of
from shardfs.format.document import parse_json
from shardfs.format.sharding import ChunkLocation
from shardfs.formats.precomputed import parse_info
from shardfs.formats.precomputed.uint64_sharded import ListedIndex, Uint64Sharding
from shardfs.formats.precomputed.volume import ChunkNames, VolumeGrid, morton_code, parse_volume, positions_of
from tests.support.json_values import json_values, places, replaced
from tests.support.precomputed import KEY, chunks_in, info, opened, scale, scale_in, sharding, stored_files

encodings = st.sampled_from(["raw", "gzip"])
lengths = st.tuples(*[st.integers(1, 9)] * 3)
grid_shapes = st.tuples(*[st.integers(1, 70)] * 3)


@st.composite
def volumes(draw: st.DrawFn) -> dict[str, Any]:
    """An `info` with one scale, small enough to be written."""
    chunk = draw(lengths)
    counts = draw(st.tuples(*[st.integers(1, 4)] * 3))
    size = tuple(length * count - draw(st.integers(0, length - 1)) for length, count in zip(chunk, counts, strict=True))
    hash = draw(st.sampled_from(["identity", "murmurhash3_x86_128"]))
    bits = [draw(st.integers(0, 4)) for _ in range(3)]
    specification = sharding(bits[0], hash, bits[1], bits[2], draw(encodings), draw(encodings))
    offset = draw(st.lists(st.integers(-20, 20), min_size=3, max_size=3))
    data_type = draw(st.sampled_from(["uint8", "uint16", "float32", "uint64"]))
    return info(
        scale(size, chunk, specification, voxel_offset=offset),
        data_type=data_type,
        num_channels=draw(st.integers(1, 2)),
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(volumes(), st.randoms(use_true_random=False))
def test_every_chunk_that_tensorstore_writes_is_found(document: dict[str, Any], random: Any) -> None:
    volume = opened({"driver": "memory"}, document)
    rng = np.random.default_rng(random.randrange(2**32))
    values = rng.integers(1, 200, volume.shape).astype(volume.dtype.numpy_dtype)
    volume.write(values).result()
    files = stored_files(volume.kvstore)
    found = scale_in(files)
    assert found.chunks is not None
    grid = found.chunks.grid
    assert found.metadata.shape == volume.shape
    chunks = dict(chunks_in(files))
    assert len(chunks) == grid.nchunks
    for coords, data in chunks.items():
        box = tuple(
            slice(index * length, (index + 1) * length) for index, length in zip(coords, grid.chunk_shape, strict=True)
        )
        assert data == values[box].tobytes(order="F")
        name = found.chunks.grid.names.encode(coords)
        assert found.chunks.grid.names.decode(name, 4) == coords
        for part, dimension, axis in zip(name.split("_"), box, range(3), strict=False):
            offset = document["scales"][0]["voxel_offset"][axis]
            stop = min(dimension.stop, values.shape[axis])
            assert part == f"{offset + dimension.start}-{offset + stop}"


@pytest.mark.slow
@given(grid_shapes, st.data())
def test_morton_codes_are_undone(grid_shape: tuple[int, int, int], data: st.DataObject) -> None:
    position = tuple(data.draw(st.integers(0, length - 1)) for length in grid_shape)
    code = morton_code(position, grid_shape)
    assert positions_of(np.array([code], np.uint64), grid_shape).tolist() == [list(position)]


@pytest.mark.slow
@given(st.tuples(*[st.integers(1, 6)] * 3))
def test_morton_codes_are_different(grid_shape: tuple[int, int, int]) -> None:
    codes = {morton_code(position, grid_shape) for position in np.ndindex(grid_shape)}
    assert len(codes) == np.prod(grid_shape)


def test_the_morton_code_of_the_specification() -> None:
    """Bits of x, y and z take turns as long as the grid is that long; then the others go on."""
    assert morton_code((0b11, 0b1, 0b111), (4, 2, 8)) == 0b111111
    assert morton_code((0b10, 0, 0), (4, 2, 8)) == 0b001000
    assert morton_code((0, 0, 0b100), (4, 2, 8)) == 0b100000


def test_ids_outside_the_grid_are_not_within_it() -> None:
    grid = VolumeGrid.of(
        (5, 1, 1), (1, 1, 1), (0, 0, 0), Uint64Sharding.parse(sharding(0, "identity", 0, 0)), 1, is_raw=True
    )
    ids = np.array([0, 4, 5, 7, 8, 2**63], np.uint64)
    index = ListedIndex(memoryview(bytes(16 * len(ids))).cast("Q"), b"", 0, ids)
    assert grid.belonging(index, ChunkLocation((0,), (0,), ((1,), ()))).tolist() == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0-4_0-4",
        "0-4_0-4_0-4_0-4",
        "0-5_0-4_0-4",
        "00-4_0-4_0-4",
        "+0-4_0-4_0-4",
        "0-4_0-4_8-12",
        "1-5_0-4_0-4",
        "٠-4_0-4_0-4",
    ],
)
def test_other_names_are_no_chunks(name: str) -> None:
    names = ChunkNames("precomputed", "_", (0, 0, 0), (4, 4, 4), (10, 4, 8))
    assert names.decode("8-10_0-4_4-8", 4) == (2, 0, 1, 0)
    assert names.decode(name, 4) is None


def parsed(document: Any) -> Any:
    return parse_volume(parse_json(json.dumps(document).encode()))


def test_the_shown_info_lacks_only_the_sharding_of_what_is_shown() -> None:
    scales = [
        scale((8, 8, 8), (4, 4, 4), sharding(), key="a"),
        scale((8, 8, 8), (4, 4, 4), None, key="b"),
        scale((8, 8, 8), (4, 4, 4), sharding(minishard_bits=63), key="c"),
    ]
    document = info(*scales, mesh="mesh", extra={"x": [1, 2.5, None]})
    volume = parsed(document)
    assert list(volume.below) == ["a", "c"]
    assert volume.below["a"].reason is None
    assert "2**63" in volume.below["c"].reason
    del scales[0]["sharding"]
    assert json.loads(volume.documents["info"]) == info(*scales, mesh="mesh", extra={"x": [1, 2.5, None]})


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        "info",
        {"@type": "neuroglancer_skeletons"},
        {"scales": []},
        info(),
        info(scale((8, 8, 8), (4, 4, 4), None)),
        info(scale((8, 8, 8), (4, 4, 4), sharding(), key="../out")),
        info(scale((8, 8, 8), (4, 4, 4), sharding(), key="/etc")),
        info(scale((8, 8, 8), (4, 4, 4), sharding(), key="")),
        info(scale((8, 8, 8), (4, 4, 4), sharding(), key=3)),
        info(scale((8, 8, 8), (4, 4, 4), sharding(), key="a//b")),
    ],
)
def test_what_is_no_volume_with_sharded_scales(document: Any) -> None:
    assert parsed(document) is None


def test_an_old_info_does_not_say_its_type() -> None:
    document = info(scale((8, 8, 8), (4, 4, 4), sharding()))
    del document["@type"]
    assert parsed(document).below[KEY].reason is None


@pytest.mark.parametrize(
    "members",
    [
        {"size": [8, 8]},
        {"size": [8, 8, -1]},
        {"size": [8, 8, 2**64]},
        {"size": None},
        {"size": [2**40, 2**40, 2**40]},
        {"size": [0, 2**50, 2**50]},
        {"chunk_sizes": [[4, 4, 0]]},
        {"chunk_sizes": []},
        {"chunk_sizes": [[4, 4, 4], [8, 8, 8]]},
        {"voxel_offset": [0, 0]},
        {"voxel_offset": [0, 0, 0.5]},
        {"voxel_offset": [0, 0, 2**63]},
        {"encoding": None},
        {"sharding": "gzip"},
        {"sharding": sharding(minishard_bits=64)},
    ],
)
def test_a_scale_that_cannot_be_read_has_a_reason(members: dict[str, Any]) -> None:
    document = info(scale((8, 8, 8), (4, 4, 4), sharding()) | members)
    volume = parsed(document)
    assert volume.below[KEY].reason
    assert volume.below[KEY].chunks is None
    assert json.loads(volume.documents["info"]) == document


def test_two_scales_of_one_key_are_shown_as_stored() -> None:
    volume = parsed(info(*[scale((8, 8, 8), (4, 4, 4), sharding())] * 2))
    assert "several scales" in volume.below[KEY].reason


def test_numbers_may_be_written_as_floats() -> None:
    document = info(scale((8, 8, 8), (4, 4, 4), sharding(), voxel_offset=[1.0, -2.0, 0]))
    document["scales"][0]["size"] = [8.0, 8, 8.0]
    found = parsed(document).below[KEY]
    assert found.chunks.grid.names.encode((1, 1, 0)) == "5-9_2-6_0-4"


EVERY_INFO = [
    info(scale((8, 8, 8), (4, 4, 4), sharding()), scale((4, 4, 4), (4, 4, 4), sharding(), key="b")),
    *({"@type": kind, "sharding": sharding()} for kind in ("neuroglancer_skeletons", "neuroglancer_multilod_draco")),
    {
        "@type": "neuroglancer_annotations_v1",
        "relationships": [{"id": "segment", "key": "by_segment", "sharding": sharding()}],
        "by_id": {"key": "by_id", "sharding": sharding()},
        "spatial": [{"key": "spatial0", "grid_shape": [5, 3, 1], "chunk_size": [1, 2, 3], "sharding": sharding()}],
    },
]


def judge(document: Any) -> None:
    text = json.dumps(document).encode()
    outline_of("", ("info",), text)
    found = parse_info(text)
    for each in () if found is None else (found, *found.below.values()):
        if each.chunks is not None:
            each.chunks.grid.have_chunks(np.array([0, 2**64 - 1], np.uint64))


@pytest.mark.parametrize("document", EVERY_INFO, ids=["volume", "skeletons", "meshes", "annotations"])
def test_whatever_an_info_says_in_one_place_it_is_judged(document: Any) -> None:
    values = (
        [],
        {},
        [[]],
        None,
        True,
        0,
        -1,
        0.5,
        2**50,
        2**64,
        10**400,
        "",
        "x",
        [2**50, 2**50, 0],
        [0, 2**50, 2**50],
    )
    for place in places(document):
        for value in values:
            judge(replaced(document, place, value))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_whatever_an_info_says_in_several_places_it_is_judged(data: st.DataObject) -> None:
    document: Any = data.draw(st.sampled_from(EVERY_INFO))
    for _ in range(data.draw(st.integers(1, 3))):
        document = replaced(document, data.draw(st.sampled_from(places(document))), data.draw(json_values))
    judge(document)
