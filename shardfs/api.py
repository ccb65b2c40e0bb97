"""The Python interface: `shardfs.open` without FUSE, `shardfs.mount` for a mount, and work on whole datasets."""

import atexit
import json
import logging
import operator
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack, cast
from weakref import WeakValueDictionary

import trio

from shardfs.bulk.compact import THRESHOLD, compact_source
from shardfs.bulk.engine import in_session
from shardfs.bulk.info import describe_source
from shardfs.bulk.pack import PackPlan
from shardfs.bulk.refs import JsonReferences, write_references
from shardfs.bulk.run import Report, RunOptions, fill
from shardfs.bulk.unpack import Unpacking, UnpackPlan
from shardfs.bulk.verify import verify_source
from shardfs.dataset.hierarchy import open_source
from shardfs.dataset.maintenance.verify import measure
from shardfs.dataset.maintenance.walk import Progress, no_progress, walk_nodes, walk_shards
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import (
    CorruptionError,
    FuseUnavailableError,
    NotADirectoryHereError,
    NotFoundError,
    NotUnshardable,
    ShardfsError,
    StoreError,
    UnfinishedError,
    UsageError,
)
from shardfs.format.document import parse_json
from shardfs.format.lens.packed import SHARD_NBYTES, Packing, parse_codecs_option
from shardfs.format.sharding import Coords
from shardfs.fuse.daemon import start_daemon
from shardfs.fuse.flush import flush_mount
from shardfs.fuse.mountpoint import check_fuse, check_installed, check_mount_point
from shardfs.fuse.options import MountOptions
from shardfs.fuse.unmount import unmount
from shardfs.stores.base import Buffer, join_key
from shardfs.stores.loop import LoopThread
from shardfs.stores.url import StoreOptions, resolve
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import Paths, open_paths

if TYPE_CHECKING:
    from shardfs.fsspec_filesystem import ShardfsFileSystem
    from shardfs.zarr_store import ShardfsStore

__all__ = [
    "Dataset", "DatasetNode", "Mount", "Progress", "Report", "StoreOptions",
    "compact", "info", "pack", "refs", "unpack", "verify",
]  # fmt: skip


log = logging.getLogger(__name__)


class _TreeWords(TypedDict, total=False):
    """The options of `TreeOptions`, as keywords."""

    metadata_ttl: float | None
    write: bool
    shards: tuple[int, ...] | None
    auto_compact: float | None
    single_writer: bool
    view: str
    decode: bool
    dimension_separator: str | None
    fill_missing: bool
    decode_cache: int


class _MountWords(_TreeWords, total=False):
    """The options of `MountOptions`, as keywords."""

    allow_other: bool
    page_cache: bool
    uid: int | None
    gid: int | None
    umask: int | None
    fuse_options: tuple[str, ...]
    metrics: str | None


class Mount:
    """A mount that lasts until `unmount`, the end of a `with` block, or the end of this process.

    *path* is the mounted directory, which a `with` block yields.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        store_options: StoreOptions | None = None,
        **options: Unpack[_MountWords],
    ) -> None:
        """Mount *source* at the empty directory *mountpoint*, or at a temporary one; read-only, unless *write* is true.

        *options* are those of `shardfs mount` with the same names. Raises the errors of `shardfs.errors`.
        """
        url, root = resolve(os.fspath(source))
        chosen, store_options = MountOptions(**options), store_options or StoreOptions()
        check_installed()
        check_fuse(allow_other=chosen.allow_other)
        self._temporary = Path(tempfile.mkdtemp(prefix="shardfs-"))
        self._own = self._temporary / "mount" if mountpoint is None else None
        self._pid = os.getpid()
        place, says_why = Path(self._own or os.fspath(cast(str, mountpoint))), False
        try:
            if self._own is not None:
                self._own.mkdir()
            self.path = Path(check_mount_point(os.fspath(place), root, store_options.cache))
            arguments = chosen.to_arguments() + store_options.to_arguments()
            start_daemon([url, os.fspath(self.path), *arguments], self._temporary / "log")
        except BaseException as error:
            says_why = isinstance(error, FuseUnavailableError)
            self._clean(keeps_log=says_why)
            raise
        self._is_mounted = True
        atexit.register(self._unmount_at_exit)

    def __repr__(self) -> str:
        return f"<shardfs mount at {self.path}{'' if self._is_mounted else ', unmounted'}>"

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def flush(self) -> None:
        """Commit everything that was written; raises `StoreError` if that is not possible."""
        flush_mount(os.fspath(self.path))

    def unmount(self) -> None:
        """Commit everything, and unmount; once it is unmounted, do nothing.

        Raises `MountPointError` if the mount is in use, and stays; `StoreError` if it is unmounted and something could
        not be committed.
        """
        if not self._is_mounted:
            return
        try:
            unmount(os.fspath(self.path))
        except (StoreError, UnfinishedError):
            self._ended(keeps_log=True)  # which says why
            raise
        self._ended(keeps_log=False)

    def _unmount_at_exit(self) -> None:
        if os.getpid() == self._pid:
            try:
                self.unmount()
            except ShardfsError as error:
                log.error("%s", error)  # noqa: TRY400 - it says all

    def _ended(self, *, keeps_log: bool) -> None:
        self._is_mounted = False
        atexit.unregister(self._unmount_at_exit)
        self._clean(keeps_log=keeps_log)

    def _clean(self, *, keeps_log: bool) -> None:
        """Remove what was made for the mount; never recursively, as it may be mounted still."""
        with suppress(OSError):
            if not keeps_log:
                (self._temporary / "log").unlink(missing_ok=True)
            if self._own is not None:
                self._own.rmdir()
            self._temporary.rmdir()


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


def info(
    source: str | os.PathLike[str],
    array: str | None = None,
    *,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Return what `shardfs info --json` prints of *source*, or of the one *array*."""
    work = partial(describe_source, progress=progress)
    return {"arrays": in_session(os.fspath(source), store_options or StoreOptions(), work, array)}


def verify(
    source: str | os.PathLike[str],
    *,
    data: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Check every shard of *source*, with *data* every inner chunk too, and return what `shardfs verify --json` prints.

    Its `problems` name what is damaged. *executor* and *jobs* are those of `pack`.
    """
    options = store_options or StoreOptions()
    work = partial(verify_source, data=data, executor=executor, jobs=jobs, progress=progress)
    return in_session(os.fspath(source), options, work, options).as_dict()


def compact(
    source: str | os.PathLike[str],
    *,
    threshold: float = THRESHOLD,
    force: bool = False,
    single_writer: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Rewrite the shards of *source* that have many dead bytes, and return what `shardfs compact --json` prints.

    Options are those of `shardfs compact` with the same names; *executor* and *jobs* are those of `pack`.
    """
    if not 0 <= threshold <= 1:
        raise UsageError(f"threshold cannot be {threshold}: it is a share, from 0 to 1")
    options = store_options or StoreOptions()
    work = partial(
        compact_source,
        threshold=threshold,
        force=force,
        single_writer=single_writer,
        executor=executor,
        jobs=jobs,
        progress=progress,
    )
    return in_session(os.fspath(source), options, work, options).as_dict()


def refs(
    source: str | os.PathLike[str],
    *,
    view: Literal["v3", "v2"] = "v3",
    skip_encoded: bool = False,
    progress: Progress = no_progress,
    store_options: StoreOptions | None = None,
) -> dict[str, Any]:
    """Return the kerchunk references that `shardfs refs` prints, for `fsspec.filesystem("reference", fo=...)`.

    Raises `CorruptionError` if an array could not be read or referenced: its chunks would be missing, and read as fill
    value. Arrays that *view* does not show are left out, and a warning in the log names them. `shardfs refs` needs less
    memory.
    """
    if view not in ("v3", "v2"):
        raise UsageError(f"there are no references to view {view!r}: choose v3 or v2")
    left_out: list[str] = []
    with TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="") as file:
        work = partial(write_references, skip_encoded=skip_encoded, tell=left_out.append, progress=progress)
        nfailed = in_session(os.fspath(source), store_options or StoreOptions(), work, JsonReferences(file), view)
        if nfailed:
            raise CorruptionError(f"references would not be complete: {'; '.join(left_out)}")
        file.seek(0)
        references: dict[str, Any] = json.load(file)
    for line in left_out:
        log.warning("%s", line)
    return references


@dataclass(frozen=True)
class _Recipe:
    """How a dataset was opened, to open the same in another process; it holds no credentials."""

    source: str
    options: TreeOptions
    store_options: StoreOptions

    @property
    def text(self) -> str:
        """The options that are not those of everybody, for people."""
        chosen = [
            (name, getattr(part, name), getattr(type(part)(), name))
            for part in (self.options, self.store_options)
            for name in asdict(part)
        ]
        return "".join(f" {name}={value!r}" for name, value, usual in chosen if value != usual)


class Dataset:
    """A source that is open without FUSE; a context manager, which closes it.

    It shows what a mount with the same options would show. With *write*, it is a writing mount in every respect: what
    is written is in the journal when the call returns, and survives the end of the process; `flush` and `close` commit
    it. No other process can write to the same directory meanwhile.

    It lives in an event loop in a thread of its own, so any number of threads may use it at the same time. After
    `close`, and in a process that was forked meanwhile, everything raises `ClosedError`.
    """

    _loop: LoopThread[Paths] | None

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        store_options: StoreOptions | None = None,
        **options: Unpack[_TreeWords],
    ) -> None:
        """Open *source*; *options* are those of `shardfs mount` with the same names.

        Raises `SourceError` if it cannot be read, and if it is to be written and another process does so; `UsageError`
        for options that contradict each other.
        """
        url, _ = resolve(os.fspath(source))
        self._prepare(_Recipe(url, TreeOptions(**options), store_options or StoreOptions()))
        self._loop = LoopThread(_opened(self._recipe), self.url)

    def _prepare(self, recipe: _Recipe) -> None:
        self.url, self._recipe = recipe.source, recipe
        self._loop = None
        self._opening = threading.Lock()
        _OPEN[recipe] = self

    def __repr__(self) -> str:
        return f"<shardfs dataset {self.url}{self._recipe.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._recipe == other._recipe

    def __hash__(self) -> int:
        return hash(self._recipe)

    def __reduce__(self) -> tuple[Callable[[_Recipe], "Dataset"], tuple[_Recipe]]:
        return _reopen, (self._recipe,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loop(self) -> LoopThread[Paths]:
        """Where the tree is, for doors to it; a dataset that was sent to this process is opened when it is first used.

        So it is whoever uses it that gets the error if it cannot be opened.
        """
        with self._opening:
            if self._loop is None:
                self._loop = LoopThread(_opened(self._recipe), self.url)
            return self._loop

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._loop is not None and self._loop.is_closed

    @property
    def is_writable(self) -> bool:
        """Whether it was opened to be written."""
        return self._recipe.options.write

    def flush(self) -> None:
        """Commit everything that was written; raises `StoreError` if that is not possible, and it stays pending."""
        if self.is_writable:
            self.loop.call(Paths.flush)

    def close(self) -> None:
        """Commit everything, and release the source; may be called again.

        Raises `StoreError` if something could not be committed, and stays in the journal.
        """
        if _OPEN.get(self._recipe) is self:
            del _OPEN[self._recipe]
        _REOPENED.pop(self._recipe, None)
        if self._loop is not None:
            self._loop.close()

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
        from shardfs.zarr_store import ShardfsStore  # only here: zarr-python need not be installed

        return ShardfsStore(self, path, read_only=read_only)

    def filesystem(self, *, asynchronous: bool = False) -> "ShardfsFileSystem":
        """Return a filesystem of fsspec, to read; its paths are relative to the source.

        Through it, zarr-python 2, older xarray and all other programs that know fsspec read inner chunks. It lasts as
        long as the dataset; one that was sent to another process opens the dataset there. *asynchronous* is for
        programs that await its methods.
        """
        from shardfs.fsspec_filesystem import ShardfsFileSystem  # only here: fsspec need not be installed

        return ShardfsFileSystem(dataset=self, asynchronous=asynchronous, skip_instance_cache=True)


_OPEN: "WeakValueDictionary[_Recipe, Dataset]" = WeakValueDictionary()
"""The datasets that are open in this process, of several with the same recipe the one opened last."""
_REOPENED: "dict[_Recipe, Dataset]" = {}
"""Those that were sent to this process: they stay open until it ends, or somebody closes them."""
_REOPENING: Final = threading.Lock()


def _reopen(recipe: _Recipe) -> Dataset:
    with _REOPENING:
        found = _OPEN.get(recipe)
        if found is None or found.is_closed:
            found = _REOPENED[recipe] = Dataset.__new__(Dataset)
            found._prepare(recipe)
        return found


@asynccontextmanager
async def _opened(recipe: _Recipe) -> AsyncIterator[Paths]:
    options = recipe.options
    async with (
        open_source(recipe.source, recipe.store_options, ttl=options.metadata_ttl) as source,
        open_paths(source, options) as paths,
    ):
        yield paths


class DatasetNode:
    """An array or a group of a dataset, as a mount shows it; its *path* is relative to the source."""

    def __init__(self, dataset: Dataset, path: str) -> None:
        self.path = path
        self._dataset = dataset

    def __repr__(self) -> str:
        return f"<shardfs node {self.path!r} of {self._dataset.url}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """The document that a mount shows: that of a sharded array has its inner chunks as chunks.

        In the view v2 it is `.zarray` or `.zgroup`.
        """
        return self._dataset.loop.call(_document, self.path, (DOCUMENT, ".zarray", ".zgroup"))

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes that a mount shows."""
        if self._dataset._recipe.options.view == "v2":
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
        self._dataset.loop.call(_write, self.path, _index(coords), data)

    def shards(self) -> list[dict[str, Any]]:
        """Return what `shardfs map --json` tells of each stored shard of an array: its size, chunks and dead bytes."""
        return self._dataset.loop.call(_shards, self.path)


def _index(coords: Sequence[int]) -> Coords:
    return tuple(map(operator.index, coords))


async def _paths(paths: Paths) -> list[str]:
    return [node.path async for node in walk_nodes(paths.source) if node.metadata is not None]


async def _find(paths: Paths, path: str) -> Node:
    node = await paths.fs.hierarchy.node(path)
    if node.metadata is None:
        reason = f": {node.reason}" if node.reason else ""
        raise NotFoundError(f"{path or 'the source'} is not an array or group{reason}")
    return node


async def _document(paths: Paths, path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the first of these documents that is shown at *path*; an empty one if there is none."""
    await _find(paths, path)
    for name in names:
        with suppress(NotFoundError, NotADirectoryHereError):
            return dict(parse_json(bytes(await paths.read(join_key(path, name)))))
    return {}


async def _chunk(paths: Paths, path: str, coords: Coords) -> str:
    """Return the path of the chunk at *coords*."""
    node = await _find(paths, path)
    chunks = paths.fs.view.chunk_view(node)
    if chunks is None:
        reason = paths.fs.view.left_out(node) or node.reason or "it is not a sharded array"
        raise NotUnshardable(f"{path or 'the source'} has no inner chunks: {reason}")
    if not chunks.array.grid.contains(coords):
        raise IndexError(f"{coords} is not in the grid of {chunks.array.grid.grid_shape} inner chunks")
    return join_key(path, chunks.key_encoding.encode(coords))


async def _read(paths: Paths, path: str, coords: Coords) -> bytes | None:
    key = await _chunk(paths, path, coords)
    try:
        return bytes(await paths.read(key))
    except NotFoundError:
        return None


async def _write(paths: Paths, path: str, coords: Coords, data: Buffer | None) -> None:
    key = await _chunk(paths, path, coords)
    if data is not None:
        await paths.publish(key, data)
        return
    with suppress(NotFoundError):
        await paths.remove(key)


async def _shards(paths: Paths, path: str) -> list[dict[str, Any]]:
    array = (await _find(paths, path)).array
    if array is None:
        raise NotUnshardable(f"{path or 'the source'} has no shards")
    uses = [(coords, await measure(array, coords)) async for coords in walk_shards(array)]
    return [{"coords": list(coords), **asdict(use), "dead": use.dead} for coords, use in uses]
