"""Shards with 64-bit ids: the places of chunks, indexes, and what a hostile one may do."""

import gzip
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.sharding import MAX_INDEX_NBYTES
from shardfs.formats.precomputed.uint64_sharded import (
    ListedIndex,
    MinishardCodecs,
    ShardNames,
    Uint64Sharding,
    murmurhash3_x86_128,
)
from tests.support.precomputed import minishard_index, shard, sharding

U64 = 2**64 - 1
ids = st.integers(0, U64)
hashes = st.sampled_from(["identity", "murmurhash3_x86_128"])
HASHED = {  # by the reference implementation
    0: 5148371408780832321,
    1: 16770674756601302682,
    2**63: 11063714688786943912,
    12345678901234567890: 16871771035463324855,
}


@st.composite
def specifications(draw: st.DrawFn) -> dict[str, Any]:
    minishard_bits = draw(st.integers(0, 8))
    shard_bits = draw(st.integers(0, 56))
    return sharding(draw(st.integers(0, 64)), draw(hashes), minishard_bits, shard_bits)


def test_murmurhash_of_known_numbers() -> None:
    assert {number: murmurhash3_x86_128(number) for number in HASHED} == HASHED
    assert murmurhash3_x86_128(np.array(list(HASHED), np.uint64)).tolist() == list(HASHED.values())


@pytest.mark.slow
@given(specifications(), st.lists(ids, min_size=1, max_size=20))
def test_a_chunk_belongs_where_its_place_is(specification: dict[str, Any], numbers: list[int]) -> None:
    parsed = Uint64Sharding.parse(specification)
    for number in numbers:
        place = parsed.location(number)
        assert 0 <= place[0] < parsed.nshards
        assert 0 <= place[1] < parsed.nminishards
        belong = parsed.belong(np.array(numbers, np.uint64), *place)
        assert belong.tolist() == [parsed.location(other) == place for other in numbers]


@given(specifications(), st.data())
def test_names_of_shards(specification: dict[str, Any], data: st.DataObject) -> None:
    parsed = Uint64Sharding.parse(specification)
    names, number = ShardNames.of(parsed), data.draw(st.integers(0, parsed.nshards - 1))
    name = names.encode((number,))
    assert names.decode(name, 1) == (number,)
    assert len(name) == max(-(-parsed.shard_bits // 4), 1) + len(".shard")
    assert name == name.lower()
    for other in (
        name.upper(),
        "0" + name,
        f"{name}.gz",
        name.replace(".shard", ".index"),
        "shard",
        ".shard",
        "-1.shard",
    ):
        assert names.decode(other, 1) is None


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("@type", "neuroglancer_uint64_sharded_v2"),
        ("preshift_bits", -1),
        ("preshift_bits", 65),
        ("preshift_bits", True),
        ("minishard_bits", 64),
        ("minishard_bits", 24),
        ("minishard_bits", 2**70),
        ("minishard_bits", "2"),
        ("shard_bits", 61),
        ("shard_bits", 64),
        ("shard_bits", None),
        ("hash", "md5"),
        ("hash", None),
        ("minishard_index_encoding", "zstd"),
        ("data_encoding", "br"),
    ],
)
def test_a_specification_that_cannot_be_read_is_refused(member: str, value: Any) -> None:
    with pytest.raises(MetadataError, match=r"@type|sharding|bits|2\*\*|hash|encoding"):
        Uint64Sharding.parse(sharding() | {member: value})


@pytest.mark.parametrize("member", ["@type", "preshift_bits", "minishard_bits", "shard_bits", "hash"])
def test_a_specification_needs_its_members(member: str) -> None:
    specification = sharding()
    del specification[member]
    with pytest.raises(MetadataError):
        Uint64Sharding.parse(specification)


def test_encodings_are_raw_by_default() -> None:
    specification = sharding()
    del specification["minishard_index_encoding"], specification["data_encoding"]
    assert Uint64Sharding.parse(specification) == Uint64Sharding.parse(sharding())


def listed_in(data: bytes, minishard: int, specification: dict[str, Any]) -> ListedIndex | None:
    """The index of a minishard of the shard *data*."""
    table, inner, *_ = Uint64Sharding.parse(specification).levels(2**20)
    head = data[: table.index_codecs.nbytes(0)]
    where = table.index_codecs.decode(head, (), len(data)).range(minishard)
    assert isinstance(inner.index_codecs, MinishardCodecs)
    return None if where is None else inner.index_codecs.decode_listed(data[where[0] : sum(where)], len(data))


@pytest.mark.slow
@given(st.lists(st.dictionaries(ids, st.binary(max_size=9)), min_size=4, max_size=4), st.booleans())
def test_every_chunk_of_a_shard_is_found(minishards: list[dict[int, bytes]], is_gzip: bool) -> None:
    specification = sharding(minishard_bits=2, index="gzip" if is_gzip else "raw")
    data = shard([list(chunks.items()) for chunks in minishards], index=is_gzip)
    for number, chunks in enumerate(minishards):
        index = listed_in(data, number, specification)
        if not chunks:
            assert index is None
            continue
        assert index is not None
        assert index.ids.tolist() == sorted(chunks)
        assert index.nentries == len(chunks)
        assert index.nbytes >= 24 * len(chunks)
        for position, chunk_id in enumerate(sorted(chunks)):
            where = index.range(chunk_id)
            assert where is not None
            assert data[where[0] : sum(where)] == chunks[chunk_id]
            assert index.keys[position] == chunk_id
            assert index.entry(chunk_id) == where == tuple(index.entries[position].tolist())
            assert index.select(chunk_id, 1, 1).tolist() == [list(where)]
        absent = next(number for number in range(len(chunks) + 1) if number not in chunks)
        assert index.range(absent) is None
        assert index.entry(absent) is None
        assert index.select(absent, 1, 1).tolist() == [[U64, U64]]


@given(st.binary(min_size=64, max_size=64), st.integers(64, 4096))
def test_no_range_of_a_hostile_shard_index_leaves_the_shard(head: bytes, shard_nbytes: int) -> None:
    table = Uint64Sharding.parse(sharding(minishard_bits=2)).levels(0)[0]
    index = table.index_codecs.decode(head, (), shard_nbytes)
    numbers = [int.from_bytes(head[at : at + 8], "little") for at in range(0, 64, 8)]
    for minishard, (start, stop) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        if start == stop:
            assert index.range(minishard) is None
        elif start < stop <= shard_nbytes - 64:
            assert index.range(minishard) == (start + 64, stop - start)
        else:
            with pytest.raises(CorruptionError):
                index.range(minishard)


numbers = st.one_of(st.integers(0, 300), ids, st.integers(U64 - 300, U64))


@pytest.mark.slow
@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=6), st.integers(0, 500))
def test_no_range_of_a_hostile_minishard_leaves_the_shard(rows: list[tuple[int, int, int]], shard_nbytes: int) -> None:
    codecs = MinishardCodecs("little", (), (), "raw", 64)
    encoded = np.array(rows, np.uint64).reshape(-1, 3).T.astype("<u8").tobytes()
    chunks = [number & U64 for number in accumulate(row[0] for row in rows)]
    if len(set(chunks)) < len(chunks):
        with pytest.raises(CorruptionError, match="twice"):
            codecs.decode_listed(encoded, shard_nbytes)
        return
    index = codecs.decode_listed(encoded, shard_nbytes)
    end = 64
    for chunk_id, (_, distance, nbytes) in zip(chunks, rows, strict=True):
        offset = end + distance & U64
        end = offset + nbytes
        if end <= shard_nbytes:
            assert index.range(chunk_id) == (offset, nbytes)
        else:
            with pytest.raises(CorruptionError, match=f"chunk {chunk_id}$"):
                index.range(chunk_id)


@given(st.binary(max_size=200), st.sampled_from(["raw", "gzip"]))
def test_bytes_that_are_no_index_are_damage(data: bytes, encoding: str) -> None:
    codecs = MinishardCodecs("little", (), (), encoding, 64)
    try:
        index = codecs.decode_listed(data, 1000)
    except CorruptionError:
        return
    assert encoding == "raw"
    assert 24 * index.nentries == len(data)


@pytest.mark.slow
def test_an_index_that_explodes_is_damage() -> None:
    """A compressed index of zeros lists the same id again and again, or is larger than what is read."""
    codecs = MinishardCodecs("little", (), (), "gzip", 64)
    bomb = gzip.compress(bytes(MAX_INDEX_NBYTES + 24))
    with pytest.raises(CorruptionError, match="more than"):
        codecs.decode_listed(bomb, 10**9)


def test_chunks_may_lie_in_any_order() -> None:
    """Differences wrap around."""
    encoded = minishard_index([(9, 500, 10), (3, 0, 100), (7, 300, 1)])
    index = MinishardCodecs("little", (), (), "raw", 16).decode_listed(encoded, 1000)
    assert [index.range(each) for each in (3, 7, 9)] == [(16, 100), (316, 1), (516, 10)]
