"""The bytes of versions of objects that stay in memory."""

from collections import OrderedDict
from dataclasses import dataclass, field

from shardfs.stores.objects.ranges import Span, Spans

VersionId = tuple[str, str]
"""Name and ETag of an object."""


@dataclass(slots=True, eq=False)
class KeptRanges:
    """Ranges of versions of objects, the most recently used, up to *max_nbytes* and the last added one.

    What was read stays too, for others that read the same object in order a little later. Only the event loop changes
    which there are.
    """

    max_nbytes: int
    nbytes: int = 0
    _by_use: OrderedDict[tuple[VersionId, Span], memoryview] = field(default_factory=OrderedDict)
    _spans: dict[VersionId, Spans] = field(default_factory=dict)

    def add(self, version: VersionId, start: int, data: memoryview) -> None:
        """Keep *data*, and drop what is too much."""
        span = Span(start, start + data.nbytes)
        if not data.nbytes or self.has(version, span):
            return
        for within in self._spans.setdefault(version, Spans()).add(span):
            self.nbytes -= self._by_use.pop((version, within)).nbytes
        self._by_use[version, span] = data
        self.nbytes += data.nbytes
        while self.nbytes > self.max_nbytes and len(self._by_use) > 1:
            # In one step: other threads change the order.
            (oldest, within), dropped = self._by_use.popitem(last=False)
            self._note_dropped(oldest, within, dropped)

    def drop(self, version: VersionId, wanted: Span) -> None:
        """Drop every range of a version that has bytes of *wanted*."""
        for span in self.spans(version).overlapping(wanted):
            self._note_dropped(version, span, self._by_use.pop((version, span)))

    def _note_dropped(self, version: VersionId, span: Span, data: memoryview) -> None:
        self.nbytes -= data.nbytes
        self._spans[version].discard(span)
        if not self._spans[version].spans:
            del self._spans[version]

    def spans(self, version: VersionId) -> Spans:
        """Return the ranges of a version that are here."""
        return self._spans.get(version) or Spans()

    def has(self, version: VersionId, span: Span) -> bool:
        """Whether all bytes of *span* are here in one range, or it is empty."""
        around = self.spans(version).at(span.start)
        return not span.nbytes or (around is not None and around.stop >= span.stop)

    def read(self, version: VersionId, start: int, stop: int) -> memoryview | None:
        """Return bytes from *start* up to *stop*, as far as one range has them; None if none has the first."""
        span = self.spans(version).at(start)
        if span is None:
            return None
        self._by_use.move_to_end((version, span))
        return self._by_use[version, span][start - span.start : stop - span.start]

    def read_all(self, version: VersionId, wanted: Span) -> memoryview | None:
        """Return the bytes of *wanted* if one range has them, from any thread; else None."""
        try:
            data = self.read(version, wanted.start, wanted.stop)
        except (KeyError, IndexError):  # which the event loop has just dropped
            return None
        return data if data is not None and data.nbytes == wanted.nbytes else None
