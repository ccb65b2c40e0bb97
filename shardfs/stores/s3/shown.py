"""Which version of a file programs were shown last: the one that what they write next must replace.

A lookup or a listing shows no content, and does not count: whoever writes what it made of an earlier version would
replace what it has not seen.  One mount cannot tell its programs apart: what one was shown, all were.
"""

from collections import OrderedDict
from typing import Final, TypeVar

from shardfs.stores.s3.requests import ObjectStat

_MAX_KEYS: Final = 100_000

_Value = TypeVar("_Value")


class Shown:
    """Versions by key, None where there was nothing, of the *max_keys* keys that were shown last."""

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self.nchanges = 0
        """How many changes this mount has made."""
        self._states: OrderedDict[str, ObjectStat | None] = OrderedDict()
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._doubtful: OrderedDict[str, frozenset[str]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        """Whether it is known what was shown of *key*."""
        return key in self._states

    def get(self, key: str, default: ObjectStat | None = None) -> ObjectStat | None:
        """Return what was shown of *key*; *default* if that is not known."""
        return self._states.get(key, default)

    def note(self, key: str, state: ObjectStat | None, *, since: int | None = None) -> None:
        """Note that *state* was shown, unless this mount changed *key* after `nchanges` was *since*."""
        if since is None or self._changed.get(key, 0) <= since:
            self._put(self._states, key, state)

    def note_change(self, key: str, state: ObjectStat | None) -> None:
        """Note that this mount made *state* of *key*."""
        self.nchanges += 1
        self._put(self._changed, key, self.nchanges)
        self.note(key, state)

    def follow(self, key: str, old: ObjectStat | None, new: ObjectStat | None) -> None:
        """Note that this mount replaced *old* by *new*: whoever was shown that one knows of the change, or made it."""
        if key not in self._states or _etag(self._states[key]) == _etag(old):
            self.note_change(key, new)

    def doubt(self, key: str, transaction: str) -> None:
        """Note that nobody knows whether this mount has made the change *transaction* of *key*."""
        self._put(self._doubtful, key, self.doubtful(key) | {transaction})

    def doubtful(self, key: str) -> frozenset[str]:
        """Return the changes of *key* of which that is so."""
        return self._doubtful.get(key, frozenset())

    def settle(self, key: str) -> None:
        """Note that a later change of *key* was made: no earlier one can be any more."""
        self._doubtful.pop(key, None)

    def _put(self, where: OrderedDict[str, _Value], key: str, value: _Value) -> None:
        where[key] = value
        where.move_to_end(key)
        if len(where) > self._max_keys:
            where.popitem(last=False)


def _etag(state: ObjectStat | None) -> str | None:
    return state.etag if state is not None else None
