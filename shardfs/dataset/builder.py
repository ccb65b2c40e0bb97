"""The bytes of a shard's next version: which ranges of the old one stay, and what is new.

A shard that is stored as it is gets appended to.  What lies within another shard, or under another codec, has to be
rewritten: an inner shard becomes one new payload of the shard around it, an encoded shard is encoded anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

import trio

from shardfs.dataset.shard import OpenShard, open_inner_shard
from shardfs.errors import StoreError
from shardfs.format.codecs import encode
from shardfs.format.index import IndexLayout
from shardfs.format.sharding import MAX_DECODED_NBYTES, Coords, Place, ShardGrid, ShardingLevel
from shardfs.format.update import Added, CopiedRange, Index, Padding, WritePlan, plan_empty, plan_write
from shardfs.stores.base import APPEND_NBYTES, Content, Kept, Splice
from shardfs.stores.memory import JoinedContent, MemoryContent

_BREATH: Final = 256  # chunks that are located without letting others run


@dataclass(frozen=True, slots=True)
class NewShard:
    """The next version of a shard in the store; *splice* is None if no chunk is left and the shard goes.

    If it *is_append* it keeps all of the old one, but for an index at the beginning, and *index* is the new index.
    """

    splice: Splice | None
    index: bytes = b""
    is_append: bool = False


class _Change(NamedTuple):
    place: Place
    content: Content | None


class _Planned(NamedTuple):
    """A shard of some level, with the contents of its new entries."""

    plan: WritePlan
    contents: Mapping[int, Content]

    async def join(self, old: OpenShard | None) -> Content:
        """Return all bytes of the shard."""
        parts: list[Content] = []
        for piece in self.plan.pieces:
            if isinstance(piece, CopiedRange):
                assert old is not None
                parts.append(await old.content(piece.offset, piece.nbytes))
            else:
                parts.append(self.new(piece))
        return JoinedContent(parts)

    def new(self, piece: Added | Padding | Index) -> Content:
        """Return the bytes of a piece that is not copied."""
        if isinstance(piece, Added):
            return self.contents[piece.entry]
        return MemoryContent(memoryview(piece.encoded if isinstance(piece, Index) else bytes(piece.nbytes)))


async def build(
    grid: ShardGrid,
    shard: Coords,
    old: OpenShard | None,
    changes: Mapping[Coords, Content | None],
    *,
    compact: bool = False,
    drop_index: bool = False,
    keep_empty: bool = False,
    alignment: int = 1,
) -> NewShard:
    """Plan the next version of the shard at *shard*, with *changes* to its chunks: new bytes, or None to remove one.

    *old* is the shard as it is now, *alignment* where appends to it had better end.  *drop_index*: an index that is
    replaced need not stay among the payloads.  *keep_empty*: a shard without any chunk stays, with an index that says
    so, if it has one.  Raises `CorruptionError` if what has to be copied cannot be read.
    """
    level, shape = grid.levels[0], grid.index_shape(shard)
    located: list[_Change] = []
    for coords, content in changes.items():
        located.append(_Change(grid.locate(coords), content))
        if not len(located) % _BREATH:
            await trio.lowlevel.checkpoint()
    planned = await _plan(
        grid, 0, shape, old, located, compact=compact or bool(level.after), drop_index=drop_index, alignment=alignment
    )
    plan = planned.plan
    if plan.is_empty:
        if not keep_empty or grid.is_unsharded:
            return NewShard(None)
        plan = plan_empty(IndexLayout(level.index_codecs, shape, level.index_at_start))
        planned = _Planned(plan, {})
    if level.after:
        whole = await _encoded(level, await planned.join(old))
        return NewShard(Splice((MemoryContent(memoryview(whole)),)))
    pieces = tuple(
        Kept(piece.offset, piece.nbytes) if isinstance(piece, CopiedRange) else planned.new(piece)
        for piece in plan.pieces
    )
    splice = Splice(pieces) if level.index_at_start else Splice(pieces, len(plan.index), plan.ends)
    return NewShard(splice, plan.index, plan.is_append)


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
) -> _Planned:
    """Plan one shard of the level *depth*."""
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
    return _Planned(plan, contents)


async def _inner(
    grid: ShardGrid, depth: int, outer: OpenShard | None, entry: int, changes: Sequence[_Change]
) -> Content | None:
    """Return the inner shard that is chunk *entry* of *outer*, rewritten with *changes*; None if it gets empty."""
    level, shape = grid.levels[depth], changes[0].place.shapes[depth]
    is_full = depth + 1 == len(grid.levels) and sum(c.content is not None for c in changes) == prod(shape)
    old = None if outer is None or is_full else await open_inner_shard(level, shape, outer, entry)
    planned = await _plan(grid, depth, shape, old, changes, compact=True)
    if planned.plan.is_empty:
        return None
    joined = await planned.join(old)
    return MemoryContent(memoryview(await _encoded(level, joined))) if level.after else joined


async def _encoded(level: ShardingLevel, content: Content) -> bytes:
    if content.nbytes > MAX_DECODED_NBYTES:
        raise StoreError(f"a shard of {content.nbytes} bytes under {level.after[-1].name} is too large to encode")
    return await trio.to_thread.run_sync(lambda: encode(level.after, content.read(0, content.nbytes)))
