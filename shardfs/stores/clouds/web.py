"""Web servers: what is asked of them (`WebService`), and what 403 and 404 mean there (`WebClient`)."""

import logging
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import uuid4

from shardfs.errors import AccessDeniedError, NotFoundError, ShardfsError, StoreError
from shardfs.stores.objects import replies
from shardfs.stores.objects.client import BACKOFF, Backoff, Client
from shardfs.stores.objects.failures import ABSENT, NOT_PARTIAL, Cause, FailedRequest, Failure
from shardfs.stores.objects.http import Reply
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.pace import TIMEOUTS, Timeouts
from shardfs.stores.objects.requests import DOCUMENT, Counts, ObjectStat, Request
from shardfs.stores.objects.service import Service

log = logging.getLogger(__name__)

_PROBED: Final = f"shardfs-{uuid4().hex}"
"""A name that nothing has; it has no dot, because servers often refuse names that begin with one."""

_OK: Final = 200
_NO_PASSWORD: Final = 401
_REFUSED: Final = 403
_MISSING: Final = (404, 410)
_NO_SOURCE: Final = "the server says that it does not exist, and says so of the source too, or cannot be asked for that"
_ANONYMOUS: Final = (
    "{what} was refused (status 401): it wants a name and a password, and shardfs sends none to web servers"
)
_WHOLE: Final = (
    "asked for a range, the server gives the whole file; programs cannot read parts of files there (`python -m "
    "http.server` is such)"
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class WebService(Service):
    """Files on a web server. It lists nothing, and versions may have no ETags."""

    kind = "server"
    not_partial = replace(NOT_PARTIAL, reason=_WHOLE)

    def __init__(self, location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__(location, location.address, timeouts)

    def _url(self, key: str) -> str:
        """Return the URL of a file; of a name that a server might change, there is none."""
        if _CONTROL.search(key) is not None or any(part in ("", ".", "..") for part in key.split("/")):
            raise FailedRequest(ABSENT)
        return self.location.url_of(key)

    def _stat(self, size: int, headers: Mapping[str, str]) -> ObjectStat:
        return replies.lenient_stat(size, headers.get("etag"), replies.last_modified(headers))

    def _failure(self, reply: Reply) -> Failure:
        if reply.status == _NO_PASSWORD:
            return Failure(Cause.REPLY, "status 401", _NO_PASSWORD, kind=AccessDeniedError, advice=_ANONYMOUS)
        return Failure.of_reply(reply.status, "")


class WebClient(Client):
    """Requests to a web server, of which 403 may mean that nothing is there.

    A server that refuses access to whatever does not exist, as S3 does without the permission to list, says so of names
    that nothing has; then, and if the document of the source can be read, 403 means absent. Both are asked for at each
    403, because a firewall may refuse anything for a while.

    404 means that nothing is there only if the document can be read after it: a proxy without a server behind it says
    404 of everything. One look at the document serves all who were told 404 before it began.
    """

    def __init__(
        self, service: WebService, counts: Counts, *, max_connections: int = 64, backoff: Backoff = BACKOFF
    ) -> None:
        super().__init__(service, counts, max_connections=max_connections, backoff=backoff)
        self._document = DOCUMENT
        self._is_found = False
        self._looking = threading.Lock()
        self._looked: tuple[float, bool | ShardfsError] = -math.inf, False
        """When the last look at the document began, and whether it was found, or the error."""
        self._has_warned = False

    def ask_for(self, document: str) -> None:
        """Take *document* for that of the source from now on, which was found."""
        self._document = document
        self._is_found = True

    async def has_nonsense(self) -> bool:
        """Whether the server has something under a name that nothing has, as pages of errors that say success."""
        try:
            await self.head(_PROBED)
        except NotFoundError:
            return False
        return True

    def error_of(self, request: Request, failure: Failure, attempts: int) -> ShardfsError:
        """Return what is raised for a request that finally failed."""
        if failure.status == _REFUSED and self._means_absent(request):
            failure = ABSENT
        elif failure is not ABSENT and failure.status in _MISSING and not self._is_there(request):
            return StoreError(f"{request.target}: {_NO_SOURCE}")
        return super().error_of(request, failure, attempts)

    def _is_there(self, request: Request) -> bool:
        """Whether the document of the source can be read after a request was told that something is missing."""
        told = time.monotonic()
        urls = [self.location.url_of(key) for key in (_PROBED, self._document)]
        if not self._is_found or request.url in urls:
            return True
        with self._looking:
            if self._looked[0] < told:
                began, found = time.monotonic(), False
                try:
                    found = self._status_of(self._document) == _OK
                except ShardfsError as error:
                    self._looked = began, error
                else:
                    self._looked = began, found
            outcome = self._looked[1]
        if isinstance(outcome, ShardfsError):
            raise outcome.with_traceback(None)
        return outcome

    def _means_absent(self, request: Request) -> bool:
        """Whether 403 for a request means that nothing is there."""
        probed, document = self.location.url_of(_PROBED), self.location.url_of(self._document)
        if request.url in (probed, document):
            return request.url == probed
        try:
            # In this order: where the source can be read again, the name that nothing has is not refused any more.
            means_absent = self._status_of(self._document) == _OK and self._status_of(_PROBED) == _REFUSED
        except ShardfsError:
            return False
        if means_absent and not self._has_warned:
            self._has_warned = True
            url = self.location.url
            log.warning("%s answers 403 for names that do not exist: what it refuses is taken for absent", url)
        return means_absent

    def _status_of(self, key: str) -> int:
        """Return the status of the reply to HEAD; raises an error if there is none."""

        def attempt() -> int:
            try:
                self.service.head(key)
            except FailedRequest as error:
                if error.failure.is_transient or not error.failure.status:
                    raise
                return error.failure.status
            return _OK

        return self.send(self.service.request("HeadObject", key), attempt)
