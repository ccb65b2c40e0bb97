"""Bulk work from and to buckets: the same bytes as in directories, by requests that are counted."""

import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zarr

from shardfs.stores.base import PART_NBYTES
from tests.bulk.test_pack import pack
from tests.support.commands import FAILED, run
from tests.support.datasets import files_below
from tests.support.mounting import command, environment
from tests.support.processes import tied
from tests.support.s3_faults import Before, NoETag, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

CHUNK = 2**20


def s3(*arguments: str | Path, bucket: Bucket, status: int = 0) -> str:
    """What a command says, in one process, of buckets behind a proxy."""
    done = run("pack", *arguments, "--jobs", "1", "--endpoint-url", bucket.endpoint_url)
    assert done.returncode == status, str(done)
    return done.stdout if status == 0 else done.stderr


def assert_packed(tmp_path: Path, bucket: Bucket) -> None:
    """What is in the bucket is what is packed into a directory."""
    pack(tmp_path / "source", tmp_path / "packed", "--shards", "12")
    stored = {key.removeprefix("packed/"): data for key, data in bucket.objects("packed/").items()}
    assert stored == files_below(tmp_path / "packed")


def write_large(path: Path, nchunks: int = 24) -> None:
    """One array of chunks of 1 MiB, which have noise."""
    values = np.random.default_rng(1).integers(0, 255, nchunks * CHUNK).astype("u1")
    array = zarr.create_array(path, shape=values.shape, chunks=(CHUNK,), dtype="u1", compressors=None, filters=None)
    array[...] = values


@pytest.mark.slow
def test_a_shard_costs_a_get_for_each_chunk_and_a_put_for_each_part(
    tmp_path: Path, s3_bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    write_large(tmp_path / "source")
    s3_bucket.upload(tmp_path / "source", "source")
    proxied = s3_bucket.through(s3_proxy.url)
    options = ("--shards", "12")
    s3(*options, proxied.url("source"), proxied.url("packed"), bucket=proxied)
    chunks = [request for request in s3_proxy.log.of("GetObject") if "/c/" in request.key]
    assert Counter(request.key for request in chunks) == Counter(f"source/c/{i}" for i in range(24))
    operations = s3_proxy.log.operations()
    nparts = -(-12 * CHUNK // PART_NBYTES)
    assert operations["UploadPart"] == 2 * nparts
    assert operations["CreateMultipartUpload"] == operations["CompleteMultipartUpload"] == 2
    assert operations["PutObject"] == 1  # the document
    assert operations["HeadObject"] == 1  # whether the document is still the one that was read
    assert operations["DeleteObject"] + operations["ListMultipartUploads"] == 0
    assert operations["ListObjectsV2"] <= 6
    assert_packed(tmp_path, s3_bucket)

    s3_proxy.log.clear()  # shards lie in one piece: their chunks come together
    s3("--shards", "6", proxied.url("packed"), proxied.url("again"), bucket=proxied)
    chunks = [request for request in s3_proxy.log.of("GetObject") if "/c/" in request.key]
    assert len(chunks) <= 2 + 2 * 2 * nparts
    assert sum(request.bytes_out for request in chunks) <= 24 * CHUNK + 4 * 2**10
    assert s3_proxy.log.operations()["UploadPart"] == 0 or s3_proxy.log.operations()["PutObject"] == 5

    s3_proxy.log.clear()
    said = s3("--sync", *options, proxied.url("source"), proxied.url("packed"), bucket=proxied)
    assert said.startswith("0 objects stored")
    assert not [request for request in s3_proxy.log.of("GetObject") if "/c/" in request.key]
    assert s3_proxy.log.operations()["HeadObject"] <= 3
    assert s3_proxy.log.of("PutObject", "UploadPart", "CreateMultipartUpload") == []


@pytest.mark.slow
def test_parts_that_are_refused_are_given_up_and_the_next_run_goes_on(
    tmp_path: Path, s3_bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    write_large(tmp_path / "source", 12)
    proxied = s3_bucket.through(s3_proxy.url)
    s3_proxy.fail("UploadPart", Reply(403, "AccessDenied"), times=None)
    options = ("--shards", "12", tmp_path / "source", proxied.url("packed"))
    assert "skipped: UploadPart of " in s3(*options, bucket=proxied, status=FAILED)
    assert s3_bucket.uploads() == []
    s3_proxy.heal()
    s3("--sync", *options, bucket=proxied)
    assert_packed(tmp_path, s3_bucket)


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--sync",), ()])
def test_uploads_of_a_killed_run_are_given_up_by_the_next(
    tmp_path: Path, s3_bucket: Bucket, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_large(tmp_path / "source", 12)
    proxied = s3_bucket.through(s3_proxy.url)
    options = ("--shards", "12", tmp_path / "source", proxied.url("packed"))
    words = command("pack", *options, "--jobs", "1", "--endpoint-url", proxied.endpoint_url)
    s3_proxy.fail("UploadPart", Before(lambda: killed.kill()))
    killed = subprocess.Popen(tied(*words), env=environment())
    killed.wait()
    assert s3_bucket.uploads() == ["packed/c/0"]
    s3(*how, *options, bucket=proxied)
    assert s3_bucket.uploads() == []
    assert_packed(tmp_path, s3_bucket)


@pytest.mark.slow
def test_a_shard_is_stored_by_a_server_whose_reply_has_no_etag(
    tmp_path: Path, s3_bucket: Bucket, s3_proxy: S3Proxy
) -> None:
    write_large(tmp_path / "source", 12)
    proxied = s3_bucket.through(s3_proxy.url)
    s3_proxy.fail("CompleteMultipartUpload", NoETag())
    s3("--shards", "12", tmp_path / "source", proxied.url("packed"), bucket=proxied)
    assert s3_proxy.log.operations()["CompleteMultipartUpload"] == 1
    assert_packed(tmp_path, s3_bucket)

    s3_proxy.fail("CompleteMultipartUpload", NoETag())
    s3_proxy.fail("HeadObject", Before(lambda: s3_bucket.put("again/c/0", b"theirs")), key="again/c/0")
    said = s3("--shards", "12", tmp_path / "source", proxied.url("again"), bucket=proxied, status=FAILED)
    assert "again/c/0 was changed by another program" in said
