"""Write plans: which bytes of a shard stay in its next version, and what is added.

Pure arithmetic on indexes; nothing is read or written here. A plan either appends, and moves no committed byte, or lays
out the whole shard anew.

Source: specification of the `sharding_indexed` codec 1.0, "Binary shard format".
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError
from shardfs.format.index import EMPTY, IndexLayout, ShardIndex, are_sound, damaged

_EMPTY: Final = np.uint64(EMPTY)


class CopiedRange(NamedTuple):
    """A range of the old shard."""

    offset: int
    nbytes: int


class Added(NamedTuple):
    """The new payload of one entry."""

    entry: int
    nbytes: int


class Padding(NamedTuple):
    """Bytes without meaning."""

    nbytes: int


class Index(NamedTuple):
    """The new index."""

    encoded: bytes

    @property
    def nbytes(self) -> int:
        """Size of the encoded index."""
        return len(self.encoded)


Piece = CopiedRange | Added | Padding | Index


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A new shard of *nbytes* bytes: its *pieces* in order, and the new encoded *index* among them.

    *is_append*: the old shard stays in place, apart from an index at the start. An append may be made in steps: *ends*
    are the sizes of the shard after each.
    """

    pieces: tuple[Piece, ...]
    index: bytes
    nbytes: int
    is_append: bool
    ends: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no chunk is left: the shard is then to be removed, and the plan has no pieces."""
        return not self.pieces


_NOTHING: Final = WritePlan((), b"", 0, is_append=False)


def plan_write(
    layout: IndexLayout,
    old: ShardIndex | None,
    puts: Mapping[int, int],
    erases: Collection[int],
    *,
    compact: bool = False,
    drop_index: bool = False,
    alignment: int = 1,
    at_once: int = 0,
    keep: bool = False,
) -> WritePlan:
    """Plan a new version of a shard: *puts* gives entries their new size in bytes, *erases* empties entries.

    By default the old shard stays in place. The payloads follow in C order, and the new index comes last, or first if
    it is at the start. An old index at the end stays as dead bytes, unless *drop_index* is set and it is not needed: no
    entry names bytes of it, and it is not the last to name a chunk at the beginning of the shard. Without one that
    does, nobody could tell that no other format owns these bytes. A shard that is new, completely replaced, or
    *compact*, is laid out anew: payloads in C order, without dead bytes. With *keep*, one that is completely replaced
    is appended to all the same. Entries that share bytes continue to share them.

    With an *alignment*, an index at the end ends at a multiple of it: padding is put before the payloads, so that the
    last one ends where the index begins. Payloads of more than *at_once* bytes are then appended in two steps: the
    first payloads, followed by a copy of the old index, for readers that come between the steps; then the rest.

    An append keeps damaged entries as they are. Raises `CorruptionError` if the new shard could not be right: a damaged
    entry would have to be moved, or an entry names a part of the index that is to be replaced.
    """
    if old is None or (len(puts) == layout.nentries and not keep):
        return _lay_out(layout, np.full((layout.nentries, 2), _EMPTY), puts)
    values = old.entries.copy()
    values[list(erases)] = _EMPTY
    if not compact:
        if layout.at_start:
            alignment = 1
        return _append(layout, old, values, puts, drop_index, alignment, at_once)
    values[list(puts)] = _EMPTY
    for entry in damaged(values, old.shard_nbytes):
        old.range(entry)  # raises
    return _lay_out(layout, values, puts)


def plan_empty(layout: IndexLayout) -> WritePlan:
    """Plan a shard without chunks: an index of empty entries, for stores that cannot remove it safely."""
    index = layout.codecs.encode(np.full((layout.nentries, 2), _EMPTY), layout.chunks_per_shard)
    return WritePlan((Index(index),), index, len(index), is_append=False)


def _append(
    layout: IndexLayout,
    old: ShardIndex,
    values: npt.NDArray[np.uint64],
    puts: Mapping[int, int],
    drop_index: bool,
    alignment: int,
    at_once: int,
) -> WritePlan:
    """Plan an append to a shard with the entries *values*; those of *puts* are ignored."""
    entries, sizes = _in_c_order(puts)
    values[entries] = _EMPTY
    kept_nbytes = shard_nbytes = old.shard_nbytes
    if drop_index and not layout.at_start:
        sound = are_sound(values, shard_nbytes)
        without = shard_nbytes - layout.nbytes
        is_named = (sound & ~are_sound(values, without)).any()
        is_witness = bool(layout.codecs.checksums) and old.first_live_byte == 0
        is_last_witness = is_witness and not (sound & (values[:, 0] == 0)).any()
        if not is_named and not is_last_witness:
            kept_nbytes = without
    tail_nbytes = 0 if layout.at_start else layout.nbytes
    nbytes = kept_nbytes
    behind = np.cumsum(sizes[::-1])[::-1]  # bytes of each payload and all that follow
    first = int(np.count_nonzero(behind > at_once)) if alignment > 1 else 0  # payloads of the first of two steps
    offsets = np.empty_like(sizes)
    added: list[Piece] = []
    ends: list[int] = []
    for step in (slice(0, first), slice(first, None)) if first else (slice(0, None),):
        step_nbytes = int(sizes[step].sum())
        if padding := -(nbytes + step_nbytes + tail_nbytes) % alignment:
            added.append(Padding(padding))
        offsets[step] = nbytes + padding + np.cumsum(sizes[step]) - sizes[step]
        added += [Added(entry, puts[entry]) for entry in entries[step].tolist()]
        if step.stop is not None:
            added.append(CopiedRange(shard_nbytes - tail_nbytes, tail_nbytes))
        nbytes += padding + step_nbytes + tail_nbytes
        ends.append(nbytes)
    # An entry that pointed beyond the old end must not become valid by the new end: it would show other bytes.
    values[are_sound(values, nbytes) & ~are_sound(values, kept_nbytes), 0] = _EMPTY
    values[entries, 0] = offsets
    values[entries, 1] = sizes
    if (values == _EMPTY).all():
        return _NOTHING
    index = layout.codecs.encode(values, layout.chunks_per_shard)
    if not layout.at_start:
        before = [CopiedRange(0, kept_nbytes)] if kept_nbytes else []
        return WritePlan((*before, *added, Index(index)), index, nbytes, is_append=True, ends=tuple(ends))
    is_within = (values[:, 0] < layout.nbytes) & (values[:, 1] > 0)
    for entry in np.flatnonzero(is_within & are_sound(values, shard_nbytes))[:1].tolist():
        raise CorruptionError(f"entry {entry} of the shard index names bytes of the index itself, which is replaced")
    rest = [CopiedRange(len(index), shard_nbytes - len(index))] if shard_nbytes > len(index) else []
    return WritePlan((Index(index), *rest, *added), index, nbytes, is_append=True)


def _lay_out(layout: IndexLayout, values: npt.NDArray[np.uint64], puts: Mapping[int, int]) -> WritePlan:
    """Plan a shard without dead bytes; *values* are the entries to be kept, all sound or empty."""
    start = layout.nbytes if layout.at_start else 0
    present = values[:, 0] != _EMPTY
    if not present.any() and not puts:
        return _NOTHING
    values[present & (values[:, 1] == 0), 0] = start
    entries = np.flatnonzero(present & (values[:, 1] > 0))
    kept = _spans(values[entries].astype(np.int64))
    put_entries, put_sizes = _in_c_order(puts)

    # Everything that the shard consists of, in C order of entries; a span has the location of its first entry.
    owners = np.concatenate([entries[kept.firsts], put_entries])
    order = np.argsort(owners)
    owners = owners[order]
    old_offsets = np.concatenate([kept.offsets, np.full(len(puts), -1)])[order]
    sizes = np.concatenate([kept.nbytes, put_sizes])[order]
    stops = start + np.cumsum(sizes)
    offsets = np.empty_like(stops)
    offsets[order] = stops - sizes

    values[entries, 0] = offsets[kept.numbers] + kept.within
    values[put_entries, 0] = offsets[len(kept.firsts) :]
    values[put_entries, 1] = put_sizes
    index = layout.codecs.encode(values, layout.chunks_per_shard)
    payloads = tuple(_merged(owners, old_offsets, sizes))
    pieces = (Index(index), *payloads) if layout.at_start else (*payloads, Index(index))
    return WritePlan(pieces, index, int(sizes.sum()) + len(index), is_append=False)


class _Spans(NamedTuple):
    """Ranges of the old shard that contain every payload to be kept, each byte once.

    Payload number i is in the span `numbers[i]`, `within[i]` bytes after its start.
    """

    firsts: npt.NDArray[np.int64]  # the first payload of each span
    offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    within: npt.NDArray[np.int64]


def _spans(payloads: npt.NDArray[np.int64]) -> _Spans:
    """Return the spans of rows of `offset` and `nbytes` (none 0); overlapping rows are in one span."""
    order = np.argsort(payloads[:, 0], kind="stable")
    starts = payloads[order, 0]
    stops = starts + payloads[order, 1]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = starts[1:] >= np.maximum.accumulate(stops)[:-1]
    heads = np.flatnonzero(begins)
    offsets = starts[heads]
    numbers = np.empty_like(order)
    numbers[order] = np.cumsum(begins) - 1
    return _Spans(
        np.minimum.reduceat(order, heads),
        offsets,
        np.maximum.reduceat(stops, heads) - offsets,
        numbers,
        payloads[:, 0] - offsets[numbers],
    )


def _merged(
    owners: npt.NDArray[np.int64], old_offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Iterator[CopiedRange | Added]:
    """Yield the payloads of a shard; *old_offsets* are -1 for new ones. Ranges that stay adjacent are merged."""
    begins = np.ones(len(sizes), dtype=np.bool_)
    begins[1:] = (old_offsets[:-1] < 0) | (old_offsets[1:] != old_offsets[:-1] + sizes[:-1])
    heads = np.flatnonzero(begins)
    runs = zip(owners[heads].tolist(), old_offsets[heads].tolist(), np.add.reduceat(sizes, heads).tolist(), strict=True)
    for owner, old_offset, nbytes in runs:
        yield Added(owner, nbytes) if old_offset < 0 else CopiedRange(old_offset, nbytes)


def _in_c_order(puts: Mapping[int, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the entries of *puts*, sorted, and the sizes of their payloads."""
    entries = sorted(puts)
    return np.array(entries, dtype=np.int64), np.array([puts[entry] for entry in entries], dtype=np.int64)
