"""What packing a dataset comes to: decided, and said, before anything is written."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from shardfs.bulk.delivery import Job
from shardfs.bulk.engine import Context
from shardfs.bulk.manifest import Manifest
from shardfs.bulk.nodes import BulkNode, Transfer, find_node, shards_touched, walk
from shardfs.bulk.pack import CopyFiles, PackShards
from shardfs.bulk.run import Filling, Report, begin, fill
from shardfs.dataset.hierarchy import DOCUMENT
from shardfs.dataset.maintenance.walk import walk_files
from shardfs.dataset.source import Source
from shardfs.errors import NotUnshardable, StaleError, UsageError
from shardfs.format.document import encode_json, parse_json
from shardfs.format.lens.consolidated import Consolidated
from shardfs.format.lens.packed import Packing
from shardfs.format.lens.v2 import ZMETADATA, parse_consolidated
from shardfs.format.metadata import GroupMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, join_key
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.url import StoreOptions

_BATCH_NBYTES: Final = 64 * 2**20
_BATCH: Final = 256
"""Small shards go into one task up to so many bytes, and so many shards."""

_MAX_FILES: Final = 16


@dataclass
class Plan:
    """What packing a source comes to, as it was found before anything is written.

    *documents* are those of the target by key, parents first; *files* are directories with files that come along, and
    *trees* those of arrays that are copied as they are.  *lines* tell people, by the paths that they are about.
    *errors* keep all of it from being begun.
    """

    packing: Packing
    arrays: list[str] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    files: list[tuple[str, list[str]]] = field(default_factory=list)
    trees: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    problems: Sequence[str] = ()
    _copies: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    async def of(cls, source: Source, packing: Packing) -> "Plan":
        """Look at all nodes of *source*; raises what keeps it from being read, and `UsageError` for all `errors`."""
        plan = cls(packing)
        async for path, entries, node in walk(source):
            if isinstance(node, Exception):
                plan.errors.append(f"{path or 'the source'}: {node}")
                continue
            names = [entry.name for entry in entries if entry.kind in (Kind.FILE, Kind.SYMLINK)]
            if node is None:
                plan.files.append((path, names))
            else:
                plan._add(node, [name for name in names if name not in node.documents])
        plan._consolidate()
        given = packing.chunks_per_shard
        if given is not None and len(given) > 1 and len(given) not in plan.ranks:
            plan.errors.append(f"--shards has {len(given)} numbers, and no array has as many axes")
        if plan.errors:
            raise UsageError(f"nothing was written: {'; '.join(plan.errors)}")
        return plan

    def describe(self) -> Iterator[str]:
        """Yield what is to be done, in lines."""
        for what, paths in self.lines.items():
            others = f" and {len(paths) - 2:,} more" if len(paths) > 2 else ""
            yield f"{', '.join(path or '(root)' for path in paths[:2])}{others}: {what}"

    async def tasks(self, job: Job, source: Source, manifest: Manifest) -> AsyncIterator[PackShards | CopyFiles]:
        """Yield what is to be done; keys are noted in *manifest* before."""
        for path in self.arrays:
            node = await find_node(source, path)
            transfer = Transfer.of(node, self.packing) if node is not None else None
            if transfer is None:
                raise StaleError(f"the array {path or 'at the root'} was changed meanwhile")
            batch: list[Coords] = []
            async for shard in shards_touched(transfer.array, transfer.target.grid):
                nbytes = transfer.nbytes(shard)
                if batch and (len(batch) == _BATCH or len(batch) * nbytes >= _BATCH_NBYTES):
                    yield self._shards(job, transfer, batch, manifest)
                    batch = []
                batch.append(shard)
            if batch:
                yield self._shards(job, transfer, batch, manifest)
        keys: list[str] = []
        async for key in self._files(source):
            if len(keys) == _MAX_FILES:
                yield CopyFiles(job, manifest.items(keys), 0)
                keys = []
            keys.append(key)
        if keys:
            yield CopyFiles(job, manifest.items(keys), 0)

    def _shards(self, job: Job, transfer: Transfer, shards: Sequence[Coords], manifest: Manifest) -> PackShards:
        items = manifest.items([transfer.target.shard_key(shard) for shard in shards])
        nbytes = sum(map(transfer.nbytes, shards))
        return PackShards(job, self.packing, transfer.target.path, tuple(shards), items, nbytes)

    def _add(self, node: BulkNode, names: list[str]) -> None:
        """Take in a node; *names* are the files beside its documents."""
        self.files.append((node.path, names))
        key, text = join_key(node.path, DOCUMENT), node.documents.get(DOCUMENT)
        if isinstance(node.metadata, GroupMetadata):
            document = Consolidated(self.packing).get(node.metadata.document)
            is_same = text is not None and document is node.metadata.document
            self.documents[key] = text if is_same and text is not None else encode_json(document)
            if ZMETADATA in node.documents:
                self._copies[node.path] = [path for path in parse_consolidated(node.documents[ZMETADATA]) if path]
            return
        self.ranks.add(node.metadata.ndim)
        try:
            transfer = Transfer.of(node, self.packing)
        except NotUnshardable as error:
            self.errors.append(f"{node.path or 'the source'}: {error}")
            return
        if transfer is not None:
            self.arrays.append(node.path)
            self.documents[key] = encode_json(transfer.document)
        else:
            self.trees.append(node.path)
            self.documents[key] = text or b""
        self.lines.setdefault(_description(node, transfer), []).append(node.path)

    def _consolidate(self) -> None:
        """Give groups that were consolidated as v2 the copies that v3 has in the document of the group."""
        for group, paths in self._copies.items():
            keys = {path: join_key(join_key(group, path), DOCUMENT) for path in paths}
            copies = {path: parse_json(self.documents[key]) for path, key in keys.items() if key in self.documents}
            key = join_key(group, DOCUMENT)
            consolidated = {"kind": "inline", "must_understand": False, "metadata": copies}
            document = {**parse_json(self.documents[key]), "consolidated_metadata": consolidated}
            self.documents[key] = encode_json(document)

    async def _files(self, source: Source) -> AsyncIterator[str]:
        """Yield the keys of all files that are copied as they are, without documents of nodes."""
        for path, names in self.files:
            for name in names:
                yield join_key(path, name)
        for path in self.trees:
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


def _description(node: BulkNode, transfer: Transfer | None) -> str:
    """Say what becomes of an array."""
    if transfer is None:
        return "stays as it is stored"
    grid = transfer.target.grid
    if grid.is_unsharded:
        return f"chunks stay files, {grid.nchunks:,} of them, of unsharded Zarr v3, {transfer.how}"
    origin = (0,) * grid.ndim
    counts, nbytes = " × ".join(map(str, grid.index_shape(origin))), transfer.nbytes(origin)
    plural = "" if grid.shards.nchunks == 1 else "s"
    return (
        f"{grid.nchunks:,} chunks in {grid.shards.nchunks:,} shard{plural} of {counts}, "
        f"{nbytes:,} bytes without compression, {transfer.how}"
    )


async def pack(
    source: str,
    destination: str,
    packing: Packing,
    filling: Filling,
    options: StoreOptions,
    announce: Callable[[str], None],
    *,
    is_dry: bool = False,
) -> Report:
    """Pack *source* into *destination*; *announce* is told line by line what is done, before anything is written.

    Nothing is written if it *is_dry*.
    """
    context = Context()
    job = await begin(source, destination, options, filling, context)
    plan = await Plan.of(job.reading(context), packing)
    for line in plan.describe():
        announce(line)
    return Report() if is_dry else await fill(job, context, plan, f"pack {packing}", filling)
