"""Which ranges of an object are fetched for those that are wanted, so that few requests are made: pure planning.

A request costs about as much time as a quarter of a MiB takes to arrive: small gaps are fetched along.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Reads:
    """How an object of *size* bytes was read so far, and what its reader expects to read.

    *read_end* is where the last fetch ended, *window_end* the last one that went beyond what was asked for.
    """

    size: int
    expected: Sequence[Span] = ()
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
