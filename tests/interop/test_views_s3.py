"""A dataset in a bucket, in each view, read and written by programs that know neither buckets nor shards."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tests.support.clients import ZARR2, netcdf_url, open_tensorstore_v2, read_gdal, read_netcdf, read_zarr2
from tests.support.mounting import Mount, Mounter
from tests.support.readers import READERS, assert_same, read_tensorstore
from tests.support.s3_mounts import PREFIX
from tests.support.s3_server import Bucket
from tests.support.viewed import DOCUMENTS, WITH_V2_FORM, write_source
from tests.support.writers import assert_sound


class Remote:
    """The dataset in a bucket of its own, and the values in it."""

    def __init__(self, bucket: Bucket, mounter: Mounter, directory: Path) -> None:
        self.bucket = bucket
        self.values = write_source(directory / "data.zarr")
        for path in (directory / "data.zarr").rglob("*"):
            if path.is_file():
                bucket.put(f"{PREFIX}/{path.relative_to(directory / 'data.zarr')}", path.read_bytes())
        self._mounter = mounter

    def mount(self, *arguments: str, write: bool = False) -> Mount:
        return self._mounter(self.bucket.url(PREFIX), env=self.bucket.environment, arguments=arguments, write=write)


@pytest.fixture
def remote(s3_bucket: Bucket, mount: Mounter, tmp_path: Path) -> Remote:
    return Remote(s3_bucket, mount, tmp_path)


def test_every_view_of_a_bucket_reads_as_that_of_a_directory(remote: Remote, tmp_path: Path) -> None:
    expected = remote.values
    v2 = remote.mount("--view=v2", "--dimension-separator=/").path
    found = read_zarr2(v2, WITH_V2_FORM, tmp_path)
    for name in WITH_V2_FORM:
        assert np.array_equal(found[name], expected[name]), name
    assert np.array_equal(open_tensorstore_v2(v2 / "image").read().result(), expected["image"])
    assert np.array_equal(read_gdal(v2, "reversed"), expected["reversed"])

    for name, values in read_netcdf(netcdf_url(remote.mount("--view=v2", "--decode").path)).items():
        assert np.array_equal(values, expected[name].ravel()), name

    v3 = remote.mount("--decode").path
    for name in DOCUMENTS:
        assert_same(read_tensorstore(v3 / name), expected[name])

    npy = remote.mount("--view=npy").path
    for name in DOCUMENTS:
        saved = io.BytesIO()
        np.save(saved, expected[name])
        assert (npy / f"{name}.npy").read_bytes() == saved.getvalue(), name


def test_zarr_python_2_writes_into_shards_of_a_bucket(remote: Remote, tmp_path: Path) -> None:
    program = """
import sys, numpy, zarr
group = zarr.open_group(sys.argv[1], mode="r+")
for name in ("image", "nested"):
    group[name][3:13, 5:20, 2:9] = 7
group["image"].attrs["title"] = "new"
group["plane"].resize(20, 28)
group.create_dataset("new", data=numpy.arange(60, dtype="u2").reshape(6, 10), chunks=(2, 3))
"""
    mounted = remote.mount("--view=v2", "--shards=2", write=True)
    ZARR2.run(program, mounted.path)
    mounted.unmount()
    native = remote.bucket.download(tmp_path / "native", PREFIX)
    expected = remote.values | {"plane": remote.values["plane"][:20], "new": np.arange(60, dtype="u2").reshape(6, 10)}
    for name in ("image", "nested"):
        expected[name][3:13, 5:20, 2:9] = 7
    for name in ("image", "nested", "plane", "new"):
        for read in READERS.values():
            assert_same(read(native / name), expected[name])
    assert_sound(native)
