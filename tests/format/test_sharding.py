"""Where inner chunks lie: `locate`, its inverse, and rows of them, for every array of the corpus."""

import math
from itertools import product
from typing import Any

import pytest

from shardfs.errors import NotUnshardable
from shardfs.format.lens.unsharded import describe
from shardfs.format.metadata import parse_array
from shardfs.format.sharding import Coords, ShardGrid
from tests.support.corpus import LITTLE, Case, array, extension, rectilinear, sharding, transpose
from tests.support.parametrize import every_case


def grid_of(document: dict[str, Any]) -> ShardGrid:
    return describe(parse_array(document)).grid


def all_coords(grid: ShardGrid) -> list[Coords]:
    return list(product(*map(range, grid.grid_shape)))


@every_case
def test_every_inner_chunk_has_a_place_of_its_own(case: Case) -> None:
    grid = grid_of(case.document)
    locations = set()
    for coords in all_coords(grid):
        location = grid.locate(coords)
        assert len(location.entries) == len(location.shapes) == len(grid.levels)
        assert all(
            0 <= entry < math.prod(shape) for entry, shape in zip(location.entries, location.shapes, strict=True)
        )
        assert location.shapes[0] == grid.index_shape(location.shard)
        assert grid.coords(location) == coords
        locations.add((location.shard, location.entries))
    assert len(locations) == grid.nchunks


@every_case
def test_rows_agree_with_each_place(case: Case) -> None:
    grid = grid_of(case.document)
    if not grid.ndim:
        return
    n = grid.grid_shape[-1]
    for prefix in product(*map(range, grid.grid_shape[:-1])):
        for chunks in (range(n), range(1, n), range(n // 2, n), range(0, n // 2), range(n, n), range(n - 1, n)):
            found = []
            for segment in grid.row(prefix, chunks):
                assert segment.length >= 1
                for i in range(segment.length):
                    location = grid.locate((*prefix, segment.first + i))
                    assert location.shard == segment.location.shard
                    assert location.entries[:-1] == segment.location.entries[:-1]
                    assert location.entries[-1] == segment.location.entries[-1] + i * segment.stride
                    assert location.shapes == segment.location.shapes
                    found.append(segment.first + i)
            assert found == list(chunks)


def test_entries_count_in_the_axes_of_the_index() -> None:
    """Worked by hand: shards of 4 × 6 × 10, transposed to 10 × 4 × 6, hold 2 × 2 × 2 inner chunks of 5 × 2 × 3."""
    grid = grid_of(array((8, 6, 10), (4, 6, 10), transpose(2, 0, 1), sharding((5, 2, 3))))
    assert grid.chunk_shape == (2, 3, 5)
    location = grid.locate((3, 1, 0))
    assert (location.shard, location.shapes) == ((1, 0, 0), ((2, 2, 2),))
    assert location.entries == (0 * 4 + 1 * 2 + 1,)
    assert grid.locate((2, 0, 1)).entries == (1 * 4 + 0 * 2 + 0,)


@pytest.mark.parametrize(
    "document",
    [
        array((10**6,), (10**9,), sharding((1,))),
        array((10**6,), (10**9,), sharding((10**8,), sharding((1,)))),
        array((10,), rectilinear([10, 10**9]), sharding((1,))),
        array((10,) * 4, (10**5,) * 4, sharding((1,) * 4)),
    ],
)
def test_an_index_that_is_too_large_to_be_read_is_a_reason(document: dict[str, Any]) -> None:
    with pytest.raises(NotUnshardable, match="index"):
        grid_of(document)


def test_members_of_a_sharding_codec_that_are_not_known_are_a_reason() -> None:
    codec = sharding((2,), LITTLE, flavour="vanilla")
    with pytest.raises(NotUnshardable, match="flavour"):
        grid_of(array((4,), (2,), codec))
    with pytest.raises(NotUnshardable, match=r"example\.shift"):
        grid_of(array((4,), (2,), extension("example.shift"), sharding((2,))))
