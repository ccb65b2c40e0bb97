"""Ranges of objects: which are there, and which are fetched for those that are wanted, so that few requests are made.

A request costs about as much time as a quarter of a MiB takes to arrive: small gaps are fetched along.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_GAP: Final = 256 * 2**10
"""Up to how many bytes that nobody wants are fetched to save a request."""

MAX_NBYTES: Final = 16 * 2**20
"""What is fetched at most with one request that was made of several."""

WINDOW_NBYTES: Final = 8 * 2**20
"""What is fetched at least with one request of an object that is read in order, as far as it goes."""


class Span(NamedTuple):
    """The bytes from *start* to before *stop*."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return self.stop - self.start

    def holds(self, position: int) -> bool:
        """Whether the byte at *position* is one of them."""
        return self.start <= position < self.stop


@dataclass(slots=True)
class Spans:
    """Spans of which none lies within another: in order by their beginnings, they are so by their ends too."""

    spans: list[Span] = field(default_factory=list)

    def at(self, position: int) -> Span | None:
        """Return the span that goes on longest from *position*; None if none holds it."""
        place = bisect_right(self.spans, (position, math.inf))
        found = self.spans[place - 1] if place else None
        return found if found is not None and found.holds(position) else None

    def next_start(self, position: int) -> float:
        """Return where the first span behind *position* begins; infinity if there is none."""
        place = bisect_right(self.spans, (position, math.inf))
        return self.spans[place].start if place < len(self.spans) else math.inf

    def add(self, span: Span) -> Sequence[Span]:
        """Take in a span; return those that are not there because of others: what lies within it, or itself."""
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
        place = bisect_left(self.spans, span)
        is_there = self.spans[place : place + 1] == [span]
        del self.spans[place : place + is_there]
        return is_there


@dataclass(slots=True)
class Reads:
    """How an object of *size* bytes was read so far, and what its reader *expected* to read last.

    *read_end* is where the last fetch ended, *window_end* the last one that went beyond what was asked for.
    """

    size: int
    expected: MutableSequence[Span] = field(default_factory=list)
    read_end: int | None = None
    window_end: int | None = None


def merge(spans: Iterable[Span], *, max_gap: int = MAX_GAP, max_nbytes: int = MAX_NBYTES) -> list[Span]:
    """Return spans in order that hold all of *spans*: those that overlap, or are near, as one.

    Those that are near become one of up to *max_nbytes* bytes, with gaps of up to *max_gap*.
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


def window(reads: Reads, wanted: Span, until: int) -> Span | None:
    """Return what to fetch for *wanted* if it goes on with reading in order, or begins it; None if it does not.

    Fetches of a whole object of n bytes in order are at most max(1, n / `WINDOW_NBYTES`).  Bytes from *until* on,
    which lies behind *wanted*, are not fetched.
    """
    start, stop = wanted.start, -1
    for end in (reads.window_end, reads.read_end):
        if end is not None and end <= wanted.start <= end + MAX_GAP:
            # Whoever reads on beyond what was expected will not stop where the next expectation does.
            stop = max(
                (span.stop for span in reads.expected if span.start < end <= wanted.start < span.stop), default=-1
            )
            stop = stop if stop >= 0 else reads.size
            if end == reads.window_end:
                start = end  # what lies across the end of a window is wanted too
            break
    else:
        if any(span.start == wanted.start for span in reads.expected):
            stop = max(span.stop for span in reads.expected if span.holds(wanted.start))
    if stop < 0:
        return None
    rest = min(stop, until) - start
    nbytes = -(-rest // max(1, rest // WINDOW_NBYTES))
    return Span(start, max(start + nbytes, wanted.stop))
