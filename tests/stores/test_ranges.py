"""Few requests are planned for many ranges, each byte in one of them, none much larger than what is wanted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.stores.objects.ranges import (
    MAX_GAP,
    WINDOW_NBYTES,
    Reads,
    Span,
    gaps,
    merge,
    pieces_around,
    window,
)

MIB = 2**20

spans = st.builds(lambda start, nbytes: Span(start, start + nbytes), st.integers(0, 200), st.integers(1, 40))


def test_a_gap_that_costs_less_than_a_request_is_fetched_along() -> None:
    far = 10 + MAX_GAP
    assert merge([Span(0, 10), Span(far, far + 1)]) == [Span(0, far + 1)]
    assert merge([Span(0, 10), Span(far + 1, far + 2)]) == [Span(0, 10), Span(far + 1, far + 2)]


@pytest.mark.slow
@given(st.lists(spans, max_size=12), st.integers(0, 20), st.integers(1, 120))
def test_every_range_lies_in_exactly_one_that_is_fetched(wanted: list[Span], gap: int, most: int) -> None:
    merged = merge(wanted, max_gap=gap, max_nbytes=most)
    for span in wanted:
        assert sum(found.start <= span.start and span.stop <= found.stop for found in merged) == 1
    for before, after in pairwise(merged):
        assert before.stop <= after.start
        assert after.start - before.stop > gap or after.stop - before.start > most
    covered = {byte for span in wanted for byte in range(*span)}
    for found in merged:
        missing = [byte not in covered for byte in range(*found)]
        assert "1" * (gap + 1) not in "".join("1" if is_missing else "0" for is_missing in missing)


def test_a_window_holds_what_is_wanted_however_large_that_is() -> None:
    reads = Reads(100 * MIB, [Span(0, MIB)])
    assert window(reads, Span(0, 30 * MIB), 100 * MIB) == Span(0, 30 * MIB)


@pytest.mark.parametrize("size", [1, 5, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB - 1, 100 * MIB + 7, 1024 * MIB])
def test_an_object_read_in_order_takes_a_request_for_each_8_mib(size: int) -> None:
    position, requests, end = 0, 0, None
    while position < size:
        reads = Reads(size, [Span(0, size)], window_end=end)
        found = window(reads, Span(position, position + 1), size)
        assert found is not None
        assert found.start == position
        assert found.nbytes <= 2 * WINDOW_NBYTES
        position = end = found.stop
        requests += 1
    assert requests <= max(1, size // WINDOW_NBYTES)


def test_gaps_are_all_bytes_that_no_span_has() -> None:
    assert gaps([], 10) == [Span(0, 10)]
    assert gaps([Span(4, 6), Span(0, 2), Span(1, 3)], 10) == [Span(3, 4), Span(6, 10)]
    assert gaps([Span(0, 10)], 10) == []


def test_who_reads_much_of_a_block_gets_all_that_is_missing_of_it_and_else_what_is_wanted() -> None:
    covered, much, little = [Span(0, MIB)], Span(3 * MIB, 7 * MIB // 2), Span(3 * MIB, 3 * MIB + 2**16)
    assert pieces_around([much], covered, 8 * MIB, lambda _: True) == [Span(MIB, 8 * MIB)]
    assert pieces_around([little], covered, 8 * MIB, lambda _: True) == [little]
    assert pieces_around([much], covered, 8 * MIB, lambda nbytes: nbytes < 6 * MIB) == [much]


def test_of_a_large_object_one_block_is_wanted_for_small_units_and_none_for_large_ones() -> None:
    small = [Span(start, start + MAX_GAP) for start in range(17 * MIB, 19 * MIB, 2 * MAX_GAP)]
    assert pieces_around(small, [], 64 * MIB, lambda _: True) == [Span(16 * MIB, 24 * MIB)]
    large = Span(17 * MIB, 18 * MIB)
    assert pieces_around([large], [], 64 * MIB, lambda _: True) == [large]
