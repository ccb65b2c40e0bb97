"""Hosts that share a file system, each with its caches."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardfs.errors import LockedError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.file_lock import LOCK_SUFFIX, FileLock
from shardfs.stores.local.syscalls import SYSCALLS, WRITE, ofd_lock
from shardfs.stores.local.tree import LocalStore
from tests.support.mounting import skip_without_fuse
from tests.support.nfs import pair
from tests.support.opened import in_trio


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Where two hosts see a directory that they share, and whose locks reach the other."""
    skip_without_fuse()
    with pair(tmp_path) as places:
        yield places
        gc.collect()  # errors keep frames, and these keep files open


@in_trio
async def test_a_lock_file_that_another_host_removed_locks_nothing(hosts: tuple[Path, Path]) -> None:
    alpha, beta = hosts
    (alpha / "shard").write_bytes(b"old")
    async with LocalStore(str(alpha)).edit("shard"):
        directory = Descriptor(os.open(beta, os.O_RDONLY))
        waiting = Descriptor(os.open(f"shard{LOCK_SUFFIX}", WRITE, dir_fd=directory.fd))
        with pytest.raises(LockedError):
            async with LocalStore(str(beta)).edit("shard"):
                pass
    assert ofd_lock(waiting.fd)
    assert not FileLock(SYSCALLS, directory, f"shard{LOCK_SUFFIX}", waiting).stands()
    async with LocalStore(str(beta)).edit("shard"):
        pass
