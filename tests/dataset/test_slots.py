"""Who may write a source: the lock in a directory, and slots of this machine for remote sources."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from shardfs.dataset.slots import Claim, hold, slots_of
from shardfs.dataset.state import StateDirectory, locked
from shardfs.errors import SourceError
from shardfs.stores.base import Address, Store
from shardfs.stores.local import syscalls
from tests.support.mounting import PATIENCE

ADDRESS = Address("s3://bucket/some path/data.zarr", "http://localhost:9000")


JOURNAL = "journal/00000001.journal"


class Remote:
    """As much of a remote store as there is to claim."""

    root = None
    address = ADDRESS


def remote() -> Store:
    return cast(Store, Remote())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/shardfs/remote"


def leave(*names: str, count: int) -> list[StateDirectory]:
    """Slots with files in them, as *count* mounts that are killed at the same time leave them."""
    with ExitStack() as stack:
        states = [stack.enter_context(hold(remote())).state for _ in range(count)]
        for number, state in enumerate(states):
            for name in names:
                path = Path(state.path, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(number))
    return states


def test_the_journals_of_other_killed_mounts_are_held_by_the_one_that_comes_next(home: Path) -> None:
    first, second, third = leave(JOURNAL, count=3)
    assert [os.stat(path).st_mode & 0o077 for path in (home, first.root, first.path, first.journal)] == [0] * 4
    with hold(remote()) as claim:
        assert claim == Claim(first, (second, third))
        with hold(remote()) as later:
            assert os.path.basename(later.state.root) == "3"
            assert not later.left
    assert [slot.state for slot in slots_of(remote())] == [first, second, third]


def test_files_that_killed_mounts_left_are_in_the_directory_of_the_next_or_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("spools/0123", "scratch/c/.0.partial", "staged/x/.chunks/c/0")
    first, second = leave(*names, "staged/f", "staged/g", count=2)
    for name in names:
        Path(second.path, name).rename(Path(second.path, name + ".2"))
    os.unlink(Path(second.path, "staged/f"))
    Path(second.path, "staged/f").mkdir()
    Path(second.path, "staged/f/x").write_text("x")
    with hold(remote()) as claim:
        assert claim == Claim(first, ())
        for name in names:
            assert (Path(first.path, name).read_text(), Path(first.path, name + ".2").read_text()) == ("0", "1")
        assert Path(first.path, "staged/f").read_text() == Path(first.path, "staged/g").read_text() == "0"
    assert (Path(second.path, "staged/f/x").read_text(), Path(second.path, "staged/g").read_text()) == ("x", "1")
    assert caplog.text.count("stays where it is") == 2


@pytest.mark.parametrize("said", ['{"url": "s3://bucket/other", "endpoint": ""}', "", '"damaged"', "{}"])
def test_a_journal_of_another_source_is_refused(said: str) -> None:
    first, second = leave(JOURNAL, count=2)
    source = Path(second.root, "source.json")
    own = source.read_text()
    assert json.loads(own) == {"url": ADDRESS.url, "endpoint": ADDRESS.endpoint}
    source.write_text(said) if said else source.unlink()
    with pytest.raises(SourceError, match="move it away") as caught, hold(remote()):
        pass
    assert second.root in str(caught.value)
    assert "s3://bucket/other" in str(caught.value) or "url" not in said
    assert Path(second.path, JOURNAL).exists()
    source.write_text(own)
    with hold(remote()) as claim:
        assert claim == Claim(first, (second,)), "the refused claim holds nothing"


CLAIMING = """
from pathlib import Path
from shardfs.dataset.slots import hold
from tests.dataset.test_slots import remote
for turn in range(40):
    with hold(remote()) as claim:
        mine = Path(claim.state.path, "mine")
        mine.touch(exist_ok=False)
        mine.unlink()
"""


def test_processes_that_come_and_go_never_have_the_same_slot(home: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", CLAIMING]) for _ in range(4)]
    assert [process.wait(PATIENCE) for process in processes] == [0] * 4
    assert os.listdir(home) == ["lock"]


# The lock of a directory


LOCAL = [0xEF53, 0x9123683E, 0x2FC12FC1]
"""ext4, btrfs, ZFS"""
SHARED = [0x6969, 0xFF534D42, 0x65735546, 0xC36400, 0x47504653, 0x19830326, 0x7461636F, None]
"""NFS, CIFS, FUSE, Ceph, GPFS, BeeGFS, OCFS2, unknown"""


def left_by_another_host(root: Path) -> StateDirectory:
    state = StateDirectory(str(root))
    os.makedirs(state.path, exist_ok=True)
    holder = {"pid": 1, "host": "elsewhere", "boot": "another", "started": "1"}
    Path(state.lock).write_text(json.dumps(holder))
    return state


def test_the_lock_file_of_another_host_is_believed_unless_the_file_system_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = left_by_another_host(tmp_path)
    for number in SHARED:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _, number=number: number)
        with pytest.raises(SourceError, match="elsewhere"), locked(state):
            pass
    for number in LOCAL:
        monkeypatch.setattr(syscalls, "_file_system_of", lambda _, number=number: number)
        with locked(left_by_another_host(tmp_path)):
            pass


@pytest.mark.parametrize("text", ["[" * 4000, '{"pid": 1e999, "host": "x"}', '{"pid": "x", "host": "x"}', "7", "\0"])
def test_what_a_lock_file_says_keeps_nobody_from_locking_it(tmp_path: Path, text: str) -> None:
    state = left_by_another_host(tmp_path)
    Path(state.lock).write_text(text)
    with locked(state):
        pass
