"""Inode numbers: computed ones and those of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shardfs.errors import StaleError, StoreError
from shardfs.format.lens.unsharded import POSITION_BITS
from shardfs.vfs import inodes
from shardfs.vfs.inodes import (
    GENERATION_BITS,
    MISSING,
    ROOT,
    TREE_BITS,
    InodeTable,
    TreeNumbers,
    in_table,
    pack,
    pack_version,
    unpack,
)

trees = st.integers(1, 2**TREE_BITS - 1)
generations = st.integers(0, 2**GENERATION_BITS - 1)
positions = st.integers(0, 2**POSITION_BITS - 1)


@given(trees, generations, positions)
def test_unpacking_undoes_packing(tree: int, generation: int, position: int) -> None:
    ino = pack(tree, generation, position)
    assert 0 < ino < 2**64
    assert unpack(ino) == (tree, generation, position)
    assert not in_table(ino)


@given(trees, st.integers(0, 10**6), positions)
def test_generations_repeat_without_touching_the_rest(tree: int, generation: int, position: int) -> None:
    assert unpack(pack(tree, generation, position)) == (tree, generation % 1024, position)


@given(trees, st.integers(0, 2**20), positions)
def test_no_version_of_a_stored_chunk_has_the_number_of_one_that_is_not_stored(
    tree: int, generation: int, position: int
) -> None:
    ino = pack_version(tree, generation, position)
    assert ino != pack(tree, MISSING, position)
    assert ino == pack_version(tree, generation + 1023, position) != pack_version(tree, generation + 1, position)


def test_the_bits_are_64() -> None:
    assert TREE_BITS + GENERATION_BITS + POSITION_BITS == 64
    assert unpack(2**64 - 1) == (2**18 - 1, 2**10 - 1, 2**36 - 1)
    assert in_table(ROOT)
    assert in_table(2**46 - 1)
    assert not in_table(2**46)


class Kernel(RuleBasedStateMachine):
    """A kernel that looks up, keeps and forgets; the table must know what it keeps, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table: InodeTable[str] = InodeTable("root")
        self.kept: dict[int, tuple[str, int]] = {}
        self.gone: set[int] = set()

    @rule(name=st.sampled_from("abcdefg"), lookups=st.integers(1, 3))
    def look_up(self, name: str, lookups: int) -> None:
        ino = self.table.number(name, name)
        assert ino not in self.gone, "a number is not used again"
        for _ in range(lookups):
            self.table.retain(ino)
        known = self.kept.get(ino, (name, 0))
        assert known[0] == name
        self.kept[ino] = (name, known[1] + lookups)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if not self.kept:
            return
        ino = data.draw(st.sampled_from(sorted(self.kept)))
        name, count = self.kept.pop(ino)
        lookups = data.draw(st.integers(1, count))
        self.table.forget(ino, lookups)
        if lookups < count:
            self.kept[ino] = (name, count - lookups)
        else:
            self.gone.add(ino)

    @rule(ino=st.integers(1, 100), lookups=st.integers(1, 5))
    def forget_what_is_not_known(self, ino: int, lookups: int) -> None:
        if ino not in self.kept:
            self.table.forget(ino, lookups)

    @invariant()
    def the_table_knows_what_is_kept(self) -> None:
        assert len(self.table) == len(self.kept) + 1
        for ino, (name, _) in self.kept.items():
            assert self.table.node(ino) == name
        for ino in self.gone:
            with pytest.raises(StaleError):
                self.table.node(ino)
        assert self.table.node(ROOT) == "root"


TestKernel = Kernel.TestCase


def test_the_root_is_never_forgotten() -> None:
    table: InodeTable[str] = InodeTable("root")
    table.forget(ROOT, 10**6)
    assert table.node(ROOT) == "root"


def test_keeping_what_is_not_known_does_nothing() -> None:
    table: InodeTable[str] = InodeTable("root")
    table.retain(77)
    assert len(table) == 1


def test_a_number_of_a_tree_is_never_used_again() -> None:
    numbers: TreeNumbers[str] = TreeNumbers()
    first = numbers.add("first")
    numbers.remove(first)
    second = numbers.add("second")
    assert second != first
    assert numbers.tree(second) == "second"
    with pytest.raises(StaleError):
        numbers.tree(first)
    with pytest.raises(StaleError):
        numbers.tree(99)
    numbers.remove(first)


def test_numbers_of_trees_run_out_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes, "TREE_BITS", 3)
    numbers: TreeNumbers[str] = TreeNumbers()
    assert [numbers.add("tree") for _ in range(7)] == list(range(1, 8))
    with pytest.raises(StoreError, match="mount again"):
        numbers.add("tree")


def test_what_the_kernel_forgets_before_it_counts_is_swept_once() -> None:
    table: InodeTable[str] = InodeTable("root")
    ino = table.reserve()
    table.keep(ino, "version")
    table.forget(ino, 1)  # of a reference from before the number was forgotten and kept again
    table.sweep()
    assert len(table) == 1


def test_a_node_is_found_by_its_keys_and_the_last_of_its_names() -> None:
    table: InodeTable[str] = InodeTable("root")
    ino = table.number("identity", "node")
    for name in "abcb":
        table.add_key(ino, name, 2)
    assert [table.find(key) for key in ("identity", "a", "b", "c")] == [ino, None, ino, ino]
    other = table.number("another", "other")
    table.add_key(other, "b", 1)
    assert (table.find("b"), table.keys(ino)) == (other, ("identity", "c"))
    for number in (ino, other):
        table.retain(number)
        table.forget(number, 1)
    assert [table.find(key) for key in ("identity", "a", "b", "c", "another")] == [None] * 5
