"""Names are sorted as `sorted` does, and nobody waits for that."""

import numpy as np
import pytest

from shardfs.formats.order import in_order
from tests.support.loop_clock import longest_turn
from tests.support.opened import in_trio


def names(count: int, kinds: int) -> list[bytes]:
    numbers = np.random.default_rng(count).integers(0, kinds, count).tolist()
    return [f"image/c/{number}/{number % 7}".encode() for number in numbers]


@pytest.mark.parametrize("kinds", [1, 10, 2**40])
@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_names_are_in_order_and_equal_ones_stay_in_theirs(count: int, kinds: int) -> None:
    found = names(count, kinds)
    assert in_order(found) == sorted(range(count), key=found.__getitem__)


@pytest.mark.slow
@in_trio
async def test_others_have_their_turns_while_a_million_names_are_sorted() -> None:
    found = names(1_000_000, 2**40)
    assert await longest_turn(lambda: in_order(found)) < 0.15
