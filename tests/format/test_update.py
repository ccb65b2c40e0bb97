"""Plans of new shards, carried out on bytes and held against a dictionary of what each entry should hold."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import CorruptionError
from shardfs.format.document import parse_codecs
from shardfs.format.index import EMPTY, IndexCodecs, IndexLayout, ShardIndex
from shardfs.format.update import Added, CopiedRange, Index, Padding, WritePlan, plan_empty, plan_write
from tests.support.corpus import BIG, CRC32C, LITTLE, array, sharding, transpose
from tests.support.datasets import store
from tests.support.encoder import encode_array
from tests.support.readers import READERS, assert_same

Chunks = dict[int, bytes]


def layout_of(codecs: list[Any], shape: tuple[int, ...], at_start: bool = False) -> IndexLayout:
    return IndexLayout(IndexCodecs.parse(parse_codecs(codecs, "index_codecs"), len(shape)), shape, at_start)


LINE = layout_of([LITTLE, CRC32C], (6,))
LINE_AT_START = layout_of([LITTLE, CRC32C], (6,), at_start=True)

both_locations = pytest.mark.parametrize("layout", [LINE, LINE_AT_START], ids=["end", "start"])


def index_of(layout: IndexLayout, shard: bytes) -> ShardIndex:
    start = 0 if layout.at_start else len(shard) - layout.nbytes
    encoded = shard[start : start + layout.nbytes]
    return layout.codecs.decode(encoded, layout.chunks_per_shard, len(shard))


def chunks_in(layout: IndexLayout, shard: bytes) -> Chunks:
    index = index_of(layout, shard)
    ranges = {entry: index.range(entry) for entry in range(index.nentries)}
    return {entry: shard[at[0] : sum(at)] for entry, at in ranges.items() if at is not None}


def carried_out(plan: WritePlan, old: bytes, puts: Mapping[int, bytes]) -> bytes:
    shard = bytearray()
    for piece in plan.pieces:
        match piece:
            case CopiedRange(offset, nbytes):
                assert nbytes > 0
                assert offset + nbytes <= len(old)
                shard += old[offset : offset + nbytes]
            case Added(entry, nbytes):
                assert nbytes == len(puts[entry])
                shard += puts[entry]
            case Padding(nbytes):
                shard += bytes(nbytes)
            case Index(encoded):
                assert encoded == plan.index
                assert piece.nbytes == len(encoded)
                shard += encoded
    assert len(shard) == plan.nbytes
    return bytes(shard)


def spliced(
    layout: IndexLayout,
    old: bytes,
    puts: Mapping[int, bytes],
    erases: set[int] = frozenset(),
    compact: bool = False,
    drop_index: bool = False,
) -> tuple[WritePlan, bytes]:
    """The plan and the new shard; no bytes stand for no shard."""
    index = index_of(layout, old) if old else None
    sizes = {entry: len(data) for entry, data in puts.items()}
    plan = plan_write(layout, index, sizes, erases, compact=compact, drop_index=drop_index)
    return plan, carried_out(plan, old, puts)


def shard_of(codecs: list[Any], shape: tuple[int, ...], at_start: bool, body: bytes, ranges: dict[int, Any]) -> bytes:
    """A shard as any program may have written it: *ranges* of *body*, or entries to be stored as they are."""
    base = len(encode_array(codecs, np.zeros((*shape, 2), np.uint64))) if at_start else 0
    entries = np.full((math.prod(shape), 2), EMPTY, np.uint64)
    for entry, (offset, nbytes) in ranges.items():
        entries[entry] = (offset if offset > 2**40 else base + offset), nbytes
    index = encode_array(codecs, entries.reshape(*shape, 2))
    return index + body if at_start else body + index


def line(at: IndexLayout, body: bytes, ranges: dict[int, Any]) -> bytes:
    return shard_of([LITTLE, CRC32C], (6,), at.at_start, body, ranges)


@st.composite
def shapes_and_codecs(draw: st.DrawFn) -> tuple[list[Any], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    codecs = [transpose(*draw(st.permutations(range(len(shape) + 1)))) for _ in range(draw(st.integers(0, 2)))]
    return [*codecs, draw(st.sampled_from([LITTLE, BIG])), *[CRC32C] * draw(st.integers(0, 2))], shape


@pytest.mark.slow
@given(shapes_and_codecs(), st.booleans(), st.data())
def test_many_changes_leave_what_a_dictionary_would_hold(
    sample: tuple[list[Any], tuple[int, ...]], at_start: bool, data: st.DataObject
) -> None:
    codecs, shape = sample
    layout = layout_of(codecs, shape, at_start)
    entry = st.integers(0, layout.nentries - 1)
    # A first shard of another program: ranges in any order, shared, overlapping and of no length, with gaps.
    body = data.draw(st.binary(max_size=30), "body")
    starts = st.integers(0, len(body))
    ranges = starts.flatmap(lambda start: st.tuples(st.just(start), st.integers(0, len(body) - start)))
    found = data.draw(st.one_of(st.none(), st.dictionaries(entry, ranges)), "foreign shard")
    shard = b"" if found is None else shard_of(codecs, shape, at_start, body, found)
    model: Chunks = {} if found is None else {e: body[start : start + size] for e, (start, size) in found.items()}

    for _ in range(data.draw(st.integers(1, 5), "changes")):
        puts = data.draw(st.dictionaries(entry, st.binary(max_size=9)), "puts")
        erases = data.draw(st.sets(entry), "erases") - puts.keys()
        compact, drop_index = data.draw(st.booleans(), "compact"), data.draw(st.booleans(), "drop index")
        plan, new = spliced(layout, shard, puts, erases, compact, drop_index)
        model = {e: chunk for e, chunk in {**model, **puts}.items() if e not in erases}
        assert plan.is_empty == (not model)
        if plan.is_empty:
            assert (plan.pieces, plan.index, plan.nbytes, plan.is_append) == ((), b"", 0, False)
            shard = b""
            continue
        assert chunks_in(layout, new) == model
        assert plan.is_append == (shard != b"" and not compact and len(puts) < layout.nentries)
        if plan.is_append:
            check_append(layout, shard, new, puts, drop_index)
        else:
            kept = {} if not shard else {e: chunk for e, chunk in model.items() if e not in puts}
            check_laid_out(codecs, layout, shard, new, kept, puts)
        shard = new


@pytest.mark.slow
@given(st.integers(0, 40), st.dictionaries(st.integers(0, 4), st.binary(max_size=40), max_size=5), st.integers(0, 99))
def test_an_aligned_append_ends_each_step_at_a_multiple_and_with_an_index(
    begin: int, puts: Chunks, at_once: int
) -> None:
    """The bytes between the old end and the payloads mean nothing; the last payload ends where the index begins."""
    old = line(LINE, b"x" * begin, {5: (0, begin)})
    index = index_of(LINE, old)
    sizes = {entry: len(data) for entry, data in puts.items()}
    plan = plan_write(LINE, index, sizes, [], alignment=64, at_once=at_once)
    new = carried_out(plan, old, puts)
    assert plan.is_append
    assert new.startswith(old)
    assert chunks_in(LINE, new) == {5: b"x" * begin, **puts}
    copies = [location for location, piece in enumerate(plan.pieces) if isinstance(piece, CopiedRange)][1:]
    assert len(copies) == (sum(sizes.values()) > at_once)
    for stop in (*(location + 1 for location in copies), len(plan.pieces)):
        end = sum(piece.nbytes for piece in plan.pieces[:stop])
        assert end % 64 == 0
        expected = chunks_in(LINE, new if end == len(new) else old)
        assert chunks_in(LINE, new[:end]) == expected
    last = plan.pieces[-2]
    behind = copies[0] + 1 if copies else 1
    payloads = [piece for piece in plan.pieces[behind:] if isinstance(piece, Added)]
    assert sum(piece.nbytes for piece in payloads) <= at_once
    assert not payloads or last == payloads[-1]


def check_append(layout: IndexLayout, old: bytes, new: bytes, puts: Chunks, may_drop_index: bool) -> None:
    """What was there did not move; behind it there are the payloads and one index, and perhaps no old one."""
    payloads = b"".join(puts[entry] for entry in sorted(puts))
    if layout.at_start:
        assert new[layout.nbytes :] == old[layout.nbytes :] + payloads
    else:
        without = old[: -layout.nbytes]
        drops = may_drop_index and len(new) == len(without + payloads) + layout.nbytes
        assert new[: -layout.nbytes] == (without if drops else old) + payloads
    before, after = index_of(layout, old), index_of(layout, new)
    for entry in range(layout.nentries):
        assert entry in puts or after.range(entry) in (None, before.range(entry))


def check_laid_out(codecs: list[Any], layout: IndexLayout, old: bytes, new: bytes, kept: Chunks, puts: Chunks) -> None:
    """No byte of the new shard is dead or doubled, and where nothing is shared it is what the encoder writes."""
    before, after = index_of(layout, old) if old else None, index_of(layout, new)
    live = [before.range(entry) for entry in kept] if before else []
    covered = {byte for at in live for byte in range(at[0], sum(at))}
    assert len(new) == len(covered) + sum(map(len, puts.values())) + layout.nbytes
    ranges = [after.range(entry) for entry in {**kept, **puts}]
    reached = {byte for at in ranges for byte in range(at[0], sum(at))}
    assert len(reached) == len(new) - layout.nbytes
    if sum(nbytes for _, nbytes in ranges) == len(reached):
        chunks, position, entries = {**kept, **puts}, 0, {}
        for entry in sorted(chunks):
            entries[entry] = position, len(chunks[entry])
            position += len(chunks[entry])
        body = b"".join(chunks[entry] for entry in sorted(chunks))
        if all(chunks.values()):
            assert new == shard_of(codecs, layout.chunks_per_shard, layout.at_start, body, entries)


@both_locations
def test_compacting_keeps_neighbours_as_one_range(layout: IndexLayout) -> None:
    base = layout.nbytes if layout.at_start else 0
    old = line(layout, b"aabbccddee", {0: (0, 2), 1: (2, 2), 2: (9, 0), 3: (4, 2), 4: (8, 2), 5: (6, 2)})
    plan, _ = spliced(layout, old, {}, compact=True)
    payloads = [piece for piece in plan.pieces if not isinstance(piece, Index)]
    assert payloads == [CopiedRange(base, 6), CopiedRange(base + 8, 2), CopiedRange(base + 6, 2)]
    plan, _ = spliced(layout, old, {1: b"x"}, compact=True)
    payloads = [piece for piece in plan.pieces if not isinstance(piece, Index)]
    assert payloads == [
        CopiedRange(base, 2),
        Added(1, 1),
        CopiedRange(base + 4, 2),
        CopiedRange(base + 8, 2),
        CopiedRange(base + 6, 2),
    ]


HALF_EMPTY = (EMPTY, 3)
ENDLESS = (2, EMPTY)
BEYOND = (2, 2000)


@both_locations
@pytest.mark.parametrize("damage", [HALF_EMPTY, ENDLESS, BEYOND, (2**63, 2**63), (2**50, 0)], ids=str)
def test_an_append_keeps_a_damaged_entry_as_it_is(layout: IndexLayout, damage: tuple[int, int]) -> None:
    old = line(layout, b"abcdef", {0: (0, 3), 1: damage})
    plan, new = spliced(layout, old, {2: b"xy"}, {0})
    assert not plan.is_empty
    assert index_of(layout, new).entries[1].tolist() == index_of(layout, old).entries[1].tolist()
    with pytest.raises(CorruptionError):
        index_of(layout, new).range(1)
    assert not spliced(layout, old, {}, {0})[0].is_empty, "damage is not lost silently"


@both_locations
def test_an_append_gives_no_sense_to_an_entry_that_named_bytes_beyond_the_end(layout: IndexLayout) -> None:
    shard = line(layout, b"abcdef", {0: (0, 3), 1: BEYOND})
    for _ in range(3):
        _, shard = spliced(layout, shard, {2: bytes(1000)})
        with pytest.raises(CorruptionError, match="entry 1 "):
            index_of(layout, shard).range(1)


@both_locations
@pytest.mark.parametrize("damage", [HALF_EMPTY, ENDLESS, BEYOND], ids=str)
def test_compacting_refuses_to_lose_a_damaged_entry(layout: IndexLayout, damage: tuple[int, int]) -> None:
    old = line(layout, b"abcdef", {0: (0, 3), 1: damage})
    with pytest.raises(CorruptionError, match="entry 1 "):
        spliced(layout, old, {2: b"xy"}, {0}, compact=True)


@both_locations
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("damage", [HALF_EMPTY, ENDLESS, BEYOND], ids=str)
def test_a_damaged_entry_can_be_put_and_erased(layout: IndexLayout, compact: bool, damage: tuple[int, int]) -> None:
    old = line(layout, b"abcdef", {0: (0, 3), 1: damage})
    assert chunks_in(layout, spliced(layout, old, {1: b"xy"}, compact=compact)[1]) == {0: b"abc", 1: b"xy"}
    assert chunks_in(layout, spliced(layout, old, {}, {1}, compact)[1]) == {0: b"abc"}


def test_an_append_does_not_replace_an_index_that_is_a_payload() -> None:
    entries = np.full((6, 2), EMPTY, np.uint64)
    entries[0] = LINE_AT_START.nbytes - 1, 3
    old = encode_array([LITTLE, CRC32C], entries) + b"abcdef"
    with pytest.raises(CorruptionError, match="entry 0 "):
        spliced(LINE_AT_START, old, {2: b"xy"})
    entries[0, 1] = 0
    of_no_bytes = encode_array([LITTLE, CRC32C], entries) + b"abcdef"
    assert chunks_in(LINE_AT_START, spliced(LINE_AT_START, of_no_bytes, {2: b"xy"})[1]) == {0: b"", 2: b"xy"}
    expected = chunks_in(LINE_AT_START, old)
    assert chunks_in(LINE_AT_START, spliced(LINE_AT_START, old, {2: b"xy"}, compact=True)[1]) == {**expected, 2: b"xy"}
    assert chunks_in(LINE_AT_START, spliced(LINE_AT_START, old, {0: b"xy"})[1]) == {0: b"xy"}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("location", ["end", "start"])
def test_other_programs_read_an_appended_and_a_compacted_shard(tmp_path: Path, reader: str, location: str) -> None:
    document = array((8, 6), (8, 6), sharding((2, 3), index_location=location))
    values = np.arange(48, dtype=np.int32).reshape(8, 6)
    store(tmp_path, document, values.copy(), absent=[(3, 1)])
    layout = layout_of([LITTLE, CRC32C], (4, 2), location == "start")
    values[6:8, 3:6] = 0
    shard = (tmp_path / "c/0/0").read_bytes()
    for number, compact in ((1, False), (7, False), (2, True), (4, False)):
        row, column = divmod(number, 2)
        block = np.full((2, 3), 100 + number, np.int32)
        erased = (number + 4) % 8
        _, shard = spliced(layout, shard, {number: block.tobytes()}, {erased}, compact)
        values[2 * row : 2 * row + 2, 3 * column : 3 * column + 3] = block
        row, column = divmod(erased, 2)
        values[2 * row : 2 * row + 2, 3 * column : 3 * column + 3] = 0
        (tmp_path / "c/0/0").write_bytes(shard)
        assert_same(READERS[reader](tmp_path), values)


def test_an_index_that_an_entry_names_bytes_of_is_not_dropped() -> None:
    shard = line(LINE, b"abcdef", {0: (0, 6), 1: (4, 10)})
    named = shard[4:14]
    _, new = spliced(LINE, shard, {2: b"new"}, drop_index=True)
    assert new.startswith(shard)
    assert chunks_in(LINE, new) == {0: b"abcdef", 1: named, 2: b"new"}


def test_a_damaged_entry_is_not_lent_sense_by_what_takes_the_place_of_the_index() -> None:
    shard = line(LINE, b"abcdef", {0: (0, 6), 1: (6, 2**20)})
    _, new = spliced(LINE, shard, {2: b"x" * 2**21}, drop_index=True)
    with pytest.raises(CorruptionError):
        index_of(LINE, new).range(1)


@both_locations
def test_a_shard_without_chunks_is_an_index_that_says_so(layout: IndexLayout) -> None:
    plan = plan_empty(layout)
    assert not plan.is_empty
    assert chunks_in(layout, carried_out(plan, b"", {})) == {}
