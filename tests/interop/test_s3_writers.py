"""Zarr libraries and everyday tools write to a bucket through a mount; what is stored then is read natively."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.corpus import CASES, GZIP, LITTLE, array, ramp, sharding
from tests.support.datasets import files_below
from tests.support.mounting import Mount, Mounter
from tests.support.readers import READERS, assert_same
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket
from tests.support.writers import WRITERS, assert_sound, document_of, flush, tool, write_zarr

PREFIX = "some/data.zarr"
BY_NAME = {case.name: case for case in CASES}
SHAPE, CHUNKS = (16, 24), (2, 3)
VALUES = np.arange(1, 1 + 16 * 24, dtype="u2").reshape(SHAPE)


class Remote:
    """A mounted prefix of a bucket behind a proxy that logs, and its download."""

    def __init__(self, bucket: Bucket, proxy: S3Proxy, mounter: Mounter, directory: Path) -> None:
        self.bucket = bucket
        self.proxy = proxy
        self.directory = directory
        self._mounter = mounter
        self._nread = 0

    def put(self, name: str, document: dict[str, Any]) -> None:
        self.bucket.put("/".join(filter(None, (PREFIX, name, "zarr.json"))), json.dumps(document).encode())

    def mount(self, **options: Any) -> Mount:
        behind = self.bucket.through(self.proxy.url)
        return self._mounter(behind.url(PREFIX), write=True, env=behind.environment, **options)

    def native(self) -> Path:
        """What is in the bucket, as other programs see it."""
        self._nread += 1
        return self.bucket.download(self.directory / f"native-{self._nread}", PREFIX)

    def written(self) -> set[str]:
        """Names of all objects that were ever stored, without the prefix."""
        changes = ("PutObject", "CompleteMultipartUpload", "CopyObject")
        names = {key.removeprefix(f"{PREFIX}/") for key in self.proxy.log.keys(*changes)}
        return {name for name in names if not name.startswith(".shardfs-probe")}


@pytest.fixture
def remote(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, tmp_path: Path) -> Remote:
    (tmp_path / "native").mkdir()
    s3_bucket.put(f"{PREFIX}/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    return Remote(s3_bucket, s3_proxy, mount, tmp_path / "native")


WRITTEN = ["zarr-keys-v2-dot", "tensorstore-index-start-big-2-crc32c", "zarrs-nested-2"]


@pytest.mark.parametrize("library_name", WRITTEN)
def test_a_library_writes_an_array(remote: Remote, library_name: str) -> None:
    library, name = library_name.split("-", 1)
    case = BY_NAME[name]
    remote.put("a", case.document)
    mounted = remote.mount()
    WRITERS[library](mounted.path / "a", case.values)
    assert_same(READERS["zarr"](mounted.path / "a"), case.values)
    flush(mounted)
    assert_same(READERS["tensorstore"](mounted.path / "a"), case.values)
    mounted.unmount()
    native = remote.native()
    for read in READERS.values():
        assert_same(read(native / "a"), case.values)
    assert_sound(native)
    names = set(files_below(native))
    beside_chunks = {name for name in remote.written() if "/c/" in name}
    assert beside_chunks <= names, "temporary names among chunks stay on this machine"


def pack_with_zarr(plain: Path, target: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(str(target), mode="r+")
        group.create_array("image", data=VALUES, chunks=CHUNKS, attributes={"title": "old"})
    shutil.copyfile(plain / "image/notes.txt", target / "image/notes.txt")


PACKERS: dict[str, Callable[[Path, Path], object]] = {
    "rsync": lambda plain, target: tool("rsync", "-a", f"{plain}/image", f"{target}/"),
    "zarr": pack_with_zarr,
}


@pytest.mark.parametrize("way", PACKERS)
def test_an_unsharded_array_becomes_a_sharded_one(remote: Remote, tmp_path: Path, way: str) -> None:
    plain = tmp_path / "plain.zarr"
    zarr.create_array(str(plain), name="image", data=VALUES, chunks=CHUNKS, attributes={"title": "old"})
    (plain / "image/notes.txt").write_text("plain\n")
    mounted = remote.mount(shards="4,3")
    PACKERS[way](plain, mounted.path)
    assert files_below(mounted.path / "image").keys() == files_below(plain / "image").keys()
    assert_same(READERS["zarr"](mounted.path / "image"), VALUES)
    mounted.unmount()
    native = remote.native()
    assert_sound(native)
    assert document_of(native / "image")["codecs"][0]["name"] == "sharding_indexed"
    for read in READERS.values():
        assert_same(read(native / "image"), VALUES)
    shards = [f"image/c/{i}/{j}" for i in range(2) for j in range(3)]
    assert sorted(files_below(native)) == sorted([*shards, "image/notes.txt", "image/zarr.json", "zarr.json"])
    assert (native / "image/notes.txt").read_text() == "plain\n"


def test_zarr_edits_and_resizes_through_the_document(remote: Remote) -> None:
    document = array((16, 16), (8, 8), sharding((2, 2), LITTLE, GZIP), fill_value=9)
    values = ramp((16, 16), "int32")
    remote.put("a", document)
    mounted = remote.mount()
    write_zarr(mounted.path / "a", values)
    opened = zarr.open_array(str(mounted.path / "a"), mode="r+")
    opened.attrs["title"] = "new"
    opened.resize((6, 16))
    flush(mounted)
    native = remote.native()
    assert [key for key in files_below(native) if "/c/" in key] == ["a/c/0/0", "a/c/0/1"]
    opened.resize((20, 16))
    expected = np.full((20, 16), 9, "i4")
    expected[:6] = values[:6]
    assert_same(READERS["zarr"](mounted.path / "a"), expected)
    mounted.unmount()
    native = remote.native()
    stored = document_of(native / "a")
    assert stored.pop("storage_transformers", []) == []  # of zarr-python's own
    assert stored == document | {"shape": [20, 16], "attributes": {"title": "new"}}
    for read in READERS.values():
        assert_same(read(native / "a"), expected)
    assert_sound(native)


def test_arrays_and_a_group_are_removed_with_all_their_objects(remote: Remote) -> None:
    arrays = ("committed", "pending", "deep/b", "kept")
    for name in arrays:
        remote.put(name, BY_NAME["3d-ragged"].document)
    mounted = remote.mount()
    for name in arrays:
        write_zarr(mounted.path / name, BY_NAME["3d-ragged"].values)
        if name == "committed":
            flush(mounted)
    (mounted.path / "deep/notes.txt").write_text("notes")
    for name in ("committed", "pending", "deep"):
        tool("rm", "-r", mounted.path / name)
    assert sorted(os.listdir(mounted.path)) == ["kept", "zarr.json"]
    mounted.unmount()
    assert not [key for key in remote.bucket.keys(PREFIX) if not key.startswith((f"{PREFIX}/kept/", f"{PREFIX}/zarr"))]
    assert_same(READERS["zarr"](remote.native() / "kept"), BY_NAME["3d-ragged"].values)
