"""Comparing two datasets chunk by chunk, however each is stored; what is no Zarr in either, file by file."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from shardfs.bulk.delivery import Comparison, DifferentError, Job, MadeOf, copying, named
from shardfs.bulk.engine import Task, WorkerContext, batched, in_batches, open_context, run_tasks
from shardfs.bulk.nodes import BulkNode, chunks_within, find_node, walk
from shardfs.bulk.shown import ShownFiles
from shardfs.bulk.unpack import Unpacking
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Hierarchy, Source
from shardfs.dataset.journal.recovery import find_unstored
from shardfs.dataset.maintenance.walk import among_shards, walk_nodes, walk_shards
from shardfs.dataset.node import groups_above
from shardfs.dataset.path_table import is_below
from shardfs.dataset.shard_listing import Strays
from shardfs.dataset.source import url_of
from shardfs.errors import (
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotShownError,
    NotUnshardable,
    ShardfsError,
    StaleError,
    counted,
)
from shardfs.format.codecs import MAX_CHUNK_NBYTES
from shardfs.format.document import Json, canonical
from shardfs.format.dtype import fill_element
from shardfs.format.foreign import ForeignCodec
from shardfs.format.lens.npy import ARRAY
from shardfs.format.lens.packed import Decoder, decoder_at, decoder_of
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v2 import V2_NAMES
from shardfs.format.lens.v2_attributes import (
    DIMENSIONS,
    FILL_VALUE,
    axis_names,
    has_missing_value,
    naming_no_axes,
    shown_fill_value,
    v2_attributes,
)
from shardfs.format.lens.v2_decoder import V2Decoder
from shardfs.format.metadata import ArrayMetadata, normal_codecs, normal_data_type
from shardfs.format.sharding import Coords, ShardGrid
from shardfs.stores.base import PART_NBYTES, Buffer, Kind, join_key
from shardfs.stores.url import StoreOptions
from shardfs.vfs.views import name_of_source

_USUAL_VIEW: Final = "v3"
_MAX_LOOKED_FOR: Final = 100  # arrays, to find out whether the destination has files of NumPy in their place
_BATCH: Final = 64
_SHARD_NBYTES: Final = 2**20  # guesses
_FILE_NBYTES: Final = 2**14


@dataclass(frozen=True)
class CompareChunks(Task[Coords, Sequence[str]]):
    """Compares the chunks of the arrays at *path* in some shards of the one with the larger shards.

    The results are lines about differences.
    """

    job: Job
    path: str

    async def begin(self, context: WorkerContext) -> Callable[[Coords], Awaitable[Sequence[str]]]:
        """Return a function that compares one of the shards."""

        async def find() -> _Pair | None:
            one, other = [await find_node(source, self.path) for source in self.job.both(context)]
            return _Pair.of(one, other) if one is not None and other is not None else None

        pair = await context.last((self.job, self.path), find)
        if pair is None:
            raise StaleError("it was changed meanwhile")
        return pair.compare

    def failed(self, item: Coords, error: ShardfsError) -> Sequence[str]:
        """Return the error."""
        return [named(join_key(self.path, f"shard {'/'.join(map(str, item))}"), error)]


@dataclass(frozen=True)
class CompareFiles(Task[str, Sequence[str]]):
    """Compares the files that both have under these keys."""

    job: Job

    async def begin(self, context: WorkerContext) -> Callable[[str], Awaitable[Sequence[str] | None]]:
        """Return a function that compares one of them."""
        stores = [source.store for source in self.job.both(context)]

        async def compare(key: str) -> Sequence[str] | None:
            try:
                one, other = [await store.open(key) for store in stores]
                await copying(one.read, one.size)(Comparison(other))
            except DifferentError:
                return [f"{key}: differs"]
            except NotFoundError:
                return [f"{key}: is missing in DEST"]
            return None

        return compare

    def failed(self, item: str, error: ShardfsError) -> Sequence[str]:
        """Return the error."""
        return [named(item, error)]


_Mounts = tuple[ShownFiles, ShownFiles]


async def _mounts(job: Job, context: WorkerContext, view: str) -> _Mounts:
    """Return what mounts show: of the source in this *view*, of the destination in the usual one."""

    async def make() -> _Mounts:
        views = (Unpacking(view=view), Unpacking())
        one, other = [
            ShownFiles(await shown.show(source.beside()))
            for shown, source in zip(views, job.both(context), strict=True)
        ]
        return one, other

    return await context.last((job, ShownFiles, view), make)


@dataclass(frozen=True)
class CompareShown(Task[str, Sequence[str]]):
    """Compares the files that mounts of both show under these keys, which are listed in the source, in its *view*.

    If they *are_of_destination*, they are listed there, and only those that the source does not have are named.
    """

    job: Job
    are_of_destination: bool
    view: str = _USUAL_VIEW

    async def begin(self, context: WorkerContext) -> Callable[[str], Awaitable[Sequence[str] | None]]:
        """Return a function that compares one of them."""
        one, other = await _mounts(self.job, context, self.view)

        async def is_in(files: ShownFiles, key: str) -> bool:
            with suppress(NotFoundError, NotADirectoryHereError):
                async with files.look(key):
                    return True
            return False

        async def compare(key: str) -> Sequence[str] | None:
            if self.are_of_destination:
                is_same = await is_in(one, key) or await _reads_as_missing(one, other, key)
                return None if is_same else [f"{key} is in DEST only"]
            if not await is_in(other, key):
                return None if await _reads_as_missing(one, one, key) else [f"{key}: is missing in DEST"]
            async with _opened(one, key) as (read, nbytes), _opened(other, key) as (read_other, other_nbytes):
                is_same = nbytes == other_nbytes
                for offset in range(0, nbytes if is_same else 0, PART_NBYTES):
                    size = min(PART_NBYTES, nbytes - offset)
                    is_same = is_same and await read(offset, size) == await read_other(offset, size)
            return None if is_same else [f"{key}: differs"]

        return compare

    def failed(self, item: str, error: ShardfsError) -> Sequence[str]:
        """Return the error; one of the source is named where its own files are compared."""
        return [] if self.are_of_destination else [named(item, error)]


async def _reads_as_missing(source: ShownFiles, files: ShownFiles, key: str) -> bool:
    """Whether the file *key* of *files* says what none says: it is a chunk of raw elements, all of them zeros.

    The *source* says what it is.
    """
    directory, _, name = key.rpartition("/")
    with suppress(NotFoundError, NotADirectoryHereError):
        foreign = (await source.tree.hierarchy.node(directory)).foreign
        if foreign is None or foreign.chunks is None or not foreign.chunks.reads_as_zeros(name):
            return False
        async with _opened(files, key) as (read, nbytes):
            for offset in range(0, nbytes, PART_NBYTES):
                if np.frombuffer(await read(offset, min(PART_NBYTES, nbytes - offset)), np.uint8).any():
                    return False
        return True
    return False


@asynccontextmanager
async def _opened(files: ShownFiles, key: str) -> AsyncIterator[tuple[Callable[[int, int], Awaitable[Buffer]], int]]:
    """Yield what reads a file in the block, and its size; a link is followed within its dataset."""
    async with files.look(key) as attributes:
        if attributes.status.kind is not Kind.FILE:
            await files.tree.check(key)
            snapshot = await files.tree.store.open(key)
            yield snapshot.read, snapshot.size
            return
        async with files.open(attributes.ino) as handle:
            yield handle.read, handle.attributes.size


@dataclass(frozen=True)
class _Form:
    """An array, and the decoder of its chunks if there is one.

    Equal bytes are equal values only if the *encoding* is the same too. *fill* is that of `_fill`.
    """

    array: Array
    encoding: tuple[str, V2Decoder | ForeignCodec | None]
    decode: Decoder | None
    fill: bytes | str

    @classmethod
    def of(cls, node: BulkNode) -> "_Form | None":
        """Return the array of a node; None if it has none."""
        if node.array is None or not isinstance(node.metadata, ArrayMetadata):
            return None
        encoding = canonical(normal_codecs(node.array.codecs, node.metadata.document["data_type"])), node.decoder
        decode: Decoder | None = None
        with suppress(NotShownError, MetadataError):
            decode = node.decoder or decoder_of(describe(node.metadata))
        return cls(node.array, encoding, decode, _fill(node.metadata))

    @property
    def nbytes(self) -> int:
        """The size of a decoded chunk in bytes; 0 if chunks are not decoded."""
        return len(self.fill) * math.prod(self.array.grid.chunk_shape) if self.decode is not None else 0

    def values(self, chunk: Buffer | None, coords: Coords) -> object:
        """Return a value that is equal for chunks of equal values; that of an undecodable chunk equals no other.

        The chunk is at *coords*.
        """
        if self.decode is None or isinstance(self.fill, str):
            return object()
        decode = decoder_at(self.decode, coords)
        return decode(chunk) if chunk is not None else self.fill * math.prod(self.array.grid.chunk_shape)


@dataclass(frozen=True)
class _Pair:
    """An array of the source and the array packed from it; *coarse* is the grid of the one with the larger shards.

    If it *has_all*, the one that was packed must have all chunks, because a missing one would read as another value.
    """

    source: _Form
    packed: _Form
    coarse: ShardGrid
    has_all: bool

    @classmethod
    def of(cls, source: BulkNode, packed: BulkNode) -> "_Pair | None":
        """Return the arrays of two nodes as a pair; None if their chunks cannot be compared one by one."""
        one, other = _Form.of(source), _Form.of(packed)
        if one is None or other is None or one.array.grid.chunk_shape != other.array.grid.chunk_shape:
            return None
        has_all = one.fill != other.fill and _is_missing_value(source, packed)
        coarse = (other if one.array.grid.is_unsharded or one.array.grid.is_scattered else one).array.grid
        return None if coarse.is_scattered else cls(one, other, coarse, has_all)

    async def shards(self, failed: Callable[[ShardfsError], None]) -> Sequence[Coords]:
        """Return the shards of the coarser grid in which either has anything.

        *failed* is called with what cannot be listed, or is among the shards of the source and is not compared.
        """

        def others(strays: Strays) -> None:
            for key in strays.nodes:
                failed(NotUnshardable(f"{key}: {among_shards(self.source.array.layout.path)}"))

        found = {shard async for shard in walk_shards(self.source.array, self.coarse, failed, others)}
        found |= {shard async for shard in walk_shards(self.packed.array, self.coarse, failed)}
        nmissing = self.coarse.shards.nchunks - len(found)
        if self.has_all and nmissing:
            failed(NotFoundError(f"all of {counted(nmissing, 'shard')} missing, which would read as another value"))
        return sorted(found)

    async def compare(self, shard: Coords) -> Sequence[str]:
        """Return the differences in the shard at *shard*, a line each."""
        path = self.source.array.layout.path
        problems: dict[str, None] = {}
        is_alike = self.source.encoding == self.packed.encoding

        def damaged(error: ShardfsError, coords: Coords | None) -> None:
            problems[str(error)] = None

        chunks: dict[Coords, int] = {}
        for form in (self.source, self.packed):
            nchunks = 0  # of the packed one, in the end
            async for at, nbytes in chunks_within(form.array, self.coarse, shard, damaged, MadeOf()):
                chunks[at] = max(nbytes, chunks.get(at, 0))
                nchunks += 1
        wanted = math.prod(len(self.coarse.covered(axis, index)) for axis, index in enumerate(shard))
        if self.has_all and nchunks < wanted:
            missing = f"{wanted - nchunks} of {counted(wanted, 'chunk')} missing, which would read as another value"
            problems[f"{join_key(path, '/'.join(map(str, shard)))}: {missing}"] = None
        for coords, nbytes in sorted(chunks.items()):
            name = join_key(path, f"chunk {'/'.join(map(str, coords))}")
            if max(nbytes, self.source.nbytes) > 2 * MAX_CHUNK_NBYTES:
                problems[f"{name}: {max(nbytes, self.source.nbytes):,} bytes are too many to be compared"] = None
                continue
            try:
                one, other = [await form.array.read_once(coords) for form in (self.source, self.packed)]
                is_same = one == other and (is_alike or one is None)
                if not is_same and self.source.values(one, coords) != self.packed.values(other, coords):
                    problems[f"{name} {'is missing' if other is None else 'differs'}"] = None
            except ShardfsError as error:
                problems[f"{name}: {error}"] = None
        return list(problems)


def _differences(source: BulkNode, packed: BulkNode) -> Iterator[str]:
    """Yield what differs between the documents of two nodes."""
    one, other = source.metadata, packed.metadata
    for member in ("node_type", "shape"):
        if canonical(one.document.get(member)) != canonical(other.document.get(member)):
            yield f"other {member}"
    for member, values in _descriptions(source, packed).items():
        if canonical(values[0] or None) != canonical(values[1] or None):
            yield f"other {member}"
    if isinstance(one, ArrayMetadata) and isinstance(other, ArrayMetadata):
        types = [canonical(normal_data_type(array.document["data_type"])) for array in (one, other)]
        if types[0] != types[1]:
            yield "other data_type"
        elif _fill(one) != _fill(other) and not _is_missing_value(source, packed):
            yield "other fill_value"
        elif _Pair.of(source, packed) is None and canonical(one.document) != canonical(other.document):
            yield "its chunks cannot be compared one by one"


def _descriptions(source: BulkNode, packed: BulkNode) -> Mapping[str, tuple[Json, Json]]:
    """Return attributes and names of axes of two nodes, in a form in which they are equal if they say the same.

    Zarr v2 has no names of axes: they are an attribute, if shown at all, and the fill value is the missing value then.
    What is stored in neither version is described as v3.
    """
    documents = [node.metadata.document for node in (source, packed)]
    are_v2 = [not V2_NAMES.isdisjoint(node.documents) for node in (source, packed)]
    if are_v2[0] is are_v2[1]:
        return {name: (documents[0].get(name), documents[1].get(name)) for name in ("attributes", "dimension_names")}
    one, other = [
        {name: value for name, value in v2_attributes(document).items() if name not in (DIMENSIONS, FILL_VALUE)}
        for document in documents
    ]
    names = [axis_names(document) if document["node_type"] == "array" else None for document in documents]
    described: dict[str, tuple[Json, Json]] = {"attributes": (one, other)}
    if all(names):
        described["dimension_names"] = names[0], names[1]
    return described


def _fill(array: ArrayMetadata) -> bytes | str:
    """Return the fill value of an array as bytes, or as JSON if the data type is unknown."""
    try:
        return fill_element(array.document["data_type"], array.document["fill_value"])
    except (NotShownError, MetadataError):
        return canonical(array.document["fill_value"])


def _is_missing_value(source: BulkNode, packed: BulkNode) -> bool:
    """Whether the fill value of *made* is the missing value of *source*, as the v2 view shows it."""
    one = naming_no_axes(source.metadata.document)
    if source.is_v2 or not packed.is_v2 or not has_missing_value(one):
        return False
    shown = shown_fill_value(packed.metadata.document, shows_missing=False)
    return bool(shown_fill_value(one, shows_missing=True) == shown)


async def compare(
    source: str,
    destination: str,
    options: StoreOptions,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Callable[[int], None] = lambda more: None,
) -> list[str]:
    """Return the differences between what was packed or unpacked and the result, a line each.

    Chunks are equal if their values are; equal bytes in the same codecs are equal values. A missing chunk has the fill
    value. *progress* is called with the number of finished tasks. Raises `SourceError` for what cannot be read.
    """
    async with open_context() as context:
        for url in map(url_of, (source, destination)):
            options = await context.checked(url, options)
        return await _compare(Job(url_of(source), url_of(destination), options), context, executor, jobs, progress)


async def _compare(
    job: Job, context: WorkerContext, executor: Executor | None, jobs: int | None, progress: Callable[[int], None]
) -> list[str]:
    problems: list[str] = []
    old, new = job.both(context)
    for name, source in (("SOURCE", old), ("DEST", new)):
        if (unstored := find_unstored(source.store)) is not None:
            problems.append(f"{name} has {unstored.what}, which are not compared: {unstored.way_out}")

    async def tasks() -> AsyncIterator[Task[Any, Sequence[str]]]:
        if await _is_of_files(old, new):
            async for task in _shown(job, context, "", problems, "npy"):
                yield task
            return
        names: set[str] = set()
        as_shown: set[str] = set()
        last: str | None = None
        async for path, entries, node in walk(old):
            if last is not None and is_below(path, last):
                continue
            if node is not None:
                names.add(path)
            if await _is_compared_as_shown(path, node, new):
                as_shown.add(path)
                last = path
                async for task in _shown(job, context, path, problems):
                    yield task
                continue
            if isinstance(node, ShardfsError):
                problems.append(named(path, node))
                continue
            files = [entry.name for entry in entries if entry.kind is not Kind.DIRECTORY]
            if node is not None:
                files = [name for name in files if name not in node.documents and not node.is_superseded(name)]
                for shards in in_batches(await _look(node, new, problems), _BATCH):
                    yield CompareChunks(tuple(shards), _SHARD_NBYTES * len(shards), job, path)
            for keys in in_batches([join_key(path, name) for name in files], _BATCH):
                yield CompareFiles(tuple(keys), 0, job)
        last = None
        async for path, _, node in walk(new):
            if path in as_shown:
                last = path
            if node is not None and path not in names and not (last is not None and is_below(path, last)):
                problems.append(f"{path or '(root)'} is in DEST only")

    def done(found: Sequence[Sequence[str]]) -> None:
        problems.extend(chain.from_iterable(found))
        progress(1)

    await run_tasks(tasks(), done, context=context, executor=executor, jobs=jobs)
    return problems


async def _is_compared_as_shown(path: str, node: BulkNode | ShardfsError | None, destination: Source) -> bool:
    """Whether all from *path* on is compared by the files that mounts show: it is no Zarr, here and there.

    So is a group of another format, unless a Zarr group was made of it, and what has no form in Zarr.
    """
    if not (isinstance(node, NotUnshardable) or (isinstance(node, BulkNode) and node.own_documents)):
        return False
    try:
        if (await destination.store.stat(path)).kind is not Kind.DIRECTORY:
            return False
        for name in node.own_documents if isinstance(node, BulkNode) else ():
            await destination.store.stat(join_key(path, name))
        other = await find_node(destination, path)
    except NotUnshardable:
        return True
    except ShardfsError:  # it is missing, or is reported when it is looked at
        return False
    return other is None or bool(other.own_documents)


async def _is_of_files(source: Source, destination: Source) -> bool:
    """Whether the destination has files of NumPy in place of arrays, as `unpack --view npy` makes them."""
    nasked = 0
    with suppress(ShardfsError):
        if await find_node(destination, "") is not None:
            return False
        async for node in walk_nodes(source):
            if not isinstance(node.metadata, ArrayMetadata):
                continue
            with suppress(NotFoundError, NotADirectoryHereError):
                name = (node.path or name_of_source(source.store.url)) + ARRAY
                if (await destination.store.stat(name)).kind is Kind.FILE:
                    return True
            nasked += 1
            if nasked == _MAX_LOOKED_FOR:
                break
    return False


async def _shown(
    job: Job, context: WorkerContext, path: str, problems: list[str], view: str = _USUAL_VIEW
) -> AsyncIterator[CompareShown]:
    """Yield the tasks that compare what mounts show from *path* on; add what cannot be listed to *problems*."""
    one, other = await _mounts(job, context, view)

    async def listed(files: ShownFiles) -> AsyncIterator[str]:
        async for key, size in files.below(path):
            if not isinstance(size, ShardfsError):
                yield key
            elif files is one or named(key, size) not in problems:
                problems.append(named(key, size))

    async def more() -> AsyncIterator[str]:
        """Yield what the destination has in the directories that the source describes."""
        directory, is_described = None, False
        async for key in listed(other):
            if key.rpartition("/")[0] != directory:
                directory = key.rpartition("/")[0]
                is_described = await _is_described(one.tree.hierarchy, directory)
            if is_described or (view == "npy" and key.endswith(ARRAY)):
                yield key

    for keys, is_of_destination in ((listed(one), False), (more(), True)):
        async for batch, nbytes in batched(keys, lambda key: _FILE_NBYTES, most=_BATCH, nbytes=_BATCH * _FILE_NBYTES):
            yield CompareShown(tuple(batch), nbytes, job, is_of_destination, view)


async def _is_described(hierarchy: Hierarchy, directory: str) -> bool:
    """Whether a document says that the files in *directory* are chunks or values, even if there are none."""
    for above, relative in ((directory, ""), *groups_above(directory)):
        with suppress(NotFoundError, NotADirectoryHereError):
            foreign = (await hierarchy.node(above)).foreign
            if foreign is not None and (relative in foreign.below or (not relative and foreign.names is not None)):
                return True
    return False


async def _look(source: BulkNode, destination: Source, problems: list[str]) -> Sequence[Coords]:
    """Add the differences between a node and that made of it to *problems*; return which shards are to be compared."""

    def failed(error: ShardfsError) -> None:
        problems.append(named(source.path, error))

    try:
        packed = None
        with suppress(NotFoundError):
            packed = await find_node(destination, source.path)
        name = source.path or "(root)"
        if packed is None:
            problems.append(f"{name} is missing")
            return ()
        problems += [f"{name}: {difference}" for difference in _differences(source, packed)]
        pair = _Pair.of(source, packed)
        return await pair.shards(failed) if pair is not None else ()
    except ShardfsError as error:
        failed(error)
        return ()
