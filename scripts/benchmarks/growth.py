"""How the cost of a mount grows with 10, 100 and 1,000 times the work: counts, CPU time and memory of its daemon.

Exact counts and CPU time are little disturbed by what else the machine does; memory is that of one run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .datasets import Dataset, shared_payloads
from .peers import mounted_shardfs
from .placement import Placement
from .report import print_table
from .writing_peers import FLUSH

SIDE = 100
"""Chunks per axis of a shard, and arrays in a group."""

PAYLOAD = bytes(range(256))
NAMES = 10_000
"""How many chunk files are published again and again."""


@dataclass(frozen=True)
class _Moment:
    """What the daemon has used and done until now."""

    seconds: float
    memory: int
    metrics: dict[str, Any]

    @classmethod
    def of(cls, root: Path, process: int) -> _Moment:
        status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(status[11]) + int(status[12])) / os.sysconf("SC_CLK_TCK")
        share = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        assert share
        return cls(seconds, 1024 * int(share[1]), json.loads(os.getxattr(root, "user.shardfs.stats")))

    @property
    def requests(self) -> int:
        """The requests of the kernel."""
        return sum(self.metrics["requests"].values())


def run(work: Path, nsteps: int, placement: Placement) -> None:
    """Measure each kind of work in so many steps, each ten times the one before, and print a table for each."""
    placement.apply()
    sizes = [10**step for step in range(nsteps)]
    _measure("chunk files listed", "index_loads", [10_000 * n for n in sizes], _list, work, placement)
    _measure("arrays walked", "", [100 * n for n in sizes], _walk, work, placement)
    _measure("chunk files published", "commits", [1_000 * n for n in sizes], _publish, work, placement)


Work = Callable[[Path, int], tuple[Path, Callable[[Path], None]]]
"""Makes a source for so much work, in an empty directory; returns it, and what is done on its mount."""


def _measure(what: str, counter: str, amounts: Sequence[int], prepare: Work, work: Path, placement: Placement) -> None:
    rows = []
    for amount in amounts:
        with _directory(work) as directory:
            source, act = prepare(directory, amount)
            options = ["--write"] if prepare is _publish else []
            with mounted_shardfs([*options, str(source)], placement) as (root, pid):
                before = _Moment.of(root, pid)
                act(root)
                after = _Moment.of(root, pid)
        seconds, requests = after.seconds - before.seconds, after.requests - before.requests
        counted = [f"{after.metrics[counter] - before.metrics[counter]:,}"] if counter else []
        memory = [f"{moment.memory / 1e6:.1f}" for moment in (before, after)]
        rows.append(
            [f"{amount:,}", f"{requests:,}", *counted, f"{seconds:.2f}", f"{1e6 * seconds / amount:.1f}", *memory]
        )
    columns = [what, "requests", *([counter.replace("_", " ")] if counter else []), "CPU s", "CPU µs each"]
    print_table(f"How the cost grows with {what}, {placement.name}", [*columns, "MB before", "MB after"], rows)


def _list(directory: Path, amount: int) -> tuple[Path, Callable[[Path], None]]:
    nshards = amount // SIDE**2
    dataset: Dataset = shared_payloads(directory, "many", (nshards * SIDE, SIDE), (SIDE, SIDE), (1, 1))
    return dataset.sharded, lambda root: _find(amount, root, "-type", "f", "-path", "*/c/*", "-size", "+0")


def _walk(directory: Path, amount: int) -> tuple[Path, Callable[[Path], None]]:
    inner = shared_payloads(directory, "one", (4, 4), (2, 2), (1, 1)).document.read_bytes()
    source = directory / "source"
    for number in range(amount):
        array = source / str(number // SIDE) / str(number % SIDE)
        array.mkdir(parents=True)
        (array / "zarr.json").write_bytes(inner)
    return source, lambda root: _find(amount, root, "-type", "f", "-name", "zarr.json", "-size", "+0")


def _publish(directory: Path, amount: int) -> tuple[Path, Callable[[Path], None]]:
    dataset = shared_payloads(directory, "written", (NAMES * len(PAYLOAD),), (SIDE * len(PAYLOAD),), (len(PAYLOAD),))

    def publish(root: Path) -> None:
        for number in range(amount):
            fd = os.open(root / "c" / str(number % NAMES), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(fd, PAYLOAD)
            os.close(fd)
        os.setxattr(root, FLUSH, b"")

    return dataset.sharded, publish


def _find(amount: int, root: Path, *conditions: str) -> None:
    done = subprocess.run(["find", str(root), *conditions, "-printf", "."], stdout=subprocess.PIPE, check=True)
    if len(done.stdout) != amount:
        raise RuntimeError(f"find names {len(done.stdout):,} files instead of {amount:,}")


@contextmanager
def _directory(work: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=work))
    try:
        yield path
    finally:
        shutil.rmtree(path)
