"""The files that references may lead to: those below roots that the user allows, each read by a reader of its root."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import dirname, isabs, join, normpath
from typing import Any, Final, Protocol
from urllib.parse import unquote

from shardfs.errors import AccessDeniedError, CorruptionError, SourceError, without_secrets
from shardfs.stores.base import Address, ListedName, Snapshot, Stat
from shardfs.stores.objects.location import SCHEMES, CloudLocation, S3Location

OPTION: Final = "--allow-target"
_ALIASES: Final = {"s3a": "s3", "gcs": "gs", "local": "file"}


class TargetFiles(Protocol):
    """Files below a root, opened by names that are known otherwise."""

    @property
    def address(self) -> Address:
        """The permanent name of the root."""

    @property
    def lists(self) -> bool:
        """Whether directories can be listed."""

    async def list(self, key: str) -> Sequence[ListedName]:
        """Return the names in a directory."""

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Snapshot:
        """Open a file; links are only followed within the root. Raises the errors of `Reader.open`."""

    async def fresh(self, key: str) -> Stat:
        """Return the status of a file as it is stored now."""

    def forget(self, key: str) -> None:
        """Ask again for *key* at the next request."""

    def statistics(self) -> Mapping[str, Any]:
        """Return counts of requests."""


Place = str | S3Location | CloudLocation
"""A directory by its absolute path, or a part of a bucket or of a web server."""


@dataclass(frozen=True)
class TargetRoot:
    """*files* below a place, which has the *names*: a local one has several, if there are links in its path."""

    names: tuple[str, ...]
    files: TargetFiles

    def key(self, name: str) -> str | None:
        """Return the key of the file *name*, None if it is not below this root."""
        for root in self.names:
            if name.startswith(root if root.endswith("/") else f"{root}/"):
                return name[len(root) :].lstrip("/")
        return None


def name_of(place: Place) -> str:
    """Return the name of a place, with which those of all files below it begin."""
    match place:
        case str():
            return normpath(place)
        case S3Location():
            return place.url
        case _:
            return place.url.replace(place.base, place.base.lower(), 1) if place.is_web else place.url


class Targets:
    """The files below *roots*. A name that is relative is so to *home*, the place of the references."""

    def __init__(self, home: Place, roots: Sequence[TargetRoot]) -> None:
        self.roots = roots
        self._home = home

    def find(self, url: str) -> tuple[TargetFiles, str]:
        """Return the reader of the file at *url*, and its key there.

        Raises `AccessDeniedError` for a file that is below no root, and `CorruptionError` for what is no URL of a file.
        """
        name, root = self._place_of(url)
        for allowed in self.roots:
            key = allowed.key(name)
            if key is not None:
                return allowed.files, unquote(key) if name.startswith("http") else key
        roots = " and ".join(allowed.names[0] for allowed in self.roots)
        shown = without_secrets(url)
        raise AccessDeniedError(
            f"{shown} is not allowed, as references may only lead to files below {roots}: add {OPTION} {root}"
        )

    def is_allowed(self, url: str) -> bool:
        """Whether *url* is that of a file below a root."""
        try:
            name, _ = self._place_of(url)
        except CorruptionError:
            return False
        return any(root.key(name) is not None for root in self.roots)

    def root_of(self, url: str) -> str | None:
        """Return a root that *url* is below of, None if it is no URL of a file."""
        try:
            return self._place_of(url)[1]
        except CorruptionError:
            return None

    def _place_of(self, url: str) -> tuple[str, str]:
        """Return the name of the file at *url*, and a root that would allow it."""
        scheme, is_url, rest = url.partition("://")
        scheme = _ALIASES.get(scheme.lower(), scheme.lower()) if is_url else "file"
        rest = rest if is_url else url
        if "\0" in url:
            raise CorruptionError("it refers to a name with a NUL in it")
        if scheme == "file" and isinstance(self._home, str):
            path = normpath(join(self._home, rest))
            return path, dirname(path)
        if scheme == "file" and (is_url or isabs(rest)):
            raise CorruptionError(f"it refers to {without_secrets(url)}, a file on a machine that is not this one")
        try:
            if scheme == "file":
                scheme, _, rest = f"{name_of(self._home)}/{rest}".partition("://")
            if scheme == "s3":
                location = S3Location.parse(f"s3://{rest}")
                return location.url, f"s3://{location.bucket}"
            if scheme in SCHEMES:
                place = CloudLocation.parse(f"{scheme}://{rest}")
                return name_of(place), place.base
        except SourceError as error:
            raise CorruptionError(f"it refers to what cannot be read: {error}") from None
        raise CorruptionError(f"it refers to {without_secrets(url)}, and {scheme}:// is nothing that shardfs reads")
