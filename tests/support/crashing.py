"""A writing mount without FUSE on a disk that dies, a random history of what is done to it, and what must be left.

`Machine` is a `LossyDisk` that outlives its processes: after `restart` it goes on where the last one was killed, so
that what a recovery relied on is lost too if nobody made it durable.  `Ledger` knows of each chunk which contents may
be found, after the end of a process and after a power cut.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardfs.dataset.array import Array
from shardfs.dataset.lock import StateDirectory
from shardfs.dataset.source import Source
from shardfs.stores.durable import Disk
from shardfs.stores.local import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.decoded import DecodedChunks
from shardfs.vfs.names import Owner
from shardfs.vfs.tree import Tree
from shardfs.vfs.v3_view import ZarrV3
from shardfs.vfs.writing import Writing
from tests.support.lossy_disk import Fault, Killed, LossyDisk
from tests.support.opened import find

INNER = 3000  # bytes of a chunk: payloads and indexes lie in several pages, and across them
PER_SHARD = 4
NCHUNKS = 8
SHAPE = INNER * NCHUNKS

BYTES = {"name": "bytes"}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC32C = {"name": "crc32c"}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}

Chunk = tuple[str, int]
"""The path of an array and the number of one of its chunks."""


def sharding(length: int, codecs: list[Any], *, location: str = "end", checked: bool = True) -> dict[str, Any]:
    configuration = {
        "chunk_shape": [length],
        "codecs": codecs,
        "index_codecs": [LITTLE, CRC32C] if checked else [LITTLE],
        "index_location": location,
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def stored_document(codecs: list[Any], shape: int = SHAPE) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [shape],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [INNER * PER_SHARD]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
    }


ARRAYS: dict[str, list[Any]] = {
    "end": [sharding(INNER, [BYTES, GZIP])],
    "unchecked": [sharding(INNER, [BYTES], checked=False)],
    "start": [sharding(INNER, [BYTES], location="start")],
    "nested": [sharding(2 * INNER, [sharding(INNER, [BYTES])])],
    "encoded": [sharding(INNER, [BYTES]), GZIP],
}
"""Codecs of arrays whose shards are changed in different ways."""


def values_of(seed: int) -> bytes:
    """The values of a chunk: of a size of their own if they are compressed."""
    generator = random.Random(seed)
    return generator.randbytes(generator.randrange(1, INNER)).ljust(INNER, b"\7") if seed else bytes(INNER)


def payload_of(path: str, seed: int) -> bytes:
    """The same as it is stored."""
    values = values_of(seed)
    return gzip.compress(values, 1, mtime=0) if path == "end" else values


class Machine(LossyDisk):
    """A disk that processes use one after the other, each of which may be killed."""

    def kill_at(self, call: int, written: int = 0) -> None:
        """Let the process end in place of the call of this number, of which *written* bytes are written."""
        self.faults = {call: Fault(Killed(), written)}

    def restart(self) -> None:
        self.faults = {}
        self._killed = None


class QuickDisk(Disk):
    """A disk that is not waited for, where nothing is cut."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, fd: int) -> None:
        pass


@dataclass(frozen=True)
class Operation:
    """One thing that is done: *what*, to the array at *path*, and to the chunks there; contents are by seed."""

    what: str
    path: str = ""
    chunks: tuple[int, ...] = ()
    seed: int = 0
    shape: int = 0


@dataclass
class Ledger:
    """Which contents each chunk may have, by seed, None being no chunk; and the same of shapes and attributes.

    `[-1]` is the latest that was published; those before may come back in a power cut.  *started* are of an operation
    that did not return.
    """

    paths: Collection[str]
    chunks: dict[Chunk, list[int | None]] = field(default_factory=dict)
    shapes: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    started: Operation | None = None

    def __post_init__(self) -> None:
        for path in self.paths:
            self.shapes[path] = SHAPE
            self.labels[path] = 0
            for number in range(NCHUNKS):
                self.chunks[path, number] = [None]

    def sync(self) -> None:
        for versions in self.chunks.values():
            del versions[:-1]

    def begin(self, operation: Operation) -> None:
        self.started = operation

    def publish(self, path: str, number: int, seed: int | None) -> None:
        self.chunks[path, number].append(seed)

    def end(self) -> None:
        """The operation returned."""
        operation = self.started
        assert operation is not None
        match operation.what:
            case "sync" | "commit":
                self.sync()
            case "resize":
                if operation.shape < self.shapes[operation.path]:
                    for number in range(-(-operation.shape // INNER), NCHUNKS):
                        self.chunks[operation.path, number] = [None]
                self.shapes[operation.path] = operation.shape
            case "label":
                self.labels[operation.path] = operation.seed
        self.started = None

    def allowed(self, chunk: Chunk, shape: int, *, power_cut: bool) -> set[int | None]:
        """What a chunk may be if the array turns out to have *shape*."""
        path, number = chunk
        operation = self.started
        if number * INNER >= shape:
            return {None}
        versions = self.chunks[chunk]
        allowed = set(versions if power_cut else versions[-1:])
        if operation is not None and operation.path == path and number in operation.chunks:
            allowed.add(None if operation.what == "erase" else operation.seed + number)
        return allowed

    def allowed_shapes(self, path: str) -> set[int]:
        allowed = {self.shapes[path]}
        if self.started is not None and self.started.what == "resize" and self.started.path == path:
            allowed.add(self.started.shape)
        return allowed

    def allowed_labels(self, path: str) -> set[int]:
        allowed = {self.labels[path]}
        if self.started is not None and self.started.what == "label" and self.started.path == path:
            allowed.add(self.started.seed)
        return allowed


@dataclass
class Process:
    """One life of a writing mount."""

    writing: Writing
    tree: Tree

    @classmethod
    async def start(cls, root: Path, disk: Disk) -> Process:
        source = Source.of(LocalStore(str(root), disk), ttl=0.0)
        state = StateDirectory(str(root))
        view = ZarrV3()
        tree = Tree(
            source.store,
            source.hierarchy,
            view,
            DecodedChunks(0, source.statistics),
            ttl=0.0,
            scratch=state.scratch_key,
        )
        await tree.start()
        writing = Writing.open(source, tree, view, state, disk=disk)
        await writing.start()
        return cls(writing, tree)

    async def array(self, path: str) -> Array:
        array = (await self.writing.source.hierarchy.node(path)).array
        assert array is not None
        return array

    async def run(self, operation: Operation, ledger: Ledger) -> None:
        ledger.begin(operation)
        await getattr(self, f"_{operation.what}")(operation, ledger)
        ledger.end()

    async def _put(self, operation: Operation, ledger: Ledger) -> None:
        array = await self.array(operation.path)
        for number in operation.chunks:
            content = MemoryContent(memoryview(payload_of(operation.path, operation.seed + number)))
            owner = {"mode": 0o644, "uid": os.geteuid(), "gid": os.getegid()}
            await self.writing.writer.put(array, (number,), content, mtime_ns=1, **owner)
            ledger.publish(operation.path, number, operation.seed + number)

    async def _erase(self, operation: Operation, ledger: Ledger) -> None:
        array = await self.array(operation.path)
        for number in operation.chunks:
            await self.writing.writer.erase(array, (number,), mtime_ns=1)
            ledger.publish(operation.path, number, None)

    async def _rename(self, operation: Operation, ledger: Ledger) -> None:
        """Write beside the chunk, and move it there."""
        (number,) = operation.chunks
        editor, files = self.writing.editor, self.writing.files
        owner = Owner(os.geteuid(), os.getegid())
        directory = await find(self.tree, f"{operation.path}/c")
        name = f"{number}.partial".encode()
        handle, _, _ = await files.create(directory.ino, name, 0o644, os.O_CREAT | os.O_WRONLY, owner)
        await files.write(handle, 0, payload_of(operation.path, operation.seed + number))
        await files.flush(handle)
        await files.close(handle)
        await editor.rename(directory.ino, name, directory.ino, str(number).encode(), exclusive=False)
        ledger.publish(operation.path, number, operation.seed + number)

    async def _resize(self, operation: Operation, _: Ledger) -> None:
        await self._edit(operation.path, lambda document: document.update(shape=[operation.shape]))

    async def _label(self, operation: Operation, _: Ledger) -> None:
        await self._edit(operation.path, lambda document: document.update(attributes={"label": operation.seed}))

    async def _edit(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Replace the document as a program does that knows of no shards."""
        files = self.writing.files
        node = await self.writing.source.hierarchy.node(path)
        assert node.array is not None
        document = dict(node.array.document)
        change(document)
        attributes = await find(self.tree, f"{path}/zarr.json")
        handle, _ = await files.open(attributes.ino, os.O_WRONLY | os.O_TRUNC)
        await files.write(handle, 0, json.dumps(document).encode())
        await files.flush(handle)
        await files.close(handle)

    async def _sync(self, *_: object) -> None:
        await self.writing.writer.sync()

    async def _clean(self, *_: object) -> None:
        committer = self.writing.writer.committer
        await committer.commits.carry_forward(committer._payloads)

    async def _commit(self, *_: object) -> None:
        await self.writing.writer.committer.flush()


def make_source(root: Path) -> None:
    """Arrays without chunks, with the directories that a mount needs."""
    root.mkdir()
    (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for path, codecs in ARRAYS.items():
        (root / path).mkdir()
        (root / path / "zarr.json").write_text(json.dumps(stored_document(codecs)))
    state = StateDirectory(str(root))
    for directory in (state.journal, state.conflicts, state.drafts):
        os.makedirs(directory)
