"""A writing source without FUSE, on a disk that may die: opened, written to, flushed, killed, opened again.

Of all crash tests this is the only module that names what is inside. What is there afterwards is read natively.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.journal import Journal
from shardfs.dataset.journal.recovery import opened
from shardfs.dataset.maintenance.recover import recover_source
from shardfs.dataset.state.directory import DIRECTORY, StateDirectory
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.handles import Owner
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.session import WritingSession
from shardfs.vfs.views import ZarrV2, ZarrV3
from shardfs.vfs.writable import WritableFilesystem
from tests.support.opened import find, read_file

OWNER = Owner(os.geteuid(), os.getegid())


@contextmanager
def small_log() -> Iterator[None]:
    """Let what was written and not committed lie in many small files, written in small pieces."""
    small = partial(Journal, segment_nbytes=8192)
    room = "shardfs.dataset.journal"
    with patch(f"{room}.recovery.Journal", small), patch(f"{room}.journal._PIECE_NBYTES", 4096):
        yield


def make_state(root: Path, state: StateDirectory | None = None) -> None:
    """Make the directories that a writing mount needs."""
    state = state or StateDirectory(str(root))
    for directory in (state.journal, state.conflicts, state.drafts):
        os.makedirs(directory, exist_ok=True)


async def stored(root: Path, path: str, numbers: range) -> list[bytes | None]:
    """What the shards of an array hold, as a process that begins now reads them."""
    array = (await Source.of(LocalStore(str(root)), ttl=0.0).hierarchy.node(path)).array
    assert array is not None
    extents = [await array.extent((number,)) for number in numbers]
    return [None if extent is None else bytes(await extent.read(0, extent.nbytes)) for extent in extents]


async def apply(root: Path, disk: Syscalls) -> None:
    """Do what `shardfs recover --apply` does."""
    with patch("shardfs.dataset.maintenance.recover.opened", partial(opened, disk=disk)):
        await recover_source(Source.of(LocalStore(str(root), disk), ttl=0.0), [], single_writer=False)


@dataclass
class Process:
    """One life of a writing mount; chunks and documents are written to as files."""

    writing: WritingSession
    is_v2: bool = False

    @classmethod
    async def start(
        cls,
        root: Path,
        disk: Syscalls,
        *,
        journal: Syscalls | None = None,
        v2: bool = False,
        shards: tuple[int, ...] | None = None,
        slot: int = 0,
        ttl: float = 0.0,
    ) -> Process:
        """Open the source at *root* in the v3 view, or in *v2*, which shows the chunks of unsharded arrays too.

        The *journal*, in the *slot* of this number, may have a disk of its own. *shards* is the option of the mount.
        What was seen is trusted for *ttl* seconds.
        """
        source = Source.of(LocalStore(str(root), disk, ttl=ttl), ttl=ttl)
        state = StateDirectory(str(root), f"{DIRECTORY}/{slot}")
        make_state(root, state)
        view = ZarrV2() if v2 else ZarrV3()
        options = TreeOptions(write=True, shards=shards)
        writing = WritingSession(source, view, ChunkCache(0, source.statistics), state, options, disk=journal or disk)
        await writing.start()
        return cls(writing, v2)

    @property
    def fs(self) -> WritableFilesystem:
        """The tree."""
        return self.writing.fs

    async def finish(self) -> None:
        """Commit everything, and end."""
        await self.writing.finish()

    def check_done(self) -> None:
        """Nothing is pending, and nobody's changes were put aside."""
        assert self.writing.writer.commits.npending == 0
        assert not self.writing.journal.nlive
        assert not self.writing.conflicts.nlive, "nobody else changed anything"

    async def array(self, path: str) -> Array:
        array = (await self.writing.source.hierarchy.node(path)).array
        assert array is not None
        return array

    async def read(self, path: str, number: int) -> bytes | None:
        """A chunk as it is shown, committed or not."""
        extent = await (await self.array(path)).extent((number,))
        return None if extent is None else bytes(await extent.read(0, extent.nbytes))

    async def write(self, path: str, number: int, data: bytes) -> None:
        """Write a chunk and close it."""
        await self.write_file(await self._directory(path), str(number).encode(), data)

    async def write_beside(self, path: str, number: int, data: bytes) -> None:
        """Write beside the chunk, and move it there."""
        directory, name = await self._directory(path), f"{number}.partial".encode()
        await self.write_file(directory, name, data)
        await self.fs.rename(directory, name, directory, str(number).encode(), exclusive=False)

    async def remove(self, path: str, number: int) -> None:
        """Remove a chunk, if it is there."""
        directory = await self._directory(path)
        if (await self.fs.lookup(directory, str(number).encode())).ino:
            await self.fs.unlink(directory, str(number).encode())

    async def edit(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Replace a document as a program does that knows of no shards."""
        directory = (await find(self.fs, path)).ino
        shown = (await self.fs.lookup(directory, b"zarr.json")).ino
        document = json.loads(await read_file(self.fs, shown))
        change(document)
        await self.write_file(directory, b"zarr.json", json.dumps(document).encode())

    async def sync(self) -> None:
        """Make durable what was written."""
        await self.writing.writer.commits.sync_soon()

    async def clean(self) -> None:
        """Give the room back that what is done takes up in the journal."""
        writer = self.writing.writer
        async with writer.journal.appending:
            writer.journal.carry_forward()

    async def commit(self) -> None:
        """Bring into the shards what was written."""
        await self.writing.writer.commits.flush()

    async def _directory(self, path: str) -> int:
        return (await find(self.fs, path if self.is_v2 else f"{path}/c")).ino

    async def write_file(self, directory: int, name: bytes, data: bytes) -> None:
        """Write a file and close it."""
        known = await self.fs.lookup(directory, name)
        if known.ino:
            handle, _ = await self.fs.open_to_write(known.ino, os.O_WRONLY | os.O_TRUNC)
        else:
            handle, _, _ = await self.fs.create(directory, name, 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
        if data:
            await self.fs.open_files[handle].write(0, data)
        await self.fs.open_files[handle].flush()
        await self.fs.close(handle)
