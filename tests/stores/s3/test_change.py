"""Objects are changed once, on the condition that nobody else was faster, whatever becomes of the replies."""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardfs.errors import ConflictError, StaleError, StoreError, TooLargeError
from shardfs.stores.base import Kept, Splice
from shardfs.stores.s3.change import COMMIT_IDS
from shardfs.stores.s3.parts import MIB
from tests.stores.local.splices import content
from tests.stores.s3.hosts import HONOURED, IGNORED, PREFIX, Host, host, run
from tests.support.fake_s3 import FakeS3
from tests.support.opened import in_trio
from tests.support.s3_faults import Before, Hang, LostReply, LostRequest, NoETag, Reply, Then
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.s3_writing import writing

pytestmark = pytest.mark.slow

KEY = "a/c/0"
OBJECT = f"{PREFIX}/{KEY}"
SMALL = bytes(i * 7 % 251 for i in range(10_000))
LARGE = bytes(range(256)) * (6 * MIB // 256)
INDEX = b"i" * 100


def append(old: bytes, *new: bytes) -> Splice:
    """A splice that replaces the last 100 bytes, as an append to a shard does."""
    return Splice((Kept(0, len(old) - 100), *(content(data) for data in new), content(INDEX)), 100)


def appended(old: bytes, *new: bytes) -> bytes:
    return old[:-100] + b"".join(new) + INDEX


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline


@pytest.fixture
def here(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> Host:
    """A host whose requests pass the proxy."""
    return host(s3_bucket.through(s3_proxy.url), tmp_path / "here")


@pytest.fixture
def there(s3_bucket: Bucket, tmp_path: Path) -> Host:
    """Another host, whose requests meet no faults."""
    return host(s3_bucket, tmp_path / "there")


def no_trace(bucket: Bucket, *hosts: Host) -> bool:
    return not bucket.uploads()


# What is stored


SPLICES = {
    "head": Splice((content(b"h" * 100), Kept(100, len(LARGE) - 100), content(b"payload"))),
    "moved": Splice((Kept(5 * MIB, MIB), content(b"x"), Kept(0, 5 * MIB + 1), content(INDEX)), 100),
    "two copies": Splice((Kept(MIB, 5 * MIB), content(b"x" * MIB), Kept(0, 5 * MIB), content(INDEX)), 100),
    "compacted": Splice((Kept(0, 2 * MIB), Kept(3 * MIB, 20), Kept(4 * MIB, 20), content(INDEX)), 100),
    "cut short": Splice((Kept(3, 5),)),
    "copied": Splice((Kept(0, len(LARGE)),)),
    "replaced": Splice((content(b"s" * (6 * MIB)),)),
    "emptied": Splice(()),
}


@pytest.mark.slow
def test_any_splice_gives_the_bytes_that_it_says(s3_bucket: Bucket, here: Host) -> None:
    for name, splice in SPLICES.items():
        s3_bucket.put(f"{PREFIX}/{name}", LARGE)
        expected = b"".join(
            LARGE[p.offset : p.offset + p.nbytes] if isinstance(p, Kept) else bytes(p.read(0, p.nbytes))
            for p in splice.pieces
        )
        run(lambda name=name, splice=splice: here.splice(name, splice))
        assert s3_bucket.get(f"{PREFIX}/{name}") == expected, name
    assert no_trace(s3_bucket, here)


# Who was first


def test_every_request_depends_on_the_version_that_was_found(s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy) -> None:
    etags = {old: s3_bucket.put(f"{PREFIX}/{len(old)}", old) for old in (SMALL, LARGE)}

    async def main() -> None:
        for old in etags:
            edit = await here.edit(str(len(old)))
            s3_proxy.log.clear()
            await edit.splice(append(old, b"new"))
            conditions = {
                request.operation: request.headers.get("if-match", request.headers.get("x-amz-copy-source-if-match"))
                for request in s3_proxy.log
                if request.operation not in ("HeadObject", "CreateMultipartUpload", "UploadPart")
            }
            assert set(conditions.values()) == {etags[old]}

    run(main)


@pytest.mark.parametrize(
    "operation", ["GetObject", "PutObject", "CompleteMultipartUpload", "UploadPartCopy", "UploadPart"]
)
def test_a_host_that_is_faster_at_the_last_moment_wins(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    old = SMALL if operation in ("GetObject", "PutObject") else LARGE
    s3_bucket.put(OBJECT, old)

    async def main() -> None:
        edit = await here.edit(KEY)
        s3_proxy.fail(operation, Before(lambda: s3_bucket.put(OBJECT, b"theirs")))
        with pytest.raises(ConflictError):
            await edit.splice(append(old, b"ours"))

    run(main)
    assert s3_bucket.get(OBJECT) == b"theirs"
    assert no_trace(s3_bucket, here)


# Replies that are lost


def test_a_completed_upload_whose_reply_has_no_etag_is_found_by_its_commit_id(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy
) -> None:
    s3_bucket.put(OBJECT, LARGE)
    s3_proxy.fail("CompleteMultipartUpload", NoETag())
    stat = run(lambda: here.splice(KEY, append(LARGE, b"ours")))
    assert s3_bucket.get(OBJECT) == appended(LARGE, b"ours")
    assert stat.version == (s3_bucket.etag(OBJECT), len(LARGE) + 4)
    assert s3_proxy.log.operations()["CompleteMultipartUpload"] == 1
    assert no_trace(s3_bucket, here)


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
@pytest.mark.parametrize("fault", [LostReply(), LostRequest(), Reply(500, "InternalError", forwarded=True)], ids=repr)
def test_a_change_whose_reply_is_lost_is_made_once(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, operation: str, fault: LostReply
) -> None:
    old = SMALL if operation == "PutObject" else LARGE
    s3_bucket.put(OBJECT, old)
    s3_proxy.fail(operation, fault)
    stat = run(lambda: here.splice(KEY, append(old, b"ours")))
    assert s3_bucket.get(OBJECT) == appended(old, b"ours")
    assert stat.version == (s3_bucket.etag(OBJECT), len(old) + 4)
    assert len(s3_bucket.head(OBJECT)["Metadata"][COMMIT_IDS]) == 16
    assert no_trace(s3_bucket, here)


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_request_that_was_lost_is_not_sent_again_once_another_host_was_first(
    s3_bucket: Bucket, here: Host, there: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    old = SMALL if operation == "PutObject" else LARGE
    s3_bucket.put(OBJECT, old)

    def theirs() -> None:
        run(lambda: there.splice(KEY, append(old, b"theirs")))

    async def main() -> None:
        edit = await here.edit(KEY)
        s3_proxy.fail(operation, LostRequest())
        s3_proxy.fail("HeadObject", Before(theirs))
        s3_proxy.log.clear()
        with pytest.raises(ConflictError):
            await edit.splice(append(old, b"ours"))
        assert not edit.is_undecided

    run(main)
    assert s3_bucket.get(OBJECT) == appended(old, b"theirs")
    assert s3_proxy.log.operations()[operation] == 1
    assert s3_proxy.log.operations()["HeadObject"] == 1
    assert no_trace(s3_bucket, here)


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_lost_reply_is_success_though_another_host_has_changed_the_object_since(
    s3_bucket: Bucket, here: Host, there: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    old = SMALL if operation == "PutObject" else LARGE
    s3_bucket.put(OBJECT, old)

    def theirs() -> None:
        run(lambda: there.splice(KEY, append(appended(old, b"ours"), b"theirs")))

    s3_proxy.fail(operation, Then(theirs))

    async def main() -> None:
        stat = await here.splice(KEY, append(old, b"ours"))
        found = await here.found(KEY)
        assert found is not None
        assert stat.version != found.stat.version
        assert found.size == len(old) + 10

    run(main)
    assert s3_bucket.get(OBJECT) == appended(old, b"ours", b"theirs")


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_what_a_program_stores_with_our_metadata_is_not_taken_for_our_version(
    s3_bucket: Bucket, here: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    """As programs do that show a bucket as a directory."""
    old = SMALL if operation == "PutObject" else LARGE
    s3_bucket.put(OBJECT, old)

    def theirs() -> None:
        s3_bucket.put(OBJECT, b"theirs", Metadata=s3_bucket.head(OBJECT)["Metadata"])

    s3_proxy.fail(operation, Then(theirs))

    async def main() -> None:
        reader = await here.found(KEY)
        assert reader is not None
        stat = await here.splice(KEY, append(old, b"ours"))
        assert stat.size == len(old) + 4
        found = await here.found(KEY)
        assert found is not None
        assert found.stat.version != stat.version
        assert bytes(await found.read(0, 6)) == b"theirs"
        with pytest.raises(StaleError):
            await reader.read(0, 6)

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_lost_reply_is_success_though_a_program_has_filled_the_metadata(
    s3_bucket: Bucket, here: Host, there: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    old = SMALL if operation == "PutObject" else LARGE
    metadata = {"filled": "y" * (2048 - len("filled"))}
    s3_bucket.put(OBJECT, old, Metadata=metadata, CacheControl="no-cache")

    def theirs() -> None:
        run(lambda: there.splice(KEY, append(appended(old, b"ours"), b"theirs")))

    s3_proxy.fail(operation, Then(theirs))
    run(lambda: here.splice(KEY, append(old, b"ours")))
    assert s3_bucket.get(OBJECT) == appended(old, b"ours", b"theirs")
    s3_proxy.fail(operation, LostReply())
    now = s3_bucket.get(OBJECT)
    run(lambda: here.splice(KEY, append(now, b"again")))
    assert s3_bucket.get(OBJECT) == appended(now, b"again")
    found = s3_bucket.head(OBJECT)
    assert found["Metadata"] == metadata
    assert found["CacheControl"].startswith("no-cache, ")


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload"])
def test_a_request_that_arrives_late_is_no_conflict_with_itself(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, operation: str
) -> None:
    old = SMALL if operation == "PutObject" else LARGE
    etag = s3_bucket.put(OBJECT, old)
    here = host(s3_bucket.through(s3_proxy.url), tmp_path, silence=1.0)
    late = Hang()

    def arrive() -> None:
        late.release()
        until(lambda: s3_bucket.etag(OBJECT) != etag)

    s3_proxy.fail(operation, late)
    s3_proxy.fail(operation, Before(arrive))
    stat = run(lambda: here.splice(KEY, append(old, b"ours")))
    assert s3_bucket.get(OBJECT) == appended(old, b"ours")
    assert stat.version == (s3_bucket.etag(OBJECT), len(old) + 4)


def test_what_cannot_be_told_is_said(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path) -> None:
    s3_bucket.put(OBJECT, SMALL)
    here = host(s3_bucket.through(s3_proxy.url), tmp_path, attempts=2)
    s3_proxy.fail("PutObject", LostReply())
    s3_proxy.fail("HeadObject", LostReply(), times=None, after=1)

    async def main() -> None:
        with pytest.raises(StoreError, match=r"cannot tell whether .* was changed") as caught:
            await here.splice(KEY, append(SMALL, b"ours"))
        assert not isinstance(caught.value, ConflictError)

    run(main)


@in_trio
async def test_a_full_disk_is_what_a_change_fails_with_that_fetches_more_than_memory_should_hold(
    tmp_path: Path,
) -> None:
    store = await writing(FakeS3(), tmp_path / "here")
    async with store.edit(KEY) as edit:
        await edit.splice(Splice((content(bytes(12 * MIB)),)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with store.edit(KEY) as edit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9 * MIB, before[1]))
        try:
            with pytest.raises(TooLargeError):
                await edit.splice(Splice(tuple(Kept(start, 5000) for start in range(0, 12 * MIB - 5000, 6000))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


# A single writer, where conditions are ignored


@pytest.mark.slow
@pytest.mark.parametrize("old", [SMALL, LARGE], ids=["small", "large"])
def test_a_single_writer_looks_whether_it_is_alone(unconditional_bucket: Bucket, tmp_path: Path, old: bytes) -> None:
    here = host(unconditional_bucket, tmp_path, conditions=IGNORED, single_writer=True)
    unconditional_bucket.put(OBJECT, old)

    async def main() -> None:
        splice, delete = await here.edit(KEY), await here.edit(KEY)
        unconditional_bucket.put(OBJECT, b"theirs")
        with pytest.raises(ConflictError):
            await splice.splice(append(old, b"ours"))
        with pytest.raises(ConflictError):
            await delete.delete()

    run(main)
    assert unconditional_bucket.get(OBJECT) == b"theirs"


@pytest.mark.parametrize("honours", [True, False])
def test_a_key_that_a_server_could_take_for_another_one_is_not_copied_unless_the_condition_would_tell(
    s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, honours: bool
) -> None:
    conditions = HONOURED if honours else IGNORED
    here = host(s3_bucket.through(s3_proxy.url), tmp_path, conditions=conditions, single_writer=not honours)
    for key, copied in (("a%41/c/0", honours), ("aA/c/0", True)):
        s3_bucket.put(f"{PREFIX}/{key}", LARGE)
        s3_proxy.log.clear()
        run(lambda key=key: here.splice(key, append(LARGE, b"ours")))
        assert s3_bucket.get(f"{PREFIX}/{key}") == appended(LARGE, b"ours")
        assert bool(s3_proxy.log.of("UploadPartCopy")) is copied, key
