"""Readers of Zarr v2 see sharded v3 arrays in the v2 view, each of which says first that it cannot read them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.clients import output_of, read_gdal, read_zarr2, system_tool
from tests.support.corpus import CASES
from tests.support.datasets import Corpus
from tests.support.mounting import Mounter
from tests.support.readers import assert_same
from tests.support.viewed import WITH_V2_FORM, Viewed, write_source

MADE_BY = {"made by": "a test"}
SIZES = {"z": 20, "y": 24, "x": 28}


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    return Viewed(module_mount(source, arguments=["--view=v2"]), source, values)


def test_the_array_without_a_v2_form_is_left_out_and_the_log_says_why(viewed: Viewed) -> None:
    assert sorted(path.name for path in viewed.root.iterdir() if path.is_dir()) == sorted(WITH_V2_FORM)
    consolidated = json.loads((viewed.root / ".zmetadata").read_text())["metadata"]
    assert {key.split("/")[0] for key in consolidated if "/" in key} == set(WITH_V2_FORM)
    assert not (viewed.root / "turned").exists()
    assert "turned" in viewed.mount.log


def test_gdal_reads_all_arrays_and_makes_a_tiff_of_a_plane(viewed: Viewed, tmp_path: Path) -> None:
    native = system_tool("gdal_translate", str(viewed.source / "plane"), str(tmp_path / "never.tif"))
    assert native.returncode == 1
    complaints = "not recognized as a supported file format", "Unsupported codec: sharding_indexed"  # since 3.8
    assert any(complaint in native.stderr for complaint in complaints), native.stderr

    told = json.loads(output_of("gdalmdiminfo", viewed.root))
    assert sorted(told["arrays"]) == sorted(WITH_V2_FORM)
    assert told["attributes"] == MADE_BY
    assert told["arrays"]["image"]["attributes"]["title"] == "cells"
    assert {dimension["name"]: dimension["size"] for dimension in told["dimensions"]} == SIZES
    for name in ("image", "big", "reversed"):
        assert np.array_equal(read_gdal(viewed.root, name), viewed.values[name]), name
    for number, dataset in enumerate((str(viewed.root / "plane"), f'ZARR:"{viewed.root}":/plane')):
        tiff, raw = tmp_path / f"{number}.tif", tmp_path / f"{number}.raw"
        output_of("gdal_translate", "-q", dataset, tiff)
        output_of("gdal_translate", "-q", "-of", "ENVI", tiff, raw)
        assert raw.read_bytes() == viewed.values["plane"].tobytes()


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
