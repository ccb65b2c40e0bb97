"""Servers of the source that a test module makes, and of what is in a bucket."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.looked_at import climate
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.serving import Served, served


@pytest.fixture
def site(source: Path) -> Iterator[Served]:
    with served(source) as site:
        yield site


@pytest.fixture
def in_bucket(s3_bucket: Bucket, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Stores a directory in a bucket behind `s3_proxy`, and returns its URL."""

    def upload(directory: Path) -> str:
        s3_bucket.upload(directory, "data.zarr")
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.url)
        return s3_bucket.url("data.zarr")

    return upload


@pytest.fixture
def climate_site(tmp_path: Path, in_bucket: Callable[[Path], str], s3_proxy: S3Proxy) -> Iterator[Served]:
    """Serves a climate dataset in a bucket; requests are logged from then on."""
    climate(tmp_path)
    with served(in_bucket(tmp_path), metadata_ttl=60.0) as site:
        s3_proxy.log.clear()
        yield site
