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

from tests.support.corpus import LITTLE, array, extension, sharding

INNER = 3000  # bytes of a chunk: payloads and indexes lie in several pages, and across them
PER_SHARD = 4
NCHUNKS = 8
SHAPE = INNER * NCHUNKS

Chunk = tuple[str, int]
"""The path of an array and the number of one of its chunks."""


BYTES, GZIP = extension("bytes"), extension("gzip", level=1)
ARRAYS: dict[str, list[Any]] = {
    "end": [sharding([INNER], BYTES, GZIP)],
    "unchecked": [sharding([INNER], BYTES, index_codecs=[LITTLE])],
    "start": [sharding([INNER], BYTES, index_location="start")],
    "nested": [sharding([2 * INNER], sharding([INNER], BYTES))],
    "encoded": [sharding([INNER], BYTES), GZIP],
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
        length = INNER if path == "unsharded" else INNER * PER_SHARD
        document = array([SHAPE], [length], *codecs, data_type="uint8", attributes={})
        (root / path / "zarr.json").write_text(json.dumps(document))


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


@dataclass(eq=False)
class Ledger:
    """Which contents each chunk may have, by seed, None being no chunk; and the same of shapes and attributes.

    `[-1]` is the latest that was published; those before may come back in a power cut. *started* are of an operation
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
