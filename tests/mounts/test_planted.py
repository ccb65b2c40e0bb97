"""What another user plants in a directory that both may write: it is named, never used, and in nobody's way."""

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import FAILED, run, run_program
from tests.support.corpus import array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mounter
from tests.support.users import NOBODY, SOMEBODY, shared_directory

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3)))
NEW = b"n" * 24


@pytest.fixture(params=[0o1777, 0o2775], ids=["for-everybody", "of-a-group"])
def source(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of root in which nobody may make files, with an array that only root may write."""
    with shared_directory() as top:
        source = top / "data"
        store(source / "image", DOCUMENT)
        (source / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
        os.chown(source, 0, NOBODY)
        source.chmod(request.param)
        yield source


def stored(source: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (source / "image").rglob("*") if path.is_file()}


def as_nobody(code: str, *arguments: str | Path) -> None:
    """Run a program as the other user."""
    done = run_program(code, *arguments, user=SOMEBODY)
    assert done.returncode == 0, done.stderr


def records(tmp_path: Path, mount: Mounter, source: Path) -> Path:
    """The slot of a session of root that was killed, elsewhere: what a planter copies."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    mounted = mount(copy, write=True)
    (mounted.path / "image/c/0/0").write_bytes(NEW)
    mounted.process.kill()
    mounted.process.wait(PATIENCE)
    readable = source.parent / "records"
    shutil.copytree(copy / ".shardfs", readable)
    for path in [readable, *readable.rglob("*")]:
        path.chmod(0o755)
    return readable


PLANT = {
    "the directory with a journal": "import shutil, sys; shutil.copytree(sys.argv[2], sys.argv[1] + '/.shardfs')",
    "one of an earlier version": "import shutil, sys; shutil.copytree(sys.argv[2] + '/0', sys.argv[1] + '/.shardfs')",
    "an undo record and conflicts": """
import shutil, sys
shutil.copytree(sys.argv[2], sys.argv[1] + '/.shardfs')
shutil.copytree(sys.argv[2] + '/0/journal', sys.argv[1] + '/.shardfs/0/conflicts', dirs_exist_ok=True)
""",
    "staged and scratch files": """
import os, sys
for place in ('staged/image/.chunks/c/0', 'scratch/image/c/0', 'drafts', 'torn', 'spools'):
    os.makedirs(f'{sys.argv[1]}/.shardfs/0/{place}')
    open(f'{sys.argv[1]}/.shardfs/0/{place}/0', 'w').write('planted')
""",
    "a sparse segment of a terabyte": """
import os, shutil, sys
shutil.copytree(sys.argv[2], sys.argv[1] + '/.shardfs')
journal = sys.argv[1] + '/.shardfs/0/journal/'
os.truncate(journal + os.listdir(journal)[0], 2**40)
""",
    "thousands of slots": """
import os, sys
for number in range(3000):
    os.makedirs(f'{sys.argv[1]}/.shardfs/{number}/journal')
    open(f'{sys.argv[1]}/.shardfs/{number}/journal/1.journal', 'w')
""",
    "a link": "import os, sys; os.symlink(sys.argv[1] + '/image', sys.argv[1] + '/.shardfs')",
    "links as slot and journal": """
import os, sys
os.makedirs(sys.argv[1] + '/.shardfs/1')
os.symlink(sys.argv[1] + '/image', sys.argv[1] + '/.shardfs/0')
os.symlink(sys.argv[1] + '/image', sys.argv[1] + '/.shardfs/1/journal')
os.symlink(sys.argv[1] + '/image/zarr.json', sys.argv[1] + '/.shardfs/1/lock')
""",
    "a file": "import sys; open(sys.argv[1] + '/.shardfs', 'w')",
    "a set-id directory": "import os, sys; p = sys.argv[1] + '/.shardfs'; os.mkdir(p); os.chmod(p, 0o6777)",
    "a note of another host": """
import json, os, sys
os.makedirs(sys.argv[1] + '/.shardfs/0')
note = {"pid": 1, "host": "elsewhere", "user": "root", "mountpoint": None, "door": None}
open(sys.argv[1] + '/.shardfs/0/lock', 'w').write(json.dumps(note))
open(sys.argv[1] + '/.shardfs/lock', 'w').write(json.dumps(note))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANT.values(), ids=PLANT)
def test_what_another_user_plants_is_not_used_and_keeps_nobody_from_writing(
    mount: Mounter, source: Path, tmp_path: Path, plant: str
) -> None:
    planted = records(tmp_path, mount, source)
    before = stored(source)
    as_nobody(plant, source, planted)
    mounted = mount(source, write=True, expect=("",))
    assert (mounted.path / "image/c/0/0").read_bytes() != NEW, "nothing of it is shown"
    (mounted.path / "image/c/1/1").write_bytes(b"o" * 24)
    for slot in source.glob(".shardfs*/*"):
        owner = slot.lstat().st_uid
        if owner == 0 and slot.is_dir():
            assert not stat.S_IMODE(slot.stat().st_mode) & 0o022
            assert slot.parent.lstat().st_uid in (0, NOBODY)
    mounted.unmount()
    after = stored(source)
    changed = {path for path in after if before.get(path) != after[path]}
    assert changed <= {f"{source}/image/c/0/0"}, "the shard of the chunk that root wrote"
    assert NEW not in after[f"{source}/image/c/0/0"]


def test_nobody_else_can_remove_the_journal_of_a_session(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True)
    (mounted.path / "image/c/0/0").write_bytes(NEW)
    removing = """
import os, sys
for directory, _, _ in os.walk(sys.argv[1] + '/.shardfs'):
    for name in os.listdir(directory):
        for call in (os.unlink, lambda path: os.rename(path, f'{directory}/x')):
            try:
                call(f'{directory}/{name}')
            except OSError:
                continue
            sys.exit(f'{directory}/{name}')
"""
    as_nobody(removing, source)
    mounted.unmount()
    assert NEW in stored(source)[f"{source}/image/c/0/0"]


@pytest.mark.slow
def test_root_recovers_what_another_user_left_with_the_permissions_of_that_user(source: Path, mount: Mounter) -> None:
    """The user may write one array, and not the other, of which he has planted a record."""
    shutil.copytree(source / "image", source / "own")
    for path in [source / "own", *(source / "own").rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    publish = """
import os, signal, sys
import shardfs
dataset = shardfs.open(sys.argv[1], write=True)
dataset["own"].write_chunk((0, 0), b"n" * 24)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_program(publish, source, user=SOMEBODY)
    assert done.returncode == -9, done.stderr
    before = stored(source)
    mounted = mount(source, write=True, expect=("",))
    assert (mounted.path / "own/c/0/0").read_bytes() != NEW, "root's mount does not take it over"
    mounted.unmount()
    shown = run("recover", source)
    assert (shown.returncode, "chunk 0/0 of own" in shown.stdout) == (FAILED, True), shown.stdout
    applied = run("recover", "--apply", source)
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert NEW in (source / "own/c/0/0").read_bytes()
    assert stored(source) == before
    assert not (source / ".shardfs").exists()
