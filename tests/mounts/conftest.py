"""Arrays in a bucket, and hosts that mount them."""

from pathlib import Path

import pytest

from tests.support.hosts import Host, make_host
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket


@pytest.fixture
def host(s3_bucket: Bucket, tmp_path: Path, mount: Mounter) -> Host:
    """A machine that reaches a bucket with an array."""
    return make_host(s3_bucket, tmp_path, mount)


@pytest.fixture
def remote(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, tmp_path: Path) -> Remote:
    """An empty bucket behind a proxy that logs."""
    return Remote(s3_bucket, s3_proxy, mount, tmp_path / "local")
