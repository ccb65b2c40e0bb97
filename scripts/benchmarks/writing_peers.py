"""What is written to, side by side: each peer mounts an empty directory afresh."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .peers import cpu_seconds, foreground, mounted_shardfs, mountpoint
from .placement import Placement

FLUSH = "user.shardfs.flush"
"""Setting this attribute of the mount's root returns when everything is in its shard."""


@dataclass(frozen=True)
class Writable:
    """A mount that is written to: its root and the process that serves it."""

    root: Path
    server: int

    def flush(self) -> None:
        """Have everything brought into shards."""
        os.setxattr(self.root, FLUSH, b"")

    def server_seconds(self) -> float:
        """The CPU time of the server until now."""
        return cpu_seconds(self.server)

    def peak_memory(self) -> int:
        """The most bytes that the server ever had in memory."""
        for line in Path(f"/proc/{self.server}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the daemon tells no peak memory")


WritableMount = Callable[[Path, str, Placement], AbstractContextManager[Writable]]
"""Mounts a directory afresh; new arrays get the inner chunks per shard that the text says, separated by commas."""


@contextmanager
def do_nothing(source: Path, shards: str, placement: Placement) -> Iterator[Writable]:
    """The ceiling: names in a dictionary, and no bytes, through pyfuse3."""
    with mountpoint() as root:
        program = [sys.executable, "-m", f"{__package__}.do_nothing_writing"]
        with foreground([*program, str(root)], root, placement) as server:
            yield Writable(root, server)


@contextmanager
def shardfs(source: Path, shards: str, placement: Placement) -> Iterator[Writable]:
    """The journal and the shards, in `source`."""
    arguments = ["--write", *([f"--shards={shards}"] if shards else []), str(source)]
    with mounted_shardfs(arguments, placement) as (root, server):
        yield Writable(root, server)


WRITING_PEERS: dict[str, WritableMount] = {"do-nothing": do_nothing, "shardfs": shardfs}
