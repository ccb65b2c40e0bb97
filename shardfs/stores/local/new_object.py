"""New local files that are written from first byte to last, in a place of their own until they are complete."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from shardfs.stores.base import Buffer, Descriptor, Stat
from shardfs.stores.local.atomic_write import make_directories, temporary_name
from shardfs.stores.local.openat import READ, open_beneath
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.snapshot import to_stat
from shardfs.stores.local.syscalls import Syscalls, changing

UNFINISHED: Final = ".shardfs/unfinished"
"""The directory of files that are not complete: what a killed process leaves of them is found there."""

_DURABLE_NBYTES: Final = 2**20
"""From this size on a file is made durable by itself; of many small ones, each would take as long as all together."""

_THREAD_NBYTES: Final = 256 * 2**10  # less is copied to the page cache faster than a thread takes over
_DIRECTORY: Final = READ | os.O_DIRECTORY


class NewFile:
    """A file that becomes *key*."""

    def __init__(self, store: LocalReader, syscalls: Syscalls, key: str, head_nbytes: int) -> None:
        self._store = store
        self._syscalls = syscalls
        self._key = key
        self._nbytes = head_nbytes
        self._directory = open_beneath(store.directory, UNFINISHED, _DIRECTORY)
        self._name = temporary_name()
        self._file = Descriptor(syscalls.create(self._name, os.O_RDWR | os.O_EXCL, 0o666, self._directory.fd))

    async def write(self, data: Sequence[Buffer]) -> None:
        """Write *data* behind what is there."""
        nbytes = sum(memoryview(piece).nbytes for piece in data)
        run = self._store.threads.on_content if nbytes > _THREAD_NBYTES else self._store.threads.on_names
        with changing(self._key):
            await run(self._write, data, nbytes)
        self._nbytes += nbytes

    async def finish(self, head: Buffer = b"") -> Stat:
        """Write *head*, and move the file to its name."""
        threads = self._store.threads
        run = threads.on_content if self._nbytes >= _DURABLE_NBYTES else threads.on_names
        with changing(self._key):
            return await run(self._finish, head)

    def remove(self) -> None:
        """Remove the file, if it has no other name yet."""
        with suppress(OSError):
            self._syscalls.unlink(self._name, self._directory.fd)

    def _write(self, data: Sequence[Buffer], nbytes: int) -> None:
        self._syscalls.pwrite(self._file.fd, data, self._nbytes)
        if nbytes >= _DURABLE_NBYTES:
            self._syscalls.begin_to_sync(self._file.fd, self._nbytes, nbytes)

    def _finish(self, head: Buffer) -> Stat:
        is_large = self._nbytes >= _DURABLE_NBYTES
        self._syscalls.pwrite(self._file.fd, [head], 0)
        if is_large:
            self._syscalls.sync(self._file.fd)
        parent, _, name = self._key.rpartition("/")
        make_directories(self._syscalls, self._store.directory, parent, is_durable=False)
        directory = open_beneath(self._store.directory, parent, _DIRECTORY)
        self._syscalls.rename(self._name, name, self._directory.fd, directory.fd)
        if is_large:
            self._syscalls.sync_directory(directory.fd)
        return to_stat(os.fstat(self._file.fd))


@asynccontextmanager
async def new_file(store: LocalReader, syscalls: Syscalls, key: str, head_nbytes: int) -> AsyncIterator[NewFile]:
    """Begin a file that becomes *key*; it is removed unless it is finished in the block."""
    with changing(key):
        await store.threads.on_names(make_directories, syscalls, store.directory, UNFINISHED)
        file = await store.threads.on_names(NewFile, store, syscalls, key, head_nbytes)
    try:
        yield file
    except BaseException:
        file.remove()
        raise


def clear_unfinished(store: LocalReader, syscalls: Syscalls) -> None:
    """Remove all files that are not complete, and their directory."""
    with suppress(FileNotFoundError):
        directory = open_beneath(store.directory, UNFINISHED, _DIRECTORY)
        for name in os.listdir(directory.fd):
            syscalls.unlink(name, directory.fd)
        above, _, name = UNFINISHED.rpartition("/")
        directory = open_beneath(store.directory, above, _DIRECTORY)
        syscalls.rmdir(name, directory.fd)
