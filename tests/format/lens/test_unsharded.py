"""Arrays as unsharded ones: those that are sharded, those that are not, and new ones to be sharded."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, NotUnshardable, RefusedError, UsageError
from shardfs.format.lens.unsharded import (
    UnshardedArray,
    check_resized,
    count_positions,
    describe,
    parse_chunks_per_shard,
    reshard,
    shard_new,
)
from shardfs.format.metadata import ArrayMetadata, parse_array, parse_node
from shardfs.format.sharding import POSITION_BITS
from tests.support.corpus import (
    BIG,
    CRC32C,
    GZIP,
    LITTLE,
    ZSTD,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.json_values import json_values, places, replaced


def unsharded(document: dict[str, Any]) -> UnshardedArray:
    return describe(parse_array(document))


def reason(document: dict[str, Any]) -> str:
    with pytest.raises((MetadataError, NotUnshardable)) as caught:
        unsharded(document)
    return str(caught.value)


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


@pytest.mark.parametrize("separator", ["/", "."])
def test_more_inner_chunks_than_inode_numbers_can_count_are_a_reason(separator: str) -> None:
    def line(length: int) -> dict[str, Any]:
        keys = extension("default", separator=separator)
        return array((length,), (2**20,), sharding((1,)), chunk_key_encoding=keys)

    most = 2**POSITION_BITS - 1
    assert count_positions((most,)) == 2**POSITION_BITS
    assert unsharded(line(most)).grid.nchunks == most
    assert "more than shardfs can count" in reason(line(most + 1))


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(NotUnshardable) as caught:
        describe(parse_array(document))
    return str(caught.value)


V2_KEYS = {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}


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
    shown = describe(parse_array(array(shape, grid, LITTLE, **members)))
    assert shown.document["chunk_grid"] == extension("regular", chunk_shape=list(chunk_shape))
    assert shown == describe(parse_array(shown.document))


def test_what_has_no_such_description_is_refused_with_the_reason() -> None:
    assert "axis 1" in refusal(array((3, 5), rectilinear(3, [2, 3]), LITTLE))
    assert "axis 0" in refusal(array((5,), regular_bounded(3), LITTLE))
    assert "no-such-grid" in refusal(array((5,), extension("no-such-grid"), LITTLE))
    assert "no-such-keys" in refusal(array((5,), (5,), LITTLE, chunk_key_encoding=extension("no-such-keys")))
    assert "array → bytes" in refusal(array((5,), (5,), GZIP))
    assert "more than shardfs can count" in refusal(array((2**POSITION_BITS,), (1,), LITTLE))
    sharded_behind_another = array((4,), (4,), extension("delta"), sharding((2,)))
    with pytest.raises(NotUnshardable, match="delta"):
        describe(parse_array(sharded_behind_another))


def test_a_bounded_array_does_not_get_chunks_of_several_lengths() -> None:
    stored = array((6,), regular_bounded(3), LITTLE)
    shown = describe(parse_array(stored)).document
    with pytest.raises(RefusedError):
        check_resized(parse_array(stored), reshard(parse_array(stored), parse_array({**shown, "shape": [7]})))
    assert reshard(parse_array(stored), parse_array({**shown, "shape": [9]}))["chunk_grid"] == regular_bounded(3)
    short = parse_array(array((2,), regular_bounded(3), LITTLE))  # its chunk of 2 elements would become one of 3
    with pytest.raises(RefusedError, match="would not be shown like this"):
        reshard(short, parse_array({**describe(short).document, "shape": [6]}))


def reason_not_to_shard(document: dict[str, Any], *chunks_per_shard: int) -> str:
    with pytest.raises(NotUnshardable) as caught:
        shard_new(parse_array(document), chunks_per_shard or (2,))
    return str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        array((7, 11), (2, 3), transpose(1, 0), LITTLE, ZSTD),
        array((7, 11), (2, 3), extension("example.shift"), BIG, extension("example.invert")),
        array((7, 11), (2, 3), "bytes", data_type="uint8"),
        array((0, 11), (2, 3), LITTLE),
        array((7, 11), (2, 3), LITTLE, chunk_key_encoding=extension("v2", separator="/")),
        array((7, 11), (2, 3), "vlen-utf8", data_type="string", fill_value=""),
    ],
    ids=lambda document: json.dumps(document["codecs"])[:60],
)
def test_it_shows_as_it_was_written(written: dict[str, Any]) -> None:
    node = parse_array(written)
    shown = parse_array(describe(parse_array(shard_new(node, (4, 2)))).document)
    assert [codec.to_json() for codec in shown.codecs] == [codec.to_json() for codec in node.codecs]
    assert shown.chunk_grid == node.chunk_grid
    replaced_members = {"codecs", "chunk_key_encoding"}
    assert {k: v for k, v in shown.document.items() if k not in replaced_members} == {
        k: v for k, v in written.items() if k not in replaced_members
    }


@pytest.mark.parametrize(
    ("document", "chunks_per_shard", "message"),
    [
        (array((7, 11), (4, 6), sharding((2, 3))), (2, 2), "sharded already"),
        (array((), (), LITTLE), (2,), "without axes"),
        (array((7, 11), (2, 3), LITTLE), (2, 2, 2), "3 axes, the array has 2"),
        (array((7, 11), rectilinear(2, 3), LITTLE), (2,), "rectilinear"),
        (array((7, 11), regular_bounded(2, 3), LITTLE), (2,), "regular_bounded"),
        (array((7, 11), extension("example.spiral"), LITTLE), (2,), "example.spiral"),
        (array((7, 11), (2, 0), LITTLE), (2,), "chunk_shape"),
        (array((7, 11), (2,), LITTLE), (2,), "chunk_shape"),
        (array((7, 11), (2, 3), GZIP), (2,), "array → bytes"),
        (array((7, 11), (2, 3), extension("example.raw")), (2,), "array → bytes"),
        (array((7, 11), (2, 3), LITTLE, BIG), (2,), "array → bytes"),
        (array((7, 11), (2, 3), GZIP, LITTLE), (2,), "wrong side"),
        (array((7, 11), (2, 3), LITTLE, extension("example.a") | {"must_understand": False}), (2,), "lose"),
        (array((7, 11), (2, 3), LITTLE, chunk_key_encoding="example.hash"), (2,), "key encoding"),
        (array((7, 11), (2, 3), LITTLE), (4096, 4096), "index"),
        (array((7, 11), (2**62, 3), LITTLE), (2,), "63"),
        (array((10**12, 10**12), (2, 3), LITTLE), (2,), "more than shardfs can count"),
    ],
    ids=lambda value: json.dumps(value)[-60:],
)
def test_the_reason_says_why_it_is_stored_as_written(
    document: dict[str, Any], chunks_per_shard: tuple[int, ...], message: str
) -> None:
    text = reason_not_to_shard(document, *chunks_per_shard)
    assert message in text
    assert len(text) < 600
    assert text.isprintable()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=133)
def test_any_document_becomes_sharded_or_has_a_reason(data: st.DataObject) -> None:
    document: Any = array((7, 11), (2, 3), transpose(1, 0), LITTLE, GZIP)
    for _ in range(data.draw(st.integers(0, 2))):
        document = replaced(document, data.draw(st.sampled_from(places(document))), data.draw(json_values))
    try:
        node = parse_node(document)
        if not isinstance(node, ArrayMetadata):
            return
        sharded = shard_new(node, data.draw(st.sampled_from([(1,), (2,), (3, 5)])))
    except (MetadataError, NotUnshardable):
        return
    shown = describe(parse_array(sharded))
    assert list(shown.grid.chunk_shape) == node.chunk_grid.configuration["chunk_shape"]
    assert [codec.configuration for codec in shown.codecs] == [codec.configuration for codec in node.codecs]


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "8,0", "-1", "8,", ",8", "8,,8", "a", "8x8", "1.5", "+8", " 8", "8, 8", "²", "٣", "1_0"),
        *("9" * 5000, "4096,4096", str(2**23 + 1), ",".join(["1"] * 33), "\x1b[31m"),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_other_texts_are_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_chunks_per_shard(text)
    assert "inner chunks" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
