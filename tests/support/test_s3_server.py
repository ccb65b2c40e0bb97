"""The servers against themselves: they know each other's data and ports not, and outlive nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.daemons import has_ended
from tests.support.mounting import PATIENCE, environment
from tests.support.s3_server import ACCESS_KEY, Bucket, ministack

RUN_FOR_EVER = """
import signal
from tests.support.s3_server import ministack
with ministack() as server:
    print(server.process.pid, flush=True)
    signal.pause()
"""


def complete(bucket: Bucket, key: str, body: bytes, **condition: str) -> Any:
    """Make an object by a multipart upload, on a condition."""
    upload = {"Bucket": bucket.name, "Key": key}
    upload["UploadId"] = bucket.client.create_multipart_upload(**upload)["UploadId"]
    part = bucket.client.upload_part(**upload, PartNumber=1, Body=body)["ETag"]
    parts = {"Parts": [{"ETag": part, "PartNumber": 1}]}
    return bucket.client.complete_multipart_upload(**upload, MultipartUpload=parts, **condition)


def copy_part(bucket: Bucket, key: str, **condition: str) -> Any:
    """Make a part of an object, on a condition."""
    upload = bucket.client.create_multipart_upload(Bucket=bucket.name, Key="copy")["UploadId"]
    source = {"Bucket": bucket.name, "Key": key}
    return bucket.client.upload_part_copy(
        Bucket=bucket.name, Key="copy", UploadId=upload, PartNumber=1, CopySource=source, **condition
    )


def test_servers_run_side_by_side_and_share_nothing() -> None:
    with ministack() as one, ministack() as other:
        one.make_bucket("same").put("a", b"1")
        assert other.make_bucket("same").keys() == []


def test_a_server_ends_with_its_test_process_however_that_ends(tmp_path: Path) -> None:
    variables = environment() | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", RUN_FOR_EVER], stdout=subprocess.PIPE, env=variables, text=True
    ) as process:
        assert process.stdout
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        assert not has_ended(pidfd)
        process.send_signal(signal.SIGKILL)
        assert has_ended(pidfd, PATIENCE)
        os.close(pidfd)


def test_a_directory_tree_goes_there_and_back(s3_bucket: Bucket, tmp_path: Path) -> None:
    files = {"zarr.json": b"{}", "c/0/0": b"\0" * 10, "c/1 +%/ü": b""}
    for name, data in files.items():
        path = tmp_path / "up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    s3_bucket.upload(tmp_path / "up", "data.zarr")
    s3_bucket.put("data.zarr.other", b"")
    assert s3_bucket.objects("data.zarr/") == {f"data.zarr/{name}": data for name, data in files.items()}
    down = s3_bucket.download(tmp_path / "down", "data.zarr")
    assert {path.relative_to(down).as_posix(): path.read_bytes() for path in down.rglob("*") if path.is_file()} == files


def test_nothing_of_the_users_configuration_is_left(monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    bucket = request.getfixturevalue("s3_bucket")
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"} & set(os.environ)
    assert os.environ["AWS_ACCESS_KEY_ID"] == bucket.environment["AWS_ACCESS_KEY_ID"] == ACCESS_KEY
    assert bucket.environment["AWS_ENDPOINT_URL"] == bucket.endpoint_url


def test_conditions_hold_at_one_server(s3_bucket: Bucket) -> None:
    etag = s3_bucket.put("a", b"1")
    for condition in ({"IfMatch": '"other"'}, {"IfNoneMatch": "*"}):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            s3_bucket.put("a", b"2", **condition)
        with pytest.raises(ClientError, match="PreconditionFailed"):
            complete(s3_bucket, "a", b"2", **condition)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        copy_part(s3_bucket, "a", CopySourceIfMatch='"other"')
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3_bucket.client.delete_object(Bucket=s3_bucket.name, Key="a", IfMatch='"other"')
    assert s3_bucket.etag("a") == etag
    complete(s3_bucket, "a", b"3", IfMatch=etag)
    assert s3_bucket.get("a") == b"3"


def test_conditions_are_ignored_at_the_other(unconditional_bucket: Bucket) -> None:
    unconditional_bucket.put("a", b"1")
    copy_part(unconditional_bucket, "a", CopySourceIfMatch='"other"')
    complete(unconditional_bucket, "a", b"2", IfMatch='"other"')
    assert unconditional_bucket.get("a") == b"2"
