"""A writing tree whose disk fails at one of its calls, without FUSE: whoever writes hears of it, nothing is lost."""

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

import shardfs
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.state import StateDirectory, locked
from shardfs.errors import ReadOnlyError, StoreError
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.memory import MemoryContent
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.session import Session
from shardfs.vfs.views import ZarrV3
from tests.support.damage import document
from tests.support.datasets import store
from tests.support.lossy_disk import Fault, LossyDisk
from tests.support.opened import in_trio

NEW, NEWER = b"n" * 48, b"m" * 48
ERRORS = pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sharded array of 2 × 4 inner chunks in two shards."""
    store(tmp_path / "source", document())
    return tmp_path / "source"


@dataclass(frozen=True)
class Opened:
    writing: Session
    array: Array
    disk: LossyDisk

    async def put(self, data: bytes, *coords: int) -> None:
        content = MemoryContent(memoryview(data))
        await self.writing.writer.put(self.array, coords, content, mtime_ns=1, mode=0o644, uid=0, gid=0)

    async def read(self, *coords: int) -> bytes:
        extent = (await self.array.find(coords))[1]
        assert extent is not None
        return bytes(await extent.read(0, extent.nbytes))


@asynccontextmanager
async def opened(root: Path, *, journal: bool) -> AsyncIterator[Opened]:
    """Open *root* to write; the disk of the *journal*, or that of the shards, is one that can fail."""
    failing, sound = LossyDisk(root), LossyDisk(root)
    with locked(StateDirectory(str(root))) as state:
        local = LocalStore(str(root), sound if journal else failing)
        source = Source.of(local, ttl=1.0)
        view = ZarrV3()
        fs = Filesystem(
            local, source.hierarchy, view, ChunkCache(0, source.statistics), ttl=1.0, scratch=state.scratch_key
        )
        await fs.start()
        writing = Session(source, fs, state, disk=failing if journal else sound)
        await writing.start()
        array = (await source.hierarchy.node("")).array
        assert array is not None
        yield Opened(writing, array, failing)


async def stored(root: Path, *coords: int) -> bytes | None:
    """Return a chunk as it is in its shard, read without this tree."""
    return await trio.to_thread.run_sync(lambda: shardfs.open(root)[""].read_chunk(coords))


async def calls_of_a_commit(root: Path) -> list[str]:
    async with opened(root, journal=False) as fs:
        await fs.put(NEW, 0, 0)
        before = len(fs.disk.calls)
        assert await fs.writing.commit()
        names = fs.disk.names[before:]
        await fs.writing.finish()
    return names


@ERRORS
@in_trio
async def test_a_commit_that_fails_at_any_call_is_done_again_and_then_complete(
    source: Path, tmp_path: Path, number: int
) -> None:
    store(tmp_path / "same", document())
    calls = await calls_of_a_commit(tmp_path / "same")
    assert {"pwrite", "sync"} <= {name.removesuffix("_direct") for name in calls}
    for at, name in enumerate(calls):
        payload = bytes([at]) * 48
        async with opened(source, journal=False) as fs:
            others = await fs.read(1, 1)
            await fs.put(payload, 0, 0)
            fs.disk.faults[len(fs.disk.calls) + at] = Fault(OSError(number, "a test's"))
            # The last call removes the lock: when it fails all is done, and the next commit takes the lock over.
            assert await fs.writing.commit() == (name == "unlink"), name
            assert await fs.read(0, 0) == payload
            assert await fs.read(1, 1) == others
            assert await stored(source, 1, 1) == others  # natively the shard was readable all the time
            assert await fs.writing.commit(), name
            assert await stored(source, 0, 0) == payload
            assert await fs.writing.finish()
        assert not (source / ".shardfs").exists()


@in_trio
async def test_a_failed_sync_makes_the_mount_read_only_and_keeps_what_is_pending_for_the_next_one(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardfs")
    async with opened(source, journal=True) as fs:
        await fs.put(NEW, 0, 0)
        await fs.writing.writer.log.sync_soon()
        await fs.put(NEWER, 0, 1)
        start = len(fs.disk.calls)
        fs.disk.faults[start] = Fault(OSError(errno.EIO, "a test's"))
        with pytest.raises(StoreError, match="could not be made durable"):
            await fs.writing.writer.log.sync_soon()
        assert fs.disk.calls[start].name == "sync"
        for _ in range(2):  # never a success, though the disk is well again
            with pytest.raises(ReadOnlyError):
                await fs.writing.writer.log.sync_soon()
            with pytest.raises(ReadOnlyError):
                await fs.put(b"more", 0, 2)
            with pytest.raises(ReadOnlyError):
                await fs.writing.writer.erase(fs.array, (0, 2), mtime_ns=1)
        assert await fs.read(0, 0) == NEW
        assert await fs.read(0, 1) == NEWER
        assert await fs.read(0, 2)
        assert caplog.text.count("the mount is read-only from now on") == 1
        assert not await fs.writing.finish()
    assert await stored(source, 0, 0) != NEW
    async with opened(source, journal=True) as fs:
        assert await fs.read(0, 0) == NEW
        assert await fs.read(0, 1) == NEWER
        assert await fs.writing.finish()
    assert await stored(source, 0, 0) == NEW
    assert await stored(source, 0, 1) == NEWER


@in_trio
async def test_a_sync_that_fails_within_a_commit_makes_the_mount_read_only(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(source, journal=True) as fs:
        await fs.put(NEW, 0, 0)
        fs.disk.faults = {
            len(fs.disk.calls) + at: Fault(OSError(errno.EIO, "a test's")) for at in range(1, 3)
        }  # the intent is written first
        assert not await fs.writing.commit()
        assert "could not be made durable" in caplog.text
        assert "read-only" in caplog.text
        with pytest.raises(ReadOnlyError):
            await fs.put(NEWER, 0, 0)
        assert await fs.read(0, 0) == NEW
        assert not await fs.writing.finish()
    async with opened(source, journal=True) as fs:
        assert await fs.writing.finish()
    assert await stored(source, 0, 0) == NEW
