"""A daemon that is killed under load, again and again: what was closed stays, and any reader reads the shards."""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.corpus import GZIP, array, extension, sharding
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.processes import running
from tests.support.readers import READERS, assert_same

ROUNDS = 200 if os.environ.get("SHARDFS_LONG") else 6
SIDE, PER_SHARD, INNER = 8, 4, 48
"""Chunks per axis, chunks per shard and axis, and the length of a chunk: 4 shards of 16 chunks."""

ARRAYS = {"end": "end", "start": "start", "compressed": "end"}
"""Where the indexes of their shards are."""

WRITER = r"""
import gzip, hashlib, os, random, sys
mount, note, seed, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
SIDE, INNER = 8, 48

def tell(*words):  # one line is one write, and whole in a pipe
    os.write(note, (" ".join(map(str, words)) + "\n").encode())

def write(path, data, flags=os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        half = chance.randrange(len(data))
        os.pwrite(fd, data[:half], 0)
        os.pwrite(fd, data[half:], half)
    finally:
        os.close(fd)

number = start
while True:
    number += 1
    name = chance.choice(["end", "start", "compressed"])
    chunk = f"{name}/c/{chance.randrange(SIDE)}/{chance.randrange(SIDE)}"
    path = f"{mount}/{chunk}"
    values = random.Random(number).randbytes(INNER * INNER)
    data = gzip.compress(values, 1, mtime=0) if name == "compressed" else values
    way = chance.choice(["in-place", "beside", "synced", "anew", "unlink"])
    checksum = hashlib.sha256(data).hexdigest()
    tell("begin", chunk, way, checksum, number)
    try:
        if way == "unlink":
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        elif way == "in-place":
            write(path, data)
        elif way == "anew":
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            write(path, data, os.O_EXCL)
        else:
            write(path + ".partial", data)
            if way == "synced":
                fd = os.open(path + ".partial", os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            os.rename(path + ".partial", path)
    except OSError as error:
        tell(error.strerror)
        break
    tell("end", chunk, way, checksum, number)
"""

COMMIT = """
import contextlib, os, sys
with contextlib.suppress(OSError):
    while True:
        os.setxattr(sys.argv[1], "user.shardfs.flush", b"")
"""

ENDS = ("Transport endpoint is not connected", "Software caused connection abort", "Input/output error")
"""What a writer gets when the daemon goes while it waits, and after it."""


@dataclass
class Book:
    """What the chunks hold: of each the number that its values are made from, 0 for a chunk that there is not.

    *checksums* are those of all contents by their numbers, *in_flight* what else one chunk may hold.
    """

    chunks: dict[str, int]
    checksums: dict[int, str]
    in_flight: dict[str, set[int]]
    number: int = 0

    @classmethod
    def new(cls) -> Book:
        names = [f"{name}/c/{i}/{j}" for name in ARRAYS for i in range(SIDE) for j in range(SIDE)]
        return cls(dict.fromkeys(names, 0), {0: ""}, {})

    def read(self, notes: str) -> None:
        """Take in what a writer noted; raises if it ended in another way than by the end of the mount."""
        self.in_flight = {}
        *lines, last = notes.splitlines()
        assert last in ENDS, last
        for line in lines:
            kind, chunk, way, checksum, number = line.split()
            self.number = int(number)
            new = 0 if way == "unlink" else self.number
            self.checksums[self.number] = checksum
            if kind == "end":
                self.chunks[chunk] = new
                self.in_flight = {}
            else:
                self.in_flight = {chunk: {new, 0} if way == "anew" else {new}}

    def settle(self, mount: Path) -> None:
        """Compare with what is found on a mount, and note what became of the chunk that was being written."""
        for chunk, number in self.chunks.items():
            found = checksum_of(mount / chunk)
            allowed = {self.checksums[n]: n for n in (number, *self.in_flight.get(chunk, ()))}
            assert found in allowed, f"{chunk} is neither {number} nor {self.in_flight.get(chunk)}"
            self.chunks[chunk] = allowed[found]

    def values(self, name: str) -> np.ndarray:
        """What the array must hold."""
        values = np.zeros((SIDE * INNER, SIDE * INNER), np.uint8)
        for chunk, number in self.chunks.items():
            array, _, i, j = chunk.split("/")
            if array == name and number:
                part = np.frombuffer(random.Random(number).randbytes(INNER * INNER), np.uint8).reshape(INNER, INNER)
                values[int(i) * INNER : (int(i) + 1) * INNER, int(j) * INNER : (int(j) + 1) * INNER] = part
        return values


def checksum_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for name, location in ARRAYS.items():
        codecs = [extension("bytes"), *([GZIP] if name == "compressed" else [])]
        shards = sharding((INNER, INNER), *codecs, index_location=location)
        document = array((SIDE * INNER,) * 2, (PER_SHARD * INNER,) * 2, shards, data_type="uint8")
        (root / name).mkdir()
        (root / name / "zarr.json").write_text(json.dumps(document))
    return root


class Load:
    """A process that writes chunks through a mount, and notes each outside of it."""

    def __init__(self, mount: Mount, seed: int, number: int) -> None:
        self.notes, fd = os.pipe()
        arguments = [sys.executable, "-c", WRITER, str(mount.path), str(fd), str(seed), str(number)]
        self.process = subprocess.Popen(arguments, pass_fds=[fd])
        os.close(fd)
        self.text = b""

    def wait_for(self, nlines: int) -> None:
        while self.text.count(b"\n") < nlines:
            self._read()

    def end(self) -> str:
        """Return all notes, once the writer has ended by itself."""
        with suppress(EOFError):
            while True:
                self._read()
        self.process.wait(PATIENCE)
        os.close(self.notes)
        return self.text.decode()

    def _read(self) -> None:
        readable, _, _ = select.select([self.notes], [], [], PATIENCE)
        assert readable, "the writer stands still"
        piece = os.read(self.notes, 2**16)
        if not piece:
            raise EOFError(self.text)
        self.text += piece


def read_natively(source: Path, book: Book) -> None:
    for name in ARRAYS:
        for read in READERS.values():
            assert_same(read(source / name), book.values(name))
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            assert_same(READERS["zarr"](source / name), book.values(name))


def test_closed_files_survive_a_daemon_killed_at_any_moment(mount: Mounter, source: Path) -> None:
    chance = random.Random(1)
    book = Book.new()
    mounted = mount(source, write=True)
    for number in range(ROUNDS):
        load = Load(mounted, number, book.number)
        load.wait_for(chance.randrange(1, 300))
        committing = chance.random() < 0.7 and subprocess.Popen([sys.executable, "-c", COMMIT, str(mounted.path)])
        load.wait_for(load.text.count(b"\n") + chance.randrange(1, 200))
        for _ in range(chance.randrange(20_000)):
            pass
        mounted.process.kill()
        mounted.process.wait(PATIENCE)
        book.read(load.end())
        if committing:
            committing.wait(PATIENCE)
        mounted = mount(source, path=mounted.path, write=True)
        book.settle(mounted.path)
        if number % 3 == 2:
            mounted.unmount()
            left = [path.relative_to(source) for path in source.glob(".shardfs/**/*") if path.is_file()]
            assert all(path.suffix == ".partial" or path.name == "lock" for path in left), left
            read_natively(source, book)
            mounted = mount(source, path=mounted.path, write=True)


IN_ONE_DIRECTORY = """
import os, sys
directory, name = sys.argv[1:]
opened, data, number = os.open(directory, os.O_RDONLY), bytes(24), 0
while True:
    number += 1
    if name == "sync":
        os.fsync(opened)
    else:
        new = f"{directory}/{os.getpid()}.{number}.partial"
        with open(new, "xb", buffering=0) as file:
            file.write(data)
        os.rename(new, f"{directory}/{name}")
    if number == 100:
        print(flush=True)
"""
"""Renames files onto a chunk, or syncs their directory, until the mount is gone."""


def test_no_program_hangs_in_a_mount_that_was_killed(mount: Mounter, tmp_path: Path) -> None:
    """The kernel holds the lock of a directory while it waits for an answer, so nobody may wait for that to tell it."""
    for number in range(6):
        source = tmp_path / str(number)
        source.mkdir()
        (source / "zarr.json").write_text(json.dumps(array((8, 6), (8, 6), sharding((2, 3)))))
        mounted = mount(source, write=True)
        with ExitStack() as stack:
            programs = [
                stack.enter_context(
                    running(
                        [sys.executable, "-c", IN_ONE_DIRECTORY, f"{mounted.path}/c/0", name],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                    )
                )
                for name in ("0", "1", "0", "sync", "sync")
            ]
            # Even programs that hang are let go by it; the place stays busy, and fails.
            stack.callback(subprocess.run, ["umount", "-f", mounted.path], capture_output=True, check=False)
            for program in programs:
                assert program.stdout is not None
                assert program.stdout.readline() == b"\n"
            mounted.process.kill()
            for program in programs:
                assert program.wait(PATIENCE) == 1
