"""S3: its URLs, signatures, codes and properties, for requests that read."""

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Final

from shardfs.stores.objects import replies
from shardfs.stores.objects.failures import EXPIRED, TOO_MUCH, FailedRequest, Failure
from shardfs.stores.objects.http import Judge, Reply
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.pace import PATIENCE, TIMEOUTS, Timeouts
from shardfs.stores.objects.requests import Properties
from shardfs.stores.objects.service import BucketService, vague_unless_named
from shardfs.stores.s3.failures import explained
from shardfs.stores.s3.session import RENEWED, S3Session

HINT: Final = "; check its name, and --endpoint-url if it is not on AWS"
_REFUSED: Final = (400, 403)
_METADATA: Final = "x-amz-meta-"
_HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "CacheControl",
    "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
    "content-type": "ContentType",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-storage-class": "StorageClass",
    "x-amz-website-redirect-location": "WebsiteRedirectLocation",
}
"""What boto3 calls the headers of an object that a change keeps."""


class S3Service(BucketService):
    """A bucket of S3, by the credentials and the endpoint of *session*."""

    location: S3Location
    hint = HINT
    keeps_encodings = True

    def __init__(
        self, location: S3Location, session: S3Session, timeouts: Timeouts = TIMEOUTS, patience: float = PATIENCE
    ) -> None:
        address = location.address(session.endpoint_url)
        super().__init__(location, address, timeouts, certificates=session.certificates, patience=patience)
        self._session = session

    def of_bucket(self) -> "S3Service":
        """Return a service of the whole bucket."""
        service = copy(self)
        service.location = S3Location(self.location.bucket, "")
        return service

    def is_mute(self, failure: Failure) -> bool:
        """Whether a *failure* of HEAD may stand for credentials that have expired."""
        is_signed = self._session.libraries.credentials is not None
        return is_signed and failure.status in _REFUSED and not failure.code and failure.kind is None

    def _container_url(self) -> str:
        return self._session.bucket_url

    def _send(
        self,
        method: str,
        operation: str,
        url: str,
        headers: Mapping[str, str],
        judge: Judge,
        *,
        excess: Failure = TOO_MUCH,
    ) -> Reply:
        if self._session.request_payer and operation != "HeadBucket":
            headers = {**headers, "x-amz-request-payer": "requester"}
        used = self._session.libraries
        try:
            return super()._send(method, operation, url, headers, judge, excess=excess)
        except FailedRequest as error:
            if error.failure.code in EXPIRED and self._session.renew(used):
                raise FailedRequest(RENEWED) from None
            raise

    def _signed(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return self._session.signed(method, url, headers)

    def _failure(self, reply: Reply) -> Failure:
        error = replies.error_of(reply.body)
        code, region = ("", None) if error is None else (error.findtext("Code", ""), error.findtext("Region"))
        if region is None and reply.status in (301, 307, 400):  # a reply to HEAD has no body
            region = reply.headers.get("x-amz-bucket-region")
        return vague_unless_named(explained(Failure.of_reply(reply.status, code), region, self._session.region))

    def _properties(self, headers: Mapping[str, str]) -> Properties:
        return properties_of(headers)


def properties_of(headers: Mapping[str, str]) -> Properties:
    """Return the properties in the headers of a reply to GET or HEAD."""
    kept: dict[str, Any] = {name: headers[header] for header, name in _HEADERS.items() if headers.get(header)}
    if headers.get("x-amz-server-side-encryption-bucket-key-enabled", "").lower() == "true":
        kept["BucketKeyEnabled"] = True
    expires = headers.get("expires")
    if expires:
        with suppress(FailedRequest):  # it is no date, and cannot be sent
            replies.seconds_of(expires, "Expires")
            kept["Expires"] = expires
    return Properties(
        kept, {name[len(_METADATA) :]: value for name, value in headers.items() if name.startswith(_METADATA)}
    )
