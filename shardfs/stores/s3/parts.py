"""How a new version of an object is assembled from parts: which S3 copies, and which are sent.

Pure. Old bytes that can be copied are neither downloaded nor sent; where a part would be smaller than S3 allows,
neighbouring old bytes are sent with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shardfs.errors import StoreError
from shardfs.stores.base import PART_NBYTES, Content, Kept, Splice
from shardfs.stores.memory import Slice

MIB: Final = 2**20
GIB: Final = 2**30

_MAX_GAP: Final = MIB
"""The largest gap between old bytes that is fetched along: about the cost of one more request."""

_MAX_FETCH: Final = 8 * MIB

Piece = Kept | Content


@dataclass(frozen=True, slots=True)
class MultipartLimits:
    """The limits of S3: sizes in bytes of parts (the last may be smaller) and objects, and the number of parts."""

    min_part: int = 5 * MIB
    max_part: int = 5 * GIB
    max_parts: int = 10_000
    max_object: int = 5 * 1024 * GIB


S3_LIMITS: Final = MultipartLimits()


@dataclass(frozen=True, slots=True)
class Copied:
    """A part that S3 copies: *nbytes* bytes from *offset* of the old version."""

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


def plan_parts(splice: Splice, old_nbytes: int, limits: MultipartLimits = S3_LIMITS) -> tuple[Part, ...]:
    """Return the parts that make *splice* of an object of *old_nbytes* bytes; a single sent part is the whole object.

    Raises `StoreError` if the new version is larger than S3 allows, `ValueError` if it keeps bytes that do not exist.
    """
    if splice.nbytes > limits.max_object:
        raise StoreError(f"{splice.nbytes} bytes are more than the {limits.max_object} that an object of S3 may have")
    pieces = splice.joined(old_nbytes)
    smallest = limits.min_part
    while True:
        parts = tuple(part for run in _runs(pieces, smallest, limits.min_part) for part in _cut(run, limits.max_part))
        if len(parts) <= limits.max_parts or smallest > splice.nbytes:
            return parts
        smallest *= 2  # fewer parts, by sending more


def part_nbytes(nbytes: int) -> int:
    """Return the size of the parts of a new object of about *nbytes* bytes, which may become an eighth larger."""
    return max(PART_NBYTES, -(-(nbytes + nbytes // 8) // S3_LIMITS.max_parts))


def plan_fetches(pieces: Sequence[Piece]) -> Iterator[Sequence[Kept]]:
    """Yield the old ranges among *pieces* in order, grouped by request, including the gaps."""
    group: list[Kept] = []
    for kept in (part for piece in pieces if isinstance(piece, Kept) for part in _slices(piece, _MAX_FETCH)):
        if group:
            gap = kept.offset - group[-1].offset - group[-1].nbytes
            if not 0 <= gap <= _MAX_GAP or kept.offset + kept.nbytes - group[0].offset > _MAX_FETCH:
                yield group
                group = []
        group.append(kept)
    if group:
        yield group


def kept_prefix(splice: Splice) -> int:
    """Return how many bytes at the beginning of the old version the new one has in the same place."""
    stop = 0
    for piece in splice.pieces:
        if not isinstance(piece, Kept) or piece.offset != stop:
            break
        stop += piece.nbytes
    return stop


def _runs(pieces: Sequence[Piece], smallest: int, min_part: int) -> Sequence[Part]:
    """Return parts, each as large as it gets; ranges of at least *smallest* bytes are copied.

    If the bytes to be sent before a copied range are too few for a part, it is sent with them in part, or as a whole if
    the rest would be too small.
    """
    parts: list[Part] = []
    gathered: list[Piece] = []
    nbytes = 0
    for number, piece in enumerate(pieces, 1):
        missing = max(min_part - nbytes, 0) if gathered else 0
        is_enough = number == len(pieces) or piece.nbytes >= missing + min_part
        if not isinstance(piece, Kept) or piece.nbytes < smallest or not is_enough:
            gathered.append(piece)
            nbytes += piece.nbytes
            continue
        from_kept = min(missing, piece.nbytes)
        if from_kept:
            gathered.append(Kept(piece.offset, from_kept))
        if gathered:
            parts.append(Sent(tuple(gathered)))
            gathered, nbytes = [], 0
        if from_kept < piece.nbytes:
            parts.append(Copied(piece.offset + from_kept, piece.nbytes - from_kept))
    if gathered:
        parts.append(Sent(tuple(gathered)))
    return parts or [Sent(())]


def _cut(part: Part, max_part: int) -> Iterator[Part]:
    """Cut a part that is too large into parts of nearly equal size."""
    count = -(-part.nbytes // max_part)
    if count <= 1:
        yield part
        return
    bounds = [part.nbytes * i // count for i in range(count + 1)]
    for start, stop in pairwise(bounds):
        if isinstance(part, Copied):
            yield Copied(part.offset + start, stop - start)
        else:
            yield Sent(tuple(_between(part.pieces, start, stop)))


def _between(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    for piece in pieces:
        first, last = max(start, 0), min(stop, piece.nbytes)
        nbytes = last - first
        if nbytes == piece.nbytes:
            yield piece
        elif nbytes > 0:
            yield Kept(piece.offset + first, nbytes) if isinstance(piece, Kept) else Slice(piece.read, first, nbytes)
        start, stop = start - piece.nbytes, stop - piece.nbytes


def _slices(kept: Kept, max_nbytes: int) -> Iterator[Kept]:
    for start in range(0, kept.nbytes, max_nbytes):
        yield Kept(kept.offset + start, min(max_nbytes, kept.nbytes - start))
