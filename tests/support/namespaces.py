"""A mount namespace for a test: a machine whose /sbin, /run and mounts are its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.mounting import PATIENCE, environment, mounts_of
from tests.support.processes import end_with_parent

_SET_UP = """
umount --internal-only --lazy --all --types fuse,fuse.shardfs  # or the daemons of others would not end before this
mount --bind "$1" /usr/sbin && mkdir -p /run/mount && mount -t tmpfs none /run/mount && exec sleep infinity
"""


@dataclass(frozen=True)
class Machine:
    """The mount namespace of the process *pid*; *sbin* is its /sbin, which is empty at first."""

    pid: int
    sbin: Path

    @property
    def namespace(self) -> str:
        return f"/proc/{self.pid}/ns/mnt"

    def see(self, path: Path) -> Path:
        """A path as it is seen there."""
        return Path(f"/proc/{self.pid}/root{path}")

    def start(self, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Begin a command there."""
        return subprocess.Popen(
            ["nsenter", f"--mount={self.namespace}", "--", *map(str, words)],
            env=environment() if env is None else env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *words: str | Path, status: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there, which ends with *status*."""
        process = self.start(*words, env=env)
        output, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == status, (words, output, said)
        return subprocess.CompletedProcess(process.args, process.returncode, output, said)

    def sources(self) -> dict[str, str]:
        """What shardfs has mounted there, by mount point."""
        return mounts_of(self.pid)


@contextmanager
def machine(directory: Path) -> Iterator[Machine]:
    """Make a namespace with its files below *directory*; whatever runs in it ends with it."""
    sbin = directory / "sbin"
    sbin.mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SET_UP, "sh", sbin], preexec_fn=end_with_parent
    )
    made = Machine(holder.pid, sbin)
    try:
        while Path(f"/proc/{holder.pid}/comm").read_text() != "sleep\n":
            if holder.poll() is not None:
                pytest.skip("no mount namespace can be made here")
            os.sched_yield()
        yield made
    finally:
        if holder.poll() is None:
            _end_all_in(made.namespace)
        holder.wait(PATIENCE)


def _end_all_in(namespace: str) -> None:
    ours = os.readlink(namespace)
    assert ours != os.readlink("/proc/self/ns/mnt")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "ns/mnt") == ours:
                os.kill(int(process.name), signal.SIGKILL)
