"""Processes of real Zarr libraries that write one shard at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.mounting import PATIENCE

NPROCESSES = 8

EACH = f"""
import multiprocessing, os, sys
import numpy as np, tensorstore, zarr
path, barrier = sys.argv[1], multiprocessing.get_context("fork").Barrier({NPROCESSES})
children = []
for number in range({NPROCESSES}):
    children.append(os.fork())
    if not children[-1]:
        break
else:
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
ZARR = """
array = zarr.open_array(path, mode="r+")
def write(selection, value): array[selection] = value
"""
TENSORSTORE = """
spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}}
array = tensorstore.open(spec, read=True, write=True).result()
def write(selection, value): array[selection].write(value).result()
"""
DISJOINT = """
barrier.wait(60)
chunks = [(i, j) for i in range(8) for j in range(8)][number::8]
for turn in (1, 2):
    for i, j in chunks:
        write((slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)), 1000 * turn + 8 * i + j)
"""


def run_together(path: Path, script: str) -> None:
    """Run *script* in several processes that begin at the same time."""
    command = [sys.executable, "-c", EACH + script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE)
    assert done.returncode == 0, str(done)
