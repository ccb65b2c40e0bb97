"""The daemon behind `shardfs mount`: what it outlives, its log, and what it tells systemd."""

import logging
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import zarr

from shardfs.service.log import OneLine
from tests.cli.conftest import Background
from tests.cli.test_umount import NEW, stored
from tests.support.commands import run, run_json
from tests.support.daemons import daemon_of, has_ended
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, Mounter, command, environment, eventually, mount_points
from tests.support.processes import running
from tests.support.users import TOP

CHUNK = "c/0/0"


def test_mount_returns_when_it_answers_and_umount_when_the_daemon_is_gone(
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


def test_the_daemon_outlives_its_terminal(background: Background, source: Path, place: Path, tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    login = "import fcntl, os, subprocess, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    login += "subprocess.run(sys.argv[1:], check=True); os.write(1, b'mounted.'); sys.stdin.read()"
    with running(
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


def test_mount_returns_also_if_fusermount_waits_for_the_end_of_the_daemon(
    background: Background, source: Path, place: Path
) -> None:
    done = background("-o", "auto_unmount", source, place, is_fresh=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / CHUNK).stat().st_size == 24
    assert run("umount", place).returncode == 0


def test_a_rotated_log_goes_on_under_its_name_and_sighup_ends_nothing(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert background("--write", "--log-file", log, source, place).returncode == 0
    pid = daemon_of(place)
    (place / "c/0/0").write_bytes(NEW)
    log.rename(tmp_path / "log.1")
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: log.exists() and "SIGHUP" in log.read_text())
    log.rename(tmp_path / "log.2")
    log.mkdir()  # it cannot be opened, and a line that cannot be written fails no request
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    assert has_ended(ended, PATIENCE)
    os.close(ended)
    assert stored(source) == NEW


def test_sighup_ends_a_foreground_mount_whose_terminal_is_closed(source: Path, place: Path) -> None:
    master, terminal = pty.openpty()
    line = command("mount", "-f", source, place)
    with running(line, end=signal.SIGTERM, env=environment(), stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        while b"is mounted at" not in said:
            said += os.read(master, 1000)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE) == 0
    os.close(master)
    assert os.listdir(place) == []


def test_names_in_a_dataset_cannot_forge_lines_of_the_log() -> None:
    record = logging.LogRecord("shardfs", logging.ERROR, __file__, 1, "%s", ("a\nERROR b\x1b[2J",), None)
    assert OneLine("%(levelname)s %(message)s").format(record) == "ERROR a\\nERROR b\\x1b[2J"


def heard(manager: socket.socket, *wanted: str) -> list[str]:
    """What is said at the other end of NOTIFY_SOCKET, until there are lines that begin as *wanted*."""
    said: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while not all(any(line.startswith(begin) for line in said) for begin in wanted):
        manager.settimeout(deadline - time.monotonic())
        said += manager.recv(4096).decode().split("\n")
    return said


def test_systemd_is_told_of_start_pending_chunks_and_end(mount: Mounter, source: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0shardfs-test-{os.getpid()}")
        watched = {"NOTIFY_SOCKET": f"@shardfs-test-{os.getpid()}", "WATCHDOG_USEC": "200000"}
        # With metrics for others there are new ones every second.
        mounted = mount(source, write=True, env=watched, arguments=["--metrics=0"])
        said = heard(manager, "READY=1")
        assert said.index("STATUS=nothing is pending") < said.index("READY=1")
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in said[: said.index("READY=1")])
        (mounted.path / CHUNK).write_bytes(NEW)
        said = heard(manager, "STATUS=1 chunk is pending", "WATCHDOG=1")
        assert not any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in said[-3:])
        with kept_busy(source / CHUNK):
            mounted.process.send_signal(signal.SIGTERM)
            heard(manager, "STOPPING=1")
            for _ in range(2):
                heard(manager, "EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1", "STATUS=1 chunk is pending")
            assert mounted.process.poll() is None
        assert mounted.process.wait(PATIENCE) == 0
    assert stored(source) == NEW


def test_the_unit_of_the_docs_is_sound(tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze")
    installed = f"{os.path.dirname(sys.executable)}/shardfs"
    unit = tmp_path / "shardfs@data.service"
    unit.write_text((TOP / "docs/shardfs@.service").read_text().replace("/opt/shardfs/bin/shardfs", installed))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_umount_says_that_shards_did_not_fit_a_new_array(background: Background, place: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert background("--write", "--shards=2,2", tmp_path / "new", place).returncode == 0
    zarr.create_array(place / "image", shape=(8, 8), chunks=(2, 2), dtype="i4")[:] = 1
    zarr.create_array(place / "time", shape=(8,), chunks=(2,), dtype="i4")[:] = 1
    assert run_json("stats", "--json", place)["unsharded_arrays"] == 1
    done = run("umount", place)
    assert done.returncode == 0
    assert "1 new array could not be sharded as --shards says" in done.stderr
