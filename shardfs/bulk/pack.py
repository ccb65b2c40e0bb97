"""Packing: the chunks of a dataset, moved as encoded bytes into the shards of another one.

What becomes of each array is decided and announced before anything is written; then each task writes a few shards.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Final

import trio

from shardfs.bulk.delivery import (
    Delivered,
    Item,
    Job,
    MadeOf,
    NothingError,
    Storer,
    StoreTask,
    copy_file,
    deliver,
    named,
    skipped,
    state_in,
)
from shardfs.bulk.engine import WorkerContext, batched, each
from shardfs.bulk.manifest import Manifest
from shardfs.bulk.nodes import BulkNode, Transfer, chunks_within, find_node, walk
from shardfs.bulk.run import Plan
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import among_shards, walk_files, walk_shards
from shardfs.dataset.node import DOCUMENT, groups_above
from shardfs.dataset.shard_listing import Strays
from shardfs.errors import CorruptionError, MetadataError, NotUnshardable, ShardfsError, UsageError, first_of
from shardfs.format.codecs import MAX_CHUNK_NBYTES
from shardfs.format.document import encode_json, parse_json
from shardfs.format.dtype import DataType
from shardfs.format.grid import index_in_c_order
from shardfs.format.lens.packed import Packing, Transcoder
from shardfs.format.lens.v2 import ZMETADATA, parse_consolidated
from shardfs.format.lens.v3 import Consolidated, every_copy
from shardfs.format.metadata import GroupMetadata
from shardfs.format.sharding import Coords
from shardfs.format.update import plan_write
from shardfs.stores.base import PART_NBYTES, Buffer, Kind, NewObject, Stat, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.parallel import for_each

_BATCH_NBYTES: Final = 64 * 2**20
_BATCH: Final = 256
"""Small shards are written by one task: at most so many bytes, and so many shards."""

_TRANSCODING: Final = 16
"""The cost of transcoding, as a multiple of copying."""

_NOT_IN_SHARDS: Final = "zarr-python 3.1 reads such elements only in arrays without shards"
_MAX_FILES: Final = 16
_MAX_ERRORS: Final = 3

_CHUNKS_AT_ONCE: Final = 64
_MAX_GROUP: Final = 1024
"""How many chunks are requested at a time, and how many are read before they are stored."""


@dataclass(frozen=True)
class PackShards(StoreTask):
    """Writes some *shards* of the array at *path*, one for each item; *version* is that of the `Transfer`."""

    packing: Packing
    path: str
    version: tuple[bytes, tuple[int, ...]]
    shards: tuple[Coords, ...]

    async def begin(self, context: WorkerContext) -> Storer:
        """Return a function that writes one of them."""
        at_once = _CHUNKS_AT_ONCE if self.job.reading(context).store.rewrites else 1
        transfer = await Transfer.find(context, self.job, self.path, self.packing, self.version)
        shards = dict(zip(self.items, self.shards, strict=True))

        async def write(item: Item) -> Delivered:
            return await _Shard(transfer, shards[item], at_once).deliver(self.job, context, item)

        return write


@dataclass(frozen=True)
class CopyFiles(StoreTask):
    """Copies some files as they are."""

    async def begin(self, context: WorkerContext) -> Storer:
        """Return a function that copies one of them."""
        return partial(copy_file, self.job, self.job.reading(context).store, self.job.made(context).writable)


@dataclass(frozen=True)
class StoreTexts(StoreTask):
    """Stores a text for each item, with the fingerprint of the `Transfer` if it is the document of a packed array."""

    texts: tuple[tuple[bytes, bytes | None], ...]

    async def begin(self, context: WorkerContext) -> Storer:
        """Return a function that stores one of them."""
        texts = dict(zip(self.items, self.texts, strict=True))

        async def write(item: Item) -> Delivered:
            text, fingerprint = texts[item]
            made_of = MadeOf(fingerprint)
            made_of.add(text)

            async def produce(new: NewObject) -> Stat:
                await new.write([text])
                return await new.finish()

            return await deliver(self.job, self.job.made(context).writable, item, made_of, len(text), produce)

        return write


class _KeptError(Exception):
    """What is stored stays: an earlier run could read chunks of the shard that are damaged now."""


@dataclass(eq=False)
class _Shard:
    """One shard of the target that is being written; at most *at_once* chunks are requested at a time."""

    transfer: Transfer
    coords: Coords
    at_once: int
    problems: dict[str, None] = field(default_factory=dict)

    async def deliver(self, job: Job, context: WorkerContext, item: Item) -> Delivered:
        """Store the shard, without chunks that cannot be read, which are reported.

        If an earlier run stored all of it, with the same codecs, that version is kept instead.
        """
        store = job.made(context).writable
        made_of = MadeOf(self.coords, self.transfer.fingerprint)
        array, grid = self.transfer.array, self.transfer.target.grid
        chunks = [chunk async for chunk in chunks_within(array, grid, self.coords, self._skipped, made_of)]
        index = self.transfer.index(self.coords)
        start = [grid.covered(axis, i).start for axis, i in enumerate(self.coords)]

        async def produce(new: NewObject) -> Stat:
            sizes: Counter[int] = Counter()
            async for group in self._read(chunks):
                for coords, data in group:
                    within = [i - first for i, first in zip(coords, start, strict=True)]
                    sizes[index_in_c_order(within, index.chunks_per_shard)] += len(data)
                await new.write([data for _, data in group])
            if self.problems and made_of.has_form_of(item.made_of) and await state_in(store, item.key) == item.state:
                raise _KeptError
            if not sizes:
                raise NothingError
            encoded = plan_write(index, None, sizes, ()).index
            if index.at_start:
                return await new.finish(encoded)
            await new.write([encoded])
            return await new.finish()

        nbytes = sum(nbytes for _, nbytes in chunks) + index.nbytes
        head_nbytes = index.nbytes if index.at_start else 0
        try:
            done = await deliver(job, store, item, made_of, nbytes, produce, head_nbytes=head_nbytes)
        except _KeptError:
            self.problems[f"{item.key} of DEST stays as an earlier run stored it"] = None
            done = Delivered(item.key)
        if self.problems:  # it must be done again, whatever is stored
            return replace(done, made_of="", problems=tuple(self.problems))
        return done

    async def _read(self, chunks: Sequence[tuple[Coords, int]]) -> AsyncIterator[list[tuple[Coords, Buffer]]]:
        """Yield chunks in their target encoding, about `PART_NBYTES` at a time; large ones in pieces."""
        async for group, nbytes in batched(each(chunks), itemgetter(1), most=_MAX_GROUP, nbytes=PART_NBYTES):
            coords, _ = group[0]
            if nbytes <= PART_NBYTES or self.transfer.transcoder is not None:
                yield await self._fetch(group)
            elif (extent := (await self.transfer.array.find(coords))[1]) is not None:
                for offset in range(0, extent.nbytes, PART_NBYTES):
                    yield [(coords, await extent.read(offset, PART_NBYTES))]

    async def _fetch(self, group: Sequence[tuple[Coords, int]]) -> list[tuple[Coords, Buffer]]:
        """Return these chunks in their target encoding, without those that cannot be read, or are gone."""
        transcoder = self.transfer.transcoder
        found: dict[Coords, Buffer | None] = {}

        async def fetch(chunk: tuple[Coords, int]) -> None:
            coords, nbytes = chunk
            if transcoder is not None and nbytes > 2 * MAX_CHUNK_NBYTES:
                self._skipped(CorruptionError(f"{nbytes:,} bytes are too many to be decoded"), coords)
                return
            try:
                found[coords] = await self.transfer.array.read_once(coords)
            except CorruptionError as error:
                self._skipped(error, coords)

        # Remote chunks are requested together, so that adjacent ones take one request; local ones are read in order.
        await for_each(group, fetch, self.at_once)
        chunks = [(coords, data) for coords, _ in group if (data := found.get(coords)) is not None]
        return chunks if transcoder is None else await trio.to_thread.run_sync(self._transcoded, transcoder, chunks)

    def _transcoded(
        self, transcoder: Transcoder, chunks: Sequence[tuple[Coords, Buffer]]
    ) -> list[tuple[Coords, Buffer]]:
        found: list[tuple[Coords, Buffer]] = []
        for coords, data in chunks:
            try:
                found.append((coords, transcoder(data, coords)))
            except CorruptionError as error:
                self._skipped(error, coords)
        return found

    def _skipped(self, error: ShardfsError, coords: Coords | None = None) -> None:
        """Report a damaged chunk; raises the error if it may pass, because then the next run does the shard."""
        if not isinstance(error, CorruptionError):
            raise error
        layout = self.transfer.array.layout
        if coords is None:
            self.problems[f"skipped: {error}"] = None
            return
        key = layout.shard_key(layout.locate(coords).shard)
        chunk = "" if layout.grid.is_unsharded else f", chunk {'/'.join(map(str, coords))}"
        self.problems[f"skipped: {key}{chunk}: {error}"] = None


@dataclass(frozen=True)
class PlannedArray:
    """What becomes of the array at *path*; its text is shown to the user.

    Without *shards*, its chunks stay files. *shard_nbytes* is the size of a full shard without compression, approximate
    if elements vary in size. *transcoded* says why chunks are transcoded: "--codecs", "v2" for codecs that v3 does not
    have, or the name of another format whose chunks no codecs of Zarr decode. *was* and *becomes* are the codecs.
    """

    path: str
    chunks: int | None = None
    shards: int | None = None
    chunks_per_shard: tuple[int, ...] | None = None
    shard_nbytes: int | None = None
    varies: bool = False
    was: str | None = None
    becomes: str | None = None
    transcoded: str | None = None
    caveat: str | None = None

    @classmethod
    def of(cls, node: BulkNode, transfer: Transfer | None) -> "PlannedArray":
        """Return what becomes of *node*; without a *transfer*, its files are copied."""
        if transfer is None:
            return cls(node.path, node.array.grid.nchunks if node.array is not None else None)
        grid, element = transfer.target.grid, DataType.find(transfer.document["data_type"])
        origin, why = (0,) * grid.ndim, None
        if transfer.transcoder is not None:
            why = "--codecs" if node.decoder is None else node.foreign.format if node.foreign is not None else "v2"
        found = cls(node.path, grid.nchunks, was=transfer.was, becomes=transfer.becomes, transcoded=why)
        if grid.is_unsharded:
            return found
        return replace(
            found,
            shards=grid.shards.nchunks,
            chunks_per_shard=grid.index_shape(origin),
            shard_nbytes=transfer.nbytes(origin),
            varies=element is None or element.varies,
            caveat=_NOT_IN_SHARDS if element is not None and element.dtype.kind == "V" else None,
        )

    def __str__(self) -> str:
        if self.was is None:
            return "stays as it is stored"
        how = "copied encoded" if self.transcoded is None else f"transcoded from {self.was} to {self.becomes}"
        if self.shards is None:
            return f"chunks stay files, {self.chunks:,} of them, of unsharded Zarr v3, {how}"
        counts, plural = " × ".join(map(str, self.chunks_per_shard or ())), "" if self.shards == 1 else "s"
        return (
            f"{self.chunks:,} chunks in {self.shards:,} shard{plural} of {counts}, "
            f"{'about ' if self.varies else ''}{self.shard_nbytes:,} bytes without compression, {how}"
            f"{f'; {self.caveat}' if self.caveat is not None else ''}"
        )


@dataclass
class PackPlan(Plan):
    """What packing a source amounts to, found before anything is written.

    *arrays* are those whose chunks are packed, or converted from v2, with the versions of their `Transfer`; *trees*
    those that are copied as files; *planned* describes all of them. *files* are directories with other files.
    """

    packing: Packing
    arrays: dict[str, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    trees: list[str] = field(default_factory=list)
    files: list[tuple[str, list[str]]] = field(default_factory=list)
    _refused: list[str] = field(default_factory=list)  # arrays and groups without a packed form, and why
    _ranks: set[int] = field(default_factory=set)
    planned: list[PlannedArray] = field(default_factory=list)
    _copies: dict[str, list[str]] = field(default_factory=dict)
    _described: dict[str, set[str]] = field(default_factory=dict)  # the nodes that groups have copies of
    _texts: dict[str, bytes] = field(default_factory=dict)  # of documents, by key

    def __str__(self) -> str:
        return f"pack {self.packing}"

    async def look(self, job: Job, context: WorkerContext) -> AsyncIterator[str]:
        """Look at all nodes of the source, and yield what becomes of its arrays."""
        superseded: list[str] = []
        async for path, entries, node in walk(job.reading(context)):
            if isinstance(node, MetadataError | NotUnshardable):
                self._refused.append(named(path, node))
                self.report.problems.append(skipped(path, node))
            elif isinstance(node, ShardfsError):
                self.report.problems.append(skipped(path, node))
            else:
                files = [entry.name for entry in entries if entry.kind in (Kind.FILE, Kind.SYMLINK)]
                special = [join_key(path, entry.name) for entry in entries if entry.kind is Kind.SPECIAL]
                self.report.problems.extend(skipped(key, "it is not a regular file") for key in special)
                if node is not None:
                    self.sources |= {join_key(path, name): state for name, state in node.states.items()}
                    self._add(node)
                    files = [file for file in files if file not in node.documents]
                    superseded += [join_key(path, file) for file in files if node.is_superseded(file)]
                    files = [file for file in files if not node.is_superseded(file)]
                self.files.append((path, files))
        await self._leave_out_copies(job.reading(context))
        self._consolidate()
        self.documents += self._texts
        self.report.expect(len(self._texts) + sum(len(files) for _, files in self.files))
        if self._refused and not self._texts:
            more = f"; and {len(self._refused) - _MAX_ERRORS:,} more" if len(self._refused) > _MAX_ERRORS else ""
            listed = "; ".join(self._refused[:_MAX_ERRORS]) + more
            raise UsageError(f"nothing was written: {listed}; change what cannot be packed, or move it out of SOURCE")
        given = self.packing.chunks_per_shard
        if given is not None and len(given) > 1 and len(given) not in self._ranks:
            raise UsageError(f"--shards has {len(given)} numbers, and no array has as many axes")
        lines: dict[str, list[str]] = {}
        for planned in self.planned:
            lines.setdefault(str(planned), []).append(planned.path)
        for what, paths in lines.items():
            yield f"{first_of([path or '(root)' for path in paths], 2)}: {what}"
        if superseded:  # else v2 readers would take shards for chunks
            yield f"{first_of(superseded, 2)}: skipped, of Zarr v2 beside zarr.json"

    async def tasks(self, job: Job, context: WorkerContext, manifest: Manifest) -> AsyncIterator[StoreTask]:
        """Yield the tasks; keys are first recorded in *manifest*."""
        for path in self.arrays:
            try:
                async for task in self._pack(path, job, context, manifest):
                    yield task
            except ShardfsError as error:
                self.report.problems.append(skipped(path, error))
        files = self._files(job.reading(context))
        async for keys, _ in batched(files, lambda key: 1, most=_MAX_FILES, nbytes=_MAX_FILES):
            yield CopyFiles(manifest.items(keys), 0, job)

    def store_documents(self, job: Job, items: tuple[Item, ...]) -> StoreTask:
        """Return the task that stores these documents."""
        fingerprints = {join_key(path, DOCUMENT): fingerprint for path, (fingerprint, _) in self.arrays.items()}
        return StoreTexts(items, 0, job, tuple((self._texts[item.key], fingerprints.get(item.key)) for item in items))

    async def _pack(self, path: str, job: Job, context: WorkerContext, manifest: Manifest) -> AsyncIterator[PackShards]:
        """Yield the tasks of one array."""
        version = self.arrays[path]
        transfer = await Transfer.find(context, job, path, self.packing, version)
        (document,) = manifest.items([join_key(path, DOCUMENT)])
        if document.made_of and not MadeOf(transfer.fingerprint).has_form_of(document.made_of):
            # Until all shards are stored that it describes, nobody may take those of another document for them.
            await job.made(context).writable.discard(document.key)

        def fail(error: ShardfsError) -> None:
            self.report.problems.append(skipped(path, error))

        beside: Counter[str] = Counter()

        def others(strays: Strays) -> None:
            self.report.problems.extend(skipped(key, among_shards(path)) for key in strays.nodes)
            if strays.first is not None:
                beside[next(iter(beside), strays.first)] += strays.nothers

        touched = walk_shards(transfer.array, transfer.target.grid, fail, others)
        async for shards, nbytes in batched(touched, transfer.nbytes, most=_BATCH, nbytes=_BATCH_NBYTES):
            items = manifest.items(map(transfer.target.shard_key, shards))
            cost = nbytes if transfer.transcoder is None else nbytes * _TRANSCODING
            yield PackShards(items, cost, job, self.packing, path, version, tuple(shards))
        for key, count in beside.items():
            more = f" and {count - 1:,} more" if count > 1 else ""
            self.report.notes.append(f"skipped: {key}{more}: no chunk of the array")

    def _add(self, node: BulkNode) -> None:
        """Add a node."""
        key, text = join_key(node.path, DOCUMENT), node.documents.get(DOCUMENT)
        if isinstance(node.metadata, GroupMetadata):
            document = Consolidated(self.packing).get(node.metadata.document)
            self._described[node.path] = {join_key(node.path, below) for below, _ in every_copy(document)}
            is_same = text is not None and node.metadata.is_as_stored and document is node.metadata.document
            self._texts[key] = text if is_same and text is not None else encode_json(document)
            if ZMETADATA in node.documents:
                self._copies[node.path] = [path for path in parse_consolidated(node.documents[ZMETADATA]) if path]
            return
        self._ranks.add(node.metadata.ndim)
        try:
            transfer = Transfer.of(node, self.packing)
        except NotUnshardable as error:
            self._refused.append(named(node.path, error))
            self.report.problems.append(skipped(node.path, error))
            return
        if transfer is not None:
            self.arrays[node.path] = transfer.version
            self.report.expect(transfer.target.grid.shards.nchunks)
            self._texts[key] = encode_json(transfer.document)
        else:
            self.trees.append(node.path)
            self.report.expect(node.array.grid.shards.nchunks if node.array is not None else 0)
            self._texts[key] = text or b""
        self.planned.append(PlannedArray.of(node, transfer))

    async def _leave_out_copies(self, source: Source) -> None:
        """Let no group describe a node that is skipped: readers would take it for one without chunks."""
        packed = frozenset(key.rpartition("/")[0] for key in self._texts)
        groups = [path for path, copied in self._described.items() if not copied <= packed]
        source.hierarchy.copies.keep_only(packed)
        for path in groups:
            node = await find_node(source, path)
            if node is not None:
                self._add(node)

    def _consolidate(self) -> None:
        """Give groups that were consolidated as v2 the copies that v3 has in the group's document."""
        for group, paths in self._copies.items():
            keys = {path: join_key(join_key(group, path), DOCUMENT) for path in paths}
            packed = {path: key for path, key in keys.items() if key in self._texts}
            copies = {  # with a copy of a node whose parent has none, programs could not open the group
                path: parse_json(self._texts[key])
                for path, key in packed.items()
                if all(above in packed for above, _ in groups_above(path) if above)
            }
            key = join_key(group, DOCUMENT)
            consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
            document = {**parse_json(self._texts[key]), "consolidated_metadata": consolidated}
            self._texts[key] = encode_json(document)

    async def _files(self, source: Source) -> AsyncIterator[str]:
        """Yield the keys of all files that are copied as they are, without documents of nodes."""
        for path, names in self.files:
            for name in names:
                yield join_key(path, name)
        for path in self.trees:
            try:
                node = await find_node(source, path)
                for entry in await source.store.list(path):
                    if node is None or not node.is_chunk(entry.name):
                        continue
                    key = join_key(path, entry.name)
                    if entry.kind is not Kind.DIRECTORY:
                        yield key
                        continue
                    async for below in walk_files(source.store, key):
                        if not is_lock(below):
                            yield below
            except ShardfsError as error:
                self.report.problems.append(skipped(path, error))
