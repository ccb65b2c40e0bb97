"""Every operation of the client against a real server, without faults."""

from functools import partial

import pytest
import trio

from shardfs.errors import ConflictError, NotFoundError, StoreError
from shardfs.stores.objects.requests import Range
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.service import properties_of
from tests.stores.s3.clients import PLAIN, WHOLE, Memory, Tried, client_of, run
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

MIB = 2**20
KEYS = [
    *["plain/c/0/1", "a b", " lead", "trail ", "a/ /b", "100%", "a%20b", "a%2Fb", "a+b", "a#b", "a?b=c&d", "~t", "a~"],
    *["*", "[a]", "{a}", "(a)", "a:b", "a;b", "a@b", "a$b", "a,b", "a'b", 'a"b', "<a>", "a|b", "a\\b", "a^b", "a`b"],
    *["a!b", "a=b", "ünï", "日本", "😀", "e\u0301", "\u00e9", "a\u200bb", "..a", "a..", "...", ".a", "a\x85b"],
    *["a//b", "//", "/lead", "trail/", "a\tb", "a\nb", "a\x7fb", "a/./b", "a/../b", ".", ".."],
]
"""No two of them are the same object, and some look so."""


@pytest.fixture
def tried(s3_bucket: Bucket) -> Tried:
    return client_of(s3_bucket)


@pytest.mark.parametrize("key", ["plain", "not//plain"])
def test_a_range_is_what_the_object_has_of_it(s3_bucket: Bucket, tried: Tried, key: str) -> None:
    etag = s3_bucket.put(key, b"0123456789")
    mtime_ns = int(s3_bucket.head(key)["LastModified"].timestamp()) * 10**9
    for part, offset, data in (
        (Range(2, 3), 2, b"234"),
        (Range(8, 10), 8, b"89"),
        (Range(0, 10), 0, b"0123456789"),
        (Range(-4, 4), 6, b"6789"),
        (Range(-10, 10), 0, b"0123456789"),
        (Range(-40, 40), 0, b"0123456789"),
        (Range(10, 1), 10, b""),
        (Range(100, 7), 10, b""),
    ):
        tried.begin()
        fetched = run(partial(tried.client.get, key, part, etag=etag))
        assert (fetched.offset, bytes(fetched.data)) == (offset, data), part
        assert (fetched.stat.size, fetched.stat.etag, fetched.stat.mtime_ns) == (10, etag, mtime_ns)
        assert tried.counts.bytes_received == len(data)
        assert not data or tried.counts.requests == {"GetObject": 1}
    etag = s3_bucket.put(key, b"")
    for part in (Range(-5, 5), Range(0, 5)):
        fetched = run(partial(tried.client.get, key, part))
        assert (fetched.stat.size, fetched.stat.etag, fetched.offset, bytes(fetched.data)) == (0, etag, 0, b""), part


@pytest.mark.slow
def test_every_key_is_the_object_of_that_name(s3_bucket: Bucket, tried: Tried) -> None:
    async def main() -> None:
        for key in KEYS:
            await tried.client.put(key, Memory(key.encode()), PLAIN)
        listed = await tried.client.list_page("", delimiter="")
        assert [key for key, _ in listed.objects] == sorted(KEYS, key=str.encode)
        for key in KEYS:
            fetched = await tried.client.get(key, WHOLE)
            assert bytes(fetched.data) == key.encode(), key
            assert (await tried.client.head(key)).stat == fetched.stat
            copy, nbytes = "copy/of" + key, len(key.encode())
            upload = await tried.client.create_upload(copy, PLAIN)
            part = await tried.client.copy_part(copy, upload, 1, Range(0, nbytes), condition=None, source=key)
            await tried.client.complete_upload(copy, upload, [part], condition=None)
            assert bytes((await tried.client.get("copy/of" + key, WHOLE)).data) == key.encode()
            await tried.client.delete(key)
            with pytest.raises(NotFoundError):
                await tried.client.get(key, WHOLE)

    assert s3_bucket.keys() == []
    trio.run(main)


@pytest.mark.parametrize("key", ["plain", "not//plain"])
def test_another_version_is_a_conflict(s3_bucket: Bucket, tried: Tried, key: str) -> None:
    old = s3_bucket.put(key, b"old")
    s3_bucket.put(key, b"new")
    for part in (Range(0, 1), Range(-1, 1), Range(7, 1)):
        with pytest.raises(ConflictError, match=key):
            run(partial(tried.client.get, key, part, etag=old))
    s3_bucket.delete(key)
    with pytest.raises(ConflictError):
        run(partial(tried.client.get, key, WHOLE, etag=old))
    assert tried.counts.conflicts == 4
    assert tried.counts.retries == 0


def test_that_a_key_is_missing_is_told_from_a_missing_bucket(s3_bucket: Bucket, tried: Tried) -> None:
    for asking in (partial(tried.client.get, "nothing", WHOLE), partial(tried.client.head, "nothing")):
        with pytest.raises(NotFoundError, match=f"s3://{s3_bucket.name}/nothing does not exist"):
            run(asking)
    assert run(partial(tried.client.list_page, "nothing/")) == ([], [], None)
    client = client_of(Bucket("nothing-at-all", s3_bucket.endpoint_url)).client
    condition = Condition('"etag"')
    for call in (
        partial(client.get, "key", WHOLE),
        partial(client.get, "key", WHOLE, etag='"etag"'),
        partial(client.get, "not//plain", WHOLE),
        partial(client.head, "key"),
        partial(client.list_page, ""),
        partial(client.put, "key", Memory(b""), PLAIN),
        partial(client.put, "key", Memory(b""), PLAIN, condition=condition),
        partial(client.delete, "key"),
        partial(client.create_upload, "key", PLAIN),
        partial(client.list_uploads, ""),
    ):
        with pytest.raises(StoreError, match="the bucket nothing-at-all does not exist") as failed:
            run(call)
        assert type(failed.value) is StoreError, call


def test_what_keeps_content_from_being_read_is_what_the_caller_gets(s3_bucket: Bucket, tried: Tried) -> None:
    class Broken(Memory):
        def read(self, offset: int, nbytes: int) -> bytes:
            if offset or self.nbytes < MIB:
                raise error
            return super().read(offset, nbytes)

    for error in (StoreError("the old bytes are gone"), OSError("a disk"), FileNotFoundError("a file")):
        for nbytes in (10, 3 * MIB):
            with pytest.raises(type(error)) as failed:
                run(partial(tried.client.put, "key", Broken(b"x" * nbytes), PLAIN, condition=Condition(None)))
            assert failed.value is error

    class Short(Memory):
        def read(self, offset: int, nbytes: int) -> bytes:
            return super().read(offset, nbytes)[:-1]

    with pytest.raises(ValueError, match="different structures"):
        run(partial(tried.client.put, "key", Short(b"x" * (2 * MIB)), PLAIN))
    assert s3_bucket.keys() == []
    assert tried.counts.retries == 0


def test_encryption_is_sent_as_it_is_found() -> None:
    server_side = "x-amz-server-side-encryption"
    headers = {
        server_side: "aws:kms",
        f"{server_side}-aws-kms-key-id": "arn",
        f"{server_side}-bucket-key-enabled": "true",
    }
    others = {"content-type": "a/b", "content-length": "5", "x-amz-meta-a": "b", "expires": "soon"}
    properties = properties_of({**headers, **others})
    encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn", "BucketKeyEnabled": True}
    assert properties.to_arguments() == {**encryption, "ContentType": "a/b", "Metadata": {"a": "b"}}


def test_no_more_requests_than_connections_are_under_way(s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    s3_bucket.put("key", b"x")
    tried = client_of(s3_bucket.through(s3_proxy.url), max_connections=3)
    s3_proxy.latency = 0.02

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(tried.client.get, "key", WHOLE)

    trio.run(main)
    assert s3_proxy.log.max_in_flight("GetObject") == 3
    assert s3_proxy.log.operations() == tried.counts.requests == {"GetObject": 12}


def test_the_requester_pays_for_every_request_if_asked(s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    client = client_of(s3_bucket.through(s3_proxy.url), request_payer=True).client

    async def main() -> None:
        await client.put("key", Memory(b"x"), PLAIN)
        await client.get("key", WHOLE)
        await client.head("key")
        await client.list_page("")
        upload = await client.create_upload("key", PLAIN)
        part = await client.copy_part("key", upload, 1, Range(0, 1), condition=None)
        await client.upload_part("key", upload, 2, Memory(b"y"))
        await client.complete_upload("key", upload, [part], condition=None)
        await client.abort_upload("key", await client.create_upload("key", PLAIN))
        await client.list_uploads("")
        await client.delete("key")

    trio.run(main)
    assert {request.operation for request in s3_proxy.log if "x-amz-request-payer" not in request.headers} == set()
