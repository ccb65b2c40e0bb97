"""Shards, documents and other files that programs change behind the mount.

An open file keeps its version or fails, and a new open sees the new version. With a TTL of an hour nothing is seen
because it was forgotten, only because it was looked at.
"""

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.changing import ChangingArray, document, replace, version
from tests.support.corpus import GZIP, LITTLE, array
from tests.support.datasets import LONG_AGO, files_below
from tests.support.mounting import PATIENCE, Mount, Mounter, flush, refuses
from tests.support.readers import read_zarr

KEY, OTHER_SHARD = "c/0/0", "c/2/0"
SHARD = "c/0/0"
no_ttl = pytest.mark.parametrize("mounted", [0], ids=["no-ttl"], indirect=True)


@pytest.fixture(scope="module", params=[0, 3600], ids=["no-ttl", "long-ttl"])
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Mount:
    return module_mount(tmp_path_factory.mktemp("source"), metadata_ttl=request.param)


@pytest.fixture
def stored(mounted: Mount) -> ChangingArray:
    return ChangingArray(Path(mounted.source) / f"array-{len(os.listdir(mounted.source))}")


@pytest.fixture
def root(mounted: Mount, stored: ChangingArray) -> Path:
    """Where the array is shown."""
    return mounted.path / stored.directory.name


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def chunks_below(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_below(directory).items() if name.startswith("c/")}


# Shards


def test_a_replaced_shard_keeps_serving_open_files_and_new_opens_see_the_new_one(
    stored: ChangingArray, root: Path
) -> None:
    old, new, third = (stored.chunks(number) for number in (1, 2, 3))
    assert chunks_below(root) == old
    with opened(root / KEY) as fd:
        assert os.pread(fd, 100, 0) == old[KEY][:100]
        stored.replace(SHARD, 2)
        for key, data in new.items():
            assert (root / key).read_bytes() == (data if key.startswith(("c/0/", "c/1/")) else old[key])
        assert os.pread(fd, 10**6, 100) == old[KEY][100:]
        assert os.fstat(fd).st_size == len(old[KEY]) != len(new[KEY])
        with opened(root / KEY) as second:
            stored.replace(SHARD, 3)
            assert (os.read(second, 10**6), os.read(fd, 10**6)) == (new[KEY], old[KEY])
    assert (root / KEY).read_bytes() == third[KEY]


def test_a_shard_that_is_rewritten_in_place_fails_open_files_with_estale(stored: ChangingArray, root: Path) -> None:
    for number in (2, 2):  # even the same bytes
        with opened(root / KEY) as fd:
            assert os.pread(fd, 100, 0) == (root / KEY).read_bytes()[:100]
            stored.overwrite(SHARD, number)
            for nbytes in (10**6, 1):
                with refuses(errno.ESTALE):
                    os.pread(fd, nbytes, 0)
            assert (root / KEY).read_bytes() == stored.chunks(number)[KEY]
            with refuses(errno.ESTALE):
                os.pread(fd, 10**6, 0)


def test_a_shard_that_was_appended_to_keeps_serving_open_files(stored: ChangingArray, root: Path) -> None:
    old, payload = stored.chunks(1), stored.chunks(2)[KEY]
    with opened(root / KEY) as fd, opened(root / "c/1/1") as neighbour:
        for new in (payload, b"again"):
            stored.append(SHARD, 0, new)
            assert os.pread(fd, 10**6, 7) == old[KEY][7:]
            assert (root / KEY).read_bytes() == new
        assert os.pread(neighbour, 10**6, 0) == (root / "c/1/1").read_bytes() == old["c/1/1"]


def test_a_deleted_shard_keeps_serving_open_files_and_is_enoent_to_new_opens(stored: ChangingArray, root: Path) -> None:
    old = stored.chunks(1)
    with opened(root / KEY) as fd:
        os.unlink(stored.directory / SHARD)
        with pytest.raises(FileNotFoundError):
            os.open(root / KEY, os.O_RDONLY)
        assert os.read(fd, 10**6) == old[KEY]
    assert (root / OTHER_SHARD).read_bytes() == old[OTHER_SHARD]


def test_a_shard_that_is_decoded_whole_keeps_its_version_too(stored: ChangingArray, mounted: Mount) -> None:
    wrapped = ChangingArray(stored.directory.with_name(f"{stored.directory.name}-wrapped"), document(GZIP))
    root = mounted.path / wrapped.directory.name
    first, second, third = (wrapped.chunks(number)[KEY] for number in (1, 2, 3))
    with opened(root / KEY) as fd:
        for change, number, new in ((wrapped.replace, 2, second), (wrapped.overwrite, 3, third)):
            change(SHARD, number)
            assert (root / KEY).read_bytes() == new
            assert os.pread(fd, 10**6, 0) == first
    assert (root / OTHER_SHARD).read_bytes() == wrapped.chunks(1)[OTHER_SHARD]


def test_inode_number_time_and_mode_are_those_of_the_version_of_the_shard(stored: ChangingArray, root: Path) -> None:
    before, other = os.stat(root / KEY), os.stat(root / OTHER_SHARD)
    assert before.st_mtime_ns == LONG_AGO
    with opened(root / KEY) as fd:
        assert os.fstat(fd).st_ino == os.stat(root / KEY).st_ino == before.st_ino
        assert {entry.name: entry.inode() for entry in os.scandir((root / KEY).parent)}["0"] == before.st_ino
        stored.replace(SHARD, 2)
        os.chmod(stored.directory / SHARD, 0o640)
        with opened(root / KEY) as second:
            after, of_shard = os.fstat(second), os.stat(stored.directory / SHARD)
        assert os.fstat(fd).st_ino == before.st_ino
    assert after.st_ino not in (before.st_ino, other.st_ino)
    for name in ("st_mtime_ns", "st_ctime_ns", "st_mode"):
        assert getattr(after, name) == getattr(of_shard, name)
    with opened(root / OTHER_SHARD) as fd:
        assert (os.fstat(fd).st_ino, os.fstat(fd).st_mtime_ns) == (other.st_ino, LONG_AGO)


def test_an_open_file_never_mixes_versions_while_shards_are_replaced(stored: ChangingArray, root: Path) -> None:
    versions = [stored.chunks(number)[KEY] for number in (1, 2)]
    shards = [stored.shard(SHARD, number) for number in (1, 2)]
    done, seen = threading.Event(), [0, 0]

    def replace_on_and_on() -> None:
        turn = 0
        while not done.wait(0.001):
            replace(stored.directory / SHARD, shards[turn % 2])
            turn += 1

    writer = threading.Thread(target=replace_on_and_on)
    writer.start()
    try:
        end = time.monotonic() + PATIENCE
        while min(seen) < 30 and time.monotonic() < end:
            try:
                with opened(root / KEY) as fd:
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
    assert min(seen) >= 30


# Documents and other files


def test_a_replaced_document_is_seen_at_the_next_open_and_an_open_one_is_kept(
    stored: ChangingArray, root: Path
) -> None:
    with (root / "zarr.json").open("rb", buffering=0) as file:
        before = file.read()
        stored.document = document(attributes={"title": "a new title" * 1000})
        stored.replace_document()
        assert json.loads((root / "zarr.json").read_text())["attributes"] == stored.document["attributes"]
        assert os.pread(file.fileno(), 10**6, 0) == before
        assert os.fstat(file.fileno()).st_size == len(before)


@no_ttl
def test_a_change_of_attributes_leaves_chunks_and_their_inode_numbers(stored: ChangingArray, root: Path) -> None:
    with (root / KEY).open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        stored.document = document(attributes={"title": "new"})
        stored.replace_document()
        assert os.stat(root / KEY).st_ino == before.st_ino
        assert file.read() == stored.chunks(1)[KEY]
    assert chunks_below(root) == stored.chunks(1)


@no_ttl
def test_another_inner_chunk_shape_is_another_tree(stored: ChangingArray, root: Path) -> None:
    old = stored.chunks(1)
    with opened(root / "c/0", os.O_RDONLY | os.O_DIRECTORY) as directory, (root / KEY).open("rb", buffering=0) as file:
        number = os.fstat(file.fileno()).st_ino
        stored.document = document(inner=(32, 128))
        stored.replace_document()
        for key in ("c/0/0", "c/1/0"):
            stored.replace(key, 2)
        assert chunks_below(root) == stored.chunks(2)
        assert np.array_equal(read_zarr(root), version(2))
        assert os.stat(root / KEY).st_ino != number
        assert file.read() == old[KEY]
        with pytest.raises(FileNotFoundError):
            os.stat(root / "c/3/1")
        with refuses(errno.ESTALE):
            os.stat("0", dir_fd=directory)


@no_ttl
@pytest.mark.parametrize(
    "change",
    [
        os.unlink,
        lambda path: replace(path, b"{"),
        lambda path: replace(path, json.dumps(array((64, 512), (32, 512), LITTLE, data_type="uint8")).encode()),
    ],
    ids=["removed", "broken", "not-sharded"],
)
def test_without_its_document_an_array_is_shown_as_stored(
    stored: ChangingArray, root: Path, change: Callable[[Path], None]
) -> None:
    assert chunks_below(root) == stored.chunks(1)
    change(stored.directory / "zarr.json")
    assert files_below(root) == files_below(stored.directory)
    stored.replace_document()
    assert chunks_below(root) == stored.chunks(1)
    assert os.listxattr(root) == []


def test_what_others_store_in_place_of_a_removed_shard_has_another_number_and_its_own_time(
    mount: Mounter, tmp_path: Path
) -> None:
    stored = ChangingArray(tmp_path / "source")
    chunk = mount(tmp_path / "source", write=True, metadata_ttl=0).path / KEY
    numbers = {chunk.stat().st_ino}
    chunk.write_bytes(b"ours")
    numbers.add(chunk.stat().st_ino)
    root = chunk.parents[2]
    flush(root)
    for path in [path for path in (root / "c").rglob("*") if path.is_file()]:
        path.unlink()
    flush(root)
    assert not (stored.directory / SHARD).exists()
    (stored.directory / SHARD).parent.mkdir(exist_ok=True)
    stored.replace(SHARD, 2)
    assert chunk.read_bytes() == stored.chunks(2)[KEY]
    assert chunk.stat().st_ino not in numbers
    assert chunk.stat().st_mtime_ns == (stored.directory / SHARD).stat().st_mtime_ns


def test_directories_below_a_hundred_others_are_an_error_and_the_rest_is_shown(mount: Mounter, tmp_path: Path) -> None:
    deep = tmp_path.joinpath("source", *["d"] * 101)
    deep.mkdir(parents=True)
    for directory in (deep.parent, deep):
        (directory / "file").write_bytes(b"some")
    root = mount(tmp_path / "source", expect=("more than 100 directories are above",)).path
    shown = root / deep.relative_to(tmp_path / "source")
    assert (shown.parent / "file").read_bytes() == b"some"
    with refuses(errno.ENAMETOOLONG):
        (shown / "file").read_bytes()
    with refuses(errno.ENAMETOOLONG):
        os.listdir(shown)


@no_ttl
def test_passed_through_files_follow_every_change(stored: ChangingArray, root: Path) -> None:
    plain, shown = stored.directory / "plain", root / "plain"
    plain.write_bytes(b"one")
    assert shown.read_bytes() == b"one"
    number = os.stat(shown).st_ino
    with shown.open("rb", buffering=0) as file:
        plain.write_bytes(b"number two")
        assert (file.read(), os.fstat(file.fileno()).st_size) == (b"number two", 10)
        assert (shown.read_bytes(), os.stat(shown).st_ino) == (b"number two", number)
        replace(plain, b"three")
        assert (shown.read_bytes(), os.stat(shown).st_ino != number) == (b"three", True)
        assert os.pread(file.fileno(), 100, 0) == b"number two"
    os.unlink(plain)
    assert not shown.exists()
    os.mkdir(plain)
    assert shown.is_dir()
