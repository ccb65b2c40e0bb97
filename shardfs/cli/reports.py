"""What the commands print: reports of damage, references, counts."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from tempfile import TemporaryFile
from typing import Any, TextIO

import click

from shardfs.dataset.array import Array
from shardfs.dataset.foreign import what_else
from shardfs.dataset.maintenance.verify import ChunkDecoder, Problem, check
from shardfs.dataset.maintenance.walk import walk_nodes, walk_shards
from shardfs.dataset.source import Source
from shardfs.errors import MetadataError, NotShownError, NotUnshardable, ShardfsError, printable
from shardfs.format.document import brief
from shardfs.format.dtype import VLEN_SERIALIZERS, item_nbytes, type_name
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.format.sharding import Coords
from shardfs.vfs.kerchunk import Reference, array_references, document_references
from shardfs.vfs.views import View

log = logging.getLogger(__name__)


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


def counted(count: int, what: str) -> str:
    """Return *count* and *what* is counted, a word whose plural ends in s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _render_problem(problem: dict[str, str | None]) -> str:
    chunk = f", chunk {problem['chunk']}" if problem["chunk"] else ""
    return f"{problem['shard'] or problem['document']}{chunk}: {problem['message']}"


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
        elif isinstance(node.metadata, ArrayMetadata):
            reason = node.reason or fault_of(node.metadata) or "it is not sharded: each chunk is a file of its own"
            report.unchecked.append({"array": node.path, "reason": reason})
    return report


async def write_references(source: Source, file: TextIO, view: View, skip_encoded: bool) -> int:
    """Write kerchunk references to what *view* shows as JSON, one line each.

    Returns how many arrays are left out, with a warning each, as they could not be read or referenced.  Not counted are
    those that the view does not show and, if *skip_encoded*, those whose shards are encoded as a whole.
    """
    source.hierarchy.looks_above = view.looks_above
    lines = _Lines(file)
    groups, left_out, failed, has_arrays = [], set(), 0, False
    file.write('{"version": 1, "refs": {')
    async for node in walk_nodes(source):
        if isinstance(node.metadata, GroupMetadata):
            groups.append(node.path)
            continue
        has_arrays = True
        try:
            if node.metadata is None:
                raise MetadataError(str(node.reason))
            with TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="") as aside:
                array_lines = _Lines(aside, lines.separator)
                async for key, reference in array_references(source, view, node):
                    array_lines.write(key, reference)
                aside.seek(0)
                shutil.copyfileobj(aside, file)
                lines.separator = array_lines.separator
            continue
        except NotShownError as error:
            reason = str(error)
        except NotUnshardable as error:
            failed += not skip_encoded
            reason = str(error) if skip_encoded else f"{error}; mount it, or leave it out with --skip-encoded"
        except ShardfsError as error:
            failed += 1
            reason = str(error)
        left_out.add(node.path)
        log.warning("%s cannot be referenced: %s", node.path or "the source", reason)
    if not has_arrays:
        log.warning("there are no Zarr v3 arrays here: %s", await what_else(source))
    for path in groups:  # at last, when it is known which arrays their copies would tell of for nothing
        for key, text in document_references(view, await source.hierarchy.node(path), left_out):
            lines.write(key, text)
    file.write("\n}}\n")
    return failed


@dataclass
class _Lines:
    """The members of an object of JSON, one line each, in a file that has some already if there is a *separator*."""

    file: TextIO
    separator: str = "\n"

    def write(self, key: str, reference: Reference) -> None:
        self.file.write(f"{self.separator}{json.dumps(key)}: {json.dumps(reference)}")
        self.separator = ",\n"


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
    path = array.layout.path
    decoder = ChunkDecoder.of(array) if data else None
    if data and decoder is None:
        report.unchecked.append(
            {"array": path, "reason": "its chunks have codecs that are not known; the index was checked"}
        )
    data_type = array.document["data_type"]
    if decoder is not None and type_name(data_type) not in VLEN_SERIALIZERS and item_nbytes(data_type) is None:
        what = f"its data type {brief(type_name(data_type))} is not known; sizes of decoded chunks were not checked"
        report.unchecked.append({"array": path, "reason": what})
    shards: list[Coords] = []
    try:
        async for coords in walk_shards(array):
            shards.append(coords)
    except ShardfsError as error:  # a directory of shards; what was found is checked all the same
        report.add(Problem(path or "(root)", None, str(error)))
    with bar(len(shards), printable(path) or "(root)", progress) as advance:
        for coords in shards:
            async for problem in check(array, coords, decoder):
                report.add(problem)
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
