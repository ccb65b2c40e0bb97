"""What a commit writes to the store: the payloads and one index per shard, and above 8 MiB one index more."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.writer import Writer
from shardfs.fuse import control
from shardfs.stores.local.syscalls import BLOCK, Syscalls, open_directory
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from tests.support.corpus import CRC32C, array, extension, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter

MIB = 2**20
PER_SHARD = 64
SHARDS = 2
INDEX = 16 * PER_SHARD + 4
"""Bytes of an index with its checksum."""

FEW, MANY = 3, 40
"""Chunks of 256 KiB: less than 8 MiB, and more."""

CHUNK = MIB // 4


class CountingDisk(Syscalls):
    """The disk, and how many bytes were written to it."""

    def __init__(self) -> None:
        self.written = 0

    def pwrite(self, fd: int, buffers: Sequence[Any], offset: int) -> None:
        super().pwrite(fd, buffers, offset)
        self.written += sum(memoryview(buffer).nbytes for buffer in buffers)

    def pwrite_direct(self, fd: int, buffer: mmap, offset: int) -> None:
        super().pwrite_direct(fd, buffer, offset)
        self.written += len(buffer)


@dataclass
class Dataset:
    """An array of two shards with 64 chunks each, whose chunks are changed by a `Writer`."""

    directory: Path
    disk: CountingDisk = field(default_factory=CountingDisk)

    def __post_init__(self) -> None:
        write_document(self.directory / "array")
        for name in ("journal", "conflicts"):
            (self.directory / name).mkdir()
        self.source = Source.of(LocalStore(str(self.directory / "array"), self.disk), ttl=0)
        journal, conflicts = (
            WriteAheadLog(open_directory(str(self.directory / name)), Syscalls()) for name in ("journal", "conflicts")
        )
        self.writer = Writer(self.source, journal, conflicts)

    async def commit(self, chunks: Sequence[int], *, fill: bytes) -> int:
        """Publish *chunks*, commit them; returns how many bytes that wrote to the store."""
        found = (await self.source.hierarchy.node("")).array
        assert found is not None
        for number in chunks:
            content = MemoryContent(memoryview(fill * CHUNK))
            await self.writer.put(found, (number,), content, mtime_ns=number + 1, mode=0o644, uid=0, gid=0)
        before = self.disk.written
        await self.writer.commits.flush()
        return self.disk.written - before

    @property
    def counted(self) -> int:
        return self.source.statistics.committed_bytes


def write_document(directory: Path) -> None:
    directory.mkdir()
    shape = (SHARDS * PER_SHARD * CHUNK,)
    codecs = sharding((CHUNK,), extension("bytes"), CRC32C)
    document = array(shape, (PER_SHARD * CHUNK,), codecs, data_type="uint8")
    (directory / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("already", "chunks", "indexes"),
    [
        pytest.param([], range(FEW), 1, id="new-shard"),
        pytest.param([], range(PER_SHARD), 1, id="new-and-full"),
        pytest.param([], [*range(FEW), *range(PER_SHARD, PER_SHARD + FEW)], 2, id="two-new-shards"),
        pytest.param(range(FEW), [FEW], 1, id="append"),
        pytest.param(range(FEW), range(FEW), 1, id="replace"),
        pytest.param([0, PER_SHARD], [1, PER_SHARD + 1], 2, id="append-to-two"),
        pytest.param([0], range(1, MANY), 2, id="append-above-8-MiB"),
        pytest.param([0, PER_SHARD], [*range(1, MANY), PER_SHARD + 1], 3, id="append-above-8-MiB-and-below"),
        pytest.param(range(FEW), range(PER_SHARD), 1, id="replace-all"),
    ],
)
def test_a_commit_writes_payloads_and_indexes_and_nothing_else(
    tmp_path: Path, already: Sequence[int], chunks: Sequence[int], indexes: int
) -> None:
    dataset = Dataset(tmp_path)

    async def run() -> tuple[int, int]:
        await dataset.commit(already, fill=b"a")
        before = dataset.counted
        written = await dataset.commit(chunks, fill=b"b")
        return written, dataset.counted - before

    written, counted = trio.run(run)
    needed = len(chunks) * CHUNK + indexes * INDEX
    if not already or len(chunks) == PER_SHARD:
        assert written == counted == needed
    else:  # a step of an append ends at a block, and begins with the block that is there
        assert needed <= counted < needed + indexes * BLOCK, "the statistics tell what was written"
        assert counted <= written < counted + indexes * BLOCK


def test_a_mount_tells_what_its_commits_wrote(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_document(source)
    mounted = mount(source, write=True)

    def committed(chunks: Sequence[int]) -> int:
        before = statistics(mounted.path)["committed_bytes"]
        for number in chunks:
            (mounted.path / "c" / str(number)).write_bytes(b"c" * CHUNK)
        os.setxattr(mounted.path, control.FLUSH, b"")
        return int(statistics(mounted.path)["committed_bytes"] - before)

    assert committed([0, 1]) == 2 * CHUNK + INDEX
    assert 0 <= committed([1]) - (CHUNK + INDEX) < BLOCK + INDEX
    assert 0 <= committed(range(2, MANY)) - ((MANY - 2) * CHUNK + 2 * INDEX) < 2 * BLOCK
    assert committed([]) == 0
    dead = (source / "c" / "0").stat().st_size - (MANY + 1) * CHUNK
    assert 0 <= dead - 3 * INDEX <= INDEX + 3 * BLOCK


def test_a_chunk_that_is_renamed_into_place_takes_nine_kernel_requests_at_most(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", array((8, 12), (8, 12), sharding((2, 3))))
    root = mount(tmp_path / "source", write=True, metadata_ttl=3600).path
    keys = [f"{root}/c/{i}/{j}" for i in range(4) for j in range(4)]
    os.stat(keys[0])
    for directory in {os.path.dirname(key) for key in keys}:
        os.stat(directory)
    before = Counter(statistics(root)["requests"])
    for key in keys:
        with open(f"{key}.partial", "xb", buffering=0) as file:
            file.write(bytes(24))
        os.rename(f"{key}.partial", key)
    taken = Counter(statistics(root)["requests"]) - before
    del taken["getxattr"]  # by which it is asked
    once = dict.fromkeys(["create", "write", "flush", "release", "rename"], len(keys))
    # Names of chunks are looked up each time, and the mode of a directory is asked for when something changed in it.
    assert taken.total() <= 9 * len(keys)
    assert taken["lookup"] == 2 * len(keys)
    assert {name: taken[name] for name in taken if name not in ("lookup", "getattr")} == once


def statistics(path: Path) -> Any:
    return json.loads(os.getxattr(path, control.FIGURES))
