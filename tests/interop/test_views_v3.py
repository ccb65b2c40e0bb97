"""Readers of Zarr v3 that know no sharding, or not all of it, see the arrays in the v3 view."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.clients import CLOUD_VOLUME, RASTERIO
from tests.support.corpus import GZIP, LITTLE, array, ramp, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.viewed import DOCUMENTS, Viewed, write_source


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    values["wrapped"] = ramp((7, 11), "int32")
    store(source / "wrapped", array((7, 11), (4, 6), sharding((2, 3), LITTLE), GZIP))
    return Viewed(module_mount(source), source, values)


@pytest.fixture(scope="module")
def decoded(viewed: Viewed, module_mount: Mounter) -> Viewed:
    return Viewed(module_mount(viewed.source, arguments=["--decode"]), viewed.source, viewed.values)


def test_rasterio_reads_planes_and_cubes(viewed: Viewed, decoded: Viewed, tmp_path: Path) -> None:
    program = "import sys, rasterio; rasterio.open(sys.argv[1])"
    complaint = RASTERIO.complaint(program, viewed.source / "plane")
    assert complaint == "rasterio.errors.RasterioIOError: Unsupported codec: sharding_indexed"
    program = "import sys, rasterio; print(*rasterio.open(sys.argv[1]).subdatasets)"
    listed = RASTERIO.run(program, viewed.source).split()
    assert [name.rpartition("/")[2] for name in listed] == ["plain"], "the root silently leaves out all sharded arrays"
    program = """
import sys, numpy, rasterio
found, root, *names = sys.argv[1:]
listed = [name.rpartition("/")[2] for name in rasterio.open(root).subdatasets]
assert sorted(listed) == sorted(names), listed
numpy.savez(found, **{name: rasterio.open(f'ZARR:"{root}":/{name}').read() for name in names})
"""
    for each in (viewed, decoded):
        found = RASTERIO.arrays(program, tmp_path, each.root, *viewed.values)
        for name, values in viewed.values.items():
            if (each, name) != (viewed, "turned"):  # GDAL 3.12 inverts a transpose that is not its own inverse
                assert np.array_equal(found[name].reshape(values.shape), values), name


def test_cloud_volume_reads_a_volume(viewed: Viewed, tmp_path: Path) -> None:
    program = """
import sys, numpy
from cloudvolume import CloudVolume
found, root = sys.argv[1:]
volumes = {name: CloudVolume(f"zarr3://file://{root}/{name}", fill_missing=True) for name in ("image", "nested")}
numpy.savez(found, **{name: volume[:][..., 0].T for name, volume in volumes.items()})
"""
    complaint = CLOUD_VOLUME.complaint(program, tmp_path / "never.npz", viewed.source)
    assert complaint == "NotImplementedError: sharded volumes are not currently supported."
    found = CLOUD_VOLUME.arrays(program, tmp_path, viewed.root)
    for name in ("image", "nested"):
        assert np.array_equal(found[name], viewed.values[name]), name


def test_decoded_all_libraries_and_numpy_alone_read_every_array(decoded: Viewed) -> None:
    group = zarr.open_group(str(decoded.root), mode="r", use_consolidated=True)
    for name, values in decoded.values.items():
        for read in READERS.values():
            assert_same(read(decoded.root / name), values)
        if name in DOCUMENTS:
            assert np.array_equal(np.asarray(group[name]), values), name
        document = json.loads((decoded.root / name / "zarr.json").read_text())
        assert [codec["name"] for codec in document["codecs"]] == ["bytes"]
        chunk_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
        last = [(length - 1) // edge for length, edge in zip(values.shape, chunk_shape, strict=True)]
        path = decoded.root / name / "c" / "/".join(map(str, last))
        chunk = np.fromfile(path, values.dtype.newbyteorder("<")).reshape(chunk_shape)
        tail = values[tuple(slice(place * edge, None) for place, edge in zip(last, chunk_shape, strict=True))]
        assert np.array_equal(chunk[tuple(map(slice, tail.shape))], tail), name
