"""`shardfs recover`: what a killed mount, or another program that was killed, left behind, and its repair."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfs
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.reading import read_journal
from shardfs.dataset.journal.records import (
    Erase,
    Put,
    Shrink,
    UndoRecord,
    pack_record,
    salt_of,
)
from shardfs.stores.local.atomic_write import temporary_name
from shardfs.stores.local.syscalls import Syscalls, open_directory
from shardfs.stores.memory import MemoryContent
from tests.cli.conftest import Background
from tests.support.commands import FAILED, run, run_json
from tests.support.corpus import BIG, CRC32C, GZIP, LITTLE, transpose
from tests.support.daemons import kill_daemon
from tests.support.damage import INDEX_NBYTES, SHARD, SHARD_FAULTS, Change, document, edit, index, payload
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.readers import READERS, read_zarr

CHANGED = "another program has changed the chunk, or written its shard anew"
ABSENT = (1, 1)  # entry 3
OTHER_INDEX = document(index_codecs=(transpose(1, 0, 2), BIG, CRC32C, CRC32C))
PAYLOADS = np.random.default_rng(7).bytes(50 + 30)
"""What an append writes of a chunk that it replaces, and of one that was absent."""


def all_but_the_lock(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_below(directory).items() if not name.endswith("/lock")}


def torn_of(report: Any) -> dict[str, Any]:
    """The findings of torn shards by their keys."""
    assert {found["kind"] for found in report["findings"]} <= {"torn"}
    return {found["key"]: found for found in report["findings"]}


def write_torn(directory: Path) -> dict[str, bytes]:
    """Arrays below *directory*, the first shard of each torn by an append that was cut at another place; their tails.

    That is every place where a payload or a number of the index begins or ends, those around it, and some between.
    """
    store(directory / "sound", document(), absent=[ABSENT])
    old = (directory / "sound" / SHARD).read_bytes()
    changed = index(3, len(old) + 50, 30)(index(1, len(old), 50)(old))
    new = PAYLOADS + changed[-(4 * 16 + 4) :]
    edges = {0, 50, *range(len(PAYLOADS), len(new), 16), len(new)}
    cuts = {edge + beside for edge in edges for beside in (-1, 0, 1)} | set(range(1, len(new), 32))
    tails = {f"cut-{cut:03}": new[:cut] for cut in sorted(cuts) if 0 < cut < len(new)}
    for name, tail in tails.items():
        shutil.copytree(directory / "sound", directory / name)
        edit(directory / name / SHARD, lambda data, tail=tail: data + tail)
    store(directory / "other", OTHER_INDEX)
    edit(directory / "other" / SHARD, lambda data: data + PAYLOADS)
    return tails | {"other": PAYLOADS}


def test_a_torn_append_is_cut_off_and_its_tail_is_kept(tmp_path: Path) -> None:
    tails = write_torn(tmp_path)
    before = files_below(tmp_path)
    shown = run_json("recover", "--json", tmp_path, status=FAILED)
    assert shown["left"]
    assert torn_of(shown).keys() == {f"{name}/{SHARD}" for name in tails}
    for name, tail in tails.items():
        assert f"its last {len(tail):,} bytes, behind" in torn_of(shown)[f"{name}/{SHARD}"]["message"]
    assert all(found["left"] for found in shown["findings"])
    assert files_below(tmp_path) == before
    done = run("recover", tmp_path / "other")
    said = f"torn: {SHARD}: its last 80 bytes, behind the last valid index, can be cut off\n"
    assert (done.returncode, done.stdout, done.stderr) == (FAILED, said, "")
    applied = run_json("recover", "--apply", "--json", tmp_path)
    assert not applied["left"]
    for name, tail in tails.items():
        kept = torn_of(applied)[f"{name}/{SHARD}"]["path"]
        assert kept.startswith(".shardfs/0/torn/")
        assert (tmp_path / kept).read_bytes() == tail
    expected = before | {f"{name}/{SHARD}": before[f"{name}/{SHARD}"][: -len(tail)] for name, tail in tails.items()}
    assert {key: data for key, data in files_below(tmp_path).items() if not key.startswith(".shardfs")} == expected


def test_a_repair_keeps_the_mode_each_tail_and_other_files(tmp_path: Path) -> None:
    store(tmp_path, document(), absent=[ABSENT])
    os.chmod(tmp_path / SHARD, 0o640)
    os.link(tmp_path / "c/0/1", tmp_path / "notes")
    number, others = (tmp_path / SHARD).stat().st_ino, [tmp_path / name for name in ("zarr.json", "c/0/1", "notes")]
    before = [(path.stat().st_ino, path.stat().st_ctime_ns) for path in others]  # which every change changes
    kept = {}
    for tail in (b"first", b"second"):
        with open(tmp_path / SHARD, "ab") as file:
            file.write(tail)
        kept[torn_of(run_json("recover", "--apply", "--json", tmp_path))[SHARD]["path"]] = tail
        assert run_json("recover", "--json", tmp_path) == {"left": False, "findings": [], "sessions": []}
    assert {path: (tmp_path / path).read_bytes() for path in kept} == kept
    assert [(path.stat().st_ino, path.stat().st_ctime_ns) for path in others] == before
    status = (tmp_path / SHARD).stat()
    assert (status.st_ino, status.st_mode & 0o7777) == (number, 0o640)


UNREPAIRABLE = {
    "no-checksum": (document(index_codecs=(LITTLE,)), lambda data: data + b"12345", "has no checksum"),
    "index-at-start": (
        document(index_location="start"),
        lambda data: b"\1" * 60 + data[60:],
        "its index is at the start",
    ),
    "gzip-around": (document(after=(GZIP,)), lambda data: data[:-9], "it is encoded as a whole"),
    "crc32c-around": (document(after=(CRC32C,)), lambda data: data + b"1", "it is encoded as a whole"),
    **{
        name: (document(), change, "there is no valid index in it")
        for name, change in SHARD_FAULTS.items()
        if name != "one-byte-more"
    },
}


def test_unrepairable_shards_are_reported_with_the_reason_and_left_alone(tmp_path: Path) -> None:
    for name, (each, change, _) in UNREPAIRABLE.items():
        store(tmp_path / name, each)
        path = tmp_path / name / SHARD
        path.write_bytes(change(path.read_bytes()))
    store(tmp_path / "sound", document())
    before = files_below(tmp_path)
    for arguments in (["recover", "--json"], ["recover", "--apply", "--json"]):
        report = run_json(*arguments, tmp_path, status=FAILED)
        assert report["left"]
        found = torn_of(report)
        assert found.keys() == {f"{name}/{SHARD}" for name in UNREPAIRABLE}
        for name, (_, _, reason) in UNREPAIRABLE.items():
            assert reason in found[f"{name}/{SHARD}"]["message"]
            assert found[f"{name}/{SHARD}"]["left"]
        assert files_below(tmp_path) == before
    assert not (tmp_path / ".shardfs").exists()


def killed_mount(background: Background, source: Path, place: Path, chunks: Mapping[str, bytes | None]) -> None:
    """Publish *chunks* (None removes one) through a mount whose daemon is killed before it commits them."""
    assert background("--write", source, place).returncode == 0
    for key, data in chunks.items():
        if data is None:
            (place / key).unlink()
        else:
            (place / key).write_bytes(data)
    kill_daemon(place)
    assert run("umount", place).returncode == 0


def test_the_journal_of_a_killed_mount_is_shown_and_applied(background: Background, source: Path, place: Path) -> None:
    values, before = read_zarr(source), (source / SHARD).read_bytes()
    new = np.arange(100, 106, dtype="<i4").reshape(2, 3)
    killed_mount(background, source, place, {"c/0/0": new.tobytes(), "c/3/3": None})
    shown = run_json("recover", "--json", source, status=FAILED)
    assert [(found["kind"], found["message"], found["left"]) for found in shown["findings"]] == [
        ("pending", "journal: the new bytes of chunk 0/0 of the array", True),
        ("pending", "journal: the removal of chunk 3/3 of the array", True),
    ]
    assert (source / SHARD).read_bytes() == before
    assert run("recover", source).stdout.splitlines() == [found["message"] for found in shown["findings"]]
    done = run("recover", "--apply", source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "committed 2 chunks\n", "")
    values[0:2, 0:3] = new
    values[6:8, 9:12] = 0
    for read in READERS.values():
        assert np.array_equal(read(source), values)
    assert not (source / ".shardfs").exists()
    done = run("recover", "--apply", source)
    assert (done.returncode, done.stdout) == (0, "nothing to recover\n")


def test_many_chunks_of_one_array_are_one_line_unless_each_is_asked_for(
    background: Background, source: Path, place: Path
) -> None:
    new = {f"c/{row}/{column}": b"n" * 24 for row in range(4) for column in range(4)}
    killed_mount(background, source, place, new)
    assert run("recover", source).stdout == "journal: the new bytes of 16 chunks of the array (--verbose names each)\n"
    lines = run("recover", "--verbose", source).stdout.splitlines()
    assert len(lines) == 16
    assert lines[0] == "journal: the new bytes of chunk 0/0 of the array"


def stored_chunk(source: Path, *coords: int) -> bytes | None:
    return shardfs.open(source)[""].read_chunk(coords)


@pytest.mark.parametrize("where", ["behind the shard", "behind the chunks", "in its place"])
def test_an_outdated_change_is_a_conflict_until_it_is_applied(
    background: Background, source: Path, place: Path, mount: Mounter, where: str
) -> None:
    """Another program wrote the chunk since: it appended to the shard, or wrote it anew as native writers do.

    Then nobody knows which chunks it changed.
    """
    old, new = stored_chunk(source, 0, 0), b"c" * 24
    assert old is not None

    def append(data: bytes) -> bytes:
        return index(0, len(data), 24)(data + new + data[-INDEX_NBYTES:])

    changes: dict[str, Change] = {
        "behind the shard": append,
        "behind the chunks": payload(0, new),
        "in its place": lambda data: data.replace(old, new),
    }
    killed_mount(background, source, place, {"c/0/0": b"a" * 24, "c/0/1": b"b" * 24})
    edit(source / SHARD, changes[where])
    assert stored_chunk(source, 0, 0) == new
    shown = run("recover", source)
    assert shown.returncode == FAILED
    conflicts = [f"the new bytes of chunk 0/{n} of the array: {CHANGED}" for n in range(2)]
    if where == "behind the shard":
        pending = "journal: the new bytes of chunk 0/1 of the array"
        assert shown.stdout.splitlines() == [pending, f"conflict: {conflicts[0]}"]
    else:
        assert shown.stdout.splitlines() == [f"conflict: {conflict}" for conflict in conflicts]
    if where == "behind the shard":  # a writing mount replays what fits, and keeps the rest
        mount(source, write=True, expect=("the new bytes of chunk 0/0",)).unmount()
        assert (stored_chunk(source, 0, 0), stored_chunk(source, 0, 1)) == (b"c" * 24, b"b" * 24)
        shown = run("recover", source)
        assert (shown.returncode, shown.stdout) == (
            FAILED,
            f"put aside: {conflicts[0]}; `shardfs recover --apply` applies it\n",
        )
    done = run("recover", "--apply", source)
    assert (done.returncode, done.stderr) == (0, "")
    assert "applied: the new bytes of chunk 0/0 of the array" in done.stdout
    assert (stored_chunk(source, 0, 0), stored_chunk(source, 0, 1)) == (b"a" * 24, b"b" * 24)
    assert run("recover", source).stdout == "nothing to recover\n"
    assert not (source / ".shardfs").exists()


@contextmanager
def left_journal(source: Path) -> Iterator[Journal]:
    """The journal that a killed mount left, to add to it what only damage or malice would."""
    directory = open_directory(str(source / ".shardfs/0/journal"))
    with closing(Journal(directory, Syscalls(), read_journal(directory))) as journal:
        yield journal


def killed_below(background: Background, source: Path, place: Path) -> Path:
    """A group with the array `a`, where a killed mount left new bytes and a removal; returns the group."""
    group = source.parent / "group"
    group.mkdir()
    source.rename(group / "a")
    (group / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    killed_mount(background, group, place, {"a/c/0/0": b"a" * 24, "a/c/3/3": None})
    return group


def test_changes_are_kept_while_their_array_is_missing(background: Background, source: Path, place: Path) -> None:
    """New bytes, removals, and the removal of all chunks outside a smaller shape."""
    group = killed_below(background, source, place)
    with left_journal(group) as journal:
        journal.append(Shrink(0, "a", (8, 12)))
    stored = json.loads((group / "a/zarr.json").read_text())
    (group / "a").rename(source)
    changes = ("the new bytes of chunk 0/0 of a", "the removal of chunk 3/3 of a")
    shrink = "the removal of chunks outside the shape of a"
    lines = [f"{change}: there is no such array any more" for change in changes]
    assert run("recover", group).stdout.splitlines() == [
        f"journal: {shrink}",
        *(f"conflict: {line}" for line in lines),
    ]
    done = run("recover", "--apply", group)
    assert done.returncode == FAILED
    assert [line.partition("a: ")[0] for line in done.stdout.splitlines()] == [
        f"cannot be applied: {change.removesuffix('a')}" for change in (shrink, *changes)
    ]
    source.rename(group / "a")
    shown = run("recover", group)
    assert (shown.returncode, shown.stdout.count("put aside: the ")) == (FAILED, 3)
    (group / "a/zarr.json").write_text(json.dumps(stored | {"shape": [4, 6]}))
    assert f"cannot be applied: {changes[1]}: it lies outside" in run("recover", "--apply", group).stdout
    assert sorted(files_below(group / "a/c")) == ["0/0"]
    assert stored_chunk(group / "a", 0, 0) == b"a" * 24
    (group / "a/zarr.json").write_text(json.dumps(stored))
    assert run("recover", "--apply", group).returncode == 0
    assert run("recover", group).stdout == "nothing to recover\n"


UNDO = UndoRecord(0, "a", (0, 0), "a/c/0/0", "")
AWAY = ["../out", "/etc", "link/out", "a/../../out", "nul\0", "a/c/0/0", "deep/" * 500 + "x"]
BAD: dict[str, Callable[[Journal, str], object]] = {
    "new bytes": lambda journal, key: journal.append(
        Put(0, key, (0, 0), b"f" * 16, None, 1, 0o644, 0, 0), MemoryContent(memoryview(b"bad"))
    ),
    "removal": lambda journal, key: journal.append(Erase(0, key, (1, 1), b"f" * 16, None, 1)),
    "removal of chunks outside": lambda journal, key: journal.append(Shrink(0, key, (99, 99))),
    "commit": lambda journal, key: journal.append(replace(UNDO, key=key)),
    "commit of another array": lambda journal, key: journal.append(replace(UNDO, path=key)),
    "commit with a temporary": lambda journal, key: journal.append(
        replace(UNDO, temporary=f"{key}/{temporary_name()}")
    ),
}


def test_a_record_that_cannot_be_handled_blocks_no_other(
    background: Background, source: Path, place: Path, mount: Mounter
) -> None:
    group = killed_below(background, source, place)
    (group / "a/c/7").mkdir()  # where a shard would be
    (group.parent / "out").mkdir()
    (group.parent / "out/kept").write_bytes(b"kept")
    (group / "link").symlink_to(group.parent)
    with left_journal(group) as journal:
        for append in BAD.values():
            for key in (*AWAY, "a/c/7", ""):
                append(journal, key)
    shown = run("recover", group)
    assert (shown.returncode, shown.stderr) == (FAILED, "")
    assert "journal: the new bytes of chunk 0/0 of a" in shown.stdout
    mounted = mount(group, write=True, expect=("it is kept", "is left as it is", "is not removed"))
    mounted.unmount()
    assert stored_chunk(group / "a", 0, 0) == b"a" * 24
    assert read_zarr(group / "a")[6:8, 9:12].tolist() == [[0, 0, 0]] * 2
    assert sorted(path.name for path in (group.parent / "out").iterdir()) == ["kept"]
    for kept in (run("recover", group).stdout.splitlines(), run("recover", "--apply", group).stdout.splitlines()):
        for key in AWAY[:4]:
            assert f"of {key}" in mounted.log
            for what in ("new bytes", "removal", "removal of chunks outside"):
                assert any(f"the {what}" in line and f"of {key}: " in line for line in kept), (what, key)


def damage_first_record(source: Path) -> Path:
    """Flip a bit of the first record in the only segment of a journal, and return that."""
    (segment,) = (source / ".shardfs/0/journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(data)
    return segment


def test_damage_in_a_journal_is_named_until_its_file_is_removed(
    background: Background, source: Path, place: Path, mount: Mounter
) -> None:
    killed_mount(background, source, place, {"c/0/0": b"a" * 24, "c/0/1": b"b" * 24})
    segment = damage_first_record(source)
    kept = segment.with_suffix(".damaged")
    shown = run("recover", source)
    assert (shown.returncode, f"{segment.name} is damaged" in shown.stdout) == (FAILED, True)
    for _ in range(2):
        mounted = mount(source, write=True, expect=("is damaged",))
        mounted.unmount()
        assert "/proc/" not in mounted.log
        assert str(kept) in mounted.log
        for options in ([], ["--apply"]):
            shown = run("recover", *options, source)
            assert shown.returncode == FAILED
            assert f"{kept} is damaged" in shown.stdout
            assert f"remove {kept}" in shown.stdout
    assert stored_chunk(source, 0, 1) == b"b" * 24
    kept.unlink()
    done = run("recover", "--apply", source)
    assert (done.returncode, done.stdout) == (0, "nothing to recover\n")
    assert not (source / ".shardfs").exists()


def test_mount_warns_of_journals_and_conflicts(background: Background, source: Path, place: Path) -> None:
    """One that does not write leaves the journal alone."""
    killed_mount(background, source, place, {"c/0/0": b"a" * 24, "c/0/1": b"b" * 24, "c/3/3": b"d" * 24})
    before = all_but_the_lock(source)
    said = background(source, place)
    assert (said.returncode, said.stderr.count("\n")) == (0, 1)
    assert "has a journal of chunks that may not be committed yet" in said.stderr
    assert f"`shardfs recover {source}`" in said.stderr
    assert (place / "c/0/0").read_bytes() == stored_chunk(source, 0, 0)
    assert sorted(os.listdir(place)) == ["c", "zarr.json"]
    assert run("umount", place).returncode == 0
    assert all_but_the_lock(source) == before
    damage_first_record(source)
    edit(source / SHARD, payload(1, b"c" * 24))
    said = background("--write", source, place)
    assert (said.returncode, said.stderr.count("\n")) == (0, 1)
    for text in ("1 conflict", "damage", f"`shardfs recover {source}`"):
        assert text in said.stderr


@pytest.mark.parametrize("what", ["record of a later version", "journal of an earlier one"])
def test_a_journal_of_another_version_is_refused_and_left_alone(
    background: Background, source: Path, place: Path, what: str
) -> None:
    killed_mount(background, source, place, {"c/0/0": b"a" * 24})
    (segment,) = (source / ".shardfs/0/journal").iterdir()
    data = segment.read_bytes()
    earlier = segment.with_name("00000001.journal")
    if what == "record of a later version":
        segment.write_bytes(data + pack_record(salt_of(segment.name), 99, 200, b"what nobody knows yet", 0, 0))
        expected = ["record 99 in", f"{segment} is of a kind (200) that this version of shardfs does not know"]
    else:
        earlier.write_bytes(b"what that version wrote")
        expected = [
            f"{earlier.name} of the journal was written by an earlier version of shardfs",
            "Nothing is lost: mount once with --write and the version that wrote it",
        ]
    before = all_but_the_lock(source)
    for arguments in (["recover", source], ["recover", "--apply", source], ["mount", "--write", source, place]):
        done = run(*arguments)
        assert done.returncode != 0
        assert all(text in done.stdout + done.stderr for text in expected)
        assert all_but_the_lock(source) == before
    segment.write_bytes(data)
    earlier.unlink(missing_ok=True)
    assert run("recover", "--apply", source).returncode == 0
    assert stored_chunk(source, 0, 0) == b"a" * 24
