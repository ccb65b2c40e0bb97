"""A mount as a service of systemd: what it tells it over a real socket, and the unit that is in the docs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_umount import NEW, kept_busy, stored
from tests.support.mounting import PATIENCE, Mounter
from tests.support.prepared import TOP

UNIT = TOP / "docs/shardfs@.service"


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self.said: list[str] = []

    def hear(self, *wanted: str) -> list[str]:
        """Listen until lines were said that begin as *wanted*; returns all since the last time."""
        self.said.clear()
        deadline = time.monotonic() + PATIENCE
        while not all(any(line.startswith(begin) for line in self.said) for begin in wanted):
            self._socket.settimeout(deadline - time.monotonic())
            self.said += self._socket.recv(4096).decode().split("\n")
        return self.said

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    """One whose socket has a name that is no path; `test_a_socket_may_be_a_file` has the other kind."""
    manager = Manager(f"@shardfs-test-{os.getpid()}")
    yield manager
    manager.close()


def test_it_says_when_it_answers_what_is_pending_and_that_it_ends(
    manager: Manager, mount: Mounter, source: Path
) -> None:
    watched = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000"}
    mounted = mount(source, write=True, env=watched)
    said = manager.hear("READY=1")
    assert said.index("STATUS=nothing is pending") < said.index("READY=1")
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in said[: said.index("READY=1")])
    (mounted.path / "c/0/0").write_bytes(NEW)
    said = manager.hear("STATUS=1 chunk is pending", "WATCHDOG=1")
    assert not any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in said[-3:])
    with kept_busy(source / "c/0/0"):
        mounted.process.send_signal(signal.SIGTERM)
        manager.hear("STOPPING=1")
        for _ in range(2):
            manager.hear("EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1", "STATUS=1 chunk is pending")
        assert mounted.process.poll() is None
    assert mounted.process.wait(PATIENCE) == 0
    assert stored(source) == NEW


def test_the_unit_of_the_docs_is_sound(tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze")
    installed = f"{os.path.dirname(sys.executable)}/shardfs"
    unit = tmp_path / "shardfs@data.service"
    unit.write_text(UNIT.read_text().replace("/opt/shardfs/bin/shardfs", installed))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
