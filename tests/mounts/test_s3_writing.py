"""A bucket is written through a mount: names, documents and plain files; what the bucket holds then, and when."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from shardfs.fuse import control
from tests.support.commands import SOURCE, one_line_of
from tests.support.corpus import array, sharding
from tests.support.hosts import DOCUMENT, NEW, OTHER, PREFIX, Host, make_host
from tests.support.mounting import Mount, Mounter
from tests.support.s3_faults import Ignore
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.writers import tool

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
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


def flush(mounted: Mount) -> None:
    os.setxattr(mounted.path, control.FLUSH, b"")


def changes(proxy: S3Proxy) -> list[tuple[str, str]]:
    """What was changed in the bucket, in order."""
    return [(request.operation, request.key.removeprefix(f"{PREFIX}/")) for request in proxy.log.of(*CHANGES)]


# Chunks


def test_chunks_are_written_in_every_way_that_programs_have(host: Host, mounted: Mount) -> None:
    top = mounted.path / "c/0"
    top.joinpath("0").write_bytes(NEW)
    with top.joinpath("1").open("r+b") as file:
        file.seek(4)
        file.write(b"part")
    os.truncate(top / "2", 8)
    top.joinpath("3").unlink()
    with top.joinpath("3").open("xb") as file:
        file.write(OTHER)
    with pytest.raises(FileExistsError):
        top.joinpath("3").open("xb")
    second = mounted.path / "c/1"
    second.joinpath("0.partial").write_bytes(NEW)
    second.joinpath("0.partial").rename(second / "0")
    second.joinpath("1").unlink()
    second.joinpath("1.tmp").write_bytes(OTHER)
    os.link(second / "1.tmp", second / "1")
    second.joinpath("1.tmp").unlink()
    second.joinpath("2").rename(second / "3")
    before = {name: (mounted.path / "c" / name).read_bytes() for name in ("0/1", "0/2", "1/3")}
    flush(mounted)
    assert host.chunk(0, 0) == NEW
    assert host.chunk(0, 1) == before["0/1"]
    assert before["0/1"][4:8] == b"part"
    assert host.chunk(0, 2) == before["0/2"]
    assert len(before["0/2"]) == 8
    assert host.chunk(0, 3) == OTHER
    assert (host.chunk(1, 0), host.chunk(1, 1)) == (NEW, OTHER)
    assert (host.chunk(1, 2), host.chunk(1, 3)) == (None, before["1/3"])
    assert sorted(os.listdir(second)) == ["0", "1", "3"]
    assert [key for key in host.bucket.keys(PREFIX) if not re.fullmatch(r".*/(zarr\.json|c/\d+/\d+)", key)] == []


def test_a_shard_without_chunks_is_deleted(host: Host, mounted: Mount, s3_proxy: S3Proxy) -> None:
    for name in ("0/0", "0/1", "1/0", "1/1"):
        (mounted.path / "c" / name).unlink()
    flush(mounted)
    assert changes(s3_proxy) == [("DeleteObject", "c/0/0")]
    assert SHARD not in host.bucket.keys(PREFIX)
    (mounted.path / "c/0/1").write_bytes(NEW)
    flush(mounted)
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (None, NEW)


def test_where_a_condition_on_delete_is_ignored_an_emptied_shard_stays_as_its_index(
    host: Host, s3_proxy: S3Proxy
) -> None:
    s3_proxy.fail("DeleteObject", Ignore("if-match"), times=None)
    mounted = host.mount()
    s3_proxy.log.clear()
    for name in ("0/0", "0/1", "1/0", "1/1"):
        (mounted.path / "c" / name).unlink()
    flush(mounted)
    assert changes(s3_proxy) == [("PutObject", "c/0/0")]
    shard = host.bucket.get(SHARD)
    assert shard[:-4] == b"\xff" * 64
    assert not (mounted.path / "c/0/0").exists()
    assert host.chunk(0, 0) is None
    mounted.unmount()


def test_what_an_object_has_besides_its_bytes_survives_every_commit(host: Host, s3_proxy: S3Proxy) -> None:
    kept = {"ContentType": "application/x-zarr", "CacheControl": "max-age=7", "StorageClass": "STANDARD_IA"}
    big = sharding((1, 2**20), {"name": "bytes"})
    host.bucket.put(
        f"{PREFIX}/big/zarr.json", json.dumps(array((8, 2**20), (8, 2**20), big, data_type="uint8")).encode()
    )
    keys = {"": SHARD, "big/": f"{PREFIX}/big/c/0/0"}
    mounted = host.mount()
    for n in range(6):
        (mounted.path / f"big/c/{n}/0").write_bytes(bytes([n]) * 2**20)
    flush(mounted)
    mounted.unmount()
    for key in keys.values():
        host.bucket.put(key, host.bucket.get(key), Metadata={"owner": "lab"}, **kept)
    mounted = host.mount()
    s3_proxy.log.clear()
    for turn in range(20):
        (mounted.path / "c/0/0").write_bytes(bytes([turn]) * 24)
        if turn < 3:
            (mounted.path / "big/c/7/0").write_bytes(bytes([turn]) * 2**20)
        flush(mounted)
    assert s3_proxy.log.operations()["UploadPartCopy"] == 3
    for key in keys.values():
        head = host.bucket.head(key)
        assert {name: head[name] for name in kept} == kept
        transactions = head["Metadata"].pop("shardfs-transactions").split()
        assert head["Metadata"] == {"owner": "lab"}
        assert len(re.split(r"[ ,]", " ".join(transactions))) == (16 if key == SHARD else 3)
    mounted.unmount()


# Documents


def test_a_document_is_stored_when_it_is_closed(host: Host, mounted: Mount, s3_proxy: S3Proxy) -> None:
    document = json.loads((mounted.path / "zarr.json").read_bytes()) | {"attributes": {"title": "new"}}
    (mounted.path / "zarr.json").write_text(json.dumps(document))
    assert changes(s3_proxy) == [("PutObject", "zarr.json")]
    stored = json.loads(host.bucket.get(f"{PREFIX}/zarr.json"))
    assert stored == DOCUMENT | {"attributes": {"title": "new"}}
    assert host.bucket.head(f"{PREFIX}/zarr.json")["ContentType"] == "application/octet-stream"  # as it was


def test_a_new_document_is_of_the_right_type(host: Host, mounted: Mount) -> None:
    (mounted.path / "g").mkdir()
    (mounted.path / "g/zarr.json").write_bytes(GROUP)
    assert host.bucket.head(f"{PREFIX}/g/zarr.json")["ContentType"] == "application/json"


def test_a_broken_document_is_refused_and_the_old_one_stays(host: Host, mounted: Mount) -> None:
    mounted.expect("zarr.json")
    before = host.bucket.get(f"{PREFIX}/zarr.json")
    with pytest.raises(OSError) as caught:
        (mounted.path / "zarr.json").write_text("{")
    assert caught.value.errno == errno.EINVAL
    assert host.bucket.get(f"{PREFIX}/zarr.json") == before


def test_a_shrink_empties_what_is_outside_and_growing_again_shows_nothing_of_it(host: Host, mounted: Mount) -> None:
    def resize(*shape: int) -> None:
        document = json.loads((mounted.path / "zarr.json").read_bytes()) | {"shape": shape}
        (mounted.path / "zarr.json").write_text(json.dumps(document))

    kept = (mounted.path / "c/0/0").read_bytes()
    (mounted.path / "c/1/0").write_bytes(NEW)
    resize(2, 6)
    flush(mounted)
    assert host.bucket.keys(f"{PREFIX}/c") == [SHARD]
    resize(8, 12)
    assert sorted(os.listdir(mounted.path / "c/0")) == ["0", "1"]
    flush(mounted)
    assert [host.chunk(0, 0), host.chunk(1, 0), host.chunk(2, 0)] == [kept, None, None]


# Plain files


def test_plain_files_are_changed_renamed_and_removed(host: Host, mounted: Mount) -> None:
    for name in ("kept", "appended", "renamed", "replaced", "removed"):
        (mounted.path / name).write_text(name)
    flush(mounted)
    with (mounted.path / "appended").open("a") as file:
        file.write("!")
    (mounted.path / "renamed").rename(mounted.path / "new")
    (mounted.path / "kept").rename(mounted.path / "replaced")
    (mounted.path / "removed").unlink()
    expected = {"appended": b"appended!", "new": b"renamed", "replaced": b"kept"}
    for _ in range(2):
        found = {
            entry.name: entry.read_bytes()
            for entry in mounted.path.iterdir()
            if entry.suffix != ".json" and entry.is_file()
        }
        assert found == expected
        flush(mounted)
    stored = {key.removeprefix(f"{PREFIX}/"): data for key, data in host.bucket.objects(PREFIX).items()}
    assert {name: data for name, data in stored.items() if not name.startswith(("c/", "zarr.json"))} == expected


def test_directories_are_made_and_removed_as_on_a_disk(host: Host, mounted: Mount, s3_proxy: S3Proxy) -> None:
    (mounted.path / "one/two").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        (mounted.path / "one").mkdir()
    with pytest.raises(OSError) as caught:
        (mounted.path / "one").rmdir()
    assert caught.value.errno == errno.ENOTEMPTY
    (mounted.path / "one/two/file").write_text("x")
    flush(mounted)
    assert host.bucket.keys(f"{PREFIX}/one") == [f"{PREFIX}/one/two/file"]
    (mounted.path / "one/two/file").unlink()
    assert os.listdir(mounted.path / "one/two") == []
    (mounted.path / "one/two").rmdir()
    (mounted.path / "one").rmdir()
    assert not (mounted.path / "one").exists()
    assert host.bucket.keys(f"{PREFIX}/one") == []


def test_a_directory_with_objects_is_moved_by_mv_and_is_no_rename(host: Host, mounted: Mount) -> None:
    (mounted.path / "one/two").mkdir(parents=True)
    (mounted.path / "one/two/file").write_text("x")
    flush(mounted)
    with pytest.raises(OSError) as caught:
        (mounted.path / "one").rename(mounted.path / "new")
    assert caught.value.errno == errno.EXDEV
    tool("mv", mounted.path / "one", mounted.path / "new")
    assert not (mounted.path / "one").exists()
    flush(mounted)
    assert [key.removeprefix(PREFIX) for key in host.bucket.keys(PREFIX) if "two" in key] == ["/new/two/file"]


def test_objects_have_one_name(mounted: Mount) -> None:
    mounted.expect("second name", "symbolic")
    (mounted.path / "notes.txt").write_text("x")
    with pytest.raises(PermissionError):
        os.link(mounted.path / "notes.txt", mounted.path / "other.txt")
    with pytest.raises(PermissionError):
        os.symlink("notes.txt", mounted.path / "link")


# Who may write


@pytest.mark.parametrize("operation", ["PutObject", "UploadPartCopy", "CompleteMultipartUpload"])
def test_an_endpoint_that_ignores_a_condition_takes_one_writer_and_says_why(
    host: Host, s3_proxy: S3Proxy, tmp_path: Path, operation: str
) -> None:
    headers = {"UploadPartCopy": ("x-amz-copy-source-if-match",)}.get(operation, ("if-match", "if-none-match"))
    for header in headers:
        s3_proxy.fail(operation, Ignore(header), times=None)
    (tmp_path / "mnt").mkdir()
    refused = host.run("mount", "--write", host.url, tmp_path / "mnt")
    line = one_line_of(refused, SOURCE)
    name = {"PutObject": "PUT", "UploadPartCopy": "part copy", "CompleteMultipartUpload": "complete"}[operation]
    assert f"does not honour conditions on {name}" in line
    assert "--single-writer" in line
    assert not (tmp_path / "mnt").is_mount()
    reading = host.mount(write=False)
    assert (reading.path / "c/0/0").stat().st_size == 24
    reading.unmount()
    mounted = host.mounter(
        host.url, write=True, state=host.state, env=host.bucket.environment, arguments=["--single-writer"]
    )
    (mounted.path / "c/0/0").write_bytes(NEW)
    mounted.unmount()
    assert host.chunk(0, 0) == NEW


def test_a_server_without_conditions_is_written_by_a_single_writer(
    unconditional_bucket: Bucket, tmp_path: Path, mount: Mounter
) -> None:
    host = make_host(unconditional_bucket, tmp_path, mount)
    (tmp_path / "mnt").mkdir()
    assert "--single-writer" in one_line_of(host.run("mount", "--write", host.url, tmp_path / "mnt"), SOURCE)
    mounted = host.mounter(
        host.url, write=True, state=host.state, env=host.bucket.environment, arguments=["--single-writer"]
    )
    for name, data in (("0/0", NEW), ("1/1", OTHER), ("3/3", NEW)):
        (mounted.path / "c" / name).write_bytes(data)
    (mounted.path / "notes.txt").write_text("notes")
    flush(mounted)
    (mounted.path / "c/3/3").unlink()
    mounted.unmount()
    assert (host.chunk(0, 0), host.chunk(1, 1), host.chunk(3, 3)) == (NEW, OTHER, None)
    assert host.bucket.get(f"{PREFIX}/notes.txt") == b"notes"
