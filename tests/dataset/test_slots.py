"""Which directory of this machine a process writes in that writes to a remote source, and what it finds there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from shardfs.dataset.slots import Claim, all_slots, has_journal, hold, slots_of
from shardfs.dataset.state import Holder, StateDirectory
from shardfs.errors import SourceError, UsageError
from shardfs.stores.base import Address, Store
from tests.support.mounting import PATIENCE

ADDRESS = Address("s3://bucket/some path/data.zarr", "http://localhost:9000")


class Remote:
    """As much of a remote store as there is to claim."""

    root = None

    def __init__(self, address: Address = ADDRESS) -> None:
        self.address = address


def remote(address: Address = ADDRESS) -> Store:
    return cast(Store, Remote(address))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/shardfs/remote"


def files_of(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def number(state: StateDirectory) -> int:
    return int(os.path.basename(state.root))


def leave(*names: str, address: Address = ADDRESS, count: int = 1) -> list[StateDirectory]:
    """Slots with files in them, as *count* mounts that are killed at the same time leave them."""
    with ExitStack() as stack:
        states = [stack.enter_context(hold(remote(address))).state for _ in range(count)]
        for state in states:
            for name in names:
                path = Path(state.path, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(number(state)))
    return states


JOURNAL = "journal/00000001.journal"


def test_a_slot_has_all_that_a_mount_needs_and_goes_when_it_is_empty(home: Path) -> None:
    with hold(remote()) as claim:
        state = claim.state
        assert Path(state.root).is_relative_to(home)
        assert number(state) == 0
        for directory in (state.journal, state.conflicts, state.drafts):
            assert os.path.isdir(directory)
        said = json.loads(Path(state.root, "source.json").read_text())
        assert said == {"url": ADDRESS.url, "endpoint": ADDRESS.endpoint}
    assert files_of(home) == ["lock"]


def test_nobody_else_may_read_what_is_on_its_way(home: Path) -> None:
    with hold(remote()) as claim:
        for path in (claim.state.root, claim.state.path, claim.state.journal, home):
            assert os.stat(path).st_mode & 0o077 == 0


def test_mounts_of_one_source_have_slots_of_their_own() -> None:
    with hold(remote()) as first, hold(remote()) as second, hold(remote()) as third:
        assert [number(claim.state) for claim in (first, second, third)] == [0, 1, 2]
        assert not any(claim.left for claim in (first, second, third))


def test_the_first_slot_that_is_free_is_claimed() -> None:
    with hold(remote()), ExitStack() as stack:
        stack.enter_context(hold(remote()))
        with hold(remote()) as third:
            stack.close()
            with hold(remote()) as again:
                assert [number(claim.state) for claim in (third, again)] == [2, 1]


@pytest.mark.parametrize(
    "other", [Address("s3://bucket/other", ADDRESS.endpoint), Address(ADDRESS.url), Address(ADDRESS.url, "http://b:1")]
)
def test_another_source_or_the_same_url_elsewhere_has_directories_of_its_own(other: Address) -> None:
    leave(JOURNAL)
    with hold(remote(other)) as claim:
        assert not claim.state.has_journal()
        assert not claim.left
    assert slots_of(remote(other)) == []


def test_what_a_killed_mount_left_is_claimed_first() -> None:
    with hold(remote()):
        (left,) = leave(JOURNAL)
        with hold(remote()) as claim:
            assert claim.state == left
            assert number(left) == 1
            assert claim.state.has_pending()


def test_the_journals_of_other_killed_mounts_are_held_by_the_one_that_comes_next() -> None:
    first, second, third = leave(JOURNAL, count=3)
    with hold(remote()) as claim:
        assert claim == Claim(first, (second, third))
        with hold(remote()) as later:
            assert number(later.state) == 3
            assert not later.left
    assert [slot.state for slot in slots_of(remote())] == [first, second, third]


@pytest.mark.parametrize("name", ["spools/0123", "scratch/c/.0.partial", "staged/x/.chunks/c/0"])
def test_files_that_killed_mounts_left_are_in_the_directory_of_the_next(name: str) -> None:
    first, second = leave(name, count=2)
    Path(second.path, name).rename(Path(second.path, name + ".2"))
    with hold(remote()) as claim:
        assert Path(claim.state.path, name).read_text() == "0"
        assert Path(claim.state.path, name + ".2").read_text() == "1"
        assert not claim.left
    assert [slot.state for slot in slots_of(remote())] == [first]


def test_what_two_killed_mounts_have_under_one_name_is_kept_in_both_places(caplog: pytest.LogCaptureFixture) -> None:
    first, second = leave("staged/f", "staged/g", count=2)
    os.unlink(Path(second.path, "staged/f"))
    Path(second.path, "staged/f").mkdir()
    Path(second.path, "staged/f/x").write_text("x")
    with hold(remote()) as claim:
        assert claim.state == first
        assert Path(first.path, "staged/f").read_text() == Path(first.path, "staged/g").read_text() == "0"
    assert (Path(second.path, "staged/f/x").read_text(), Path(second.path, "staged/g").read_text()) == ("x", "1")
    assert caplog.text.count("stays where it is") == 2


@pytest.mark.parametrize("said", [{"url": "s3://bucket/other", "endpoint": ""}, None, "damaged"])
def test_a_journal_of_another_source_is_refused(said: Any) -> None:
    (state,) = leave(JOURNAL)
    source = Path(state.root, "source.json")
    source.unlink()
    if said is not None:
        source.write_text(json.dumps(said))
    with pytest.raises(SourceError, match="move it away") as caught, hold(remote()):
        pass
    assert state.root in str(caught.value)
    assert "s3://bucket/other" in str(caught.value) or not isinstance(said, dict)
    assert Path(state.path, JOURNAL).exists()


def test_a_journal_that_was_moved_to_another_source_is_refused_there(home: Path) -> None:
    (state,) = leave(JOURNAL)
    other = Address("s3://bucket/other")
    (there,) = leave(JOURNAL, address=other)
    shutil.rmtree(there.root)
    shutil.move(state.root, there.root)
    assert [slot.address for slot in (*slots_of(remote(other)), *all_slots())] == [None, None]
    with pytest.raises(SourceError, match="belongs to s3://bucket/some path"), hold(remote(other)):
        pass


def test_a_refused_claim_holds_nothing() -> None:
    first, second = leave(JOURNAL, count=2)
    source = Path(second.root, "source.json")
    said = source.read_text()
    source.write_text("{}")
    with pytest.raises(SourceError), hold(remote()):
        pass
    source.write_text(said)
    with hold(remote()) as claim:
        assert claim == Claim(first, (second,))


def test_where_no_state_can_be_kept_the_message_says_so(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(SourceError, match="needed to write"), hold(remote()):
        pass


def test_without_a_home_there_is_nothing_and_nothing_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.chdir(tmp_path)
    assert not has_journal(remote())
    with pytest.raises(UsageError, match="XDG_STATE_HOME"), hold(remote()):
        pass
    assert os.listdir(tmp_path) == []


def test_slots_in_use_are_told_from_those_that_were_left() -> None:
    with hold(remote()) as used:
        Path(used.state.journal, "00000001.journal").touch()
        assert not has_journal(remote())  # it is on its way
        leave(JOURNAL)
        assert has_journal(remote())
        held, left = slots_of(remote())
    assert held.holder == Holder.own()
    assert held.holder[:2] == (os.getpid(), socket.gethostname())
    assert left.holder is None
    assert (held.address, held.number, left.number) == (ADDRESS, 0, 1)


CLAIMING = """
import os, sys
from pathlib import Path
from shardfs.dataset.slots import hold
from tests.dataset.test_slots import remote
for turn in range(int(sys.argv[1])):
    with hold(remote()) as claim:
        mine = Path(claim.state.path, "mine")
        mine.touch(exist_ok=False)
        mine.unlink()
if sys.argv[2]:
    with hold(remote()) as claim:
        print(claim.state.root, flush=True)
        sys.stdin.read()
"""


@contextmanager
def claiming(turns: int, *, wait: bool = False) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIMING, str(turns), "wait" if wait else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


def test_processes_that_come_and_go_never_have_the_same_slot(home: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(claiming(40)) for _ in range(4)]
    assert [process.returncode for process in processes] == [0] * 4
    assert files_of(home) == ["lock"]


def test_a_slot_is_free_when_its_process_was_killed() -> None:
    with claiming(0, wait=True) as process:
        assert process.stdout is not None
        root = process.stdout.readline().strip()
        (slot,) = slots_of(remote())
        assert slot.state.root == root
        assert slot.holder is not None
        assert slot.holder.pid == process.pid
        process.kill()
        process.wait(PATIENCE)
    with hold(remote()) as claim:
        assert claim.state.root == root
