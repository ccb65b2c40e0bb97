"""The two client libraries, set up alike: boto3, which can do everything, and obstore, which reads faster.

Credentials, region, endpoint and timeouts are determined here. Each call sends one request, once. What comes back is
read at a least rate, and no more than was asked for (`replies`).
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
import obstore
from botocore import UNSIGNED, xform_name
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store as ObjectStore

from shardfs.errors import SourceError
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import Fetched, Properties, Range
from shardfs.stores.s3.errors import (
    EXPIRED,
    NO_CREDENTIALS,
    NOT_PARTIAL,
    OTHER_ETAG,
    OTHER_RANGE,
    TRUNCATED,
    Cause,
    FailedRequest,
    Failure,
    failures,
    of_obstore,
)
from shardfs.stores.s3.replies import Pace, check_headers, object_stat, read_body, read_xml, stat_of

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

_DEFAULT_REGION: Final = "us-east-1"
_CREDENTIALS_LAST: Final = timedelta(minutes=9)
"""How long obstore uses the same credentials: botocore renews them at least 10 minutes before they expire."""

_RENEWAL_SECONDS: Final = 10.0
_RENEWED: Final = Failure(Cause.NOT_SENT, "the credentials have expired; looking for new ones")

_NO_ENDPOINT: Final = (
    "--endpoint-url, or AWS_ENDPOINT_URL, is not the URL of a server, such as https://minio.example.org:9000"
)

_NO_SUCCESS: Final = 300
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_IP_ADDRESS: Final = re.compile(r"[0-9.]+|.*:.*")

_WORKS_ALONE: Final = frozenset({"CompleteMultipartUpload", "CopyObject", "UploadPartCopy"})
"""Operations for which the server moves bytes by itself, without sending anything meanwhile."""

READS: Final = frozenset({"GetObject", "HeadBucket", "HeadObject", "ListMultipartUploads", "ListObjectsV2"})
"""Operations that change nothing."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, of silence, of silence while the server moves bytes by itself, and for a whole GET.

    A reader does not wait longer than *reading* for a silent server, and *doubtful* if it was silent before. After that
    time, *rate* is how many bytes of a body must have come per second.
    """

    connect: float = 5.0
    silence: float = 30.0
    work: float = 300.0
    whole: float = 3600.0
    reading: float = 15.0
    doubtful: float = 5.0
    rate: float = 1024.0

    def of(self, operation: str, *, is_doubtful: bool) -> float:
        """Return for how many seconds the server may be silent."""
        if operation in _WORKS_ALONE:
            return self.work
        if operation not in READS:
            return self.silence
        return min(self.doubtful if is_doubtful else self.reading, self.silence)


@dataclass(slots=True)
class _Libraries:
    """Both libraries, with the same credentials."""

    session: boto3.session.Session
    credentials: Credentials | None
    client: BaseClient
    store: ObjectStore | None = None


class S3Session:
    """Both libraries for one bucket; safe to use from several threads.

    *endpoint_url* and *region* are those in use, wherever they come from. While *is_doubtful* says that the server was
    silent lately, less time is spent on waiting for it.
    """

    def __init__(
        self, bucket: str, options: S3Options, timeouts: Timeouts, is_doubtful: Callable[[], bool] = lambda: False
    ) -> None:
        """Raise `SourceError` for a profile, credentials or an endpoint that are missing or invalid."""
        self._bucket = bucket
        self._options = options
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._renewed = float("-inf")
        self._pace = Pace(min(timeouts.reading, timeouts.silence), timeouts.rate)
        self._is_doubtful = is_doubtful
        session = _session(options)
        self.region: str = session.region_name or _DEFAULT_REGION
        self._certificates = _certificates(session)
        self._is_virtual = _is_virtual(session)
        self._libraries = self._set_up(session)
        self.endpoint_url = _checked(self._libraries.client.meta.endpoint_url, self._is_virtual)

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Send a request of boto3 for the bucket, once; return the reply. Raises `FailedRequest`."""
        if self._options.request_payer and operation != "HeadBucket":
            arguments["RequestPayer"] = "requester"
        with self._sending() as libraries:
            method = getattr(libraries.client, xform_name(operation))
            reply: dict[str, Any] = method(Bucket=self._bucket, **arguments)
        return reply

    def get(self, key: str, part: Range, etag: str | None, *, quickly: bool) -> Fetched:
        """Get a range of an object, once; raises `FailedRequest`, also if range or ETag differ.

        If *quickly*, it comes by obstore where possible, which returns no properties and explains few failures.
        """
        if quickly and _is_plain(key) and not self._is_doubtful():
            fetched = self._get_by_obstore(key, part, etag)
        else:
            fetched = self._get_by_boto3(key, part, etag)
        if etag is not None and fetched.stat.etag != etag:
            raise FailedRequest(OTHER_ETAG)
        expected = part.within(fetched.stat.size)
        if fetched.offset != expected.offset or fetched.data.nbytes > expected.nbytes:
            raise FailedRequest(OTHER_RANGE)
        if fetched.data.nbytes < expected.nbytes:
            raise FailedRequest(TRUNCATED)
        return fetched

    def _get_by_obstore(self, key: str, part: Range, etag: str | None) -> Fetched:
        is_suffix = part.offset < 0
        options: GetOptions = {
            "range": {"suffix": part.nbytes} if is_suffix else (part.offset, part.offset + part.nbytes)
        }
        if etag is not None:
            options["if_match"] = etag
        with self._sending() as libraries:
            if libraries.credentials is not None:  # errors are clearer here than through obstore
                libraries.credentials.get_frozen_credentials()
        with self._lock:  # created on first use: after a fork it would hang
            store = libraries.store = libraries.store or self._make_store(libraries.session)
        try:
            result = obstore.get(store, key, options=options)
            start, stop = result.range
            if stop - start > part.nbytes:
                raise FailedRequest(OTHER_RANGE)
            pieces = result.stream(min_chunk_size=1)
            data = read_body(lambda _: next(pieces, b""), stop - start, self._pace)
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise FailedRequest(of_obstore(error)) from None
        meta = result.meta
        return Fetched(object_stat(meta["size"], meta["e_tag"], meta["last_modified"]), start, data)

    def _get_by_boto3(self, key: str, part: Range, etag: str | None) -> Fetched:
        last = part.offset + part.nbytes - 1
        reply = self.call(
            "GetObject",
            Key=key,
            Range=f"bytes=-{part.nbytes}" if part.offset < 0 else f"bytes={part.offset}-{last}",
            **({} if etag is None else {"IfMatch": etag}),
        )
        content_range = _CONTENT_RANGE.fullmatch(reply.get("ContentRange", ""))
        if content_range is None:
            raise FailedRequest(NOT_PARTIAL)
        size, offset = int(content_range[2]), int(content_range[1])
        with failures(self.endpoint_url, self.region), closing(reply["Body"]) as body:
            data = read_body(body._raw_stream.read1, part.within(size).nbytes, self._pace)
        return Fetched(stat_of(reply | {"ContentLength": size}), offset, data, Properties.of(reply))

    @contextmanager
    def _sending(self) -> Iterator["_Libraries"]:
        libraries = self._libraries
        try:
            with failures(self.endpoint_url, self.region):
                yield libraries
        except FailedRequest as error:
            if error.failure.code in EXPIRED and self._renew(libraries):
                raise FailedRequest(_RENEWED) from None
            raise

    def _renew(self, used: "_Libraries") -> bool:
        """Replace *used*, whose credentials have expired: another program may have renewed them on disk.

        Returns whether there are others now; tried only every few seconds, because the new ones may have expired too.
        """
        with self._lock:
            if self._libraries is used and time.monotonic() >= self._renewed + _RENEWAL_SECONDS:
                self._renewed = time.monotonic()
                with suppress(SourceError):
                    self._libraries = self._set_up(_session(self._options))
            return self._libraries is not used

    def _set_up(self, session: boto3.session.Session) -> "_Libraries":
        credentials = None if self._options.anonymous else _credentials(session)
        return _Libraries(session, credentials, self._client(session))

    def _make_store(self, session: boto3.session.Session) -> ObjectStore:
        timeouts = self._timeouts
        client_options: ClientConfig = {
            "allow_http": self.endpoint_url.startswith("http://"),
            "connect_timeout": timedelta(seconds=timeouts.connect),
            "read_timeout": timedelta(seconds=timeouts.of("GetObject", is_doubtful=False)),
            "timeout": timedelta(seconds=timeouts.whole),
        }
        if self._certificates is not None:
            client_options["root_certificate"] = self._certificates
        anonymous = self._options.anonymous
        return ObjectStore(
            self._bucket,
            # Everything that the environment could set is given explicitly.
            endpoint=_with_bucket(self.endpoint_url, self._bucket) if self._is_virtual else self.endpoint_url,
            region=self.region,
            skip_signature=anonymous,
            request_payer=self._options.request_payer,
            virtual_hosted_style_request=self._is_virtual,
            client_options=client_options,
            retry_config={"max_retries": 0},
            credential_provider=None if anonymous else Boto3CredentialProvider(session, ttl=_CREDENTIALS_LAST),
        )

    def _client(self, session: boto3.session.Session) -> BaseClient:
        config = Config(
            signature_version=UNSIGNED if self._options.anonymous else None,
            connect_timeout=self._timeouts.connect,
            read_timeout=self._timeouts.silence,
            max_pool_connections=self._options.max_connections,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "virtual" if self._is_virtual else "path"},
        )
        try:
            client = session.client(
                "s3", region_name=self.region, endpoint_url=self._options.endpoint_url, config=config
            )
        except botocore.exceptions.InvalidRegionError:
            raise SourceError(f"{self.region!r} is not a valid name of an AWS region") from None
        except ValueError:
            raise SourceError(_NO_ENDPOINT) from None
        # Otherwise boto3 follows a bucket to its region by itself, which obstore does not.
        client.meta.events.register("before-parameter-build.s3", _stay_in_region)
        client.meta.events.register("before-send.s3", partial(self._exchange, client._endpoint.http_session))
        return client

    def _exchange(
        self, connections: URLLib3Session, request: AWSPreparedRequest, event_name: str, **_: object
    ) -> AWSResponse:
        """Send a request in the place of botocore, which waits as long for all, and reads without end."""
        operation, is_object = event_name.rpartition(".")[2], request.stream_output
        request.context["read_timeout"] = self._timeouts.of(operation, is_doubtful=self._is_doubtful())
        request.stream_output = True  # so the body is not read yet
        response = connections.send(request)
        is_success = response.status_code < _NO_SUCCESS
        if is_success:
            check_headers(operation, response.headers)
        if not (is_object and is_success):
            response._content = read_xml(response.raw.read1, self._pace)
        return response


def _is_plain(key: str) -> bool:
    """Whether obstore uses exactly this key: it rejects some, and strips slashes at both ends."""
    return _CONTROL.search(key) is None and not any(part in ("", ".", "..") for part in key.split("/"))


def _stay_in_region(context: dict[str, Any], **_: object) -> None:
    context["s3_redirect"]["redirected"] = True


def _checked(endpoint_url: str, is_virtual: bool) -> str:
    """Return *endpoint_url*, wherever it comes from, if it names a server.

    It is not repeated in messages, because it may contain a secret. If it *is_virtual*, a bucket must fit in front of
    the name.
    """
    parts = urlsplit(endpoint_url)
    if "@" in parts.netloc:
        raise SourceError("the URL of the S3 endpoint holds a password; credentials come from elsewhere")
    try:
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        is_server = False
    if not is_server or parts.query or parts.fragment:
        raise SourceError(_NO_ENDPOINT)
    if is_virtual and _IP_ADDRESS.fullmatch(parts.hostname or ""):
        raise SourceError(
            "the AWS profile has addressing_style = virtual, for which the S3 endpoint must have a name and not an IP "
            "address; write addressing_style = path"
        )
    return endpoint_url


def _session(options: S3Options) -> boto3.session.Session:
    region = options.region or os.environ.get("AWS_REGION")
    try:
        return boto3.session.Session(profile_name=options.profile, region_name=region)
    except botocore.exceptions.ProfileNotFound as error:
        raise SourceError(f"there is no AWS profile {error.kwargs['profile']}; `aws configure` makes one") from None
    except botocore.exceptions.BotoCoreError as error:
        raise SourceError(f"the AWS configuration cannot be read ({type(error).__name__})") from None


def _is_virtual(session: boto3.session.Session) -> bool:
    """Whether the profile wants the bucket in the host name: `s3 = addressing_style = virtual`."""
    settings = session._session.get_scoped_config().get("s3")
    style = settings.get("addressing_style") if isinstance(settings, dict) else None
    if style not in (None, "auto", "path", "virtual"):
        raise SourceError(f"the AWS profile has addressing_style = {style}, which must be auto, path or virtual")
    return bool(style == "virtual")


def _with_bucket(endpoint_url: str, bucket: str) -> str:
    """Return the URL of a server with the bucket in its host name."""
    parts = urlsplit(endpoint_url)
    return parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()


def _certificates(session: boto3.session.Session) -> bytes | None:
    """Return the certificates that boto3 is told to trust, None for its own."""
    path = session._session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            certificates = file.read()
    except OSError as error:
        raise SourceError(f"the certificates in {path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in certificates:
        raise SourceError(f"there are no certificates in {path} (AWS_CA_BUNDLE or ca_bundle), which must be PEM")
    return certificates


def _credentials(session: boto3.session.Session) -> Credentials:
    try:
        credentials = session.get_credentials()
    except botocore.exceptions.PartialCredentialsError:
        raise SourceError("the AWS credentials are incomplete; `aws configure` sets them") from None
    except botocore.exceptions.BotoCoreError as error:
        raise SourceError(f"{NO_CREDENTIALS} ({type(error).__name__})") from None
    if credentials is None:
        raise SourceError(NO_CREDENTIALS)
    return credentials
