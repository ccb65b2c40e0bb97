"""Codecs: the chain's rules, and decoding that neither believes its input nor is stopped by it."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from itertools import permutations
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import (
    chunk_nbytes,
    compose,
    decode,
    is_decodable,
    item_nbytes,
    parse_chain,
    parse_transpose,
    permute,
    split_chain,
)
from shardfs.format.metadata import Extension, parse_codecs
from tests.support.corpus import BLOSC, CASES, CRC32C, GZIP, IGNORED, LITTLE, ZSTD, Case, extension, sharding, transpose
from tests.support.encoder import apply, numpy_dtype

CHECKED = extension("zstd", level=1, checksum=True)
LZ4 = extension("blosc", cname="lz4", clevel=1, shuffle="bitshuffle", typesize=2, blocksize=0)
CHAINS = [[GZIP], [ZSTD], [CHECKED], [BLOSC], [LZ4], [CRC32C], [CRC32C, CRC32C], [GZIP, CRC32C], [CRC32C, ZSTD, GZIP]]
PLAIN = bytes(range(256)) * 4

every_chain = pytest.mark.parametrize("codecs", CHAINS, ids=lambda codecs: "-".join(codec["name"] for codec in codecs))


def parsed(codecs: list[Any]) -> tuple[Extension, ...]:
    return parse_codecs(codecs, "codecs")


def encoded(codecs: list[Any], data: bytes) -> bytes:
    for codec in codecs:
        data = apply(codec, data)
    return data


@every_chain
@pytest.mark.parametrize("data", [b"x", PLAIN, bytes(100_000)], ids=len)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decoding_undoes_encoding_from_any_buffer(codecs: list[Any], data: bytes, kind: type) -> None:
    assert bytes(decode(parsed(codecs), kind(encoded(codecs, data)), len(data))) == data


@pytest.mark.parametrize("codecs", [codecs for codecs in CHAINS if codecs[0]["name"] != "blosc"], ids=repr)
def test_nothing_decodes_to_nothing(codecs: list[Any]) -> None:
    assert decode(parsed(codecs), encoded(codecs, b""), 0) == b""


@every_chain
def test_data_of_more_than_the_limit_is_refused(codecs: list[Any]) -> None:
    with pytest.raises(CorruptionError, match=str(len(PLAIN) - 1)):
        decode(parsed(codecs), encoded(codecs, PLAIN), len(PLAIN) - 1)


@every_chain
def test_what_is_cut_short_is_corrupt(codecs: list[Any]) -> None:
    data = encoded(codecs, PLAIN)
    for size in range(0, len(data), 1 + len(data) // 40):
        with pytest.raises(CorruptionError):
            decode(parsed(codecs), data[:size], len(PLAIN) - 8)


@every_chain
@pytest.mark.parametrize(
    "garbage", [b"", b"\0", b"\0" * 15, b"\0" * 16, b"\xff" * 64, b"\x1f\x8b" + b"\0" * 30], ids=repr
)
def test_garbage_is_corrupt(codecs: list[Any], garbage: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(parsed(codecs), garbage, 1)


@pytest.mark.parametrize("codec", [GZIP, CHECKED, CRC32C], ids=lambda codec: codec["name"])
def test_every_flipped_bit_behind_a_checksum_is_noticed(codec: Any) -> None:
    data = encoded([codec], b"some text, some text, some more text")
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        try:
            assert decode(parsed([codec]), bytes(flipped), 100) == b"some text, some text, some more text"
        except CorruptionError:
            continue
        assert codec is not CRC32C  # gzip and zstd have header bits that say nothing


BOMBS = {
    "gzip": ([GZIP], lambda zeros: gzip.compress(zeros)),
    "zstd": ([ZSTD], lambda zeros: numcodecs.Zstd(3).encode(zeros)),
    "blosc": ([BLOSC], lambda zeros: numcodecs.Blosc("zstd", 9).encode(zeros)),
    "gzip in gzip": ([GZIP, GZIP], lambda zeros: gzip.compress(gzip.compress(zeros))),
    "gzip taken for gzip in gzip": ([GZIP, GZIP], lambda zeros: gzip.compress(zeros)),
    "gzip members": ([GZIP], lambda zeros: gzip.compress(zeros[: 1 << 20]) * 64),
    "zstd frames": ([ZSTD], lambda zeros: numcodecs.Zstd(3).encode(zeros[: 1 << 20]) * 64),
    "blosc header": ([BLOSC], lambda zeros: struct.pack("<BBBBIII", 2, 1, 0x12, 1, 2**32 - 1, 2**20, 16)),
    "empty gzip members": ([GZIP], lambda zeros: gzip.compress(b"") * 100_000),
    "empty zstd frames": ([ZSTD], lambda zeros: numcodecs.Zstd(3).encode(b"") * 100_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped_early(name: str) -> None:
    codecs, make = BOMBS[name]
    data = make(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        decode(parsed(codecs), data, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (8 << 20) + 2 * len(data)


def test_concatenated_members_are_one_text() -> None:
    for codec in (GZIP, ZSTD):
        parts = [apply(codec, part) for part in (b"one", b"", b"two")]
        assert bytes(decode(parsed([codec]), b"".join(parts), 6)) == b"onetwo"
        with pytest.raises(CorruptionError):
            decode(parsed([codec]), b"".join(parts) + b"trailing garbage", 100)


@every_chain
@given(data=st.binary(max_size=80))
@settings(max_examples=60)
def test_random_bytes_decode_or_are_corrupt(codecs: list[Any], data: bytes) -> None:
    try:
        assert len(decode(parsed(codecs), data, 500)) <= 500
    except CorruptionError:
        return


@every_chain
@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), size=st.integers(0, 400))
@settings(max_examples=60)
def test_damaged_data_decodes_or_is_corrupt(codecs: list[Any], edits: list[tuple[int, int]], size: int) -> None:
    data = bytearray(encoded(codecs, PLAIN[:300]))
    for place, value in edits:
        data[place % len(data)] = value
    for damaged in (bytes(data), bytes(data[: min(size, len(data))])):
        try:
            assert len(decode(parsed(codecs), damaged, 300)) <= 300
        except CorruptionError:
            continue


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_composing_is_transposing_twice(first: list[int], then: list[int]) -> None:
    array = np.empty((2, 3, 4, 5))
    twice = array.transpose(first).transpose(then)
    order = compose(tuple(first), tuple(then))
    assert array.transpose(order).strides == twice.strides
    assert permute(array.shape, order) == twice.shape


@pytest.mark.parametrize("order", [(), (0,), *permutations(range(3))])
def test_an_order_is_a_permutation(order: tuple[int, ...]) -> None:
    assert parse_transpose(*parsed([extension("transpose", order=list(order))]), len(order)) == order
    with pytest.raises(MetadataError):
        parse_transpose(*parsed([extension("transpose", order=[*order, 0])]), len(order) + 1 + (not order))


def names(codecs: list[Any]) -> list[str]:
    return [codec.name for codec in parse_chain(parsed(codecs), "codecs")]


def test_codecs_that_may_be_ignored_are_dropped_and_old_names_replaced() -> None:
    optional = GZIP | {"must_understand": False}
    assert names([IGNORED, extension("endian", endian="big"), IGNORED, optional]) == ["bytes", "gzip"]
    assert names([extension("example.raw"), GZIP]) == ["example.raw", "gzip"]
    assert names([transpose(0), extension("example.shift"), LITTLE, extension("example.invert")]) == [
        *("transpose", "example.shift", "bytes", "example.invert"),
    ]


@pytest.mark.parametrize(
    "codecs",
    [[], [GZIP], [IGNORED], [LITTLE, LITTLE], [LITTLE, sharding((1,))], [GZIP, LITTLE], [LITTLE, transpose(0)]],
    ids=repr,
)
def test_chains_that_break_the_rules_are_refused(codecs: list[Any]) -> None:
    with pytest.raises(MetadataError):
        parse_chain(parsed(codecs), "codecs")


def test_a_chain_is_split_around_its_serializer() -> None:
    chain = split_chain(parse_chain(parsed([transpose(0), LITTLE, GZIP, CRC32C]), "codecs"), "codecs")
    assert [codec.name for codec in (*chain.before, chain.serializer, *chain.after)] == [
        *("transpose", "bytes", "gzip", "crc32c"),
    ]
    with pytest.raises(MetadataError):
        split_chain(parsed([extension("example.raw")]), "codecs")


def test_only_bytes_to_bytes_codecs_are_decodable() -> None:
    decodable = [codec["name"] for codec in (GZIP, ZSTD, BLOSC, CRC32C, LITTLE, IGNORED, transpose(0))
                 if is_decodable(*parsed([codec]))]  # fmt: skip
    assert decodable == ["gzip", "zstd", "blosc", "crc32c"]


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("type-")], ids=lambda case: case.name)
def test_elements_have_the_size_that_numpy_gives_them(case: Case) -> None:
    data_type = case.document["data_type"]
    expected = None if data_type == "string" else numpy_dtype(data_type).itemsize
    assert item_nbytes(data_type) == expected
    assert chunk_nbytes(data_type, (2, 3)) == (None if expected is None else 6 * expected)


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        *(("r16", 2), ("r24", 3), ("r12", None), ("r", None), ("rx", None), ("string", None), ("example.x", None)),
        (extension("fixed_length_utf32", length_bytes=12), 12),
        (extension("fixed_length_utf32"), None),
        (extension("null_terminated_bytes", length_bytes="x"), None),
        (extension("bool"), 1),
    ],
    ids=repr,
)
def test_other_data_types_have_a_known_size_or_none(data_type: Any, expected: int | None) -> None:
    assert item_nbytes(data_type) == expected
