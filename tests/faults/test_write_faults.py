"""Faults under a writing mount: whoever writes hears of them, nothing acknowledged is lost, and reading goes on."""

import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.commands import FAILED, SOURCE, one_line_of, run
from tests.support.corpus import GZIP
from tests.support.damage import SHARD, document, edit, payload
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mount, Mounter

DOCUMENT = document()
INSIDE = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
"""The inner chunks of the shard `c/0/0`; those of `c/0/1` are beside them."""
BESIDE = "c/0/2"
NEW = b"n" * 48
LARGE = 20_000
"""Bytes that no rest of a page holds."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    store(tmp_path / "data/image", DOCUMENT)
    return tmp_path / "data"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A dataset on a disk of one megabyte."""
    yield from on_disk(tmp_path / "disk", "1m")


@pytest.fixture
def larger(tmp_path: Path) -> Iterator[Path]:
    """A dataset on a disk of 8 MiB."""
    yield from on_disk(tmp_path / "disk", "8m")


def on_disk(disk: Path, size: str) -> Iterator[Path]:
    """A dataset on a disk of its own."""
    disk.mkdir()
    options = f"size={size}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("only root can make a small disk")
    try:
        store(disk / "data/image", DOCUMENT)
        yield disk / "data"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(source: Path) -> Path:
    """Take all that is left of the disk of *source*; returns the file to remove."""
    filler = source.parent / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
    return filler


def write(path: Path, data: bytes, *, sync: bool = False) -> int:
    """Write a file as programs do; returns the errno of whichever call failed, 0 if none did."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        return error.errno or -1
    failed = 0
    try:
        os.write(fd, data)
        if sync:
            os.fsync(fd)
    except OSError as error:
        failed = error.errno or -1
    try:
        os.close(fd)
    except OSError as error:
        failed = failed or error.errno or -1
    return failed


def stored(source: Path) -> dict[str, bytes | None]:
    """The inner chunks as they are in the shards."""
    array = shardfs.open(source)["image"]
    return {f"c/{i}/{j}": array.read_chunk((i, j)) for i in range(2) for j in range(4)}


def stored_chunk(source: Path, key: str) -> bytes | None:
    """One inner chunk as it is in its shard, whatever others are."""
    _, i, j = key.split("/")
    return shardfs.open(source)["image"].read_chunk((int(i), int(j)))


def seen(mounted: Mount) -> dict[str, bytes]:
    return {f"c/{i}/{j}": (mounted.path / f"image/c/{i}/{j}").read_bytes() for i in range(2) for j in range(4)}


def kill(mounted: Mount) -> None:
    mounted.process.kill()
    mounted.process.wait(PATIENCE)


# Full disks


def test_a_full_disk_is_enospc_to_writers_and_nothing_else_changes(small: Path, mount: Mounter) -> None:
    mounted = mount(small, write=True, expect=("No space left", "no space", "is refused"))
    assert write(mounted.path / "image/c/0/0", b"a" * LARGE) == 0
    expected = seen(mounted) | {"c/0/0": b"a" * LARGE}
    filler = fill(small)
    assert write(mounted.path / "image/c/0/1", b"b" * LARGE) == errno.ENOSPC
    assert write(mounted.path / "image/c/0/2", b"b" * LARGE, sync=True) == errno.ENOSPC
    assert seen(mounted) == expected
    assert write(mounted.path / "image/notes.txt", b"b" * LARGE) == errno.ENOSPC
    assert write(mounted.path / "image/zarr.json", bytes(LARGE)) != 0
    filler.unlink()
    assert write(mounted.path / "image/c/0/2", b"c" * LARGE) == 0
    assert run("flush", mounted.path).returncode == 0
    assert stored(small) == expected | {"c/0/2": b"c" * LARGE}
    assert json.loads((small / "image/zarr.json").read_text()) == DOCUMENT


def test_a_shard_that_cannot_be_committed_keeps_no_other_from_being_written(larger: Path, mount: Mounter) -> None:
    before = stored(larger)
    mounted = mount(larger, write=True, expect=("still pending: image/c/0/0", "unreadable shard", "journal, for"))
    assert write(mounted.path / "image/c/0/0", b"a" * LARGE) == 0
    with open(larger / "image" / SHARD, "ab") as file:
        file.write(b"torn by another program")
    written = {}
    for _ in range(50):  # of 400,000 bytes: several times as much as the journal may take of this disk
        for key in ("c/0/2", "c/0/3", "c/1/2", "c/1/3"):
            written[key] = os.urandom(100_000)
            assert write(mounted.path / "image" / key, written[key]) == 0
    assert (mounted.path / "image/c/0/0").read_bytes() == b"a" * LARGE
    mounted.unmount(FAILED)
    assert {key: stored_chunk(larger, key) for key in written} == written
    assert run("recover", "--apply", larger).returncode in (0, FAILED)  # it cuts off what is torn
    assert run("recover", "--apply", larger).returncode == 0
    assert stored(larger) == before | written | {"c/0/0": b"a" * LARGE}
    assert not list((larger / ".shardfs").rglob("*.journal"))  # what was cut off is kept beside it


def test_a_commit_without_room_keeps_everything_and_goes_on_when_there_is_room(small: Path, mount: Mounter) -> None:
    mounted = mount(small, write=True, expect=("No space left", "no space", "there is space"))
    for number, name in enumerate(INSIDE):
        assert write(mounted.path / "image" / name, bytes([65 + number]) * LARGE, sync=True) == 0
    expected = seen(mounted)
    filler = fill(small)
    assert "No space left on device" in one_line_of(run("flush", mounted.path), FAILED)
    assert write(mounted.path / "image/c/0/3", NEW) == errno.ENOSPC
    assert seen(mounted) == expected
    os.unlink(mounted.path / "image/c/0/2")  # which takes a record in the journal
    assert not (mounted.path / "image/c/0/2").exists()
    filler.unlink()
    assert run("flush", mounted.path).returncode == 0
    assert write(mounted.path / "image/c/0/3", NEW) == 0
    mounted.unmount()
    assert stored(small) == expected | {"c/0/2": None, "c/0/3": NEW}


def test_what_could_not_be_committed_is_in_the_journal_for_the_next_mount(
    small: Path, mount: Mounter, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    assert run("mount", "--write", "--log-file", tmp_path / "log", small, place).returncode == 0
    for name in INSIDE:
        assert write(place / "image" / name, name.encode() * LARGE) == 0
    filler = fill(small)
    said = one_line_of(run("umount", place), FAILED)
    assert "is unmounted" in said
    assert "stays in the journal" in said
    assert "stays in the journal" in (tmp_path / "log").read_text()
    assert not os.path.ismount(place)
    shown = run("recover", small)
    assert shown.returncode == FAILED
    for name in INSIDE:
        assert f"chunk {name[2:]} of image" in shown.stdout
    reading = mount(small)  # which needs no room
    assert len(seen(reading)["c/0/0"]) == 48
    reading.unmount()
    again = mount(small, write=True, expect=("no space", "No space left", "stays in the journal"))
    assert seen(again)["c/0/0"] == b"c/0/0" * LARGE
    filler.unlink()
    assert run("flush", again.path).returncode == 0
    assert all(stored(small)[name] == name.encode() * LARGE for name in INSIDE)


def test_a_large_draft_on_a_disk_that_gets_full_is_never_published_with_holes(small: Path, mount: Mounter) -> None:
    """The part of it that was in memory moves to the disk, which takes less than all of it."""
    mounted = mount(small, write=True, expect=("No space left", "no space"))
    filler = fill(small)
    os.truncate(filler, os.path.getsize(filler) - 64 * 1024)
    fd = os.open(mounted.path / "image/c/0/0", os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, b"a" * 400_000)
        with pytest.raises(OSError) as raised:  # more than 4 MiB is kept on the disk
            os.ftruncate(fd, 5 * 2**20)
        assert raised.value.errno == errno.ENOSPC
    finally:
        with pytest.raises(OSError, match="No space left"):
            os.close(fd)
    filler.unlink()
    assert len(seen(mounted)["c/0/0"]) == 48


# Sources that cannot be written


def test_a_read_only_source_is_refused_in_one_line(source: Path, tmp_path: Path, mount: Mounter) -> None:
    place, frozen = tmp_path / "place", tmp_path / "frozen"
    place.mkdir()
    frozen.mkdir()
    if subprocess.run(["mount", "--bind", source, frozen], capture_output=True, check=False).returncode:
        pytest.skip("only root can make a source read-only")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", frozen], check=True)
        line = one_line_of(run("mount", "--write", frozen, place, XDG_STATE_HOME=str(tmp_path)), SOURCE)
        assert "Read-only file system" in line
        assert str(frozen / ".shardfs") in line
        reading = mount(frozen)
        assert len(seen(reading)) == 8
        reading.unmount()
    finally:
        subprocess.run(["umount", "-l", frozen], check=True)


def protect(shard: Path) -> None:
    shard.chmod(0o444)


def link_away(shard: Path) -> None:
    shard.rename(shard.parents[2] / "elsewhere")
    shard.symlink_to("../../elsewhere")


def make_directory(shard: Path) -> None:
    shard.unlink()
    shard.mkdir()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [(protect, errno.EACCES), (link_away, None), (make_directory, None)],
    ids=["mode-444", "link", "directory"],
)
def test_a_shard_that_cannot_be_written_fails_its_writer_at_close_and_nobody_else(
    source: Path, mount: Mounter, spoil: Callable[[Path], None], expected: int | None
) -> None:
    spoil(source / "image" / SHARD)
    options = {"bound_by_modes": True, "expect": (r"\b(flush|release|open|create|lookup): ", "unreadable shard")}
    mounted = mount(source, write=True, **options)
    failed = write(mounted.path / "image/c/0/0", NEW)
    assert failed == expected if expected else failed not in (0, errno.ENOENT)
    if spoil is not make_directory:
        assert len((mounted.path / "image/c/0/0").read_bytes()) == 48
    assert write(mounted.path / "image" / BESIDE, NEW) == 0
    assert (mounted.path / "image" / BESIDE).read_bytes() == NEW
    mounted.unmount()
    assert stored(source)[BESIDE] == NEW if spoil is not make_directory else True
    assert not (source / ".shardfs").exists()


# A journal that was damaged


JOURNAL_FAULTS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "bit-in-the-middle": (lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:], 7),
    "bit-in-the-beginning": (lambda data: bytes([data[0] ^ 1]) + data[1:], 7),
    "cut-in-half": (lambda data: data[: len(data) * 9 // 20], 3),
    "all-zeros": (lambda data: bytes(len(data)), 0),
    "garbage": (lambda data: b"?" * len(data), 0),
}
"""What happens to a journal of eight chunks, and how many of them are in it still, at least."""


@pytest.mark.parametrize("name", JOURNAL_FAULTS)
def test_what_is_sound_of_a_damaged_journal_is_replayed_and_the_damage_is_named(
    source: Path, mount: Mounter, name: str
) -> None:
    mounted = mount(source, write=True)
    before = seen(mounted)
    for number, chunk in enumerate(before):
        assert write(mounted.path / "image" / chunk, NEW + bytes([number])) == 0
    kill(mounted)
    (segment,) = (source / ".shardfs/0/journal").iterdir()
    damage, nsound = JOURNAL_FAULTS[name]
    edit(segment, damage)
    shown = run("recover", source)
    again = mount(source, write=True, expect=("is damaged",))
    after = seen(again)
    news = {chunk: NEW + bytes([number]) for number, chunk in enumerate(before)}
    survived = [chunk for chunk in before if after[chunk] == news[chunk]]
    assert all(after[chunk] == before[chunk] for chunk in before if chunk not in survived)
    assert len(survived) >= nsound
    if name in ("cut-in-half", "all-zeros"):  # so do writes look that a power cut ended
        assert f"{segment.name} ends with" in again.log
    elif len(survived) < 8:
        assert f"{segment.name} is damaged" in again.log
        assert f"{segment.name} is damaged" in shown.stdout
    assert write(again.path / "image/c/0/0", NEW) == 0
    again.unmount()
    assert stored(source) == after | {"c/0/0": NEW}
    assert segment.with_suffix(".damaged").exists() == ("is damaged" in again.log)


# A journal that vanished


@pytest.mark.parametrize("gone", [".shardfs", ".shardfs/0/journal"])
def test_a_journal_that_was_removed_fails_writers_and_what_was_published_comes_into_the_shards(
    source: Path, mount: Mounter, gone: str
) -> None:
    mounted = mount(source, write=True, expect=("vanished", "read-only", "nothing can be published"))
    for chunk in INSIDE:
        assert write(mounted.path / "image" / chunk, NEW) == 0
    shutil.rmtree(source / gone)
    expected = seen(mounted)
    assert write(mounted.path / "image/c/0/0", b"later") in (errno.EIO, errno.EROFS)
    assert write(mounted.path / "image" / BESIDE, b"later") == errno.EROFS
    assert seen(mounted) == expected
    mounted.unmount()
    assert "vanished" in mounted.log
    assert stored(source) == expected
    again = mount(source, write=True)
    assert write(again.path / "image" / BESIDE, NEW) == 0
    again.unmount()
    assert stored(source)[BESIDE] == NEW


def test_umount_says_that_what_was_pending_is_lost_with_a_source_that_was_removed(source: Path, tmp_path: Path) -> None:
    place, log = tmp_path / "place", tmp_path / "log"
    place.mkdir()
    assert run("mount", "--write", "--log-file", log, source, place).returncode == 0
    assert write(place / "image/c/0/0", NEW) == 0
    shutil.rmtree(source)
    said = one_line_of(run("umount", place), FAILED)
    assert "somebody removed the journal" in said
    assert "lost with the journal" in log.read_text()
    assert "stays in the journal" not in said + log.read_text()


# Other programs


def test_a_chunk_that_makes_a_file_larger_than_the_mount_may_write_is_efbig(source: Path, mount: Mounter) -> None:
    mounted = mount(source, write=True, expect=("may not grow",))
    assert write(mounted.path / "image" / BESIDE, NEW) == 0
    resource.prlimit(mounted.process.pid, resource.RLIMIT_FSIZE, (LARGE, LARGE))
    assert write(mounted.path / "image" / INSIDE[0], bytes(LARGE)) == errno.EFBIG
    assert write(mounted.path / "image" / INSIDE[1], NEW) == 0
    mounted.unmount()
    assert shardfs.open(source)["image"].read_chunk((0, 1)) == NEW


def test_a_document_with_another_codec_makes_what_is_pending_conflicts(source: Path, mount: Mounter) -> None:
    mounted = mount(
        source,
        write=True,
        metadata_ttl=3600,
        expect=("published for metadata", "another program has changed the array"),
    )
    assert write(mounted.path / "image/c/0/0", NEW) == 0
    changed = document(*DOCUMENT["codecs"][0]["configuration"]["codecs"], GZIP)
    shutil.rmtree(source / "image")
    expected = store(source / "image", changed)
    mounted.unmount(status=FAILED)
    assert "published for metadata that another program has changed" in mounted.log
    assert "shows them: 0/0" in mounted.log
    assert {name: data for name, data in stored(source).items() if data is not None} == expected
    shown = run("recover", source)
    assert shown.returncode == FAILED
    assert "put aside: the new bytes of chunk 0/0 of image" in shown.stdout
    assert f"{source / '.shardfs/0/conflicts'} keeps it, and it cannot be applied while that is so" in shown.stdout
    assert "applies it" not in shown.stdout
    applied = run("recover", "--apply", source)
    assert applied.returncode == FAILED
    assert "cannot be applied: the new bytes of chunk 0/0 of image: the metadata of the array has changed" in (
        applied.stdout
    )
    assert "cannot be applied" in run("recover", "--apply", source).stdout  # it is kept for ever
    (source / "image/zarr.json").write_text(json.dumps(DOCUMENT))  # the person decides
    assert "applied: " in run("recover", "--apply", source).stdout
    assert shardfs.open(source)["image"].read_chunk((0, 0)) == NEW
    assert run("recover", source).stdout == "nothing to recover\n"


def rewrite(source: Path) -> dict[str, bytes | None]:
    zarr.open_array(source / "image", mode="r+")[4:8, 3:6] = 77
    return {"c/1/1": np.full((4, 3), 77, "<i4").tobytes()}


def delete(source: Path) -> dict[str, bytes | None]:
    (source / "image" / SHARD).unlink()
    return dict.fromkeys(INSIDE)


def append(source: Path) -> dict[str, bytes | None]:
    edit(source / "image" / SHARD, payload(3, b"theirs"))
    return {"c/1/1": b"theirs"}


@pytest.mark.parametrize("change", [rewrite, delete, append])
def test_a_shard_that_another_program_changes_meanwhile_has_what_both_wrote(
    source: Path, mount: Mounter, change: Callable[[Path], dict[str, bytes | None]]
) -> None:
    mounted = mount(source, write=True)
    before = seen(mounted)
    assert write(mounted.path / "image/c/0/0", NEW) == 0
    theirs = change(source)
    mounted.unmount()
    assert stored(source) == before | theirs | {"c/0/0": NEW}


def test_a_torn_shard_is_eio_to_readers_and_writers_and_the_log_names_recover(source: Path, mount: Mounter) -> None:
    before = stored(source)
    shard = source / "image" / SHARD
    whole = shard.read_bytes()
    shard.write_bytes(whole + b"half of an append")
    mounted = mount(source, write=True, expect=("unreadable shard", r"\b(open|lookup|flush|release|getattr|create): "))
    with pytest.raises(OSError, match="Input/output error"):
        (mounted.path / "image/c/0/0").read_bytes()
    assert "recover" in mounted.log
    assert write(mounted.path / "image/c/0/0", NEW) == errno.EIO
    assert write(mounted.path / "image" / BESIDE, NEW) == 0
    mounted.unmount()
    assert shard.read_bytes() == whole + b"half of an append"
    assert "can be cut off" in run("recover", source).stdout
    assert run("recover", "--apply", source).returncode == 0
    assert stored(source) == before | {BESIDE: NEW}
