"""Writing mounts of a dataset: who writes beside whom, what a dead one leaves, and how a writing mount ends."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import shardfs
from tests.support.commands import FAILED, SOURCE, one_line_of, run
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mount, Mounter

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
GROUP = {"zarr_format": 3, "node_type": "group"}
NEW = b"n" * 24
"""What tests write as a chunk; its bytes are nobody's business but the reader's."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A group with two arrays."""
    for name in ("image", "labels"):
        store(tmp_path / "lake/data" / name, DOCUMENT)
    (tmp_path / "lake/data/zarr.json").write_text(json.dumps(GROUP))
    return tmp_path / "lake/data"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def refusal(source: Path, place: Path) -> str:
    """The one line with which a writing mount is refused."""
    line = one_line_of(run("mount", "--write", source, place, XDG_STATE_HOME=str(place.parent)), SOURCE)
    assert not os.path.ismount(place)
    return line


def leave_journal(mounted: Mount, name: str = "c/0/0") -> None:
    """Publish a chunk, and let the daemon die before it is committed."""
    (mounted.path / name).write_bytes(NEW)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)


def stored(source: Path) -> bytes | None:
    return shardfs.open(source)["image"].read_chunk((0, 0))


def test_a_writing_mount_around_or_within_another_one_is_refused_and_that_is_named(
    mount: Mounter, source: Path, place: Path
) -> None:
    (source.parent / "link").symlink_to("data/image")
    (source / "labels").rename(source / "c")  # as a directory of chunks may be called
    with_array = mount(source / "c", write=True)
    assert f"process {with_array.process.pid} on {socket.gethostname()}" in refusal(source, place)
    with_array.unmount()
    first = mount(source, write=True)
    for second in ("data/image", ".", "link"):
        line = refusal(source.parent / second, place)
        assert f"process {first.process.pid} on {socket.gethostname()}" in line
        assert str(source) in line
    assert (first.path / "image/c/0/0").read_bytes() != NEW
    (first.path / "image/c/0/0").write_bytes(NEW)  # the first one is not disturbed
    first.unmount()
    assert stored(source) == NEW


def test_two_writing_mounts_of_one_directory_lose_nothing(mount: Mounter, source: Path) -> None:
    first, second = mount(source, write=True), mount(source, write=True)
    for j in range(4):
        ((first, second)[j % 2].path / f"image/c/0/{j}").write_bytes(bytes([j]) * 24)
    first.unmount()
    assert [shardfs.open(source)["image"].read_chunk((0, j)) for j in range(4)] == [bytes([j]) * 24 for j in range(4)]
    assert (second.path / "image/c/0/0").read_bytes() == bytes(24)
    second.unmount()
    assert sorted(os.listdir(source)) == ["image", "labels", "zarr.json"]


def test_commands_beside_a_writing_mount_lose_nothing(mount: Mounter, source: Path) -> None:
    first = mount(source, write=True)
    (first.path / "image/c/0/0").write_bytes(NEW)
    done = run("recover", source)
    assert (done.returncode, done.stderr) == (FAILED, "")
    assert "chunk 0/0 of image" in done.stdout
    assert f"in use by process {first.process.pid} on" in done.stdout
    assert run("compact", "--threshold", "0.01", source).returncode == 0
    assert f"in use by process {first.process.pid} on" in run("recover", "--apply", source).stdout
    first.unmount()
    assert stored(source) == NEW
    assert run("recover", source).stdout == "nothing to recover\n"


def test_the_lock_of_a_killed_daemon_is_not_in_the_way(mount: Mounter, source: Path) -> None:
    leave_journal(mount(source / "image", write=True))
    assert (source / "image/.shardfs/lock").exists()
    again = mount(source / "image", write=True)
    assert (again.path / "c/0/0").read_bytes() == NEW
    again.unmount()
    assert stored(source) == NEW
    assert not (source / "image/.shardfs").exists()


@pytest.mark.parametrize(("dead", "next_one"), [("image", "."), (".", "image")], ids=["in-a-child", "in-a-parent"])
def test_a_journal_that_overlaps_refuses_with_the_way_out(
    mount: Mounter, source: Path, place: Path, dead: str, next_one: str
) -> None:
    leave_journal(mount(source / dead, write=True), "c/0/0" if dead == "image" else "image/c/0/0")
    line = refusal(source / next_one, place)
    way_out = f"shardfs recover --apply {source / dead}"
    assert way_out in line
    assert run(*way_out.split()[1:]).returncode == 0
    assert stored(source) == NEW
    mount(source / next_one, write=True).unmount()


ENDS = {
    "SIGTERM": lambda mounted: mounted.process.terminate(),
    "SIGINT": lambda mounted: mounted.process.send_signal(signal.SIGINT),
    "umount": lambda mounted: run("umount", mounted.path),
    "fusermount": Mount.unmount,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_mount_commits_however_it_ends(mount: Mounter, source: Path, end: Callable[[Mount], object]) -> None:
    mounted = mount(source, write=True)
    (mounted.path / "image/c/0/0").write_bytes(NEW)
    end(mounted)
    assert mounted.process.wait(PATIENCE) == 0
    assert not mounted.is_mounted
    assert stored(source) == NEW
    assert sorted(os.listdir(source)) == ["image", "labels", "zarr.json"]


def test_a_signal_commits_what_was_published_while_files_are_open(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True)
    with open(mounted.path / "image/c/0/0", "wb", buffering=0) as file:
        file.write(NEW)
        os.fsync(file.fileno())
        file.write(b"and what nobody was told is safe")
        mounted.process.terminate()
        assert mounted.process.wait(PATIENCE) == 0
        with pytest.raises(OSError, match="not connected"):
            file.write(b"more")
        with pytest.raises(OSError, match="not connected"):
            file.close()
    assert stored(source) == NEW


def test_a_mount_of_a_renamed_source_leaves_the_new_owner_of_the_path_alone(mount: Mounter, source: Path) -> None:
    first = mount(source, write=True)
    (first.path / "image/c/0/0").write_bytes(NEW)
    moved = source.rename(source.parent / "moved")
    shutil.copytree(moved, source, ignore=shutil.ignore_patterns(".shardfs"))
    second = mount(source, write=True)
    (second.path / "labels/c/0/0").write_bytes(NEW)
    (second.path / "zarr.json").stat()

    def ours() -> dict[Path, int]:
        return {path: os.stat(path).st_ino for path in [source / ".shardfs", *(source / ".shardfs").rglob("*")]}

    before = ours()
    for seed in range(3):  # more than is kept in memory: it goes to files
        (first.path / f"image/c/0/{seed}").write_bytes(bytes([seed]) * (5 * 2**20))
    assert os.statvfs(first.path).f_blocks
    first.unmount()
    assert ours() == before
    assert not (moved / ".shardfs").exists()
    assert shardfs.open(moved)["image"].read_chunk((0, 2)) == b"\2" * (5 * 2**20)
    second.unmount()
    assert shardfs.open(source)["labels"].read_chunk((0, 0)) == NEW
    assert not (source / ".shardfs").exists()


@pytest.mark.parametrize("name", ["", "lock", "journal", "conflicts", "drafts", "0", "0/lock", "0/journal", "0/staged"])
def test_a_directory_of_ours_that_is_a_link_is_never_followed(source: Path, place: Path, name: str) -> None:
    """A dataset may come from anywhere, and with it links to directories and files with such names."""
    outside = source.parent / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / "lock").write_text("somebody's")
    link = source / ".shardfs" / name if name else source / ".shardfs"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / ("lock" if name.endswith("lock") else ""))
    assert run("recover", "--apply", source).returncode in (0, FAILED, SOURCE)
    done = run("mount", "--write", source, place, XDG_STATE_HOME=str(place.parent))
    if done.returncode:
        assert (done.returncode, os.path.ismount(place)) == (SOURCE, False)
        assert ".shardfs" in done.stderr, "it is named"
    else:
        (place / "image/c/0/0").write_bytes(NEW)
        run("umount", place)
    assert (outside / "lock").read_text() == "somebody's"
    assert sorted(os.listdir(outside)) == ["empty", "lock"]
    assert not os.listdir(outside / "empty")
