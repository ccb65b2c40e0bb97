"""The versions of zarr-python that stand for "natively": that of this environment, and a later one with its faster way.

zarr-python 3.4 has a second codec pipeline, which decodes without a task for each chunk, and which a user has to switch
on. It needs a later Python, so it has an environment of its own, and each version runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FUSED = {"ZARR_CODEC_PIPELINE__PATH": "zarr.core.codec_pipeline.FusedCodecPipeline"}
_PRINT_VERSION = "import importlib.metadata as found; print(*found.version('zarr').split('.')[:2], sep='.')"


@dataclass(frozen=True)
class ZarrPython:
    """A version of zarr-python, the Python that has it, and how its way of decoding is chosen."""

    name: str
    python: str
    settings: dict[str, str]

    def run(self, program: Sequence[str], task: str, environment: Mapping[str, str] = os.environ) -> str:
        """Run a program with a task at its standard input, and return what it prints."""
        return subprocess.run(
            [self.python, *program],
            input=task,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
            env={**environment, **self.settings},
        ).stdout


@cache
def versions() -> dict[str, ZarrPython]:
    """All that are installed, by their names, the latest last."""
    later = Path(sys.prefix, "clients", "zarr34", "bin", "python")
    candidates: list[tuple[str, dict[str, str], str]] = [(sys.executable, {}, ""), (str(later), _FUSED, ", fused")]
    named = {}
    for python, settings, addition in candidates:
        if Path(python).exists():
            version = subprocess.check_output([python, "-c", _PRINT_VERSION], text=True).strip()
            name = f"zarr-python {version}{addition}"
            named[name] = ZarrPython(name, python, settings)
    return named


def latest() -> ZarrPython:
    """The one to compare with where there is time for one only."""
    return list(versions().values())[-1]
