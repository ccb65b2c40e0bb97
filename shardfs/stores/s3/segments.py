"""Bytes of objects in memory: what was fetched along with something else, or ahead in order."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

MAX_NBYTES: Final = 128 * 2**20


@dataclass(slots=True, eq=False)
class _Segment:
    """*data* from *start* on of *version*."""

    version: Hashable
    start: int
    data: memoryview

    @property
    def stop(self) -> int:
        return self.start + self.data.nbytes


@dataclass(slots=True, eq=False)
class Segments:
    """Ranges of versions of objects, those used last, up to *max_nbytes* and the one that was added last.

    A version is whatever names it.  Ranges of one version do not overlap but in passing.  What was read stays, too: who
    reads the same object in order a little later finds it.
    """

    max_nbytes: int = MAX_NBYTES
    nbytes: int = 0
    _by_use: OrderedDict[_Segment, None] = field(default_factory=OrderedDict)
    _by_version: dict[Hashable, list[_Segment]] = field(default_factory=dict)

    def add(self, version: Hashable, start: int, data: memoryview) -> None:
        """Keep *data*, and let go what is too much."""
        if not data.nbytes:
            return
        segments = self._by_version.setdefault(version, [])
        for held in [held for held in segments if start <= held.start and held.stop <= start + data.nbytes]:
            self._drop(held)
        segment = _Segment(version, start, data)
        self._by_version.setdefault(version, []).append(segment)
        self._by_use[segment] = None
        self.nbytes += data.nbytes
        while self.nbytes > self.max_nbytes and len(self._by_use) > 1:
            self._drop(next(iter(self._by_use)))

    def read(self, version: Hashable, start: int, stop: int) -> memoryview | None:
        """Return bytes from *start* on, up to *stop*, as far as one range has them; None if none has the first."""
        for segment in self._by_version.get(version, ()):
            if segment.start <= start < segment.stop:
                self._by_use.move_to_end(segment)
                return segment.data[start - segment.start : stop - segment.start]
        return None

    def next_start(self, version: Hashable, position: int) -> int | None:
        """Return where the first range behind *position* begins."""
        starts = [segment.start for segment in self._by_version.get(version, ()) if segment.start > position]
        return min(starts, default=None)

    def holds(self, version: Hashable, start: int, stop: int) -> bool:
        """Whether all bytes from *start* to before *stop* are in one range, or there are none to be."""
        segments = self._by_version.get(version, ())
        return start >= stop or any(held.start <= start and stop <= held.stop for held in segments)

    def _drop(self, segment: _Segment) -> None:
        del self._by_use[segment]
        self.nbytes -= segment.data.nbytes
        segments = self._by_version[segment.version]
        segments.remove(segment)
        if not segments:
            del self._by_version[segment.version]
