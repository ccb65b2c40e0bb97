"""Conditions and ranges of requests (RFC 9110, sections 13 and 14): what they ask for, without I/O.

Conditions that name a time never hold: several versions of a chunk may have been written within one second.
"""

import re
from typing import Final, NamedTuple

from shardfs.errors import ShardfsError

_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')
_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_MAX_DIGITS: Final = 18


class PreconditionFailedError(ShardfsError):
    """A request was made for another version than the one that is there; nothing was done."""


class Conditions(NamedTuple):
    """The conditions of a request as its head spells them; None are not given."""

    if_match: str | None = None
    if_none_match: str | None = None
    if_unmodified_since: str | None = None
    if_range: str | None = None
    range: str | None = None

    @property
    def are_for_a_change(self) -> bool:
        """Whether there is any that matters to PUT and DELETE."""
        return (self.if_match, self.if_none_match, self.if_unmodified_since) != (None, None, None)

    def check(self, version: str | None, *, exists: bool, for_a_change: bool = False) -> None:
        """Raise `PreconditionFailedError` if this *version* is not what the client has seen.

        A time means nothing to who reads, who is told of each change by other means, and forbids every change.
        """
        if self.if_match is not None:
            is_same = _has(self.if_match, version, is_strong=True) if self.if_match.strip() != "*" else exists
            if not is_same:
                raise PreconditionFailedError("If-Match: it has another version by now, or none")
        elif self.if_unmodified_since is not None and for_a_change:
            raise PreconditionFailedError("If-Unmodified-Since tells no versions within a second apart: use If-Match")

    @property
    def is_for_a_new_file(self) -> bool:
        """Whether nothing may be there."""
        return self.if_none_match is not None and self.if_none_match.strip() == "*"

    def require(self, version: str | None, exists: bool) -> None:
        """Raise `PreconditionFailedError` if this *version* may not be changed."""
        self.check(version, exists=exists, for_a_change=True)
        if self.is_known(version, exists=exists):
            raise PreconditionFailedError("If-None-Match: it exists, or has this version")

    def is_known(self, version: str | None, *, exists: bool) -> bool:
        """Whether the client has this *version* already."""
        if self.if_none_match is None:
            return False
        return exists if self.if_none_match.strip() == "*" else _has(self.if_none_match, version, is_strong=False)

    def selected(self, version: str | None, nbytes: int) -> "Selected":
        """Return which bytes of a file of *nbytes* bytes are asked for."""
        every = Selected(0, nbytes)
        found = _ONE_RANGE.fullmatch(self.range.strip()) if self.range is not None else None
        if found is None or (self.if_range is not None and not _has(self.if_range, version, is_strong=True)):
            return every
        first, last = (_number(digits) if digits else None for digits in found.groups())
        if first is None:
            if last is None or not nbytes:
                return every
            start, stop = max(0, nbytes - last), nbytes
        else:
            if last is not None and last < first:
                return every
            start, stop = first, nbytes if last is None else min(last + 1, nbytes)
        return Selected(start, stop, is_part=True) if start < stop else Selected(0, 0, is_part=True)


class Selected(NamedTuple):
    """Bytes *start* to *stop* − 1 of a file; a part without bytes is one that the file does not have."""

    start: int
    stop: int
    is_part: bool = False


def _has(tags: str, version: str | None, *, is_strong: bool) -> bool:
    """Whether *version* is among the entity *tags*; a weak one is never the same in a strong comparison."""
    at = 0
    while version is not None and (found := _TAG.match(tags, at)) is not None:
        if found[2] == version and not (is_strong and found[1]):
            return True
        at = found.end()
        if at == len(tags):
            break
    return False


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS
