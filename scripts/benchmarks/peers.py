"""What is measured side by side: each peer mounts a dataset afresh, and shows the root of its unsharded array."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from . import archives
from .datasets import Dataset
from .placement import Placement

PATIENCE = 60.0
"""Seconds to wait for a mount to come or to go, before it counts as broken."""


@dataclass(frozen=True)
class Mounted:
    """A mounted dataset: the root of its unsharded array, the process that serves it, and what it is read from."""

    root: Path
    server: int | None = None
    backing: Path | None = None

    def fill_page_cache(self) -> None:
        """Read what the mount is read from: it is not the disk that is measured."""
        if self.backing is not None:
            files = self.backing.rglob("*") if self.backing.is_dir() else [self.backing]
            for file in files:
                if file.is_file():
                    file.read_bytes()

    def server_seconds(self) -> float:
        """The CPU time of the server until now."""
        return cpu_seconds(self.server) if self.server is not None else 0.0


Mount = Callable[[Dataset, Placement], AbstractContextManager[Mounted]]
"""Mounts a dataset afresh."""

SHARDFS = [sys.executable, "-m", "shardfs"]


@contextmanager
def do_nothing(dataset: Dataset, placement: Placement) -> Iterator[Mounted]:
    """The ceiling: constant answers through pyfuse3."""
    program = Path(__file__).with_name("do_nothing.py")
    with mountpoint() as root:
        command = [sys.executable, str(program), str(root), "--document", str(dataset.document)]
        command += ["--grid", ",".join(map(str, dataset.grid)), "--size", str(dataset.chunk_bytes)]
        with foreground(command, root, placement) as server:
            yield Mounted(root, server)


@contextmanager
def plain_files(dataset: Dataset, placement: Placement) -> Iterator[Mounted]:
    """The same files on the disk's own filesystem: no mount, so never cold."""
    yield Mounted(dataset.unsharded, backing=dataset.unsharded)


@contextmanager
def squashfuse(dataset: Dataset, placement: Placement) -> Iterator[Mounted]:
    """A squashfs image of the same files, through libfuse in C."""
    image = archives.squashfs(dataset)
    with mountpoint() as root, foreground(["squashfuse", "-f", str(image), str(root)], root, placement) as server:
        yield Mounted(root, server, image)


@contextmanager
def ratarmount(dataset: Dataset, placement: Placement) -> Iterator[Mounted]:
    """A tar archive of the same files, through Python."""
    archive = archives.tar(dataset)
    command = [_command("ratarmount") or "ratarmount", "-f", "--index-file", f"{archive}.index.sqlite", str(archive)]
    with mountpoint() as root, foreground([*command, str(root)], root, placement) as server:
        yield Mounted(root, server, archive)


@contextmanager
def shardfs(dataset: Dataset, placement: Placement) -> Iterator[Mounted]:
    """The sharded array itself."""
    with mounted_shardfs([str(dataset.sharded)], placement) as (root, server):
        yield Mounted(root, server, dataset.sharded)


@contextmanager
def mounted_shardfs(
    arguments: Sequence[str], placement: Placement, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[Path, int]]:
    """Mount with these arguments; gives the mount's root and the daemon's process id."""
    with mountpoint() as root:
        state = {"XDG_STATE_HOME": str(root.parent)}
        command = [*SHARDFS, "mount", *arguments, str(root)]
        with placement.starting_server():
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**environment, **state})
        try:
            yield root, int(json.loads(os.getxattr(root, "user.shardfs.stats"))["pid"])
        except BaseException:
            for log in root.parent.glob("shardfs/*.log"):
                sys.stderr.write(log.read_text()[-10_000:])
            raise
        finally:
            # The kernel forgets ten million names in a minute or more.
            subprocess.run([*SHARDFS, "umount", str(root)], check=True, timeout=10 * PATIENCE)


def cpu_seconds(process: int) -> float:
    """The CPU time of a process until now, of all threads that live: other load does not touch it."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


PEERS: dict[str, Mount] = {
    "do-nothing": do_nothing,
    "plain-files": plain_files,
    "squashfuse": squashfuse,
    "ratarmount": ratarmount,
    "shardfs": shardfs,
}


def is_installed(peer: str) -> bool:
    """Whether the programs that a peer needs are there."""
    match peer:
        case "squashfuse":
            return bool(_command("squashfuse") and _command("mksquashfs"))
        case "ratarmount":
            return bool(_command("ratarmount") and _command("tar"))
        case "shardfs":
            return bool(importlib.util.find_spec("shardfs") and importlib.util.find_spec("shardfs.__main__"))
        case _:
            return True


def _command(name: str) -> str | None:
    """A program beside this Python, or else one in the PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@contextmanager
def mountpoint() -> Iterator[Path]:
    """An empty directory in a temporary one, which is unmounted before it is removed, whatever happened."""
    parent = Path(tempfile.mkdtemp(prefix="shardfs-bench-")).resolve()
    root = parent / "root"
    root.mkdir()
    try:
        yield root
    finally:
        unmount(root)
        root.rmdir()
        shutil.rmtree(parent)


@contextmanager
def foreground(
    command: list[str], root: Path, placement: Placement, environment: Mapping[str, str] = os.environ
) -> Iterator[int]:
    """Run a filesystem until the block is left, and wait for its end: it must not disturb what is measured next.

    Gives its process id.
    """
    with tempfile.TemporaryFile() as log:
        with placement.starting_server():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _wait_until(lambda: _is_mounted(root) or process.poll() is not None, f"{command[0]} does not mount")
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"{command[0]} failed: {log.read().decode(errors='replace')[-1000:]}")
            os.stat(root)
            yield process.pid
        finally:
            unmount(root)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            process.wait()


def _is_mounted(root: Path) -> bool:
    """Ask the kernel's table: `os.path.ismount` takes a mount whose daemon died for none."""
    escaped = str(root).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split(" ")[4] == escaped for line in Path("/proc/self/mountinfo").read_text().splitlines())


def unmount(root: Path) -> None:
    """Unmount, patiently while somebody still holds a file, and then by force."""
    deadline = time.monotonic() + PATIENCE
    while _is_mounted(root):
        lazily = ["-z"] if time.monotonic() > deadline else []
        result = subprocess.run(["fusermount3", "-u", *lazily, str(root)], capture_output=True, text=True)
        if lazily and result.returncode:
            raise RuntimeError(f"cannot unmount {root}: {result.stderr.strip()}")
        if result.returncode:
            time.sleep(0.1)


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.01)
