"""The Python interface: `shardfs.mount` for notebooks and tests, `shardfs.open` to read without FUSE."""

import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

import trio

from shardfs.bulk.pack import PackPlan
from shardfs.bulk.run import Report, RunOptions, fill
from shardfs.bulk.unpack import Unpacking, UnpackPlan
from shardfs.dataset.hierarchy import Source, open_source
from shardfs.dataset.maintenance.walk import walk_nodes
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import FuseUnavailableError, NotFoundError, NotUnshardable, StoreError, UnfinishedError, UsageError
from shardfs.format.document import parse_json
from shardfs.format.lens.packed import SHARD_NBYTES, Packing, parse_codecs_option
from shardfs.format.sharding import Coords
from shardfs.fuse.daemon import start_daemon
from shardfs.fuse.mountpoint import check_fuse, check_installed, check_mount_point
from shardfs.fuse.options import MountOptions
from shardfs.fuse.unmount import unmount
from shardfs.stores.loop import LoopThread
from shardfs.stores.url import StoreOptions, resolve
from shardfs.vfs.views import ZarrV3

__all__ = ["Dataset", "DatasetNode", "MountOptions", "Report", "StoreOptions", "mount", "pack", "unpack"]


@contextmanager
def mount(
    source: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str] | None = None,
    options: MountOptions | None = None,
    store_options: StoreOptions | None = None,
) -> Iterator[Path]:
    """Mount *source* for the length of a `with` block, and yield the mounted directory.

    Without *mountpoint* that is a temporary directory. The mount is read-only unless *options* say otherwise. Raises
    the errors of `shardfs.errors`.
    """
    url, root = resolve(os.fspath(source))
    check_installed()
    check_fuse(allow_other=options is not None and options.allow_other)
    temporary = Path(tempfile.mkdtemp(prefix="shardfs-"))
    place = temporary / "mount" if mountpoint is None else Path(mountpoint)
    says_why = False
    try:
        if mountpoint is None:
            place.mkdir()
        store_options = store_options or StoreOptions()
        path = check_mount_point(os.fspath(place), root, store_options.cache)
        arguments = (options or MountOptions()).to_arguments() + store_options.to_arguments()
        try:
            start_daemon([url, path, *arguments], temporary / "log")
        except FuseUnavailableError:
            says_why = True
            raise
        try:
            yield place
        finally:
            try:
                unmount(path)
            except (StoreError, UnfinishedError):
                says_why = True
                raise
    finally:
        # Never recursively: a mount that could not be taken away stays where it is, and so does the log that says why.
        with suppress(OSError):
            if not says_why:
                (temporary / "log").unlink(missing_ok=True)
            if mountpoint is None:
                place.rmdir()
            temporary.rmdir()


def pack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shard_size: int = SHARD_NBYTES,
    shards: tuple[int, ...] | None = None,
    index_location: Literal["end", "start"] = "end",
    codecs: str | None = None,
    sync: bool = False,
    checksum: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Callable[[Report], None] = lambda report: None,
    store_options: StoreOptions | None = None,
) -> Report:
    """Pack the chunks of *source* into shards of a Zarr v3 dataset at *destination*, as `shardfs pack` does.

    *shards* is the number of chunks per shard along each axis, for arrays with that many axes; for others *shard_size*
    is the size of shards in bytes, before compression. An *executor*, such as that of a Dask client, does the work
    instead of *jobs* local processes. *progress* is called in this thread with the report so far.

    Returns the report, whose `problems` name what is missing from the destination. Raises the errors of
    `shardfs.errors`.
    """
    if index_location not in ("end", "start"):
        raise UsageError(f"index_location cannot be {index_location!r}: choose end or start")
    packing = Packing(
        shard_size, shards, index_location == "start", None if codecs is None else parse_codecs_option(codecs)
    )
    how = RunOptions(sync or checksum, checksum, executor, jobs, progress)
    plan, options = PackPlan(packing), store_options or StoreOptions()
    return trio.run(fill, os.fspath(source), os.fspath(destination), plan, how, options)


def unpack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    view: Literal["v3", "v2", "npy"] = "v3",
    decode: bool = False,
    sync: bool = False,
    checksum: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Callable[[Report], None] = lambda report: None,
    store_options: StoreOptions | None = None,
) -> Report:
    """Write the files that a mount of *source* would show to *destination*, as `shardfs unpack` does.

    Arguments and result are those of `pack`.
    """
    how = RunOptions(sync or checksum, checksum, executor, jobs, progress)
    plan, options = UnpackPlan(Unpacking(view, decode)), store_options or StoreOptions()
    return trio.run(fill, os.fspath(source), os.fspath(destination), plan, how, options)


class Dataset:
    """A source, read without FUSE; a context manager, which closes it.

    It lives in an event loop in a thread of its own, so it may be used from any number of threads at the same time.
    Metadata and names are cached for *metadata_ttl* seconds, where None means 1 for a directory and 60 for S3. After
    `close`, and in a process that was forked meanwhile, everything raises `ClosedError`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        metadata_ttl: float | None = None,
        store_options: StoreOptions | None = None,
    ) -> None:
        self.url, _ = resolve(os.fspath(source))
        opening = open_source(os.fspath(source), store_options, ttl=metadata_ttl)
        self._loop = LoopThread(opening, f"the dataset {self.url}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End reads under way, and release everything; may be called again."""
        self._loop.close()

    def __iter__(self) -> Iterator[str]:
        """Return the paths of all arrays and groups, parents first."""
        return iter(self._loop.call(_paths))

    def __getitem__(self, path: str) -> "DatasetNode":
        """Return the array or group at *path*, "" being the source itself; raises `NotFoundError`."""
        node = DatasetNode(self._loop, self.url, path.strip("/"))
        node.metadata  # noqa: B018 - raises if there is none
        return node


class DatasetNode:
    """An array or a group of a dataset, as a mount shows it; its *path* is relative to the source."""

    def __init__(self, loop: LoopThread[Source], url: str, path: str) -> None:
        self.path = path
        self._url = url
        self._loop = loop

    def __repr__(self) -> str:
        return f"<shardfs node {self.path!r} of {self._url}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """The document that a mount shows: that of a sharded array has its inner chunks as chunks."""
        node = self._loop.call(_find, self.path)
        text = ZarrV3().documents(node).get(DOCUMENT, node.document)
        return dict(parse_json(text or b"{}"))

    def read_chunk(self, coords: Sequence[int]) -> bytes | None:
        """Return the encoded inner chunk at *coords* in the grid of inner chunks; None if it is not stored.

        Raises `IndexError` outside the grid, `NotUnshardable` for an array without inner chunks, `CorruptionError` for
        a damaged chunk or shard.
        """
        return self._loop.call(_read, self.path, tuple(map(operator.index, coords)))


async def _paths(source: Source) -> list[str]:
    return [node.path async for node in walk_nodes(source) if node.metadata is not None]


async def _find(source: Source, path: str) -> Node:
    node = await source.hierarchy.node(path)
    if node.metadata is None:
        reason = f": {node.reason}" if node.reason else ""
        raise NotFoundError(f"{path or 'the source'} is not an array or group{reason}")
    return await source.hierarchy.copies.consolidated(node)


async def _read(source: Source, path: str, coords: Coords) -> bytes | None:
    node = await _find(source, path)
    if node.array is None:
        reason = node.reason or "it is not a sharded array"
        raise NotUnshardable(f"{path or 'the source'} has no inner chunks: {reason}")
    grid = node.array.grid
    if not grid.contains(coords):
        raise IndexError(f"{coords} is not in the grid of {grid.grid_shape} inner chunks")
    extent = await node.array.extent(coords)
    return None if extent is None else bytes(await extent.read(0, extent.nbytes))
