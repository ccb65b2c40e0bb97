"""Torn shards: the last whole index is found wherever it lies."""

import math
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import CorruptionError
from shardfs.format import index as index_module
from shardfs.format.document import parse_codecs
from shardfs.format.index import EMPTY, IndexCodecs, IndexLayout, find_last_index
from tests.support.corpus import BIG, CRC32C, LITTLE, transpose
from tests.support.encoder import encode_array

CODECS = [
    [LITTLE, CRC32C],
    [BIG, CRC32C],
    [LITTLE, CRC32C, CRC32C],
    [transpose(1, 0), LITTLE, CRC32C],
    [transpose(1, 0), BIG, CRC32C, CRC32C],
]
every_codecs = pytest.mark.parametrize("codecs", CODECS, ids=lambda codecs: "-".join(c["name"] for c in codecs))


def layout_of(codecs: list[Any], *shape: int, at_start: bool = False) -> IndexLayout:
    return IndexLayout(IndexCodecs.parse(parse_codecs(codecs, "index_codecs"), len(shape)), shape, at_start)


def index(codecs: list[Any], entries: dict[int, tuple[int, int]], *shape: int) -> bytes:
    values = np.full((math.prod(shape), 2), EMPTY, np.uint64)
    for entry, value in entries.items():
        values[entry] = value
    return encode_array(codecs, values.reshape(*shape, 2))


def found(layout: IndexLayout, data: bytes | bytearray) -> int | None:
    """The last index of a shard that is read in parts."""
    view = memoryview(data)

    def read(offset: int, nbytes: int) -> memoryview:
        assert 0 <= offset <= offset + nbytes <= len(view)
        return view[offset : offset + nbytes]

    return find_last_index(layout, len(view), read)


def last_index(layout: IndexLayout, data: bytes) -> int | None:
    """The same search, one offset after the other."""
    for offset in range(len(data) - layout.nbytes, -1, -1):
        try:
            found = layout.codecs.decode(data[offset : offset + layout.nbytes], layout.chunks_per_shard, offset)
            for entry in range(found.nentries):
                found.range(entry)
        except CorruptionError:
            continue
        return offset
    return None


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the bytes of a test are many blocks of several rows."""
    monkeypatch.setattr(index_module, "_ROW", 5)
    monkeypatch.setattr(index_module, "_ROWS", 3)


tails = st.one_of(
    st.binary(max_size=70),
    st.integers(0, 100).map(bytes),
    st.integers(0, 100).map(lambda size: b"\xff" * size),
    st.integers(0, 12).map(lambda size: b"\1\0\0\0\0\0\0\0" * size),
)


@pytest.mark.slow
@every_codecs
@pytest.mark.usefixtures("small_blocks")
@given(data=st.data())
def test_the_last_index_is_found_among_older_ones_and_anything_else(codecs: list[Any], data: st.DataObject) -> None:
    layout = layout_of(codecs, 2)
    shard = b""
    for _ in range(data.draw(st.integers(1, 4), "parts")):
        shard += data.draw(tails, "bytes")
        # Now and then an entry is damaged, or names bytes that are not there yet.
        number = st.integers(0, len(shard) + 2)
        entry = st.one_of(st.tuples(number, number), st.just((EMPTY, 0)), st.just((0, EMPTY)))
        shard += index(codecs, data.draw(st.dictionaries(st.integers(0, 1), entry), "entries"), 2)
    shard += data.draw(tails, "tail")
    shard = shard[: len(shard) - data.draw(st.integers(0, layout.nbytes), "cut")]
    assert found(layout, shard) == last_index(layout, shard)


@every_codecs
def test_an_index_that_names_bytes_behind_it_is_none(codecs: list[Any]) -> None:
    old = b"abc" + index(codecs, {1: (0, 3)}, 3)
    layout = layout_of(codecs, 3)
    for entries in ({0: (len(old) + 7, 1)}, {2: (0, len(old) + 8)}, {1: (EMPTY, 3)}, {1: (3, EMPTY)}):
        assert found(layout, old + b"payload" + index(codecs, entries, 3) + b"tail") == 3
    entries = {0: (len(old) + 7, 0), 2: (0, len(old) + 7)}
    assert found(layout, old + b"payload" + index(codecs, entries, 3) + b"tail") == len(old) + 7


@every_codecs
@pytest.mark.usefixtures("small_blocks")
def test_where_there_is_no_whole_index_none_is_found(codecs: list[Any]) -> None:
    layout = layout_of(codecs, 3)
    whole = b"abc" + index(codecs, {1: (0, 3)}, 3)
    for shard in (b"", b"abc", whole[:-1], bytes(500), b"\xff" * 500, np.random.default_rng(1).bytes(5000)):
        assert found(layout, shard) is None
    for place in range(3, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        assert found(layout, damaged) is None


@pytest.mark.parametrize(
    "layout", [layout_of([LITTLE], 3), layout_of([LITTLE, CRC32C], 3, at_start=True)], ids=["unchecked", "at start"]
)
def test_an_index_that_cannot_be_told_from_other_bytes_is_not_searched_for(layout: IndexLayout) -> None:
    shard = b"abc" + index([LITTLE, CRC32C], {1: (0, 3)}, 3)
    with pytest.raises(ValueError):
        found(layout, shard)


@pytest.mark.slow
def test_the_search_needs_no_more_memory_for_more_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_ROW", 128)
    monkeypatch.setattr(index_module, "_ROWS", 64)
    shard = b"abc" + index([LITTLE, CRC32C], {1: (0, 3)}, 3) + bytes(1 << 20)
    tracemalloc.start()
    assert found(layout_of([LITTLE, CRC32C], 3), shard) == 3
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("at_start", [False, True])
def test_the_index_of_an_inner_shard_is_not_taken_for_that_of_the_shard_around_it(at_start: bool) -> None:
    """Both have as many entries and the same codecs, so each is valid by itself."""
    codecs = [LITTLE, CRC32C]
    layout, inner = layout_of(codecs, 2), layout_of(codecs, 2, at_start=at_start)

    def shard(content: bytes) -> bytes:
        begin = inner.nbytes if at_start else 0
        own = index(codecs, {0: (begin, 3), 1: (begin + 3, len(content) - 3)}, 2)
        return own + content if at_start else content + own

    first = shard(b"content of some length")
    whole = first + index(codecs, {1: (0, len(first))}, 2)
    torn = whole + shard(b"what was appended, without an index")
    read = partial(_read, torn)
    assert find_last_index(layout, len(torn), read, inner) == len(first)
    assert at_start or find_last_index(layout, len(torn), read) == len(torn) - inner.nbytes, "it is needed"


def test_an_index_is_that_of_a_shard_though_one_of_its_inner_shards_is_damaged() -> None:
    codecs = [LITTLE, CRC32C]
    layout = inner = layout_of(codecs, 2)
    shards = [content + index(codecs, {0: (0, len(content))}, 2) for content in (b"one", b"and another one")]
    ends = [len(shards[0]), len(shards[0]) + len(shards[1])]
    older = index(codecs, {0: (0, ends[0])}, 2)
    newer = index(codecs, {0: (0, ends[0]), 1: (ends[0] + len(older), len(shards[1]))}, 2)
    whole = shards[0] + older + shards[1] + newer
    damaged = bytes([whole[0]]) + whole[1 : ends[0] - 1] + bytes([whole[ends[0] - 1] ^ 1]) + whole[ends[0] :]
    torn = damaged + b"what was appended"
    assert find_last_index(layout, len(torn), partial(_read, torn), inner) == len(whole) - len(newer)


def _read(data: bytes, offset: int, nbytes: int) -> bytes:
    return data[offset : offset + nbytes]
