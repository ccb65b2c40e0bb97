"""Putting a new version of a shard together: which ranges of the old one stay, and what is new.

A shard that is stored as it is gets appended to.  What lies within another shard, or under another codec, has to be
rewritten: an inner shard becomes one new payload of the shard around it, an encoded shard is encoded anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import trio

from shardfs.dataset.shard import OpenShard, open_inner_shard
from shardfs.errors import StoreError
from shardfs.format.codecs import encode
from shardfs.format.index import IndexLayout
from shardfs.format.sharding import MAX_DECODED_NBYTES, Coords, Place, ShardGrid, ShardingLevel
from shardfs.format.update import Added, CopiedRange, Index, Padding, WritePlan, plan_empty, plan_write
from shardfs.stores.base import APPEND_NBYTES, Buffer, Content, Kept, Splice
from shardfs.stores.memory import MemoryContent


class Joined:
    """Several contents, one behind the other."""

    def __init__(self, parts: Sequence[Content]) -> None:
        self._parts = parts
        self.nbytes = sum(part.nbytes for part in parts)

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset*."""
        found = bytearray()
        for part in self._parts:
            if len(found) == nbytes:
                break
            if offset >= part.nbytes:
                offset -= part.nbytes
                continue
            found += part.read(offset, min(part.nbytes - offset, nbytes - len(found)))
            offset = 0
        return found


@dataclass(frozen=True, slots=True)
class Assembly:
    """The next version of a shard in the store; *splice* is None if no chunk is left and the shard goes.

    If it *is_append* it keeps all of the old one, but for an index at the beginning, and *index* is the new index.
    """

    splice: Splice | None
    index: bytes = b""
    is_append: bool = False


class _Change(NamedTuple):
    place: Place
    content: Content | None


async def assemble(
    grid: ShardGrid,
    shard: Coords,
    old: OpenShard | None,
    changes: Mapping[Coords, Content | None],
    *,
    compact: bool = False,
    drop_index: bool = False,
    keep_empty: bool = False,
    alignment: int = 1,
) -> Assembly:
    """Plan the next version of the shard at *shard*, with *changes* to its chunks: new bytes, or None to remove one.

    *old* is the shard as it is now, *alignment* where appends to it had better end.  *drop_index*: an index that is
    replaced need not stay among the payloads.  *keep_empty*: a shard without any chunk stays, with an index that says
    so, if it has one.  Raises `CorruptionError` if what has to be copied cannot be read.
    """
    level, shape = grid.levels[0], grid.index_shape(shard)
    located = [_Change(grid.locate(coords), content) for coords, content in changes.items()]
    compact = compact or bool(level.after)
    plan, contents = await _plan(
        grid, 0, shape, old, located, compact=compact, drop_index=drop_index, alignment=alignment
    )
    if plan.is_empty:
        if not keep_empty or grid.is_unsharded:
            return Assembly(None)
        plan = plan_empty(IndexLayout(level.index_codecs, shape, level.index_at_start))
    if level.after:
        whole = await _encoded(level, _join(plan, contents, old))
        return Assembly(Splice((MemoryContent(memoryview(whole)),), 0))
    pieces: list[Kept | Content] = []
    for piece in plan.pieces:
        match piece:
            case CopiedRange():
                pieces.append(Kept(piece.offset, piece.nbytes))
            case Added():
                pieces.append(contents[piece.entry])
            case Padding():
                pieces.append(MemoryContent(memoryview(bytes(piece.nbytes))))
            case Index():
                pieces.append(MemoryContent(memoryview(piece.encoded)))
    splice = Splice(tuple(pieces), 0) if level.index_at_start else Splice(tuple(pieces), len(plan.index), plan.ends)
    return Assembly(splice, plan.index, plan.is_append)


async def _plan(
    grid: ShardGrid,
    depth: int,
    shape: tuple[int, ...],
    old: OpenShard | None,
    changes: Sequence[_Change],
    *,
    compact: bool,
    drop_index: bool = False,
    alignment: int = 1,
) -> tuple[WritePlan, dict[int, Content]]:
    """Plan one shard of the level *depth*; returns the contents of its new entries too."""
    level = grid.levels[depth]
    replaced: dict[int, Content | None] = {}
    if depth + 1 == len(grid.levels):
        replaced = {change.place.entries[depth]: change.content for change in changes}
    else:
        groups: dict[int, list[_Change]] = {}
        for change in changes:
            groups.setdefault(change.place.entries[depth], []).append(change)
        for entry, group in groups.items():
            replaced[entry] = await _inner(grid, depth + 1, old, entry, group)
    contents = {entry: content for entry, content in replaced.items() if content is not None}
    plan = plan_write(
        IndexLayout(level.index_codecs, shape, level.index_at_start),
        old.index if old is not None else None,
        {entry: content.nbytes for entry, content in contents.items()},
        [entry for entry, content in replaced.items() if content is None],
        compact=compact,
        drop_index=drop_index,
        alignment=alignment,
        at_once=APPEND_NBYTES,
    )
    return plan, contents


async def _inner(
    grid: ShardGrid, depth: int, outer: OpenShard | None, entry: int, changes: Sequence[_Change]
) -> Content | None:
    """Return the inner shard that is chunk *entry* of *outer*, rewritten with *changes*; None if it gets empty."""
    level, shape = grid.levels[depth], changes[0].place.shapes[depth]
    is_full = depth + 1 == len(grid.levels) and sum(c.content is not None for c in changes) == prod(shape)
    old = None if outer is None or is_full else await open_inner_shard(level, shape, outer, entry)
    plan, contents = await _plan(grid, depth, shape, old, changes, compact=True)
    if plan.is_empty:
        return None
    joined = _join(plan, contents, old)
    return MemoryContent(memoryview(await _encoded(level, joined))) if level.after else joined


def _join(plan: WritePlan, contents: Mapping[int, Content], old: OpenShard | None) -> Content:
    parts: list[Content] = []
    for piece in plan.pieces:
        match piece:
            case CopiedRange():
                assert old is not None
                parts.append(old.content(piece.offset, piece.nbytes))
            case Added():
                parts.append(contents[piece.entry])
            case Padding():
                parts.append(MemoryContent(memoryview(bytes(piece.nbytes))))
            case Index():
                parts.append(MemoryContent(memoryview(piece.encoded)))
    return Joined(parts)


async def _encoded(level: ShardingLevel, content: Content) -> bytes:
    if content.nbytes > MAX_DECODED_NBYTES:
        raise StoreError(f"a shard of {content.nbytes} bytes under {level.after[-1].name} is too large to encode")
    return await trio.to_thread.run_sync(lambda: encode(level.after, content.read(0, content.nbytes)))
