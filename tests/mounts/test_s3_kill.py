"""A daemon that writes to a bucket is killed under load, again and again: what was closed stays, and is stored once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from tests.mounts.test_sigkill import COMMIT, Book, Load, read_natively
from tests.mounts.test_sigkill import source as local_source
from tests.support.commands import FAILED
from tests.support.hosts import NEW, OTHER, PREFIX, Host, kill, make_host
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.s3_faults import Hang
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

ROUNDS = 60 if os.environ.get("SHARDFS_LONG") else 3
MIB = 2**20
source = local_source


def test_what_was_closed_survives_a_daemon_killed_at_any_moment(
    s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, source: Path, tmp_path: Path
) -> None:
    s3_bucket.upload(source, PREFIX)
    s3_proxy.latency = 0.002
    behind = s3_bucket.through(s3_proxy.url)
    chance, book = random.Random(1), Book.new()

    def mounted_again(path: Path | None = None) -> Mount:
        return mount(behind.url(PREFIX), path=path, write=True, env=behind.environment)

    mounted = mounted_again()
    for number in range(ROUNDS):
        load = Load(mounted, number, book.number)
        load.wait_for(chance.randrange(1, 200))
        committing = chance.random() < 0.8 and subprocess.Popen([sys.executable, "-c", COMMIT, str(mounted.path)])
        load.wait_for(load.text.count(b"\n") + chance.randrange(1, 100))
        mounted.process.kill()
        mounted.process.wait(PATIENCE)
        book.read(load.end())
        if committing:
            committing.wait(PATIENCE)
        mounted = mounted_again(mounted.path)
        book.settle(mounted.path)
        assert not s3_bucket.uploads()
        if number % 5 == 4 or number + 1 == ROUNDS:
            mounted.unmount()
            names = {key.removeprefix(f"{PREFIX}/") for key in s3_bucket.keys(PREFIX)}
            assert all("/c/" in name or name.endswith("zarr.json") for name in names), names
            read_natively(s3_bucket.download(tmp_path / f"native-{number}", PREFIX), book)
            mounted = mounted_again(mounted.path)


@pytest.fixture
def host(s3_bucket: Bucket, tmp_path: Path, mount: Mounter) -> Host:
    return make_host(s3_bucket, tmp_path, mount)


def store_large(host: Host) -> str:
    """Store an array with one shard of 6 MiB, to which is appended in parts; returns the key of the shard."""
    codecs = [{"name": "bytes"}]
    inner = {
        "chunk_shape": [MIB],
        "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [16 * MIB],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16 * MIB]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }
    host.bucket.put(f"{PREFIX}/large/zarr.json", json.dumps(document).encode())
    mounted = host.mount()
    for number in range(6):
        (mounted.path / f"large/c/{number}").write_bytes(bytes([number]) * MIB)
    mounted.unmount()
    return f"{PREFIX}/large/c/0"


@pytest.mark.parametrize("operation", ["UploadPartCopy", "UploadPart", "CompleteMultipartUpload"])
def test_an_upload_that_a_killed_mount_left_is_aborted_and_that_of_another_program_is_not(
    host: Host, s3_proxy: S3Proxy, operation: str
) -> None:
    key = store_large(host)
    foreign = host.bucket.client.create_multipart_upload(Bucket=host.bucket.name, Key=key)["UploadId"]
    behind = host.behind(s3_proxy.url)
    mounted = behind.mount()
    (mounted.path / "large/c/9").write_bytes(b"n" * MIB)
    hang = Hang()
    rule = s3_proxy.fail(operation, hang, key=key)

    def kill_it_then() -> None:
        rule.wait()
        kill(mounted)

    killer = Thread(target=kill_it_then)
    killer.start()
    with pytest.raises(OSError):
        os.setxattr(mounted.path, "user.shardfs.flush", b"")
    killer.join()
    assert sorted(host.bucket.uploads()) == [key, key]
    again = behind.mount()
    assert (again.path / "large/c/9").read_bytes() == b"n" * MIB
    found = host.bucket.client.list_multipart_uploads(Bucket=host.bucket.name)["Uploads"]
    assert [upload["UploadId"] for upload in found] == [foreign]
    shard = host.bucket.get(key)
    assert len(shard) == 7 * MIB + 16 * 16
    assert shard[6 * MIB : 7 * MIB] == b"n" * MIB
    hang.release()
    again.unmount()
    assert host.bucket.get(key) == shard


def test_what_another_host_changed_in_the_same_chunk_is_kept_reported_and_applied_when_asked(host: Host) -> None:
    host.leave(_0=NEW, _1=NEW)
    host.elsewhere().commit("c/0/0", OTHER)
    mounted = host.mount(expect=("another program has changed the chunk since",))
    assert (mounted.path / "c/0/0").read_bytes() == OTHER
    assert (mounted.path / "c/0/1").read_bytes() == NEW
    mounted.unmount()
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (OTHER, NEW)
    (found,) = host.recover(host.url, status=FAILED)
    assert found["kind"] == "conflict"
    host.recover("--apply", host.url)
    assert host.chunk(0, 0) == NEW
    assert host.recover() == []


@pytest.mark.parametrize("what", ["bucket", "prefix", "endpoint"])
def test_a_journal_stays_where_it_belongs(host: Host, s3_proxy: S3Proxy, what: str) -> None:
    host.leave(_0=NEW)
    other, url = host, host.bucket.url("elsewhere")
    if what == "bucket":
        name = f"{host.bucket.name}-other"
        host.bucket.client.create_bucket(Bucket=name)
        bucket = type(host.bucket)(name, host.bucket.endpoint_url)
        bucket.put(f"{PREFIX}/zarr.json", host.bucket.get(f"{PREFIX}/zarr.json"))
        url = bucket.url(PREFIX)
    elif what == "prefix":
        host.bucket.put("elsewhere/zarr.json", host.bucket.get(f"{PREFIX}/zarr.json"))
    else:
        other, url = host.behind(s3_proxy.url), host.url
    before = host.bucket.objects(PREFIX)
    mounted = host.mounter(url, write=True, state=host.state, env=other.bucket.environment)
    with suppress(FileNotFoundError):
        assert (mounted.path / "c/0/0").read_bytes() != NEW
    mounted.unmount()
    assert host.bucket.objects(PREFIX) == before
    (left,) = host.recover(status=FAILED)
    assert left["kind"] == "slot"
    assert left["command"] == f"shardfs recover --apply --endpoint-url {host.bucket.endpoint_url} {host.url}"
    host.mount().unmount()
    assert host.chunk(0, 0) == NEW
