"""The log of a mount: how it begins and ends, its forms, and that it may be moved away."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.conftest import Background
from tests.cli.test_umount import NEW, stored
from tests.support.daemons import daemon_of, has_ended
from tests.support.mounting import PATIENCE, command, environment


def await_text(file: Path, text: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return file.read_text()


def test_sighup_opens_it_again_and_ends_nothing(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    log, moved = tmp_path / "log", tmp_path / "log.1"
    assert background("--write", "--log-file", log, source, place).returncode == 0
    pid = daemon_of(place)
    (place / "c/0/0").write_bytes(NEW)
    log.rename(moved)
    os.kill(pid, signal.SIGHUP)
    await_text(log, "reopened the log on SIGHUP")
    for fd in (1, 2):
        assert os.readlink(f"/proc/{pid}/fd/{fd}") == str(log)
    log.rename(moved)
    log.mkdir()  # it cannot be opened
    os.kill(pid, signal.SIGHUP)
    await_text(moved, "the log goes on in the old file")
    log.rmdir()
    assert (place / "c/0/0").read_bytes() == NEW
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    assert has_ended(ended, PATIENCE)
    os.close(ended)
    assert stored(source) == NEW


def test_in_the_foreground_sighup_ends_it_only_when_its_terminal_is_closed(source: Path, place: Path) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command("mount", "-f", source, place), env=environment(), stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    said = b""
    while b"is mounted at" not in said:
        said += os.read(master, 1000)
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 0
    os.close(master)
    assert os.listdir(place) == []
