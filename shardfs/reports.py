"""What the commands print: descriptions of arrays, reports of damage, references, counts."""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import click

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Node
from shardfs.dataset.inspection import ChunkDecoder, Problem, ShardUse, check, measure
from shardfs.dataset.source import Source
from shardfs.dataset.walk import walk_nodes, walk_shards
from shardfs.errors import ShardfsError, printable
from shardfs.format.codecs import SHARDING
from shardfs.format.metadata import ArrayMetadata
from shardfs.format.sharding import Coords
from shardfs.vfs.references import references
from shardfs.vfs.views import UnshardedV3

Described = dict[str, Any]


async def describe(source: Source, shards: bool) -> list[Described]:
    """Describe every array of *source*, and every node whose document is broken; with *shards*, each shard too."""
    described = []
    async for node in walk_nodes(source):
        if isinstance(node.metadata, ArrayMetadata) or node.reason is not None:
            item = _describe_node(node)
            if shards and node.array is not None:
                item["shards"] = [{**asdict(use), "dead": use.dead} async for use in _measure(node.array)]
            described.append(item)
    return described


def render_info(described: list[Described]) -> str:
    """Return the text for people."""
    if not described:
        return "There are no arrays here.\n"
    return "\n".join(_render_array(item) for item in described)


@dataclass
class Report:
    """What `verify` found.  *unchecked* are arrays that were not looked into, with the reason."""

    arrays: int = 0
    shards: int = 0
    problems: list[dict[str, str | None]] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"sound": not self.problems, **asdict(self)}

    def render(self) -> str:
        """Return the text for people."""
        lines = [f"not checked: {item['array'] or '(root)'}: {item['reason']}" for item in self.unchecked]
        lines += [
            f"damaged: {problem['shard'] or problem['document']}"
            + (f", chunk {problem['chunk']}" if problem.get("chunk") else "")
            + f": {problem['message']}"
            for problem in self.problems
        ]
        verdict = f"{len(self.problems)} problems" if self.problems else "no damage found"
        lines.append(f"{self.arrays} arrays, {self.shards} shards: {verdict}")
        return "\n".join(map(printable, lines)) + "\n"


async def verify(source: Source, data: bool, progress: TextIO) -> Report:
    """Check every shard of *source*; *data* decodes the inner chunks too.  *progress* shows a bar on a terminal."""
    report = Report()
    async for node in walk_nodes(source):
        if node.array is not None:
            report.arrays += 1
            await _verify_array(node.array, data, progress, report)
        elif node.metadata is None:
            report.problems.append(
                {"shard": None, "document": node.path or "(root)", "chunk": None, "message": node.reason}
            )
        elif node.reason is not None:
            report.unchecked.append({"array": node.path, "reason": node.reason})
    return report


async def write_references(source: Source, file: TextIO, skip_encoded: bool) -> None:
    """Write kerchunk references as JSON, one line each."""
    file.write('{"version": 1, "refs": {')
    separator = "\n"
    async for key, reference in references(source, UnshardedV3(), skip_encoded=skip_encoded):
        file.write(f"{separator}{json.dumps(key)}: {json.dumps(reference)}")
        separator = ",\n"
    file.write("\n}}\n")


def render_statistics(counts: dict[str, Any], indent: str = "") -> str:
    """Return the counts of a mount as text for people."""
    lines = []
    for name, value in counts.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            lines.append(f"{label}:" + ("" if value else " none"))
            lines += [render_statistics(value, indent + "  ")] if value else []
        else:
            lines.append(f"{label:<28}{value:>14,}")
    return "\n".join(lines)


async def _measure(array: Array) -> AsyncIterator[ShardUse]:
    """Measure every shard; a directory of shards that cannot be read takes the place of those in it."""
    try:
        async for coords in walk_shards(array):
            yield await measure(array, coords)
    except ShardfsError as error:
        yield ShardUse(array.arrangement.path or "(root)", 0, 0, None, str(error))


async def _verify_array(array: Array, data: bool, progress: TextIO, report: Report) -> None:
    path = array.arrangement.path
    decoder = ChunkDecoder.of(array) if data else None
    if data and decoder is None:
        report.unchecked.append(
            {"array": path, "reason": "its chunks have codecs that are not known; the index was checked"}
        )
    shards: list[Coords] = []
    try:
        async for coords in walk_shards(array):
            shards.append(coords)
    except ShardfsError as error:  # a directory of shards; what was found is checked all the same
        problem = Problem(path or "(root)", None, str(error))
        report.problems.append({**asdict(problem), "document": None})
    with bar(len(shards), printable(path) or "(root)", progress) as advance:
        for coords in shards:
            async for problem in check(array, coords, decoder):
                report.problems.append({**asdict(problem), "document": None})
            report.shards += 1
            advance()


@contextmanager
def bar(length: int, label: str, file: TextIO) -> Iterator[Callable[[], None]]:
    """Show on a terminal how far a loop has come; yields what is called after each turn."""
    if not file.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=label, file=file) as bar:
        yield lambda: bar.update(1)


def _describe_node(node: Node) -> Described:
    item: Described = {"path": node.path, "shown_unsharded": node.array is not None, "reason": node.reason}
    if not isinstance(node.metadata, ArrayMetadata):
        return item
    document = node.metadata.document
    item |= {
        "shape": list(node.metadata.shape),
        "data_type": document["data_type"],
        "chunk_grid": document["chunk_grid"],
        "sharded": node.metadata.is_sharded,
        "codecs": [codec.name for codec in node.metadata.codecs],
    }
    if node.array is not None:
        item |= {
            "inner_chunk_shape": list(node.array.grid.chunk_shape),
            "inner_chunks": math.prod(node.array.grid.grid_shape),
            "nesting": len(node.array.grid.levels),
            "codecs": [codec.name for codec in node.array.codecs],
            "shard_codecs": [codec.name for codec in node.metadata.codecs if codec.name != SHARDING],
        }
    return item


def _render_array(item: Described) -> str:
    lines = [item["path"] or "(root)"]
    if "shape" in item:
        data_type = item["data_type"] if isinstance(item["data_type"], str) else item["data_type"].get("name")
        lines.append(f"  shape          {_lengths(item['shape'])} {data_type}")
        lines.append(f"  {'shards' if item['sharded'] else 'chunks':<15}{_grid(item['chunk_grid'])}")
    if item["shown_unsharded"]:
        nesting = f", shards nested {item['nesting']} deep" if item["nesting"] > 1 else ""
        lines.append(
            f"  inner chunks   {_lengths(item['inner_chunk_shape'])}, {item['inner_chunks']:,} of them{nesting}"
        )
        lines.append(f"  codecs         {', '.join(item['codecs'])}")
        if item["shard_codecs"]:
            lines.append(f"  around shards  {', '.join(item['shard_codecs'])}")
        lines.append("  shown          unsharded")
    elif item["reason"] is not None:
        lines.append(f"  shown          as stored: {item['reason']}")
    else:
        lines.append(f"  codecs         {', '.join(item['codecs'])}")
        lines.append("  shown          as stored: the array is not sharded")
    for use in item.get("shards", []):
        waste = "encoded as a whole" if use["live"] is None else f"{use['live']:,} live, {use['dead']:,} dead"
        state = f"UNREADABLE: {use['error']}" if use["error"] else f"{use['chunks']:,} chunks, {waste}"
        lines.append(f"    {use['key']}  {use['size']:,} bytes, {state}")
    return "\n".join(map(printable, lines)) + "\n"


def _grid(grid: Any) -> str:  # noqa: ANN401 - a part of a document
    configuration = grid.get("configuration", {}) if isinstance(grid, dict) else {}
    name = grid["name"] if isinstance(grid, dict) else grid
    if name == "regular":
        return _lengths(configuration.get("chunk_shape", []))
    return f"{name} {json.dumps(configuration)}"[:100]


def _lengths(lengths: list[int]) -> str:
    return " × ".join(map(str, lengths)) or "no axes"
