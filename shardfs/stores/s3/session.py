"""The library boto3, set up for one bucket: credentials, region, endpoint, and the requests that change objects.

Each call sends one request, once. What comes back is read at a least rate, and no more than it may have (`replies`).
"""

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.exceptions
from botocore import UNSIGNED, xform_name
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.httpsession import URLLib3Session, get_cert_path

from shardfs.errors import SourceError
from shardfs.stores.objects.failures import EXPIRED, Cause, FailedRequest, Failure
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.pace import Timeouts
from shardfs.stores.s3.failures import NO_CREDENTIALS, failures
from shardfs.stores.s3.replies import check_headers, read_xml
from shardfs.stores.s3.signature import signed_headers

_DEFAULT_REGION: Final = "us-east-1"
_RENEWAL_SECONDS: Final = 10.0
RENEWED: Final = Failure(Cause.NOT_SENT, "the credentials have expired; looking for new ones")

_NO_ENDPOINT: Final = (
    "--endpoint-url, or AWS_ENDPOINT_URL, is not the URL of a server, such as https://minio.example.org:9000"
)

_NO_SUCCESS: Final = 300
_IP_ADDRESS: Final = re.compile(r"[0-9.]+|.*:.*")


@dataclass(slots=True)
class Libraries:
    """A session of boto3 with its credentials, and a client."""

    session: boto3.session.Session
    credentials: Credentials | None
    client: BaseClient


class S3Session:
    """The library for one bucket; safe to use from several threads.

    *endpoint_url*, *region* and *certificates*, a file, are those in use, wherever they come from.
    """

    def __init__(self, bucket: str, options: S3Options, timeouts: Timeouts) -> None:
        """Raise `SourceError` for a profile, credentials or an endpoint that are missing or invalid."""
        self._bucket = bucket
        self._options = options
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._renewed = float("-inf")
        session = _session(options)
        self.region: str = session.region_name or _DEFAULT_REGION
        self.certificates = _certificates(session)
        self._is_virtual = _is_virtual(session)
        self.libraries = self._set_up(session)
        self.endpoint_url = _checked(self.libraries.client.meta.endpoint_url, self._is_virtual)

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Send a request of boto3 for the bucket, once; return the reply. Raises `FailedRequest`."""
        if self._options.request_payer and operation != "HeadBucket":
            arguments["RequestPayer"] = "requester"
        with self._sending() as libraries:
            method = getattr(libraries.client, xform_name(operation))
            reply: dict[str, Any] = method(Bucket=self._bucket, **arguments)
        return reply

    @property
    def request_payer(self) -> bool:
        """Whether requests are billed to who sends them."""
        return self._options.request_payer

    @property
    def bucket_url(self) -> str:
        """The URL of the bucket."""
        endpoint = self.endpoint_url.rstrip("/")
        return _with_bucket(endpoint, self._bucket) if self._is_virtual else f"{endpoint}/{self._bucket}"

    def signed(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of a request without a body, signed unless that is switched off."""
        credentials = self.libraries.credentials
        if credentials is None:
            return headers
        with failures(self.endpoint_url, self.region):
            key = credentials.get_frozen_credentials()  # which renews them if they are about to expire
        return signed_headers(key, self.region, method, url, headers)

    @contextmanager
    def _sending(self) -> Iterator["Libraries"]:
        libraries = self.libraries
        try:
            with failures(self.endpoint_url, self.region):
                yield libraries
        except FailedRequest as error:
            if error.failure.code in EXPIRED and self.renew(libraries):
                raise FailedRequest(RENEWED) from None
            raise

    def renew(self, used: "Libraries") -> bool:
        """Replace *used*, whose credentials have expired: another program may have renewed them on disk.

        Returns whether there are others now; tried only every few seconds, because the new ones may have expired too.
        """
        with self._lock:
            if self.libraries is used and time.monotonic() >= self._renewed + _RENEWAL_SECONDS:
                self._renewed = time.monotonic()
                with suppress(SourceError):
                    self.libraries = self._set_up(_session(self._options))
            return self.libraries is not used

    def _set_up(self, session: boto3.session.Session) -> "Libraries":
        credentials = None if self._options.anonymous else _credentials(session)
        return Libraries(session, credentials, self._client(session))

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
        # Otherwise boto3 follows a bucket to its region by itself, which requests that read do not.
        client.meta.events.register("before-parameter-build.s3", _stay_in_region)
        client.meta.events.register("before-send.s3", partial(self._exchange, client._endpoint.http_session))
        return client

    def _exchange(
        self, connections: URLLib3Session, request: AWSPreparedRequest, event_name: str, **_: object
    ) -> AWSResponse:
        """Send a request in the place of botocore, which waits as long for all, and reads without end."""
        request.context["read_timeout"] = self._timeouts.of(event_name.rpartition(".")[2], is_doubtful=False)
        request.stream_output = True  # so the body is not read yet
        response = connections.send(request)
        if response.status_code < _NO_SUCCESS:
            check_headers(response.headers)
        response._content = read_xml(response.headers.get("Content-Length", ""), response.raw.read1, self._timeouts)
        return response


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


def _certificates(session: boto3.session.Session) -> str:
    """Return the file with the certificates that boto3 trusts."""
    path = session._session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    if not path:
        return str(get_cert_path(True))
    try:
        with open(path, "rb") as file:
            certificates = file.read()
    except OSError as error:
        raise SourceError(f"the certificates in {path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in certificates:
        raise SourceError(f"there are no certificates in {path} (AWS_CA_BUNDLE or ca_bundle), which must be PEM")
    return str(path)


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
