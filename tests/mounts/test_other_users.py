"""A source that is written through a mount, as other users of the machine and their programs see it."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import FAILED, SOURCE, one_line_of, run, run_json
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mount, Mounter, flush
from tests.support.users import AS_NOBODY, NOBODY, SOMEBODY, everyones_python, shared_directory

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
GROUP = {"zarr_format": 3, "node_type": "group"}
NEW = b"n" * 24
STRICT = ("sh", "-c", 'umask 077; exec "$@"', "sh")

WALKING = """
import sys, zarr
group = zarr.open_group(sys.argv[1], mode="r")
print(*sorted(name for name, _ in group.members(max_depth=None)))
"""
CONSOLIDATING = """
import sys, zarr
print(len(zarr.consolidate_metadata(sys.argv[1]).metadata.consolidated_metadata.flattened_metadata))
"""


@pytest.fixture
def public() -> Iterator[Path]:
    with shared_directory() as directory:
        yield directory


@pytest.fixture
def source(public: Path) -> Path:
    """A group with two arrays that everybody may read, and nobody else may change."""
    for name in ("image", "labels"):
        store(public / "data" / name, DOCUMENT)
    (public / "data/zarr.json").write_text(json.dumps(GROUP))
    return public / "data"


def as_nobody(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AS_NOBODY, *map(str, words)], capture_output=True, text=True, check=False, timeout=PATIENCE)


def by_nobody(program: str, source: Path) -> str:
    done = as_nobody(everyones_python(), "-c", program, source)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def written(source: Path, public: Path) -> Iterator[Path]:
    """The mount point of a writing mount of root, who lets nobody read new files; it has all that a mount can leave."""
    place = public / "place"
    place.mkdir()
    state = {"XDG_STATE_HOME": str(public / "state")}
    assert run("mount", "--write", "--shards=2", source, place, prefix=STRICT, **state).returncode == 0
    try:
        (place / "image/c/0/0").write_bytes(NEW)
        (place / "image/c/0/.0.partial").write_bytes(NEW)
        (place / "new/c/0").mkdir(parents=True)
        (place / "new/c/0/0").write_bytes(NEW)
        (place / "new/zarr.json").write_text(json.dumps(array((8, 12), (2, 3), LITTLE)))
        yield place
    finally:
        assert run("umount", place).returncode == 0


def test_other_users_walk_a_source_while_it_is_written(source: Path, written: Path) -> None:
    os.chmod(source / "new", 0o755)  # which the mount made for a program, as that wanted
    assert by_nobody(WALKING, source) == "image labels new"
    done = run("verify", source, user=SOMEBODY)
    assert done.returncode == 0, done
    listed = as_nobody("find", source / ".shardfs")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "/.shardfs/0/journal/" in listed.stdout
    assert "/.shardfs/0/scratch/" in listed.stdout


def test_what_is_pending_can_be_read_by_nobody_else(source: Path, written: Path) -> None:
    (journal,) = (source / ".shardfs/0/journal").iterdir()
    assert "Permission denied" in as_nobody("cat", journal).stderr
    assert run("recover", source, user=SOMEBODY).stdout.count("root can read the journal in") == 1


def test_other_users_who_may_write_consolidate_a_source_while_it_is_written(source: Path, written: Path) -> None:
    os.chmod(source / "new", 0o755)
    for path in (source, source / "zarr.json"):
        os.chown(path, NOBODY, NOBODY)
    assert by_nobody(CONSOLIDATING, source) == "3"


@pytest.mark.parametrize("program", ["tar", "rsync"])
def test_nothing_that_others_cannot_read_stays_after_a_flush(
    program: str, source: Path, public: Path, mount: Mounter
) -> None:
    """Their programs can copy the directory as it is."""
    mounted = mount(source, write=True)
    (mounted.path / "image/c/0/0").write_bytes(NEW)
    flush(mounted.path)
    (public / "copies").mkdir()
    os.chown(public / "copies", NOBODY, NOBODY)
    copy = ["tar", "-C", source.parent, "-cf", public / "copies/data.tar", "data"]
    if program == "rsync":
        copy = ["rsync", "-a", f"{source}/", public / "copies/data"]
    done = as_nobody(*copy)
    assert (done.returncode, done.stderr) == (0, "")


# Who writes, and what others may do about it


def test_another_user_is_told_whose_mount_has_a_source(source: Path, public: Path, mount: Mounter) -> None:
    first = mount(source, write=True)
    (public / "place").mkdir()
    os.chown(public / "place", NOBODY, NOBODY)
    for who, where in ((SOMEBODY, source), (SOMEBODY, source / "image"), (None, source / "image")):
        line = one_line_of(run("recover", "--apply", where, user=who, XDG_STATE_HOME=str(public)), SOURCE)
        assert f"process {first.process.pid} on " in line
        assert f"(user root), which has it mounted at {first.path}" in line
        assert ("you need permission to write in" in line) == (where == source)


def test_doctor_finishes_its_checks_of_a_source_that_another_user_writes(
    source: Path, public: Path, mount: Mounter
) -> None:
    first = mount(source, write=True)
    done = run("doctor", "--write", "--json", source, user=SOMEBODY, XDG_STATE_HOME=str(public))
    findings = {finding["what"]: finding["kind"] for finding in json.loads(done.stdout)}
    (line,) = (what for what in findings if "is being written by" in what)
    assert f"mounted at {first.path}" in line
    assert findings[line] == "note"


def killed(mounted: Mount) -> None:
    (mounted.path / "image/c/0/0").write_bytes(NEW)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)


def test_another_user_is_told_who_must_recover_what_a_killed_mount_left(
    source: Path, public: Path, mount: Mounter
) -> None:
    killed(mount(source, write=True))
    line = one_line_of(run("recover", "--apply", source, user=SOMEBODY, XDG_STATE_HOME=str(public)), SOURCE)
    assert "was left by a session of root, with chunks that may not be committed yet" in line
    assert f"run `shardfs recover --apply {source}` as root" in line
    done = run("recover", source, user=SOMEBODY, XDG_STATE_HOME=str(public))
    assert done.returncode == FAILED
    assert done.stdout.count("journal") == 2, "named once, with its path"
    assert run("recover", "--apply", source).returncode == 0


def test_who_reads_beside_a_writer_is_told_how_to_have_everything_committed(
    source: Path, public: Path, mount: Mounter
) -> None:
    first = mount(source, write=True)
    (first.path / "image/c/0/0").write_bytes(NEW)
    advice = f"run `shardfs flush {first.path}`"
    reader = mount(source)
    assert advice in reader.log
    assert "--write" not in reader.log.split("and that is not shown here")[1]
    for part in (source, source / "image"):  # also of a source within that of the mount
        done = run("pack", part, public / f"packed-{part.name}")
        assert (done.returncode, advice in done.stderr) == (FAILED, True), done.stderr
    flush(first.path)
    again = mount(source)
    assert "journal" not in again.log
    assert run("pack", source, public / "whole").returncode == 0


def test_recover_says_that_a_running_mount_commits_what_is_pending(source: Path, mount: Mounter) -> None:
    first = mount(source, write=True)
    (first.path / "image/c/0/0").write_bytes(NEW)
    findings = run_json("recover", "--json", source, status=FAILED)["findings"]
    assert [finding["kind"] for finding in findings] == ["pending", "slot"]
    assert f"`shardfs flush {first.path}`" in findings[1]["message"]
