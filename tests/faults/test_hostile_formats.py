"""Damaged datasets of every format, by Hypothesis, in a process with little memory: see tests/torture/hostile.py."""

import subprocess
import sys
from collections.abc import Set

import pytest

from tests.torture.hostile import FORMATS

OF_ZARR = frozenset({"zarr", "zarr v2", "references", "records"})


@pytest.mark.slow
@pytest.mark.parametrize("formats", [OF_ZARR, FORMATS.keys() - OF_ZARR], ids=["of Zarr", "others"])
def test_whatever_is_damaged_is_an_error_of_shardfs_in_little_memory_and_soon(formats: Set[str]) -> None:
    only = [f"--only={name}" for name in sorted(formats)]
    command = [sys.executable, "-m", "tests.torture.hostile", "--examples=50", *only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("hostile: 50 datasets")


@pytest.mark.slow
def test_whatever_is_damaged_of_an_encoded_chunk_is_an_error_of_shardfs_in_little_memory() -> None:
    command = [sys.executable, "-m", "tests.torture.hostile", "--streams=1500", "--examples=1", "--only=zarr v2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("hostile: 1500 streams")
    assert "CorruptionError for RuntimeError" in done.stdout, "decoders were reached"
