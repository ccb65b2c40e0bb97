"""Arrays of HDF5 files through shardfs are those that h5py reads: types, byte orders, filters, shapes, links."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import shardfs
from tests.formats.hdf5.files import is_text, values_of, write_random


def check(path: Path) -> int:
    """Compare all datasets of a file; return how many there are."""
    compared = 0
    with shardfs.open(path) as dataset, h5py.File(path) as file:
        shown = zarr.open_group(dataset.store(), mode="r")
        # Nothing is waited for while h5py visits names: it holds a lock, which any thread wants that frees what it has.
        names: list[str] = []
        file.visit(names.append)
        for name in names:
            found = file[name]
            if isinstance(found, h5py.Group):
                assert isinstance(shown[name], zarr.Group), name
                continue
            array = shown[name]
            assert isinstance(array, zarr.Array)
            expected = values_of(found)
            inner = found.dtype.subdtype[1] if found.dtype.subdtype else ()
            assert array.shape == (*found.shape, *inner), name
            if found.chunks is not None:
                assert array.chunks == (*found.chunks, *inner), name
            values = array[()]
            if is_text(found.dtype):
                assert np.array_equal(np.asarray(values, object), expected), name
            elif found.dtype.names is None:
                np.testing.assert_array_equal(np.asarray(values), expected, err_msg=name)
            else:
                assert np.array_equal(np.asarray(values), expected.astype(array.dtype)), name
            compared += 1
    return compared


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_datasets_have_the_values_that_h5py_reads(tmp_path: Path, seed: int) -> None:
    write_random(tmp_path / "a.h5", seed)
    assert check(tmp_path / "a.h5") == 12
