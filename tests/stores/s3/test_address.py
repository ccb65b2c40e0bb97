"""What names a source for good: journals are found by it, and are never taken for another's."""

from __future__ import annotations

import pytest

from shardfs.stores.base import Address
from shardfs.stores.s3.location import Location

URL = "s3://bucket/path"


@pytest.mark.parametrize("url", [URL, URL + "/", URL + "//"])
@pytest.mark.parametrize("endpoint", ["http://localhost:9000", "http://localhost:9000/"])
def test_one_source_has_one_address_however_it_is_written(url: str, endpoint: str) -> None:
    assert Location.parse(url).address(endpoint) == Address(URL, "http://localhost:9000")


@pytest.mark.parametrize("endpoint", ["https://s3.amazonaws.com", "https://s3.eu-central-1.amazonaws.com"])
def test_a_bucket_of_aws_is_one_bucket_at_any_of_its_endpoints(endpoint: str) -> None:
    assert Location.parse(URL).address(endpoint) == Address(URL)


def test_the_same_url_at_another_server_is_another_source() -> None:
    location = Location.parse(URL)
    assert location.address("http://a:9000") != location.address("http://b:9000") != location.address("http://b:9001")
    assert location.address("https://amazonaws.com.example.org").endpoint


def test_an_address_is_told_as_people_would() -> None:
    assert str(Address(URL)) == URL
    assert str(Address(URL, "http://a:9000")) == f"{URL} at http://a:9000"
