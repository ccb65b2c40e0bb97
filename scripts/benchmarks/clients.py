"""Where a mount saturates: 1, 2, 4 and 8 programs read chunk files at the same time.

"two mounts" divides the programs among two mounts of the same source. What that gains is the most that two processes
behind one mount could gain.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from .datasets import Dataset, chunk_path
from .peers import PEERS, Mounted
from .placement import Placement
from .report import number, print_table, ratio, size
from .rounds import interleave

TWO_MOUNTS = "two mounts"
COUNTS = (1, 2, 4, 8)


def run(dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Measure one mount of each peer, and two of shardfs, and print the table."""
    subjects = [*peers, TWO_MOUNTS] if "shardfs" in peers else [*peers]

    def measure(subject: str, order: random.Random) -> list[tuple[float, float]]:
        with ExitStack() as stack:
            mount, count = (PEERS["shardfs"], 2) if subject == TWO_MOUNTS else (PEERS[subject], 1)
            mounts = [stack.enter_context(mount(dataset, placement)) for _ in range(count)]
            mounts[0].fill_page_cache()
            _rate(dataset, mounts, 1, order)  # now everything is warm
            return [_rate(dataset, mounts, nclients, order) for nclients in COUNTS]

    placement.apply()
    results = interleave(subjects, rounds, measure)
    rows = []
    for which, nclients in enumerate(COUNTS):
        rates = {subject: [turn[which][0] for turn in results[subject]] for subject in subjects}
        for subject in subjects:
            busy = median(turn[which][1] for turn in results[subject])
            of_one_mount = ratio(rates[subject], rates.get("shardfs", []))
            rows.append([
                subject, f"{nclients}", f"{median(rates[subject]):,.0f}", number(of_one_mount, ".2f"), f"{busy:.2f}",
            ])  # fmt: skip
    print_table(
        f"Programs read {dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} in random order, warm, "
        f"median of {rounds} rounds, {placement.name}",
        ["peer", "programs", "files/s", "of one mount", "CPUs that the servers use"],
        rows,
    )


def _rate(dataset: Dataset, mounts: Sequence[Mounted], nclients: int, order: random.Random) -> tuple[float, float]:
    """Let each program read its share of the chunks; gives files per second, and how many CPUs the servers used."""
    chunks = order.sample(dataset.coordinates(), dataset.chunk_count)
    command = [sys.executable, str(Path(__file__).with_name("file_client.py"))]
    before = sum(mounted.server_seconds() for mounted in mounts)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(nclients)
        ]
        for place, program in enumerate(programs):
            root = mounts[place % len(mounts)].root
            assert program.stdin is not None
            program.stdin.write("\n".join(str(chunk_path(root, chunk)) for chunk in chunks[place::nclients]))
        for program in programs:  # else some would be measured before others have started
            assert program.stdout is not None
            program.stdout.readline()
        for program in programs:  # they begin when their lists end
            assert program.stdin is not None
            program.stdin.close()
        seconds = []
        for program in programs:
            assert program.stdout is not None
            seconds.append(float(program.stdout.read()))
    work = sum(mounted.server_seconds() for mounted in mounts) - before
    return dataset.chunk_count / max(seconds), work / max(seconds)
