"""A set of chunks is a set, and takes little memory."""

import tracemalloc
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.dataset.chunk_set import ChunkSet

INDICES = st.integers(0, 3) | st.integers(1020, 1030) | st.integers(0, 2**40)


@pytest.mark.slow
@given(
    st.integers(0, 3).flatmap(
        lambda ndim: st.lists(st.tuples(st.booleans(), st.tuples(*[INDICES] * ndim)), max_size=30)
    )
)
def test_it_is_a_set(steps: list[tuple[bool, tuple[int, ...]]]) -> None:
    chunks, model = ChunkSet(), set[tuple[int, ...]]()
    for is_added, coords in steps:
        if is_added:
            chunks.add(coords)
        else:
            assert chunks.discard(coords) == (coords in model)
        model = model | {coords} if is_added else model - {coords}
        assert bool(chunks) == bool(model)
        assert all((coords in chunks) == (coords in model) for _, coords in steps)
        assert sorted(chunks) == sorted(model)


@pytest.mark.slow
def test_a_million_chunks_take_less_than_a_byte_each() -> None:
    tracemalloc.start()
    try:
        chunks = ChunkSet()
        for coords in product(range(1000), range(1000)):
            chunks.add(coords)
        assert tracemalloc.get_traced_memory()[0] < 10**6
    finally:
        tracemalloc.stop()
    for coords in product(range(1000), range(1000)):
        chunks.discard(coords)
    assert not chunks
