"""The sessions that write a directory, as commands list them."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.state.holding import hold
from shardfs.stores.local.reader import LocalReader
from tests.cli.conftest import Background
from tests.support.commands import FAILED, run, run_json, running_program
from tests.support.corpus import array, sharding
from tests.support.daemons import daemon_of
from tests.support.datasets import store
from tests.support.mounting import PATIENCE
from tests.support.prepared import Prepared
from tests.support.users import SOMEBODY, shared_directory

WRITING = """
import sys
import shardfs

dataset = shardfs.open(sys.argv[1], write=True)
dataset[""].write_chunk((1, 1), bytes(24))
print("ready", flush=True)
sys.stdin.read()
"""
SERVING = """
import sys
from shardfs import cli
sys.argv[1:] = ["serve", "--write", "--port", "0", *sys.argv[1:]]
cli.main()
"""


@contextmanager
def started(program: str, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes] | Prepared]:
    """A process of Python that has said a line, and is killed at the end."""
    with running_program(program, *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()
        process.wait(PATIENCE)


def sessions(source: Path, **variables: str) -> dict[str, dict[str, Any]]:
    """Those of a directory, by their door."""
    rows = run_json("mounts", "--json", source, **variables)
    assert len({row["door"] for row in rows}) == len(rows), rows
    return {row["door"]: row for row in rows}


def test_sessions_of_a_directory_are_listed_with_who_writes_how_and_what_is_pending(
    background: Background, source: Path, place: Path
) -> None:
    begun = time.time()
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(b"n" * 24)
    with started(SERVING, source) as server, started(WRITING, source) as program:
        found = sessions(source)
        assert {door: row["pid"] for door, row in found.items()} == {
            "mount": daemon_of(place),
            "serve": server.pid,
            "open": program.pid,
        }
        for row in found.values():
            assert (row["state"], row["host"], row["user"]) == ("writing", socket.gethostname(), "root")
            assert begun - 1 < row["since"] < time.time() + 1
        assert (found["mount"]["mountpoint"], found["mount"]["pending_chunks"]) == (str(place), 1)
        assert (found["open"]["mountpoint"], found["open"]["pending_chunks"]) == (None, None)
        assert found["open"]["journal_nbytes"] > 24
        assert found["serve"]["journal_nbytes"] == 0
        table = run("mounts", source).stdout.splitlines()
        assert len(table) == 4
        assert table[0].split()[:6] == ["HOST", "PID", "USER", "DOOR", "STATE", "MOUNTPOINT"]
        notes = [row["what"] for row in json.loads(run("doctor", "--json", source).stdout)]
        for row in found.values():
            (note,) = (what for what in notes if f"process {row['pid']} on" in what)
            assert f"door {row['door']}" in note
        recovered = run_json("recover", "--json", source, status=FAILED)
        assert {row["pid"] for row in recovered["sessions"]} == {row["pid"] for row in found.values()}
        assert run("flush", place).returncode == 0
        assert run_json("stats", "--json", place)["other_sessions"] == 2
        assert sessions(source)["mount"]["pending_chunks"] == 0
    assert run("umount", place).returncode == 0
    assert run("mounts", source).stdout == "nobody writes it\n"


def test_a_session_that_was_killed_is_listed_for_as_long_as_its_journal_is_there(source: Path) -> None:
    with started(WRITING, source) as program:
        program.kill()
        program.wait(PATIENCE)
        (row,) = run_json("mounts", "--json", source)
        assert (row["state"], row["pid"]) == ("ended", None)
        assert row["journal_nbytes"] > 24
    assert run("recover", "--apply", source).returncode == 0
    assert run_json("mounts", "--json", source) == []


HOSTILE = {
    "escapes": {"pid": 5, "host": "\x1b[2Jhost\nroot", "user": "\u202e", "door": "\x07", "since": 1e300},
    "long": {"pid": 5, "host": "h" * 3000, "user": "u", "door": "d", "mountpoint": "\n" * 300, "since": -1},
    "huge": {"pid": int("9" * 3000), "host": "h", "since": 0},
    "odd": {"pid": 5, "host": ["h"], "user": {}, "door": 7, "since": "NaN", "mountpoint": "\ud800"},
}


@pytest.mark.parametrize("note", HOSTILE.values(), ids=HOSTILE)
def test_what_others_wrote_into_lock_files_is_shown_escaped_and_of_bounded_length(
    source: Path, note: dict[str, Any]
) -> None:
    with hold(LocalReader(str(source))) as state:
        with open(state.lock, "r+b") as lock:
            lock.write(json.dumps(note).encode().ljust(4096))
        for command, status in (("mounts", 0), ("doctor", 0), ("recover", 0)):
            done = run(command, source)
            assert done.returncode == status or command == "doctor", str(done)
            assert all(line.isprintable() for line in done.stdout.splitlines())
            assert "Traceback" not in done.stderr
            rows = json.loads(run(command, "--json", source).stdout)
            assert rows
        for row in run_json("mounts", "--json", source):
            assert all(len(row[name] or "") <= 255 for name in ("host", "user", "door"))
            assert row["user"] == "root", "whose the slot is, and not what the note says"


@pytest.mark.slow
def test_sessions_of_other_users_are_listed() -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    with shared_directory() as directory:
        store(directory / "source", array((8, 12), (4, 6), sharding((2, 3))))
        with started(WRITING, directory / "source"):
            done = run("mounts", "--json", directory / "source", user=SOMEBODY, XDG_STATE_HOME=str(directory))
            assert done.returncode == 0, str(done)
            (row,) = json.loads(done.stdout)
            assert (row["user"], row["door"], row["state"]) == ("root", "open", "writing")
            assert row["journal_nbytes"] > 24
        run("recover", "--apply", directory / "source")
