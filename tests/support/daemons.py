"""Daemons that run in the background, and an end for all of them."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path

from tests.support.mounting import PATIENCE, mount_points


def daemon_of(path: str | Path) -> int:
    """Process id of the daemon behind a mount."""
    return int(json.loads(os.getxattr(path, "user.shardfs.stats"))["pid"])


def has_ended(pidfd: int, patience: float = 0.0) -> bool:
    """Whether the process has ended, or does so within *patience* seconds."""
    return bool(select.select([pidfd], [], [], patience)[0])


def kill_daemon(path: str | Path) -> None:
    """Let the daemon of a mount crash; returns when it is gone."""
    pidfd = os.pidfd_open(daemon_of(path))
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert has_ended(pidfd, PATIENCE)
    os.close(pidfd)


def end_mounts_below(directory: Path) -> None:
    """End every mount and every daemon that is left, whatever state they are in."""
    for path in mount_points():
        if not path.startswith(f"{directory}/"):
            continue
        try:
            pidfd = os.pidfd_open(daemon_of(path))
        except OSError:
            pidfd = None
        subprocess.run(["fusermount3", "-u", "-z", path], capture_output=True, check=False)
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
