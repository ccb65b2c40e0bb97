"""What an `s3://` URL names, and what keys there are called."""

import pytest

from shardfs.errors import SourceError
from shardfs.stores.base import Address
from shardfs.stores.objects.location import S3Location


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/a/b//", "bucket", "a/b"),
        ("s3://bucket//a", "bucket", "/a"),
        ("s3://my.old_Bucket-1/x", "my.old_Bucket-1", "x"),
        ("s3://bucket/100%/a%20b#d/ü *", "bucket", "100%/a%20b#d/ü *"),
        ("s3://bucket/...", "bucket", "..."),
    ],
)
def test_names_are_taken_as_they_are(url: str, bucket: str, prefix: str) -> None:
    location = S3Location.parse(url)
    assert location == S3Location(bucket, prefix)
    assert S3Location.parse(location.url) == location


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3:///key", "names no bucket"),
        ("s3://b/key", "names no bucket"),
        ("s3://buc ket/key", "names no bucket"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "names no bucket"),
        ("https://bucket/key", "not an s3:// URL"),
        ("s3://bucket/a/../b", "in it, which mean nothing"),
        ("s3://bucket/a\udcff", "not UTF-8"),
        ("s3://bucket/" + "ü" * 501, "too long"),
    ],
)
def test_what_is_no_place_in_a_bucket_is_refused(url: str, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        S3Location.parse(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://AKIAKEY:secret@bucket/key", "no credentials in it"),
        ("s3://AKIAKEY:sec/ret@bucket/key", "names no bucket"),
        ("s3://bucket/key?X-Amz-Credential=AKIAKEY&X-Amz-Signature=secret", "has a query"),
        ("s3://bucket?X-Amz-Signature=secret", "has a query"),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str, why: str) -> None:
    with pytest.raises(SourceError, match=why) as refused:
        S3Location.parse(url)
    for secret in ("AKIAKEY", "sec", "ret@"):
        assert secret not in str(refused.value)


URL = "s3://bucket/path"


@pytest.mark.parametrize("url", [URL, URL + "/", URL + "//"])
@pytest.mark.parametrize("endpoint", ["http://localhost:9000", "http://localhost:9000/"])
def test_one_source_has_one_address_however_it_is_written(url: str, endpoint: str) -> None:
    assert S3Location.parse(url).address(endpoint) == Address(URL, "http://localhost:9000")


def test_the_same_url_at_another_server_is_another_source_unless_both_are_of_aws() -> None:
    location = S3Location.parse(URL)
    assert location.address("http://a:9000") != location.address("http://b:9000") != location.address("http://b:9001")
    assert location.address("https://amazonaws.com.example.org").endpoint
    assert location.address("https://s3.amazonaws.com") == location.address("https://s3.eu-west-1.amazonaws.com")
