"""A bucket is written through a mount: names, documents and plain files; what the bucket holds then, and when."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.corpus import array, sharding
from tests.support.hosts import NEW, PREFIX, Host, make_host
from tests.support.mounting import Mount, Mounter, flush
from tests.support.s3_faults import Ignore
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

CHANGES = ("PutObject", "CopyObject", "DeleteObject", "CreateMultipartUpload", "CompleteMultipartUpload")
SHARD = f"{PREFIX}/c/0/0"


@pytest.fixture
def host(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, mount: Mounter) -> Host:
    """A host that reaches the bucket through a proxy that logs."""
    return make_host(s3_bucket.through(s3_proxy.url), tmp_path, mount)


@pytest.fixture
def mounted(host: Host, s3_proxy: S3Proxy) -> Mount:
    mounted = host.mount()
    s3_proxy.log.clear()
    return mounted


def changes(proxy: S3Proxy) -> list[tuple[str, str]]:
    """What was changed in the bucket, in order."""
    return [(request.operation, request.key.removeprefix(f"{PREFIX}/")) for request in proxy.log.of(*CHANGES)]


def test_a_shard_without_chunks_is_deleted(host: Host, mounted: Mount, s3_proxy: S3Proxy) -> None:
    for name in ("0/0", "0/1", "1/0", "1/1"):
        (mounted.path / "c" / name).unlink()
    flush(mounted.path)
    assert changes(s3_proxy) == [("DeleteObject", "c/0/0")]
    assert SHARD not in host.bucket.keys(PREFIX)
    (mounted.path / "c/0/1").write_bytes(NEW)
    flush(mounted.path)
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (None, NEW)


def test_without_conditional_delete_an_emptied_shard_stays_as_its_index(host: Host, s3_proxy: S3Proxy) -> None:
    s3_proxy.fail("DeleteObject", Ignore("if-match"), times=None)
    mounted = host.mount()
    s3_proxy.log.clear()
    for name in ("0/0", "0/1", "1/0", "1/1"):
        (mounted.path / "c" / name).unlink()
    flush(mounted.path)
    assert changes(s3_proxy) == [("PutObject", "c/0/0")]
    shard = host.bucket.get(SHARD)
    assert shard[:-4] == b"\xff" * 64
    assert not (mounted.path / "c/0/0").exists()
    assert host.chunk(0, 0) is None
    mounted.unmount()


def test_metadata_of_objects_survives_every_commit(host: Host, s3_proxy: S3Proxy) -> None:
    kept = {"ContentType": "application/x-zarr", "CacheControl": "max-age=7", "StorageClass": "STANDARD_IA"}
    big = sharding((1, 2**20), {"name": "bytes"})
    host.bucket.put(
        f"{PREFIX}/big/zarr.json", json.dumps(array((8, 2**20), (8, 2**20), big, data_type="uint8")).encode()
    )
    keys = {"": SHARD, "big/": f"{PREFIX}/big/c/0/0"}
    mounted = host.mount()
    for n in range(6):
        (mounted.path / f"big/c/{n}/0").write_bytes(bytes([n]) * 2**20)
    flush(mounted.path)
    mounted.unmount()
    for key in keys.values():
        host.bucket.put(key, host.bucket.get(key), Metadata={"owner": "lab"}, **kept)
    mounted = host.mount()
    s3_proxy.log.clear()
    for turn in range(20):
        (mounted.path / "c/0/0").write_bytes(bytes([turn]) * 24)
        if turn < 3:
            (mounted.path / "big/c/7/0").write_bytes(bytes([turn]) * 2**20)
        flush(mounted.path)
    assert s3_proxy.log.operations()["UploadPartCopy"] == 3
    for key in keys.values():
        head = host.bucket.head(key)
        assert {name: head[name] for name in kept} == kept
        transactions = head["Metadata"].pop("shardfs-transactions").split()
        assert head["Metadata"] == {"owner": "lab"}
        assert len(re.split(r"[ ,]", " ".join(transactions))) == (16 if key == SHARD else 3)
    mounted.unmount()


def test_growth_after_a_shrink_shows_nothing_of_what_was_outside(host: Host, mounted: Mount) -> None:
    def resize(*shape: int) -> None:
        document = json.loads((mounted.path / "zarr.json").read_bytes()) | {"shape": shape}
        (mounted.path / "zarr.json").write_text(json.dumps(document))

    kept = (mounted.path / "c/0/0").read_bytes()
    (mounted.path / "c/1/0").write_bytes(NEW)
    resize(2, 6)
    flush(mounted.path)
    assert host.bucket.keys(f"{PREFIX}/c") == [SHARD]
    resize(8, 12)
    assert sorted(os.listdir(mounted.path / "c/0")) == ["0", "1"]
    flush(mounted.path)
    assert [host.chunk(0, 0), host.chunk(1, 0), host.chunk(2, 0)] == [kept, None, None]


def test_a_large_file_with_an_ambiguous_name_is_not_copied_unconditionally(host: Host, s3_proxy: S3Proxy) -> None:
    s3_proxy.fail("UploadPartCopy", Ignore("x-amz-copy-source-if-match"), times=None)
    mounted = host.mounter(
        host.url, write=True, state=host.state, env=host.bucket.environment, arguments=["--single-writer"]
    )
    data = os.urandom(9 * 2**20)
    for name, copied in (("a%41", False), ("aA", True)):
        (mounted.path / name).write_bytes(data)
        s3_proxy.log.clear()
        (mounted.path / name).rename(mounted.path / f"{name}.moved")
        assert (mounted.path / f"{name}.moved").read_bytes() == data
        assert bool(s3_proxy.log.of("UploadPartCopy")) is copied, name
