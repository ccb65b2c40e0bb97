"""Values of arrays in a bucket, read through a mount by programs that know nothing of buckets or shards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounter
from tests.support.readers import read_zarr
from tests.support.s3_mounts import Remote
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server

SHAPE, SHARDS, CHUNKS = (96, 80, 64), (48, 40, 32), (16, 8, 32)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def image(
    s3_server: S3Server, proxy: S3Proxy, module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory
) -> Remote:
    """An array that zarr-python wrote, in a group that it consolidated, in a bucket, mounted."""
    remote = Remote(s3_server.make_bucket(), proxy, module_mount, tmp_path_factory.mktemp("image"))
    values = np.random.default_rng(0).integers(0, 1000, SHAPE, np.uint16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.create_group(str(remote.local))
        zarr.create_array(str(remote.local), name="image", data=values, shards=SHARDS, chunks=CHUNKS)
        zarr.consolidate_metadata(str(remote.local))
    remote.upload("")
    remote.mount()
    return remote


def values_of(image: Remote) -> np.ndarray:
    return read_zarr(image.local / "image")


def test_reading_all_with_zarr_python_takes_one_index_of_each_shard_and_each_byte_once(
    image: Remote, module_mount: Mounter
) -> None:
    root = image.mount()
    assert np.array_equal(read_zarr(root / "image"), values_of(image))
    requests = [request for request in image.taken() if "/c/" in request.key]
    shards = [path for path in (image.local / "image/c").rglob("*") if path.is_file()]
    indexes = [request for request in requests if (request.range or "").startswith("bytes=-")]
    assert len(indexes) == len({request.key for request in indexes}) == len(shards)
    assert len(requests) <= len(shards) * 30  # chunks: neighbours come together as far as they are asked for together
    assert sum(request.bytes_out for request in requests) >= sum(path.stat().st_size for path in shards)
