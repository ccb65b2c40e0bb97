"""Single requests to a bucket of Google or Azure, by obstore; nothing else knows that library here."""

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from shardfs.errors import SourceError
from shardfs.stores.clouds.attempts import (
    TIMEOUTS,
    Timeouts,
    check_key,
    modified_of,
    object_stat,
    read_body,
    require_version,
)
from shardfs.stores.clouds.errors import (
    ABSENT,
    COMPRESSED,
    ENDLESS,
    NO_CONTENT_LENGTH,
    NO_CONTENT_RANGE,
    NO_LAST_MODIFIED,
    NO_RANGES,
    NO_REPLY,
    NOT_CONNECTED,
    NOT_TRUSTED,
    ODD_NAME,
    OTHER_RANGE,
    REPLACED,
    SILENT,
    Cause,
    FailedAttempt,
    Failure,
)
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.requests import (
    Fetched,
    ListPage,
    ObjectStat,
    Range,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

T = TypeVar("T")

_NOWHERE: Final = datetime.fromtimestamp(0, UTC)
"""What obstore has as time of a reply that states none."""

_STATUS: Final = re.compile(r"^ +status: (\d{3}),$", re.MULTILINE)
_REASONS: Final = (
    ("RangeNotSupported", NO_RANGES),
    ("NotPartial", NO_RANGES),
    ("UnexpectedRange", OTHER_RANGE),
    ("NoContentRange", NO_CONTENT_RANGE),
    ("ContentRange", NO_CONTENT_RANGE),
    ("ContentLength", NO_CONTENT_LENGTH),
    ("LastModified", NO_LAST_MODIFIED),
)
_WITHOUT_REPLY: Final = (
    (re.compile(r"InvalidCertificate|UnknownIssuer|certificate"), NOT_TRUSTED),
    (re.compile(r"^ +kind: Timeout,$|^ +TimedOut,?$", re.MULTILINE), SILENT),
    (re.compile(r"ConnectError\(|kind: Connect,|ConnectionRefused|dns error"), NOT_CONNECTED),
)


class BucketAttempts:
    """Requests to the bucket of *location*; see `Attempts`."""

    def __init__(self, location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> None:
        self._location = location
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._store: AzureStore | GCSStore | None = None

    def head(self, key: str) -> ObjectStat:
        """Return the state of an object."""
        with _failures():
            return _stat_of(obstore.head(self._obstore(), self._full(key)))

    def get(self, key: str, part: Range, etag: str | None) -> Fetched:
        """Return a range of an object, of the version *etag* if given."""
        options: GetOptions = {
            "range": {"suffix": part.nbytes} if part.offset < 0 else (part.offset, part.offset + part.nbytes)
        }
        modified = modified_of(etag) if etag is not None else None
        if modified is not None:
            options["if_unmodified_since"] = datetime.fromtimestamp(modified, UTC)
        elif etag is not None:
            options["if_match"] = etag
        with _failures():
            result = obstore.get(self._obstore(), self._full(key), options=options)
            stat = _stat_of(result.meta)
            if str(result.attributes.get("Content-Encoding") or "identity") != "identity":
                raise FailedAttempt(COMPRESSED)
            require_version(etag, stat)
            expected, (start, stop) = part.within(stat.size), result.range
            if (start, stop - start) != expected:
                raise FailedAttempt(OTHER_RANGE)
            return Fetched(stat, start, read_body(result.stream(min_chunk_size=1), stop - start, self._timeouts))

    def list(self, prefix: str) -> ListPage:
        """Return all names below *prefix*: obstore has no pages of them."""
        full, start = self._location.full(prefix), len(self._location.full(""))
        with _failures():
            listing = self._in_time(lambda store: obstore.list_with_delimiter_async(store, full or None))
        # obstore leaves out the slash of an object that stands for the directory itself.
        paths = [(full if meta["path"] == full[:-1] else meta["path"], meta) for meta in listing["objects"]]
        prefixes = [f"{name.rstrip('/')}/" for name in listing["common_prefixes"]]
        return ListPage(
            [(path[start:], _stat_of(meta)) for path, meta in paths if path.startswith(full)],
            [path[start:] for path in prefixes if path.startswith(full)],
            None,
        )

    def has_below(self, prefix: str) -> bool:
        """Whether any key begins with *prefix*."""
        full = self._location.full(prefix)
        with _failures():
            return self._in_time(partial(_has_any, prefix=full))

    def _in_time(self, ask: Callable[[AzureStore | GCSStore], Awaitable[T]]) -> T:
        """Return the answer to *ask*, which may be any number of requests that obstore makes by itself."""

        async def wait() -> T:
            async with asyncio.timeout(self._timeouts.listing):
                return await ask(self._obstore())

        try:
            return asyncio.run(wait())
        except TimeoutError:
            raise FailedAttempt(ENDLESS) from None

    def _full(self, key: str) -> str:
        full = self._location.full(key)
        check_key(full)
        return full

    def _obstore(self) -> AzureStore | GCSStore:
        with self._lock:  # created on first use: after a fork it would hang
            if self._store is None:
                self._store = make_store(self._location, self._timeouts)
            return self._store


_SETTINGS: Final = {
    "az": "AZURE_STORAGE_ACCOUNT_NAME, or another setting of Azure in the environment, is missing or invalid",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or another setting of Google in the environment, is missing or invalid",
}
_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL")
"""Variables that name a server other than that of the cloud, such as an emulator."""


def make_store(location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> AzureStore | GCSStore:
    """Return the client of obstore for *location*; it takes credentials from the environment."""
    client_options: ClientConfig = {
        "allow_http": any(os.environ.get(n, "").startswith("http:") for n in _ENDPOINTS),
        "connect_timeout": timedelta(seconds=timeouts.connect),
        "read_timeout": timedelta(seconds=timeouts.silence),
        "timeout": timedelta(seconds=timeouts.whole),
        "default_headers": {"accept-encoding": "identity"},
    }
    retry_config: Any = {"max_retries": 0}
    try:
        if location.scheme == "gs":
            return GCSStore(location.bucket, client_options=client_options, retry_config=retry_config)
        return AzureStore(location.bucket, client_options=client_options, retry_config=retry_config)
    except (BaseError, ValueError):
        raise SourceError(f"{location.url} cannot be opened: {_SETTINGS[location.scheme]}") from None


async def _has_any(store: AzureStore | GCSStore, prefix: str) -> bool:
    async for some in obstore.list(store, prefix, chunk_size=1):
        return bool(some)
    return False


def _stat_of(meta: Mapping[str, Any]) -> ObjectStat:
    modified = meta["last_modified"]
    return object_stat(meta["size"], meta["e_tag"], int(modified.timestamp()) if modified != _NOWHERE else None)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn whatever obstore raises into `FailedAttempt`."""
    try:
        yield
    except (BaseError, FileNotFoundError, InvalidPathError) as error:
        raise FailedAttempt(_of_obstore(error)) from None


def _of_obstore(error: Exception) -> Failure:
    """Return what an exception of obstore means.

    Its message ends with a dump of the cause, one member per line, in which strings are quoted and escaped: so a line
    with a member is no part of a key or of a reply.
    """
    dump = str(error).rpartition("\n\nDebug source:\n")[2]
    stated = _STATUS.search(dump)
    status = int(stated[1]) if stated is not None else 0
    if isinstance(error, InvalidPathError):
        return ODD_NAME
    if isinstance(error, PreconditionError):
        return REPLACED
    if isinstance(error, NotFoundError | FileNotFoundError):
        return Failure(Cause.REFUSED, ABSENT.reason, status or ABSENT.status)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return Failure(Cause.REFUSED, "access is refused", status or 403)
    for name, failure in _REASONS:
        if re.search(rf"^ +source: \w*{name}|^ +source: Header \{{\n +source: \w*{name}", dump, re.MULTILINE):
            return failure
    if status:
        return Failure.of_status(status)
    if isinstance(error, NotSupportedError):  # as ranges that count from the end, by Azure
        return NO_RANGES
    for pattern, failure in _WITHOUT_REPLY:
        if pattern.search(dump):
            return failure
    return NO_REPLY
