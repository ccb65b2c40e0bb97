"""A store for zarr-python 3.1 and newer: what a dataset shows, without FUSE.

zarr-python reads inner chunks as chunks of an unsharded array, and what it writes is appended to shards.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from shardfs.api.opened import OpenDataset
from shardfs.errors import ExistsError, IsADirectoryHereError, NotADirectoryHereError, NotFoundError
from shardfs.stores.base import Buffer as BytesLike
from shardfs.stores.base import Kind, join_key
from shardfs.vfs.paths import Listed, Paths

P = ParamSpec("P")
R = TypeVar("R")

_MISSING = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)
"""The errors of a name that is no file."""


class ShardfsStore(Store):
    """The files of *dataset* below *path*; read-only if the dataset is. Stores of the same files are equal.

    `close` does not close the dataset, which may have other stores. What `set` returned for survives the end of the
    process; `Dataset.flush` and `Dataset.close` commit it to the shards. Other errors than that of a missing key are
    those of `shardfs.errors`. A document that is no valid one is refused.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, dataset: OpenDataset, path: str = "", *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only or not dataset.is_writable)
        self.dataset = dataset
        self.path = path.strip("/")

    def with_read_only(self, read_only: bool = False) -> "ShardfsStore":
        """Return a store of the same files that can, or cannot, be written."""
        if not read_only and not self.dataset.is_writable:
            # zarr-python tries it, too, to compare stores, and knows this error as that of a store that cannot.
            raise NotImplementedError(f"{self.dataset.url} was opened to be read only; open it with write=True")
        return type(self)(self.dataset, self.path, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (self.dataset.shown, self.path) == (other.dataset.shown, other.path)

    def __hash__(self) -> int:
        return hash((self.dataset.shown, self.path))

    def elements(self, selection: Any) -> Any:  # noqa: ANN401 - as zarr-python has it
        """Return the elements of the array at the root that *selection* selects."""
        return zarr.open_array(self, mode="r")[selection]

    def __repr__(self) -> str:
        return f"ShardfsStore({str(self)!r})"

    def __str__(self) -> str:
        return f"shardfs://{self.path}::{self.dataset.url}"

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return a file, or a range of it, of which only those bytes are read; None if there is none."""
        await self._ensure_open()
        name, wanted = self._key(key), _range(byte_range)
        data = await self.dataset.read_known(name, *wanted)
        return _buffer(await self._call(_read, name, *wanted) if data is None else data, prototype)

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Do what `get` does."""
        name, wanted = self._key(key), _range(byte_range)
        data = self.dataset.loop.at_once(Paths.read_known, name, *wanted, waits=True)
        return _buffer(self.dataset.loop.call(_read, name, *wanted) if data is None else data, prototype)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return several files or ranges, read at the same time."""
        return list(await asyncio.gather(*(self.get(key, prototype, wanted) for key, wanted in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether a file exists."""
        await self._ensure_open()
        return await self._call(_size, self._key(key)) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a file in bytes, without reading it."""
        size = await self._call(_size, self._key(key))
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def set(self, key: str, value: Buffer) -> None:
        """Publish a file; when this returns, it survives the end of the process.

        If the store was sent to this process, and is in a bucket, it is committed, too.
        """
        self._check_writable()
        await self._ensure_open()
        await self._call(_publish, self._key(key), _bytes(value), commits=self.dataset.commits_at_once)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Do what `set` does."""
        self._check_writable()
        self.dataset.loop.call(_publish, self._key(key), _bytes(value), commits=self.dataset.commits_at_once)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Publish a file unless there is one; of several who do so at the same time, one succeeds."""
        self._check_writable()
        await self._ensure_open()
        with suppress(ExistsError):
            commits = self.dataset.commits_at_once
            await self._call(_publish, self._key(key), _bytes(value), commits=commits, exclusive=True)

    async def delete(self, key: str) -> None:
        """Remove a file, if there is one."""
        self._check_writable()
        await self._ensure_open()
        with suppress(*_MISSING):
            await self._call(_remove, self._key(key), commits=self.dataset.commits_at_once)

    def delete_sync(self, key: str) -> None:
        """Do what `delete` does."""
        self._check_writable()
        with suppress(*_MISSING):
            self.dataset.loop.call(_remove, self._key(key), commits=self.dataset.commits_at_once)

    async def delete_dir(self, prefix: str) -> None:
        """Remove all files below a directory, and the directory."""
        self._check_writable()
        await self._ensure_open()
        with suppress(*_MISSING):
            await self._call(_remove_below, self._key(prefix), commits=self.dataset.commits_at_once)

    def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with *prefix*; if that is a directory, those below it, as of a `LocalStore`."""
        directory, _, beginning = prefix.rpartition("/")
        names = await self._names(directory) if beginning else ()
        if any(listed.name == beginning and listed.kind is Kind.DIRECTORY for listed in names):
            directory, beginning = prefix, ""
        pending = [directory]
        while pending:
            above = pending.pop()
            for listed in await self._names(above):
                key = join_key(above, listed.name)
                if above == directory and not listed.name.startswith(beginning):
                    continue
                if listed.kind is Kind.DIRECTORY:
                    pending.append(key)
                else:
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names in a directory."""
        for listed in await self._names(prefix.rstrip("/")):
            yield listed.name

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the size of all files below a directory, without reading them."""
        total, pending = 0, [prefix.rstrip("/")]
        while pending:
            above = pending.pop()
            for listed in await self._names(above):
                if listed.kind is Kind.DIRECTORY:
                    pending.append(join_key(above, listed.name))
                else:
                    total += listed.size or 0  # no array has chunks whose size is unknown, but for damaged ones
        return total

    async def _names(self, directory: str) -> Sequence[Listed]:
        await self._ensure_open()
        try:
            return await self._call(Paths.names, self._key(directory))
        except _MISSING:
            return ()

    def _key(self, key: str) -> str:
        return join_key(self.path, key.strip("/"))

    async def _call(
        self, work: Callable[Concatenate[Paths, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self.dataset.loop.ask(work, *args, **kwargs)


async def _read(paths: Paths, key: str, start: int, stop: int | None) -> BytesLike | None:
    try:
        return await paths.read(key, start, stop)
    except _MISSING:
        return None


async def _publish(paths: Paths, key: str, data: BytesLike, *, commits: bool, exclusive: bool = False) -> None:
    await paths.publish(key, data, exclusive=exclusive)
    if commits:
        await paths.commit(key)


async def _remove(paths: Paths, key: str, *, commits: bool) -> None:
    await paths.remove(key)
    if commits:
        await paths.commit(key)


async def _remove_below(paths: Paths, key: str, *, commits: bool) -> None:
    await paths.remove_below(key)
    if commits:
        await paths.commit(key)


async def _size(paths: Paths, key: str) -> int | None:
    try:
        attributes = await paths.attributes(key)
    except _MISSING:
        return None
    return attributes.size if attributes.status.kind is not Kind.DIRECTORY else None


def _range(wanted: ByteRequest | None) -> tuple[int, int | None]:
    """Return the start and the stop of a range as those of a slice."""
    match wanted:
        case None:
            return 0, None
        case RangeByteRequest(start=start, end=end):
            return start, end
        case OffsetByteRequest(offset=offset):
            return offset, None
        case SuffixByteRequest(suffix=suffix):
            return (-suffix, None) if suffix else (0, 0)
        case _:
            raise ValueError(f"Unexpected byte_range, got {wanted}.")


def _buffer(data: BytesLike | None, prototype: BufferPrototype | None) -> Buffer | None:
    if data is None:
        return None
    only_to_read = memoryview(data).toreadonly()  # it may be in a cache
    return (prototype or default_buffer_prototype()).buffer.from_bytes(only_to_read)


def _bytes(value: Any) -> bytes:  # noqa: ANN401 - as programs pass it
    if not isinstance(value, Buffer):
        raise TypeError(f"a value must be a Buffer of zarr-python, and not {type(value).__name__}")
    return value.to_bytes()
