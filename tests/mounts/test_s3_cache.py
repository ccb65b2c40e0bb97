"""`--cache`: what was fetched is on the local disk, for other mounts and later ones, and is never believed blindly."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import array, extension, sharding
from tests.support.datasets import files_below
from tests.support.mounting import metrics
from tests.support.s3_mounts import Remote

KIB, MIB = 2**10, 2**20
CHUNK = 64 * KIB
NCHUNKS = 16
DOCUMENT = array((NCHUNKS * CHUNK,), (4 * CHUNK,), sharding((CHUNK,), extension("bytes")), data_type="uint8")
"""An array in `NSHARDS` shards of 256 KiB."""
NSHARDS = NCHUNKS // 4


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def store(remote: Remote, seed: int = 0) -> dict[str, bytes]:
    """Store the array and a plain file with other values; returns all of its files but the document."""
    values = np.random.default_rng(seed).integers(0, 256, DOCUMENT["shape"], np.uint8)
    files = remote.store("", DOCUMENT, values=values)
    remote.put("plain", np.random.default_rng(seed + 100).bytes(300 * KIB))
    return {**files, "plain": (remote.local / "plain").read_bytes()}


def mounted(remote: Remote, cache: Path, *arguments: str, **options: Any) -> Path:
    return remote.mount(arguments=[f"--cache={cache}", *arguments], **options)


def read(root: Path) -> dict[str, bytes]:
    files = files_below(root)
    files.pop("zarr.json")
    return files


def fetched(remote: Remote) -> int:
    """Bytes that came of anything but documents, since this was asked last."""
    return sum(request.bytes_out for request in remote.taken() if "zarr.json" not in request.key and request.key)


def entries(cache: Path) -> list[Path]:
    """The files of the cache that are large enough to be more than indexes."""
    return [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 32 * KIB]


def test_a_second_mount_fetches_no_payload(remote: Remote, cache: Path) -> None:
    files = store(remote)
    assert read(mounted(remote, cache)) == files
    remote.mounts[0].unmount()
    second = mounted(remote, cache)
    assert read(second) == files
    assert not [request for request in remote.proxy.log.of("GetObject") if "zarr.json" not in request.key]
    found = metrics(second)["store"]
    assert found["cache_hits"] >= 5
    assert found["cache_bytes"] >= sum(map(len, files.values()))
    assert found["cache_damaged"] == 0
    assert fetched(remote) == 0


def test_two_mounts_share_what_the_other_fetched(remote: Remote, cache: Path) -> None:
    files = store(remote)
    first, second = mounted(remote, cache), mounted(remote, cache)
    assert read(first) == files
    remote.taken()
    assert read(second) == files
    assert metrics(second)["store"]["cache_hits"] >= 5
    assert fetched(remote) < CHUNK  # indexes, if at all: an open says which version there is


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        for position in range(path.stat().st_size // 2, path.stat().st_size, 16 * KIB):
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 0xFF]))


def exchange(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(("damage", "is_mounted"), [(flip, True), (exchange, True), (truncate, False)])
def test_a_damaged_cache_is_noticed_and_fetched_again(
    remote: Remote, cache: Path, damage: Callable[[Path], None], is_mounted: bool
) -> None:
    files = store(remote)
    assert read(mounted(remote, cache)) == files
    remote.mounts[0].unmount()
    root = mounted(remote, cache) if is_mounted else None
    damaged = entries(cache)
    for path in damaged:
        damage(path)
    root = root or mounted(remote, cache)
    assert read(root) == files
    # Requests of the first mount that overlapped may have left entries that nobody needs: others have their bytes.
    noticed = metrics(root)["store"]["cache_damaged"]
    assert NSHARDS + 1 <= noticed <= len(damaged)
    # Of a file that has only some damaged blocks, what comes before them is used.
    assert fetched(remote) >= sum(map(len, files.values())) // 2
    assert remote.mounts[1].log.count("is damaged and dropped") == noticed
    third = mounted(remote, cache)
    assert read(third) == files
    assert metrics(third)["store"]["cache_damaged"] == 0


def test_an_object_that_was_replaced_does_not_come_from_the_cache(remote: Remote, cache: Path) -> None:
    old = store(remote, 1)
    assert read(mounted(remote, cache, metadata_ttl=0)) == old
    new = store(remote, 2)
    assert read(remote.mounts[0].path) == new
    remote.mounts[0].unmount()
    assert read(mounted(remote, cache)) == new


def test_a_cache_that_vanishes_under_a_mount_costs_only_time(remote: Remote, cache: Path) -> None:
    files = store(remote)
    root = mounted(remote, cache)
    assert (root / "c/1").read_bytes() == files["c/1"]
    cache.rename(cache.with_name("elsewhere"))
    assert read(root) == files
