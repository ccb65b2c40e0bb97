"""Signatures are those that botocore makes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from shardfs.stores.objects.service import path, query
from shardfs.stores.s3.signature import signed_headers
from tests.stores.s3.test_client import KEYS


@pytest.mark.parametrize("token", [None, "a-token"])
@pytest.mark.parametrize(
    "endpoint",
    ["https://s3.amazonaws.com", "https://host:443", "http://127.0.0.1:9000", "http://host:80", "https://[::1]:9000"],
)
def test_a_signature_is_that_of_botocore(endpoint: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ReadOnlyCredentials("AKIA", "secret/+=", token)
    now = datetime(2026, 11, 29, 12, 34, 56, tzinfo=UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: now.replace(tzinfo=None))
    listing = query(
        {"prefix": "a b/é+&=", "list-type": "2", "delimiter": "/", "encoding-type": "url", "start-after": ""}
    )
    urls = [f"{endpoint}/bucket/{path(name)}" for name in KEYS]
    urls += [f"{endpoint}/bucket?{listing}", f"{endpoint}/", f"{endpoint}/?{listing}"]
    headers = {
        "Range": "bytes=0-9",
        "If-Match": '"a  b"',
        "x-amz-request-payer": "requester",
    }
    changed = {"Accept-Encoding": "identity"}  # by proxies, and by Google
    for url in urls:
        for method in ("GET", "HEAD"):
            request: Any = AWSRequest(method, url, dict(headers))
            S3SigV4Auth(key, "s3", "eu-west-7").add_auth(request)
            ours = {
                k.lower(): v
                for k, v in signed_headers(
                    key, "eu-west-7", method, url, headers | changed, int(now.timestamp())
                ).items()
            }
            assert ours == {name.lower(): value for name, value in {**request.headers, **changed}.items()}, url
