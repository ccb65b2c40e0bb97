"""How a new version of an object is made of parts: what is copied within S3, and what is sent.

Pure.  Old bytes that can be copied are neither downloaded nor sent; where a part would be smaller than S3 takes,
neighbouring old bytes are sent with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from shardfs.errors import StoreError
from shardfs.stores.base import Buffer, Content, Kept, Splice

MIB: Final = 2**20
GIB: Final = 2**30

_MAX_GAP: Final = MIB
"""Old bytes between two that are fetched, which are fetched along: about what one more request would cost."""

_MAX_FETCH: Final = 8 * MIB

Piece = Kept | Content


@dataclass(frozen=True, slots=True)
class Limits:
    """What S3 takes: sizes of parts (the last may be smaller) and objects in bytes, and the number of parts."""

    min_part: int = 5 * MIB
    max_part: int = 5 * GIB
    max_parts: int = 10_000
    max_object: int = 5 * 1024 * GIB


S3_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Copied:
    """A part that S3 makes of *nbytes* bytes from *offset* of the old version."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A part that is sent; old bytes in it are fetched before."""

    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Size of the part."""
        return sum(piece.nbytes for piece in self.pieces)


Part = Copied | Sent


@dataclass(frozen=True, slots=True)
class Slice:
    """*nbytes* bytes from *start* of a content, as content of their own."""

    content: Content
    start: int
    nbytes: int

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Return *nbytes* bytes from *offset* of them."""
        return self.content.read(self.start + offset, nbytes)


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request for *nbytes* old bytes from *offset*, for the sake of the ranges *kept* among them."""

    offset: int
    nbytes: int
    kept: tuple[Kept, ...]


def plan_parts(splice: Splice, old_nbytes: int, limits: Limits = S3_LIMITS) -> tuple[Part, ...]:
    """Return the parts that make *splice* of an object of *old_nbytes* bytes; a single one that is sent is the object.

    Raises `StoreError` if the new version is larger than S3 takes, `ValueError` if it keeps what is not there.
    """
    if splice.nbytes > limits.max_object:
        raise StoreError(f"{splice.nbytes} bytes are more than the {limits.max_object} that an object of S3 may have")
    pieces = list(_joined(splice.pieces, old_nbytes))
    smallest = limits.min_part
    while True:
        parts = tuple(part for run in _runs(pieces, smallest, limits.min_part) for part in _cut(run, limits.max_part))
        if len(parts) <= limits.max_parts or smallest > splice.nbytes:
            return parts
        smallest *= 2  # fewer parts by sending more


def plan_fetches(pieces: Sequence[Piece]) -> Iterator[Fetch]:
    """Return the requests for the old bytes among *pieces*, in order; near ones are fetched together."""
    group: list[Kept] = []
    for kept in (part for piece in pieces if isinstance(piece, Kept) for part in _slices(piece, _MAX_FETCH)):
        if group:
            stop = group[-1].offset + group[-1].nbytes
            is_near = stop <= kept.offset <= stop + _MAX_GAP
            if not is_near or kept.offset + kept.nbytes - group[0].offset > _MAX_FETCH:
                yield _fetch(group)
                group = []
        group.append(kept)
    if group:
        yield _fetch(group)


def kept_prefix(splice: Splice) -> int:
    """Return with how many bytes of the old version the new one begins, in their place."""
    stop = 0
    for piece in splice.pieces:
        if not isinstance(piece, Kept) or piece.offset != stop:
            break
        stop += piece.nbytes
    return stop


@dataclass(slots=True)
class _Run:
    """Parts that are planned, of any size, and the one that is being gathered to be sent."""

    min_part: int
    parts: list[Part] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    nbytes: int = 0

    def send(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.nbytes += piece.nbytes

    def copy(self, kept: Kept, *, is_last: bool) -> None:
        """Plan a part of *kept*, which is large enough for one, without what the part before it lacks."""
        missing = max(self.min_part - self.nbytes, 0) if self.nbytes else 0
        from_kept = min(missing, kept.nbytes if is_last else kept.nbytes - self.min_part)
        before = self.parts[-1] if self.parts else None
        from_before = missing - from_kept
        if from_before and (not isinstance(before, Copied) or before.nbytes - from_before < self.min_part):
            self.send(kept)
            return
        if from_before and isinstance(before, Copied):
            start = before.nbytes - from_before
            self.parts[-1] = Copied(before.offset, start)
            self.pieces.insert(0, Kept(before.offset + start, from_before))
        if from_kept:
            self.send(Kept(kept.offset, from_kept))
        self.close()
        if from_kept < kept.nbytes:
            self.parts.append(Copied(kept.offset + from_kept, kept.nbytes - from_kept))

    def close(self) -> None:
        if self.pieces:
            self.parts.append(Sent(tuple(self.pieces)))
            self.pieces, self.nbytes = [], 0


def _runs(pieces: Sequence[Piece], smallest: int, min_part: int) -> Sequence[Part]:
    """Return parts, each as large as it gets; ranges of *smallest* bytes and more are copied."""
    run = _Run(min_part)
    for place, piece in enumerate(pieces):
        if isinstance(piece, Kept) and piece.nbytes >= smallest:
            run.copy(piece, is_last=place == len(pieces) - 1)
        else:
            run.send(piece)
    run.close()
    return run.parts or [Sent(())]


def _cut(part: Part, max_part: int) -> Iterator[Part]:
    """Cut a part that is too large into some of nearly equal size."""
    count = -(-part.nbytes // max_part)
    if count <= 1:
        yield part
        return
    bounds = [part.nbytes * i // count for i in range(count + 1)]
    if isinstance(part, Copied):
        yield from (Copied(part.offset + start, stop - start) for start, stop in pairwise(bounds))
        return
    pieces: list[Piece] = []
    position, place = 0, 1
    for piece in part.pieces:
        done = 0
        while done < piece.nbytes:
            nbytes = min(piece.nbytes - done, bounds[place] - position)
            pieces.append(_slice(piece, done, nbytes))
            done += nbytes
            position += nbytes
            if position == bounds[place]:
                yield Sent(tuple(pieces))
                pieces = []
                place += 1


def _slice(piece: Piece, start: int, nbytes: int) -> Piece:
    if nbytes == piece.nbytes:
        return piece
    return Kept(piece.offset + start, nbytes) if isinstance(piece, Kept) else Slice(piece, start, nbytes)


def _slices(kept: Kept, max_nbytes: int) -> Iterator[Kept]:
    for start in range(0, kept.nbytes, max_nbytes):
        yield Kept(kept.offset + start, min(max_nbytes, kept.nbytes - start))


def _fetch(group: Sequence[Kept]) -> Fetch:
    offset, last = group[0].offset, group[-1]
    return Fetch(offset, last.offset + last.nbytes - offset, tuple(group))


def _joined(pieces: Sequence[Piece], old_nbytes: int) -> Iterator[Piece]:
    """Return the pieces that are not empty, with old ranges joined that adjoin in both versions."""
    pending: Kept | None = None
    for piece in pieces:
        if isinstance(piece, Kept):
            if piece.offset < 0 or piece.nbytes < 0 or piece.offset + piece.nbytes > old_nbytes:
                raise ValueError(f"a splice keeps more than the {old_nbytes} bytes that there are")
            if not piece.nbytes:
                continue
            if pending is not None and pending.offset + pending.nbytes == piece.offset:
                pending = Kept(pending.offset, pending.nbytes + piece.nbytes)
                continue
        elif not piece.nbytes:
            continue
        if pending is not None:
            yield pending
        pending = piece if isinstance(piece, Kept) else None
        if pending is None:
            yield piece
    if pending is not None:
        yield pending
