"""Disks that are really full, under a dataset or under the journal of a remote one: ENOSPC, and nothing is lost."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import shardfs
from tests.support.commands import FAILED, run
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.disks import fill, loop_disk
from tests.support.hosts import NEW, OTHER, kill, make_host
from tests.support.mounting import Mount, Mounter, flush, refuses
from tests.support.s3_server import Bucket

MIB = 2**20
NBYTES = {"ext4": 32 * MIB, "btrfs": 128 * MIB}
LARGE = 20_000
EXPECTED = ("No space left", "no room", "could not be .*document", "stays in the journal", "is refused")


@pytest.fixture(params=NBYTES)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with loop_disk(request.param, tmp_path, NBYTES[request.param]) as disk:
        yield disk


@pytest.fixture
def source(disk: Path) -> Path:
    store(disk / "data/image", document())
    return disk / "data"


def stored(source: Path) -> dict[str, bytes | None]:
    """The inner chunks as they are in the shards."""
    array = shardfs.open(source)["image"]
    return {f"{i}/{j}": array.read_chunk((i, j)) for i in range(2) for j in range(4)}


def seen(mounted: Mount) -> dict[str, bytes | None]:
    files = {f"{i}/{j}": mounted.path / f"image/c/{i}/{j}" for i in range(2) for j in range(4)}
    return {name: file.read_bytes() if file.exists() else None for name, file in files.items()}


def full(disk: Path) -> Callable[[], None]:
    """Fill a disk; returns what makes room again."""
    filler = disk / "filler"
    fill(filler)

    def make_room() -> None:
        filler.unlink()
        os.sync()  # some file systems free blocks with their next transaction

    return make_room


def write(path: Path, data: bytes) -> None:
    """Write a file as careful programs do; raises the error of the first call that fails."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_over(path: Path, data: bytes) -> None:
    """Write a file as programs do that replace it whole, or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    write(partial, data)
    partial.rename(path)


def makes(directory: Path) -> bool:
    """Make a directory; returns whether there was room, as some file systems have for a name."""
    try:
        directory.mkdir()
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017
        return False
    return True


def test_whatever_is_written_to_a_full_disk_is_enospc_and_what_was_published_is_committed_when_there_is_room(
    disk: Path, source: Path, mount: Mounter
) -> None:
    mounted = mount(source, write=True, expect=EXPECTED)
    write(mounted.path / "image/c/0/2", b"a" * LARGE)
    flush(mounted.path)
    expected = stored(source) | {"0/0": b"b" * LARGE}
    before, shown = (source / "image/zarr.json").read_bytes(), (mounted.path / "image/zarr.json").read_bytes()
    (mounted.path / "image/c/0/0").write_bytes(b"b" * LARGE)
    make_room = full(disk)
    larger = json.dumps(json.loads(shown) | {"attributes": {"note": "x" * LARGE}}).encode()
    for number in range(4):
        with refuses(errno.ENOSPC):
            write(mounted.path / f"image/c/1/{number}", b"c" * LARGE)
    with refuses(errno.ENOSPC):
        rename_over(mounted.path / "image/c/0/1", b"c" * LARGE)
    with refuses(errno.ENOSPC):
        rename_over(mounted.path / "image/zarr.json", larger)
    with refuses(errno.ENOSPC):
        write(mounted.path / "image/notes.txt", b"c" * LARGE)
    with refuses(errno.ENOSPC):
        (mounted.path / "image/c/0/0").rename(mounted.path / "image/c/0/3")
    is_made = makes(mounted.path / "group")
    with refuses(errno.ENOSPC):
        flush(mounted.path)
    assert seen(mounted) == expected
    assert (source / "image/zarr.json").read_bytes() == before
    assert (source / "group").exists() == is_made
    make_room()
    flush(mounted.path)
    rename_over(mounted.path / "image/c/0/1", b"d" * LARGE)
    rename_over(mounted.path / "image/zarr.json", larger)
    mounted.unmount()
    assert stored(source) == expected | {"0/1": b"d" * LARGE}
    assert json.loads((source / "image/zarr.json").read_bytes())["attributes"] == {"note": "x" * LARGE}
    assert not (source / ".shardfs").exists()
    assert run("verify", source).returncode == 0


@pytest.mark.parametrize("nbytes", [MIB, 2 * MIB, 4 * MIB - 1, 6 * MIB])
def test_a_program_that_was_told_enospc_frees_room_and_goes_on_with_the_same_descriptor(
    disk: Path, source: Path, mount: Mounter, nbytes: int
) -> None:
    mounted = mount(source, write=True, expect=EXPECTED)
    file = mounted.path / "image/c/0/0"
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, bytes(nbytes // 2))
        make_room = full(disk)
        with refuses(errno.ENOSPC):
            os.pwrite(fd, os.urandom(nbytes - nbytes // 2), nbytes // 2)
            os.fsync(fd)
        make_room()
        data = os.urandom(nbytes)
        assert os.pwrite(fd, data + b"end", 0) == nbytes + 3
        os.ftruncate(fd, nbytes)
        os.fsync(fd)
    finally:
        os.close(fd)
    assert file.read_bytes() == data
    mounted.unmount()
    assert stored(source)["0/0"] == data


@pytest.mark.parametrize("is_killed", [False, True], ids=["unmounted", "killed"])
def test_chunks_are_removed_from_a_full_disk(
    request: pytest.FixtureRequest, disk: Path, source: Path, mount: Mounter, is_killed: bool
) -> None:
    mounted = mount(source, write=True, expect=EXPECTED)
    first = [f"{i}/{j}" for i in range(2) for j in range(2)]  # all of one shard, and part of the other
    for name in first:
        (mounted.path / "image/c" / name).write_bytes(b"a" * LARGE)
    flush(mounted.path)
    expected = stored(source) | dict.fromkeys([*first, "0/2"])
    make_room = full(disk)
    for name in [*first, "0/2"]:
        (mounted.path / "image/c" / name).unlink()
    with refuses(errno.ENOSPC):
        write(mounted.path / "image/c/0/0", b"b" * 10 * LARGE)
    assert seen(mounted) == expected
    if is_killed:
        kill(mounted)
        mounted = mount(source, write=True, expect=EXPECTED)
        assert seen(mounted) == expected
    with suppress(OSError):  # what is left of the other shard may need room, and so may btrfs, to remove a file
        flush(mounted.path)
    assert not (source / "image/c/0/0").exists() or "btrfs" in request.node.name
    make_room()
    flush(mounted.path)
    mounted.unmount()
    assert not (source / "image/c/0/0").exists()
    assert stored(source) == expected


@pytest.mark.parametrize("is_killed", [False, True], ids=["unmounted", "killed"])
def test_a_mount_of_a_full_disk_shows_what_an_earlier_one_left_and_commits_it_when_there_is_room(
    disk: Path, source: Path, mount: Mounter, is_killed: bool
) -> None:
    mounted = mount(source, write=True, expect=EXPECTED)
    (mounted.path / "image/c/0/0").write_bytes(b"b" * LARGE)
    (mounted.path / "image/c/1/1").unlink()
    expected = stored(source) | {"0/0": b"b" * LARGE, "1/1": None}
    make_room = full(disk)
    if is_killed:
        kill(mounted)
    else:
        mounted.unmount(status=FAILED)
    with (disk / "filler").open("ab", 0) as filler, suppress(OSError):  # what the mount kept for removals is free
        while filler.write(os.urandom(4096)):
            pass
    for _ in range(2):
        mounted = mount(source, write=True, expect=EXPECTED)
        assert seen(mounted) == expected
        with refuses(errno.ENOSPC):
            write(mounted.path / "image/c/1/0", b"c" * LARGE)
        kill(mounted)
    found = run("recover", source)
    assert found.returncode == FAILED
    assert "image" in found.stdout
    mounted = mount(source, write=True, expect=EXPECTED)
    make_room()
    flush(mounted.path)
    assert stored(source) == expected
    mounted.unmount()
    assert not (source / ".shardfs").exists()


def test_a_full_disk_that_was_never_written_by_a_mount_can_be_read_and_is_refused_or_enospc_to_writers(
    disk: Path, source: Path, mount: Mounter, tmp_path: Path
) -> None:
    expected = stored(source)
    make_room = full(disk)
    reading = mount(source)
    assert seen(reading) == expected
    reading.unmount()
    place = tmp_path / "place"
    place.mkdir()
    done = run("mount", "--write", source, place)
    if done.returncode == 0:
        with refuses(errno.ENOSPC):
            write(place / "image/c/0/0", b"b" * LARGE)
        run("umount", place)
    else:
        assert "No space left on device" in done.stderr
    make_room()
    assert not (source / ".shardfs").exists()
    assert stored(source) == expected
    mounted = mount(source, write=True)
    write(mounted.path / "image/c/0/0", b"b" * LARGE)
    mounted.unmount()
    assert stored(source) == expected | {"0/0": b"b" * LARGE}


def test_a_full_disk_of_the_journal_is_enospc_to_writers_of_a_bucket_and_nothing_published_is_lost(
    disk: Path, s3_bucket: Bucket, tmp_path: Path, mount: Mounter
) -> None:
    host = replace(make_host(s3_bucket, tmp_path, mount), state=disk / "state")
    mounted = host.mount(expect=EXPECTED)
    (mounted.path / "c/0/0").write_bytes(NEW)
    make_room = full(disk)
    with refuses(errno.ENOSPC):
        for _ in range(2):  # the room that the journal has already
            write(mounted.path / "c/0/1", b"c" * LARGE)
    with refuses(errno.ENOSPC):
        write(mounted.path / "notes.txt", b"c" * MIB)
    assert (mounted.path / "c/0/0").read_bytes() == NEW
    kill(mounted)
    again = host.mount(expect=EXPECTED)
    assert (again.path / "c/0/0").read_bytes() == NEW
    make_room()
    flush(again.path)
    assert host.chunk(0, 0) == NEW
    write(again.path / "c/0/1", OTHER)
    again.unmount()
    assert (host.chunk(0, 0), host.chunk(0, 1)) == (NEW, OTHER)
    assert host.recover() == []
