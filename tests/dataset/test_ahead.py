"""Which chunks are fetched ahead of a program, by the order in which it reads."""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest

from shardfs.dataset.ahead import Scans
from shardfs.format.sharding import Coords

MANY = 2**30


class Reader:
    """Reads chunks of a grid, and notes which of them were expected by then, and how many were that it had not read."""

    def __init__(self, shape: Sequence[int], *, chunk_nbytes: int = 2**16, max_nbytes: int = MANY) -> None:
        self.scans = Scans(shape)
        self.chunk_nbytes, self.max_nbytes = chunk_nbytes, max_nbytes
        self.expected: set[Coords] = set()
        self.read: list[Coords] = []
        self.late: list[Coords] = []
        self.most = 0

    def reads(self, order: Iterable[Coords]) -> "Reader":
        for coords in order:
            self.late += [coords] if coords not in self.expected else []
            self.read.append(coords)
            scan = self.scans.note(coords)
            if scan is not None:
                scan.chunk_nbytes = self.chunk_nbytes
                self.expected |= {*self.scans.expect(scan, self.max_nbytes)}
            self.most = max(self.most, len(self.wasted))
        return self

    @property
    def wasted(self) -> set[Coords]:
        return self.expected - {*self.read}


def box(*sides: range) -> list[Coords]:
    """All chunks of a box, in C order."""
    return list(product(*sides))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (4, 4, 4), (64, 1), (1, 64, 1), (1, 1, 9)])
def test_of_a_whole_array_all_chunks_but_the_first_four_are_fetched_ahead(shape: tuple[int, ...]) -> None:
    reader = Reader(shape).reads(box(*map(range, shape)))
    assert reader.late == reader.read[:4]
    assert reader.wasted == set()


def test_after_a_few_chunks_never_more_is_fetched_ahead_than_twice_what_was_read_or_fits() -> None:
    reader = Reader((10_000,))
    for number in range(2_000):
        reader.reads([(number,)])
        assert len(reader.wasted) <= max(16, 2 * (number + 1))
    assert reader.most == 1024
    assert Reader((10_000,), max_nbytes=40 * 2**16).reads(box(range(2_000))).most == 40
    assert Reader((10_000,), max_nbytes=2**15).reads(box(range(100))).expected == set()


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        pytest.param((16, 16), box(range(16), range(4, 9)), id="rows"),
        pytest.param((8, 16, 16), box(range(8), range(2, 9), range(5, 16)), id="planes"),
        pytest.param((200,), box(range(0, 200, 2)), id="every other"),
        pytest.param((8, 60), box(range(8), range(0, 60, 3)), id="every third of rows"),
        pytest.param((40, 7), box(range(40), range(3, 4)), id="a column"),
    ],
)
def test_of_a_box_nearly_all_is_fetched_ahead_and_little_else(shape: tuple[int, ...], order: Sequence[Coords]) -> None:
    reader = Reader(shape).reads(order)
    assert len(reader.late) <= 6
    assert len(reader.wasted) <= max(40, len(order) // 4)


def test_threads_that_read_a_little_out_of_order_are_read_ahead_of() -> None:
    order = box(range(16), range(16))
    for number in range(0, len(order), 2):
        order[number : number + 2] = order[number : number + 2][::-1]
    reader = Reader((16, 16)).reads(order)
    assert len(reader.late) == 4
    assert reader.wasted == set()


def test_each_of_several_readers_is_read_ahead_of() -> None:
    rows = [box(range(number, number + 1), range(100)) for number in range(0, 8, 2)]
    reader = Reader((8, 100)).reads(coords for together in zip(*rows, strict=True) for coords in together)
    assert len(reader.late) == 4 * 4


def _shuffled(shape: tuple[int, ...]) -> Callable[[int], list[Coords]]:
    return lambda seed: random.Random(seed).sample(box(*map(range, shape)), 64)


@pytest.mark.parametrize("shape", [(1024,), (32, 32), (8, 8, 16)])
def test_ahead_of_who_reads_here_and_there_nothing_is_fetched(shape: tuple[int, ...]) -> None:
    readers = [Reader(shape).reads(_shuffled(shape)(seed)) for seed in range(100)]
    assert sum(bool(reader.expected) for reader in readers) <= 1


@pytest.mark.parametrize(
    "places", [[0, 1, 2], [0, 1, 2, 2, 1, 0], [9, 8, 7, 6, 5], [0, 90, 1, 80, 2, 70], [0, 5, 10, 15, 20]]
)
def test_ahead_of_too_few_chunks_nothing_is_fetched(places: Sequence[int]) -> None:
    assert Reader((100,)).reads((place,) for place in places).expected == set()


def test_who_goes_elsewhere_is_not_read_ahead_of_any_longer() -> None:
    reader = Reader((1000,)).reads(box(range(100)))
    expected = len(reader.expected)
    reader.reads(box(range(700, 703)))
    assert len(reader.expected) == expected
    reader.reads(box(range(703, 720)))
    assert (719,) in reader.expected
