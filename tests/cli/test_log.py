"""The log of a mount: how it begins and ends, its forms, and that it may be moved away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

import shardfs
from tests.cli.conftest import Background
from tests.cli.test_umount import NEW, stored
from tests.support.commands import run
from tests.support.daemons import daemon_of, has_ended
from tests.support.mounting import PATIENCE, command, environment


def await_text(file: Path, text: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not file.exists() or text not in file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return file.read_text()


def test_it_begins_with_what_is_mounted_and_ends_with_that_it_is_not(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert background("--view", "v2", "--decode", "--write", "--log-file", log, source, place).returncode == 0
    pid = daemon_of(place)
    run("umount", place)
    first, *_, last = log.read_text().splitlines()
    assert first.endswith(
        f"shardfs {shardfs.__version__} mounts {source} at {place}, read-write, view v2, decoded, process {pid}, "
        "with --write --view=v2 --decode"
    )
    assert last.endswith(f"{source} is no longer mounted at {place}")


def test_in_json_each_line_is_an_object_and_the_first_has_all_of_it(
    background: Background, source: Path, place: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (source / "c/0/0").write_bytes(b"damaged")
    background("--log-format", "json", "--log-file", log, source, place)
    with pytest.raises(OSError):
        (place / "c/0/0").read_bytes()
    pid = daemon_of(place)
    run("umount", place)
    first, *others = map(json.loads, log.read_text().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert "mounts" in first.pop("message")
    assert first.pop("options") == []
    assert first == {
        "level": "INFO",
        "logger": "shardfs.fuse.serve",
        "version": shardfs.__version__,
        "source": str(source),
        "mountpoint": str(place),
        "access": "read-only",
        "view": "v3",
        "pid": pid,
    }
    assert {"time", "level", "logger", "message"} == set(others[0])
    assert "ERROR" in {line["level"] for line in others}


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
