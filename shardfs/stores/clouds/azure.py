"""Azure Blob Storage: its requests and listings, and its three ways to sign."""

import hmac
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from shardfs.errors import SourceError
from shardfs.stores.clouds.google import is_set
from shardfs.stores.objects import replies
from shardfs.stores.objects.failures import Cause, FailedRequest, Failure
from shardfs.stores.objects.http import Reply
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.pace import TIMEOUTS, Timeouts
from shardfs.stores.objects.requests import ListPage
from shardfs.stores.objects.service import BucketService

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_VERSION: Final = "2023-11-03"
_SCOPE: Final = "https://storage.azure.com/.default"
_SIGNED: Final = (
    *("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date"),
    *("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"),
)
"""The headers that are part of what the key of an account signs, in this order."""

_MISSING: Final = (404, 410)
_NOT_OF_AZURE: Final = Failure(
    Cause.UNUSABLE, "what says that it does not exist is not Azure, but something between here and there"
)
_SETTINGS: Final = "AZURE_STORAGE_ACCOUNT_NAME, or another setting of Azure in the environment, is missing or invalid"
_NO_CREDENTIALS: Final = (
    "there are no credentials of Azure; set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY, or what azure-identity "
    "takes; for public containers, set AZURE_SKIP_SIGNATURE=true"
)
_NO_LIBRARY: Final = (
    "the library azure-identity is not installed, which gets tokens; set AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_KEY, or for public containers AZURE_SKIP_SIGNATURE=true"
)


class AzureService(BucketService):
    """A container of Azure, as the environment says; identities are looked up when the first request is sent."""

    kind = "container"
    counts_from_end = False

    def __init__(self, location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__(location, location.address, timeouts)
        self._account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        if not self._account.isalnum():
            raise SourceError(f"{location.url} cannot be opened: {_SETTINGS}")
        endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT")
        self._endpoint = (endpoint or f"https://{self._account}.blob.core.windows.net").rstrip("/")
        key = _first("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
        try:
            self._key = b64decode(key, validate=True)
        except ValueError:
            raise SourceError(f"{location.url} cannot be opened: {_SETTINGS}") from None
        self._sas = "" if key else _first("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN").removeprefix("?")
        self._is_anonymous = is_set("AZURE_SKIP_SIGNATURE")
        self._lock = threading.Lock()
        self._identity: TokenCredential | None = None

    def _container_url(self) -> str:
        return f"{self._endpoint}/{self.location.bucket}"

    def _full_url(self, url: str) -> str:
        """Return a URL with the SAS token, if there is one."""
        if not self._sas or self._is_anonymous:
            return url
        return f"{url}{'&' if '?' in url else '?'}{self._sas}"

    def _listing(self, full: str, delimiter: str, token: str | None, limit: int) -> dict[str, str]:
        wanted = {"restype": "container", "comp": "list", "prefix": full, "maxresults": str(limit)}
        if delimiter:
            wanted["delimiter"] = delimiter
        return wanted | ({} if token is None else {"marker": token})

    def _page(self, body: memoryview) -> ListPage:
        return replies.azure_page(body)

    def container_check(self) -> None:
        """Return nothing: HEAD of a blob tells a container that is not there from a blob."""

    def _failure(self, reply: Reply) -> Failure:
        """Return what a reply means; every error of Azure has a code, to HEAD too."""
        failure = Failure.of_reply(reply.status, reply.headers.get("x-ms-error-code") or replies.code_of(reply.body))
        if reply.status in _MISSING and not failure.code:
            return _NOT_OF_AZURE
        return failure

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        signed = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        if self._is_anonymous or self._sas:
            return signed
        if self._key:
            signature = shared_key(self._account, self._key, method, url, signed)
            return {**signed, "Authorization": f"SharedKey {self._account}:{signature}"}
        return {**signed, "Authorization": f"Bearer {self._token()}"}

    def _token(self) -> str:
        """Return the token of an identity, which its library renews."""
        try:
            from azure.core.exceptions import AzureError
            from azure.identity import DefaultAzureCredential
        except ModuleNotFoundError:
            raise FailedRequest(Failure(Cause.NO_CREDENTIALS, _NO_LIBRARY)) from None
        try:
            with self._lock:
                if self._identity is None:
                    self._identity = DefaultAzureCredential()
            return str(self._identity.get_token(_SCOPE).token)
        except (AzureError, ValueError):  # whose words may contain a secret
            raise FailedRequest(Failure(Cause.NO_CREDENTIALS, _NO_CREDENTIALS)) from None


def shared_key(account: str, key: bytes, method: str, url: str, headers: Mapping[str, str]) -> str:
    """Return the signature of a request without a body, by the key of an account.

    See "Authorize with Shared Key" in the reference of Azure Storage.
    """
    parts = urlsplit(url)
    own = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    query = sorted((name.lower(), value) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    lines = [method, *(headers.get(name, "") for name in _SIGNED), *(f"{name}:{value}" for name, value in own)]
    resource = "".join([f"/{account}{parts.path}", *(f"\n{name}:{value}" for name, value in query)])
    return b64encode(hmac.digest(key, "\n".join([*lines, resource]).encode(), "sha256")).decode()


def _first(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")
