"""`shardfs flush` and `umount` while they wait: what is pending, how fast it goes, and why it does not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Background
from tests.support.locking import kept_busy
from tests.support.mounting import PATIENCE, environment
from tests.support.terminal import on_terminal

LOCKED = "c/0/0 is locked by another program"


@pytest.fixture
def written(background: Background, source: Path, place: Path) -> Path:
    """A mount with one chunk that is published and not committed."""
    assert background("--write", source, place).returncode == 0
    (place / "c/0/0").write_bytes(b"n" * 24)
    return place


@pytest.mark.parametrize("name", ["flush", "umount"])
def test_a_terminal_has_one_line_that_is_gone_at_the_end(written: Path, source: Path, name: str) -> None:
    with on_terminal(name, written, columns=300) as terminal:
        with kept_busy(source / "c/0/0"):
            shown = terminal.read_until(LOCKED)
        assert terminal.end() == 0
    assert "\r\x1b[K1 chunk is pending (24 B, since " in shown
    assert terminal.shown.endswith("\r\x1b[K")
    assert "\n" not in terminal.shown


HASTY = """
import runpy
from shardfs.cli import output
from shardfs.fuse import figures
assert output._LINE_SECONDS == figures._LINE_SECONDS == 10
output._LINE_SECONDS = figures._LINE_SECONDS = 2
runpy.run_module("shardfs", run_name="__main__", alter_sys=True)
"""


def hasty(*arguments: str | Path) -> subprocess.Popen[str]:
    """Begin shardfs, with two seconds in place of ten."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", HASTY, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_elsewhere_and_in_the_log_there_is_a_line_every_ten_seconds(source: Path, place: Path) -> None:
    with hasty("mount", "--foreground", "--write", source, place) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline()
            with kept_busy(source / "c/0/0"):
                (place / "c/0/0").write_bytes(b"n" * 24)
                began = time.monotonic()
                umount = hasty("umount", place)
                assert umount.stderr is not None
                said = (line for line in umount.stderr if LOCKED in line)  # it may not have come to that at first
                assert next(said)
                assert next(said)
                assert time.monotonic() - began >= 2
            umount.communicate(timeout=PATIENCE)
            assert umount.returncode == 0
            log = daemon.communicate(timeout=PATIENCE)[1]
        finally:
            subprocess.run(["fusermount3", "-u", "-z", place], capture_output=True, check=False)
            daemon.kill()
    lines = [line for line in log.splitlines() if line.endswith(LOCKED) and "pending" in line]
    assert 1 <= len(lines) <= 2 + (time.monotonic() - began) / 2
    assert f"{source}: 1 chunk is pending (24 B, since " in lines[0]
