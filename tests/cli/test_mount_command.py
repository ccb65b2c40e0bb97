"""`shardfs mount` in the background and in the foreground: what it says, what it leaves, what it outlives."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Background
from tests.support.commands import run
from tests.support.daemons import daemon_of, has_ended
from tests.support.mounting import PATIENCE, command, environment, mount_points

CHUNK = "c/0/0"


def test_it_returns_when_the_mount_answers_and_umount_when_the_daemon_is_gone(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    """Whatever lies in the directory that it is started in, which may be a dataset of others, on a disk to be taken."""
    (source / "json.py").write_text(f"open({str(tmp_path / 'was run')!r}, 'w'); raise SystemExit('owned')")
    done = background(".", place, cwd=source, is_fresh=True)
    assert (place / CHUNK).stat().st_size == 24
    (log,) = background.logs.iterdir()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{source} is mounted at {place}, read-only (log: {log})\n"
    assert not (tmp_path / "was run").exists()
    assert os.readlink(f"/proc/{daemon_of(place)}/cwd") == "/"
    daemon = os.pidfd_open(daemon_of(place))
    done = run("umount", place)
    assert has_ended(daemon)
    os.close(daemon)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert str(place) not in mount_points()
    assert os.listdir(place) == []


def test_the_daemon_outlives_the_terminal_that_it_was_started_from(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    master, terminal = pty.openpty()
    login = "import fcntl, os, subprocess, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    login += "subprocess.run(sys.argv[1:], check=True); os.write(1, b'mounted.'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", login, *command("mount", source, place)],
        env=environment() | {"XDG_STATE_HOME": str(tmp_path / "state")},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as shell:
        os.close(terminal)
        said = b""
        while b"mounted." not in said:
            said += os.read(master, 1000)
        os.close(master)  # the line is cut: the session is told to hang up
        assert shell.wait(PATIENCE) == -signal.SIGHUP
    assert (place / CHUNK).stat().st_size == 24
    assert os.getsid(daemon_of(place)) == daemon_of(place)
    assert run("umount", place).returncode == 0
