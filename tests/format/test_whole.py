"""Unsharded arrays, described as arrays whose shards have one chunk and no index."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import NotUnshardable, RefusedError
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.format.reshard import reshard
from shardfs.format.shard_index import NO_INDEX, ByteRange
from shardfs.format.splice import Added, Index, IndexLayout, plan_splice
from shardfs.format.unshard import POSITION_BITS, describe, unshard, whole
from tests.support.corpus import (
    BASE,
    CRC32C,
    GZIP,
    LITTLE,
    Case,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.parametrize import every_case


def parsed(document: dict[str, Any]) -> ArrayMetadata:
    found = parse_document(json.dumps(document).encode())
    assert isinstance(found, ArrayMetadata)
    return found


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(NotUnshardable) as caught:
        whole(parsed(document))
    return str(caught.value)


PLAIN = array((7, 9), (2, 4), transpose(1, 0), LITTLE, GZIP)
V2_KEYS = {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}


def test_an_unsharded_array_is_described_as_it_is() -> None:
    shown = whole(parsed(PLAIN))
    assert shown.document == PLAIN
    assert shown.grid.grid_shape == (4, 3)
    assert shown.grid.chunk_shape == (2, 4)
    assert shown.grid.is_whole
    assert [codec.name for codec in shown.codecs] == ["transpose", "bytes", "gzip"]
    assert describe(parsed(PLAIN)) == shown
    assert describe(parsed(BASE)) == unshard(parsed(BASE))
    assert not describe(parsed(BASE)).grid.is_whole


def test_short_names_and_defaults_are_spelled_out() -> None:
    short = PLAIN | {
        "chunk_key_encoding": "default",
        "codecs": [{"name": "endian", **_configuration(LITTLE)}, "crc32c"],
    }
    shown = whole(parsed(short)).document
    assert shown["codecs"] == [LITTLE, CRC32C]
    assert shown["chunk_key_encoding"] == PLAIN["chunk_key_encoding"]


def _configuration(codec: dict[str, Any]) -> dict[str, Any]:
    return {"configuration": codec["configuration"]}


@pytest.mark.parametrize(
    ("shape", "grid", "chunk_shape"),
    [
        ((), (), ()),
        ((0, 5), (3, 2), (3, 2)),
        ((7, 4), rectilinear([[3, 3]], 2), (3, 2)),
        ((7,), rectilinear([3, 3, [3, 10**9]]), (3,)),
        ((6,), regular_bounded(3), (3,)),
        ((2,), regular_bounded(3), (2,)),
        ((0, 4), regular_bounded(3, 4), (3, 4)),
    ],
)
@pytest.mark.parametrize("members", [{}, V2_KEYS], ids=["default", "v2"])
def test_any_grid_of_equal_chunks_is_a_regular_one(
    shape: tuple[int, ...], grid: Any, chunk_shape: tuple[int, ...], members: dict[str, Any]
) -> None:
    shown = whole(parsed(array(shape, grid, LITTLE, **members)))
    assert shown.document["chunk_grid"] == extension("regular", chunk_shape=list(chunk_shape))
    assert shown == whole(parsed(shown.document))


def test_what_has_no_such_description_is_refused_with_the_reason() -> None:
    assert refusal(BASE) == "the array is sharded"
    assert "axis 1" in refusal(array((3, 5), rectilinear(3, [2, 3]), LITTLE))
    assert "axis 0" in refusal(array((5,), regular_bounded(3), LITTLE))
    assert "no-such-grid" in refusal(array((5,), extension("no-such-grid"), LITTLE))
    assert "no-such-keys" in refusal(array((5,), (5,), LITTLE, chunk_key_encoding=extension("no-such-keys")))
    assert "array → bytes" in refusal(array((5,), (5,), GZIP))
    assert "inode" in refusal(array((2**POSITION_BITS,), (1,), LITTLE))
    sharded_behind_another = array((4,), (4,), extension("delta"), sharding((2,)))
    with pytest.raises(NotUnshardable, match="delta"):
        describe(parsed(sharded_behind_another))


@given(st.data())
@settings(max_examples=200)
def test_each_chunk_is_the_one_entry_of_a_shard_of_its_own(data: st.DataObject) -> None:
    ndim = data.draw(st.integers(0, 3))
    shape = data.draw(st.tuples(*[st.integers(0, 9)] * ndim))
    chunk_shape = data.draw(st.tuples(*[st.integers(1, 5)] * ndim))
    grid = whole(parsed(array(shape, chunk_shape, LITTLE))).grid
    assert grid.nchunks == math.prod(-(-n // length) for n, length in zip(shape, chunk_shape, strict=True))
    if not grid.nchunks:
        return
    coords = data.draw(st.tuples(*[st.integers(0, n - 1) for n in grid.grid_shape]))
    place = grid.locate(coords)
    assert (place.shard, place.entries, place.shapes) == (coords, (0,), ((1,) * ndim,))
    assert grid.coords(place) == coords
    assert (grid.nchunks_of(coords), grid.index_nbytes(coords)) == (1, 0)
    assert not grid.is_large(grid.index_shape(coords))
    if ndim:
        row = list(grid.row(coords[:-1], range(grid.grid_shape[-1])))
        assert [(segment.first, segment.length) for segment in row] == [(i, 1) for i in range(grid.grid_shape[-1])]


@pytest.mark.parametrize("nbytes", [0, 1, 2**62])
def test_the_entry_is_all_of_the_file(nbytes: int) -> None:
    index = NO_INDEX.decode(b"", (1, 1), nbytes)
    assert index.range(0) == ByteRange(0, nbytes)
    assert index.entry(0) == (0, nbytes)
    assert (index.nentries, index.live_nbytes, index.encoded) == (1, nbytes, b"")


@pytest.mark.parametrize("old", [None, 0, 70])
def test_a_new_chunk_is_the_new_file_and_a_removed_one_removes_it(old: int | None) -> None:
    layout = IndexLayout(NO_INDEX, (1, 1), False)
    index = NO_INDEX.decode(b"", (1, 1), old) if old is not None else None
    for nbytes in (0, 50):
        plan = plan_splice(layout, index, {0: nbytes}, [])
        assert (plan.pieces, plan.nbytes, plan.is_append) == ((Added(0, nbytes), Index(b"")), nbytes, False)
    assert plan_splice(layout, index, {}, [0]).is_empty


def test_what_may_be_edited_is_stored_with_everything_else_as_it_is_spelled() -> None:
    stored = array((7, 5), rectilinear([[3, 3]], 2), LITTLE, **V2_KEYS)
    stored["codecs"] = [{"name": "endian", **_configuration(LITTLE)}]
    edited = dict(whole(parsed(stored)).document)
    edited |= {"shape": [12, 3], "attributes": {"a": 1}, "fill_value": 7, "dimension_names": ["x", None]}
    document = reshard(parsed(stored), parsed(edited))
    assert document == stored | {
        "shape": [12, 3],
        "attributes": {"a": 1},
        "fill_value": 7,
        "dimension_names": ["x", None],
        "chunk_grid": rectilinear([[3, 4]], 2),
    }
    assert whole(parsed(document)).document == edited


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_grid": extension("regular", chunk_shape=[2, 3])},
        {"data_type": "float32"},
        {"codecs": [LITTLE]},
        {"codecs": [sharding((2, 4))]},
        V2_KEYS,
    ],
)
def test_an_edit_that_changes_what_stored_bytes_mean_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        reshard(parsed(PLAIN), parsed({**PLAIN, **change}))


def test_a_bounded_array_does_not_get_chunks_of_several_lengths() -> None:
    stored = array((6,), regular_bounded(3), LITTLE)
    shown = whole(parsed(stored)).document
    with pytest.raises(RefusedError):
        reshard(parsed(stored), parsed({**shown, "shape": [7]}))
    assert reshard(parsed(stored), parsed({**shown, "shape": [9]}))["chunk_grid"] == regular_bounded(3)


@every_case
def test_what_a_sharded_array_shows_is_such_an_array(case: Case) -> None:
    shown = describe(parsed(case.document))
    again = describe(parsed(shown.document))
    assert again.grid.is_whole
    assert (again.document, again.grid.grid_shape) == (shown.document, shown.grid.grid_shape)
