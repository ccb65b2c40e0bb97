"""How long a reader of an open file waits while the daemon works on something large, and what memory that takes.

Each piece of work is done by a process of its own beside the reader, which reads 4 KiB of its file again and again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import zarr

from .peers import mounted_shardfs
from .placement import Placement
from .report import print_table, verdict

WAIT_SECONDS = 0.05
MEMORY_BYTES = 500 * 10**6
_READER = """
import os, sys, time
file, worst = os.open(sys.argv[1], os.O_RDONLY), 0.0
print(flush=True)
while not os.path.exists(sys.argv[2]):
    began = time.perf_counter()
    os.pread(file, 4096, 0)
    worst = max(worst, time.perf_counter() - began)
    time.sleep(0.002)
print(worst)
"""
_EDIT = """
import json, sys
with open(sys.argv[1]) as file:
    document = json.load(file)
document["attributes"]["edited"] = document["attributes"].get("edited", 0) + 1
with open(sys.argv[1], "w") as file:
    json.dump(document, file)
"""
_READ = "import sys; file = open(sys.argv[1], 'rb', buffering=0); file.seek(2**20); file.read(2**17)"


@dataclass(frozen=True)
class Work:
    """What is done beside the reader: a program with a path of the mount, which has these options."""

    options: tuple[str, ...]
    read: str
    program: str
    path: str


WORK = {
    "edit a group with consolidated arrays": Work(("--write",), "a/c/0/0", _EDIT, "zarr.json"),
    "read .zmetadata of a group": Work(("--view=v2",), "a/0.0", "import sys; open(sys.argv[1]).read()", ".zmetadata"),
    "read 65,536 tiny chunks of a .npy file": Work(("--view=npy",), "a.npy", _READ, "tiny.npy"),
}


def make(work: Path, narrays: int) -> Path:
    """Make a group that tells of *narrays* arrays, has one, and another of tiny chunks, none of which is stored."""
    root = work / f"waits-{narrays}"
    if root.exists():
        return root
    group = zarr.open_group(root.with_suffix(".part"), mode="w")
    array = group.create_array("a", shape=(64, 64), chunks=(16, 16), shards=(64, 64), dtype="u2", compressors=None)
    array[...] = 1
    group.create_array("tiny", shape=(2, 2**31), chunks=(2, 2), dtype="u1", compressors=None)
    path = root.with_suffix(".part") / "zarr.json"
    copy = json.loads((path.parent / "a/zarr.json").read_text())
    copies = {"a": copy} | {f"x{number}": copy for number in range(narrays)}
    document = json.loads(path.read_text())
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": copies}
    path.write_text(json.dumps(document))
    return root.with_suffix(".part").rename(root)


def run(source: Path, placement: Placement, rounds: int) -> None:
    """Measure, and print a table."""
    rows = []
    for name, work in WORK.items():
        turns = [_turn(source, work, placement) for _ in range(rounds)]
        waits, seconds, memory = (list(column) for column in zip(*turns, strict=True))
        met = verdict(median(waits) < WAIT_SECONDS, max(memory) < MEMORY_BYTES)
        row = f"{1000 * median(waits):.0f}", f"{median(seconds):.1f}", f"{max(memory) / 10**6:.0f}"
        rows.append([name, *row, "< 50 ms, < 500 MB", met])
    title = f"The longest wait of a reader of an open file, median of {rounds} rounds, {placement.name}"
    print_table(title, ["work beside it", "wait ms", "takes s", "peak MB", "target", "met"], rows)


def _turn(source: Path, work: Work, placement: Placement) -> tuple[float, float, int]:
    with mounted_shardfs([*work.options, str(source)], placement) as (root, server), _peak(server) as memory:
        end = root.parent / "end"
        command = [sys.executable, "-c", _READER, str(root / work.read), str(end)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", work.program, str(root / work.path)], check=True)
            seconds = time.perf_counter() - began
            end.touch()
            waited = float(reader.stdout.read())
        return waited, seconds, max(memory)


@contextmanager
def _peak(server: int) -> Iterator[list[int]]:
    """Note what memory a daemon and its workers have, all the time."""
    noted, is_over = [0], threading.Event()

    def note() -> None:
        while not is_over.wait(0.02):
            threads = Path(f"/proc/{server}/task").glob("*/children")
            children = [child for thread in threads for child in thread.read_text().split()]
            noted.append(sum(map(_memory, [str(server), *children])))

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield noted
    finally:
        is_over.set()
        thread.join()


def _memory(process: str) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
