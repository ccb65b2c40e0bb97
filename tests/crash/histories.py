"""Arrays that are written, what is done to them, and which contents may be found of each chunk afterwards.

`Ledger` knows what may be there after the end of a process and after a power cut.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


def stored_document(codecs: list[Any], *, sharded: bool = True) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [SHAPE],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [INNER * PER_SHARD if sharded else INNER]}},
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
    "unsharded": [BYTES, GZIP],
}
"""Codecs of arrays whose chunks are stored in different ways."""

EMPTY = -1
"""The seed of a chunk of zero bytes."""


def values_of(seed: int) -> bytes:
    """The values of a chunk: of a size of their own if they are compressed."""
    generator = random.Random(seed)
    return generator.randbytes(generator.randrange(1, INNER)).ljust(INNER, b"\7") if seed else bytes(INNER)


def payload_of(path: str, seed: int) -> bytes:
    """The same as it is stored."""
    if seed == EMPTY:
        return b""
    values = values_of(seed)
    return gzip.compress(values, 1, mtime=0) if path in ("end", "unsharded") else values


def make_source(root: Path) -> None:
    """Arrays without chunks."""
    root.mkdir()
    (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for path, codecs in ARRAYS.items():
        (root / path).mkdir()
        (root / path / "zarr.json").write_text(json.dumps(stored_document(codecs, sharded=path != "unsharded")))


@dataclass(frozen=True)
class Operation:
    """One thing that is done: *what*, to the array at *path*, and to the chunks there; contents are by seed."""

    what: str
    path: str = ""
    chunks: tuple[int, ...] = ()
    seed: int = 0
    shape: int = 0

    def seed_of(self, number: int) -> int | None:
        """What a chunk becomes, if it is one of those."""
        match self.what:
            case "erase":
                return None
            case "empty":
                return EMPTY
        return self.seed + number


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
    ncalls: Callable[[], int] = field(default=lambda: 0)
    past: list[tuple[int, Ledger]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in self.paths:
            self.shapes[path] = SHAPE
            self.labels[path] = 0
            for number in range(NCHUNKS):
                self.chunks[path, number] = [None]

    def follow(self, ncalls: Callable[[], int]) -> None:
        """Remember from now on what it was after which number of calls."""
        self.ncalls = ncalls
        self._remember()

    def at(self, ncalls: int) -> Ledger:
        """What it was when so many calls were made, and the next was about to be."""
        return [ledger for call, ledger in self.past if call <= ncalls][-1]

    def _remember(self) -> None:
        then = copy.copy(self)
        then.chunks = {chunk: [*versions] for chunk, versions in self.chunks.items()}
        then.shapes, then.labels = {**self.shapes}, {**self.labels}
        self.past.append((self.ncalls(), then))

    def sync(self) -> None:
        for versions in self.chunks.values():
            del versions[:-1]

    def begin(self, operation: Operation) -> None:
        self.started = operation
        self._remember()

    def publish(self, number: int) -> None:
        """A chunk of the operation is published."""
        operation = self.started
        assert operation is not None
        self.chunks[operation.path, number].append(operation.seed_of(number))
        self._remember()

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
        self._remember()

    def allowed(self, chunk: Chunk, shape: int, *, power_cut: bool) -> set[int | None]:
        """What a chunk may be if the array turns out to have *shape*."""
        path, number = chunk
        operation = self.started
        if number * INNER >= shape:
            return {None}
        versions = self.chunks[chunk]
        allowed = set(versions if power_cut else versions[-1:])
        if operation is not None and operation.path == path and number in operation.chunks:
            allowed.add(operation.seed_of(number))
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
