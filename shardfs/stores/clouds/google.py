"""Google Cloud Storage: the requests of S3, with tokens from google-auth."""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shardfs.stores.objects.failures import Cause, FailedRequest, Failure
from shardfs.stores.objects.location import CloudLocation
from shardfs.stores.objects.pace import TIMEOUTS, Timeouts
from shardfs.stores.objects.service import BucketService

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

ENDPOINT: Final = "https://storage.googleapis.com"
_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_only"
_NO_CREDENTIALS: Final = (
    "there are no credentials of Google; GOOGLE_APPLICATION_CREDENTIALS names a file with them, or `gcloud auth "
    "application-default login` makes one; for public buckets, set GOOGLE_SKIP_SIGNATURE=true"
)
_NO_LIBRARY: Final = "the library google-auth is not installed, which gets tokens; for public buckets, set "


class GoogleService(BucketService):
    """A bucket of Google; credentials come from the environment when the first request is sent."""

    def __init__(self, location: CloudLocation, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__(location, location.address, timeouts)
        self._endpoint = os.environ.get("GOOGLE_BASE_URL", ENDPOINT).rstrip("/")
        self._is_anonymous = is_set("GOOGLE_SKIP_SIGNATURE")
        self._lock = threading.Lock()
        self._credentials: Credentials | None = None

    def _container_url(self) -> str:
        return f"{self._endpoint}/{self.location.bucket}"

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        if self._is_anonymous:
            return headers
        try:
            import google.auth
            import google.auth.exceptions
            import google.auth.transport.urllib3
            import urllib3
        except ModuleNotFoundError:
            raise FailedRequest(Failure(Cause.NO_CREDENTIALS, _NO_LIBRARY + "GOOGLE_SKIP_SIGNATURE=true")) from None
        signed = dict(headers)
        try:
            with self._lock:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[_SCOPE])
            transport: Any = google.auth.transport.urllib3
            credentials: Any = self._credentials
            credentials.before_request(transport.Request(urllib3.PoolManager()), method, url, signed)
        except (google.auth.exceptions.GoogleAuthError, ValueError, OSError):  # whose words may contain a secret
            raise FailedRequest(Failure(Cause.NO_CREDENTIALS, _NO_CREDENTIALS)) from None
        return signed


def is_set(name: str) -> bool:
    """Whether a variable of the environment is set to anything that means yes."""
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")
