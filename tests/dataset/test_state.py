"""Who may write a source: slots, whose they are, which are dead, and who is alone."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from shardfs.dataset.state import holder
from shardfs.dataset.state.directory import StateDirectory
from shardfs.dataset.state.holding import hold, hold_all, hold_alone
from shardfs.dataset.state.slots import Life, slots_of
from shardfs.errors import SourceError
from shardfs.stores.base import Address, Descriptor, Store
from shardfs.stores.local import syscalls
from tests.support.commands import run_program, running_program
from tests.support.mounting import PATIENCE
from tests.support.processes import running
from tests.support.users import NOBODY, SOMEBODY, shared_directory

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
from shardfs.dataset.state.holding import hold
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
        processes = [stack.enter_context(running_program(CLAIMING)) for _ in range(4)]
        assert [process.wait(PATIENCE) for process in processes] == [0] * 4
    assert [os.listdir(path) for path in home.iterdir()] == [["source.json"]], "slots with nothing in them are removed"


def test_two_that_begin_at_the_same_moment_both_note_their_source(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replace_later(*paths: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        with hold(remote()):
            replace(*paths)

    monkeypatch.setattr(os, "replace", replace_later)
    with hold(remote()) as state:
        assert sorted(os.listdir(state.root)) == [".shardfs", "source.json"]


MOUNTING = """
from shardfs.dataset.state.holding import hold
from shardfs.dataset.journal.recovery import find_unstored
from tests.dataset.test_state import remote
assert find_unstored(remote()) is None
with hold(remote()) as state:
    print(state.root, state.key)
"""


@pytest.mark.slow
def test_a_slot_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of root, who used the home of somebody else."""
    with shared_directory() as home:
        monkeypatch.setenv("XDG_STATE_HOME", str(home))
        (state,) = leave(JOURNAL)
        for path in [*Path(state.root).parents[:2], *Path(state.root).rglob("*"), Path(state.root)]:
            if path != Path(state.path):
                os.chown(path, NOBODY, NOBODY)
        done = run_program(MOUNTING, user=SOMEBODY)
        assert (done.stderr, done.stdout) == ("", f"{state.root} .shardfs/1\n")


# Local directories


LOCAL = [0xEF53, 0x9123683E, 0x2FC12FC1]
"""ext4, btrfs, ZFS"""
SHARED = [0x6969, 0xFF534D42, 0x65735546, 0xC36400, 0x47504653, 0x19830326, 0x7461636F, None]
"""NFS, CIFS, FUSE, Ceph, GPFS, BeeGFS, OCFS2, unknown"""


class Local:
    """As much of a local store as there is to write to."""

    directory = None

    def __init__(self, root: Path) -> None:
        self.root = self.url = str(root)
        self.address = Address(self.root)


def local(root: Path) -> Store:
    return cast(Store, Local(root))


def left_by_another_host(root: Path, number: int = 0, **note: object) -> StateDirectory:
    """The slot of a session on another host, of which only the note says whether it is alive."""
    state = StateDirectory(str(root), f".shardfs/{number}")
    os.makedirs(state.path, exist_ok=True)
    Path(state.lock).write_text(json.dumps({"pid": 1, "host": "elsewhere", **note}))
    return state


def test_any_number_of_sessions_hold_slots_of_one_directory(tmp_path: Path) -> None:
    with ExitStack() as stack:
        states = [stack.enter_context(hold(local(tmp_path), door="open")) for _ in range(5)]
        assert len({state.path for state in states}) == 5
        holders = [slot.holder for slot in slots_of(local(tmp_path))]
        assert {(each.pid, each.door) for each in holders if each} == {(os.getpid(), "open")}
    assert not os.listdir(tmp_path)


def test_a_slot_whose_journal_cannot_be_listed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows that nothing is left in it, be it the own one or that of a killed session."""
    scandir = os.scandir

    def fails(path: str) -> object:
        if str(path).endswith("/journal"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    with hold(local(tmp_path)) as one, hold(local(tmp_path)) as other:
        segments = [Path(tmp_path, state.key, "journal/1.journal") for state in (one, other)]
        for segment in segments:
            segment.write_bytes(b"published")
    with monkeypatch.context() as patch, hold(local(tmp_path)):
        patch.setattr(os, "scandir", fails)
    assert [segment.read_bytes() for segment in segments] == [b"published"] * 2


def test_a_slot_of_another_host_is_believed_unless_the_file_system_is_local(
    tmp_path: Path, file_system: Callable[..., None]
) -> None:
    state = left_by_another_host(tmp_path)
    for number in SHARED:
        file_system(number)
        with pytest.raises(SourceError, match="elsewhere") as caught, hold(local(tmp_path)):
            pass
        assert f"remove {state.lock}" in str(caught.value)
    for number in LOCAL:
        file_system(number)
        left_by_another_host(tmp_path)
        with hold(local(tmp_path)):
            pass


PROOFS = {
    "nothing is known": ((None, None), False),
    "both keep locks on the server": ((True, True), True),
    "only this host does": ((True, None), False),
    "the other host keeps its locks": ((True, False), False),
    "this host keeps its locks": ((False, True), False),
}
"""Whether locks reach the server as this host and as the other one sees it; whether the other one's session is dead."""


@pytest.mark.parametrize(("reach", "is_dead"), PROOFS.values(), ids=PROOFS)
def test_a_free_lock_of_another_host_is_dead_if_both_keep_locks_on_the_server(
    tmp_path: Path, file_system: Callable[..., None], reach: tuple[bool | None, bool | None], is_dead: bool
) -> None:
    here, there = reach
    file_system(0x6969, locks_reach=here)
    left_by_another_host(tmp_path, locks_reach=there)
    (slot,) = slots_of(local(tmp_path))
    assert slot.life is (Life.DEAD if is_dead else Life.UNKNOWN)


@pytest.mark.parametrize("others", [None, False])
def test_a_lock_of_another_host_that_is_seen_proves_that_locks_reach(
    tmp_path: Path, file_system: Callable[..., None], others: bool | None
) -> None:
    file_system(0x6969)
    live = left_by_another_host(tmp_path, 1)
    left_by_another_host(tmp_path, 0, locks_reach=others)
    file = os.open(live.lock, os.O_RDWR)
    try:
        assert syscalls.ofd_lock(file)
        lives = {slot.name: slot.life for slot in slots_of(local(tmp_path))}
        assert lives == {"1": Life.LIVE, "0": Life.DEAD if others is None else Life.UNKNOWN}
    finally:
        os.close(file)


def test_another_container_of_this_machine_sees_the_same_locks(
    tmp_path: Path, file_system: Callable[..., None]
) -> None:
    file_system(0x6969)
    file = Descriptor(os.open(tmp_path, os.O_RDONLY))
    left_by_another_host(tmp_path, kernel=holder.kernel_of(file.fd))
    (slot,) = slots_of(local(tmp_path))
    assert slot.life is Life.DEAD


MOUNTS = {
    ("nfs4", "rw,vers=4.2,local_lock=none,addr=127.0.0.1"): True,
    ("nfs", "rw,vers=3,nolock,local_lock=all"): False,
    ("nfs", "rw,vers=3,local_lock=flock"): False,
    ("nfs", "rw,vers=3,local_lock=none"): True,
    ("lustre", "rw,flock,lazystatfs"): True,
    ("lustre", "rw,localflock"): False,
    ("lustre", "rw"): False,
    ("ceph", "rw,name=admin"): True,
    ("gpfs", "rw"): True,
    ("cifs", "rw,nobrl"): False,
    ("cifs", "rw"): None,
    ("fuse.sshfs", "rw,user_id=0"): None,
}


def test_options_of_a_mount_say_whether_its_locks_reach_all_hosts() -> None:
    assert {mount: syscalls.judge_locks(*mount) for mount in MOUNTS} == MOUNTS


@pytest.mark.parametrize("text", ["[" * 4000, '{"pid": 1e999, "host": "x"}', '{"pid": "x", "host": "x"}', "7", "\0"])
def test_what_a_lock_file_says_keeps_nobody_from_locking_it(tmp_path: Path, text: str) -> None:
    state = left_by_another_host(tmp_path)
    Path(state.lock).write_text(text)
    with hold(local(tmp_path)) as taken:
        assert taken == state


READS_LOCK = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
print("locked", flush=True)
sys.stdin.read()
"""


def test_whoever_may_only_read_a_lock_file_is_not_taken_for_a_session(tmp_path: Path) -> None:
    state = left_by_another_host(tmp_path)
    Path(state.path, "journal").mkdir()
    Path(state.path, JOURNAL).touch()
    with running(
        [sys.executable, "-c", READS_LOCK, state.lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == b"locked\n"
        assert [slot.life for slot in slots_of(local(tmp_path))] == [Life.DEAD]
        with pytest.raises(SourceError, match="fuser -v") as caught, hold(local(tmp_path)):
            pass
        assert state.lock in str(caught.value)
        reader.stdin.close()
        assert reader.wait(PATIENCE) == 0
    with hold(local(tmp_path)) as held:
        assert held == state


def test_who_is_alone_keeps_all_others_away_and_is_kept_away_by_them(tmp_path: Path) -> None:
    refused = pytest.raises(SourceError, match="already being written")
    with hold(local(tmp_path)), refused, hold_alone(local(tmp_path)):
        pass
    with hold_alone(local(tmp_path)):
        for other in (hold, hold_alone):
            with pytest.raises(SourceError, match=f"written by process {os.getpid()} on"), other(local(tmp_path)):
                pass
    assert not os.listdir(tmp_path)


AS_BEFORE = """
import fcntl, json, os, socket, struct, sys
os.makedirs(sys.argv[1] + "/.shardfs/journal", exist_ok=True)
file = os.open(sys.argv[1] + "/.shardfs/lock", os.O_RDWR | os.O_CREAT)
try:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
except OSError:
    found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    sys.exit(f"refused {struct.unpack('hhqqi4x', found)[0] != fcntl.F_UNLCK}")
note = {"pid": os.getpid(), "host": socket.gethostname(), "user": "me", "mountpoint": None}
os.pwrite(file, json.dumps(note).encode().ljust(4096), 0)
print("locked", flush=True)
sys.stdin.read()
"""
"""What a version with a single slot did with its lock."""


def test_an_earlier_version_refuses_beside_sessions_and_is_refused_beside(tmp_path: Path) -> None:
    with hold(local(tmp_path)), hold(local(tmp_path)):
        before = subprocess.run(
            [sys.executable, "-c", AS_BEFORE, tmp_path], capture_output=True, text=True, check=False
        )
        assert before.stderr == "refused True\n"
    with running([sys.executable, "-c", AS_BEFORE, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(SourceError, match=f"written by process {process.pid} on"), hold(local(tmp_path)):
            pass
        process.kill()
        process.wait(PATIENCE)
    (tmp_path / ".shardfs" / JOURNAL).touch()
    with hold(local(tmp_path)) as state:
        assert Path(state.path, JOURNAL).exists(), "what it left is taken over"
        assert not (tmp_path / ".shardfs/journal").exists()


@pytest.mark.parametrize("nrenames", range(4))
def test_who_is_killed_while_the_state_of_an_earlier_version_gets_a_slot_leaves_nothing_that_nobody_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nrenames: int
) -> None:
    former = {"journal/00000001.journal", "conflicts/00000002.journal", "scratch/0"}
    for name in former:
        (tmp_path / ".shardfs" / name).parent.mkdir(parents=True)
        (tmp_path / ".shardfs" / name).touch()
    left, rename = nrenames, os.rename

    def dies(*paths: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with pytest.raises(KeyboardInterrupt), hold(local(tmp_path)):
            pass
    with hold_all(local(tmp_path)) as states:
        files = {str(path.relative_to(state.path)) for state in states for path in Path(state.path).rglob("*/0*")}
        assert files >= former


def test_remote_slots_of_an_earlier_version_are_taken_over(home: Path) -> None:
    (state,) = leave(JOURNAL)
    root = Path(state.root)
    (root / "7").mkdir()
    (root / "7/.shardfs").mkdir()
    for name in ("journal", "lock"):
        Path(state.path, name).rename(root / "7/.shardfs" / name)
    (root / "source.json").rename(root / "7/source.json")
    shutil.rmtree(root / ".shardfs")
    with hold(remote()) as held:
        assert Path(held.path, JOURNAL).exists()
        assert sorted(os.listdir(root)) == [".shardfs", "source.json"]


def test_a_child_that_is_forked_keeps_no_slot(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(hold(local(tmp_path)))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(writing)
            stack.close()  # as a program that ends in the child
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
        assert [slot.life for slot in slots_of(local(tmp_path))] == [Life.LIVE], "the child has not ended it"
        stack.close()
        assert not os.listdir(tmp_path), "nor does it live on in the child"
        os.close(writing)
        os.waitpid(child, 0)


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_in_a_directory_for_everybody_only_roots_and_own_state_counts(tmp_path: Path, mode: int) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    public, source = tmp_path / "public", tmp_path / "public/data.zarr"
    source.mkdir(parents=True)
    public.chmod(mode)
    journal = public / ".shardfs/0" / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.touch()
    with pytest.raises(SourceError, match="overlaps"), hold(local(source)):
        pass
    for path in (public / ".shardfs", journal.parent.parent, journal.parent, journal):
        os.chown(path, NOBODY, NOBODY)
    if mode == 0o1777:
        with hold(local(source)):
            pass
    else:
        with pytest.raises(SourceError, match="overlaps"), hold(local(source)):
            pass
