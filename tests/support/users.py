"""Another user of this machine, by its number; it can do what is needed to run shardfs from this checkout."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
MOUNT_OF_NOBODY = ("setpriv", f"--ruid={NOBODY}", f"--rgid={NOBODY}", "--keep-groups")
"""As root, since `/dev/fuse` may be closed to others; to the kernel the mount is that of the real user."""


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that another user can read, as that of a test is not; skips where nobody else can run shardfs."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    if why_not := _why_nobody_can_run_this():
        pytest.skip(f"another user cannot run this: {why_not}")
    with tempfile.TemporaryDirectory(prefix="shardfs-shared-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@cache
def _why_nobody_can_run_this() -> str:
    command = [*AS_NOBODY, sys.executable, "-P", "-m", "shardfs", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr[-200:] if done.returncode else ""


def require_interpreter_for_nobody() -> None:
    """Skip where `setpriv` can start the interpreter and the other user cannot start it again, to ask a mount."""
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    done = subprocess.run([*AS_NOBODY, sys.executable, "-c", again], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"another user cannot start {sys.executable}")
