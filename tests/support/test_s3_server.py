"""The servers against themselves: they know each other's data and ports not, and outlive nobody."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.s3_server import Bucket


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
