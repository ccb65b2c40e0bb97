"""What is made of the words of boto3, which makes the requests that change objects, and of codes that S3 alone has."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import botocore.exceptions as boto
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from shardfs.errors import StoreError
from shardfs.stores.objects.failures import (
    BROKEN,
    NONSENSE,
    SILENT,
    TRUNCATED,
    Cause,
    FailedRequest,
    Failure,
    invalid,
)

NO_CREDENTIALS: Final = "there are no credentials; see `aws configure`, `aws sso login`, --profile, --anonymous"

_OTHER_REGION: Final = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "IncorrectEndpoint",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_WITHOUT_REPLY: Final = (
    ((boto.ReadTimeoutError, urllib3.exceptions.TimeoutError), SILENT),
    ((boto.IncompleteReadError, boto.ResponseStreamingError, urllib3.exceptions.IncompleteRead), TRUNCATED),
    ((boto.HTTPClientError, boto.ConnectionError, urllib3.exceptions.HTTPError), BROKEN),
    ((ResponseParserError,), NONSENSE),
)
_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.NoAuthTokenError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.RefreshWithMFAUnsupportedError,
    boto.MetadataRetrievalError,
    boto.LoginError,
)
_CREDENTIAL_OPERATIONS: Final = ("AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "CreateToken")


@contextmanager
def failures(endpoint: str, region: str) -> Iterator[None]:
    """Turn whatever boto3 raises for a request to *endpoint*, for *region*, into `FailedRequest`."""
    failure: Failure | None = None
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, ResponseParserError, urllib3.exceptions.HTTPError) as error:
        failure = of_boto3(error, endpoint, region)
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # botocore checks no field of a reply
        failure = _stumbled(error)
    if failure is not None:
        raise FailedRequest(failure)


def of_boto3(error: Exception, endpoint: str, region: str) -> Failure:
    """Return the failure in an exception of boto3, botocore or urllib3 for a request to *endpoint*, for *region*."""
    if isinstance(error, _CREDENTIALS) or getattr(error, "operation_name", None) in _CREDENTIAL_OPERATIONS:
        return Failure(Cause.NO_CREDENTIALS, NO_CREDENTIALS)
    if isinstance(error, boto.ClientError):
        return _of_reply(error.response, region)
    if isinstance(error, boto.SSLError):
        return _not_connected(endpoint, str(error), Cause.NO_REPLY)
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)):
        is_silent = isinstance(error, boto.ConnectTimeoutError)
        return replace(_not_connected(endpoint, str(error.kwargs.get("error")), Cause.NOT_SENT), is_silent=is_silent)
    for kinds, failure in _WITHOUT_REPLY:
        if isinstance(error, kinds):
            return failure
    return Failure(Cause.REPLY, "S3 does not accept a name or a property", 400)


def explained(failure: Failure, stated: str | None, region: str) -> Failure:
    """Return a failure with what it means if the bucket is in another region, perhaps the *stated* one."""
    other = stated if stated != region and _IS_REGION.fullmatch(stated or "") else None
    if other is None and failure.code not in _OTHER_REGION and failure.status not in (301, 302, 307, 308):
        return failure
    where = f" ({other}): --region {other}" if other else "; name it with --region"
    return replace(failure, kind=StoreError, advice=f"{{container}} is in another region{where}")


def _stumbled(error: Exception) -> Failure:
    """Return the failure in what botocore stumbled over, with the name of the field if that is known."""
    if isinstance(error, KeyError) and _IS_CODE.fullmatch(str(error.args[0])):
        return invalid(error.args[0])
    return invalid("date") if "timestamp" in str(error) else NONSENSE


def _of_reply(response: Mapping[str, Any], region: str) -> Failure:
    """Return the failure in a reply; its code, and the region that it states, are only used if they look like one."""
    error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    status, code = int(metadata.get("HTTPStatusCode", 0)), str(error.get("Code", ""))
    stated = error.get("Region")
    if stated is None and status in (301, 307, 400):
        stated = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return explained(Failure.of_reply(status, code), None if stated is None else str(stated), region)


def _not_connected(endpoint: str, words: str, cause: Cause) -> Failure:
    """Return why a connection could not be made, as far as the *words* of a library tell."""
    for pattern, reason in _UNTRUSTED:
        if pattern.search(words):
            return Failure(Cause.NOT_TRUSTED, f"{endpoint} is not trusted: {reason}")
    proxy = _proxy_of(endpoint)
    where = f"the proxy {proxy}, through which {endpoint} is asked," if proxy else endpoint
    for pattern, reason in _UNREACHABLE:
        if pattern.search(words):
            return Failure(cause, f"{where} cannot be reached: {reason}")
    return Failure(cause, f"{where} cannot be reached")


def _proxy_of(endpoint: str) -> str | None:
    """Return host and port of the proxy for *endpoint* in the environment, and the name of the variable."""
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc):
        return None
    host = urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]  # without a password
    return f"{host} ({parts.scheme.upper()}_PROXY)"


_UNTRUSTED: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("certificate has expired", "its certificate has expired"),
        ("not yet valid", "its certificate is not valid yet; is the clock of this machine right?"),
        ("[Mm]ismatch|doesn't match|not valid for", "its certificate is for another name"),
        (
            "self.signed|local issuer|CERTIFICATE_VERIFY_FAILED",
            "its certificate is signed by an unknown authority; AWS_CA_BUNDLE can name a file with certificates to "
            "trust",
        ),
    )
)
_UNREACHABLE: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("NameResolutionError|Name or service not known", "its name cannot be resolved"),
        ("Connection refused", "the connection is refused"),
        ("[Uu]nreachable", "there is no network"),
        (
            "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE",
            "it does not speak TLS; does its URL begin with http://?",
        ),
        ("[Tt]unnel", "it does not connect to the server"),
        ("imed out", SILENT.reason),
        ("SSL|TLS", "TLS failed"),
    )
)
_IS_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_IS_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
