"""Values of arrays in a bucket, read through a mount by programs that know nothing of buckets or shards."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import dask.array
import numpy as np
import pytest
import zarr

from tests.support.datasets import files_below
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


def test_zarr_python_reads_any_part_of_a_consolidated_group(image: Remote) -> None:
    group = zarr.open_group(str(image.mounts[0].path), mode="r", use_consolidated=True)
    array = group["image"]
    assert isinstance(array, zarr.Array)
    assert (array.shards, array.chunks) == (None, CHUNKS)
    expected = values_of(image)
    for part in (np.s_[:], np.s_[17:60, 3, :], np.s_[::7, ::5, ::3], np.s_[95:, 79:, 63:]):
        assert np.array_equal(np.asarray(array[part]), expected[part])


def test_dask_reads_in_parallel(image: Remote) -> None:
    array = dask.array.from_zarr(str(image.mounts[0].path / "image"))
    expected = values_of(image)
    assert int(array.sum(dtype="u8").compute(scheduler="threads", num_workers=4)) == int(expected.sum(dtype="u8"))
    assert np.array_equal(array[10:70].compute(scheduler="threads", num_workers=4), expected[10:70])


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


def test_references_are_where_the_bytes_of_chunks_are(image: Remote) -> None:
    command = [sys.executable, "-P", "-m", "shardfs", "refs", image.url]
    environment = {**dict(image.bucket.environment), "PYTHONPATH": str(Path(__file__).parents[2])}
    references = json.loads(subprocess.check_output(command, env=environment))["refs"]
    found = {}
    for key, (url, offset, nbytes) in ((key, it) for key, it in references.items() if isinstance(it, list)):
        bucket, _, name = url.removeprefix("s3://").partition("/")
        assert bucket == image.bucket.name
        part = image.bucket.client.get_object(Bucket=bucket, Key=name, Range=f"bytes={offset}-{offset + nbytes - 1}")
        found[key] = part["Body"].read()
    shown = files_below(image.mounts[0].path)
    assert found == {name: data for name, data in shown.items() if not name.endswith("zarr.json")}
