"""Chunk grids against a plain list of edges."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import MetadataError
from shardfs.format.chunk_grid import ChunkGrid, Dimension
from shardfs.format.metadata import Extension
from tests.support.corpus import Case, array, extension, rectilinear, regular_bounded
from tests.support.encoder import chunk_edges, shards
from tests.support.parametrize import every_case

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


@given(st.lists(axes(), max_size=3))
def test_a_rectilinear_grid_is_its_list_of_edges(sample: list[tuple[Any, int]]) -> None:
    shape = tuple(extent for _, extent in sample)
    document = array(shape, rectilinear(*(axis for axis, _ in sample)))
    grid = parsed(document["chunk_grid"], shape)
    for dimension, edges, extent in zip(grid.dimensions, chunk_edges(document), shape, strict=True):
        agrees(dimension, edges, extent)


@pytest.mark.parametrize("grid", [lambda *edges: extension("regular", chunk_shape=list(edges)), regular_bounded])
@given(sample=st.lists(st.tuples(lengths, st.integers(0, 40)), max_size=3))
def test_a_regular_grid_is_its_list_of_edges(grid: Any, sample: list[tuple[int, int]]) -> None:
    shape = tuple(extent for _, extent in sample)
    document = array(shape, grid(*(edge for edge, _ in sample)))
    parsed_grid = parsed(document["chunk_grid"], shape)
    for dimension, edges, extent in zip(parsed_grid.dimensions, chunk_edges(document), shape, strict=True):
        agrees(dimension, edges, extent)


@every_case
def test_the_grids_of_the_corpus(case: Case) -> None:
    shape = tuple(case.document["shape"])
    grid = parsed(case.document["chunk_grid"], shape)
    within = [place for place in shards(case.document) if all(a < b for a, b in zip(place[1], shape, strict=True))]
    assert grid.nchunks == len(within)
    for coords, origin, edges in within:
        spans = [dimension.span(i) for dimension, i in zip(grid.dimensions, coords, strict=True)]
        assert spans == list(zip(origin, edges, strict=True))


def test_runs_cost_nothing_however_long() -> None:
    tracemalloc.start()
    grid = parsed(rectilinear([[1, 10**12], [3, 10**12], 5]), (4 * 10**12 + 1,))
    dimension = grid.dimensions[0]
    assert grid.shape == (2 * 10**12 + 1,)
    assert dimension.chunk_at(10**12 - 1) == 10**12 - 1
    assert dimension.chunk_at(10**12) == dimension.chunk_at(10**12 + 2) == 10**12
    assert dimension.chunk_at(4 * 10**12) == 2 * 10**12
    assert dimension.span(2 * 10**12 - 1) == (4 * 10**12 - 3, 3)
    assert dimension.span(2 * 10**12) == (4 * 10**12, 5)
    assert set(dimension.edges) == {1, 3, 5}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_a_bounded_axis_of_many_chunks_costs_nothing() -> None:
    dimension = parsed(regular_bounded(1), (10**12,)).dimensions[0]
    assert dimension.nchunks == 10**12
    assert dimension.span(10**12 - 1) == (10**12 - 1, 1)


def test_equal_arrangements_are_equal_however_they_are_read() -> None:
    first, second = (parsed(rectilinear([2, [3, 2]], 4), (8, 9)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != parsed(rectilinear([2, [3, 2]], 4), (7, 9))
    assert first != parsed(rectilinear([3, [3, 2]], 4), (8, 9))
    assert first != parsed(rectilinear([2, [3, 3]], 4), (8, 9))
    assert parsed(rectilinear([4, 4]), (8,)) != parsed(rectilinear(4), (8,))


@pytest.mark.parametrize("extent", [0, 1, 5, 6])
def test_edges_must_cover_the_extent(extent: int) -> None:
    parsed(rectilinear([2, [2, 2]]), (extent,))
    with pytest.raises(MetadataError):
        parsed(rectilinear([2, [2, 2]]), (extent + 7,))


@pytest.mark.parametrize(
    "grid",
    [
        "regular",
        extension("regular", chunk_shape=[2], extra=1),
        extension("regular", chunk_shape=[2, 2]),
        extension("rectilinear", kind="inline", chunk_shapes=[2], extra=1),
        extension("rectilinear", kind=None, chunk_shapes=[2]),
        extension("rectilinear", kind="inline", chunk_shapes={"0": 2}),
        rectilinear([]),
        rectilinear([2, True]),
        rectilinear(True),
        rectilinear(2.0),
        rectilinear([[2, 4.0]]),
        rectilinear([[]]),
        rectilinear("2"),
        extension("zarrs.regular_bounded", chunk_shape=[2], extra=1),
        extension("hilbert", chunk_shape=[2]),
    ],
    ids=repr,
)
def test_other_grids_are_refused(grid: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(grid, (8,))
