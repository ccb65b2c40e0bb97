"""A daemon that writes to a bucket is killed under load, again and again: what was closed stays, and is stored once."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.mounts.test_sigkill import COMMIT, Book, Load, read_natively
from tests.mounts.test_sigkill import source as local_source
from tests.support.corpus import LITTLE, array, extension, sharding
from tests.support.hosts import PREFIX, Host, kill
from tests.support.mounting import PATIENCE, Mount, Mounter, flush
from tests.support.s3_faults import Hang
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

ROUNDS = 60 if os.environ.get("SHARDFS_LONG") else 3
MIB = 2**20
source = local_source


def test_closed_files_survive_a_daemon_killed_at_any_moment(
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


def store_large(host: Host) -> str:
    """Store an array with one shard of 6 MiB, to which is appended in parts; returns the key of the shard."""
    codec = sharding((MIB,), extension("bytes"), index_codecs=[LITTLE])
    document = array((16 * MIB,), (16 * MIB,), codec, data_type="uint8")
    host.bucket.put(f"{PREFIX}/large/zarr.json", json.dumps(document).encode())
    mounted = host.mount()
    for number in range(6):
        (mounted.path / f"large/c/{number}").write_bytes(bytes([number]) * MIB)
    mounted.unmount()
    return f"{PREFIX}/large/c/0"


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
def test_uploads_of_a_killed_mount_are_aborted_and_no_others(host: Host, s3_proxy: S3Proxy, operation: str) -> None:
    key = store_large(host)
    other = host.bucket.client.create_multipart_upload(Bucket=host.bucket.name, Key=key + "0")["UploadId"]
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
        flush(mounted.path)
    killer.join()
    assert sorted(host.bucket.uploads()) == [key, key + "0"]
    again = behind.mount()
    assert (again.path / "large/c/9").read_bytes() == b"n" * MIB
    found = host.bucket.client.list_multipart_uploads(Bucket=host.bucket.name)["Uploads"]
    assert [upload["UploadId"] for upload in found] == [other]
    shard = host.bucket.get(key)
    assert len(shard) == 7 * MIB + 16 * 16
    assert shard[6 * MIB : 7 * MIB] == b"n" * MIB
    hang.release()
    again.unmount()
    assert host.bucket.get(key) == shard
