"""Cases that users of other libraries reported in 2025 and 2026: the library that writes a file is the oracle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.commands import run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.precomputed import info, read_volume, scale, shard, sharding, write_volume

pytestmark = pytest.mark.slow


def read(path: Path, **options: Any) -> np.ndarray:
    with shardfs.open(str(path), **options) as dataset:
        return np.asarray(zarr.open_array(dataset.store(), mode="r")[...])


# Blosc2.


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("value", [0.0, 7.0, np.nan])
def test_special_chunks_before_and_behind_normal_ones(tmp_path: Path, value: float, *, is_sparse: bool) -> None:
    """python-blosc2#611 and c-blosc2#624."""
    blosc2 = pytest.importorskip("blosc2")
    for dtype in ("f4", "f8"):
        path = tmp_path / f"{dtype}.b2nd"
        made = blosc2.full(
            (40, 6), value, dtype=dtype, chunks=(10, 6), blocks=(5, 6), urlpath=str(path), contiguous=not is_sparse
        )
        made[10:20] = np.arange(60).reshape(10, 6)
        made[30:33] = value
        np.testing.assert_array_equal(read(path), made[...])


@pytest.mark.parametrize("is_sparse", [False, True])
def test_thin_blocks_and_arrays_that_grow(tmp_path: Path, *, is_sparse: bool) -> None:
    """c-blosc2#691: blocks of 2×1×1 in chunks of 2×4×1."""
    blosc2 = pytest.importorskip("blosc2")
    values = np.arange(7 * 9 * 3, dtype="i4").reshape(7, 9, 3)
    made = blosc2.asarray(
        values, chunks=(2, 4, 1), blocks=(2, 1, 1), urlpath=str(tmp_path / "a.b2nd"), contiguous=not is_sparse
    )
    np.testing.assert_array_equal(read(tmp_path / "a.b2nd"), values)
    made.resize((9, 11, 3))
    made[7:] = 9
    np.testing.assert_array_equal(read(tmp_path / "a.b2nd"), made[...])


@pytest.mark.parametrize("nth", [1, 2])
def test_a_length_of_0_is_refused_with_the_reason(tmp_path: Path, nth: int) -> None:
    """c-blosc2#778: of chunks, and of blocks."""
    blosc2 = pytest.importorskip("blosc2")
    path = tmp_path / "a.b2nd"
    blosc2.asarray(np.arange(24, dtype="i4").reshape(4, 6), chunks=(2, 3), blocks=(2, 3), urlpath=str(path))
    data, lengths = bytearray(path.read_bytes()), b"\xd2\x00\x00\x00\x02\xd2\x00\x00\x00\x03"
    at = -1
    for _ in range(nth):
        at = data.index(lengths, at + 1)
    data[at + 1 : at + 5] = bytes(4)
    path.write_bytes(data)
    (found,) = run_json("info", "--json", path)["arrays"]
    assert "do not fit into chunks" in found["reason"]


# WKW.


@pytest.mark.parametrize("kind", ["raw", "LZ4HC"])
def test_the_last_block_of_a_file(tmp_path: Path, kind: str) -> None:
    """webknossos#1933."""
    support = pytest.importorskip("tests.support.wkw")
    values = np.zeros((1, 32, 32, 32), "u1")
    values[0, -4:, -4:, -4:] = np.arange(1, 65).reshape(4, 4, 4)
    support.write_wkw(tmp_path / "color/1", values, kind, block=4, blocks=8)
    np.testing.assert_array_equal(read(tmp_path / "color/1"), support.read_wkw(tmp_path / "color/1", (32, 32, 32)))


# Zarr.


def test_structured_types_with_consolidated_metadata(tmp_path: Path) -> None:
    """zarr-python#2998."""
    dtype = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3")])
    values = np.zeros(10, dtype)
    values["a"], values["c"] = range(10), b"xy"
    group = zarr.open_group(tmp_path / "source", mode="w")
    group.create_array("table", shape=(10,), chunks=(2,), shards=(4,), dtype=dtype)[...] = values
    zarr.consolidate_metadata(tmp_path / "source")
    for view in ("v3", "v2"):
        assert run("unpack", f"--view={view}", tmp_path / "source", tmp_path / view).returncode == 0
        np.testing.assert_array_equal(zarr.open_group(tmp_path / view, mode="r")["table"][...], values)
        assert run("verify", tmp_path / "source", tmp_path / view).returncode == 0


@pytest.mark.parametrize("fill", ["NaT", -(2**63)])
@pytest.mark.parametrize("kind", ["M8", "m8"])
@pytest.mark.parametrize("version", [2, 3])
def test_no_time_in_either_spelling(tmp_path: Path, version: int, kind: str, fill: object) -> None:
    """zarr-python#3028 and xarray#7790: missing chunks are NaT."""
    dtype, source = np.dtype(f"<{kind}[ns]"), tmp_path / "source"
    shards = {"shards": (4,)} if version == 3 else {}
    array: Any = zarr.create_array(
        source,
        shape=(10,),
        chunks=(2,),
        dtype=dtype,
        zarr_format=version,
        fill_value=np.array("NaT", dtype)[()],
        **shards,
    )
    array[2:4] = np.array([5, 6], dtype)
    expected = np.full(10, -(2**63))
    expected[2:4] = 5, 6
    document = source / ("zarr.json" if version == 3 else ".zarray")
    document.write_text(json.dumps(json.loads(document.read_text()) | {"fill_value": fill}))
    forms = [["pack"]]
    if version == 3:
        forms += [["unpack", f"--view={view}", *more] for view in ("v3", "v2") for more in ([], ["--decode"])]
    for number, command in enumerate(forms):
        made = tmp_path / str(number)
        assert run(*command, source, made).returncode == 0
        values: Any = zarr.open_array(made, mode="r")[...]
        np.testing.assert_array_equal(values.view("i8"), expected)
        assert run("verify", source, made).returncode == 0
    if version == 3:
        assert run("unpack", "--view=npy", source, tmp_path / "npy").returncode == 0
        np.testing.assert_array_equal(np.load(tmp_path / "npy/source.npy").view("i8"), expected)


def test_an_array_that_is_cut_and_then_appended_to_through_a_mount(mount: Mounter, tmp_path: Path) -> None:
    """zarr-python#2849: what was cut off does not come back."""
    array: Any = zarr.create_array(tmp_path / "source", shape=(10, 4), chunks=(2, 2), shards=(4, 4), dtype="i4")
    array[...] = np.arange(40).reshape(10, 4)
    mounted = mount(tmp_path / "source", write=True)
    shown: Any = zarr.open_array(mounted.path, mode="r+")
    shown.resize((6, 4))
    shown.append(np.full((5, 4), 7, "i4"))
    shown.resize((20, 4))
    shown.append(np.full((1, 4), 9, "i4"))
    expected = np.zeros((21, 4), "i4")
    expected[:6], expected[6:11], expected[20] = np.arange(24).reshape(6, 4), 7, 9
    np.testing.assert_array_equal(zarr.open_array(mounted.path, mode="r")[...], expected)
    mounted.unmount()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "source", mode="r")[...], expected)


# References to netCDF-3 files: big-endian numbers in records, of which some are missing.


@pytest.mark.parametrize("fill", [None, 0])
def test_references_to_big_endian_records(tmp_path: Path, fill: object) -> None:
    """VirtualiZarr#750, #982 and #989, kerchunk#385, icechunk#367."""
    line, records = np.arange(12, dtype=">f4"), np.arange(36, dtype=">i2").reshape(3, 12)
    (tmp_path / "a.nc").write_bytes(b"HEAD" + line.tobytes() + records.tobytes())
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    for name, values, chunks in (("line", line, [12]), ("records", records, [1, 12])):
        document = {"zarr_format": 2, "shape": values.shape, "chunks": chunks, "dtype": values.dtype.str, "order": "C"}
        refs[f"{name}/.zarray"] = json.dumps(document | {"compressor": None, "filters": None, "fill_value": fill})
    refs["line/0"] = ["a.nc", 4, line.nbytes]
    for number in (0, 2):
        refs[f"records/{number}.0"] = ["a.nc", 4 + line.nbytes + 24 * number, 24]
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    for number, command in enumerate((["pack"], ["unpack"], ["unpack", "--view=v2"])):
        made = tmp_path / str(number)
        assert run(*command, tmp_path / "refs.json", made).returncode == 0
        group: Any = zarr.open_group(made, mode="r")
        np.testing.assert_array_equal(group["line"][...], line)
        np.testing.assert_array_equal(group["records"][...], np.where([[True], [False], [True]], records, 0))
        assert run("verify", tmp_path / "refs.json", made).returncode == 0


# Volumes.

SPECIFICATION = sharding(1, "identity", 1, 1, "gzip", "raw")


def test_scales_of_different_encodings_are_each_what_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    scales = [
        scale((16, 16, 8), (8, 8, 4), SPECIFICATION, key="raw"),
        scale((8, 8, 8), (8, 8, 4), SPECIFICATION, key="segments", encoding="compressed_segmentation",
              compressed_segmentation_block_size=[8, 8, 8]),
        scale((8, 8, 8), (8, 8, 4), None, key="unsharded"),
    ]  # fmt: skip
    document = info(*scales, data_type="uint32") | {"type": "segmentation"}
    random = np.random.default_rng(1)
    values = [random.integers(1, 9, (*each["size"], 1)).astype("u4") for each in scales]
    source.mkdir()
    write_volume(source, document, values)
    (source / "info").write_text(json.dumps(document))
    assert run("unpack", source, tmp_path / "unpacked").returncode == 0
    for index, expected in enumerate(values):
        np.testing.assert_array_equal(read_volume(tmp_path / "unpacked", index), expected)
    assert run("verify", source, tmp_path / "unpacked").returncode == 0
    for number, command in enumerate((["unpack", "--decode"], ["unpack", "--decode", "--view=v2"], ["pack"])):
        done = run(*command, source, tmp_path / str(number))
        assert done.returncode == 1
        assert "skipped: segments: the codec 'neuroglancer.compressed_segmentation' cannot be decoded" in done.stderr
        group: Any = zarr.open_group(tmp_path / str(number), mode="r")
        assert sorted(group.array_keys()) == ["raw"]
        np.testing.assert_array_equal(group["raw"][...], values[0])


@pytest.mark.parametrize("encoding", ["jxl", "jpeg", "png", "fpzip", "compresso", "crackle"])
def test_chunks_of_every_encoding_are_files_and_skipped_where_they_would_have_to_be_decoded(
    tmp_path: Path, encoding: str
) -> None:
    source = tmp_path / "source"
    specification = sharding(0, "identity", 0, 0)
    document = info(scale((2, 2, 2), (2, 2, 2), specification, key="scale", encoding=encoding), data_type="uint8")
    (source / "scale").mkdir(parents=True)
    (source / "info").write_text(json.dumps(document))
    (source / "scale/0.shard").write_bytes(shard([[(0, b"as it is")]]))
    assert run("unpack", source, tmp_path / "unpacked").returncode == 0
    assert (tmp_path / "unpacked/scale/0-2_0-2_0-2").read_bytes() == b"as it is"
    for number, command in enumerate((["unpack", "--decode"], ["unpack", "--view=v2"], ["pack"])):
        done = run(*command, source, tmp_path / str(number))
        assert done.returncode == 1
        assert f"skipped: scale: the codec 'neuroglancer.{encoding}'" in done.stderr
        assert not [name for name in files_below(tmp_path / str(number)) if name.startswith("scale")]
