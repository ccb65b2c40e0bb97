"""The command line of shardfs, run as a user runs it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.mounting import PATIENCE, command, environment
from tests.support.prepared import can_be_prepared, run_prepared
from tests.support.users import everyones_python

FAILED, WRONG_USAGE, SOURCE, MOUNT_POINT, MACHINE, UNFINISHED = 1, 2, 3, 4, 5, 6
"""Exit statuses, as `shardfs --help` documents them."""


def run(
    *arguments: str | Path, cwd: Path | None = None, prefix: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `shardfs` with *arguments*, *variables* added to its environment; *prefix* is a command that starts it."""
    env = environment() | variables
    if not prefix and can_be_prepared(env):
        return run_prepared(list(map(str, arguments)), env=env, cwd=cwd, timeout=PATIENCE)
    return subprocess.run(
        [*prefix, *command(*arguments, python=everyones_python() if prefix else sys.executable)],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=PATIENCE,
    )


def run_json(*arguments: str | Path, status: int = 0, **variables: str) -> Any:
    """Run a command that prints JSON and nothing else, and return what it says."""
    done = run(*arguments, **variables)
    assert done.returncode == status, str(done)
    return json.loads(done.stdout)


def one_line_of(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Return the one line, without its mark, with which a command failed as documented."""
    assert (done.returncode, done.stdout) == (status, ""), str(done)
    assert done.stderr.startswith("shardfs: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr[:-1].isprintable()
    return done.stderr[len("shardfs: ") : -1]
