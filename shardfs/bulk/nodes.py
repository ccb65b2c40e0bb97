"""The nodes of a source for bulk work, in either Zarr version, and where their chunks go."""

import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from shardfs.bulk.delivery import Job, MadeOf, state_of
from shardfs.bulk.engine import WorkerContext
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.maintenance.walk import DescribedNodes
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import (
    CorruptionError,
    IsADirectoryHereError,
    MetadataError,
    NotADirectoryHereError,
    NotFoundError,
    NotShownError,
    NotUnshardable,
    ShardfsError,
    StaleError,
    StoreError,
    UnreachableError,
)
from shardfs.format.document import MAX_DOCUMENT_NBYTES, Document, parse_json
from shardfs.format.foreign import Foreign, ForeignCodec
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.index import IndexLayout
from shardfs.format.lens.packed import Packing, Transcoder, metadata_of_v2, usual_nbytes
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v2 import V2_NAMES, ZARRAY, ZGROUP, ZMETADATA, parse_consolidated
from shardfs.format.lens.v2_decoder import V2Decoder
from shardfs.format.metadata import ArrayMetadata, Metadata, fingerprint, parse_array
from shardfs.format.sharding import Coords, ShardGrid
from shardfs.stores.base import Kind, ListedName, is_reserved, join_key
from shardfs.stores.local.file_lock import is_lock


@dataclass(frozen=True, eq=False)
class BulkNode:
    """A node at *path*: its v3 *metadata*, from the stored *documents*, which had these *states* when they were read.

    *array* has its chunks; None for a group, or for an array whose chunks cannot be located. *decoder* decodes the
    chunks if libraries have no v3 form of their codecs; *metadata* then states other codecs. *foreign* is what it is in
    another format.
    """

    path: str
    metadata: Metadata
    documents: Mapping[str, bytes]
    states: Mapping[str, str]
    array: Array | None = None
    decoder: V2Decoder | ForeignCodec | None = None
    foreign: Foreign | None = None

    @property
    def own_documents(self) -> Collection[str]:
        """The names of documents by which programs of its own format read a copy of it without shards."""
        return self.foreign.documents if self.foreign is not None else ()

    @property
    def is_v2(self) -> bool:
        """Whether it is stored as Zarr v2, or in another format."""
        return DOCUMENT not in self.documents

    def is_superseded(self, name: str) -> bool:
        """Whether *name*, in the directory of the node, is a v2 document beside a v3 document that replaces it."""
        return not self.is_v2 and name in V2_NAMES

    def is_chunk(self, name: str) -> bool:
        """Whether *name*, in the directory of the node, is a chunk or leads to chunks."""
        return self.array is not None and self.array.layout.key_encoding.begins(name, self.array.grid.ndim)


async def find_node(source: Source, path: str, names: Collection[str] | None = None) -> BulkNode | None:
    """Return the node at *path*, None if there is none; *names* are those in its directory, if known.

    Raises `MetadataError` for an invalid document, `NotUnshardable` for a v2 one without a v3 form, the error that
    prevents reading a document, and `CorruptionError` if only a copy in a group says of which array the shards are.
    """
    found = await _find_v3(source, path)
    if found is None and (names is None or V2_NAMES & set(names)):
        found = await _find_v2(source, path, names or ())
    return found


async def _find_v3(source: Source, path: str) -> BulkNode | None:
    node = await source.hierarchy.node(path)
    if node.sharded_copy is not None:
        raise CorruptionError(str(node.reason))
    if node.foreign is not None:
        return _foreign(node, node.foreign)
    if node.metadata is None or node.document is None:
        if node.reason is None:
            return None
        raise (StoreError if node.document is None else MetadataError)(node.reason)
    metadata = (await source.hierarchy.copies.consolidated(node)).metadata
    assert metadata is not None
    states = {DOCUMENT: state_of(node.document_stat)}
    return BulkNode(path, metadata, {DOCUMENT: node.document}, states, node.any_array)


def _foreign(node: Node, foreign: Foreign) -> BulkNode:
    """Return a node of another format as one of Zarr; raises `NotUnshardable` with the reason why it is none."""
    metadata = foreign.as_zarr()
    states = {name: state_of(stat) for name, stat in node.describing.items()}
    documents = {name: foreign.documents.get(name, b"") for name in states}
    decoder: ForeignCodec | None = None
    if foreign.chunks is not None:
        try:
            codec = foreign.chunks.codec()
        except NotShownError as error:
            raise NotUnshardable(str(error)) from None
        decoder = codec if isinstance(codec, ForeignCodec) else None
    return BulkNode(node.path, metadata, documents, states, node.array, decoder, foreign)


async def _find_v2(source: Source, path: str, names: Collection[str]) -> BulkNode | None:
    texts: dict[str, bytes] = {}
    states: dict[str, str] = {}
    for name in sorted(V2_NAMES):
        with suppress(NotFoundError, NotADirectoryHereError, IsADirectoryHereError):
            snapshot = await source.store.open(join_key(path, name))
            if snapshot.size > MAX_DOCUMENT_NBYTES:
                raise MetadataError(f"{join_key(path, name)} has {snapshot.size} bytes")
            texts[name] = bytes(await snapshot.read(0, snapshot.size))
            states[name] = state_of(snapshot.stat)
    main = next((name for name in (ZARRAY, ZGROUP) if name in texts), None)
    if main is None:
        return None
    written = parse_json(texts[main])
    stated = written.get("dimension_separator") if isinstance(written, dict) else None
    separator = stated or "."
    metadata, decoder = metadata_of_v2(main, texts, "/" if separator == "/" else ".")
    if stated is None and isinstance(metadata, ArrayMetadata) and metadata.ndim > 1 and any(map(str.isdecimal, names)):
        raise MetadataError(
            f'{join_key(path, ZARRAY)} does not say that chunk keys have slashes: add "dimension_separator": "/" to it'
        )
    array = None
    if isinstance(metadata, ArrayMetadata):
        encoding = ChunkKeyEncoding("v2", separator)
        shown = replace(describe(metadata), key_encoding=encoding)
        layout = ArrayLayout(path, shown.grid, encoding)
        array = Array(layout, shown, source.shards, fingerprint(metadata))
    return BulkNode(path, metadata, texts, states, array, decoder)


async def walk(source: Source) -> AsyncIterator[tuple[str, list[ListedName], BulkNode | ShardfsError | None]]:
    """Yield each directory of *source*, parents first, with its names that are not chunks, and its node.

    If a directory below the source, or a document, cannot be read or has no v3 form, the error is yielded instead of
    the node; at the end, one for each node that only consolidated metadata describes. Raises `UnreachableError`, and
    the error that prevents reading the source itself.
    """
    pending = [""]
    described = DescribedNodes()
    while pending:
        path = pending.pop()
        entries: list[ListedName] = []
        found: BulkNode | ShardfsError | None = None
        try:
            entries = [entry for entry in await source.hierarchy.list(path) if not is_reserved(entry.name)]
            found = await find_node(source, path, [entry.name for entry in entries])
            described.describe(path, await _described_by(source, path, found))
        except ShardfsError as error:
            is_verdict = isinstance(error, MetadataError | NotUnshardable)
            if isinstance(error, UnreachableError) or not (path or is_verdict):
                raise
            found = error
        if isinstance(found, BulkNode):
            entries = [entry for entry in entries if not found.is_chunk(entry.name)]
            entries = [e for e in entries if not (isinstance(found.metadata, ArrayMetadata) and is_lock(e.name))]
        entries.sort(key=lambda entry: entry.name)
        described.list(path, entries)
        if found is not None:
            described.found(path)
        yield path, entries, found
        if not isinstance(found, ShardfsError):
            pending += [join_key(path, entry.name) for entry in reversed(entries) if entry.kind is Kind.DIRECTORY]
    for path, reason in described.missing():
        yield path, [], CorruptionError(reason)


async def _described_by(source: Source, path: str, found: BulkNode | None) -> Iterable[str]:
    """Return the nodes that the node at *path* describes, by paths relative to it."""
    if found is not None and ZMETADATA in found.documents:
        return [relative for relative in parse_consolidated(found.documents[ZMETADATA]) if relative]
    return (await source.hierarchy.node(path)).copies if found is not None and not found.is_v2 else ()


@dataclass(frozen=True, eq=False)
class Transfer:
    """How the chunks of *array* get into shards of *target*: by *transcoder*, or encoded as they are without one.

    *document* is that of the packed array. *fingerprint* stands for what both documents say about their chunks,
    *version* also for their shape. *was* and *becomes* name the codecs of chunks.
    """

    array: Array
    target: ArrayLayout
    document: Document
    fingerprint: bytes
    transcoder: Transcoder | None
    was: str
    becomes: str

    @property
    def version(self) -> tuple[bytes, tuple[int, ...]]:
        """Identifies which shards made earlier fit those made now, and the document."""
        return self.fingerprint, tuple(self.document["shape"])

    @classmethod
    async def find(
        cls, context: WorkerContext, job: Job, path: str, packing: Packing, version: tuple[bytes, tuple[int, ...]]
    ) -> "Transfer":
        """Return the transfer of the array at *path*; raises `StaleError` if it has another *version* now."""

        async def find() -> Transfer:
            node = await find_node(job.reading(context), path)
            transfer = cls.of(node, packing) if node is not None else None
            if transfer is None or transfer.version != version:
                raise StaleError(f"the array {path or 'at the root'} was changed meanwhile; go on with --sync")
            return transfer

        return await context.last((job, path, packing, version), find)

    @classmethod
    def of(cls, node: BulkNode, packing: Packing) -> "Transfer | None":
        """Return the transfer of *node*; None if its files are copied as they are.

        Raises `NotUnshardable` with the reason why it cannot be packed.
        """
        if not isinstance(node.metadata, ArrayMetadata):
            return None
        document = packing.get(node.metadata)
        if node.array is None or (document is node.metadata.document and not node.is_v2):
            return None
        packed = parse_array(document)
        target, source = describe(packed), describe(node.metadata)
        layout = ArrayLayout(node.path, target.grid, target.key_encoding)
        transcoder = Transcoder.of(source, target, node.decoder)
        was, becomes = (", ".join(codec.name for codec in array.codecs) for array in (source, target))
        was = str(node.decoder or was)
        both = fingerprint(packed) + fingerprint(node.metadata) + was.encode()
        return cls(node.array, layout, document, both, transcoder, was, becomes)

    def nbytes(self, shard: Coords) -> int:
        """Return the approximate size of the target shard at *shard*, without compression."""
        grid, item_nbytes = self.target.grid, usual_nbytes(self.document["data_type"])
        return grid.nchunks_of(shard) * math.prod(grid.chunk_shape) * item_nbytes

    def index(self, shard: Coords) -> IndexLayout:
        """Return the index layout of the target shard at *shard*."""
        level = self.target.grid.levels[0]
        return IndexLayout(level.index_codecs, self.target.grid.index_shape(shard), level.index_at_start)


async def chunks_within(
    array: Array,
    grid: ShardGrid,
    shard: Coords,
    skipped: Callable[[ShardfsError, Coords | None], None],
    made_of: MadeOf,
) -> AsyncIterator[tuple[Coords, int]]:
    """Yield the chunks of *array* in the shard of *grid* at *shard*, in C order, with their sizes.

    *skipped* is called for damaged ones; *made_of* collects the states of the files that contain the chunks.
    """
    if not grid.ndim:
        state, extent = await array.find(())
        made_of.add(state_of(state.stat))
        if extent is not None:
            yield (), extent.nbytes
        return
    *outer, row = [grid.covered(axis, index) for axis, index in enumerate(shard)]
    for prefix in product(*outer):
        async for run in array.list_row(prefix, row.start, row.stop):
            made_of.add(prefix, run.first, state_of(run.state.stat))
            if run.error is not None:
                skipped(run.error, None)
                continue
            for row_number, (number, nbytes) in enumerate(zip(run.numbers, run.sizes, strict=True)):
                if run.damaged is None or not run.damaged[row_number]:
                    yield (*prefix, number), nbytes
                    continue
                try:
                    await array.find((*prefix, number))  # which raises the error
                except ShardfsError as error:
                    skipped(error, (*prefix, number))
