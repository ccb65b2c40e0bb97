"""Arrays of Blosc2 b2nd through a mount: arrays of Zarr, which are only read."""

import errno
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.b2nd import GEOMETRIES, Geometry, blosc2, grid, read_b2nd, write_b2nd
from tests.support.commands import run, run_json
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.serving import served
from tests.support.web_server import web_server

SMALL = GEOMETRIES["two axes"]
SOME = ["two axes", "two axes, partly filled"]
VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode"]


def read_zarr(path: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(str(path), mode="r")[()])


def succeed(*arguments: str | Path) -> str:
    """Run a command, which must succeed; returns what it prints."""
    done = run(*arguments)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path, np.ndarray]]:
    """Every geometry as a contiguous and as a sparse frame, with the values that the library reads of both."""
    root = tmp_path_factory.mktemp("b2nd")
    written = {}
    for name, geometry in GEOMETRIES.items():
        path = name.replace(", ", "-").replace(" ", "-")
        values = write_b2nd(root / "files" / f"{path}.b2nd", geometry)
        assert np.array_equal(write_b2nd(root / "trees" / path, geometry, sparse=True), values)
        written[name] = root / "files" / f"{path}.b2nd", root / "trees" / path, values
    return written


@pytest.mark.parametrize("options", VIEWS)
def test_sparse_frames_in_a_tree_have_the_values_that_the_library_reads(
    mount: Mounter, every: dict[str, tuple[Path, Path, np.ndarray]], options: str
) -> None:
    root = mount(next(iter(every.values()))[1].parent, arguments=options.split()).path
    for name, (_, tree, values) in every.items():
        found = read_zarr(root / tree.name)
        assert np.array_equal(found, values), name
        names = os.listdir(root / tree.name)
        assert not any("b2frame" in name or name.endswith(".chunk") for name in names)


@pytest.mark.parametrize("options", VIEWS)
@pytest.mark.parametrize("name", SOME)
def test_a_file_is_a_source(
    mount: Mounter, every: dict[str, tuple[Path, Path, np.ndarray]], name: str, options: str
) -> None:
    file, _, values = every[name]
    root = mount(file, arguments=options.split()).path
    assert np.array_equal(read_zarr(root), values)
    assert "chunks.b2frame" not in os.listdir(root)


def test_every_geometry_is_read_and_unpacked_without_a_mount(
    every: dict[str, tuple[Path, Path, np.ndarray]], tmp_path: Path
) -> None:
    for name, (file, tree, values) in every.items():
        for source in (file, tree) if name in SOME else (file,):
            with shardfs.open(source) as dataset:
                found = zarr.open_array(dataset.store(), mode="r")
                assert np.array_equal(found[()], values), (name, source)
                assert found.chunks == GEOMETRIES[name].shown
                assert found.shape == GEOMETRIES[name].shape
    file, _, values = every["two axes"]
    succeed("unpack", file, tmp_path / "unpacked")
    assert np.array_equal(read_zarr(tmp_path / "unpacked"), values)


@pytest.mark.parametrize("sparse", [False, True], ids=["contiguous", "sparse"])
@pytest.mark.parametrize("name", SOME)
def test_each_chunk_file_is_a_block_or_a_chunk_as_it_was_written(
    mount: Mounter, every: dict[str, tuple[Path, Path, np.ndarray]], name: str, *, sparse: bool
) -> None:
    geometry, values = GEOMETRIES[name], every[name][2]
    source = every[name][sparse]
    root = mount(source).path
    full = np.pad(values, [(0, -n % edge) for n, edge in zip(values.shape, geometry.shown, strict=True)])
    absent = 0
    for coords in grid(geometry.shape, geometry.shown):
        file = root.joinpath("c", *map(str, coords))
        part = full[tuple(slice(i * edge, (i + 1) * edge) for i, edge in zip(coords, geometry.shown, strict=True))]
        if not file.exists():
            assert not part.any()
            absent += 1
            continue
        expected = part.astype(geometry.dtype).tobytes()
        assert file.stat().st_size == len(expected)
        with file.open("rb", buffering=0) as opened:
            assert opened.read() == expected
            assert os.pread(opened.fileno(), 7, len(expected) - 3) == expected[-3:]
        shard = os.getxattr(file, "user.shardfs.shard").decode()
        assert shard.endswith(".chunk") if sparse else shard == "chunks.b2frame"
    assert absent
    listed = {path.relative_to(root / "c") for path in (root / "c").rglob("*") if path.is_file()}
    assert len(listed) == len(list(grid(geometry.shape, geometry.shown))) - absent


def test_a_file_of_the_same_size_in_its_place_is_never_read_by_the_old_header(tmp_path: Path) -> None:
    source, other = tmp_path / "a.b2nd", tmp_path / "b.b2nd"
    write_b2nd(source, SMALL._replace(blocks=(10, 20), cparams={"clevel": 0}))
    write_b2nd(other, SMALL._replace(blocks=(20, 10), cparams={"clevel": 0}))
    assert source.stat().st_size == other.stat().st_size
    with shardfs.open(other) as dataset:
        expected = [dataset[""].read_chunk((2, 4)), dataset[""].read_chunk((1, 3))]
    with shardfs.open(source, metadata_ttl=600) as dataset:
        assert dataset[""].metadata["chunk_grid"]["configuration"]["chunk_shape"] == [10, 20]
        other.replace(source)
        assert dataset[""].read_chunk((1, 1)) is not None
        assert [dataset[""].read_chunk((2, 4)), dataset[""].read_chunk((1, 3))] == expected
        assert dataset[""].metadata["chunk_grid"]["configuration"]["chunk_shape"] == [20, 10]


def test_a_file_that_is_emptied_is_an_error_and_no_fill_value(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "a.b2nd"
    write_b2nd(source, SMALL)
    mounted = mount(source, metadata_ttl=0)
    array = zarr.open_array(str(mounted.path), mode="r")
    os.truncate(source, 0)
    for _ in range(3):
        with pytest.raises(OSError, match=r"Input/output|Stale"):
            array[()]
    mounted.expect("is not what it was")


def test_a_listing_decodes_nothing(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "a.b2nd"
    write_b2nd(source, SMALL)
    data = bytearray(source.read_bytes())
    (header_nbytes,) = struct.unpack_from(">i", data, 11)
    data[header_nbytes + 48 : header_nbytes + 400] = bytes(352)  # of the first stored chunk
    source.write_bytes(data)
    mounted = mount(source)
    mounted.expect("Blosc2")
    sizes = {path.stat().st_size for path in (mounted.path / "c").rglob("*") if path.is_file()}
    assert sizes == {10 * 10 * 2}


def test_commands_see_a_sharded_array(every: dict[str, tuple[Path, Path, np.ndarray]], tmp_path: Path) -> None:
    for source, nshards in ((every["two axes"][0], 1), (every["two axes"][1], 6)):
        (item,) = run_json("info", "--json", source)["arrays"]
        assert item["shape"] == [60, 50]
        assert item["inner_chunk_shape"] == [10, 10]
        assert item["sharded"] is True
        assert item["reason"] is None
        assert item["stored_shards"] == nshards
        assert "zarr-python" in succeed("info", "--tools", source)
        (found,) = run_json("map", "--json", source)["arrays"]
        assert sum(each["chunks"] for each in found["shards"]) == 4 * 5 - 4 + 4
        for options in ([], ["--data"]):
            report = run_json("verify", "--json", *options, source)
            assert report["sound"]
            assert report["arrays"] == 1
    with shardfs.open(every["two axes"][0]) as dataset:
        assert dataset[""].read_chunk((3, 2)) == every["two axes"][2][30:40, 20:30].tobytes()
        assert len(dataset[""].shards()) == 1


@pytest.mark.parametrize("options", [[], ["--codecs=zstd"]], ids=["as they are", "zstd"])
def test_pack_makes_sharded_arrays(
    every: dict[str, tuple[Path, Path, np.ndarray]], tmp_path: Path, options: list[str]
) -> None:
    trees = every["two axes"][1].parent
    succeed("pack", *options, trees, tmp_path / "packed")
    for name, (_, tree, values) in every.items():
        assert np.array_equal(read_zarr(tmp_path / "packed" / tree.name), values), name
    assert not list((tmp_path / "packed").rglob("*.b2frame"))
    assert not list((tmp_path / "packed").rglob("*.chunk"))
    succeed("verify", trees, tmp_path / "packed")
    assert "0 objects stored" in succeed("pack", "--sync", *options, trees, tmp_path / "packed")
    file, _, values = every["two axes"]
    succeed("pack", *options, file, tmp_path / "file")
    found = zarr.open_array(str(tmp_path / "file"), mode="r")
    assert found.shards is not None
    assert found.chunks == (10, 10)
    assert np.array_equal(found[()], values)


def written(path: Path, value: float, *, sparse: bool) -> Any:
    """An array of 60 × 50 float32 in one of the ways in which the library stores a single value."""
    how = {"urlpath": str(path), "mode": "w", "contiguous": not sparse, "chunks": (20, 20), "blocks": (10, 10)}
    if np.isnan(value):
        return blosc2.nans((60, 50), dtype="f4", **how)
    if not value:
        return blosc2.zeros((60, 50), dtype="f4", **how)
    return blosc2.full((60, 50), value, dtype="f4", **how)


@pytest.mark.parametrize("sparse", [False, True], ids=["contiguous", "sparse"])
def test_chunks_that_are_not_stored_have_their_values(mount: Mounter, tmp_path: Path, *, sparse: bool) -> None:
    for name, value in {"zeros": 0.0, "sevens": 7.0, "nans": float("nan")}.items():
        path = tmp_path / f"{name}.b2nd"
        stored = written(path, value, sparse=sparse)
        stored[20:40, :20] = np.arange(400).reshape(20, 20)
        stored[45:, 45:] = 3
        values = read_b2nd(path)
        assert (values[0, 0] == value) or np.isnan(value)
        with shardfs.open(path) as dataset:
            found = zarr.open_array(dataset.store(), mode="r")[()]
            np.testing.assert_array_equal(found, values)
        root = mount(path).path
        np.testing.assert_array_equal(read_zarr(root), values)
        assert (root / "c" / "0" / "0").exists() == (name == "sevens" or (name == "nans" and not sparse))
    empty = tmp_path / "empty.b2nd"
    how = {"urlpath": str(empty), "mode": "w", "contiguous": not sparse}
    assert blosc2.empty((60, 50), dtype="f4", **how).shape == (60, 50)
    with shardfs.open(empty) as dataset:
        assert not zarr.open_array(dataset.store(), mode="r")[()].any()
    for shape in ((0, 50), ()):
        shutil.rmtree(empty) if sparse else empty.unlink()
        blosc2.asarray(np.full(shape, 5.0), **how)
        with shardfs.open(empty) as dataset:
            assert np.array_equal(zarr.open_array(dataset.store(), mode="r")[()], np.full(shape, 5.0))


def test_zeros_and_nans_that_are_not_stored_go_together_in_one_file_alone(mount: Mounter, tmp_path: Path) -> None:
    for sparse in (False, True):
        path = tmp_path / f"{sparse}.b2nd"
        stored = written(path, float("nan"), sparse=sparse)
        stored[:20, :20] = 0
        values = read_b2nd(path)
        mounted = mount(path)
        mounted.expect("one fill value")
        if sparse:
            assert "one fill value" in mounted.log
            assert "one fill value" in run_json("info", "--json", path)["arrays"][0]["reason"]
        else:
            np.testing.assert_array_equal(read_zarr(mounted.path), values)


@pytest.mark.parametrize("sparse", [False, True], ids=["contiguous", "sparse"])
def test_an_array_that_grows_is_seen(mount: Mounter, tmp_path: Path, *, sparse: bool) -> None:
    """The library puts new chunks behind the others, whatever their location in the array."""
    path = tmp_path / "a.b2nd"
    write_b2nd(path, SMALL, sparse=sparse)
    root = mount(path, metadata_ttl=0).path
    assert np.array_equal(read_zarr(root), read_b2nd(path))
    stored = blosc2.open(str(path), mode="a")
    stored[:20, :20] = np.random.default_rng(1).integers(0, 9, (20, 20))
    assert np.array_equal(read_zarr(root), read_b2nd(path))
    stored.resize((60, 95))
    stored[:, 50:] = np.random.default_rng(2).integers(0, 9, (60, 45))
    values = read_b2nd(path)
    assert values.shape == (60, 95)
    assert np.array_equal(read_zarr(root), values)


def test_verify_calls_a_file_that_is_cut_off_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    write_b2nd(path, SMALL)
    os.truncate(path, path.stat().st_size - 1)
    assert "cut off" in run_json("verify", "--json", path, status=1)["problems"][0]["message"]
    assert run("pack", path, tmp_path / "packed").returncode != 0


def test_a_file_in_a_tree_passes_through(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_b2nd(source / "a.b2nd", SMALL)
    values = write_b2nd(source / "tree", SMALL, sparse=True)
    store(source / "image", array((4, 4), (4, 4), sharding((2, 2), LITTLE)))
    root = mount(source).path
    assert (root / "a.b2nd").read_bytes() == (source / "a.b2nd").read_bytes()
    assert np.array_equal(read_zarr(root / "tree"), values)
    assert zarr.open_array(str(root / "image"), mode="r").chunks == (2, 2)
    assert {item["path"] for item in run_json("info", "--json", source)["arrays"]} == {"image", "tree"}


@pytest.mark.parametrize(
    ("dtype", "message"), [("<U3", "'<U3'"), ("|S4", "'|S4'"), ([("a", "<i4"), ("b", "<f8")], "('a', '<i4')")]
)
def test_dtypes_without_a_form_that_all_read_are_named(tmp_path: Path, dtype: object, message: str) -> None:
    path = tmp_path / "a.b2nd"
    blosc2.asarray(np.zeros(5, dtype), urlpath=str(path), mode="w")
    (item,) = run_json("info", "--json", path)["arrays"]
    assert message in item["reason"]


def test_codecs_and_filters_that_need_the_whole_array_are_named(tmp_path: Path) -> None:
    values = np.arange(400, dtype="f4").reshape(20, 20)
    codecs = {"zfp_rate": {"codec": blosc2.Codec.ZFP_RATE, "codec_meta": 50, "filters": [], "filters_meta": []}}
    filters = {"ndcell": {"filters": [blosc2.Filter.NDCELL], "filters_meta": [4]}}
    for name, cparams in (codecs | filters).items():
        path = tmp_path / f"{name}.b2nd"
        blosc2.asarray(values, urlpath=str(path), mode="w", chunks=(20, 20), blocks=(10, 10), cparams=cparams)
        assert name in run_json("info", "--json", path)["arrays"][0]["reason"]


def damaged(path: Path, change: Callable[[bytearray, int], None]) -> None:
    """Change the bytes of a frame; *change* also gets where its chunks begin."""
    data = bytearray(path.read_bytes())
    change(data, struct.unpack_from(">i", data, 11)[0])
    path.write_bytes(data)


def test_damage_is_an_error_for_what_it_touches(mount: Mounter, tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    geometry = Geometry((80, 20), (20, 20), (10, 10), "<i4", {"clevel": 0})
    values = write_b2nd(path, geometry, np.random.default_rng(1).integers(1, 2**31, (80, 20)).astype("<i4"))
    nbytes = 20 * 20 * 4 + 32
    assert path.stat().st_size > 4 * nbytes

    def change(data: bytearray, begin: int) -> None:
        data[begin + 4 : begin + 8] = struct.pack("<i", 2**31 - 1)  # a chunk that decodes to 2 GiB
        data[begin + nbytes + 12 : begin + nbytes + 16] = struct.pack("<i", 2**31 - 1)  # one that is stored in 2 GiB
        index = begin + 4 * nbytes + 32
        assert data[index + 16 : index + 24] == struct.pack("<q", 2 * nbytes)
        data[index + 16 : index + 24] = struct.pack("<q", 2**62)  # one that is out of the file

    damaged(path, change)
    mounted = mount(path)
    mounted.expect("unreadable|names bytes|decodes to|bytes in blocks")
    root = mounted.path / "c"
    for coords in grid((80, 20), (10, 10)):
        file = root.joinpath(*map(str, coords))
        if coords[0] < 6:
            with pytest.raises(OSError, match="Input/output") as raised:
                file.read_bytes()
            assert raised.value.errno == errno.EIO
        else:
            part = values[coords[0] * 10 : coords[0] * 10 + 10, coords[1] * 10 : coords[1] * 10 + 10]
            assert file.read_bytes() == part.tobytes()
    assert sorted(map(int, os.listdir(root))) == list(range(8))
    assert mounted.peak_memory() < 250 * 2**20
    report = run_json("verify", "--json", "--data", path, status=1)
    first = {each["chunk"].split("/")[1] for each in report["problems"]}
    assert first == {"0", "1", "2", "3", "4"}, "the third chunk is one problem, which is named by its first block"
    assert run("pack", path, tmp_path / "packed").returncode != 0


@pytest.mark.parametrize(
    ("at", "number", "message"),
    [
        (16, struct.pack(">Q", 2**62), "cut off"),
        (11, struct.pack(">i", 2**31 - 1), "header of"),
        (39, struct.pack(">q", 2**40), "not within the file"),
        (30, struct.pack(">q", 2**62), "are not those of its array"),
        (58, struct.pack(">i", 2**31 - 1), "are not those of its array"),
    ],
)
def test_huge_numbers_are_a_reason_to_show_what_is_stored(
    mount: Mounter, tmp_path: Path, at: int, number: bytes, message: str
) -> None:
    path = tmp_path / "a.b2nd"
    write_b2nd(path, SMALL)

    def change(data: bytearray, begin: int) -> None:
        data[at : at + len(number)] = number

    damaged(path, change)
    mounted = mount(path)
    assert os.listdir(mounted.path) == ["chunks.b2frame"]
    assert (mounted.path / "chunks.b2frame").read_bytes() == path.read_bytes()
    assert message in os.getxattr(mounted.path, "user.shardfs.reason").decode()
    assert "is shown as stored" in mounted.log
    mounted.expect("is shown as stored")
    assert mounted.peak_memory() < 250 * 2**20


def test_a_large_file_in_place_of_a_chunk_is_not_read(mount: Mounter, tmp_path: Path) -> None:
    path = tmp_path / "a"
    values = write_b2nd(path, SMALL, sparse=True)
    os.truncate(path / "00000005.chunk", 2**33)
    mounted = mount(path)
    mounted.expect("too large")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "c/2/4").read_bytes() and (mounted.path / "c/4/4").read_bytes()
    assert (mounted.path / "c/2/0").read_bytes() == values[20:30, :10].astype(">i2").tobytes()
    assert mounted.peak_memory() < 250 * 2**20


def test_a_missing_file_of_a_chunk_is_an_error_for_that_chunk_as_for_the_library(
    mount: Mounter, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    values = write_b2nd(path, SMALL, sparse=True)
    assert values[40:, 40:].any()
    (path / "00000005.chunk").unlink()
    frame = blosc2.open(str(path))
    with pytest.raises(RuntimeError):
        frame[40:, 40:]
    assert np.array_equal(frame[:40], values[:40])
    mounted = mount(path)
    mounted.expect("00000005.chunk is missing")
    lost = {"4/4", "5/4"}
    for coords in grid(SMALL.shape, SMALL.shown):
        chunk = mounted.path.joinpath("c", *map(str, coords))
        part = values[tuple(slice(10 * i, 10 * i + 10) for i in coords)]
        if "/".join(map(str, coords)) in lost:
            with pytest.raises(OSError, match="Input/output"):
                chunk.read_bytes()
        elif chunk.exists():
            assert chunk.read_bytes() == part.tobytes()
        else:
            assert not part.any()
    assert lost <= {str(chunk.relative_to(mounted.path / "c")) for chunk in (mounted.path / "c").rglob("*")}
    (problem,) = run_json("verify", "--json", path, status=1)["problems"]
    assert problem["shard"] == "00000005.chunk"
    assert "is missing" in problem["message"]
    (item,) = run_json("info", "--json", path)["arrays"]
    assert item["reason"] is None
    assert "00000005.chunk is missing" in item["error"]
    drawn = succeed("map", path)
    assert re.search(r"00000005.chunk: 0 .*, damaged: 00000005.chunk is missing", drawn)
    assert "? dead" not in drawn
    packed = run("pack", path, tmp_path / "packed")
    assert packed.returncode != 0
    assert "00000005.chunk is missing" in packed.stderr
    assert np.array_equal(read_zarr(tmp_path / "packed")[:40], values[:40])


def test_an_empty_file_of_a_chunk_is_damage_and_no_chunk_of_nans(mount: Mounter, tmp_path: Path) -> None:
    values = write_b2nd(tmp_path / "a", SMALL._replace(dtype="<f4"), sparse=True)
    (tmp_path / "a/00000005.chunk").write_bytes(b"")
    mounted = mount(tmp_path / "a")
    mounted.expect("is empty")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "c/4/4").read_bytes()
    assert (mounted.path / "c/3/4").read_bytes() == values[30:40, 40:50].tobytes()
    problems = run_json("verify", "--json", "--data", tmp_path / "a", status=1)["problems"]
    assert "c/4/4" in {problem["chunk"] for problem in problems}
    assert all("is empty" in problem["message"] for problem in problems)


def test_a_file_that_is_removed_while_it_is_mounted_is_no_array_of_zeros(mount: Mounter, tmp_path: Path) -> None:
    write_b2nd(tmp_path / "a.b2nd", SMALL)
    mounted = mount(tmp_path / "a.b2nd", metadata_ttl=3600)
    assert (mounted.path / "zarr.json").read_bytes()
    (tmp_path / "a.b2nd").unlink()
    mounted.expect("is missing")
    with pytest.raises(OSError, match="Input/output"):
        (mounted.path / "c/4/4").read_bytes()


def test_a_writing_mount_changes_nothing_of_an_array(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_b2nd(source / "tree", SMALL, sparse=True)
    write_b2nd(source / "a.b2nd", SMALL)
    store(source / "image", array((4, 4), (4, 4), sharding((2, 2), LITTLE)))
    before = files_below(source)
    mounted = mount(source, write=True)
    mounted.expect("only read|not shown")
    root = mounted.path / "tree"
    chunk = root / "c" / "4" / "4"
    refused: list[Callable[[], object]] = [
        lambda: chunk.write_bytes(b"2"),
        chunk.unlink,
        lambda: os.truncate(chunk, 0),
        lambda: chunk.rename(root / "elsewhere"),
        lambda: (root / "zarr.json").write_text("{}"),
        (root / "zarr.json").unlink,
        lambda: (root / "chunks.b2frame").write_bytes(b""),
        lambda: (root / "00000001.chunk").write_bytes(b""),
        lambda: shutil.rmtree(root / "c"),
    ]
    for change in refused:
        with pytest.raises(OSError, match="Read-only") as raised:
            change()
        assert raised.value.errno == errno.EROFS
    (root / "provenance").write_text("by hand")
    (mounted.path / "image" / "c" / "0" / "1").write_bytes(b"new!" * 2)
    mounted.unmount()
    after = files_below(source)
    kept = {path: data for path, data in before.items() if "image" not in str(path)}
    assert kept.items() <= after.items()
    assert "only read" in run_json("compact", "--json", source)["left"][0]["reason"]
    succeed("recover", source)
    assert kept.items() <= files_below(source).items()
    assert run("mount", "--write", source / "a.b2nd", tmp_path / "mnt").returncode != 0


def test_files_and_directories_in_a_bucket(mount: Mounter, remote: Remote) -> None:
    """A chunk takes one request, once the index is known; other blocks of it take none."""
    values = write_b2nd(remote.local / "tree", SMALL, sparse=True)
    write_b2nd(remote.local / "a.b2nd", SMALL)
    remote.upload("tree")
    remote.put("a.b2nd", (remote.local / "a.b2nd").read_bytes())
    assert np.array_equal(read_zarr(remote.mount() / "tree"), values)
    env = remote.bucket.through(remote.proxy.url).environment
    root = mount(f"{remote.url}/a.b2nd", env=env).path
    assert np.array_equal(read_zarr(root), values)
    root = mount(f"{remote.url}/a.b2nd", env=env).path
    assert (root / "c/4/4").read_bytes()
    remote.taken()
    assert (root / "c/4/2").read_bytes()
    assert [request.method for request in remote.taken()] in (["GET"], [])
    assert (root / "c/5/3").read_bytes()
    assert not remote.taken()


def test_a_file_on_a_web_server(mount: Mounter, tmp_path: Path) -> None:
    values = write_b2nd(tmp_path / "a b.b2nd", SMALL)
    with web_server(tmp_path) as server:
        assert np.array_equal(read_zarr(mount(f"{server.url}/a%20b.b2nd").path), values)


def test_a_file_is_served(tmp_path: Path) -> None:
    values = write_b2nd(tmp_path / "a.b2nd", SMALL)
    with served(tmp_path / "a.b2nd") as site:
        assert json.loads(site.ask("/zarr.json").body)["shape"] == [60, 50]
        assert site.ask("/c/3/2").body == values[30:40, 20:30].astype(">i2").tobytes()
        assert site.ask("/-/v2/.zarray").status == 200
