"""The shard index: decoding against the encoder, and the judgement of entries."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.document import parse_codecs
from shardfs.format.index import EMPTY, IndexCodecs, ShardIndex, are_empty, are_sound, damaged
from tests.support.corpus import BIG, CRC32C, IGNORED, LITTLE, extension, transpose
from tests.support.encoder import encode_array

U64 = 2**64 - 1
SIZES = [0, 1, 1000, 2**32, 2**53, 2**62, 2**63 - 1]
edge_values = st.sampled_from([0, 1, 2, 999, 1000, 1001, 2**63 - 1, 2**63, 2**63 + 1, U64 - 1000, U64 - 1, U64, *SIZES])
values = st.one_of(edge_values, st.integers(0, U64), st.integers(0, 1200))
pairs = st.tuples(values, values)


def parsed(codecs: list[Any], ndim: int) -> IndexCodecs:
    return IndexCodecs.parse(parse_codecs(codecs, "index_codecs"), ndim)


def index_of(entries: list[tuple[int, int]], shard_nbytes: int) -> ShardIndex:
    array = np.array(entries, np.uint64).reshape(-1, 2)
    codecs = [LITTLE]
    return parsed(codecs, 1).decode(encode_array(codecs, array), (len(entries),), shard_nbytes)


@st.composite
def indexes(draw: st.DrawFn) -> tuple[list[Any], np.ndarray]:
    """Index codecs, and the entries of a shard."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    codecs = [transpose(*draw(st.permutations(range(len(shape) + 1)))) for _ in range(draw(st.integers(0, 2)))]
    codecs += [draw(st.sampled_from([LITTLE, BIG])), *[CRC32C] * draw(st.integers(0, 2))]
    count = 2 * math.prod(shape)
    entries = draw(st.lists(values, min_size=count, max_size=count))
    return codecs, np.array(entries, np.uint64).reshape(*shape, 2)


@pytest.mark.slow
@given(indexes())
def test_decoding_undoes_the_encoder(sample: tuple[list[Any], np.ndarray]) -> None:
    codecs, entries = sample
    shape = entries.shape[:-1]
    encoded = encode_array(codecs, entries)
    index_codecs = parsed(codecs, len(shape))
    index = index_codecs.decode(encoded, shape, 1000)
    assert index_codecs.nbytes(math.prod(shape)) == len(encoded)
    assert index.values.tolist() == entries.ravel().tolist()
    assert index.nentries == math.prod(shape)
    assert index.encoded == encoded
    assert index.nbytes >= len(encoded)


@pytest.mark.slow
@given(pairs, st.one_of(st.sampled_from(SIZES), st.integers(0, 1200)))
@example((U64, U64), 0)
@example((U64, 0), 2**63 - 1)
@example((0, U64), 2**63 - 1)
@example((U64, 1), 2**63 - 1)
@example((1, U64), 2**63 - 1)
@example((U64 - 1, 2), 1000)
@example((1000, 0), 1000)
@example((1001, 0), 1000)
def test_an_entry_is_empty_or_within_the_shard_or_damaged(entry: tuple[int, int], size: int) -> None:
    offset, nbytes = entry
    index = index_of([entry], size)
    if entry == (EMPTY, EMPTY):
        assert index.range(0) is None
    elif offset + nbytes <= size:
        assert index.range(0) == (offset, nbytes)
    else:
        with pytest.raises(CorruptionError):
            index.range(0)


@pytest.mark.slow
@given(st.lists(pairs, min_size=1, max_size=12), st.one_of(st.sampled_from(SIZES), st.integers(0, 1200)))
def test_entries_are_judged_together_like_each_of_them(entries: list[tuple[int, int]], size: int) -> None:
    index = index_of(entries, size)
    assert list(map(tuple, index.entries.tolist())) == entries
    judged = zip(are_empty(index.entries), are_sound(index.entries, size), strict=True)
    for entry, (empty, sound) in enumerate(judged):
        assert not (empty and sound)
        assert (entry in damaged(index.entries, size)) == (not empty and not sound)
        if empty or sound:
            assert index.range(entry) == (entries[entry] if sound else None)
        else:
            with pytest.raises(CorruptionError):
                index.range(entry)


@given(
    st.integers(0, 2**32), st.sampled_from([[LITTLE, CRC32C], [BIG, CRC32C, CRC32C], [transpose(1, 0), LITTLE, CRC32C]])
)
def test_a_flipped_bit_behind_a_checksum_is_noticed(place: int, codecs: list[Any]) -> None:
    encoded = bytearray(encode_array(codecs, np.arange(12, dtype=np.uint64).reshape(6, 2)))
    encoded[place // 8 % len(encoded)] ^= 1 << place % 8
    with pytest.raises(CorruptionError):
        parsed(codecs, 1).decode(bytes(encoded), (6,), 1000)


def test_without_a_checksum_a_damaged_entry_leaves_the_others() -> None:
    index = index_of([(0, 10), (U64, 7), (10, 990), (990, 11), (U64, U64), (1000, 0)], 1000)
    assert index.range(0) == (0, 10)
    assert index.range(2) == (10, 990)
    assert index.range(4) is None
    assert index.range(5) == (1000, 0)
    for entry in (1, 3):
        with pytest.raises(CorruptionError, match=f"entry {entry} "):
            index.range(entry)
    assert damaged(index.entries, 1000) == [1, 3]


@pytest.mark.parametrize(
    ("codecs", "nbytes"),
    [
        ([LITTLE], 160),
        (["crc32c" if codec is CRC32C else codec for codec in (BIG, CRC32C)], 164),
        ([extension("endian", endian="big"), CRC32C, CRC32C], 168),
        ([IGNORED, transpose(1, 0), LITTLE, IGNORED, CRC32C], 164),
    ],
)
def test_an_encoded_index_has_a_size_that_is_known_beforehand(codecs: list[Any], nbytes: int) -> None:
    assert parsed(codecs, 1).nbytes(10) == nbytes


@pytest.mark.parametrize(
    "codecs",
    [
        [extension("example.raw")],
        [extension("example.raw"), LITTLE],
        [extension("vlen-bytes")],
        [transpose(0, 1, 2), LITTLE],
        [LITTLE, extension("crc32c", location="start")],
        [extension("bytes", endian="little", extra=1)],
    ],
    ids=repr,
)
def test_index_codecs_without_a_fixed_size_or_meaning_are_refused(codecs: list[Any]) -> None:
    with pytest.raises(MetadataError):
        parsed(codecs, 1)
