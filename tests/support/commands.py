"""The command line of shardfs, run as a user runs it, and programs that import it: each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.mounting import PATIENCE, command, environment
from tests.support.prepared import Prepared, can_be_prepared, run_prepared
from tests.support.processes import running
from tests.support.users import User, everyones_python

FAILED, WRONG_USAGE, SOURCE, MOUNT_POINT, MACHINE, UNFINISHED = 1, 2, 3, 4, 5, 6
"""Exit statuses, as `shardfs --help` documents them."""


def run(
    *arguments: str | Path,
    cwd: Path | None = None,
    prefix: tuple[str, ...] = (),
    user: User | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run `shardfs` with *arguments*, *variables* added to its environment; *prefix* is a command that starts it.

    With *user* it is somebody else's.
    """
    env = environment() | variables
    if not prefix and can_be_prepared(env):
        return run_prepared(list(map(str, arguments)), env=env, cwd=cwd, timeout=PATIENCE, user=user)
    prefix += user.prefix if user else ()
    python = everyones_python() if prefix else sys.executable
    return _run([*prefix, *command(*arguments, python=python)], env, cwd)


def run_program(
    program: str, *arguments: str | Path, user: User | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of Python that imports shardfs."""
    env, words = environment() | variables, list(map(str, arguments))
    if can_be_prepared(env):
        return run_prepared(words, env=env, cwd=None, timeout=PATIENCE, program=program, user=user)
    return _run([*_python(user), "-c", program, *words], env, None)


@contextmanager
def running_program(
    program: str, *arguments: str | Path, **variables: str
) -> Iterator[subprocess.Popen[bytes] | Prepared]:
    """Run such a program for the length of a block, with pipes; at its end it is killed."""
    env, words = environment() | variables, list(map(str, arguments))
    if not can_be_prepared(env):
        line = [*_python(None), "-c", program, *words]
        with running(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as fresh:
            yield fresh
        return
    process = Prepared(
        words, env=env, cwd=None, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=2, program=program
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def _python(user: User | None) -> list[str]:
    """What begins the command line of a program of Python."""
    return [*user.prefix, everyones_python(), "-P"] if user else [sys.executable, "-P"]


def _run(line: list[str], env: dict[str, str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
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
