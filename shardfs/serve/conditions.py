"""Conditions and ranges of requests (RFC 9110, sections 13 and 14): what they ask for, without I/O.

`RequestConditions.is_known` is the one place that evaluates conditions, in the order of section 13.2.2.
"""

import re
from typing import Final, NamedTuple

from shardfs.errors import ShardfsError
from shardfs.serve.exchange import READING, Exchange

_EMPTY: Final = re.compile(r"[ \t]*(?:,[ \t]*)*")
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"[ \t]*(?=,|$)')
_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_MAX_DIGITS: Final = 18


class PreconditionFailedError(ShardfsError):
    """A request was made for another version than the one that is there; nothing was done."""


class RequestConditions(NamedTuple):
    """The conditions of a request as its head spells them; None are not given.

    Conditions that name a time hold for no change, because several versions of a chunk may have been written within one
    second. They mean nothing to who reads, who is told of each change by other means.
    """

    method: str
    if_match: str | None = None
    if_none_match: str | None = None
    if_unmodified_since: str | None = None
    if_range: str | None = None
    range: str | None = None

    @classmethod
    def of(cls, exchange: Exchange) -> "RequestConditions":
        """Return the conditions of a request."""
        names = ("If-Match", "If-None-Match", "If-Unmodified-Since", "If-Range", "Range")
        return cls(exchange.method, *map(exchange.header, names))

    @property
    def name_versions(self) -> bool:
        """Whether the version of what is there decides what is done."""
        dates = self.if_unmodified_since if self._is_change else None
        return (self.if_match, self.if_none_match, dates) != (None, None, None)

    @property
    def is_for_a_new_file(self) -> bool:
        """Whether nothing may be there."""
        return self.if_none_match is not None and self.if_none_match.strip() == "*"

    @property
    def _is_change(self) -> bool:
        return self.method not in READING

    def is_known(self, version: str | None, exists: bool = True) -> bool:
        """Return whether a reader has this *version* already; None is one that nothing tells from others.

        Raises `PreconditionFailedError` if the request is not to be carried out.
        """
        if self.if_match is not None:
            if not _has(self.if_match, version, exists, is_strong=True):
                raise PreconditionFailedError("If-Match: it has another version by now, or none")
        elif self.if_unmodified_since is not None and self._is_change:
            raise PreconditionFailedError("If-Unmodified-Since tells no versions within a second apart: use If-Match")
        if self.if_none_match is None:
            return False
        if self._is_change and not self.is_for_a_new_file:
            # In doubt, nothing is changed.
            if _tags(self.if_none_match) is None:
                raise PreconditionFailedError("If-None-Match is neither * nor a list of entity tags")
            if version is None and exists:
                raise PreconditionFailedError("If-None-Match: nothing tells whether it has this version")
        if not _has(self.if_none_match, version, exists, is_strong=False):
            return False
        if self._is_change:
            raise PreconditionFailedError("If-None-Match: it exists, or has this version")
        return True

    def selected(self, version: str | None, nbytes: int) -> "Selected":
        """Return which bytes of a file of *nbytes* bytes are asked for; ranges are for GET alone."""
        every = Selected(0, nbytes)
        found = _ONE_RANGE.fullmatch(self.range.strip()) if self.range is not None and self.method == "GET" else None
        if found is None or (self.if_range is not None and not _is(self.if_range, version)):
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


class _Tag(NamedTuple):
    version: str
    is_weak: bool


def _has(field: str, version: str | None, exists: bool, *, is_strong: bool) -> bool:
    """Whether what is there is among those that a *field* names; if the comparison *is_strong*, no weak tag is."""
    if field.strip() == "*":
        return exists
    return any(tag.version == version and not (is_strong and tag.is_weak) for tag in _tags(field) or ())


def _is(field: str, version: str | None) -> bool:
    """Whether *field* is the one tag of this *version*; the comparison is strong."""
    return version is not None and _tags(field) == [_Tag(version, is_weak=False)]


def _tags(field: str) -> list[_Tag] | None:
    """Return the entity tags in a list, which may have empty elements; None if it is no such list."""
    found: list[_Tag] = []
    at = _end(_EMPTY, field, 0)
    while at < len(field):
        tag = _TAG.match(field, at)
        if tag is None:
            return None
        found.append(_Tag(tag[2], tag[1] is not None))
        at = _end(_EMPTY, field, tag.end())
    return found


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match is not None else at


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS
