"""What the exceptions of obstore and boto3 say, without their words."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import botocore.exceptions as boto
import obstore.exceptions
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from shardfs.stores.s3.failures import Cause, FailedRequest, Failure

TRUNCATED: Final = Failure(Cause.NO_REPLY, "the reply was cut short")
SILENT: Final = Failure(Cause.NO_REPLY, "no answer in time", is_silent=True)
NOT_PARTIAL: Final = Failure(
    Cause.REPLY,
    "asked for a range, the server gives the whole object, or does not say which range it gives",
    200,
    "NotPartial",
)
OTHER_RANGE: Final = Failure(Cause.REPLY, "the server answered another range than it was asked for", 206, "OtherRange")

NO_CREDENTIALS: Final = "no credentials can be had; see `aws configure`, `aws sso login`, --profile, --anonymous"

_BROKEN: Final = "the connection was broken"
_NONSENSE: Final = "the reply makes no sense"
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
    """Raise `FailedRequest` for what either library raises when it sends a request to *endpoint*, for *region*."""
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError, ResponseParserError, urllib3.exceptions.HTTPError) as error:
        failure = of_boto3(error, endpoint)
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        failure = of_obstore(error, endpoint)
    else:
        return
    raise FailedRequest(replace(failure, region=None) if failure.region == region else failure)


def of_boto3(error: Exception, endpoint: str) -> Failure:
    """Return what an exception of boto3, botocore or urllib3 says of a request to *endpoint*."""
    if isinstance(error, _CREDENTIALS) or getattr(error, "operation_name", None) in _CREDENTIAL_OPERATIONS:
        return Failure(Cause.NO_CREDENTIALS, NO_CREDENTIALS)
    if isinstance(error, boto.ClientError):
        return _of_reply(error.response)
    if isinstance(error, boto.SSLError):
        return _not_connected(endpoint, str(error), Cause.NO_REPLY)
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)):
        return _not_connected(endpoint, str(error.kwargs.get("error")), Cause.NOT_SENT)
    if isinstance(error, (boto.ReadTimeoutError, urllib3.exceptions.TimeoutError)):
        return SILENT
    if isinstance(error, (boto.IncompleteReadError, boto.ResponseStreamingError)):
        return TRUNCATED
    if isinstance(error, (boto.HTTPClientError, boto.ConnectionError, urllib3.exceptions.HTTPError)):
        return Failure(Cause.NO_REPLY, _BROKEN)
    if isinstance(error, ResponseParserError):
        return Failure(Cause.NO_REPLY, _NONSENSE)
    return Failure(Cause.REPLY, "a name or a property is none that S3 takes", 400)


def of_obstore(error: Exception, endpoint: str) -> Failure:
    """Return what an exception of obstore says of a GET from *endpoint*.

    Its message ends with a dump of the cause, one member per line, in which strings are quoted and escaped: a line
    that holds a member is not a part of a key or of a reply.
    """
    dump = str(error).rpartition("\n\nDebug source:\n")[2]
    if found := _STATUS.search(dump):
        body = _BODY.search(dump)
        code = _CODE.search(body[1]) if body else None
        region = _REGION.search(body[1]) if body else None
        return reply_failure(int(found[1]), code[1] if code else "", region[1] if region else None)
    if _BARE_REDIRECT.search(dump):
        return reply_failure(301, "PermanentRedirect", None)
    if _NOT_PARTIAL.search(dump):
        return NOT_PARTIAL
    if _UNEXPECTED_RANGE.search(dump):
        return OTHER_RANGE
    kind = _KIND.search(dump)
    if kind is None:
        return Failure(Cause.NO_REPLY, _NONSENSE)
    if kind[1] == "Connect":
        return _not_connected(endpoint, dump[kind.end() :], Cause.NOT_SENT)
    if kind[1] == "Timeout":
        return SILENT
    return TRUNCATED if "IncompleteBody" in dump[kind.end() :] else Failure(Cause.NO_REPLY, _BROKEN)


def reply_failure(status: int, code: str, region: str | None) -> Failure:
    """Return the failure that a reply with *status* is; of *code* and *region* only what looks like one is kept."""
    if not _IS_CODE.fullmatch(code) or code.isdecimal():
        code = ""
    if region is not None and not _IS_REGION.fullmatch(region):
        region = None
    return Failure(Cause.REPLY, f"{code or 'status'} {status}" if status else code, status, code, region)


def _of_reply(response: Mapping[str, Any]) -> Failure:
    error, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    status, code = int(metadata.get("HTTPStatusCode", 0)), str(error.get("Code", ""))
    region = error.get("Region")
    if region is None and status in (301, 307, 400):
        # A reply to HEAD has no body.
        region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return reply_failure(status, code, None if region is None else str(region))


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
    """Return host and port of the proxy that the environment names for *endpoint*, and the variable that names it."""
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.netloc):
        return None
    host = urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]  # without a password
    return f"{host} ({parts.scheme.upper()}_PROXY)"


_UNTRUSTED: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"certificate has expired|\bExpired", "its certificate has expired"),
        ("not yet valid|NotValidYet", "its certificate is not valid yet; is the clock of this machine right?"),
        ("[Mm]ismatch|doesn't match|not valid for|NotValidForName", "its certificate is that of another name"),
        (
            "self.signed|local issuer|UnknownIssuer|CERTIFICATE_VERIFY_FAILED|InvalidCertificate",
            "its certificate is of an authority that is not known here; AWS_CA_BUNDLE names a file with certificates "
            "to trust",
        ),
    )
)
_UNREACHABLE: Final = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        ("dns error|NameResolutionError|Name or service not known", "its name is not known"),
        ("ConnectionRefused|Connection refused", "the connection is refused"),
        ("[Uu]nreachable", "there is no network"),
        (
            "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|InvalidMessage|InvalidContentType",
            "it does not speak TLS; is its URL one of http://?",
        ),
        ("[Tt]unnel", "it does not connect to the server"),
        ("imed out|TimedOut", SILENT.reason),
        ("SSL|TLS|tls", "TLS failed"),
    )
)
_STATUS: Final = re.compile(r"^ +status: (\d{3}),$", re.MULTILINE)
_BODY: Final = re.compile(r"^ +body: Some\(\n *(.*)$", re.MULTILINE)
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_BARE_REDIRECT: Final = re.compile(r"^ +inner: BareRedirect,$", re.MULTILINE)
_NOT_PARTIAL: Final = re.compile(r"^ +source: (?:NotPartial|NoContentRange|ParseContentRange)\b", re.MULTILINE)
_UNEXPECTED_RANGE: Final = re.compile(r"^ +source: UnexpectedRange \{$", re.MULTILINE)
_KIND: Final = re.compile(r"HttpError \{\n +kind: (\w+),$", re.MULTILINE)
_IS_CODE: Final = re.compile(r"[A-Za-z0-9.]{1,64}")
_IS_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
