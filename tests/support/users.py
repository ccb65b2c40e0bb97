"""Another user of this machine, by its number; it can do what is needed to run shardfs from this checkout."""

import atexit
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest


@dataclass(frozen=True)
class User:
    """Whose a process is, as root becomes somebody else: a user by its number, groups, and a mask for new files."""

    number: int
    group: int
    groups: tuple[int, ...] = ()
    umask: int = 0o022

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that is to be this user's."""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        become = ("setpriv", f"--reuid={self.number}", f"--regid={self.group}", groups)
        return (*become, "sh", "-c", f'umask {self.umask:03o}; exec "$@"', "sh")


NOBODY = 65534
SOMEBODY = User(NOBODY, NOBODY)
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
MOUNT_OF_NOBODY = ("setpriv", f"--ruid={NOBODY}", f"--rgid={NOBODY}", "--keep-groups")
"""As root, since `/dev/fuse` may be closed to others; to the kernel the mount is that of the real user."""
TOP = Path(__file__).parents[2]


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that another user can read, as that of a test is not; skips where no other user can be had."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become somebody else, by setpriv")
    if why_not := _why_nobody_can_run(everyones_python()):
        pytest.fail(f"another user cannot run this: {why_not}")
    with tempfile.TemporaryDirectory(prefix="shardfs-shared-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def everyones_python() -> str:
    """The interpreter of the tests; if it or this checkout is in somebody's home, a copy with what runs shardfs."""
    return everyones()[0]


@cache
def everyones() -> tuple[str, Path]:
    """The interpreter of `everyones_python`, and where it finds what this checkout has.

    All processes of a run of the tests have one copy, which the last of them removes.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not _why_nobody_can_run(sys.executable):
        return sys.executable, TOP
    run_of_tests = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)
    top = Path(tempfile.gettempdir(), f"shardfs-python-{run_of_tests}")
    packages = top / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    start = top / "venv/bin/python"
    with open(f"{top}.lock", "wb") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not start.exists():
            _make_everyones(top, packages, start)
        used = os.open(top, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_SH)

    def end() -> None:
        with suppress(BlockingIOError):  # others use it
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_spawnp("rm", ["rm", "-rf", f"{top}.lock", top], os.environ)  # xdist waits for 10 s only

    atexit.register(end)
    return str(start), packages


def _make_everyones(top: Path, packages: Path, start: Path) -> None:
    """Make a copy of the interpreter, which is started by *start*."""
    top.mkdir(mode=0o755)
    base, itself = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    _link(base, top / "base", "test", "site-packages")
    _link(Path(sysconfig.get_path("purelib")), packages, "tests")
    for name in ("shardfs", "tests"):
        _link(TOP / name, packages / name)
    home = top / "base" / itself.parent.relative_to(base)
    (top / "venv/pyvenv.cfg").write_text(f"home = {home}\n")
    start.parent.mkdir()
    python = start.with_name("python3")
    python.symlink_to(home / itself.name)
    # Its library is looked for where Python was installed.
    start.write_text(f'#!/bin/sh -p\nLD_LIBRARY_PATH={top / "base/lib"} exec {python} "$@"\n')
    start.chmod(0o755)


def _link(source: Path, target: Path, *without: str) -> None:
    """Make a copy, of links to the same files where the file system allows it."""

    def link(file: str, copy: str) -> None:
        try:
            os.link(file, copy)
        except OSError:
            shutil.copy2(file, copy)

    skipped = shutil.ignore_patterns(*without)
    shutil.copytree(source, target, symlinks=True, ignore=skipped, copy_function=link)
    os.chmod(target, 0o755)


@cache
def _why_nobody_can_run(python: str) -> str:
    """Why another user cannot run shardfs, in a process of one that it started; empty if it can."""
    again = "import subprocess, sys; subprocess.run([sys.executable, '-P', '-m', 'shardfs', '--version'], check=True)"
    command = [*AS_NOBODY, python, "-P", "-c", again]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.stderr[-200:] if done.returncode else ""
