"""Versions of objects that our own changes replaced, whose first bytes are those of the new version too."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import trio

from shardfs.stores.s3.requests import ObjectStat

_MAX_STEPS: Final = 10_000


class Successor(NamedTuple):
    """The version that has the first *kept_nbytes* bytes of another one now."""

    stat: ObjectStat
    kept_nbytes: int


@dataclass(slots=True, eq=False)
class Succession:
    """Which version followed which, by key and ETag, for the *max_steps* steps of late."""

    max_steps: int = _MAX_STEPS
    _steps: OrderedDict[tuple[str, str], Successor] = field(default_factory=OrderedDict)
    _changing: dict[str, trio.Event] = field(default_factory=dict)

    def add(self, key: str, etag: str, new: ObjectStat, kept_nbytes: int) -> None:
        """Note that *new* replaced the version *etag*, and begins with the same *kept_nbytes* bytes."""
        if new.etag == etag:
            return
        self.returned(key, new.etag)
        self._steps[key, etag] = Successor(new, kept_nbytes)
        while len(self._steps) > self.max_steps:
            self._steps.popitem(last=False)

    def returned(self, key: str, etag: str) -> None:
        """Note that *key* has the version *etag* now, maybe again: what led away from an earlier one is over."""
        self._steps.pop((key, etag), None)

    def latest(self, key: str, stat: ObjectStat) -> Successor:
        """Return the last version that is known to begin as *stat* does, which may be itself; for any thread."""
        found = Successor(stat, stat.size)
        while (step := self._steps.get((key, found.stat.etag))) is not None:
            found = Successor(step.stat, min(found.kept_nbytes, step.kept_nbytes))
        return found

    @contextmanager
    def changing(self, key: str) -> Iterator[None]:
        """Let readers that find another version of *key* wait until the block ends: it may be ours."""
        event = self._changing[key] = trio.Event()
        try:
            yield
        finally:
            if self._changing.get(key) is event:
                del self._changing[key]
            event.set()

    async def settled(self, key: str) -> None:
        """Wait until nobody is `changing` *key*."""
        while key in self._changing:
            await self._changing[key].wait()
