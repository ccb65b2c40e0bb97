"""Formats of other packages, behind a fence: what one does wrong is an error of what it was asked of, and names it."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from shardfs.errors import IsADirectoryHereError, NotADirectoryHereError, NotFoundError, ShardfsError, SourceError
from shardfs.format.fence import fault_of, fenced
from shardfs.format.foreign import Foreign
from shardfs.format.outline import Outline
from shardfs.formats.base import Candidate, FileSource, Format, FoundNode, SourceDirectory
from shardfs.stores.base import Reader

log = logging.getLogger(__name__)

_ABSENT: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)
_METHODS: Final = ("check", "list", "stat", "open")
_FAILED: Final = "failed"
"""The stamp of what a format could not say: it is asked again each time."""
_MAX_LOGGED: Final = 100

T = TypeVar("T")


class OtherFormat(Format):
    """The format *one* of the distribution *package*, as others ask it."""

    def __init__(self, one: Format, package: str) -> None:
        """Take over what *one* says of itself; raises `TypeError` if that is not what a `Format` says."""
        self._one = one
        self._package = package
        self._logged: set[str] = set()
        self.name = one.name
        if not isinstance(self.name, str) or not self.name:
            raise TypeError("it has no name: set the attribute `name`")
        for names in ("documents", "suffixes", "signatures", "options", "is_usual"):
            if isinstance(getattr(one, names), str | bytes):
                raise TypeError(f"its `{names}` is a text, and should be several: ({getattr(one, names)!r},)")
        self.documents = frozenset(map(_text, one.documents))
        self.suffixes = tuple(map(_text, one.suffixes))
        self.signatures = tuple(map(_bytes, one.signatures))
        self.options = frozenset(map(_text, one.options))
        self.is_usual = frozenset(map(_text, one.is_usual))
        self.sources, self.web_source = _text(one.sources), _text(one.web_source)
        self.web = [(tuple(row), [tuple(below) for below in rows]) for row, rows in one.web]

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return what *directory* is; where that fails, and one of the documents is there, that it cannot be read."""
        try:
            known = known if known is None or known.stamp != _FAILED else None
            return _one_of(FoundNode, await self._one.find(directory, known), "find")
        except ShardfsError:
            raise
        except Exception as fault:
            reason = self._noted(fault, directory.path or "the source")
        for name in sorted(self.documents):
            with suppress(*_ABSENT):
                stat = await directory.store.stat(directory.key(name))
                kind = f"something of {self.name}"
                return FoundNode(Foreign(format=self.name, kind=kind, reason=reason, describing=name), stat, _FAILED)
        return None

    def takes(self, source: Candidate) -> bool:
        """Whether *source* is of the format; raises `SourceError` if it fails to say so."""
        return bool(self._ask(lambda: self._one.takes(source), source.path or source.name))

    def open(self, source: FileSource) -> Reader:
        """Return a reader of *source*; raises `SourceError`, also if it returns something else."""
        reader = self._ask(lambda: self._one.open(source), source.url)
        if not all(hasattr(reader, method) for method in _METHODS):
            raise SourceError(self._said(TypeError(f"open() returned {reader!r}"), source.url))
        return reader

    def outline(self, path: str, documents: Mapping[str, bytes]) -> Outline | None:
        """Return what *documents* say; raises `StoreError` if it fails to."""
        with fenced(self._one, path or "the source"):
            return self._one.outline(path, documents)

    def remark(self, names: frozenset[str]) -> str | None:
        """Return what it says of *names*; nothing if it fails to."""
        with suppress(SourceError):
            return self._ask(lambda: self._one.remark(names), "the source")
        return None

    def _ask(self, question: Callable[[], T], of: str) -> T:
        try:
            return question()
        except ShardfsError:
            raise
        except Exception as fault:
            self._noted(fault, of)
            raise SourceError(self._said(fault, of)) from fault

    def _noted(self, fault: Exception, of: str) -> str:
        """Log a fault, once; returns what there is to say of it."""
        reason = fault_of(self._package, fault)
        if reason not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(reason)
            log.warning("%s", self._said(fault, of), exc_info=fault)
        return f"its format is {self.name}, and {reason}"

    def _said(self, fault: Exception, of: str) -> str:
        return f"{of} cannot be read as {self.name}: {fault_of(self._package, fault)}"


def load_others(group: str, taken: frozenset[str]) -> tuple[list[Format], list[str]]:
    """Return the formats of other packages, which are entry points of *group*, and what is wrong with those not used.

    Names that are *taken* are those of other formats.
    """
    from importlib.metadata import entry_points  # imported only here: it takes long, and plain Zarr needs no format

    found: dict[str, Format] = {}
    faults = []
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
        try:
            one = _checked(point.load(), package, taken | found.keys())
        except (Exception, SystemExit) as fault:  # in code of others
            what = str(fault) if isinstance(fault, TypeError) else repr(fault)
            faults.append(f"the format {point.name} ({point.value}) of the package {package} is not used: {what}")
        else:
            found[one.name] = one
    return list(found.values()), faults


def _checked(loaded: object, package: str, taken: frozenset[str]) -> OtherFormat:
    """Return what an entry point of *package* is as a format; raises `TypeError` if it cannot be used as one."""
    if isinstance(loaded, type):
        raise TypeError("it is a class: FORMAT is an instance of it")
    if not isinstance(loaded, Format):
        raise TypeError("it is no shardfs.formats.Format")
    one = OtherFormat(loaded, package)
    if one.name in taken:
        raise TypeError(f"it has the name {one.name} of another one")
    return one


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes) or not value:
        raise TypeError(f"{value!r} is no signature: it should be some bytes")
    return value


def _one_of(kind: type[T], value: object, method: str) -> T | None:
    """Return *value*, an object of *kind*, or None; raises `TypeError` for what is neither."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{method}() returned {value!r}, no {kind.__name__}")
    return value
