"""A process that does random things on a mount, and notes each before and after it, outside of the mount.

A note is one message, so all notes of all processes have an order. Processes lock what they work on: whoever changes a
part of a chunk has it alone, and so has an array who changes its shape; whole chunks are written at the same time.
"""

import errno
import fcntl
import json
import os
import random
import signal
import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import shardfs
from shardfs.errors import ShardfsError
from tests.support.processes import end_with_parent, move_to_host
from tests.torture.geometry import ABSENT, GEOMETRIES, NUMBERS, PRESENT, Coordinates, Geometry, Part, View

FLUSH = "user.shardfs.flush"
_CHUNKS_FROM = 1000
"""Where the locks of chunks begin, behind those of arrays."""


class Locks:
    """Locks of arrays and chunks, which end with the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR)

    @contextmanager
    def array(self, geometry: Geometry, *, alone: bool = False) -> Iterator[None]:
        with self._locked(GEOMETRIES.index(geometry), alone):
            yield

    @contextmanager
    def chunk(self, geometry: Geometry, at: Coordinates, *, alone: bool = False) -> Iterator[None]:
        with self._locked(_CHUNKS_FROM + NUMBERS[geometry.name, at], alone):
            yield

    @contextmanager
    def _locked(self, place: int, alone: bool) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, 1, place)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, place)


class Notes:
    """What a process notes of itself."""

    def __init__(self, sender: socket.socket, name: str) -> None:
        self._socket = sender
        self._name = name

    def begin(self, what: str, contents: Mapping[str, str] | None = None, **options: bool) -> None:
        self._send("begin", what, contents or {}, options)

    def end(self, **options: bool) -> None:
        self._send("end", options)

    def found(self, found: Mapping[str, str]) -> None:
        self._send("found", found)

    def broken(self, error: OSError | ShardfsError) -> None:
        call = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, OSError):
            self._send("broken", f"{errno.errorcode.get(error.errno or 0)} by `{call.line}`, {error.filename}")
        else:
            self._send("broken", f"{error} by `{call.line}`")

    def _send(self, kind: str, *rest: Any) -> None:
        self._socket.send(json.dumps([kind, self._name, *rest]).encode())


class Worker:
    """What a process may do, by name."""

    def __init__(
        self, mount: str, view: View, part: Part, notes: Notes, locks: Locks, chance: random.Random, name: str
    ) -> None:
        self.mount, self.view, self.part = mount, view, part
        self.notes, self.locks, self.chance, self.name = notes, locks, chance, name
        self.shown = [geometry for geometry in GEOMETRIES if geometry.is_shown(view)]
        self.ways = {
            self.write: 30,
            self.write_beside: 14,
            self.create: 8,
            self.unlink: 8,
            self.link: 4,
            self.move: 5,
            self.read: 14,
            self.list_names: 3,
            self.sync: 3,
            self.flush: 2,
        }
        if part.number == 0:
            self.ways |= {self.label: 1}
        if part.nparts == 1:  # hosts see a new shape only after some time
            self.ways |= {self.resize: 1}
        if not view.decodes:
            self.ways |= {self.patch: 6, self.extend: 4, self.cut: 2}

    def work(self) -> None:
        """Work until the mount ends."""
        while True:
            self.chance.choices(list(self.ways), list(self.ways.values()))[0]()

    # Whole chunks

    def write(self) -> None:
        with self._a_chunk() as (geometry, at):
            data = self._data(geometry)
            self._write(geometry, at, "write", data, os.O_TRUNC | os.O_CREAT)

    def create(self) -> None:
        with self._a_chunk() as (geometry, at):
            self._write(geometry, at, "write with O_EXCL", self._data(geometry), os.O_CREAT | os.O_EXCL)

    def _write(self, geometry: Geometry, at: Coordinates, what: str, data: bytes, flags: int) -> None:
        syncs = self.chance.random() < 0.1
        half, delay = self.chance.randrange(len(data)), self.chance.random() < 0.1
        path = self._path(geometry, at)
        self._begin(geometry, at, what + " and sync" * syncs, data, syncs=syncs and not geometry.is_plain(self.view))
        try:
            fd = os.open(path, os.O_WRONLY | flags, 0o644)
        except FileExistsError:
            self.notes.found({geometry.name_of(at): PRESENT})
            return
        try:
            os.pwrite(fd, data[:half], 0)
            if delay:
                os.listdir(self.mount)
            os.pwrite(fd, data[half:], half)
            if syncs:
                os.fsync(fd)
        finally:
            os.close(fd)
        self.notes.end(durable=syncs)

    def write_beside(self) -> None:
        with self._a_chunk() as (geometry, at):
            data, path = self._data(geometry), self._path(geometry, at)
            syncs = self.chance.random() < 0.3
            beside = self._write_file(path, data, syncs=syncs)
            self._begin(geometry, at, "rename another file to it", data)
            os.rename(beside, path)
            self.notes.end()

    def link(self) -> None:
        with self._a_chunk() as (geometry, at):
            if geometry.is_plain(self.view) and self.part.nparts > 1:
                return  # in a bucket, which hosts share, an object has one name
            data, path = self._data(geometry), self._path(geometry, at)
            beside = self._write_file(path, data)
            self._begin(geometry, at, "link another file with O_EXCL", data)
            try:
                os.link(beside, path)
            except FileExistsError:
                self.notes.found({geometry.name_of(at): PRESENT})
            else:
                self.notes.end()
            os.unlink(beside)

    def _write_file(self, path: str, data: bytes, *, syncs: bool = False) -> str:
        beside = f"{path}.{self.name}.partial"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data)
            if syncs:
                os.fsync(fd)
        finally:
            os.close(fd)
        return beside

    def unlink(self) -> None:
        with self._a_chunk() as (geometry, at):
            self._begin(geometry, at, "unlink", None)
            try:
                os.unlink(self._path(geometry, at))
            except FileNotFoundError:
                self.notes.found({geometry.name_of(at): ABSENT})
            else:
                self.notes.end()

    def move(self) -> None:
        """Rename a chunk to another one of its array."""
        with self._a_chunk(alone=True) as (geometry, at):
            others = [other for other in self._grid(geometry) if other > at]
            if not others:
                return
            other = self.chance.choice(others)
            with self.locks.chunk(geometry, other, alone=True):
                content = self._content(self._path(geometry, at))
                if content is None:
                    return
                names = {geometry.name_of(at): ABSENT, geometry.name_of(other): geometry.token(content, self.view)}
                whole = not geometry.is_plain(self.view)
                self.notes.begin(f"rename {geometry.name_of(at)} to {geometry.name_of(other)}", names, whole=whole)
                os.rename(self._path(geometry, at), self._path(geometry, other))
                self.notes.end()

    # Parts of chunks

    def patch(self) -> None:
        """Overwrite a part of a chunk."""
        with self._a_chunk(alone=True) as (geometry, at):
            path = self._path(geometry, at)
            content = self._content(path)
            if not content:
                return
            start = self.chance.randrange(len(content))
            part = self.chance.randbytes(self.chance.randrange(1, 1 + len(content) - start))
            changed = content[:start] + part + content[start + len(part) :]
            self._begin(geometry, at, "overwrite a part", changed)
            fd = os.open(path, os.O_RDWR)
            try:
                os.pwrite(fd, part, start)
            finally:
                os.close(fd)
            self.notes.end()

    def extend(self) -> None:
        """Append to a chunk."""
        with self._a_chunk(alone=True) as (geometry, at):
            path = self._path(geometry, at)
            content = self._content(path)
            if content is None:
                return
            part = self.chance.randbytes(5)
            self._begin(geometry, at, "append", content + part)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, part)
            finally:
                os.close(fd)
            self.notes.end()
            self._cut(geometry, at, content + part, len(content))

    def cut(self) -> None:
        """Give a chunk another size."""
        with self._a_chunk(alone=True) as (geometry, at):
            content = self._content(self._path(geometry, at))
            if content is not None:
                self._cut(geometry, at, content, self.chance.randrange(len(content) + 9))

    def _cut(self, geometry: Geometry, at: Coordinates, content: bytes, size: int) -> None:
        self._begin(geometry, at, f"truncate to {size}", content[:size].ljust(size, b"\0"))
        os.truncate(self._path(geometry, at), size)
        self.notes.end()

    # Looking and waiting

    def read(self) -> None:
        with self._a_chunk() as (geometry, at):
            self.notes.begin(f"read {geometry.name_of(at)}")
            self.notes.found({geometry.name_of(at): geometry.read(self._path(geometry, at), self.view)})

    def list_names(self) -> None:
        with self._an_array() as geometry:
            paths = {self._path(geometry, at): geometry.name_of(at) for at in self._grid(geometry)}
            directories = sorted({os.path.dirname(path) for path in paths})
            self.notes.begin(f"list {geometry.name}")
            found = {f"{directory}/{name}" for directory in directories for name in _list(directory)}
            self.notes.found({name: PRESENT if path in found else ABSENT for path, name in paths.items()})

    def sync(self) -> None:
        """Sync a directory or a chunk."""
        with self._a_chunk() as (geometry, at):
            path = self._path(geometry, at)
            if geometry.is_plain(self.view):
                return
            self.notes.begin(f"sync {geometry.name_of(at)}", syncs=True)
            try:
                fd = os.open(self.chance.choice([path, os.path.dirname(path)]), os.O_RDONLY)
            except FileNotFoundError:
                self.notes.found({})
                return
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self.notes.end()

    def flush(self) -> None:
        self.notes.begin("flush", syncs=True)
        os.setxattr(self.mount, FLUSH, b"")
        self.notes.end()

    # Documents

    def resize(self) -> None:
        geometry = self.chance.choice([geometry for geometry in self.shown if not geometry.is_plain(self.view)])
        with self.locks.array(geometry, alone=True):
            path = f"{self.mount}/{geometry.name}/{self.view.documents[0]}"
            shape = [self.chance.randrange(1, 1 + length) for length in geometry.shape]
            shape = self.chance.choice([shape, list(geometry.shape), list(geometry.shape)])
            inside = {*geometry.grid(shape)}
            contents = {geometry.name_of(at): ABSENT for at in geometry.grid() if at not in inside}
            self._edit(path, {f"{geometry.name} shape": str(shape), **contents}, shape=shape)

    def label(self) -> None:
        geometry = self.chance.choice(self.shown)
        with self.locks.array(geometry, alone=True):
            path, value = f"{self.mount}/{geometry.name}/{self.view.documents[1]}", self.chance.randrange(10**6)
            members = {"attributes": {"label": value}} if self.view.name == "v3" else {"label": value}
            self._edit(path, {f"{geometry.name} label": str(value)}, **members)

    def _edit(self, path: str, contents: Mapping[str, str], **members: Any) -> None:
        document = {**json.loads(self._content(path) or b"{}"), **members}
        target = self.chance.choice([path, f"{path}.{self.name}.partial"])
        self.notes.begin(f"edit {path.removeprefix(self.mount)}", contents)
        with open(target, "w") as file:
            json.dump(document, file)
        if target != path:
            os.rename(target, path)
        self.notes.end(durable=True)

    # Parts of the above

    @contextmanager
    def _an_array(self) -> Iterator[Geometry]:
        geometry = self.chance.choice(self.shown)
        with self.locks.array(geometry):
            yield geometry

    @contextmanager
    def _a_chunk(self, *, alone: bool = False) -> Iterator[tuple[Geometry, Coordinates]]:
        with self._an_array() as geometry:
            at = self.chance.choice(self._grid(geometry))
            with self.locks.chunk(geometry, at, alone=alone or geometry.is_plain(self.view)):
                yield geometry, at

    def _grid(self, geometry: Geometry) -> list[Coordinates]:
        """Chunks of the shape that the array has now."""
        document = self._content(f"{self.mount}/{geometry.name}/{self.view.documents[0]}")
        return self.part.of(geometry.grid(json.loads(document or b"")["shape"]), geometry)

    def _begin(self, geometry: Geometry, at: Coordinates, what: str, content: bytes | None, **options: bool) -> None:
        name = geometry.name_of(at)
        whole = not geometry.is_plain(self.view)
        self.notes.begin(f"{what}: {name}", {name: geometry.token(content, self.view)}, whole=whole, **options)

    def _path(self, geometry: Geometry, at: Coordinates) -> str:
        return f"{self.mount}/{geometry.path(at, self.view)}"

    def _data(self, geometry: Geometry) -> bytes:
        return geometry.content(geometry.values(self.chance), self.view)

    def _content(self, path: str) -> bytes | None:
        """Return what is in a file; None if it is not there, or is no chunk."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EIO if self.view.decodes else None):
                return None
            raise


def _list(path: str) -> list[str]:
    with suppress(FileNotFoundError):
        return os.listdir(path)
    return []


class StoreWorker:
    """What a process does that has a session of its own, without a mount."""

    def __init__(self, source: str, part: Part, notes: Notes, locks: Locks, chance: random.Random) -> None:
        self.dataset = shardfs.open(source, write=True)
        self.part, self.notes, self.locks, self.chance = part, notes, locks, chance
        self.shown = [geometry for geometry in GEOMETRIES if geometry.is_sharded]
        self.ways = {self.write: 30, self.remove: 6, self.read: 10, self.flush: 2}

    def work(self) -> None:
        """Work until the process ends."""
        while True:
            self.chance.choices(list(self.ways), list(self.ways.values()))[0]()

    def write(self) -> None:
        with self._a_chunk() as (geometry, at):
            content = geometry.content(geometry.values(self.chance), View())
            name = geometry.name_of(at)
            self.notes.begin(f"write by a store: {name}", {name: geometry.token(content, View())})
            self.dataset[geometry.name].write_chunk(at, content)
            self.notes.end()

    def remove(self) -> None:
        with self._a_chunk() as (geometry, at):
            name = geometry.name_of(at)
            self.notes.begin(f"remove by a store: {name}", {name: ABSENT})
            self.dataset[geometry.name].write_chunk(at, None)
            self.notes.end()

    def read(self) -> None:
        with self._a_chunk() as (geometry, at):
            name = geometry.name_of(at)
            self.notes.begin(f"read by a store {name}")
            content = self.dataset[geometry.name].read_chunk(at)
            self.notes.found({name: geometry.token(content, View())})

    def flush(self) -> None:
        self.notes.begin("flush", syncs=True)
        self.dataset.flush()
        self.notes.end()

    @contextmanager
    def _a_chunk(self) -> Iterator[tuple[Geometry, Coordinates]]:
        geometry = self.chance.choice(self.shown)
        at = self.chance.choice(self.part.of(geometry.grid(), geometry))
        with self.locks.array(geometry), self.locks.chunk(geometry, at):
            yield geometry, at


def work_by_store(
    source: str, variables: Mapping[str, str], part: Part, sender: socket.socket, locks: Path, seed: int, name: str
) -> None:
    """Work by a store as a process of its own, until it is killed."""
    end_with_parent(signal.SIGKILL)
    os.environ |= variables
    if host := variables.get("TEST_HOST"):
        move_to_host(host)
    notes = Notes(sender, name)
    try:
        StoreWorker(source, part, notes, Locks(locks), random.Random(seed)).work()
    except (OSError, ShardfsError) as error:
        notes.broken(error)


def work(mount: Path, view: View, part: Part, sender: socket.socket, locks: Path, seed: int, name: str) -> None:
    """Work on a mount as a process of its own, until the mount ends."""
    end_with_parent(signal.SIGKILL)
    notes = Notes(sender, name)
    try:
        Worker(str(mount), view, part, notes, Locks(locks), random.Random(seed), name).work()
    except OSError as error:
        notes.broken(error)
