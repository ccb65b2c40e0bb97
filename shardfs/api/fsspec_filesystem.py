"""A filesystem for fsspec: what a dataset shows, without FUSE, to read.

zarr-python 2, older xarray and other programs that know fsspec read inner chunks as files. Its protocol is `shardfs`.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import trio
from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile

from shardfs.api.opened import OpenDataset
from shardfs.errors import (
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    ReadOnlyError,
    ShardfsError,
    UsageError,
)
from shardfs.stores.base import Kind, join_key
from shardfs.stores.url import StoreOptions
from shardfs.vfs.handles import Attributes, FileHandle
from shardfs.vfs.paths import Paths, pieces_of

P = ParamSpec("P")
R = TypeVar("R")

_TYPES: Final = {Kind.FILE: "file", Kind.DIRECTORY: "directory"}
_LOCAL: Final = (None, "file", "local")
_S3: Final = ("s3", "s3a")
_CLOUDS: Final = {"http": "http", "https": "https", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}
_S3_WORDS: Final = {
    "anon": "anonymous",
    "endpoint_url": "endpoint_url",
    "profile": "profile",
    "region_name": "region",
    "requester_pays": "request_payer",
}
"""Options of s3fs, and what they are called in `StoreOptions`."""


class ShardfsFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """The files of a dataset, to read; *fo* is the source, and further options are those of `shardfs.open`.

    In a chained URL, such as `shardfs://image/zarr.json::s3://bucket/data.zarr`, *fo*, *target_protocol* and
    *target_options* come from what is behind `::`. A name that is no file raises `FileNotFoundError` or
    `IsADirectoryError`. All other errors are those of `shardfs.errors`: none of them is an `OSError`, which many
    programs take for a chunk that is not stored.
    """

    protocol = "shardfs"
    root_marker = ""
    cachable = False  # what a path stands for may be another dataset by now, and a dataset may be closed

    def __init__(
        self,
        fo: str | os.PathLike[str] = "",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        *,
        dataset: OpenDataset | None = None,
        store_options: StoreOptions | None = None,
        asynchronous: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        batch_size: int | None = None,
        **options: Any,  # noqa: ANN401 - those of TreeOptions
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size)
        if options.get("write"):
            raise UsageError(
                "fsspec only reads a dataset: leave out write=True, or write with shardfs.open(...).store()"
            )
        if dataset is None:
            source, store_options = _target(os.fspath(fo), target_protocol, target_options or {}, store_options)
            dataset = OpenDataset(source, store_options=store_options, **options)
        self.dataset = dataset

    def __reduce__(self) -> tuple[Callable[[OpenDataset, bool], "ShardfsFileSystem"], tuple[OpenDataset, bool]]:
        return _filesystem_of, (self.dataset, self.asynchronous)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:  # noqa: ANN401 - one path, or several
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def modified(self, path: str) -> datetime:
        """Return the modification time of a file."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    async def _info(self, path: str, **_: object) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return _described(path, await self._call(Paths.attributes, path))

    async def _ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        path = self._strip_protocol(path)
        infos: list[dict[str, Any]] = []
        try:
            listed = await self.dataset.loop.ask(Paths.names, path)
        except (NotFoundError, NotADirectoryHereError):
            infos.append(await self._info(path))
        else:
            for name, kind, size in listed:
                below = join_key(path, name)
                if kind is Kind.SYMLINK:
                    infos.append(await self._link(below))
                else:
                    infos.append({"name": below, "size": size, "type": _TYPES.get(kind, "other")})
        return infos if detail else [info["name"] for info in infos]

    async def _link(self, path: str) -> dict[str, Any]:
        """Describe what a link leads to, or the link itself if that is nothing that can be read."""
        try:
            return await self._info(path)
        except (OSError, ShardfsError):
            return {"name": path, "size": 0, "type": "other"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Return the bytes of a file, or a range of them, by the shortest way from this thread."""
        path = self._strip_protocol(path)
        data = self.dataset.loop.at_once(Paths.read_known, path, start or 0, end, waits=True)
        if data is None:
            with _Missing(path):
                data = self.dataset.loop.call(Paths.read, path, start or 0, end)
        return data if isinstance(data, bytes) else bytes(data)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        path = self._strip_protocol(path)
        data = await self.dataset.read_known(path, start or 0, end)
        return bytes(await self._call(Paths.read, path, start or 0, end) if data is None else data)

    async def _get_file(
        self,
        rpath: str,
        lpath: str,
        callback: Any = DEFAULT_CALLBACK,  # noqa: ANN401 - fsspec has no types
        **_: object,
    ) -> None:
        if await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(lpath) or ".", exist_ok=True)
        await self._call(_save, self._strip_protocol(rpath), lpath, callback)

    async def _isdir(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "directory")
        except FileNotFoundError:
            return False

    async def _isfile(self, path: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == "file")
        except FileNotFoundError:
            return False

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - those of fsspec
    ) -> "_File":
        if mode != "rb":
            _refuse()
        block_size = "default" if block_size is None else block_size
        return _File(self, path, block_size=block_size, cache_options=cache_options, **options)

    async def _change(self, *_: object, **__: object) -> NoReturn:
        _refuse()

    _pipe_file = _put_file = _cp_file = _rm_file = _mkdir = _makedirs = _change

    async def _call(
        self, work: Callable[Concatenate[Paths, str, P], Awaitable[R]], path: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with _Missing(path):
            return await self.dataset.loop.ask(work, path, *args, **kwargs)


class _File(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is open to read, in one version, until it is closed."""

    def __init__(self, fs: ShardfsFileSystem, path: str, **options: Any) -> None:  # noqa: ANN401 - those of fsspec
        with _Missing(path):
            self._handle, self._leave = fs.dataset.loop.hold(Paths.open, path)
        super().__init__(fs, path, size=self._handle.attributes.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.dataset.loop.call(_read_open, self._handle, self.path, start, end)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Give up the version."""
        self._leave()
        super().close()


class _Missing:
    """Raises what fsspec expects if *path* is no file; other errors stay as they are."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (NotFoundError, NotADirectoryHereError)):
            raise FileNotFoundError(errno.ENOENT, str(error), self._path) from error
        if isinstance(error, IsADirectoryHereError):
            raise IsADirectoryError(errno.EISDIR, str(error), self._path) from error


def _described(path: str, attributes: Attributes) -> dict[str, Any]:
    kind = attributes.status.kind
    return {
        "name": path,
        "size": 0 if kind is Kind.DIRECTORY else attributes.size,
        "type": _TYPES.get(kind, "other"),
        "mtime": attributes.own_mtime_ns / 1e9,
        "ino": attributes.ino,
    }


async def _read_open(_: Paths, handle: FileHandle, path: str, start: int, stop: int) -> bytes:
    return b"".join([piece async for piece in pieces_of(handle, path, start, stop)])


async def _save(paths: Paths, path: str, local: str, callback: Any) -> None:  # noqa: ANN401 - fsspec has no types
    """Write a file to the disk, whole or not at all."""
    async with paths.open(path) as handle:
        callback.set_size(handle.attributes.size)
        try:
            async with await trio.open_file(local, "wb") as file:
                async for piece in pieces_of(handle, path):
                    await file.write(piece)
                    callback.relative_update(len(piece))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(local)
            raise


def _filesystem_of(dataset: OpenDataset, asynchronous: bool) -> ShardfsFileSystem:
    return ShardfsFileSystem(dataset=dataset, asynchronous=asynchronous)


def _refuse() -> NoReturn:
    raise ReadOnlyError("fsspec only reads a dataset; write with shardfs.open(..., write=True).store()")


def _target(
    fo: str, protocol: str | None, options: Mapping[str, Any], store_options: StoreOptions | None
) -> tuple[str, StoreOptions | None]:
    """Return the source and how to reach it; *options* are those of the filesystem behind `::`."""
    if protocol in _LOCAL:
        return fo, store_options
    if protocol in _CLOUDS:
        if options:
            raise UsageError(
                f"shardfs does not know the option {min(options)} of {protocol}://: credentials come from the "
                "environment, all else from store_options=shardfs.StoreOptions(...)"
            )
        return fo if "://" in fo else f"{_CLOUDS[protocol]}://{fo}", store_options
    if protocol not in _S3:
        raise UsageError(
            f"{protocol}:// is not supported behind ::; a source is a path, or a URL of s3, https, http, gs or az"
        )
    words = dict(options)
    words |= words.pop("client_kwargs", None) or {}
    unknown = sorted(set(words) - set(_S3_WORDS))
    if unknown:
        raise UsageError(
            f"shardfs does not know the S3 option {unknown[0]}: credentials come from the environment or the AWS "
            "configuration files, all else from store_options=shardfs.StoreOptions(...)"
        )
    chosen = {_S3_WORDS[word]: value for word, value in words.items() if value is not None}
    return f"s3://{fo.removeprefix('s3://')}", replace(store_options or StoreOptions(), **chosen)
