"""Multipart uploads that nobody completes are aborted, at once or by the next mount, and never another's."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest

from shardfs.errors import NoSpaceError, ShardfsError
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.s3.requests import Properties
from shardfs.stores.s3.uploads import UPLOADS, Uploads
from tests.stores.s3.hosts import PREFIX, Host, host, run
from tests.support.s3_faults import Fault, LostReply, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

OBJECT = f"{PREFIX}/c/0"


@pytest.fixture
def here(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> Host:
    return host(s3_bucket.through(s3_proxy.url), tmp_path)


def clean(one: Host) -> None:
    run(lambda: one.writing.uploads.clean(one.client))


def begin(bucket: Bucket, key: str = OBJECT) -> str:
    """An upload of anybody."""
    return bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)["UploadId"]


def remember(one: Host, key: str, upload_id: str | None, *, begun: float | None = None) -> Path:
    """What a process leaves that is killed."""
    path = one.directory / UPLOADS / f"{len(one.remembered):016x}"
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.time() if begun is None else begun
    record = {"key": key, "begun": begun, "upload_id": upload_id, "is_certain": upload_id is not None}
    path.write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("fault", [Reply(403, "AccessDenied"), Reply(500, "InternalError"), LostReply()], ids=str)
def test_what_did_not_begin_is_not_remembered_and_not_left(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, fault: Fault
) -> None:
    s3_proxy.fail("CreateMultipartUpload", fault, times=None)

    async def main() -> None:
        with pytest.raises(ShardfsError):
            async with here.writing.uploads.begun(here.client, OBJECT, Properties()):
                pass

    run(main)
    assert s3_bucket.uploads() == []
    assert here.remembered == []


def test_an_upload_whose_id_was_lost_is_aborted_too(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy) -> None:
    s3_proxy.fail("CreateMultipartUpload", LostReply())

    async def main() -> None:
        async with here.writing.uploads.begun(here.client, OBJECT, Properties()):
            assert len(s3_bucket.uploads()) == 2

    run(main)
    assert s3_bucket.uploads() == []
    assert here.remembered == []


def test_one_that_cannot_be_aborted_is_by_the_next_mount(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    s3_proxy.fail("AbortMultipartUpload", Reply(403, "AccessDenied"))

    async def main() -> None:
        async with here.writing.uploads.begun(here.client, OBJECT, Properties()):
            pass

    with caplog.at_level(logging.WARNING):
        run(main)
    assert OBJECT in caplog.text
    assert s3_bucket.uploads() == [OBJECT]
    clean(host(s3_bucket, here.directory))
    assert s3_bucket.uploads() == []
    assert here.remembered == []


def test_what_a_crash_leaves_is_aborted(s3_bucket: Bucket, here: Host) -> None:
    remember(here, OBJECT, begin(s3_bucket))
    others = begin(s3_bucket)
    clean(here)
    listed = s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name)["Uploads"]
    assert [upload["UploadId"] for upload in listed] == [others]
    assert here.remembered == []


def test_what_a_crash_leaves_before_the_id_is_known_is_found_by_its_key_and_time(s3_bucket: Bucket, here: Host) -> None:
    begin(s3_bucket)
    begin(s3_bucket, OBJECT + "0")
    begin(s3_bucket, "elsewhere")
    remember(here, OBJECT, None)
    clean(here)
    assert sorted(s3_bucket.uploads()) == sorted([OBJECT + "0", "elsewhere"])
    assert here.remembered == []


@pytest.mark.parametrize("later", [-3600, 3600])
def test_an_upload_of_another_time_is_anothers(s3_bucket: Bucket, here: Host, later: float) -> None:
    begin(s3_bucket)
    remember(here, OBJECT, None, begun=time.time() + later)
    clean(here)
    assert s3_bucket.uploads() == [OBJECT]


def test_a_damaged_file_does_no_harm(s3_bucket: Bucket, here: Host) -> None:
    begin(s3_bucket)
    whole = '{"key": "x", "begun": "", "upload_id": null, "is_certain": true}'
    for text in ("", "{", "[]", whole, '{"key": "x"}', "\udc80"):
        remember(here, OBJECT, None).write_bytes(text.encode("utf-8", "surrogateescape"))
        clean(here)
        assert s3_bucket.uploads() == [OBJECT]
        assert here.remembered == []


def test_nothing_is_begun_that_cannot_be_remembered(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy) -> None:
    class FullDisk(Syscalls):
        def sync(self, fd: int) -> None:
            raise OSError(28, "No space left on device")

    side = LocalStore(str(here.directory), FullDisk())
    uploads = Uploads(side, here.writing.objects.location, here.counts)

    async def main() -> None:
        with pytest.raises(NoSpaceError):
            async with uploads.begun(here.client, OBJECT, Properties()):
                pass

    run(main)
    assert not list(s3_proxy.log)
