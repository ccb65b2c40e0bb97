"""`shardfs mount` in the background and in the foreground: what it says, what it leaves, what it outlives."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli.conftest import Background
from tests.support.commands import run
from tests.support.daemons import daemon_of, has_ended, kill_daemon
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


def test_in_the_foreground_it_stays_and_is_its_own_daemon(source: Path, place: Path) -> None:
    arguments = command("mount", "-f", source, place)
    with subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{source} is mounted at {place}, read-only (end it with Ctrl-C)\n".encode()
        assert daemon_of(place) == process.pid
        process.send_signal(signal.SIGINT)
        output, log = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, b"")
    assert b"unmounting on SIGINT" in log


DATA, PLACE = "my data é 100% 日本", "the place ü"
SPELLINGS = [
    (f"./{PLACE}/../{DATA}//", f"{PLACE}/..//{PLACE}/."),
    ("link to data", "link to place/"),
    ("file://{here}/" + quote(DATA), PLACE),
    ("file://localhost{here}/" + "".join(f"%{byte:02x}" for byte in DATA.encode()), PLACE),
]


def test_source_and_mount_point_may_be_spelled(background: Background, source: Path, tmp_path: Path) -> None:
    source.rename(tmp_path / DATA)
    (tmp_path / PLACE).mkdir()
    (tmp_path / "link to data").symlink_to(DATA)
    (tmp_path / "link to place").symlink_to(PLACE)
    for data, place in SPELLINGS:
        done = background(data.replace("{here}", str(tmp_path)), place, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert str(tmp_path / PLACE) in mount_points()
        assert (tmp_path / PLACE / CHUNK).stat().st_size == 24
        ended = run("umount", place, cwd=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert str(tmp_path / PLACE) not in mount_points()
    for name in ("two\nlines", "\x1b[2Jclears", f"{'日' * 80}/{'日' * 80}"):
        (tmp_path / name).mkdir(parents=True)
        done = background(tmp_path / DATA, tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / name / CHUNK).stat().st_size == 24
        assert done.stdout.count("\n") == 1
        assert done.stdout[:-1].isprintable()


def test_after_a_crash_it_mounts_again_at_the_same_place(background: Background, source: Path, place: Path) -> None:
    assert background("--metadata-ttl=3600", source, place).returncode == 0
    assert place.stat().st_ino == 1  # which the kernel remembers
    kill_daemon(place)
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(place)
    done = background(source, place)
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / CHUNK).stat().st_size == 24
    lines = Path("/proc/self/mounts").read_text().splitlines()
    assert len([line for line in lines if f" {place} " in line]) == 1  # nothing dead below it


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


def test_the_log_goes_where_it_is_told_seen_from_where_the_user_is(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    done = background("--log-file", "new/here.log", "--log-level", "debug", source, place, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"(log: {tmp_path}/new/here.log)" in done.stdout
    with pytest.raises(FileNotFoundError):
        os.stat(place / "c/9/9")
    assert (tmp_path / "new/here.log").exists()
    assert not background.logs.exists()


@pytest.mark.parametrize("reader", ["the user's pipe", "the command that waits for it"])
def test_a_daemon_that_nobody_listens_to_leaves_no_dead_mount(source: Path, place: Path, reader: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    output, waits = (write_end, []) if reader == "the user's pipe" else (subprocess.DEVNULL, ["--ready-fd", write_end])
    process = subprocess.Popen(
        command("mount", "-f", *map(str, waits), source, place),
        env=environment(),
        pass_fds=[write_end],
        stdout=output,
        stderr=subprocess.PIPE,
    )
    os.close(write_end)
    try:
        while process.poll() is None and str(place) not in mount_points():
            os.sched_yield()
        with suppress(OSError):  # at the moment when it ends by itself
            os.listdir(place)
            process.terminate()
        _, log = process.communicate(timeout=PATIENCE)
        assert b"Traceback" not in log
        assert os.listdir(place) == []
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place], capture_output=True, check=False)
        process.kill()
        process.communicate()
