"""Shards that other programs change behind the mount: an open file keeps its version or fails, a new open sees the new.

With a TTL of an hour nothing is seen because it was forgotten, only because it was looked at.
"""

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.changing import ChangingArray, document, replace
from tests.support.corpus import GZIP
from tests.support.datasets import LONG_AGO, files_below
from tests.support.mounting import PATIENCE, Mount, Mounter, refuses

KEY, OTHER_SHARD = "c/0/0", "c/2/0"
SHARD = "c/0/0"


@dataclass
class Dataset:
    """An array that changes, and the mount that shows it."""

    array: ChangingArray
    mount: Mount

    @property
    def root(self) -> Path:
        return self.mount.path / self.array.directory.name


@pytest.fixture(scope="module", params=[0, 3600], ids=["no-ttl", "long-ttl"])
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mount:
    return module_mount(tmp_path_factory.mktemp("source"), metadata_ttl=request.param)


def new_array(mounted: Mount, *around: Any) -> Dataset:
    directory = mounted.source / f"array-{len(os.listdir(mounted.source))}"
    return Dataset(ChangingArray(directory, document(*around)), mounted)


@pytest.fixture
def dataset(mounted: Mount) -> Dataset:
    return new_array(mounted)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def assert_stale(fd: int, size: int = 10**6) -> None:
    with refuses(errno.ESTALE):
        os.pread(fd, size, 0)


def test_a_replaced_shard_keeps_serving_open_files_and_new_opens_see_the_new_one(dataset: Dataset) -> None:
    old, new = dataset.array.chunks(1), dataset.array.chunks(2)
    with opened(dataset.root / KEY) as fd:
        assert os.pread(fd, 100, 0) == old[KEY][:100]
        dataset.array.replace(SHARD, 2)
        assert (dataset.root / KEY).read_bytes() == new[KEY]
        assert os.pread(fd, 10**6, 100) == old[KEY][100:]
        assert os.fstat(fd).st_size == len(old[KEY]) != len(new[KEY])
        with opened(dataset.root / KEY) as second:
            dataset.array.replace(SHARD, 3)
            assert os.read(second, 10**6) == new[KEY]
            assert os.read(fd, 10**6) == old[KEY]
    assert (dataset.root / KEY).read_bytes() == dataset.array.chunks(3)[KEY]
    assert (dataset.root / OTHER_SHARD).read_bytes() == old[OTHER_SHARD]


def test_every_chunk_of_a_replaced_shard_is_the_new_one(dataset: Dataset) -> None:
    old, new = dataset.array.chunks(1), dataset.array.chunks(2)
    assert {name: data for name, data in files_below(dataset.root).items() if name in old} == old
    dataset.array.replace(SHARD, 2)
    for key, data in new.items():
        expected = data if key.startswith(("c/0/", "c/1/")) else old[key]
        assert (dataset.root / key).read_bytes() == expected


def test_a_shard_that_is_rewritten_in_place_fails_open_files_with_estale(dataset: Dataset) -> None:
    old = dataset.array.chunks(1)
    with opened(dataset.root / KEY) as fd:
        assert os.pread(fd, 100, 0) == old[KEY][:100]
        dataset.array.overwrite(SHARD, 2)
        assert_stale(fd)
        assert_stale(fd, 1)
        assert (dataset.root / KEY).read_bytes() == dataset.array.chunks(2)[KEY]
        assert_stale(fd)
    with opened(dataset.root / KEY) as fd:
        dataset.array.overwrite(SHARD, 2)  # even the same bytes
        assert_stale(fd)
    assert (dataset.root / KEY).read_bytes() == dataset.array.chunks(2)[KEY]


def test_a_shard_that_was_appended_to_keeps_serving_open_files(dataset: Dataset) -> None:
    old = dataset.array.chunks(1)
    payload = dataset.array.chunks(2)[KEY]
    with opened(dataset.root / KEY) as fd, opened(dataset.root / "c/1/1") as neighbour:
        dataset.array.append(SHARD, 0, payload)
        assert os.read(fd, 10**6) == old[KEY]
        assert (dataset.root / KEY).read_bytes() == payload
        dataset.array.append(SHARD, 0, b"again")
        assert os.pread(fd, 10**6, 7) == old[KEY][7:]
        assert os.pread(neighbour, 10**6, 0) == old["c/1/1"]
        assert (dataset.root / KEY).read_bytes() == b"again"
        assert (dataset.root / "c/1/1").read_bytes() == old["c/1/1"]


def test_a_deleted_shard_keeps_serving_open_files_and_is_enoent_to_new_opens(dataset: Dataset) -> None:
    old = dataset.array.chunks(1)
    with opened(dataset.root / KEY) as fd:
        os.unlink(dataset.array.directory / SHARD)
        with pytest.raises(FileNotFoundError):
            os.open(dataset.root / KEY, os.O_RDONLY)
        assert os.read(fd, 10**6) == old[KEY]
    assert (dataset.root / OTHER_SHARD).read_bytes() == old[OTHER_SHARD]


def test_a_shard_that_is_decoded_whole_keeps_its_version_too(mounted: Mount) -> None:
    dataset = new_array(mounted, GZIP)
    wrapped = dataset.array
    first, second, third = (wrapped.chunks(number)[KEY] for number in (1, 2, 3))
    with opened(dataset.root / KEY) as fd:
        wrapped.replace(SHARD, 2)
        assert (dataset.root / KEY).read_bytes() == second
        assert os.pread(fd, 10**6, 0) == first
        wrapped.overwrite(SHARD, 3)
        assert (dataset.root / KEY).read_bytes() == third
        assert os.pread(fd, 10**6, 0) == first
    assert (dataset.root / OTHER_SHARD).read_bytes() == wrapped.chunks(1)[OTHER_SHARD]


def test_the_inode_number_names_a_version(dataset: Dataset) -> None:
    before = os.stat(dataset.root / KEY)
    other = os.stat(dataset.root / OTHER_SHARD).st_ino
    with opened(dataset.root / KEY) as fd:
        assert os.fstat(fd).st_ino == before.st_ino
        assert os.stat(dataset.root / KEY).st_ino == before.st_ino
        with os.scandir((dataset.root / KEY).parent) as entries:
            assert {entry.name: entry.inode() for entry in entries}["0"] == before.st_ino
        dataset.array.replace(SHARD, 2)
        with opened(dataset.root / KEY) as second:
            after = os.fstat(second)
        assert os.fstat(fd).st_ino == before.st_ino
    assert after.st_ino not in (before.st_ino, other)
    with opened(dataset.root / OTHER_SHARD) as fd:
        assert os.fstat(fd).st_ino == other


def test_modification_time_and_mode_are_the_shards(dataset: Dataset) -> None:
    assert os.stat(dataset.root / KEY).st_mtime_ns == LONG_AGO
    dataset.array.replace(SHARD, 2)
    os.chmod(dataset.array.directory / SHARD, 0o640)
    with opened(dataset.root / KEY) as fd:
        shown, stored = os.fstat(fd), os.stat(dataset.array.directory / SHARD)
    assert (shown.st_mtime_ns, shown.st_ctime_ns) == (stored.st_mtime_ns, stored.st_ctime_ns)
    assert shown.st_mode == stored.st_mode
    with opened(dataset.root / OTHER_SHARD) as fd:
        assert os.fstat(fd).st_mtime_ns == LONG_AGO


def test_an_open_never_mixes_versions_while_shards_are_replaced(dataset: Dataset) -> None:
    versions = [dataset.array.chunks(number)[KEY] for number in (1, 2)]
    shards = [dataset.array.shard(SHARD, number) for number in (1, 2)]
    done = threading.Event()

    def replace_on_and_on() -> None:
        path = dataset.array.directory / SHARD
        turn = 0
        while not done.wait(0.001):
            replace(path, shards[turn % 2])
            turn += 1

    writer = threading.Thread(target=replace_on_and_on)
    writer.start()
    seen = [0, 0]
    try:
        end = time.monotonic() + PATIENCE
        while min(seen) < 50 and time.monotonic() < end:
            try:
                with opened(dataset.root / KEY) as fd:
                    size = os.fstat(fd).st_size
                    read = os.pread(fd, 700, 0) + os.pread(fd, 10**6, 700)
            except OSError as error:
                assert error.errno == errno.ESTALE  # noqa: PT017 - replaced again between lookup and open
                continue
            assert read in versions
            assert size == len(read)
            seen[versions.index(read)] += 1
    finally:
        done.set()
        writer.join()
    assert min(seen) >= 50
