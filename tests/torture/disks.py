"""Where the source of a mount is kept, what is left of that when the power is cut, and what goes wrong with it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.mounting import PATIENCE, environment
from tests.support.nfs import TTL, pair
from tests.support.processes import running
from tests.support.s3_faults import Fault, LostReply, LostRequest, Reply, Truncated
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket, ministack

FILE_SYSTEMS = {"ext4": 128, "xfs": 320, "btrfs": 128}
"""Those that a disk may have, with its size in MiB."""


@dataclass(frozen=True)
class Host:
    """A machine that mounts a *source*: where its state is, and variables that it has."""

    source: str
    state: Path
    variables: dict[str, str] = field(default_factory=dict)


class Disk:
    """A directory of this machine, where no power is cut; so many *sessions* write to it at the same time."""

    can_be_cut = False
    is_remote = False
    cached_seconds = 0.0
    """How long a host may not see what another one stored."""

    def __init__(self, path: Path, sessions: int = 1) -> None:
        self.path = path
        self.sessions = sessions

    @property
    def hosts(self) -> list[Host]:
        """Where sessions write to the source at the same time: the first half by mounts, the others by stores."""
        return [Host(str(self.path / "source"), self.path / "state")] * self.sessions

    @property
    def nmounts(self) -> int:
        """How many of the hosts mount the source."""
        return len(self.hosts) - len(self.hosts) // 2

    def store(self, source: Path) -> None:
        """Store what is in a directory."""
        shutil.copytree(source, self.path / "source")
        os.sync()

    def stored(self, _: Path) -> Path:
        """Return a directory with what is stored, or make one."""
        return self.path / "source"

    def left(self) -> list[str]:
        """What mounts left behind that have ended."""
        found = (self.path / "source/.shardfs").rglob("*")
        kept = [path for path in found if path.is_file() and path.name != "lock" and path.suffix != ".damaged"]
        return [str(path) for path in kept if {"scratch", "asked"}.isdisjoint(path.parts)]

    def disturb(self, chance: random.Random) -> None:
        """Let something go wrong, or not."""

    def calm(self) -> None:
        """Let nothing go wrong from now on."""

    def snapshot(self) -> None:
        """Remember what is on the disk in this moment."""
        raise NotImplementedError

    def cut(self) -> None:
        """Lose everything since then; nobody may use the disk."""
        raise NotImplementedError


class Remote(Disk):
    """A bucket with two hosts, whose requests and replies are lost, and refused."""

    is_remote = True

    def __init__(self, path: Path, bucket: Bucket, proxy: S3Proxy) -> None:
        super().__init__(path)
        self._bucket, self._proxy = bucket, proxy

    @property
    def hosts(self) -> list[Host]:
        behind = self._bucket.through(self._proxy.url)
        return [Host(behind.url("data.zarr"), self.path / f"state-{n}", behind.environment) for n in range(2)]

    @property
    def nmounts(self) -> int:
        return len(self.hosts)

    def store(self, source: Path) -> None:
        self._bucket.upload(source, "data.zarr")

    def stored(self, directory: Path) -> Path:
        shutil.rmtree(directory, ignore_errors=True)
        return self._bucket.download(directory, "data.zarr")

    def left(self) -> list[str]:
        journals = [path for path in self.path.rglob("*") if {"journal", "conflicts"} & {*path.parts}]
        return [*self._bucket.uploads(), *(str(path) for path in journals if path.is_file())]

    def disturb(self, chance: random.Random) -> None:
        if chance.random() < 0.02:
            self._proxy.latency = chance.choice([0, 0, 0.002, 0.02])
            self._proxy.fail(None, chance.choice(_FAULTS), times=chance.randrange(1, 3))

    def calm(self) -> None:
        self._proxy.heal()
        self._proxy.log.clear()
        self._proxy.latency = 0.0


class Shared(Disk):
    """A directory that two hosts share, each with the caches of NFS; sessions are on each of them in turn.

    On each host one more session does nothing and is not killed, because it takes a lock of a host that is seen to be
    held to prove that those of that host reach.
    """

    cached_seconds = TTL

    def __init__(self, path: Path, sessions: int, stack: ExitStack) -> None:
        super().__init__(path, sessions)
        self._stack = stack

    def store(self, source: Path) -> None:
        super().store(source)
        for host in self.hosts[:2]:
            variables = environment() | host.variables | {"XDG_STATE_HOME": str(host.state)}
            command = [sys.executable, "-P", "-c", _IDLE, host.source]
            process = self._stack.enter_context(
                running(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert process.stdout is not None
            process.stdout.readline()

    @property
    def hosts(self) -> list[Host]:
        return [self._host(("alpha", "beta")[number % 2]) for number in range(self.sessions)]

    def left(self) -> list[str]:
        """What is removed while it is open stays under another name, until the kernel has told the client so."""
        until = time.monotonic() + PATIENCE
        while any("/.nfs" in name for name in super().left()) and time.monotonic() < until:
            time.sleep(0.05)
        return super().left()

    def _host(self, name: str) -> Host:
        return Host(str(self.path.parent / f"seen-by-{name}/source"), self.path / f"state-{name}", {"TEST_HOST": name})


_IDLE = """
import sys, shardfs
with shardfs.open(sys.argv[1], write=True):
    print(flush=True)
    sys.stdin.read()
"""

_FAULTS: list[Fault] = [
    Reply(500, "InternalError"),
    Reply(503, "SlowDown"),
    Reply(500, "InternalError", forwarded=True),
    LostRequest(),
    LostReply(),
    Truncated(10),
]


class LoopDisk(Disk):
    """A file system of a *kind* in a file, which can be copied at one moment, as if the power was cut.

    What the file system keeps in memory at this moment is lost; what it has given to the disk is there: the file around
    it is cloned as a whole, while nobody can write to it.
    """

    can_be_cut = True

    def __init__(self, kind: str, path: Path, image: Path, sessions: int) -> None:
        super().__init__(path, sessions)
        self._kind = kind
        self._image = image
        self._next = image.with_suffix(".next")

    def snapshot(self) -> None:
        _run("cp", "--reflink=always", self._image, self._next)

    def cut(self) -> None:
        _run("umount", self.path)
        self._next.rename(self._image)
        _mount(self._kind, self._image, self.path)


@contextmanager
def disk_of(kind: str, directory: Path, sessions: int = 1) -> Iterator[Disk]:
    """Make a disk with a file system of a *kind*, or a directory, for the length of a block."""
    path = directory / ("shared" if kind == "nfs" else "disk")
    path.mkdir()
    if kind == "directory":
        yield Disk(path, sessions)
        return
    if kind == "nfs":
        with pair(directory), ExitStack() as stack:
            yield Shared(path, max(2, sessions), stack)
        return
    if kind == "s3":
        with ministack() as server, S3Proxy(server.endpoint_url) as proxy:
            yield Remote(path, server.make_bucket(), proxy)
        return
    images = directory / "images"
    images.mkdir()
    with _mounted("xfs", 2048, directory / "image", images), _mounted(kind, FILE_SYSTEMS[kind], images / "image", path):
        yield LoopDisk(kind, path, images / "image", sessions)


@contextmanager
def _mounted(kind: str, mebibytes: int, image: Path, path: Path) -> Iterator[None]:
    with image.open("wb") as file:
        file.truncate(mebibytes * 2**20)
    _run(f"mkfs.{kind}", "-q", image)
    _mount(kind, image, path)
    try:
        yield
    finally:
        until = time.monotonic() + PATIENCE
        while True:  # what was mounted from a file in it is let go of after it was unmounted
            try:
                _run("umount", path)
                break
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        image.unlink()


def _mount(kind: str, image: Path, path: Path) -> None:
    # A copy has the UUID of the original, which may be mounted still: by a process with mounts of its own.
    options = "loop,nouuid" if kind == "xfs" else "loop"
    for attempt in range(5):
        try:
            _run("mount", "-o", options, image, path)
        except RuntimeError:  # another process of this machine has taken the loop device
            if attempt == 4:
                raise
        else:
            return


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
