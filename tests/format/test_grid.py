"""Chunk grids and chunk keys: every element in one chunk, every key one chunk, and nothing else accepted."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardfs.errors import MetadataError
from shardfs.format.document import Extension
from shardfs.format.grid import ChunkGrid, ChunkKeyEncoding, Dimension, parse_coordinate
from tests.support.corpus import array, extension, rectilinear
from tests.support.encoder import chunk_edges

lengths = st.integers(1, 7)
runs = st.one_of(lengths, st.tuples(lengths, st.integers(1, 4)).map(list))


@st.composite
def axes(draw: st.DrawFn) -> tuple[Any, int]:
    """One axis of a rectilinear grid, and an extent that it covers."""
    if draw(st.booleans()):
        return draw(lengths), draw(st.integers(0, 40))
    axis = draw(st.lists(runs, min_size=1, max_size=5))
    total = sum(run if isinstance(run, int) else run[0] * run[1] for run in axis)
    return axis, draw(st.integers(0, total))


def parsed(grid: Any, shape: tuple[int, ...]) -> ChunkGrid:
    return ChunkGrid.parse(Extension.parse(grid, "chunk_grid"), shape)


def agrees(dimension: Dimension, edges: list[int], extent: int) -> None:
    """Hold *dimension* against the lengths of its chunks, one by one."""
    start = 0
    chunks = []
    for edge in edges:
        if start < extent:
            chunks.append((start, edge))
        start += edge
    assert dimension.nchunks == len(chunks)
    assert set(edges) <= set(dimension.edges)
    for index, (first, edge) in enumerate(chunks):
        assert dimension.span(index) == (first, edge)
        for element in range(first, min(first + edge, extent)):
            assert dimension.chunk_at(element) == index


def test_chunks_without_elements_cut_an_axis_without_elements_only() -> None:
    grid = extension("regular", chunk_shape=[0, 3])
    assert parsed(grid, (0, 6)).shape == (0, 2)
    with pytest.raises(MetadataError, match="of at least 1"):
        parsed(grid, (1, 6))


@pytest.mark.slow
@given(st.lists(axes(), max_size=3))
def test_a_rectilinear_grid_is_its_list_of_edges(sample: list[tuple[Any, int]]) -> None:
    shape = tuple(extent for _, extent in sample)
    document = array(shape, rectilinear(*(axis for axis, _ in sample)))
    grid = parsed(document["chunk_grid"], shape)
    for dimension, edges, extent in zip(grid.dimensions, chunk_edges(document), shape, strict=True):
        agrees(dimension, edges, extent)


@pytest.mark.parametrize(
    "grid",
    [
        extension("regular", chunk_shape=[2], extra=1),
        extension("rectilinear", kind="inline", chunk_shapes=[2], extra=1),
        extension("rectilinear", kind=None, chunk_shapes=[2]),
        extension("rectilinear", kind="inline", chunk_shapes={"0": 2}),
        rectilinear([[2, 4.0]]),
        extension("zarrs.regular_bounded", chunk_shape=[2], extra=1),
    ],
    ids=repr,
)
def test_other_grids_are_refused(grid: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(grid, (8,))


ENCODINGS = [ChunkKeyEncoding(name, separator) for name in ("default", "v2") for separator in "/."]
encodings = st.sampled_from(ENCODINGS)
coordinates = st.integers(0, 2**63 - 1)


def parsed_keys(value: Any) -> ChunkKeyEncoding:
    return ChunkKeyEncoding.parse(Extension.parse(value, "chunk_key_encoding"))


@given(encodings, st.lists(coordinates, max_size=6).map(tuple))
def test_decoding_undoes_encoding(encoding: ChunkKeyEncoding, coords: tuple[int, ...]) -> None:
    assert encoding.decode(encoding.encode(coords), len(coords)) == coords


@given(encodings, st.one_of(st.text("0123456789c./+- ", max_size=8), st.text(max_size=6)), st.integers(0, 4))
@example(ENCODINGS[0], "c/0/", 1)
@example(ENCODINGS[1], "c", 0)
@example(ENCODINGS[2], "0/01", 2)
def test_a_key_has_one_spelling(encoding: ChunkKeyEncoding, key: str, ndim: int) -> None:
    coords = encoding.decode(key, ndim)
    if coords is not None:
        assert len(coords) == ndim
        assert encoding.encode(coords) == key


NO_NUMBERS = [
    *("", "00", "01", "-0", "-1", "+1", " 1", "1 ", "1\n", "1_0", "1.0", "1e3", "0x1", "١", "１", "²", "c", "9" * 20),
    *("9" * 10_000_000, "\udc80", "1\0"),
]


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: ascii(text[:12]))
def test_other_spellings_of_numbers_are_no_coordinates(text: str) -> None:
    assert parse_coordinate(text) is None


@pytest.mark.parametrize(
    "value",
    [
        "example.hash",
        extension("default", separator=None),
        extension("default", separator=["/"]),
        extension("default", separator=""),
        extension("v2", separator="//"),
        extension("v2", separator=".", prefix="x"),
    ],
)
def test_unknown_encodings_are_refused(value: Any) -> None:
    with pytest.raises(MetadataError):
        parsed_keys(value)
