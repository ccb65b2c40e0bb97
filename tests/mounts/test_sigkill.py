"""A daemon that is killed under load, again and again: what was closed stays, and any reader reads the shards."""

from __future__ import annotations

import gzip
import json
import os
import random
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import zarr

from tests.support.corpus import GZIP, array, extension, sharding
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.readers import READERS, assert_same

ROUNDS = 200 if os.environ.get("SHARDFS_LONG") else 6
SIDE, PER_SHARD, INNER = 8, 4, 48
"""Chunks per axis, chunks per shard and axis, and the length of a chunk: 4 shards of 16 chunks."""

ARRAYS = {"end": "end", "start": "start", "compressed": "end"}
"""Where the indexes of their shards are."""

WRITER = r"""
import gzip, os, random, sys
from contextlib import suppress
mount, note, seed, number = sys.argv[1], *map(int, sys.argv[2:])
chance = random.Random(seed)
SIDE, INNER = 8, 48

def write(path, data, flags=os.O_TRUNC):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        half = chance.randrange(len(data))
        os.pwrite(fd, data[:half], 0)
        os.pwrite(fd, data[half:], half)
    finally:
        os.close(fd)

while True:
    number += 1
    name = chance.choice(["end", "start", "compressed"])
    chunk = f"{name}/c/{chance.randrange(SIDE)}/{chance.randrange(SIDE)}"
    path = f"{mount}/{chunk}"
    values = random.Random(number).randbytes(INNER * INNER)
    data = gzip.compress(values, 1, mtime=0) if name == "compressed" else values
    way = chance.choice(["in-place", "beside", "synced", "anew", "unlink"])
    os.write(note, f"begin {chunk} {way} {number}\n".encode())  # one line is one write, and whole in a pipe
    try:
        if way in ("anew", "unlink"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        if way in ("anew", "in-place"):
            write(path, data, os.O_EXCL if way == "anew" else os.O_TRUNC)
        elif way != "unlink":
            write(path + ".partial", data)
            if way == "synced":
                fd = os.open(path + ".partial", os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            os.rename(path + ".partial", path)
    except OSError as error:
        os.write(note, f"{error.strerror}\n".encode())
        break
    os.write(note, f"end {chunk} {way} {number}\n".encode())
"""

COMMIT = """
import contextlib, os, sys
with contextlib.suppress(OSError):
    while True:
        os.setxattr(sys.argv[1], "user.shardfs.flush", b"")
"""

ENDS = ("Transport endpoint is not connected", "Software caused connection abort", "Input/output error")
"""What a writer gets when the daemon goes while it waits, and after it."""


class Book:
    """What the chunks hold: of each the number that its values are made from, 0 for a chunk that there is not.

    *in_flight* is what else one chunk may hold, and *number* the last one.
    """

    def __init__(self) -> None:
        self.chunks = {f"{name}/c/{i}/{j}": 0 for name in ARRAYS for i in range(SIDE) for j in range(SIDE)}
        self.in_flight: dict[str, set[int]] = {}
        self.number = 0

    def read(self, notes: str) -> None:
        """Take in what a writer noted; raises if it ended in another way than by the end of the mount."""
        self.in_flight = {}
        *lines, last = notes.splitlines()
        assert last in ENDS, last
        for line in lines:
            kind, chunk, way, number = line.split()
            self.number = int(number)
            new = 0 if way == "unlink" else self.number
            if kind == "end":
                self.chunks[chunk] = new
            self.in_flight = {} if kind == "end" else {chunk: {new, 0} if way == "anew" else {new}}

    def settle(self, mount: Path) -> None:
        """Compare with what is found on a mount, and note what became of the chunk that was being written."""
        for chunk, number in self.chunks.items():
            path = mount / chunk
            found = path.read_bytes() if path.exists() else None
            allowed = (number, *self.in_flight.get(chunk, ()))
            self.chunks[chunk] = next(n for n in allowed if found == stored(chunk, n))

    def values(self, name: str) -> np.ndarray:
        """What the array must hold."""
        values = np.zeros((SIDE * INNER, SIDE * INNER), np.uint8)
        for chunk, number in self.chunks.items():
            array, _, i, j = chunk.split("/")
            if array == name and number:
                place = np.s_[int(i) * INNER : (int(i) + 1) * INNER, int(j) * INNER : (int(j) + 1) * INNER]
                values[place] = np.frombuffer(content(number), np.uint8).reshape(INNER, INNER)
        return values


def content(number: int) -> bytes:
    return random.Random(number).randbytes(INNER * INNER)


def stored(chunk: str, number: int) -> bytes | None:
    """A chunk file that was made from *number*."""
    if not number:
        return None
    return gzip.compress(content(number), 1, mtime=0) if chunk.startswith("compressed") else content(number)


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


def write_arrays(root: Path) -> None:
    root.mkdir()
    (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for name, location in ARRAYS.items():
        codecs = [extension("bytes"), *([GZIP] if name == "compressed" else [])]
        shards = sharding((INNER, INNER), *codecs, index_location=location)
        document = array((SIDE * INNER,) * 2, (PER_SHARD * INNER,) * 2, shards, data_type="uint8")
        (root / name).mkdir()
        (root / name / "zarr.json").write_text(json.dumps(document))


def test_what_was_closed_survives_a_daemon_killed_at_any_moment(mount: Mounter, tmp_path: Path) -> None:
    chance, book, source = random.Random(1), Book(), tmp_path / "source"
    write_arrays(source)
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
            left = [path.relative_to(source) for path in source.glob(".shardfs/*/**/*") if path.is_file()]
            assert all(path.suffix == ".partial" for path in left), left
            for name in ARRAYS:
                for read in READERS.values():
                    assert_same(read(source / name), book.values(name))
                with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                    assert_same(READERS["zarr"](source / name), book.values(name))
            mounted = mount(source, path=mounted.path, write=True)
