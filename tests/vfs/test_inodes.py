"""Inode numbers: computed ones and those of the table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shardfs.errors import StaleError
from shardfs.vfs.inodes import GONE, MISSING, ROOT, ArrayRanges, ChunkNumbering, Inodes, TreePosition, in_table


def known(table: Inodes, path: str) -> int | None:
    """The number of what has *path*."""
    row = table.row_at(path)
    return row.ino if row is not None else None


def flat(nchunks: int) -> ChunkNumbering:
    """A directory of so many chunks."""
    return ChunkNumbering.of((nchunks,), nested=False)


@pytest.mark.slow
@given(st.lists(st.integers(1, 2**36), min_size=1, max_size=8), st.data())
def test_numbers_of_arrays_are_unique_and_have_an_inverse(sizes: list[int], data: st.DataObject) -> None:
    ranges = ArrayRanges()
    arrays = [ranges.add(str(n), b"", b"", flat(size)) for n, size in enumerate(sizes)]
    for numbers in arrays:
        generation = data.draw(st.integers(0, 2**20))
        position = data.draw(st.integers(0, numbers.npositions - 1))
        ino = numbers.ino(generation, position)
        assert 2**46 <= ino < 2**64
        assert not in_table(ino)
        assert ranges.find(ino) == (numbers, position)
        assert ino == numbers.ino(generation + 1024, position) != numbers.ino(generation + 1, position)
        version = numbers.version(generation, position)
        assert version == numbers.version(generation + 1023, position) != numbers.version(generation + 1, position)
        assert version != numbers.ino(MISSING, position)


def test_an_array_in_place_of_another_has_other_numbers() -> None:
    ranges = ArrayRanges()
    first, other, second = (
        ranges.add(path, b"", kind, flat(10)) for path, kind in (("a/b", b"1"), ("c", b""), ("a/b", b"2"))
    )
    assert ranges.at("a/b") is second
    assert ranges.find(second.ino(0, 9)) == (second, 9)
    assert ranges.find(other.ino(1023, 9)) == (other, 9)
    for ino in (first.ino(0, 0), first.ino(0, 1), second.ino(1023, 9) + 2, 2**46 - 1):
        with pytest.raises(StaleError):
            ranges.find(ino)
    ranges.remove_below("a", "x")
    assert ranges.at("a/b") is None
    with pytest.raises(StaleError):
        ranges.find(second.ino(0, 0))


def test_directories_of_an_array_that_gets_another_shape_stay_what_they_are() -> None:
    ranges = ArrayRanges()
    shapes = [(4, 5, 6), (4, 2, 9), (1, 5, 6)]
    first, _, last = (ranges.add("a", bytes(shape), b"", ChunkNumbering.of(shape, nested=True)) for shape in shapes)
    for coords in ((), (0,), (0, 4)):
        before, now = first.numbering.of_directory(coords), last.numbering.of_directory(coords)
        assert ranges.find(first.ino(7, before)) == (last, now)
        assert ranges.present(TreePosition(first, before)) == (last, now)
    chunk = first.numbering.of_chunk((0, 0, 0))
    for position in (first.numbering.of_directory((1,)), first.numbering.of_directory((1, 0)), chunk):
        with pytest.raises(StaleError):
            ranges.find(first.ino(0, position))
        assert ranges.present(TreePosition(first, position)) == (first, position)
    for _ in range(20):
        ranges.add("a", b"", b"", last.numbering)
    ranges.remove("a")
    again = ranges.add("a", b"", b"", last.numbering)
    for numbers in (first, last):
        assert ranges.present(TreePosition(numbers, 0)) == (numbers, 0)
        with pytest.raises(StaleError):
            ranges.find(numbers.ino(0, 0))
    assert ranges.find(again.ino(0, 0)) == (again, 0)


PATHS = [f"{directory}{name}" for directory in ("", "d/", "d/e/", "f/") for name in "ab"] + ["d", "d/e", "f"]
paths = st.sampled_from(PATHS)


class Kernel(RuleBasedStateMachine):
    """A kernel that looks up, renames and forgets; the table knows what it keeps, where it is, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Inodes()
        self.table.retain(self.table.number("directory", "", 0))
        self.files: dict[str, int] = {}  # what is stored: identities by path
        self.numbers: dict[int, int] = {}  # the numbers of identities that the kernel knows
        self.last = 0

    @rule(path=paths)
    def look_up(self, path: str) -> None:
        identity = self.files.get(path)
        if identity is None:
            self.last += 1
            identity = self.files[path] = self.last
        ino = self.table.number("file", path, identity)
        assert self.numbers.get(identity) in (None, ino)
        assert ino not in [known for other, known in self.numbers.items() if other != identity]
        self.table.retain(ino)
        self.numbers[identity] = ino

    @rule(old=paths, new=paths)
    def rename(self, old: str, new: str) -> None:
        if old not in self.files or old == new:
            return
        below = {path: identity for path, identity in self.files.items() if path.startswith(f"{old}/")}
        is_in_the_way = any(path.startswith(f"{new}/") for path in self.files) or new.startswith(f"{old}/")
        if is_in_the_way:
            return
        (self.table.moved_directory if below else self.table.moved)(old, new)
        self.files[new] = self.files.pop(old)
        for path, identity in below.items():
            del self.files[path]
            self.files[new + path[len(old) :]] = identity

    @rule(path=paths)
    def remove(self, path: str) -> None:
        if path in self.files and not any(other.startswith(f"{path}/") for other in self.files):
            self.table.removed(path)
            ino = self.numbers.get(self.files.pop(path))
            if ino is not None:
                assert self.table.row(ino).identity == GONE

    @rule(path=paths)
    def replace_behind_the_mount(self, path: str) -> None:
        if path in self.files:
            self.last += 1
            self.files[path] = self.last

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.numbers:
            identity = data.draw(st.sampled_from(sorted(self.numbers)))
            self.table.drop_references(self.numbers.pop(identity), 10**6)

    @invariant()
    def the_table_knows_what_is_kept_and_where_it_is(self) -> None:
        assert len(self.table) == len(self.numbers) + 1
        for path, identity in self.files.items():
            if identity in self.numbers:
                assert known(self.table, path) == self.numbers[identity]
                assert self.table.row(self.numbers[identity]).path == path
        assert self.table.row(ROOT).path == ""

    def teardown(self) -> None:
        for ino in self.numbers.values():
            self.table.drop_references(ino, 10**6)
        assert set(self.table._paths) == {""}, "no path is kept for nothing"


TestKernel = Kernel.TestCase
TestKernel.pytestmark = pytest.mark.slow


def test_names_of_one_file_share_its_number_until_the_last_of_them_is_removed() -> None:
    table = Inodes()
    for path in "abca":
        ino = table.number("file", path, "identity", nlink=3, key="identity")
        assert table.name_of(ino) == path
    table.removed("a")
    for path in "bc":
        assert table.number("file", path, "identity", nlink=2, key="identity") == ino
    table.removed("c")
    assert table.number("file", "b", "identity", nlink=1, key="identity") == ino
    table.removed("b")
    assert (table.row(ino).identity, table.name_of(ino)) == (GONE, "")
    assert table.number("file", "c", "identity", key="identity") != ino, "a number of what is gone is not given again"


def test_a_number_that_is_found_again_is_as_new_as_one_that_was_just_made() -> None:
    """The request that found it will tell the kernel, after others have found more."""
    table = Inodes(max_untold=3)
    first, *_ = [table.number("file", path, "identity") for path in "abc"]
    assert table.number("file", "a", "identity") == first
    table.number("file", "d", "identity")
    table.retain(first)
    assert table.name_of(first) == "a"
