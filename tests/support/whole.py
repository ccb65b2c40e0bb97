"""Unsharded arrays that are written below the mount: a journal, and the lives of the processes that use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.reading import read_log
from shardfs.dataset.wal.recovery import Recovery, replay
from shardfs.dataset.writer import Writer
from shardfs.stores.base import Store
from shardfs.stores.local.syscalls import Syscalls, open_directory
from shardfs.stores.memory import MemoryContent
from tests.support.corpus import array, extension
from tests.support.lossy_disk import QuickDisk

Coords = tuple[int, ...]

PATH = "a"
FLAT = {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
OWNER = {"mode": 0o644, "uid": 0, "gid": 0}


def whole_document(shape: tuple[int, ...], chunk_shape: Any, **members: Any) -> dict[str, Any]:
    """The document of an unsharded array of opaque chunks; *chunk_shape* may be a whole grid."""
    return array(shape, chunk_shape, extension("bytes"), extension("opaque"), **{"data_type": "uint8", **members})


@dataclass
class Life:
    """One process that reads and writes *store*, with its journal in *directory*."""

    source: Source
    writer: Writer
    recovery: Recovery

    @classmethod
    async def begin(
        cls, store: Store, directory: Path, *, takes_unsharded: bool = True, disk: Syscalls | None = None
    ) -> Life:
        for name in ("journal", "conflicts"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        source = Source.of(store, ttl=0.0)
        source.hierarchy.takes_unsharded = takes_unsharded
        opened = open_directory(str(directory / "journal"))
        contents = read_log(opened)
        disk = disk or QuickDisk()
        journal = WriteAheadLog(opened, disk, contents)
        conflicts = WriteAheadLog(open_directory(str(directory / "conflicts")), disk)
        writer = Writer(source, journal, conflicts)
        return cls(source, writer, await replay(source, contents, writer.commits))

    def kill(self) -> None:
        """Let go of the journal as it is."""
        self.writer.log.close()

    async def array(self) -> Array:
        found = (await self.source.hierarchy.node(PATH)).unsharded
        assert found is not None
        return found

    async def put(self, coords: Coords, data: bytes) -> None:
        await self.writer.put(await self.array(), coords, MemoryContent(memoryview(data)), mtime_ns=1, **OWNER)

    async def erase(self, coords: Coords) -> None:
        await self.writer.erase(await self.array(), coords, mtime_ns=1)

    async def read(self, coords: Coords) -> bytes | None:
        extent = await (await self.array()).extent(coords)
        return None if extent is None else bytes(await extent.read(0, extent.nbytes))

    async def listed(self) -> dict[Coords, int]:
        """The sizes of all chunks, as a listing has them; each must be there once, in order."""
        found: list[tuple[Coords, int]] = []
        array = await self.array()
        async for prefix in array.rows((0,) * (array.grid.ndim - 1)):
            async for run in array.list_row(prefix, 0):
                numbers, sizes, damaged = run.chunks(0, run.length)
                assert damaged is None
                found += [((*prefix, n), size) for n, size in zip(numbers, sizes, strict=True)]
        assert [coords for coords, _ in found] == sorted({coords for coords, _ in found})
        return dict(found)


async def store_document(store: Store, document: dict[str, Any]) -> None:
    await store.make_directories(PATH)
    await store.replace(f"{PATH}/zarr.json", json.dumps(document).encode())
