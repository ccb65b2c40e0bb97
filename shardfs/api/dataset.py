"""The dataset as an object: `shardfs.open`, and the arrays and groups in it."""

import operator
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from shardfs.api.opened import OpenDataset
from shardfs.dataset.maintenance.verify import measure
from shardfs.dataset.maintenance.walk import similar_path, walk_nodes, walk_shards
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import NotADirectoryHereError, NotFoundError, NotUnshardable, UsageError
from shardfs.format.document import parse_json
from shardfs.format.metadata import GroupMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer, join_key
from shardfs.vfs.paths import Paths

if TYPE_CHECKING:
    from shardfs.api.fsspec_filesystem import ShardfsFileSystem
    from shardfs.api.zarr_store import ShardfsStore


class Dataset(OpenDataset):
    """A source that is open without FUSE; a context manager, which closes it.

    It shows what a mount with the same options would show. With *write*, it is a writing mount in every respect: what
    is written is in the journal when the call returns, and survives the end of the process; `flush` and `close` commit
    it. Other processes may write to the same source meanwhile.

    It lives in an event loop in a thread of its own, so any number of threads may use it at the same time. In a process
    that was forked meanwhile, it is opened when it is first used there. After `close` everything raises `ClosedError`.
    """

    def __iter__(self) -> Iterator[str]:
        """Return the paths of all arrays and groups, parents first."""
        return iter(self.loop.call(_paths))

    def __getitem__(self, path: str) -> "DatasetNode":
        """Return the array or group at *path*, "" being the source itself; raises `NotFoundError`."""
        self.loop.call(_find, path.strip("/"))
        return DatasetNode(self, path.strip("/"))

    def store(self, path: str = "", *, read_only: bool = False) -> "ShardfsStore":
        """Return a store for zarr-python 3.1 or newer, whose root is *path*; it can be written if the dataset can.

        Through it, zarr-python, xarray and Dask read inner chunks, and append them to shards. It lasts as long as the
        dataset. A store that was sent to another process opens the dataset there.
        """
        try:
            from shardfs.api.zarr_store import ShardfsStore  # only here: zarr-python need not be installed
        except ModuleNotFoundError as error:
            raise _missing("a store", "zarr-python 3.1 or newer", "zarr>=3.1", error) from None
        return ShardfsStore(self, path, read_only=read_only)

    def filesystem(self, *, asynchronous: bool = False) -> "ShardfsFileSystem":
        """Return a filesystem of fsspec, to read; its paths are relative to the source.

        Through it, zarr-python 2, older xarray and all other programs that know fsspec read inner chunks. It lasts as
        long as the dataset; one that was sent to another process opens the dataset there. *asynchronous* is for
        programs that await its methods.
        """
        try:
            from shardfs.api.fsspec_filesystem import ShardfsFileSystem  # only here: fsspec need not be installed
        except ModuleNotFoundError as error:
            raise _missing("a filesystem", "fsspec", "fsspec", error) from None
        return ShardfsFileSystem(dataset=self, asynchronous=asynchronous)


class DatasetNode:
    """An array or a group of a dataset, as a mount shows it; its *path* is relative to the source."""

    def __init__(self, dataset: Dataset, path: str) -> None:
        self.path = path
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"<shardfs node {self.path!r} of {self._dataset.url}>"

    def __getitem__(self, selection: Any) -> Any:  # noqa: ANN401 - as zarr-python has it
        """Return the elements of an array that *selection* selects, by zarr-python; of a group, the node of that name.

        For more than a look at values, open `Dataset.store` with zarr-python.
        """
        if isinstance(selection, str):
            return self._dataset[join_key(self.path, selection)]
        store = self._dataset.store(self.path, read_only=True)
        if self._dataset.loop.call(_is_group, self.path):
            raise TypeError(f"{self!r} is a group, of which a name selects a node, and not {selection!r}")
        return store.elements(selection)

    __iter__ = None  # else Python would take 0, 1, 2, … for the names of what is in it

    @property
    def metadata(self) -> dict[str, Any]:
        """The document that a mount shows: that of a sharded array has its inner chunks as chunks.

        In the view v2 it is `.zarray` or `.zgroup`.
        """
        return self._dataset.loop.call(_document, self.path, (DOCUMENT, ".zarray", ".zgroup"))

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes that a mount shows."""
        if self._dataset.view == "v2":
            return self._dataset.loop.call(_document, self.path, (".zattrs",))
        return dict(self.metadata.get("attributes") or {})

    def read_chunk(self, coords: Sequence[int]) -> bytes | None:
        """Return the inner chunk at *coords* in the grid of inner chunks, encoded unless the dataset decodes.

        None if it is not stored. Raises `IndexError` outside the grid, `NotUnshardable` for an array without inner
        chunks, `CorruptionError` for a damaged chunk or shard.
        """
        return self._dataset.loop.call(_read, self.path, _index(coords))

    def write_chunk(self, coords: Sequence[int], data: Buffer | None) -> None:
        """Make *data*, which is encoded unless the dataset decodes, the inner chunk at *coords*; None removes it.

        Raises the errors of `read_chunk`, `ReadOnlyError` without *write*, and `StoreError`.
        """
        dataset = self._dataset
        dataset.loop.call(_write, self.path, _index(coords), data, commits=dataset.commits_at_once)

    def shards(self) -> list[dict[str, Any]]:
        """Return what `shardfs map --json` prints of each stored shard of an array: its size, chunks and dead bytes."""
        return self._dataset.loop.call(_shards, self.path)


def _index(coords: Sequence[int]) -> Coords:
    return tuple(map(operator.index, coords))


async def _paths(paths: Paths) -> list[str]:
    return [node.path async for node in walk_nodes(paths.source) if node.metadata is not None]


async def _is_group(paths: Paths, path: str) -> bool:
    return isinstance((await _find(paths, path)).metadata, GroupMetadata)


async def _find(paths: Paths, path: str) -> Node:
    try:
        node = await paths.fs.hierarchy.node(path)
    except NotFoundError:
        alike = await similar_path(paths.source, path)
        way_out = "" if alike is None else f"; did you mean {alike}?"
        raise NotFoundError(f"there is no array or group {path} in {paths.source.store.url}{way_out}") from None
    if node.metadata is None:
        reason = f": {node.reason}" if node.reason else ""
        raise NotFoundError(f"{_named(paths, path)} is not an array or group{reason}")
    return node


async def _document(paths: Paths, path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the first of these documents that is shown at *path*; an empty one if there is none."""
    await _find(paths, path)
    for name in names:
        with suppress(NotFoundError, NotADirectoryHereError):
            return dict(parse_json(bytes(await paths.read(join_key(path, name)))))
    return {}


_NOT_SHARDED: Final = "it is not a sharded array; `store` and `filesystem` read its chunks, as files"


def _named(paths: Paths, path: str) -> str:
    return path or paths.source.store.url


async def _chunk(paths: Paths, path: str, coords: Coords) -> str:
    """Return the path of the chunk at *coords*."""
    node = await _find(paths, path)
    chunks = paths.fs.view.chunk_view(node)
    if chunks is None:
        reason = paths.fs.view.skipped(node) or node.reason or _NOT_SHARDED
        raise NotUnshardable(f"{_named(paths, path)} has no inner chunks: {reason}")
    if not chunks.array.grid.contains(coords):
        raise IndexError(f"{coords} is not in the grid of {chunks.array.grid.grid_shape} inner chunks")
    return join_key(path, chunks.key_encoding.encode(coords))


async def _read(paths: Paths, path: str, coords: Coords) -> bytes | None:
    key = await _chunk(paths, path, coords)
    try:
        return bytes(await paths.read(key))
    except NotFoundError:
        return None


async def _write(paths: Paths, path: str, coords: Coords, data: Buffer | None, *, commits: bool) -> None:
    key = await _chunk(paths, path, coords)
    if data is not None:
        await paths.publish(key, data)
    else:
        with suppress(NotFoundError):
            await paths.remove(key)
    if commits:
        await paths.commit(key)


async def _shards(paths: Paths, path: str) -> list[dict[str, Any]]:
    array = (await _find(paths, path)).array
    if array is None:
        raise NotUnshardable(f"{_named(paths, path)} has no shards")
    uses = [(coords, await measure(array, coords)) async for coords in walk_shards(array)]
    return [{"coords": list(coords), **asdict(use), "dead": use.dead} for coords, use in uses]


def _missing(what: str, library: str, requirement: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for a library that is not installed, or *error* if something else is missing."""
    if (error.name or "").partition(".")[0] != requirement.partition(">")[0]:
        return error
    command = f"{shlex.quote(sys.executable)} -m pip install '{requirement}'"
    return UsageError(f"{what} needs {library}; install it with: {command}")
