"""`shardfs verify`: is every shard sound?"""

import sys
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import click
import trio

from shardfs.bulk.compare import compare
from shardfs.bulk.shards import look_at_shards
from shardfs.cli.options import command, json_option
from shardfs.cli.output import progress, show
from shardfs.cli.sources import executor, in_session, source_options, workers_options
from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.verify import ChunkDecoder, Problem, find_damage
from shardfs.dataset.maintenance.walk import some_arrays, walk_all_shards
from shardfs.dataset.node import Node
from shardfs.errors import ShardfsError, UsageError, counted, printable
from shardfs.format.document import brief
from shardfs.format.dtype import VLEN_SERIALIZERS, item_nbytes, type_name
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs verify data.zarr
    shardfs verify --data --json data.zarr > report.json
    shardfs verify chunks.zarr shards.zarr
    """
)
@source_options
@click.argument("destination", metavar="[DEST]", required=False)
@click.option("--data", is_flag=True, help="Also read and decode every inner chunk whose codecs are known.")
@json_option
@workers_options
def verify(
    source: str,
    store_options: StoreOptions,
    destination: str | None,
    data: bool,
    as_json: bool,
    jobs: int | None,
    dask: str | None,
) -> None:
    """Read every shard index of SOURCE and check every entry.

    Names each damaged document, shard and inner chunk. Exit status 1 if there is damage, or if --data meets an inner
    chunk of more than 512 MiB, which it does not decode. Arrays that are not checked, because they are not sharded or
    use something that shardfs does not know, are named with the reason.

    With DEST, compares the two instead, after `pack` or `unpack`: names each chunk, file and document in SOURCE that is
    not in DEST, or says something else there.
    """
    if destination is not None:
        _compare(source, destination, store_options, data or as_json, jobs, dask)
        return
    with executor(jobs, dask, store_options, source) as chosen:
        report = in_session(source, store_options, verify_source, store_options, data, jobs, chosen)
    show(report.as_dict(), report.lines(), as_json=as_json)
    if report.found:
        sys.exit(1)


def _compare(
    source: str, destination: str, options: StoreOptions, has_others: bool, jobs: int | None, dask: str | None
) -> None:
    if has_others:
        raise UsageError("--data and --json are for one dataset; two are compared by their data, and told in lines")
    workers = executor(jobs, dask, options, source, destination)
    with workers as chosen, progress("comparing", None, "task") as advance:
        work = partial(compare, source, destination, options, executor=chosen, jobs=jobs, progress=advance)
        problems = trio.run(work)
    for problem in problems:
        click.echo(printable(problem))
    click.echo(f"{counted(len(problems), 'difference')}" if problems else "no difference found")
    if problems:
        sys.exit(1)


@dataclass
class Report:
    """What `verify` found; *unchecked* are arrays that were not examined, with the reason.

    For chunks that are too large to be decoded, it is unknown whether they are sound.
    """

    arrays: int = 0
    shards: int = 0
    found: list[Problem] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for problem in self.found:
            values = asdict(problem)
            found[values.pop("too_large")].append(values)
        return {
            "sound": not self.found,
            "arrays": self.arrays,
            "shards": self.shards,
            "problems": found[False],
            "too_large": found[True],
            "unchecked": self.unchecked,
        }

    def lines(self) -> list[str]:
        """Return the report as text."""
        lines = [f"not checked: {item['array'] or '(root)'}: {item['reason']}" for item in self.unchecked]
        large = [f"too large to check: {problem}" for problem in self.found if problem.too_large]
        damaged = [f"damaged: {problem}" for problem in self.found if not problem.too_large]
        verdict = counted(len(damaged), "problem") if damaged else "no damage found"
        if large:
            verdict += f", {counted(len(large), 'chunk')} too large to check"
        if self.unchecked:
            verdict += f"; {counted(len(self.unchecked), 'array')} not checked"
        return [
            *lines,
            *large,
            *damaged,
            f"{counted(self.arrays, 'array')}, {counted(self.shards, 'shard')}: {verdict}",
        ]


async def verify_source(
    source: Source, options: StoreOptions, data: bool, jobs: int | None = None, executor: Executor | None = None
) -> Report:
    """Check every shard of *source*, which was opened with *options*; with *data*, decode the inner chunks too."""
    report = Report()

    async def nodes() -> AsyncIterator[Node]:
        async for node in some_arrays(source):
            if node.array is not None:
                report.arrays += 1
                if data:
                    _note_unchecked(node.array, report)
                yield node
            elif node.metadata is None:
                report.found.append(Problem(None, None, str(node.reason), node.path or "(root)"))
            elif isinstance(node.metadata, ArrayMetadata):
                reason = node.reason or fault_of(node.metadata) or "it is not sharded: each chunk is a file of its own"
                report.unchecked.append({"array": node.path, "reason": reason})

    def failed(path: str, error: ShardfsError) -> None:  # what was listed is checked anyway
        report.found.append(Problem(path or "(root)", None, str(error)))

    async def shards() -> AsyncIterator[tuple[Array, Coords]]:
        async for shard in walk_all_shards(nodes(), "verifying", progress, failed):
            report.shards += 1
            yield shard

    found = await look_at_shards(
        source,
        options,
        shards(),
        partial(find_damage, data=data),
        reads_chunks=data,
        executor=executor,
        jobs=jobs,
    )
    for each in found:
        report.found += each.result or [Problem(each.key, None, str(each.error))]
    return report


def _note_unchecked(array: Array, report: Report) -> None:
    """Record what is unknown about an array whose chunks are decoded."""
    decoder = ChunkDecoder.of(array)
    reason = None if decoder is not None else "its chunks have unknown codecs; only the index was checked"
    data_type = array.document["data_type"]
    if decoder is not None and type_name(data_type) not in VLEN_SERIALIZERS and item_nbytes(data_type) is None:
        reason = f"its data type {brief(type_name(data_type))} is unknown; sizes of decoded chunks were not checked"
    if reason is not None:
        report.unchecked.append({"array": array.layout.path, "reason": reason})
