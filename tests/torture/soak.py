"""Long work on one mount, and what grows in its daemon meanwhile."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.mounting import mounter
from tests.torture.geometry import View
from tests.torture.lives import Life

INTERVAL = 5.0
WARM_UP = 0.25
"""The part of the time after which slopes begin."""


@dataclass(frozen=True)
class Sample:
    """What a process has at one moment, in seconds and bytes."""

    time: float
    memory: int
    """Its proportional share of all pages that it has (PSS)."""
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        process = Path(f"/proc/{pid}")
        share = re.search(r"^Pss:\s+(\d+) kB", (process / "smaps_rollup").read_text(), re.MULTILINE)
        assert share
        files, threads = (len(os.listdir(process / name)) for name in ("fd", "task"))
        return cls(time.monotonic(), 1024 * int(share[1]), files, threads)


def soak(life: Life, minutes: float) -> str:
    """Work on a mount for so long; returns a line of slopes."""
    samples: list[Sample] = []
    with mounter(life.directory) as mount:
        # With an environment of its own it is no fork of another process, whose pages it would come to have copies of.
        places = life.mount(mount, View(), PYTHONHASHSEED="0")
        mounted = places[0].mounted
        end = time.monotonic() + 60 * minutes

        def sample() -> bool:
            if not samples or time.monotonic() > samples[-1].time + INTERVAL:
                samples.append(Sample.of(mounted.process.pid))
                life.history.forget()
            return time.monotonic() < end

        life.work_while(sample, places)
        for place in places:
            place.mounted.unmount()
    begin = samples[0].time + WARM_UP * (samples[-1].time - samples[0].time)
    steady = [sample for sample in samples if sample.time >= begin]
    return ", ".join(
        f"{name} {values[0] / unit:.0f} to {values[-1] / unit:.0f}, {_slope(steady, values) / unit:+.1f}{word} an hour"
        for name, unit, word, values in (
            ("memory", 2**10, " KiB", [sample.memory for sample in steady]),
            ("files", 1, "", [sample.files for sample in steady]),
            ("threads", 1, "", [sample.threads for sample in steady]),
        )
    )


def _slope(samples: list[Sample], values: list[int]) -> float:
    """The increase in an hour, by least squares."""
    return 3600 * float(np.polyfit([sample.time for sample in samples], values, 1)[0])
