"""Processes that are forked are like those that start afresh."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.commands import FAILED, WRONG_USAGE, run
from tests.support.corpus import BASE
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, environment, mounter
from tests.support.prepared import Prepared, can_be_prepared

pytestmark = pytest.mark.skipif(bool(os.environ.get("SHARDFS_LONG")), reason="all processes are fresh in long runs")


def fresh(*arguments: str | Path, cwd: Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    done = run(*arguments, cwd=cwd, prefix=("env",), **env)
    return done.returncode, done.stdout, done.stderr


def test_a_forked_process_says_and_returns_what_a_fresh_one_does(tmp_path: Path) -> None:
    store(tmp_path / "source", BASE)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/zarr.json").write_text("{")
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    statuses = []
    for arguments in (
        ("info", "source"),
        ("info", "--json", os.fsdecode(b"broken\xff")),
        ("verify", "broken"),
        ("info", "--no-such-option"),
        ("recover", "--json"),
    ):
        forked = run(*arguments, cwd=tmp_path, **state)
        statuses.append(forked.returncode)
        assert (forked.returncode, forked.stdout, forked.stderr) == fresh(*arguments, cwd=tmp_path, env=state)
    assert {0, FAILED, WRONG_USAGE} <= set(statuses)


def test_variables_that_are_read_at_the_start_make_a_process_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # as a library does for its own process
    assert can_be_prepared(environment() | {"XDG_STATE_HOME": "/state", "AWS_REGION": "here", "TERM": "xterm"})
    assert not can_be_prepared(environment() | {"PYTHONWARNINGS": "error"})
    assert not can_be_prepared(environment() | {"LC_ALL": "C"})
    assert not can_be_prepared({name: value for name, value in environment().items() if name != "PYTHONPATH"})


def test_forked_processes_have_nothing_of_each_other_and_say_how_they_ended(tmp_path: Path) -> None:
    store(tmp_path / "source", BASE)
    with mounter(tmp_path) as mount:
        first, second = mount(tmp_path / "source"), mount(tmp_path / "source")
        assert isinstance(first.process, Prepared)
        assert first.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            first.process.wait(0)
        links = [os.readlink(entry) for entry in Path(f"/proc/{second.process.pid}/fd").iterdir()]
        assert links.count("/dev/fuse") == 1
        first.process.kill()
        assert first.process.wait(PATIENCE) == first.process.poll() == -signal.SIGKILL
        first.process.terminate()  # no process, and no other that has its number now
        assert second.process.poll() is None


def test_forked_processes_end_with_the_tests(tmp_path: Path) -> None:
    """Even if those are killed."""
    store(tmp_path / "source", BASE)
    (tmp_path / "place").mkdir()
    program = (
        "import subprocess, sys, time\n"
        "from tests.support.mounting import environment\n"
        "from tests.support.prepared import Prepared\n"
        "arguments = ['mount', '-f', *sys.argv[1:]]\n"
        "process = Prepared(arguments, env=environment(), cwd=None, stdout=subprocess.PIPE, stderr=2)\n"
        "process.stdout.readline()\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "source", tmp_path / "place"],
        env=environment(),
        stdout=subprocess.PIPE,
    ) as tests:
        assert tests.stdout
        pidfd = os.pidfd_open(int(tests.stdout.readline()))
        tests.kill()
    assert select.select([pidfd], [], [], PATIENCE)[0]
    os.close(pidfd)
    assert not os.path.ismount(tmp_path / "place")
