"""From what a user writes as SOURCE to a store."""

from urllib.parse import unquote, urlsplit

from shardfs.errors import SourceError
from shardfs.stores.local import LocalStore


def open_store(source: str) -> LocalStore:
    """Open the store that *source*, a path or a `file://` URL, names; raises `SourceError`."""
    if not source:
        raise SourceError("SOURCE is empty; was a variable never set?")
    if "://" not in source:
        return LocalStore(source)
    try:
        parts = urlsplit(source)
    except ValueError as error:
        raise SourceError(f"{source} is no URL: {error}") from None
    if parts.scheme != "file":
        raise SourceError(f"{source}: {parts.scheme}:// is not supported; SOURCE is a path or a file:// URL")
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"{source} names the host {parts.netloc}; a file:// URL has three slashes: file:///path")
    path = unquote(parts.path, errors="surrogateescape")
    if not path or parts.query or parts.fragment:
        raise SourceError(f"{source} names no file; write ? and # in its path as %3F and %23")
    return LocalStore(path)
