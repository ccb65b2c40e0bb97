"""The files that references may lead to: those below roots that the user allows, each read by a reader of its root."""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import dirname, isabs, join, normpath
from typing import Final
from urllib.parse import unquote

from shardfs.errors import AccessDeniedError, CorruptionError, SourceError, without_secrets
from shardfs.stores.files import AnyLocation, TargetFiles, name_of
from shardfs.stores.objects.location import SCHEMES, CloudLocation, S3Location
from shardfs.stores.url import ALLOW_TARGET

_ALIASES: Final = {"s3a": "s3", "gcs": "gs", "local": "file"}


@dataclass(frozen=True)
class TargetRoot:
    """*files* below a location, which has the *names*: a local one has several, if there are links in its path."""

    names: tuple[str, ...]
    files: TargetFiles

    def key(self, name: str) -> str | None:
        """Return the key of the file *name*, None if it is not below this root."""
        for root in self.names:
            if name.startswith(root if root.endswith("/") else f"{root}/"):
                return name[len(root) :].removeprefix("/")
        return None


class Targets:
    """The files below *roots*. A name that is relative is so to *home*, the location of the references."""

    def __init__(self, home: AnyLocation, roots: Sequence[TargetRoot]) -> None:
        self.roots = roots
        self._home = home

    def find(self, url: str) -> tuple[TargetFiles, str]:
        """Return the reader of the file at *url*, and its key there.

        Raises `AccessDeniedError` for a file that is below no root, and `CorruptionError` for what is no URL of a file.
        """
        name, root = self._location_of(url)
        for allowed in self.roots:
            key = allowed.key(name)
            if key is not None:
                return allowed.files, unquote(key) if name.startswith("http") else key
        roots = " and ".join(allowed.names[0] for allowed in self.roots)
        shown = without_secrets(url)
        raise AccessDeniedError(
            f"{shown} is not allowed, as references may only lead to files below {roots}: add {ALLOW_TARGET} {root}"
        )

    def is_allowed(self, url: str) -> bool:
        """Whether *url* is that of a file below a root."""
        try:
            name, _ = self._location_of(url)
        except CorruptionError:
            return False
        return any(root.key(name) is not None for root in self.roots)

    def root_of(self, url: str) -> str | None:
        """Return a root that *url* is below of, None if it is no URL of a file."""
        try:
            return self._location_of(url)[1]
        except CorruptionError:
            return None

    def _location_of(self, url: str) -> tuple[str, str]:
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
                cloud = CloudLocation.parse(f"{scheme}://{rest}")
                return name_of(cloud), cloud.base
        except SourceError as error:
            raise CorruptionError(f"it refers to what cannot be read: {error}") from None
        raise CorruptionError(f"it refers to {without_secrets(url)}, and {scheme}:// is nothing that shardfs reads")
