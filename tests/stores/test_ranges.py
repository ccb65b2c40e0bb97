"""Few requests are planned for many ranges, each byte in one of them, none much larger than what is wanted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.stores.ranges import MAX_GAP, MAX_NBYTES, WINDOW_NBYTES, Reads, Span, merge, window

MIB = 2**20

spans = st.builds(lambda start, nbytes: Span(start, start + nbytes), st.integers(0, 200), st.integers(1, 40))


def test_a_gap_that_costs_less_than_a_request_is_fetched_along() -> None:
    far = 10 + MAX_GAP
    assert merge([Span(0, 10), Span(far, far + 1)]) == [Span(0, far + 1)]
    assert merge([Span(0, 10), Span(far + 1, far + 2)]) == [Span(0, 10), Span(far + 1, far + 2)]


def test_neighbours_stay_apart_when_they_would_be_too_much_for_one_request() -> None:
    half = MAX_NBYTES // 2
    assert merge([Span(0, half), Span(half, MAX_NBYTES)]) == [Span(0, MAX_NBYTES)]
    assert merge([Span(0, half), Span(half, MAX_NBYTES + 1)]) == [Span(0, half), Span(half, MAX_NBYTES + 1)]


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


def test_a_read_anywhere_is_no_window() -> None:
    assert window(Reads(100 * MIB), Span(0, 10), 100 * MIB) is None
    reads = Reads(100 * MIB, [Span(0, 90 * MIB)], read_end=MIB, window_end=2 * MIB)
    assert window(reads, Span(50 * MIB, 51 * MIB), 100 * MIB) is None
    assert window(reads, Span(MIB - 1, MIB), 100 * MIB) is None


def test_what_is_expected_is_a_window_from_its_beginning() -> None:
    reads = Reads(100 * MIB, [Span(MIB, 5 * MIB)])
    assert window(reads, Span(MIB, MIB + 10), 100 * MIB) == Span(MIB, 5 * MIB)


def test_a_read_behind_the_last_one_is_a_window_to_the_end() -> None:
    assert window(Reads(4 * MIB, read_end=100), Span(100, 200), 4 * MIB) == Span(100, 4 * MIB)
    assert window(Reads(4 * MIB, read_end=100), Span(110, 200), 4 * MIB) == Span(110, 4 * MIB)


def test_a_window_goes_on_where_the_last_one_ended() -> None:
    """What lies across the end of a window would be fetched in two requests else."""
    assert window(Reads(4 * MIB, window_end=100), Span(110, 200), 4 * MIB) == Span(100, 4 * MIB)


def test_a_window_ends_where_something_is_at_hand() -> None:
    assert window(Reads(4 * MIB, read_end=100), Span(100, 200), 2 * MIB) == Span(100, 2 * MIB)


def test_a_window_holds_what_is_wanted_however_large_that_is() -> None:
    reads = Reads(100 * MIB, [Span(0, MIB)])
    assert window(reads, Span(0, 30 * MIB), 100 * MIB) == Span(0, 30 * MIB)


def test_reading_on_stays_within_what_is_expected() -> None:
    reads = Reads(4 * MIB, [Span(0, MIB)], read_end=100)
    assert window(reads, Span(100, 200), 4 * MIB) == Span(100, MIB)


def test_reading_on_beyond_what_was_expected_does_not_stop_at_the_next_expectation() -> None:
    reads = Reads(4 * MIB, [Span(0, MIB), Span(MIB, 2 * MIB)], window_end=MIB)
    assert window(reads, Span(MIB, MIB + 10), 4 * MIB) == Span(MIB, 4 * MIB)


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
