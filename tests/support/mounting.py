"""Real mounts for tests: a daemon in a process of its own, whose log is judged at the end."""

import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any

import pytest

from shardfs.fuse import control
from tests.support.prepared import Prepared, can_be_prepared, fresh_environment
from tests.support.processes import tied

PATIENCE = 60.0
"""Seconds after which a daemon that neither answers nor ends has failed."""

_BAD_LINE = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback|unexpectedly|Exception ignored|never awaited")
_HARMLESS = re.compile(r"fuse_reply_\* failed with No such file or directory")
"""The kernel closes files without waiting for the answer, and unmounts meanwhile."""
_FORBIDDEN = re.compile(r"Traceback|unexpectedly|Exception ignored|never awaited")


def command(*arguments: str | Path, python: str = sys.executable) -> list[str]:
    """A command line of shardfs."""
    return [python, "-P", "-m", "shardfs", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Environment in which `command` finds this shardfs."""
    return fresh_environment()


def mount_command(
    source: Path | str,
    path: Path,
    *,
    metadata_ttl: float | None = None,
    page_cache: bool = False,
    allow_other: bool = False,
    log_file: Path | None = None,
    write: bool = False,
    shards: str | None = None,
    auto_compact: float | None = None,
    arguments: Sequence[str] = (),
) -> list[str]:
    """The command line that mounts in the foreground; *arguments* are further options, as a user writes them."""
    options = []
    if metadata_ttl is not None:
        options.append(f"--metadata-ttl={metadata_ttl}")
    if page_cache:
        options.append("--page-cache")
    if allow_other:
        options.append("--allow-other")
    if write:
        options.append("--write")
    if shards is not None:
        options.append(f"--shards={shards}")
    if auto_compact is not None:
        options.append(f"--auto-compact={auto_compact}")
    if log_file is not None:
        options.append(f"--log-file={log_file}")
    return command("mount", "--foreground", *options, *arguments, source, path)


@dataclass
class Mount:
    """A mounted source, and the daemon behind it."""

    source: Path | str
    path: Path
    process: subprocess.Popen[bytes] | Prepared
    log_file: Path
    expected: list[str] = field(default_factory=list)
    was_ready: bool = False
    ends: tuple[int, ...] = (0, -signal.SIGKILL)

    def expect(self, *patterns: str) -> None:
        """Declare error lines of the log, as regular expressions, that this test provokes."""
        self.expected += patterns

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def is_mounted(self) -> bool:
        return str(self.path) in mount_points()

    def peak_memory(self) -> int:
        """The daemon's largest resident size so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return 1024 * int(found[1])

    def unmount(self, status: int = 0) -> None:
        """Unmount as a user does, and wait for the daemon, which ends with *status*."""
        self.ends = (status, -signal.SIGKILL)
        # What the kernel sent last, that a file was closed, say, is dropped if the daemon has not taken it by then.
        asking = threading.Thread(target=self._ask, daemon=True)
        asking.start()
        asking.join(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(["fusermount3", "-u", str(self.path)], capture_output=True, text=True, check=False)
            # Libraries that have threads say what they read before they close it.
            if "busy" not in done.stderr or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert done.returncode == 0, str(done)
        assert self.process.wait(PATIENCE) == status, self.log

    def _ask(self) -> None:
        with suppress(OSError):
            os.getxattr(self.path, control.PID)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did; then judge how the daemon ended, and its log."""
        failure = None
        if self.process.poll() is None:
            try:
                self.unmount()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failure = f"the mount did not end: {error}"
        if self.is_mounted:
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], capture_output=True, check=False)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        if self.process.stdout:
            self.process.stdout.close()
        assert failure is None, f"{failure}\n{self.log}"
        ends = self.ends if self.was_ready else (self.process.returncode,)  # tests may kill it
        assert self.process.returncode in ends, f"the daemon ended with {self.process.returncode}\n{self.log}"
        bad = [line for line in self.log.splitlines() if _BAD_LINE.search(line) and not self._is_expected(line)]
        assert not bad, "the log has errors that the test did not expect:\n" + self.log

    def _is_expected(self, line: str) -> bool:
        return not _FORBIDDEN.search(line) and any(re.search(pattern, line) for pattern in (*self.expected, _HARMLESS))


@dataclass
class Mounter:
    """Mounts sources below *directory* until the end of a `with` block."""

    directory: Path
    stack: ExitStack

    def __call__(
        self,
        source: Path | str,
        *,
        path: Path | None = None,
        env: Mapping[str, str] | None = None,
        state: Path | None = None,
        expect: tuple[str, ...] = (),
        bound_by_modes: bool = False,
        address_space: int | None = None,
        **options: Any,
    ) -> Mount:
        """Mount *source* at the directory *path*, or a new one; returns when the mount answers.

        *env* is added to the daemon's environment. *state* is its state directory: mounts that share one, as they do
        if none is given, are on the same host, and others may stand for other hosts.

        *expect* is for `Mount.expect`. With *bound_by_modes* the daemon may not read what its modes forbid, even if
        it is root's; *address_space* limits it, so that a fault cannot take the machine's memory.
        """
        number = next(_NUMBERS)
        if path is None:
            path = self.directory / f"mnt-{os.getpid()}-{number}"
            path.mkdir()
        log_file = self.directory / f"log-{os.getpid()}-{number}"
        with log_file.open("wb") as log:
            variables = environment() | {"XDG_STATE_HOME": str(state or self.directory / "state")} | dict(env or {})
            line = mount_command(source, path, **options)
            process = _start(line, variables, log, bound_by_modes)
        mount = Mount(source, path, process, log_file, list(expect))
        self.stack.callback(mount.end)
        if address_space is not None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (address_space, address_space))
        _await_line(mount)
        return mount


_NUMBERS = count(1)


def flush(path: Path) -> None:
    """Bring everything that is published on a mount into the shards."""
    os.setxattr(path, control.FLUSH, b"")


def metrics(path: Path) -> Any:
    """What a mount says of itself."""
    return json.loads(os.getxattr(path, control.METRICS))


def refuses(code: int) -> Any:
    """Expect an `OSError` with this errno."""
    return pytest.raises(OSError, match=rf"Errno {code}\b")


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what a mount does by itself, or after a file was closed: the kernel does not wait for that."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _start(
    line: list[str], env: Mapping[str, str], log: IO[bytes], bound_by_modes: bool
) -> subprocess.Popen[bytes] | Prepared:
    if can_be_prepared(env) and not bound_by_modes:  # capabilities are lost with exec only
        return Prepared(line[len(command()) :], env=env, cwd=None, stdout=subprocess.PIPE, stderr=log)
    without = ("dac_override", "dac_read_search") if bound_by_modes and os.geteuid() == 0 else ()
    return subprocess.Popen(
        tied(*line, without=without), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
    )


def _await_line(mount: Mount) -> None:
    assert mount.process.stdout
    readable, _, _ = select.select([mount.process.stdout], [], [], PATIENCE)
    line = mount.process.stdout.readline() if readable else b""
    if readable and not line:
        mount.process.wait(PATIENCE)  # it closed its output because it ends
    assert line, f"the mount did not get ready:\n{mount.log}"
    mount.was_ready = True


def mount_points() -> set[str]:
    """Where shardfs is mounted on this machine."""
    return set(mounts_of("self"))


def mounts_of(process: int | str) -> dict[str, str]:
    """What shardfs has mounted, by mount point, as a process sees it."""
    rows = [line.split(b" ") for line in Path(f"/proc/{process}/mounts").read_bytes().split(b"\n")]
    return {_unescaped(row[1]): _unescaped(row[0]) for row in rows if row[2:3] == [b"fuse.shardfs"]}


def _unescaped(path: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), path))


@cache
def _detach_leftovers() -> None:
    """Take away mounts of test runs that were killed."""
    for path in mount_points():
        found = re.fullmatch(r"mnt-(\d+)-\d+", os.path.basename(path))
        if found and not os.path.exists(f"/proc/{found[1]}"):
            subprocess.run(["fusermount3", "-u", "-z", path], capture_output=True, check=False)


def skip_without_fuse() -> None:
    """Skip the test where nothing can be mounted."""
    if not os.path.exists("/dev/fuse") or shutil.which("fusermount3") is None:
        pytest.skip("this machine has no /dev/fuse or no fusermount3")


@contextmanager
def mounter(directory: Path) -> Iterator[Mounter]:
    """Yield what mounts; at the end everything is unmounted and every log is judged."""
    skip_without_fuse()
    _detach_leftovers()
    with ExitStack() as stack:
        yield Mounter(directory, stack)
