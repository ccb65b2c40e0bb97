"""Whether every shard of a source is sound."""

from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from shardfs.bulk.engine import batched
from shardfs.bulk.shards import look_at_shards
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.verify import ChunkDecoder, Problem, find_damage
from shardfs.dataset.maintenance.walk import (
    Progress,
    among_shards,
    array_nodes,
    no_progress,
    some_arrays,
    walk_all_shards,
)
from shardfs.dataset.node import Node, StoredArray
from shardfs.dataset.shard_listing import Strays
from shardfs.errors import NotUnshardable, ShardfsError, SourceError, UnsupportedError, counted, first_of
from shardfs.format.document import brief
from shardfs.format.dtype import VLEN_SERIALIZERS, item_nbytes, type_name
from shardfs.format.lens.unsharded import describe, fault_of
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.formats import VirtualStore
from shardfs.stores.base import in_pieces
from shardfs.stores.parallel import for_each

NO_CHECKSUM: Final = (
    "damage to their chunks is found where they cannot be decoded, and may come out as other values elsewhere, here as "
    "natively"
)
_MAX_NAMED: Final = 3
_PARTS: Final = 4096
_PARTS_AT_ONCE: Final = 64
"""How many files of a virtual store are taken, and looked at, at a time."""


@dataclass
class VerifyReport:
    """What `verify` found; *unchecked* are arrays that were not examined, with the reason.

    The chunks of *chunk_files* arrays, which are stored unsharded, were decoded. Those of arrays *without_checksum* may
    have other bytes than were written, and still decode to something.

    For chunks that are too large to be decoded, it is unknown whether they are sound. *parts* are files that are parts
    of others, such as references, and *part* is what one is called; "" in a source that has none.
    """

    arrays: int = 0
    shards: int = 0
    chunk_files: int = 0
    without_checksum: list[str] = field(default_factory=list)
    part: str = ""
    parts: int = 0
    found: list[Problem] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for problem in self.found:
            values = asdict(problem)
            found[values.pop("too_large")].append(values)
        return {
            "sound": not self.found,
            "arrays": self.arrays,
            "shards": self.shards,
            "chunk_files": self.chunk_files,
            **({f"{self.part}s": self.parts} if self.part else {}),
            "problems": found[False],
            "too_large": found[True],
            "unchecked": self.unchecked,
            "without_checksum": self.without_checksum,
        }

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"not checked: {item['array'] or '(root)'}: {item['reason']}" for item in self.unchecked]
        large = [f"too large to check: {problem}" for problem in self.found if problem.too_large]
        damaged = [f"damaged: {problem}" for problem in self.found if not problem.too_large]
        if self.without_checksum:
            named = [path or "(root)" for path in self.without_checksum]
            lines.append(f"no checksum: {first_of(named, _MAX_NAMED)}: {NO_CHECKSUM}")
        verdict = counted(len(damaged), "problem") if damaged else "no damage found"
        if large:
            verdict += f", {counted(len(large), 'chunk')} too large to check"
        if self.unchecked:
            verdict += f"; {counted(len(self.unchecked), 'array')} not checked"
        looked_at = f"{counted(self.arrays, 'array')}, {counted(self.shards, 'shard')}"
        looked_at += f", {counted(self.chunk_files, 'chunk file')}" if self.chunk_files else ""
        if self.part:
            looked_at = counted(self.parts, self.part) + (f", {looked_at}" if self.arrays else "")
        return [*lines, *large, *damaged, f"{looked_at}: {verdict}"]


async def verify_source(
    source: Source,
    *,
    data: bool = False,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Check every shard of *source*; with *data*, decode all chunks too.

    If files are parts of others, each is checked: whether the other file is there, and has the range; with *data*,
    whether it can be read. *executor* and *jobs* are those of `run_tasks`. Raises `SourceError` if there are no arrays,
    or if the source is one that cannot be read.
    """
    report = VerifyReport()
    is_virtual = isinstance(source.store, VirtualStore)
    if isinstance(source.store, VirtualStore):
        await _check_parts(source.store, report, progress, data=data)
        async for key, reason in source.store.skipped():
            report.unchecked.append({"array": key, "reason": f"it is not shown: {reason}"})

    async def nodes() -> AsyncIterator[Node]:
        async for node in array_nodes(source) if is_virtual else some_arrays(source):
            array = node.shards
            if data and isinstance(node.kind, StoredArray) and array is None and fault_of(node.kind.metadata) is None:
                array = node.kind.array
            if array is not None:
                report.arrays += 1
                if data and not node.is_read_only:
                    _note_unchecked(array, report)
                if node.checksum is None and isinstance(node.metadata, ArrayMetadata):
                    report.without_checksum.append(node.path)
                yield node
            elif _is_not_read(node):
                report.unchecked.append({"array": node.path, "reason": str(node.reason)})
            elif node.metadata is None or (node.foreign is not None and node.foreign.is_damaged):
                report.found.append(Problem(None, None, str(node.reason), node.path or "(root)"))
            elif isinstance(node.metadata, ArrayMetadata):
                reason = node.reason or fault_of(node.metadata)
                if reason is None and is_virtual:
                    continue
                reason = reason or _why_not_checked(node.metadata, data=data)
                report.unchecked.append({"array": node.path, "reason": reason})

    def failed(path: str, error: ShardfsError) -> None:  # what was listed is checked anyway
        if isinstance(error, UnsupportedError):  # by a source that cannot be listed
            raise error
        report.found.append(Problem(path or "(root)", None, str(error)))

    def others(path: str, strays: Strays) -> None:
        report.unchecked += [{"array": key, "reason": among_shards(path)} for key in strays.nodes]

    async def shards() -> AsyncIterator[tuple[Array, Coords]]:
        async for shard in walk_all_shards(nodes(), "verifying", progress, failed, others, chunks=data):
            is_file = shard[0].grid.is_unsharded
            report.chunk_files += is_file
            report.shards += not is_file
            yield shard

    looked_at = await look_at_shards(
        source,
        shards(),
        partial(find_damage, data=data),
        reads_chunks=data,
        executor=executor,
        jobs=jobs,
    )
    for shard in looked_at:
        report.found += shard.result or [Problem(shard.key, None, str(shard.error))]
    top = await source.hierarchy.node("")
    if top.is_read_only and top.reason is not None and len(report.unchecked) == 1 and not report.found:
        raise SourceError(f"{source.store.url} cannot be read: {top.reason}")
    return report


def _is_not_read(node: Node) -> bool:
    """Whether a node without a form in Zarr is just not supported, or is a link to a node that is read elsewhere."""
    if node.foreign is not None:
        return node.metadata is None and not node.foreign.is_damaged
    return node.is_link and not node.is_only_described


def _why_not_checked(array: ArrayMetadata, *, data: bool) -> str:
    """Say why nothing of an unsharded array was checked."""
    if not data:
        return "it is not sharded: each chunk is a file of its own, which --data decodes"
    try:
        describe(array)
    except NotUnshardable as error:
        return str(error)
    return "its chunks are not those of an array of Zarr"


async def _check_parts(store: VirtualStore, report: VerifyReport, progress: Progress, *, data: bool) -> None:
    """Open each file, and with *data* read it."""
    report.part = store.part

    async def look(key: str) -> None:
        try:
            snapshot = await store.open(key)
            for offset, nbytes in in_pieces(snapshot.size) if data else ():
                await snapshot.read(offset, nbytes, (0, snapshot.size))
        except ShardfsError as error:
            report.found.append(Problem(key, None, str(error).removeprefix(f"{key}: ").removeprefix(f"{key} ")))

    with progress(f"looking at {store.part}s", None, store.part) as advance:
        async for keys, _ in batched(store.walk(), lambda _: 0, most=_PARTS, nbytes=1):
            await for_each(keys, look, _PARTS_AT_ONCE)
            report.parts += len(keys)
            advance(len(keys))


def _unknown_codecs(array: Array) -> str:
    what = "their files were not looked at" if array.grid.is_unsharded else "only the index was checked"
    return f"its chunks have unknown codecs; {what}"


def _note_unchecked(array: Array, report: VerifyReport) -> None:
    """Record what is unknown about an array whose chunks are decoded."""
    decoder = ChunkDecoder.of(array)
    reason = None if decoder is not None else _unknown_codecs(array)
    data_type = array.document["data_type"]
    if decoder is not None and type_name(data_type) not in VLEN_SERIALIZERS and item_nbytes(data_type) is None:
        reason = f"its data type {brief(type_name(data_type))} is unknown; sizes of decoded chunks were not checked"
    if reason is not None:
        report.unchecked.append({"array": array.layout.path, "reason": reason})
