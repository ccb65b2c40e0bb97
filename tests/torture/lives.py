"""Lives of a source: mounted, written to by many processes, killed or cut, mounted again, and compared."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import run
from tests.support.hosts import kill
from tests.support.mounting import PATIENCE, Mount, Mounter, flush, mounter
from tests.support.readers import READERS, assert_same
from tests.torture.disks import Disk, Host
from tests.torture.documents import make_source
from tests.torture.geometry import ABSENT, BROKEN, CHUNKS, GEOMETRIES, Geometry, Part, View
from tests.torture.history import History, WrongError
from tests.torture.worker import work, work_by_store

VIEWS = (View(), View(), View(), View("v2"), View("v2"), View("v3", True), View("v2", True))
NPROCESSES = 4
_LATER = 200
"""After how many more notes a mount is ended that was to be ended while it flushes."""
JUDGE = "judge"
EXPECTED = (r"shardfs\.fuse\.operations: (read|open): .* (does not decode|bytes, not)",)
"""Errors in the log of a mount whose processes make what is no chunk."""
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.torture.worker"])


@dataclass
class Team:
    """Processes that work on a mount, and their notes."""

    receiver: socket.socket
    sender: socket.socket
    sessions: list[Session]

    def note(self, kind: str) -> None:
        """Put a note of our own between theirs."""
        self.sender.send(json.dumps([kind, JUDGE]).encode())

    def notes(self) -> Iterator[list[Any]]:
        """All notes in their order, until the processes have ended."""
        while data := self.receiver.recv(2**18):
            yield json.loads(data)


@dataclass(frozen=True)
class Place:
    """A mount of a host, which shows a view; only this host changes its *part* of the chunks."""

    mounted: Mount
    view: View
    part: Part


@dataclass(frozen=True)
class Session:
    """Who writes to a *part* of the chunks: a mount, or a process of ours with a store, and the processes beside it."""

    part: Part
    mounted: Mount | None
    workers: dict[str, BaseProcess]

    def kill(self) -> None:
        if self.mounted is not None:
            kill(self.mounted)
        else:
            self.end()

    def end(self) -> None:
        """End our processes."""
        for process in self.workers.values():
            process.kill()
            process.join()


@contextmanager
def team(places: Sequence[Place], stores: Mapping[Part, Host], locks: Path, chance: random.Random) -> Iterator[Team]:
    """Let processes work until the end of the block, on each mount in turn, and one by each store."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver.settimeout(PATIENCE)
    sessions = [Session(place.part, place.mounted, {}) for place in places]
    for number in range(max(NPROCESSES, len(places))):
        place, session, name = places[number % len(places)], sessions[number % len(places)], f"w{number}"
        arguments = (place.mounted.path, place.view, place.part, sender, locks, chance.getrandbits(64), name)
        session.workers[name] = _PROCESSES.Process(target=work, args=arguments)
    for part, host in stores.items():
        name, variables = f"s{part.number}", {**host.variables, "XDG_STATE_HOME": str(host.state)}
        arguments = (host.source, variables, part, sender, locks, chance.getrandbits(64), name)
        sessions.append(Session(part, None, {name: _PROCESSES.Process(target=work_by_store, args=arguments)}))
    try:
        for session in sessions:
            for process in session.workers.values():
                process.start()
        yield Team(receiver, sender, sessions)
    finally:
        for session in sessions:
            for process in session.workers.values():
                if process.pid is not None:
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
    counts: Counter[str]
    history: History = field(default_factory=History)
    unsettled: dict[str, bool] = field(default_factory=dict)
    """Arrays that were not looked at since the mount ended, and whether the power was cut."""
    arguments: list[str] = field(default_factory=list)
    """The options of the last mount."""
    turn: int = 0
    """How often it was mounted: who writes which part of the chunks changes with it."""

    def __post_init__(self) -> None:
        self.locks = self.directory / "locks"
        self.locks.touch()
        make_source(self.directory / "template")
        self.disk.store(self.directory / "template")
        contents = {geometry.name_of(at): ABSENT for geometry, at in CHUNKS}
        for geometry in GEOMETRIES:
            contents |= {f"{geometry.name} shape": str(list(geometry.shape)), f"{geometry.name} label": "None"}
        self.history.start(contents)

    def live(self, rounds: int, until: float) -> None:
        """Mount, work and end so often, or until a moment; raises `WrongError` if something is."""
        for number in range(rounds):
            if time.monotonic() > until and number:
                break
            self._mount_and_work(ends=self.chance.choice(["kill", "cut"] if self.disk.can_be_cut else ["kill"]))
        self._mount_and_work(ends="unmount")
        left = self.disk.left()
        if left:
            raise WrongError(f"left behind: {left}")

    def _mount_and_work(self, ends: str) -> None:
        chance, view = self.chance, self.chance.choice(VIEWS)
        self.turn += 1
        # In a bucket, what several hosts change of a shard may look like a conflict to the one that was killed: who
        # writes it anew moves the chunks of all. This applies it.
        if self.disk.is_remote or chance.random() < 0.1:
            self._recover()
        with mounter(self.directory) as mount:
            places = self.mount(mount, view)
            time.sleep(self.disk.cached_seconds)  # until then a host may not see what another one stored
            self._settle(places)
            if view.name == "v3" and (ends == "unmount" or chance.random() < 0.1):
                self._check_natively(places)
            if ends == "unmount":
                for place in places:
                    place.mounted.unmount()
            else:
                self._work(places, ends)
                self.counts[ends] += 1
        for log in self.directory.glob("log-*"):
            log.unlink()

    def mount(self, mount: Mounter, view: View, **variables: str) -> list[Place]:
        """Mount the source on each host, with random options."""
        places = []
        for number, host in enumerate(self.disk.hosts[: self.disk.nmounts]):
            options = {"--auto-compact=0.4": 0.3, "--metadata-ttl=0": 0.3, "--page-cache": 0.3}
            chosen = [word for word, share in options.items() if self.chance.random() < share]
            self.arguments = [*view.arguments, *chosen]
            path = self.directory / f"mnt-{os.getpid()}-{number}"
            path.mkdir(exist_ok=True)
            mounted = mount(
                host.source,
                path=path,
                state=host.state,
                env={**host.variables, **variables},
                write=True,
                arguments=self.arguments,
                expect=EXPECTED,
            )
            for geometry in GEOMETRIES:
                if geometry.is_plain(view):  # a bucket has no empty directories
                    (path / geometry.name / "c").mkdir(exist_ok=True)
            places.append(Place(mounted, view, self._part(number)))
        return places

    def _part(self, number: int) -> Part:
        """The part of the chunks that one of the hosts writes in this turn; in a bucket it keeps it."""
        nparts = len(self.disk.hosts)
        return Part(number if self.disk.is_remote else (number + self.turn) % nparts, nparts)

    @property
    def _stores(self) -> dict[Part, Host]:
        """The hosts that write by stores, and their parts."""
        hosts = enumerate(self.disk.hosts)
        return {self._part(number): host for number, host in hosts if number >= self.disk.nmounts}

    def _recover(self) -> None:
        for host in self.disk.hosts:
            variables = {**host.variables, "XDG_STATE_HOME": str(host.state)}
            done = run("recover", "--apply", host.source, **variables)
            wrong = [line for line in done.stderr.splitlines() + done.stdout.splitlines() if not _is_fine(line)]
            has_conflicts = "applied: " in done.stdout and not self.disk.is_remote
            if has_conflicts or (done.returncode and (wrong or not done.stdout)):
                raise WrongError(f"shardfs recover --apply: {done.stdout}{done.stderr}")

    # Work

    def _work(self, places: Sequence[Place], ends: str) -> None:
        quota, flushing = int(10 ** self.chance.uniform(1, 2.8)), self.chance.random() < 0.6
        delay = 10 ** self.chance.uniform(-5, -1.3)
        state, is_ending = "working", False
        dead: set[str] = set()
        """The processes whose session was killed before the others."""
        with team(places, self._stores, self.locks, self.chance) as workers:
            goes_on = len(workers.sessions) > 1 and self.chance.random() < 0.5
            for number, note in enumerate(workers.notes()):
                if state == "cut":
                    continue
                if note[0] in ("kill", "cut", "snapshot"):
                    state = note[0]
                    if state == "cut":
                        self.history.stop("the power is cut", cut=True)
                elif note[0] != "broken" or note[1] not in dead:
                    self._take(note, state, workers.sessions)
                self.disk.disturb(self.chance)
                is_flush = note[0] == "begin" and note[2] == "flush"
                if is_ending or number < quota or not (is_flush or not flushing or number > quota + _LATER):
                    continue
                time.sleep(delay)
                if goes_on:  # a part of the sessions, while the others work
                    goes_on = False
                    quota = number + int(10 ** self.chance.uniform(1, 2.5))
                    for session in self.chance.sample(
                        workers.sessions, self.chance.randrange(1, len(workers.sessions))
                    ):
                        dead.update(session.workers)
                        session.kill()
                        self.counts["killed beside others"] += 1
                    continue
                is_ending = True
                if ends == "cut":
                    workers.note("snapshot")
                    self.disk.snapshot()
                    workers.note("cut")
                else:
                    workers.note("kill")
                for session in workers.sessions:
                    session.kill()
                workers.sender.close()
        self.history.stop("killed")
        self.disk.calm()
        for place in places:
            subprocess.run(["fusermount3", "-u", "-z", str(place.mounted.path)], check=True)
        if ends == "cut":
            self.disk.cut()
        for geometry in GEOMETRIES:
            self.unsettled[geometry.name] = self.unsettled.get(geometry.name, False) or ends == "cut"

    def work_while(self, goes_on: Callable[[], bool], places: Sequence[Place]) -> None:
        """Let processes work while this says so, which is asked after each note; nothing is killed but them."""
        with team(places, {}, self.locks, self.chance) as workers:
            for note in workers.notes():
                self._take(note, "working", workers.sessions)
                if not goes_on():
                    break

    def _take(self, note: list[Any], state: str, sessions: Iterable[Session]) -> None:
        kind, process, *rest = note
        history = self.history
        match kind:
            case "begin":
                scope = None
                if rest[0] != "flush":  # a sync makes durable what its own session published
                    (part,) = (session.part for session in sessions if process in session.workers)
                    scope = _names(part)
                history.begin(process, rest[0], rest[1], scope=scope, **rest[2])
            case "end" if state != "snapshot":
                self.counts["operations"] += 1
                operation = history.running[process]
                history.end(process, **rest[0])
                if "O_EXCL" in operation.what:
                    for change in operation.changes:
                        history.check_exclusive(change.path)
            case "found" if state != "snapshot":
                self.counts["reads"] += 1
                history.has_read(process, rest[0])
            case "broken" if state == "working":
                operation = history.running.get(process)
                paths = [change.path for change in operation.changes] if operation else []
                what = operation.what if operation else "look at a document"
                raise WrongError(f"{process} failed: {what}: {rest[0]}\n{history.story(paths)}")

    # Looking

    def _settle(self, places: Sequence[Place]) -> None:
        view = places[0].view
        for geometry in GEOMETRIES:
            if geometry.is_shown(view) and geometry.name in self.unsettled:
                cut = self.unsettled.pop(geometry.name)
                for place in [*places, *self._beside(places)]:
                    self.history.settle(_look(place, geometry), cut=cut)

    def _beside(self, places: Sequence[Place]) -> list[Place]:
        """The parts that stores write, as a mount shows them."""
        return [Place(places[0].mounted, places[0].view, part) for part in self._stores]

    def _check_natively(self, places: Sequence[Place]) -> None:
        places = [*places, *self._beside(places)]
        for place in places:
            self._mend(place)
        self.history.begin(JUDGE, "flush", {}, syncs=True)
        # In a bucket, hosts commit what is theirs; else one session lets all others commit, too.
        for place in places if self.disk.is_remote else [self.chance.choice(places)]:
            flush(place.mounted.path)
        self.history.end(JUDGE)
        source = self.disk.stored(self.directory / "stored")
        done = run("verify", "--data", source)
        if done.returncode:
            raise WrongError(f"shardfs verify: {done.stdout}{done.stderr}")
        for geometry in GEOMETRIES:
            expected = _values(places, geometry)
            for name, read in READERS.items():
                if (name, geometry.name) != ("tensorstore", "encoded"):
                    try:
                        assert_same(read(source / geometry.name), expected)
                    except AssertionError as error:
                        raise WrongError(f"{name} reads other values of {geometry.name}") from error
        self.counts["native"] += 1

    def _mend(self, place: Place) -> None:
        """Write chunks that are none, which processes made by writing to parts of them."""
        view = place.view
        for geometry in GEOMETRIES:
            shape, _ = _document(place, geometry)
            for at in place.part.of(geometry.grid(shape), geometry):
                path = place.mounted.path / geometry.path(at, view)
                if geometry.read(str(path), view).startswith(BROKEN):
                    values = geometry.values(self.chance)
                    content, name = geometry.content(values, view), geometry.name_of(at)
                    whole = not geometry.is_plain(view)
                    self.history.begin(JUDGE, "mend", {name: geometry.token(content, view)}, whole=whole)
                    path.write_bytes(content)
                    self.history.end(JUDGE)


def _is_fine(line: str) -> bool:
    """Whether `shardfs recover` may say so: of sessions that are alive, and of journals that a power cut tore."""
    return (
        re.match(r"committed |journal: the |slot \d+ of \S+ is (in use by|of) process |\S+ is damaged: |$", line)
        is not None
    )


def _names(part: Part) -> set[str]:
    """What one session alone changes."""
    names = {geometry.name_of(at) for geometry in GEOMETRIES for at in part.of(geometry.grid(), geometry)}
    if part.number == 0:
        names |= {f"{geometry.name} {what}" for geometry in GEOMETRIES for what in ("shape", "label")}
    return names


def _document(place: Place, geometry: Geometry) -> tuple[list[int], str]:
    """Shape and label of an array."""
    directory = place.mounted.path / geometry.name
    shape, attributes = (json.loads(_content(directory / name) or b"{}") for name in place.view.documents)
    return shape["shape"], str(attributes.get("attributes", attributes).get("label"))


def _look(place: Place, geometry: Geometry) -> dict[str, str]:
    """What a host has of its part."""
    shape, label = _document(place, geometry)
    found = {}
    if place.part.number == 0:
        found = {f"{geometry.name} shape": str(shape), f"{geometry.name} label": label}
    found |= {geometry.name_of(at): ABSENT for at in place.part.of(geometry.grid(), geometry)}
    for at in place.part.of(geometry.grid(shape), geometry):
        path = place.mounted.path / geometry.path(at, place.view)
        found[geometry.name_of(at)] = geometry.read(str(path), place.view)
    return found


def _values(places: Sequence[Place], geometry: Geometry) -> np.ndarray:
    """The values of an array, of which each host has a part."""
    shape, _ = _document(places[0], geometry)
    values = np.zeros([-(-length // part) * part for length, part in zip(shape, geometry.chunk, strict=True)], "u1")
    for place in places:
        for at in place.part.of(geometry.grid(shape), geometry):
            content = _content(place.mounted.path / geometry.path(at, place.view))
            if content is not None:
                chunk = np.frombuffer(geometry.decoded(content, place.view) or b"", "u1").reshape(geometry.chunk)
                where = [slice(n * part, (n + 1) * part) for n, part in zip(at, geometry.chunk, strict=True)]
                values[tuple(where)] = chunk
    return values[tuple(slice(length) for length in shape)]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
