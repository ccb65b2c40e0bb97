"""Arrays with damaged shards are removed as a whole, through a mount or a Store, and no damaged shard by less."""

import errno
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import zarr

import shardfs
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, Change, document, edit, flip, payload
from tests.support.datasets import files_below, store
from tests.support.hosts import PREFIX, Host, make_host
from tests.support.mounting import Mount, Mounter, flush, refuses
from tests.support.s3_faults import Ignore
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

EXPECTED = ("unreadable shard: ", r"\b(lookup|getattr|open|readdir|read|unlink|rmdir|create|flush|release): ")
PLAIN = document(LITTLE, GZIP)
START = document(LITTLE, GZIP, index_location="start")
NESTED = array((8, 12), (8, 6), sharding((4, 6), sharding((4, 3), LITTLE, GZIP)))
FLAT = PLAIN | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
EDGE = array((6, 9), (4, 6), sharding((2, 3), LITTLE))
INSIDE = ("c/0/0", "c/0/1", "c/1/0", "c/1/1")
"""The chunks of the damaged shard."""


@dataclass(frozen=True)
class Fault:
    change: Change
    document: dict[str, object]
    shard: str = SHARD


FAULTS = {
    **{name: Fault(change, PLAIN) for name, change in (SHARD_FAULTS | ENTRY_FAULTS).items()},
    "index-at-the-start": Fault(flip(5), START),
    "outer-index": Fault(flip(-20), NESTED),
    "enclosed-index": Fault(lambda data: flip(int.from_bytes(data[-20:-12], "little") - 7)(data), NESTED),
    "under-a-codec": Fault(lambda data: data[:-1], document(LITTLE, after=(GZIP,))),
    "keys-without-directories": Fault(flip(-20), FLAT, "0.0"),
    "shard-at-the-edge": Fault(lambda data: data[:-1], EDGE, "c/1/1"),
}


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    source = tmp_path_factory.mktemp("source")
    for name, fault in FAULTS.items():
        store(source / name, fault.document)
        edit(source / name / fault.shard, fault.change)
    return module_mount(source, write=True, metadata_ttl=0, expect=EXPECTED)


def remove(directory: Path) -> str:
    """Remove it as a user does; what `rm` says."""
    done = subprocess.run(["rm", "-r", directory], capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_rm_r_removes_an_array_with_a_damaged_shard(mounted: Mount, name: str) -> None:
    assert remove(mounted.path / name) == ""
    assert not (mounted.path / name).exists()
    assert not (Path(mounted.source) / name).exists()


def torn(source: Path) -> bytes:
    """Store an array beside a sound one, and tear a shard of it."""
    store(source / "sound", PLAIN)
    store(source / "image", PLAIN)
    edit(source / "image" / SHARD, SHARD_FAULTS["one-byte-more"])
    return (source / "image" / SHARD).read_bytes()


def test_while_its_document_is_there_nothing_of_a_damaged_shard_is_removed(mount: Mounter, tmp_path: Path) -> None:
    before = torn(tmp_path / "source")
    root = mount(tmp_path / "source", write=True, expect=EXPECTED).path / "image"
    for key in INSIDE:
        with refuses(errno.EIO):
            (root / key).unlink()
        with refuses(errno.EIO):
            (root / key).write_bytes(b"new")
    assert "Input/output error" in remove(root / "c")
    flush(root.parent)
    assert (tmp_path / "source/image" / SHARD).read_bytes() == before
    assert not (tmp_path / "source/image/c/0/1").exists()  # of the sound one beside it, all was removed


def test_a_damaged_shard_is_as_before_if_its_array_stays(mount: Mounter, tmp_path: Path) -> None:
    before = torn(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=0, expect=EXPECTED)
    root = mounted.path / "image"
    document = (root / "zarr.json").read_bytes()
    (root / "zarr.json").unlink()
    for key in INSIDE[:3]:
        (root / key).unlink()
        assert not (root / key).exists()
    with refuses(errno.EIO):
        (root / INSIDE[3]).read_bytes()
    with refuses(errno.ENOTEMPTY):
        (root / "c").rmdir()
    flush(mounted.path)
    assert (tmp_path / "source/image" / SHARD).read_bytes() == before
    (root / "zarr.json").write_bytes(document)
    for key in INSIDE:
        with refuses(errno.EIO):
            (root / key).read_bytes()
    mounted.unmount()
    assert (tmp_path / "source/image" / SHARD).read_bytes() == before


def test_a_kill_while_an_array_is_removed_leaves_its_damaged_shard(mount: Mounter, tmp_path: Path) -> None:
    before = torn(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True, expect=EXPECTED)
    for key in ("zarr.json", *INSIDE):
        (mounted.path / "image" / key).unlink()
    mounted.process.kill()
    mounted.process.wait()
    assert (tmp_path / "source/image" / SHARD).read_bytes() == before
    again = mount(tmp_path / "source", write=True, expect=EXPECTED)
    with refuses(errno.EIO):
        (again.path / "image" / INSIDE[0]).read_bytes()
    assert remove(again.path / "image") == ""


def test_a_shard_that_was_repaired_meanwhile_is_not_removed(mount: Mounter, tmp_path: Path) -> None:
    before = torn(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=3600, expect=EXPECTED)
    for key in ("zarr.json", *INSIDE):
        (mounted.path / "image" / key).unlink()
    (tmp_path / "source/image" / SHARD).write_bytes(before[:-1])
    with refuses(errno.ENOTEMPTY):
        (mounted.path / "image").rmdir()
    assert (tmp_path / "source/image" / SHARD).read_bytes() == before[:-1]
    assert remove(mounted.path / "image") == ""


@pytest.mark.parametrize("where", ["in-a-shard", "in-a-shard-of-their-own"])
def test_chunks_beyond_the_shape_do_not_keep_an_array_from_being_removed(
    mount: Mounter, tmp_path: Path, where: str
) -> None:
    image = tmp_path / "source/image"
    store(image, EDGE)
    if where == "in-a-shard":  # a native writer stored it there
        edit(image / "c/1/1", payload(3, bytes(24)))
    else:  # another one has made the array smaller
        shutil.copytree(image / "c/1", image / "c/7")
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=0)
    assert remove(mounted.path / "image") == ""
    assert not image.exists()


def test_a_document_that_is_written_again_begins_without_what_was_removed(mount: Mounter, tmp_path: Path) -> None:
    torn(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True, metadata_ttl=0, expect=EXPECTED)
    document = (mounted.path / "image/zarr.json").read_bytes()
    for path in [mounted.path / "image/zarr.json", *sorted((mounted.path / "image/c").rglob("*"))]:
        if not path.is_dir():
            path.unlink()
    (mounted.path / "image/zarr.json").write_bytes(document)
    assert not (mounted.path / "image" / INSIDE[0]).exists()
    (mounted.path / "image" / INSIDE[0]).write_bytes(b"new")
    mounted.unmount()
    assert b"new" in (tmp_path / "source/image" / SHARD).read_bytes()


def overwrite(where: object) -> None:
    """Make another array in place of one with a damaged shard."""
    made = zarr.create_array(where, name="image", shape=(8, 8), chunks=(4, 4), dtype="u1", overwrite=True)  # type: ignore[arg-type]
    made[...] = 7


@pytest.mark.parametrize("door", ["mount", "store"])
def test_zarr_python_overwrites_an_array_with_a_damaged_shard(mount: Mounter, tmp_path: Path, door: str) -> None:
    torn(tmp_path / "source")
    sound = files_below(tmp_path / "source/sound")
    if door == "mount":
        mounted = mount(tmp_path / "source", write=True, expect=EXPECTED)
        overwrite(str(mounted.path))
        mounted.unmount()
    else:
        with shardfs.open(tmp_path / "source", write=True) as dataset:
            overwrite(dataset.store())
    assert (zarr.open_array(tmp_path / "source/image")[...] == 7).all()
    assert files_below(tmp_path / "source/sound") == sound


@pytest.fixture
def host(s3_bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, mount: Mounter) -> Host:
    return make_host(s3_bucket.through(s3_proxy.url), tmp_path, mount)


@pytest.mark.parametrize("conditions", ["honoured", "ignored"])
def test_in_a_bucket_an_array_with_a_damaged_shard_is_removed(host: Host, s3_proxy: S3Proxy, conditions: str) -> None:
    for key in host.bucket.keys(PREFIX):
        host.bucket.put(key.replace(PREFIX, f"{PREFIX}/image"), host.bucket.get(key))
        host.bucket.delete(key)
    shard = f"{PREFIX}/image/c/0/0"
    host.bucket.put(shard, host.bucket.get(shard) + b"\0")
    if conditions == "ignored":
        s3_proxy.fail("DeleteObject", Ignore("if-match"), times=None)
    mounted = host.mount(expect=EXPECTED)
    with refuses(errno.EIO):
        (mounted.path / "image/c/0/0").unlink()
    shutil.rmtree(mounted.path / "image")
    mounted.unmount()
    assert not host.bucket.keys(PREFIX)
