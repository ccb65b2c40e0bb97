"""What the commands print: reports of damage, references, counts."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import click

from shardfs.dataset.array import Array
from shardfs.dataset.inspection import ChunkDecoder, Problem, check
from shardfs.dataset.source import Source
from shardfs.dataset.walk import walk_nodes, walk_shards
from shardfs.errors import ShardfsError, printable
from shardfs.format.sharding import Coords
from shardfs.vfs.references import references
from shardfs.vfs.v3_view import ZarrV3


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
    async for key, reference in references(source, ZarrV3(), skip_encoded=skip_encoded):
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
