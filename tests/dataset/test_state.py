"""Who may write a source: the lock in a directory, and slots of this machine for remote sources."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from shardfs.dataset.state.directory import StateDirectory
from shardfs.dataset.state.lock import find_holder, locked
from shardfs.dataset.state.slots import hold, hold_all
from shardfs.errors import SourceError
from shardfs.stores.base import Address, Store
from shardfs.stores.local import syscalls
from tests.support.mounting import PATIENCE
from tests.support.processes import running
from tests.support.users import AS_NOBODY, NOBODY, everyones_python, shared_directory

ADDRESS = Address("s3://bucket/some path/data.zarr", "http://localhost:9000")
JOURNAL = "journal/00000001.journal"


class Remote:
    """As much of a remote store as there is to claim."""

    root = None
    address = ADDRESS
    url = ADDRESS.url


def remote() -> Store:
    return cast(Store, Remote())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/shardfs/remote"


def leave(*names: str) -> list[StateDirectory]:
    """Slots with one file each, as mounts that are killed at the same time leave them."""
    with ExitStack() as stack:
        states = [stack.enter_context(hold(remote())) for _ in names]
        for state, name in zip(states, names, strict=True):
            Path(state.path, name).parent.mkdir(exist_ok=True)
            Path(state.path, name).touch()
    return states


def test_what_killed_mounts_left_is_held_by_one_process_after_the_other_or_by_one_that_recovers(home: Path) -> None:
    spool, first, second = leave("spools/0123", JOURNAL, JOURNAL)
    assert [os.stat(path).st_mode & 0o077 for path in (home, first.root)] == [0] * 2, "nobody else comes in"
    with hold_all(remote()) as states:
        assert states == [first, spool, second]
        with hold(remote()) as own:
            assert own not in states
    with hold(remote()) as one, hold(remote()) as two, hold(remote()) as three:
        assert (one, two, three) == (first, second, spool)


@pytest.mark.parametrize("said", ['{"url": "s3://bucket/other", "endpoint": ""}', "", '"damaged"', "{}"])
def test_a_journal_of_another_source_is_refused(said: str) -> None:
    (state,) = leave(JOURNAL)
    source = Path(state.root, "source.json")
    own = source.read_text()
    assert json.loads(own) == {"url": ADDRESS.url, "endpoint": ADDRESS.endpoint}
    source.write_text(said) if said else source.unlink()
    with pytest.raises(SourceError, match="move it away") as caught, hold(remote()):
        pass
    assert state.root in str(caught.value)
    assert Path(state.path, JOURNAL).exists()
    source.write_text(own)
    with hold(remote()) as held:
        assert held == state


CLAIMING = """
from pathlib import Path
from shardfs.dataset.state.slots import hold
from tests.dataset.test_state import remote
for turn in range(40):
    with hold(remote()) as state:
        mine = Path(state.path, "mine")
        mine.touch(exist_ok=False)
        mine.unlink()
"""


@pytest.mark.slow
def test_processes_that_come_and_go_never_have_the_same_slot(home: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(running([sys.executable, "-c", CLAIMING])) for _ in range(4)]
        assert [process.wait(PATIENCE) for process in processes] == [0] * 4
    assert [os.listdir(path) for path in home.iterdir()] == [[]], "slots in which nothing is left are removed"


MOUNTING = """
from shardfs.dataset.state.slots import hold
from shardfs.dataset.journal.recovery import find_unstored
from tests.dataset.test_state import remote
assert find_unstored(remote()) is None
with hold(remote()) as state:
    print(state.root)
"""


@pytest.mark.slow
def test_a_slot_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of root, who used the home of somebody else."""
    with shared_directory() as home:
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        (state,) = leave(JOURNAL)
        for path in Path(state.root).parents[:4]:
            os.chown(path, NOBODY, NOBODY)
        done = subprocess.run(
            [*AS_NOBODY, everyones_python(), "-c", MOUNTING], capture_output=True, text=True, check=False
        )
        assert (done.stderr, done.stdout) == ("", f"{Path(state.root).with_name('1')}\n")


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


READS_LOCK = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
print("locked", flush=True)
sys.stdin.read()
"""


def test_whoever_may_only_read_the_lock_file_is_not_taken_for_a_writer(tmp_path: Path) -> None:
    state = StateDirectory(str(tmp_path))
    with ExitStack() as stack:
        stack.enter_context(locked(state))
        content = Path(state.lock).read_bytes()
    Path(state.path).mkdir()
    Path(state.lock).write_bytes(content)  # as a killed process leaves it
    with running(
        [sys.executable, "-c", READS_LOCK, state.lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == b"locked\n"
        assert find_holder(state) is None
        with pytest.raises(SourceError, match="fuser -v") as caught, locked(state):
            pass
        assert state.lock in str(caught.value)
        reader.stdin.close()
        assert reader.wait(PATIENCE) == 0
    with locked(state):
        assert find_holder(state) is not None


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_in_a_directory_for_everybody_only_roots_and_own_state_counts(tmp_path: Path, mode: int) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    public, source = tmp_path / "public", tmp_path / "public/data.zarr"
    source.mkdir(parents=True)
    public.chmod(mode)
    journal = public / ".shardfs" / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.touch()
    with pytest.raises(SourceError, match="overlaps"), locked(StateDirectory(str(source))):
        pass
    for path in (public / ".shardfs", journal.parent, journal):
        os.chown(path, NOBODY, NOBODY)
    if mode == 0o1777:
        with locked(StateDirectory(str(source))):
            pass
    else:
        with pytest.raises(SourceError, match="overlaps"), locked(StateDirectory(str(source))):
            pass
