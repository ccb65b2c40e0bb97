"""Ranges of objects: which are present, and which to fetch, so that few requests are made.

A request costs about as much time as a quarter of a MiB takes to arrive, so small gaps are fetched along.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardfs.stores.base import Takes

MAX_GAP: Final = 256 * 2**10
"""The largest unwanted gap that is fetched to save a request."""

MAX_NBYTES: Final = 16 * 2**20
"""The largest request that is made of several."""

WINDOW_NBYTES: Final = 8 * 2**20
"""The smallest request for an object that is read in order, if it has so many bytes."""


SMALL_NBYTES: Final = 2 * 2**20 + 64 * 2**10
"""Up to this size, an object is fetched as a whole once two units of it are wanted in order from its beginning.

It is a shard with 2 MiB of chunks, as many have, and an index.
"""

_MUCH: Final = 1 / 16
"""Who reads so much of what is missing of a block, and all around it, gets all that is missing."""

WHOLE_NBYTES: Final = WINDOW_NBYTES + 64 * 2**10
"""Up to this size, an object comes whole when it is opened for who will read it from its beginning.

Its first window is then no request of its own.
"""


class Span(NamedTuple):
    """The bytes from *start* to before *stop*."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Their number."""
        return self.stop - self.start

    def holds(self, position: int) -> bool:
        """Whether the byte at *position* is among them."""
        return self.start <= position < self.stop

    def overlaps(self, other: "Span") -> bool:
        """Whether both have a byte in common."""
        return self.start < other.stop and other.start < self.stop


@dataclass(slots=True)
class Spans:
    """Spans of which none is within another: ordered by their starts, they are also ordered by their ends."""

    spans: list[Span] = field(default_factory=list)

    def at(self, position: int) -> Span | None:
        """Return the span that extends furthest from *position*; None if none contains it."""
        index = bisect_right(self.spans, (position, math.inf))
        last = self.spans[index - 1] if index else None
        return last if last is not None and last.holds(position) else None

    def next_start(self, position: int) -> float:
        """Return where the first span after *position* begins; infinity if there is none."""
        index = bisect_right(self.spans, (position, math.inf))
        return self.spans[index].start if index < len(self.spans) else math.inf

    def overlapping(self, wanted: Span) -> Sequence[Span]:
        """Return the spans that have bytes of *wanted*."""
        return [span for span in self.spans if span.overlaps(wanted)]

    def add(self, span: Span) -> Sequence[Span]:
        """Add a span; return the spans that are redundant now: those within it, or itself."""
        around = self.at(span.start)
        if around is not None and around.stop >= span.stop:
            return [] if around == span else [span]
        first = last = bisect_left(self.spans, (span.start,))
        while last < len(self.spans) and self.spans[last].stop <= span.stop:
            last += 1
        within = self.spans[first:last]
        self.spans[first:last] = [span]
        return within

    def discard(self, span: Span) -> bool:
        """Remove a span; return whether it was there."""
        index = bisect_left(self.spans, span)
        is_there = self.spans[index : index + 1] == [span]
        del self.spans[index : index + is_there]
        return is_there


@dataclass(slots=True)
class Reads:
    """How an object of *size* bytes was read so far, and what its reader last *expected* to read.

    *read_end* is where the last fetch ended, *window_end* where the last one ended that went beyond what was asked for.
    """

    size: int
    expected: MutableSequence[Span] = field(default_factory=list)
    read_end: int | None = None
    window_end: int | None = None

    def note(self, end: int) -> None:
        """Note that a fetch ended there."""
        self.read_end = end

    def note_window(self, end: int) -> None:
        """Note that a fetch that goes beyond what was asked for will end there."""
        self.window_end = end


def merge(spans: Iterable[Span], *, max_gap: int = MAX_GAP, max_nbytes: int = MAX_NBYTES) -> list[Span]:
    """Return spans, in order, that contain all of *spans*; overlapping or near ones are merged.

    Spans with gaps of up to *max_gap* bytes are merged into spans of up to *max_nbytes* bytes.
    """
    merged: list[Span] = []
    for span in sorted(spans):
        last = merged[-1] if merged else span
        is_near = span.start - last.stop <= max_gap and span.stop - last.start <= max_nbytes
        if merged and (span.start < last.stop or is_near):
            merged[-1] = Span(last.start, max(last.stop, span.stop))
        else:
            merged.append(span)
    return merged


def gaps(spans: Iterable[Span], nbytes: int) -> list[Span]:
    """Return the spans of the first *nbytes* bytes, in order, of which none is in *spans*."""
    found, start = [], 0
    for span in sorted(spans):
        if span.start > start:
            found.append(Span(start, span.start))
        start = max(start, span.stop)
    return [*found, Span(start, nbytes)] if start < nbytes else found


def pieces_around(missing: Sequence[Span], covered: Iterable[Span], nbytes: int, takes: Takes) -> list[Span]:
    """Return what to fetch of an object of *nbytes*, of which those bytes are *covered*, for who reads on in order.

    It is read in an order of its own, so of each block that many of the *missing* units are in, comes all that is not
    covered, as far as it *takes* that. An object that is not large is one block; of others, units are worth a request
    each, unless they are small.
    """
    is_whole = nbytes <= WHOLE_NBYTES
    if not is_whole and any(unit.nbytes > MAX_GAP for unit in missing):
        return merge(missing)
    length = nbytes if is_whole else WINDOW_NBYTES
    free, pieces = gaps(covered, nbytes), list(missing)
    for start in sorted({unit.start // length * length for unit in missing}):
        block = Span(start, min(start + length, nbytes))
        rest = [Span(max(span.start, start), min(span.stop, block.stop)) for span in free if span.overlaps(block)]
        wanted = sum(unit.nbytes for unit in missing if block.holds(unit.start))
        if _MUCH * total(rest) <= wanted and takes(max(0, total(rest) - wanted)):
            pieces += rest
    return merge(pieces)


def spans_of(units: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the spans of *units*, each an offset and a size, that have any bytes."""
    return [Span(offset, offset + nbytes) for offset, nbytes in units if nbytes]


def total(spans: Iterable[Span]) -> int:
    """Return how many bytes *spans* have, none of which overlap."""
    return sum(span.nbytes for span in spans)


def are_in_order(units: Iterable[Span], start: int) -> bool:
    """Whether two or more *units* follow each other from *start*, with gaps that would be fetched anyway."""
    count = 0
    for unit in sorted(units):
        if unit.nbytes and start <= unit.start <= start + MAX_GAP * (count > 0):
            start, count = unit.stop, count + 1
    return count > 1


def are_begun(units: Iterable[Span], nbegun: int) -> bool:
    """Whether some of *units* follow each other from the beginning, or from behind the *nbegun* bytes of an index."""
    return any(are_in_order(units, start) for start in {0, nbegun})


def window(reads: Reads, wanted: Span, until: int) -> Span | None:
    """Return what to fetch for *wanted* if it continues, or begins, a sequential read; None if it does not.

    A whole object of n bytes is read in order by at most max(1, n / `WINDOW_NBYTES`) fetches. Bytes from *until* on,
    which is after *wanted*, are not fetched.
    """
    start, stop = wanted.start, -1
    for end in (reads.window_end, reads.read_end):
        if end is not None and end <= wanted.start <= end + MAX_GAP:
            # A reader that goes beyond what was expected will not stop at the end of the next expectation.
            stop = max(
                (span.stop for span in reads.expected if span.start < end <= wanted.start < span.stop), default=-1
            )
            stop = stop if stop >= 0 else reads.size
            if end == reads.window_end:
                start = end  # what crosses the end of a window is wanted too
            break
    else:
        if any(span.start == wanted.start for span in reads.expected):
            stop = max(span.stop for span in reads.expected if span.holds(wanted.start))
    if stop < 0:
        return None
    rest = min(stop, until) - start
    nbytes = -(-rest // max(1, rest // WINDOW_NBYTES))
    return Span(start, max(start + nbytes, wanted.stop))
