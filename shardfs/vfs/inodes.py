"""Inode numbers.

A number is 64 bits: tree (18 bits), generation (10 bits), position (36 bits).  In a chunk tree, which has a tree
number from 1 on, the position is that of a chunk or of a directory above chunks, and the generation tells versions of a
chunk apart; so a chunk's number is computed and no table is needed, however many there are.  Filesystem 0 is everything
else: its other 46 bits count up, in the table below.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from shardfs.errors import StaleError, StoreError
from shardfs.format.lens.unsharded import POSITION_BITS

GENERATION_BITS: Final = 10
TREE_BITS: Final = 64 - GENERATION_BITS - POSITION_BITS
TREE_SHIFT: Final = GENERATION_BITS + POSITION_BITS
POSITION_MASK: Final = (1 << POSITION_BITS) - 1
GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1
MISSING: Final = GENERATION_MASK
"""The generation of a chunk that is shown and not stored."""

ROOT: Final = 1

N = TypeVar("N")


def pack(fs: int, generation: int, position: int) -> int:
    """Return the inode number of *position* in a chunk tree; generations repeat after 1024."""
    return fs << TREE_SHIFT | (generation & GENERATION_MASK) << POSITION_BITS | position


def pack_version(fs: int, generation: int, position: int) -> int:
    """Return the number of a version of a stored chunk; its generations repeat after 1023, and are never `MISSING`."""
    return pack(fs, generation % MISSING, position)


def unpack(ino: int) -> tuple[int, int, int]:
    """Return tree, generation and position, of which `pack` made *ino*."""
    return ino >> TREE_SHIFT, ino >> POSITION_BITS & GENERATION_MASK, ino & POSITION_MASK


def in_table(ino: int) -> bool:
    """Whether *ino* belongs to the table, not to a chunk tree."""
    return ino < 1 << TREE_SHIFT


@dataclass(slots=True)
class _Row(Generic[N]):
    node: N
    lookups: int
    keys: tuple[object, ...] = ()


class InodeTable(Generic[N]):
    """Numbers of nodes that are not in a chunk tree: counted up, and forgotten when the kernel forgets them.

    A node is found by its number, or by one of its keys: what identifies it, and the names that it has.
    """

    def __init__(self, root: N) -> None:
        self._rows: dict[int, _Row[N]] = {ROOT: _Row(root, 1)}
        self._numbers: dict[object, int] = {}
        self._new: set[int] = set()
        self._last = ROOT

    def number(self, key: object, node: N) -> int:
        """Return the number of the node that *key* identifies; *node* is taken in if the key is new."""
        ino = self._numbers.get(key)
        if ino is None:
            ino = self.reserve()
            self.keep(ino, node, key)
        return ino

    def find(self, key: object) -> int | None:
        """Return the number of the node with *key*; None if there is none."""
        return self._numbers.get(key)

    def reserve(self) -> int:
        """Return a number that no node has, for a node that `keep` takes in."""
        self._last += 1
        return self._last

    def keep(self, ino: int, node: N, *keys: object) -> None:
        """Let *ino*, which `reserve` or `number` gave out, stand for *node*, whatever it stood for, with these keys."""
        row = self._rows.get(ino)
        if row is None:
            row = self._rows[ino] = _Row(node, 0)
            self._new.add(ino)
        elif row.node == node and row.keys == keys:
            return
        for key in row.keys:
            self.drop_key(key)
        row.node = node
        for key in keys:
            self.add_key(ino, key, len(keys))

    def add_key(self, ino: int, key: object, most: int) -> None:
        """Let *key* find the node *ino*, and no other; behind its first key, a node keeps the last *most*."""
        if self._numbers.get(key) == ino:
            return
        self.drop_key(key)
        self._numbers[key] = ino
        row = self._rows[ino]
        row.keys = (*row.keys, key)
        for old in row.keys[1:-most]:
            self.drop_key(old)

    def drop_key(self, key: object) -> None:
        """Find nothing by *key* any more."""
        ino = self._numbers.pop(key, None)
        if ino is not None:
            row = self._rows[ino]
            row.keys = tuple(other for other in row.keys if other != key)

    def keys(self, ino: int) -> tuple[object, ...]:
        """Return the keys of the node *ino*, in the order in which they came."""
        return self._rows[ino].keys

    def nodes(self) -> list[tuple[int, N]]:
        """Return all nodes, with their numbers."""
        return [(ino, row.node) for ino, row in self._rows.items()]

    def node(self, ino: int) -> N:
        """Return the node with the number *ino*."""
        try:
            return self._rows[ino].node
        except KeyError:
            raise StaleError(f"inode {ino} is not known any more") from None

    def retain(self, ino: int) -> None:
        """Count one more reference of the kernel."""
        row = self._rows.get(ino)
        if row is not None:
            row.lookups += 1
            self._new.discard(ino)

    def sweep(self) -> None:
        """Forget what the kernel was told of in vain."""
        for ino in list(self._new):
            self._drop(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """Take back *lookups* references of the kernel."""
        row = self._rows.get(ino)
        if row is None or ino == ROOT:
            return
        row.lookups -= lookups
        if row.lookups <= 0:
            self._drop(ino)

    def _drop(self, ino: int) -> None:
        self._new.discard(ino)
        for key in self._rows.pop(ino).keys:
            del self._numbers[key]

    def __len__(self) -> int:
        return len(self._rows)


class TreeNumbers(Generic[N]):
    """Numbers of chunk trees.  A number is never used again, so an inode of a tree that is gone is stale for good."""

    def __init__(self) -> None:
        self._trees: dict[int, N] = {}
        self._last = 0

    def add(self, fs: N) -> int:
        """Number a new tree."""
        if self._last + 1 >= 1 << TREE_BITS:
            raise StoreError(f"more than {1 << TREE_BITS} arrays were opened through this mount; mount again")
        self._last += 1
        self._trees[self._last] = fs
        return self._last

    def remove(self, number: int) -> None:
        """Make the inodes of a tree stale."""
        self._trees.pop(number, None)

    def tree(self, number: int) -> N:
        """Return the tree with *number*."""
        try:
            return self._trees[number]
        except KeyError:
            raise StaleError("the array has changed") from None
