"""Comparing two datasets chunk by chunk, however each is stored."""

import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from shardfs.bulk.delivery import Comparison, DifferentError, Job, MadeOf, copying, named
from shardfs.bulk.engine import Context, Outcome, Task, run_tasks
from shardfs.bulk.nodes import BulkNode, chunks_within, find_node, shards_touched, walk
from shardfs.dataset.array import Array
from shardfs.errors import MetadataError, NotFoundError, NotShownError, ShardfsError, counted
from shardfs.format.codecs import MAX_CHUNK_NBYTES
from shardfs.format.document import canonical
from shardfs.format.dtype import fill_element
from shardfs.format.lens.packed import Decoder, decoder_of
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v2 import shown_fill_value
from shardfs.format.lens.v2_attributes import has_missing_value, naming_no_axes
from shardfs.format.lens.v2_decoder import V2Decoder
from shardfs.format.metadata import ArrayMetadata, normal_codecs, normal_data_type
from shardfs.format.sharding import Coords, ShardGrid
from shardfs.stores.base import Buffer, Kind, join_key
from shardfs.stores.url import StoreOptions, url_of

_BATCH: Final = 64


@dataclass(frozen=True)
class CompareChunks:
    """Compares the chunks of the arrays at *path* within *shards* of the array with the larger shards."""

    job: Job
    path: str
    shards: tuple[Coords, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """The path of the arrays, and the first of the shards."""
        return join_key(self.path, "/".join(map(str, self.shards[0])))

    async def run(self, context: Context) -> Sequence[str]:
        """Return the differences, a line each."""

        async def find() -> _Pair | None:
            stores = self.job.reading(context), self.job.made(context)
            return _Pair.of(*[await find_node(store, self.path) for store in stores])

        pair = await context.last("pair", (self.job, self.path), find)
        if pair is None:
            return [f"{self.path or '(root)'}: was changed meanwhile"]
        return [line for shard in self.shards async for line in pair.compare(shard)]


@dataclass(frozen=True)
class CompareFiles:
    """Compares the files that both have under the same *keys*."""

    job: Job
    keys: tuple[str, ...]
    nbytes: int = 0

    @property
    def name(self) -> str:
        """The first of the keys."""
        return self.keys[0]

    async def run(self, context: Context) -> Sequence[str]:
        """Return the keys that differ, a line each."""
        stores = self.job.reading(context).store, self.job.made(context).store
        found: list[str] = []
        for key in self.keys:
            try:
                one, other = [await store.open(key) for store in stores]
                await copying(one.read, one.size)(Comparison(other))
            except DifferentError:
                found.append(f"{key}: differs")
            except NotFoundError:
                found.append(f"{key}: is missing in DEST")
            except ShardfsError as error:
                found.append(named(key, error))
        return found


@dataclass(frozen=True)
class _Form:
    """An array and the decoder of its chunks, None if there is none; *element* is the fill value.

    Equal bytes are equal values only if the *encoding* is the same too.
    """

    array: Array
    encoding: tuple[str, V2Decoder | None]
    decode: Decoder | None = None
    element: bytes = b""

    @classmethod
    def of(cls, node: BulkNode | None) -> "_Form | None":
        """Return the array of a node; None if it has none."""
        if node is None or node.array is None or not isinstance(node.metadata, ArrayMetadata):
            return None
        document = node.metadata.document
        encoding = canonical(normal_codecs(node.array.codecs, document["data_type"])), node.decoder
        try:
            element = fill_element(document["data_type"], document["fill_value"])
            decode = node.decoder or decoder_of(describe(node.metadata))
        except (NotShownError, MetadataError):
            return cls(node.array, encoding)
        return cls(node.array, encoding, decode, element)

    @property
    def nbytes(self) -> int:
        """The size of a decoded chunk in bytes."""
        return len(self.element) * math.prod(self.array.grid.chunk_shape)

    def values(self, chunk: Buffer | None) -> object:
        """Return a value that is equal for chunks of equal values; that of an undecodable chunk equals no other."""
        if self.decode is None:
            return object()
        return self.decode(chunk) if chunk is not None else self.element * math.prod(self.array.grid.chunk_shape)


@dataclass(frozen=True)
class _Pair:
    """An array of the source and the array made from it; *coarse* is the grid of the one with the larger shards.

    If it *has_all*, the one that was made must have all chunks, because a missing one would read as another value.
    """

    source: _Form
    made: _Form
    coarse: ShardGrid
    has_all: bool

    @classmethod
    def of(cls, source: BulkNode | None, made: BulkNode | None) -> "_Pair | None":
        """Return the arrays of two nodes as a pair; None if their chunks cannot be compared one by one."""
        forms = [_Form.of(node) for node in (source, made)]
        one, other = forms
        if one is None or other is None or one.array.grid.chunk_shape != other.array.grid.chunk_shape:
            return None
        has_all = one.element != other.element and _is_missing_value(source, made)
        return cls(one, other, (other if one.array.grid.is_unsharded else one).array.grid, has_all)

    async def shards(self, fail: Callable[[ShardfsError], None]) -> Sequence[Coords]:
        """Return the shards of the coarser grid in which either has anything.

        *fail* is called with what cannot be listed.
        """
        found = {shard async for shard in shards_touched(self.source.array, self.coarse, fail)}
        found |= {shard async for shard in shards_touched(self.made.array, self.coarse, fail)}
        nmissing = math.prod(dimension.nchunks for dimension in self.coarse.shards.dimensions) - len(found)
        if self.has_all and nmissing:
            fail(NotFoundError(f"all of {counted(nmissing, 'shard')} missing, which would read as another value"))
        return sorted(found)

    async def compare(self, shard: Coords) -> AsyncIterator[str]:
        """Yield the differences in the shard at *shard*, a line each."""
        path = self.source.array.layout.path
        problems: dict[str, None] = {}
        is_alike = self.source.encoding == self.made.encoding

        def damaged(error: ShardfsError, coords: Coords | None) -> None:
            problems[str(error)] = None

        chunks: dict[Coords, int] = {}
        for form in (self.source, self.made):
            nchunks = 0  # at last those that were made
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
                one, other = [await form.array.read_once(coords) for form in (self.source, self.made)]
                is_same = one == other and (is_alike or one is None)
                if not is_same and self.source.values(one) != self.made.values(other):
                    problems[f"{name} {'is missing' if other is None else 'differs'}"] = None
            except ShardfsError as error:
                problems[f"{name}: {error}"] = None
        for problem in problems:
            yield problem


def _differences(source: BulkNode, made: BulkNode | None) -> Iterator[str]:
    """Yield the differences between the documents of two nodes, a line each."""
    name = source.path or "(root)"
    if made is None:
        yield f"{name} is missing"
        return
    one, other = source.metadata.document, made.metadata.document
    members = ["node_type", "shape"] + ([] if source.is_v2 is not made.is_v2 else ["attributes", "dimension_names"])
    for member in members:
        if canonical(one.get(member) or None) != canonical(other.get(member) or None):
            yield f"{name}: other {member}"
    if isinstance(source.metadata, ArrayMetadata) and isinstance(made.metadata, ArrayMetadata):
        if canonical(normal_data_type(one["data_type"])) != canonical(normal_data_type(other["data_type"])):
            yield f"{name}: other data_type"
        elif _fill(source.metadata) != _fill(made.metadata) and not _is_missing_value(source, made):
            yield f"{name}: other fill_value"
        elif _Pair.of(source, made) is None and canonical(one) != canonical(other):
            yield f"{name}: its chunks cannot be compared one by one"


def _fill(array: ArrayMetadata) -> object:
    """Return the fill value of an array, as bytes if elements have a fixed size."""
    try:
        return fill_element(array.document["data_type"], array.document["fill_value"])
    except ShardfsError:
        return canonical(array.document["fill_value"])


def _is_missing_value(source: BulkNode | None, made: BulkNode | None) -> bool:
    """Whether the fill value of *made* is the missing value of *source*, as the v2 view shows it."""
    if source is None or made is None or source.metadata is None or made.metadata is None:
        return False
    one, other = naming_no_axes(source.metadata.document), made.metadata.document
    if source.is_v2 or not made.is_v2 or not has_missing_value(one):
        return False
    shown = shown_fill_value(one, shows_missing=True)
    return bool(shown == shown_fill_value(other, shows_missing=False))


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
    context, problems = Context(), list[str]()
    job = Job(url_of(source), url_of(destination), options)
    old, new = job.reading(context), job.made(context)
    for each in (old, new):
        await each.store.check()

    def add(path: str, error: ShardfsError) -> None:
        problems.append(named(path, error))

    async def tasks() -> AsyncIterator[Task[Sequence[str]]]:
        names: set[str] = set()
        async for path, entries, node in walk(old):
            fail = partial(add, path)
            if isinstance(node, ShardfsError):
                fail(node)
                continue
            files = [entry.name for entry in entries if entry.kind is not Kind.DIRECTORY]
            if node is not None:
                names.add(path)
                files = [name for name in files if name not in node.documents and not node.is_superseded(name)]
                try:
                    made = None
                    with suppress(NotFoundError):
                        made = await find_node(new, path)
                    problems.extend(_differences(node, made))
                    pair = _Pair.of(node, made)
                    shards = await pair.shards(fail) if pair is not None else ()
                except ShardfsError as error:
                    fail(error)
                    shards = ()
                for first in range(0, len(shards), _BATCH):
                    yield CompareChunks(job, path, tuple(shards[first : first + _BATCH]), 2**20 * _BATCH)
            for first in range(0, len(files), _BATCH):
                yield CompareFiles(job, tuple(join_key(path, name) for name in files[first : first + _BATCH]))
        async for path, _, node in walk(new):
            if node is not None and path not in names:
                problems.append(f"{path or '(root)'} is in DEST only")

    def done(outcome: Outcome[Sequence[str]]) -> None:
        problems.extend(outcome.result or ())
        if outcome.error is not None:
            problems.append(f"{outcome.task.name}: {outcome.error}")
        progress(1)

    await run_tasks(tasks(), done, context=context, executor=executor, jobs=jobs)
    return problems
