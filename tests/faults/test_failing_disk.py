"""A writing source whose disk fails at one of its calls: whoever writes hears of it, nothing is lost."""

import errno
import logging
from itertools import count
from pathlib import Path

import pytest
import trio

import shardfs
from shardfs.errors import ReadOnlyError, StoreError
from tests.crash.harness import Process
from tests.crash.histories import PER_SHARD, make_source, payload_of
from tests.support.lossy_disk import Fault, LossyDisk, QuickDisk
from tests.support.opened import in_trio

OLD, NEW, NEWER = (payload_of("end", seed) for seed in (10, 20, 30))
BESIDE = PER_SHARD - 1  # another chunk of the shard


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


async def native(root: Path, number: int) -> bytes | None:
    """Return a chunk as it is in its shard, read without this process's caches."""
    return await trio.to_thread.run_sync(lambda: shardfs.open(root)["end"].read_chunk((number,)))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@in_trio
async def test_a_commit_that_fails_at_any_call_is_done_again_and_then_complete(source: Path, number: int) -> None:
    failed = []
    for at in count():
        disk, payload = LossyDisk(source), payload_of("end", 100 + at)
        process = await Process.start(source, disk, journal=QuickDisk())
        if not at:
            await process.write("end", BESIDE, OLD)
            await process.commit()
        await process.write("end", 0, payload)
        await process.writing.writer.commits.sync_soon()  # of what the chunk replaces, a failure of which stops nothing
        call = len(disk.calls) + at
        disk.faults[call] = Fault(OSError(number, "a test's"))
        is_committed = await process.writing.commit()
        if len(disk.calls) <= call:
            break
        failed.append(disk.names[call].removesuffix("_direct"))
        # The last call removes the lock: when it fails all is done, and the next commit takes the lock over.
        assert is_committed == (failed[-1] == "unlink"), failed
        assert (await process.read("end", 0), await process.read("end", BESIDE)) == (payload, OLD)
        assert await native(source, BESIDE) == OLD, "natively the shard was readable all the time"
        assert await process.writing.commit(), failed
        assert await native(source, 0) == payload
        assert await process.writing.finish()
        assert not list((source / ".shardfs").rglob("*.journal"))
    assert {"pwrite", "sync", "unlink"} <= {*failed}


@pytest.mark.parametrize("within_commit", [False, True], ids=["fsync", "within a commit"])
@in_trio
async def test_a_failed_sync_makes_the_mount_read_only_and_the_next_one_commits(
    source: Path, caplog: pytest.LogCaptureFixture, within_commit: bool
) -> None:
    caplog.set_level(logging.INFO, "shardfs")
    disk = LossyDisk(source)
    process = await Process.start(source, QuickDisk(), journal=disk)
    await process.write("end", 1, OLD)
    await process.commit()
    await process.write("end", 0, NEW)
    await process.sync()
    await process.write("end", 1, NEWER)
    start = len(disk.calls) + within_commit  # a commit writes its undo record first
    disk.faults[start] = Fault(OSError(errno.EIO, "a test's"))
    if within_commit:
        assert not await process.writing.commit()
    else:
        with pytest.raises(StoreError, match="could not be made durable"):
            await process.sync()
    assert disk.calls[start].name == "sync"
    for _ in range(2):  # never a success, though the disk is well again
        with pytest.raises(ReadOnlyError):
            await process.sync()
        with pytest.raises(ReadOnlyError):
            await process.write("end", 2, b"more")
        with pytest.raises(ReadOnlyError):
            await process.remove("end", 0)
    assert caplog.text.count("the mount is read-only from now on") == 1
    assert not await process.writing.finish()
    assert (await native(source, 0), await native(source, 1)) == (None, OLD)
    again = await Process.start(source, QuickDisk())
    assert (await again.read("end", 0), await again.read("end", 1)) == (NEW, NEWER)
    assert await again.writing.finish()
    assert (await native(source, 0), await native(source, 1)) == (NEW, NEWER)
