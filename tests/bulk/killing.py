"""`python -m tests.bulk.killing DIRECTORY KILLS` packs and unpacks a dataset there, and is killed so many times.

Each run is a process of its own, killed as it begins with a system call, or a statement of the manifest, that is chosen
at random.  After one to three kills a run goes on to the end, and must leave what an undisturbed one leaves.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import trio
import zarr

from shardfs.bulk.pack import PackPlan
from shardfs.bulk.run import Plan, RunOptions, fill
from shardfs.bulk.unpack import Unpacking, UnpackPlan
from shardfs.format.lens.packed import Packing
from shardfs.stores.url import StoreOptions
from tests.support.datasets import files_below

CALLS = {"open", "pwritev", "fsync", "mkdir", "rename", "unlink", "rmdir", "listdir", "execute", "executescript"}


def write(source: Path) -> None:
    group = zarr.open_group(source, mode="w", zarr_format=3, attributes={"a": 1})
    group.create_array("small", shape=(40,), chunks=(2,), dtype="i4")[...] = np.arange(1, 41)
    group.create_array("large", shape=(8, 2**18), chunks=(1, 2**18), dtype="i4", compressors=None)[...] = 1
    (source / "file").write_text("file")


def run(source: Path, made: Path, what: str, at: float = math.inf) -> int | None:
    """Fill *made* in a new process; returns how many calls it made, None if it was killed at the one of this number."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child:
        os.close(sender)
        with os.fdopen(receiver, "rb") as said:
            text = said.read()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return int(text) if text else None
    count = 0

    def watch(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and function.__name__ in CALLS:
            if count >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    try:
        plan: Plan = UnpackPlan(Unpacking()) if what == "unpack" else PackPlan(Packing(chunks_per_shard=(4,)))
        threading.setprofile(watch)
        sys.setprofile(watch)
        report = trio.run(fill, str(source), str(made), plan, RunOptions(syncs=True, jobs=1), StoreOptions())
        sys.setprofile(None)
        assert not report.problems, report.problems
        os.write(sender, str(count).encode())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(directory: Path, kills: int) -> None:
    source, made = directory / "source", directory / "made"
    write(source)
    chosen, nkilled = random.Random(kills), 0
    expected, ncalls = {}, {}
    for what in ("pack", "unpack"):
        ncalls[what] = run(source, directory / what, what) or 0
        expected[what] = files_below(directory / what)
    assert len(expected["pack"]) < len(expected["unpack"])
    while nkilled < kills:
        what = chosen.choice(["pack", "unpack"])
        at = [chosen.randrange(ncalls[what]) for _ in range(chosen.randint(1, 3))]
        nkilled += sum(run(source, made, what, number) is None for number in at)
        run(source, made, what)
        assert files_below(made) == expected[what], (what, at)
        shutil.rmtree(made)
        shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]) / "shardfs/bulk")
    print(nkilled)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
