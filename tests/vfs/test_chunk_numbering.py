"""ChunkNumbering: every chunk and every directory above chunks has one number, and each number is one of them."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.format.lens.unsharded import POSITION_BITS, count_positions
from shardfs.vfs.chunk_numbering import ChunkNumbering

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
large_shapes = st.lists(st.integers(1, 2**12), min_size=1, max_size=3).map(tuple)


@given(shapes, st.booleans())
def test_numbers_are_contiguous_and_each_stands_for_one_thing(shape: tuple[int, ...], nested: bool) -> None:
    positions = ChunkNumbering.of(shape, nested=nested)
    directories = [()] if shape or not nested else []
    if nested:
        directories = [coords for depth in range(len(shape)) for coords in product(*map(range, shape[:depth]))]
    chunks = list(product(*map(range, shape)))
    numbers = [positions.of_directory(coords) for coords in directories]
    numbers += [positions.of_chunk(coords) for coords in chunks]
    assert numbers == list(range(len(directories) + len(chunks)))
    for number, coords in zip(numbers, [*directories, *chunks], strict=True):
        assert positions.coords(number) == coords
        assert positions.is_chunk(number) == (number >= len(directories))


@given(large_shapes, st.booleans(), st.data())
def test_a_number_is_found_from_coordinates_and_back(shape: tuple[int, ...], nested: bool, data: st.DataObject) -> None:
    positions = ChunkNumbering.of(shape, nested=nested)
    coords = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    number = positions.of_chunk(coords)
    assert positions.is_chunk(number)
    assert positions.coords(number) == coords
    assert number < count_positions(shape) <= 2**POSITION_BITS + sum(map(prod, [shape]))
    if nested:
        prefix = coords[: data.draw(st.integers(0, len(shape) - 1))]
        directory = positions.of_directory(prefix)
        assert not positions.is_chunk(directory)
        assert positions.coords(directory) == prefix
        assert positions.parent(number) == (positions.of_directory(coords[:-1]), coords[-1])


@given(large_shapes.filter(lambda shape: shape[-1] > 1), st.booleans(), st.data())
def test_chunks_of_a_row_have_consecutive_numbers(shape: tuple[int, ...], nested: bool, data: st.DataObject) -> None:
    """Listings count on it."""
    positions = ChunkNumbering.of(shape, nested=nested)
    prefix = tuple(data.draw(st.integers(0, n - 1)) for n in shape[:-1])
    last = data.draw(st.integers(0, shape[-1] - 1))
    assert positions.of_chunk((*prefix, last)) == positions.of_chunk((*prefix, 0)) + last
    if nested and len(shape) > 1:
        assert positions.of_directory(prefix) == positions.of_directory((*prefix[:-1], 0)) + prefix[-1]


@pytest.mark.parametrize("nested", [True, False])
def test_an_array_without_axes_has_one_chunk(nested: bool) -> None:
    positions = ChunkNumbering.of((), nested=nested)
    number = positions.of_chunk(())
    assert positions.is_chunk(number)
    assert positions.coords(number) == ()
    assert number == (0 if nested else 1)


def test_the_largest_grid_that_is_shown_fits() -> None:
    shape = (2**POSITION_BITS - 1,)
    positions = ChunkNumbering.of(shape, nested=True)
    assert positions.of_chunk((shape[0] - 1,)) == 2**POSITION_BITS - 1
