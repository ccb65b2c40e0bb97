"""What was seen of single objects a while ago, and is believed until it is too old."""

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shardfs.stores.s3.requests import ObjectStat
from shardfs.stores.ttl import within_ttl

_MAX_KEYS: Final = 100_000


class Known(NamedTuple):
    """What is known of a key: the object of that name, None if there is none, and whether keys lie below it.

    *is_directory* is None if that is not known: only a listing tells.
    """

    stat: ObjectStat | None
    is_directory: bool | None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what the key stands for."""
        return self.stat is not None or self.is_directory is not None

    @property
    def is_absent(self) -> bool:
        """Whether the key certainly stands for nothing."""
        return self.stat is None and self.is_directory is False


@dataclass(slots=True)
class _Record:
    known: Known
    time: float
    serial: int


@dataclass(slots=True, eq=False)
class Seen:
    """What was seen by key, as long as it is believed, of the *max_keys* keys that were asked for last.

    A reply that was under way while we changed the object itself says nothing: *serial* counts our changes, and whoever
    asks the store notes it first.
    """

    ttl: float
    clock: Callable[[], float] = time.monotonic
    max_keys: int = _MAX_KEYS
    serial: int = 0
    _records: OrderedDict[str, _Record] = field(default_factory=OrderedDict)

    def find(self, key: str, *, since: float | None = None) -> Known | None:
        """Return what is believed of *key*, if it was seen not earlier than *since*; None if nothing is."""
        record = self._records.get(key)
        if record is None or not within_ttl(record.time, self.clock(), self.ttl):
            return None
        if since is not None and record.time < since:
            return None
        self._touch(key)
        return record.known

    def note(self, key: str, known: Known, *, time: float, serial: int) -> None:
        """Note what the store said of *key* in reply to a request of that *time*, when *serial* was what it was."""
        record = self._records.get(key)
        if record is not None and record.serial > serial:
            return
        before = self.find(key)
        if known.is_directory is None and before is not None:
            known = known._replace(is_directory=before.is_directory)
        self._put(key, _Record(known, time, serial))

    def note_change(self, key: str, known: Known) -> None:
        """Note what we made of *key* ourselves."""
        self.serial += 1
        self._put(key, _Record(known, self.clock(), self.serial))

    def forget(self, key: str) -> None:
        """Believe nothing of *key*; may be called in any thread."""
        self._records.pop(key, None)

    def _put(self, key: str, record: _Record) -> None:
        self._records[key] = record
        self._touch(key)
        if len(self._records) > self.max_keys:
            self._records.popitem(last=False)

    def _touch(self, key: str) -> None:
        with suppress(KeyError):  # another thread may forget it at any time
            self._records.move_to_end(key)
