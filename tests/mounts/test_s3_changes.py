"""Objects that are replaced and deleted behind a mount of their bucket: what is open, and what is opened then."""

import errno
import os
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import GZIP, array, extension, sharding
from tests.support.s3_faults import Before
from tests.support.s3_mounts import Remote

MIB = 2**20
LONG = {"metadata_ttl": 3600}
CHUNKS = {f"c/{number}" for number in range(4)}


def document(nbytes: int, *codecs: Any, count: int = 4) -> dict[str, Any]:
    """An array of a shard of *count* chunks of *nbytes* bytes."""
    codec = sharding((nbytes,), extension("bytes"), *codecs)
    return array((count * nbytes,), (count * nbytes,), codec, data_type="uint8")


def replace(remote: Remote, stored: dict[str, Any], seed: int = 1) -> dict[str, bytes]:
    """Store the array with other values; returns its chunks."""
    values = np.random.default_rng(seed).integers(0, 256, stored["shape"], np.uint8)
    return remote.store("", stored, values=values)


def error_of(descriptor: int, offset: int) -> int | None:
    """With which error a read fails; None if it does not."""
    try:
        os.pread(descriptor, 1, offset)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize(("ttl", "name"), [(0, "c/0"), (3600, "plain")])
def test_an_open_file_keeps_what_was_fetched_and_fails_behind_it(remote: Remote, ttl: int, name: str) -> None:
    stored = document(20 * MIB, count=1)

    def put(seed: int) -> bytes:
        chunk = replace(remote, stored, seed)["c/0"]
        remote.put("plain", chunk)
        return chunk

    old = put(1)
    root = remote.mount(metadata_ttl=ttl, expect=("read: ",))
    descriptor = os.open(root / name, os.O_RDONLY)
    try:
        assert os.pread(descriptor, MIB, 0) == old[:MIB]  # in order, so that more is fetched
        new = put(2)
        assert os.pread(descriptor, MIB, 4 * MIB) == old[4 * MIB : 5 * MIB]
        assert error_of(descriptor, 18 * MIB) == errno.ESTALE
        assert error_of(descriptor, 18 * MIB) == errno.ESTALE
        assert os.pread(descriptor, MIB, 2 * MIB) == old[2 * MIB : 3 * MIB]
        assert (root / name).read_bytes() == new
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("ttl", [0, 3600])
def test_a_chunk_that_is_opened_before_and_read_after_is_the_new_version(remote: Remote, ttl: int) -> None:
    stored = document(MIB)
    replace(remote, stored, 1)
    root = remote.mount(metadata_ttl=ttl)
    descriptors = {name: os.open(root / name, os.O_RDONLY) for name in sorted(CHUNKS)}
    try:
        new = replace(remote, stored, 2)
        for name in ("c/3", "c/1", "c/2", "c/0"):
            assert b"".join(os.pread(descriptors[name], MIB // 4, part * MIB // 4) for part in range(4)) == new[name]
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def test_a_chunk_that_has_another_size_now_fails_once_at_most(remote: Remote) -> None:
    stored = document(4096)
    replace(remote, stored, 1)
    root = remote.mount(**LONG, expect=("read: ",))
    assert len((root / "c/0").read_bytes()) == 4096
    remote.bucket.delete(*remote.bucket.keys())
    compressed = document(4096, GZIP)
    new = replace(remote, compressed, 2)
    descriptor = os.open(root / "c/3", os.O_RDONLY)
    try:
        assert error_of(descriptor, 0) == errno.ESTALE
    finally:
        os.close(descriptor)
    for name in ("c/3", "c/0", "c/1"):
        assert (root / name).read_bytes() == new[name]


def test_a_shard_that_is_replaced_while_it_is_opened_is_read_as_one_version(remote: Remote) -> None:
    stored = document(MIB)
    replace(remote, stored, 1)
    root = remote.mount(metadata_ttl=0)
    new: dict[str, bytes] = {}
    remote.proxy.fail("GetObject", Before(lambda: new.update(replace(remote, stored, 2))), key="c/0", after=1)
    assert (root / "c/2").read_bytes() == new["c/2"]  # between its index and its bytes


def test_a_deleted_shard_is_absent_and_what_was_fetched_of_it_can_be_read(remote: Remote) -> None:
    stored = document(20 * MIB, count=2)
    old = replace(remote, stored)
    root = remote.mount(metadata_ttl=0, expect=("read: ",))
    descriptor = os.open(root / "c/0", os.O_RDONLY)
    try:
        assert os.pread(descriptor, MIB, 0) == old["c/0"][:MIB]
        remote.bucket.delete(remote.key("c/0"))
        assert not (root / "c/0").exists()
        assert not (root / "c/1").exists()
        assert os.listdir(root) == ["zarr.json"]
        assert os.pread(descriptor, MIB, 4 * MIB) == old["c/0"][4 * MIB : 5 * MIB]
        assert error_of(descriptor, 18 * MIB) == errno.ESTALE
    finally:
        os.close(descriptor)


def test_who_has_a_version_open_never_reads_another_that_somebody_opens(remote: Remote) -> None:
    versions = [bytes([letter]) * nbytes for letter, nbytes in ((97, 100_000), (98, 100_000), (99, 300_000))]
    descriptors: list[int] = []
    remote.put("plain", versions[0])
    root = remote.mount(metadata_ttl=0)
    try:
        for version in versions:
            remote.put("plain", version)
            descriptors.append(os.open(root / "plain", os.O_RDONLY))
            assert os.pread(descriptors[-1], len(version) + 1, 0) == version
        for descriptor, version in zip(descriptors, versions, strict=True):
            assert os.fstat(descriptor).st_size == len(version)
            assert os.pread(descriptor, len(version) + 1, 0) == version
        assert len({os.fstat(descriptor).st_ino for descriptor in descriptors}) == len(versions)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
