"""`shardfs verify`: is every shard sound?"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import trio

from shardfs.cli.options import command, json_option, open_source, source_options
from shardfs.cli.output import counted, progress
from shardfs.dataset.array import Array
from shardfs.dataset.maintenance.verify import ChunkDecoder, Problem, check
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import ShardfsError, printable
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
    """
)
@source_options
@click.option("--data", is_flag=True, help="Also read and decode every inner chunk whose codecs are known.")
@json_option
def verify(source: str, store_options: StoreOptions, data: bool, as_json: bool) -> None:
    """Read every shard index of SOURCE and check every entry.

    Names each damaged document, shard and inner chunk. Exit status 1 if there is damage, or if --data meets an inner
    chunk of more than 512 MiB, which it does not decode. Arrays that are not checked, because they are not sharded or
    use something that shardfs does not know, are named with the reason.
    """
    opened = open_source(source, store_options)
    report = trio.run(verify_source, opened, data)
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if not report.is_sound:
        sys.exit(1)


@dataclass
class Report:
    """What `verify` found.

    *unchecked* are arrays that were not looked into, with the reason; *too_large* are chunks that were to be decoded
    and were not: nobody knows whether they are sound.
    """

    arrays: int = 0
    shards: int = 0
    problems: list[dict[str, str | None]] = field(default_factory=list)
    too_large: list[dict[str, str | None]] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether all was checked that was to be, and nothing is damaged."""
        return not self.problems and not self.too_large

    def add(self, problem: Problem) -> None:
        """Take in what was found in a shard."""
        item = {"shard": problem.shard, "chunk": problem.chunk, "message": problem.message}
        if problem.too_large:
            self.too_large.append(item)
        else:
            self.problems.append({**item, "document": None})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"sound": self.is_sound, **asdict(self)}

    def render(self) -> str:
        """Return the text for people."""
        lines = [f"not checked: {item['array'] or '(root)'}: {item['reason']}" for item in self.unchecked]
        lines += [f"too large to check: {_render_problem(problem)}" for problem in self.too_large]
        lines += [f"damaged: {_render_problem(problem)}" for problem in self.problems]
        verdict = counted(len(self.problems), "problem") if self.problems else "no damage found"
        if self.too_large:
            verdict += f", {counted(len(self.too_large), 'chunk')} too large to check"
        if self.unchecked:
            verdict += f"; {counted(len(self.unchecked), 'array')} not checked"
        lines.append(f"{counted(self.arrays, 'array')}, {counted(self.shards, 'shard')}: {verdict}")
        return "\n".join(map(printable, lines)) + "\n"


def _render_problem(problem: dict[str, str | None]) -> str:
    chunk = f", chunk {problem['chunk']}" if problem["chunk"] else ""
    return f"{problem['shard'] or problem['document']}{chunk}: {problem['message']}"


async def verify_source(source: Source, data: bool) -> Report:
    """Check every shard of *source*; *data* decodes the inner chunks too."""
    report = Report()
    stored: list[tuple[Array, list[Coords]]] = []
    with progress("listing shards", None, "shard") as advance:
        async for node in walk_nodes(source):
            if node.array is not None:
                report.arrays += 1
                stored.append((node.array, await _list_shards(node.array, report, advance)))
            elif node.metadata is None:
                report.problems.append(
                    {"shard": None, "document": node.path or "(root)", "chunk": None, "message": node.reason}
                )
            elif isinstance(node.metadata, ArrayMetadata):
                reason = node.reason or fault_of(node.metadata) or "it is not sharded: each chunk is a file of its own"
                report.unchecked.append({"array": node.path, "reason": reason})
    with progress("verifying", sum(len(shards) for _, shards in stored), "shard") as advance:
        for array, shards in stored:
            decoder = _decoder(array, report) if data else None
            for coords in shards:
                async for problem in check(array, coords, decoder):
                    report.add(problem)
                report.shards += 1
                advance(1)
    return report


async def _list_shards(array: Array, report: Report, advance: Callable[[int], None]) -> list[Coords]:
    shards: list[Coords] = []
    try:
        async for coords in walk_shards(array):
            shards.append(coords)
            advance(1)
    except ShardfsError as error:  # a directory of shards; what was found is checked all the same
        report.add(Problem(array.layout.path or "(root)", None, str(error)))
    return shards


def _decoder(array: Array, report: Report) -> ChunkDecoder | None:
    decoder = ChunkDecoder.of(array)
    reason = None if decoder is not None else "its chunks have codecs that are not known; the index was checked"
    data_type = array.document["data_type"]
    if decoder is not None and type_name(data_type) not in VLEN_SERIALIZERS and item_nbytes(data_type) is None:
        reason = f"its data type {brief(type_name(data_type))} is not known; sizes of decoded chunks were not checked"
    if reason is not None:
        report.unchecked.append({"array": array.layout.path, "reason": reason})
    return decoder
