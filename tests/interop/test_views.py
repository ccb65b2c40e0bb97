"""Real programs read the views of a dataset in a directory and in a bucket; natively they cannot read all of it."""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.clients import (
    CLOUD_VOLUME,
    RASTERIO,
    netcdf_url,
    open_tensorstore_v2,
    output_of,
    read_gdal,
    read_netcdf,
    read_zarr2,
)
from tests.support.corpus import CASES
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same, read_tensorstore
from tests.support.s3_server import Bucket
from tests.support.viewed import DOCUMENTS, WITH_V2_FORM, Viewed, write_source

View = Callable[[str], Viewed]


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> View:
    """Mounts the dataset, once with each option."""
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    return cache(lambda option: Viewed(module_mount(source, arguments=[option]), source, values))


def test_the_array_without_a_v2_form_is_skipped_and_the_log_says_why(viewed: View) -> None:
    v2 = viewed("--view=v2")
    assert sorted(path.name for path in v2.root.iterdir() if path.is_dir()) == sorted(WITH_V2_FORM)
    consolidated = json.loads((v2.root / ".zmetadata").read_text())["metadata"]
    assert {key.split("/")[0] for key in consolidated if "/" in key} == set(WITH_V2_FORM)
    assert "turned" in v2.mount.log


def test_gdal_reads_all_arrays_and_makes_a_tiff_of_a_plane(viewed: View, tmp_path: Path) -> None:
    v2 = viewed("--view=v2")
    told = json.loads(output_of("gdalmdiminfo", v2.root))
    assert sorted(told["arrays"]) == sorted(WITH_V2_FORM)
    assert told["arrays"]["image"]["attributes"]["title"] == "cells"
    assert {dimension["name"]: dimension["size"] for dimension in told["dimensions"]} == {"z": 20, "y": 24, "x": 28}
    for name in ("image", "big", "reversed"):
        assert np.array_equal(read_gdal(v2.root, name), v2.values[name]), name
    tiff, raw = tmp_path / "plane.tif", tmp_path / "plane.raw"
    output_of("gdal_translate", "-q", v2.root / "plane", tiff)
    output_of("gdal_translate", "-q", "-of", "ENVI", tiff, raw)
    assert raw.read_bytes() == v2.values["plane"].tobytes()


WITHOUT_V2_FORM = {
    *("transpose-201", "transpose-120", "transpose-even", "transpose-inner", "transpose-between-only"),
    *("transpose-4d", "rectilinear-transpose"),  # neither order C nor F
    *("opaque-codec", "zero-bytes", "opaque-serializer"),  # codecs that nobody knows
    *("fill-hex-nan", "fill-hex-float64", "fill-complex-hex"),  # v2 knows a single NaN
}


def test_zarr_python_2_reads_all_of_the_corpus_that_has_a_v2_form(
    corpus: Corpus, module_mount: Mounter, tmp_path: Path
) -> None:
    mounted = module_mount(corpus.mount.source, arguments=["--view=v2"])
    shown = [case.name for case in CASES if (mounted.path / case.name).is_dir()]
    assert {case.name for case in CASES} - set(shown) == WITHOUT_V2_FORM
    found = read_zarr2(mounted.path, shown, tmp_path)
    for name in shown:
        expected = corpus.encoded[name].values
        if expected.dtype.kind == "c":  # zarr-python 2 computes the fill value, and with it the sign of a NaN
            np.testing.assert_array_equal(found[name].astype(expected.dtype), expected)
        else:
            assert_same(found[name].astype(expected.dtype), expected)


def test_rasterio_reads_planes_and_cubes(viewed: View, tmp_path: Path) -> None:
    program = """
import sys, numpy, rasterio
found, root, *names = sys.argv[1:]
listed = [name.rpartition("/")[2] for name in rasterio.open(root).subdatasets]
assert sorted(listed) == sorted(names), listed
numpy.savez(found, **{name: rasterio.open(f'ZARR:"{root}":/{name}').read() for name in names})
"""
    decoded = viewed("--decode")
    found = RASTERIO.arrays(program, tmp_path, decoded.root, *decoded.values)
    for name, values in decoded.values.items():
        assert np.array_equal(found[name].reshape(values.shape), values), name


def test_cloud_volume_reads_a_volume(viewed: View, tmp_path: Path) -> None:
    program = """
import sys, numpy
from cloudvolume import CloudVolume
found, root = sys.argv[1:]
volumes = {name: CloudVolume(f"zarr3://file://{root}/{name}", fill_missing=True) for name in ("image", "nested")}
numpy.savez(found, **{name: volume[:][..., 0].T for name, volume in volumes.items()})
"""
    v3 = viewed("--view=v3")
    found = CLOUD_VOLUME.arrays(program, tmp_path, v3.root)
    for name in ("image", "nested"):
        assert np.array_equal(found[name], v3.values[name]), name


def test_decoded_all_libraries_and_numpy_alone_read_every_array(viewed: View) -> None:
    decoded = viewed("--decode")
    group = zarr.open_group(str(decoded.root), mode="r", use_consolidated=True)
    for name, values in decoded.values.items():
        for read in READERS.values():
            assert_same(read(decoded.root / name), values)
        assert np.array_equal(np.asarray(group[name]), values), name
        document = json.loads((decoded.root / name / "zarr.json").read_text())
        assert [codec["name"] for codec in document["codecs"]] == ["bytes"]
        chunk_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
        last = [(length - 1) // edge for length, edge in zip(values.shape, chunk_shape, strict=True)]
        path = decoded.root / name / "c" / "/".join(map(str, last))
        chunk = np.fromfile(path, values.dtype.newbyteorder("<")).reshape(chunk_shape)
        tail = values[tuple(slice(place * edge, None) for place, edge in zip(last, chunk_shape, strict=True))]
        assert np.array_equal(chunk[tuple(map(slice, tail.shape))], tail), name


def test_every_view_of_a_bucket_reads_as_that_of_a_directory(mount: Mounter, s3_bucket: Bucket, tmp_path: Path) -> None:
    expected = write_source(tmp_path / "data.zarr")
    s3_bucket.upload(tmp_path / "data.zarr", "data")

    def root(*options: str) -> Path:
        return mount(s3_bucket.url("data"), env=s3_bucket.environment, arguments=options).path

    v2 = root("--view=v2", "--dimension-separator=/")
    found = read_zarr2(v2, WITH_V2_FORM, tmp_path)
    for name in WITH_V2_FORM:
        assert np.array_equal(found[name], expected[name]), name
    assert np.array_equal(open_tensorstore_v2(v2 / "image").read().result(), expected["image"])
    assert np.array_equal(read_gdal(v2, "reversed"), expected["reversed"])

    for name, values in read_netcdf(netcdf_url(root("--view=v2", "--decode"))).items():
        assert np.array_equal(values, expected[name].ravel()), name

    v3 = root("--decode")
    for name in DOCUMENTS:
        assert_same(read_tensorstore(v3 / name), expected[name])

    npy = root("--view=npy")
    for name in DOCUMENTS:
        saved = io.BytesIO()
        np.save(saved, expected[name])
        assert (npy / f"{name}.npy").read_bytes() == saved.getvalue(), name
