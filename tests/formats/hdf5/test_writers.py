"""Files that a program has open to write them, or that it left so."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import shardfs
from shardfs.errors import SourceError
from tests.support.commands import SOURCE, one_line_of, run

KILLED = """
import os, signal, sys, h5py
file = h5py.File(sys.argv[1], "w", libver="latest", userblock_size=int(sys.argv[2]))
array = file.create_dataset("x", (9,), "i4", maxshape=(None,), chunks=(4,))
if sys.argv[3] == "swmr":
    file.swmr_mode = True
array[:] = range(9)
file.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def elements(path: Path) -> list[int]:
    with shardfs.open(path) as dataset:
        return list(np.asarray(zarr.open_array(dataset.store(), path="x", mode="r")[...]).tolist())


def killed(path: Path, userblock: int, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(userblock), how], check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_file_is_read_while_a_program_writes_it_by_swmr(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        array = file.create_dataset("x", (0,), "i4", maxshape=(None,), chunks=(4,))
        file.swmr_mode = True
        with shardfs.open(tmp_path / "a.h5", metadata_ttl=0) as dataset:
            for length in (3, 4, 40, 41, 400):
                array.resize((length,))
                array[:] = np.arange(length)
                array.flush()
                found = zarr.open_array(dataset.store(), path="x", mode="r")
                assert np.array_equal(found[...], np.arange(length))
    assert elements(tmp_path / "a.h5") == [*range(400)]


@pytest.mark.parametrize("userblock", [0, 512, 2048])
def test_a_file_that_was_left_so_is_read(tmp_path: Path, userblock: int) -> None:
    killed(tmp_path / "a.h5", userblock, "swmr")
    assert elements(tmp_path / "a.h5") == [*range(9)]


@pytest.mark.parametrize("userblock", [0, 1024])
def test_a_file_that_is_written_otherwise_is_refused_as_by_h5py(tmp_path: Path, userblock: int) -> None:
    killed(tmp_path / "a.h5", userblock, "")
    with pytest.raises(OSError, match="already open for write"):
        h5py.File(tmp_path / "a.h5")
    assert "h5clear --status" in one_line_of(run("info", tmp_path / "a.h5"), SOURCE)


def test_a_file_is_read_when_its_writer_has_closed_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", libver="v110") as file:
        file["x"] = np.arange(3)
        file.flush()
        with pytest.raises(SourceError, match="a program is writing it"):
            shardfs.open(tmp_path / "a.h5")
    assert elements(tmp_path / "a.h5") == [0, 1, 2]


def test_a_superblock_that_is_damaged_is_left_to_libhdf5(tmp_path: Path) -> None:
    killed(tmp_path / "a.h5", 0, "swmr")
    with (tmp_path / "a.h5").open("r+b") as file:
        os.pwrite(file.fileno(), b"\x07", 11)
    with pytest.raises(SourceError, match="checksum"):
        shardfs.open(tmp_path / "a.h5")
