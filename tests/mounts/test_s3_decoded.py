"""Decoded chunks of a bucket: sizes without chunks, one request for a chunk however it is read, and writing."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import BIG, GZIP, ZSTD, array, sharding
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

N = 50_000
VALUES = np.random.default_rng(0).integers(0, 1000, (4, N)).astype("<i4")


@pytest.fixture
def remote(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, tmp_path: Path) -> Remote:
    """A sharded array, and one that is not sharded."""
    remote = Remote(s3_bucket, s3_proxy, mount, tmp_path / "local")
    remote.store("sharded", array((4, N), (4, N), sharding((1, N), BIG, ZSTD)), values=VALUES)
    remote.store("loose", array((4, N), (1, N), BIG, GZIP), values=VALUES)
    return remote


def test_sizes_take_no_chunk_and_a_chunk_that_is_read_in_parts_takes_one_request(remote: Remote) -> None:
    root = remote.mount(arguments=["--decode"])
    listed = subprocess.run(["find", root, "-type", "f", "-printf", "%s "], capture_output=True, check=True)
    assert listed.stdout.split().count(b"%d" % (4 * N)) == 8
    fetched = [request for request in remote.asked() if request.startswith("GET") and "zarr.json" not in request]
    assert fetched == ["GET sharded/c/0/0 -68"]
    for name, shard in (("sharded", "sharded/c/0/0"), ("loose", "loose/c/1/0")):
        with open(root / name / "c/1/0", "rb", buffering=0) as file:
            assert os.fstat(file.fileno()).st_size == 4 * N
            assert remote.asked() == []
            for offset in (5, 100_000, 7, 199_990):
                assert os.pread(file.fileno(), 5000, offset) == VALUES[1].tobytes()[offset : offset + 5000]
        assert (root / name / "c/1/0").read_bytes() == VALUES[1].tobytes()
        assert [request.split()[:2] for request in remote.asked()] == [["GET", shard]]
