"""Datasets on disk for tests on real mounts."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import C_ORDER, Case, case, write_case
from tests.support.encoder import Coordinates, Encoded, Layout, chunk_key
from tests.support.mounting import Mount

LONG_AGO = 1_600_000_000_000_000_000
"""A modification time, in ns, that no later write can repeat."""


@dataclass(frozen=True)
class Corpus:
    """The corpus, mounted, and what must be seen."""

    mount: Mount
    encoded: dict[str, Encoded]

    def path(self, case: Case) -> Path:
        return self.mount.path / case.name


def store(
    directory: Path,
    document: dict[str, Any],
    values: np.ndarray | None = None,
    absent: Iterable[Coordinates] = (),
    layout: Layout = C_ORDER,
) -> dict[str, bytes]:
    """Write a sharded array, aged; returns its inner chunks by their keys."""
    encoded = write_case(case(directory.name, "stored by a test", document, absent, layout, values), directory)
    age(directory)
    return by_key(document, encoded)


def by_key(document: dict[str, Any], encoded: Encoded) -> dict[str, bytes]:
    return {chunk_key(document, coordinates): data for coordinates, data in encoded.inner.items()}


def age(directory: Path) -> None:
    """Date all files back, so that the next change shows however coarse the clock of the file system is."""
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)


def files_below(directory: Path) -> dict[str, bytes]:
    """Every file below *directory* by its relative path, read whole; a failing directory raises."""
    found = {}
    for path in walk(directory):
        with open(path, "rb") as file:
            found[os.path.relpath(path, directory)] = file.read()
    return found


def walk(directory: Path) -> Iterable[str]:
    """Paths of all that is not a directory."""

    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(directory, onerror=fail):
        yield from (os.path.join(parent, name) for name in names)
