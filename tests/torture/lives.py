"""Lives of a source: mounted, written to by many processes, killed or cut, mounted again, and compared."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import run
from tests.support.mounting import PATIENCE, Mount, flush, mounter
from tests.support.readers import READERS, assert_same
from tests.torture.disks import Disk
from tests.torture.documents import make_source
from tests.torture.geometry import ABSENT, BROKEN, CHUNKS, GEOMETRIES, Geometry, View
from tests.torture.history import History, WrongError
from tests.torture.worker import work

VIEWS = (View(), View(), View(), View("v2"), View("v2"), View("v3", True), View("v2", True))
NPROCESSES = 4
JUDGE = "judge"
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.torture.worker"])


@dataclass
class Team:
    """Processes that work on a mount, and their notes."""

    receiver: socket.socket
    sender: socket.socket
    processes: list[BaseProcess]

    def note(self, kind: str) -> None:
        """Put a note of our own between theirs."""
        self.sender.send(json.dumps([kind, JUDGE]).encode())

    def notes(self) -> Iterator[list[Any]]:
        """All notes in their order, until the processes have ended."""
        while data := self.receiver.recv(2**18):
            yield json.loads(data)


@contextmanager
def team(mounted: Mount, view: View, locks: Path, chance: random.Random) -> Iterator[Team]:
    """Let processes work until the end of the block."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver.settimeout(PATIENCE)
    processes = []
    for number in range(NPROCESSES):
        arguments = (mounted.path, view, sender, locks, chance.getrandbits(64), f"w{number}")
        process = _PROCESSES.Process(target=work, args=arguments)
        process.start()
        processes.append(process)
    try:
        yield Team(receiver, sender, processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
        receiver.close()
        sender.close()


@dataclass
class Life:
    """One source from its beginning on, and what must be in it."""

    directory: Path
    disk: Disk
    chance: random.Random
    figures: Counter[str]
    history: History = field(default_factory=History)
    unsettled: dict[str, bool] = field(default_factory=dict)
    """Arrays that were not looked at since the mount ended, and whether the power was cut."""

    def __post_init__(self) -> None:
        self.source = self.disk.path / "source"
        self.locks = self.directory / "locks"
        self.locks.touch()
        make_source(self.source)
        contents = {geometry.name_of(at): ABSENT for geometry, at in CHUNKS}
        for geometry in GEOMETRIES:
            contents |= {f"{geometry.name} shape": str(list(geometry.shape)), f"{geometry.name} label": "None"}
        self.history.start(contents)
        os.sync()

    def live(self, rounds: int, until: float) -> None:
        """Mount, work and end so often, or until a moment; raises `WrongError` if something is."""
        for number in range(rounds):
            if time.monotonic() > until and number:
                break
            self._mount_and_work(ends=self.chance.choice(["kill", "cut"] if self.disk.can_be_cut else ["kill"]))
        self._mount_and_work(ends="unmount")
        state = self.source / ".shardfs"
        left = [path for name in ("journal", "conflicts", "drafts", "staged") for path in (state / name).rglob("*")]
        if any(path.suffix != ".damaged" for path in left):
            raise WrongError(f"left behind: {left}")

    def _mount_and_work(self, ends: str) -> None:
        chance, view = self.chance, self.chance.choice(VIEWS)
        arguments = view.arguments
        if chance.random() < 0.3:
            arguments += ["--auto-compact=0.4"]
        if chance.random() < 0.2:
            arguments += ["--page-cache"]
        if chance.random() < 0.3:
            arguments += ["--metadata-ttl=0"]
        path = self.directory / f"mnt-{os.getpid()}-0"
        path.mkdir(exist_ok=True)
        expected = [r"shardfs\.fuse\.operations: (read|open): .* (does not decode|bytes, not)"]
        with mounter(self.directory) as mount:
            mounted = mount(self.source, path=path, write=True, arguments=arguments, expect=tuple(expected))
            self._settle(mounted, view)
            if view.name == "v3" and (ends == "unmount" or chance.random() < 0.2):
                self._check_natively(mounted, view)
            if ends == "unmount":
                mounted.unmount()
            else:
                self._work(mounted, view, ends)
                self.figures[ends] += 1
        for log in self.directory.glob("log-*"):
            log.unlink()

    # Work

    def _work(self, mounted: Mount, view: View, ends: str) -> None:
        quota, flushing = self.chance.randrange(20, 800), self.chance.random() < 0.6
        delay = 10 ** self.chance.uniform(-5, -1.3)
        state = "working"
        with team(mounted, view, self.locks, self.chance) as workers:
            for number, note in enumerate(workers.notes()):
                if state == "cut":
                    continue
                if note[0] in ("kill", "cut", "snapshot"):
                    state = note[0]
                    if state == "cut":
                        self.history.stop("the power is cut")
                else:
                    self._take(note, state)
                is_flush = note[0] == "begin" and note[2] == "flush"
                if state == "working" and number >= quota and (is_flush or not flushing or number > quota + 800):
                    time.sleep(delay)
                    if ends == "cut":
                        workers.note("snapshot")
                        self.disk.snapshot()
                        workers.note("cut")
                    else:
                        workers.note("kill")
                    mounted.process.kill()
                    mounted.process.wait(PATIENCE)
                    workers.sender.close()
                    state = "ending"
        self.history.stop("killed")
        subprocess.run(["fusermount3", "-u", "-z", str(mounted.path)], check=True)
        if ends == "cut":
            self.disk.cut()
        for geometry in GEOMETRIES:
            self.unsettled[geometry.name] = self.unsettled.get(geometry.name, False) or ends == "cut"

    def _take(self, note: list[Any], state: str) -> None:
        kind, process, *rest = note
        history = self.history
        match kind:
            case "begin":
                history.begin(process, rest[0], rest[1], **rest[2])
            case "end" if state != "snapshot":
                self.figures["operations"] += 1
                operation = history.running[process]
                history.end(process, **rest[0])
                if "O_EXCL" in operation.what:
                    for change in operation.changes:
                        history.check_exclusive(change.path)
            case "found" if state != "snapshot":
                self.figures["reads"] += 1
                history.has_read(process, rest[0])
            case "broken" if state == "working":
                operation = history.running.get(process)
                paths = [change.path for change in operation.changes] if operation else []
                what = operation.what if operation else "look at a document"
                raise WrongError(f"{process} failed: {what}: {rest[0]}\n{history.story(paths)}")

    # Looking

    def _settle(self, mounted: Mount, view: View) -> None:
        for geometry in GEOMETRIES:
            if geometry.is_shown(view) and geometry.name in self.unsettled:
                cut = self.unsettled.pop(geometry.name)
                self.history.settle(_look(mounted.path, geometry, view), cut=cut)

    def _check_natively(self, mounted: Mount, view: View) -> None:
        self._mend(mounted, view)
        self.history.begin(JUDGE, "flush", {}, syncs=True)
        flush(mounted.path)
        self.history.end(JUDGE)
        done = run("verify", "--data", self.source)
        if done.returncode:
            raise WrongError(f"shardfs verify: {done.stdout}{done.stderr}")
        for geometry in GEOMETRIES:
            expected = _values(mounted.path, geometry, view)
            for name, read in READERS.items():
                if (name, geometry.name) != ("tensorstore", "encoded"):
                    try:
                        assert_same(read(self.source / geometry.name), expected)
                    except AssertionError as error:
                        raise WrongError(f"{name} reads other values of {geometry.name}") from error
        self.figures["native"] += 1

    def _mend(self, mounted: Mount, view: View) -> None:
        """Write chunks that are none, which processes made by writing to parts of them."""
        for geometry in GEOMETRIES:
            shape, _ = _document(mounted.path, geometry, view)
            for at in geometry.grid(shape):
                path = mounted.path / geometry.path(at, view)
                if geometry.read(str(path), view).startswith(BROKEN):
                    values = geometry.values(self.chance)
                    content, name = geometry.content(values, view), geometry.name_of(at)
                    whole = not geometry.is_plain(view)
                    self.history.begin(JUDGE, "mend", {name: geometry.token(content, view)}, whole=whole)
                    path.write_bytes(content)
                    self.history.end(JUDGE)


def _document(mount: Path, geometry: Geometry, view: View) -> tuple[list[int], str]:
    """Shape and label of an array."""
    shape, attributes = (json.loads(_content(mount / geometry.name / name) or b"{}") for name in view.documents)
    return shape["shape"], str(attributes.get("attributes", attributes).get("label"))


def _look(mount: Path, geometry: Geometry, view: View) -> dict[str, str]:
    shape, label = _document(mount, geometry, view)
    found = {f"{geometry.name} shape": str(shape), f"{geometry.name} label": label}
    found |= {geometry.name_of(at): ABSENT for at in geometry.grid()}
    for at in geometry.grid(shape):
        found[geometry.name_of(at)] = geometry.read(str(mount / geometry.path(at, view)), view)
    return found


def _values(mount: Path, geometry: Geometry, view: View) -> np.ndarray:
    shape, _ = _document(mount, geometry, view)
    values = np.zeros([-(-length // part) * part for length, part in zip(shape, geometry.chunk, strict=True)], "u1")
    for at in geometry.grid(shape):
        content = _content(mount / geometry.path(at, view))
        if content is not None:
            chunk = np.frombuffer(geometry.decoded(content, view) or b"", "u1").reshape(geometry.chunk)
            values[tuple(slice(n * part, (n + 1) * part) for n, part in zip(at, geometry.chunk, strict=True))] = chunk
    return values[tuple(slice(length) for length in shape)]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
