"""Datasets of webKnossos through a mount: arrays of Zarr, which are only read."""

import errno
import json
import os
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardfs
from tests.support.commands import run, run_json
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter
from tests.support.s3_mounts import Remote
from tests.support.serving import served
from tests.support.wkw import LZ4, RAW, layer, read_wkw, write_properties, write_wkw

CASES: dict[str, tuple[str, str, int]] = {
    "raw": ("uint16", RAW, 1),
    "raw in channels": ("uint8", RAW, 3),
    "compressed": ("uint32", LZ4, 1),
    "compressed in channels": ("float32", LZ4, 2),
    "signed": ("int64", LZ4, 1),
}
SIZE = (37, 20, 18)


def values_of(data_type: str, channels: int, size: tuple[int, ...] = SIZE) -> np.ndarray:
    """Values that LZ4 makes smaller, none of which is zero."""
    return np.random.default_rng(3).integers(1, 5, (channels, *size)).astype(data_type)


def padded(values: np.ndarray, length: int = 16) -> np.ndarray:
    """The same up to the end of the files, which have this length."""
    return np.pad(values, [(0, 0), *((0, -n % length) for n in values.shape[1:])])


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray, str]:
    """A dataset with one array, `color/1`, of several files; all its values, and the kind of its blocks."""
    data_type, kind, channels = request.param
    values = values_of(data_type, channels, (20, 10, 18))
    write_wkw(tmp_path / "source" / "color" / "1", values, kind)
    return tmp_path / "source", padded(values), kind


def read_zarr(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3 specification")
        return np.asarray(zarr.open_array(str(path), mode="r"))


def succeed(*arguments: str | Path) -> str:
    """Run a command, which must succeed; returns what it prints."""
    done = run(*arguments)
    assert done.returncode == 0, str(done)
    return done.stdout + done.stderr


VIEWS = ["", "--decode", "--view=v2", "--view=v2 --decode"]


@pytest.mark.parametrize("options", VIEWS)
def test_values_are_those_that_the_library_reads(
    mount: Mounter, case: tuple[Path, np.ndarray, str], options: str
) -> None:
    source, values, _ = case
    assert np.array_equal(read_wkw(source / "color" / "1", values.shape[1:]), values)
    mounted = mount(source, arguments=options.split())
    root = mounted.path / "color" / "1"
    assert np.array_equal(read_zarr(root), values)
    names = set(os.listdir(root))
    assert "header.wkw" not in names
    assert not any(name.startswith("z") and name != "zarr.json" for name in names)
    files = [file for file in root.rglob("*") if file.is_file() and file.name[:1] not in (".", "z")]
    assert len(files) == values[0].size // 4**3
    for file in files[::10]:
        assert file.stat().st_size == len(file.read_bytes())


def test_each_block_is_a_file_byte_for_byte(mount: Mounter, case: tuple[Path, np.ndarray, str]) -> None:
    source, values, kind = case
    root = mount(source).path / "color" / "1"
    stored = (source / "color" / "1" / "z1" / "y0" / "x1.wkw").read_bytes()
    block = np.asfortranarray(values[:, 16:20, 0:4, 16:20])
    if kind == RAW:
        begin, nbytes = 16, block.nbytes
        data = stored[begin : begin + nbytes]
        assert data == block.tobytes(order="F")
    else:
        ends = struct.unpack_from("<2Q", stored, 8)
        data = block.nbytes.to_bytes(4, "little") + stored[ends[0] : ends[1]]
        nbytes, begin = ends[1] - ends[0], ends[0]
    file = root / "c" / "0" / "4" / "0" / "4"
    assert file.read_bytes() == data
    assert os.getxattr(file, "user.shardfs.shard") == b"color/1/z1/y0/x1.wkw"
    assert os.getxattr(file, "user.shardfs.offset") == b"%d" % begin
    assert os.getxattr(file, "user.shardfs.nbytes") == b"%d" % nbytes
    with file.open("rb", buffering=0) as opened:
        for at in (0, 1, 3, 4, 5, len(data) - 1, len(data)):
            assert os.pread(opened.fileno(), 7, at) == data[at : at + 7]


def test_commands_see_a_sharded_array(case: tuple[Path, np.ndarray, str], tmp_path: Path) -> None:
    source, values, kind = case
    stored = list(source.rglob("x*.wkw"))
    (item,) = run_json("info", "--json", source)["arrays"]
    assert item["path"] == "color/1"
    assert item["shape"] == list(values.shape)
    assert item["inner_chunk_shape"] == [len(values), 4, 4, 4]
    assert item["sharded"] is True
    assert item["reason"] is None
    assert item["shards"] == item["stored_shards"] == len(stored) == 4
    assert item["stored_nbytes"] == sum(path.stat().st_size for path in stored)
    assert item["inner_codecs"] == ["transpose", "bytes", *([] if kind == RAW else ["numcodecs.lz4"])]
    assert "color/1" in succeed("info", source)
    assert "zarr-python" in succeed("info", "--tools", source)
    (found,) = run_json("map", "--json", source)["arrays"]
    assert {each["chunks"] for each in found["shards"]} == {64}
    assert {each["dead"] for each in found["shards"]} == {0}
    assert "live" in succeed("map", source)
    for options in ([], ["--data"]):
        report = run_json("verify", "--json", *options, source)
        assert report["sound"]
        assert report["arrays"] == 1
    succeed("unpack", source, tmp_path / "unpacked")
    assert np.array_equal(read_zarr(tmp_path / "unpacked" / "color" / "1"), values)
    assert not list((tmp_path / "unpacked").rglob("*.wkw"))
    with shardfs.open(source) as dataset:
        chunk = dataset["color/1"].read_chunk((0, 4, 0, 4))
        assert chunk == (tmp_path / "unpacked" / "color" / "1" / "c" / "0" / "4" / "0" / "4").read_bytes()
        assert len(dataset["color/1"].shards()) == 4


@pytest.mark.parametrize("options", [[], ["--codecs=zstd"]], ids=["as they are", "zstd"])
def test_pack_makes_a_sharded_array(case: tuple[Path, np.ndarray, str], tmp_path: Path, options: list[str]) -> None:
    source, values, _ = case
    packed = tmp_path / "packed"
    (source / "color" / "1" / "note").write_text("beside")
    planned = succeed("pack", "--dry-run", *options, source, packed)
    assert ("copied encoded" if not options else "transcoded from") in planned
    assert not packed.exists()
    succeed("pack", *options, source, packed)
    assert np.array_equal(read_zarr(packed / "color" / "1"), values)
    found = zarr.open_array(str(packed / "color" / "1"), mode="r")
    assert found.shards is not None
    assert found.chunks == (len(values), 4, 4, 4)
    assert found.metadata.dimension_names == ("c", "x", "y", "z")
    assert (packed / "color" / "1" / "note").read_text() == "beside"
    assert not list(packed.rglob("*.wkw"))
    succeed("verify", source, packed)
    assert "0 objects stored" in succeed("pack", "--sync", *options, source, packed)


def test_the_bounding_box_says_how_large_an_array_is(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    values, half = values_of("uint8", 1, (37, 20, 18)), values_of("uint8", 1, (19, 10, 18))
    write_wkw(source / "color" / "1", values)
    write_wkw(source / "color" / "2-2-1", half)
    write_properties(source, layer("color", [(5, 0, 1), (30, 20, 16)]))
    root = mount(source).path
    assert np.array_equal(read_zarr(root / "color" / "1"), values[:, :35, :20, :17])
    assert np.array_equal(read_zarr(root / "color" / "2-2-1"), half[:, :18, :10, :17])
    attributes = dict(zarr.open_array(str(root / "color" / "2-2-1"), mode="r").attrs)
    assert attributes["bounding_box"] == {"top_left": [5, 0, 1], "size": [30, 20, 16]}
    assert attributes["magnification"] == [2, 2, 1]
    assert attributes["voxel_size"] == {"factor": [11.24, 11.24, 28], "unit": "nanometer"}
    assert json.loads((root / "datasource-properties.json").read_bytes())
    # The layer alone is a source too; its box is not known there.
    assert read_zarr(mount(source / "color").path / "1").shape == (1, 48, 32, 32)
    assert read_zarr(mount(source / "color" / "1").path).shape == (1, 48, 32, 32)


def test_a_dataset_that_changes_is_seen(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_wkw(source / "color" / "1", values_of("uint8", 1))
    write_properties(source, layer("color", [(0, 0, 0), (4, 4, 4)]))
    root = mount(source, metadata_ttl=0).path / "color" / "1"
    assert read_zarr(root).shape == (1, 4, 4, 4)
    write_properties(source, layer("color", [(0, 0, 0), (8, 4, 4)]))
    assert read_zarr(root).shape == (1, 8, 4, 4)
    assert os.listdir(root / "c" / "0") == ["0", "1"]
    (source / "datasource-properties.json").unlink()
    assert read_zarr(root).shape == (1, 48, 32, 32)
    with (root / "c/0/0/0/0").open("rb", buffering=0) as opened:
        before = opened.read(8)
        changed = tmp_path / "changed"
        write_wkw(changed, values_of("uint8", 1) + 100)
        (changed / "z0/y0/x0.wkw").rename(source / "color/1/z0/y0/x0.wkw")
        assert opened.read(8) != before[::-1] + b"x"
        assert os.pread(opened.fileno(), 8, 0) == before
    assert (root / "c/0/0/0/0").read_bytes()[:8] != before


def test_what_is_not_stored_has_no_files(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_wkw(source, values_of("uint8", 1))
    (source / "z0" / "y1" / "x1.wkw").unlink()
    (source / "z0" / "y0" / "x0.wkw_tmp").write_bytes(b"being written")
    (source / "z7").mkdir()
    root = mount(source).path
    assert not (root / "c/0/4/4/0").exists()
    assert sorted(map(int, os.listdir(root / "c/0"))) == list(range(12))
    assert sorted(map(int, os.listdir(root / "c/0/4/0"))) == list(range(8))
    assert sorted(map(int, os.listdir(root / "c/0/4/4"))) == list(range(4, 8))
    values = read_zarr(root)
    assert not values[:, 16:32, 16:32, :16].any()
    with pytest.raises(FileNotFoundError):
        (root / "z0").stat()


def test_damage_is_an_error_for_what_it_touches(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_wkw(source, values_of("uint8", 1, (64, 8, 8)), LZ4, blocks=2)
    files = [source / "z0" / "y0" / f"x{x}.wkw" for x in range(8)]
    ends = np.frombuffer(files[0].read_bytes()[16:80], "<u8").copy()
    ends[1], ends[3], ends[6] = (
        10,
        2**40,
        ends[5],
    )  # a block that ends before it begins, one beyond the end, an empty one
    files[0].write_bytes(files[0].read_bytes()[:16] + ends.tobytes() + files[0].read_bytes()[80:])
    files[1].write_bytes(files[1].read_bytes()[:50])  # cut off in the index
    files[2].write_bytes(b"text" * 100)
    files[3].write_bytes(files[3].read_bytes()[:8] + bytes(8) + files[3].read_bytes()[16:])
    bomb = bytearray(files[4].read_bytes())
    bomb[80:90] = b"\x1f\0\1\0" + b"\xff" * 6  # a run of zeros without end
    files[4].write_bytes(bomb)
    mounted = mount(source)
    mounted.expect("unreadable|names bytes|no header|no space|begin at byte")
    root = mounted.path / "c" / "0"
    names = {f"{x}/{y}/{z}" for x in range(16) for y in range(2) for z in range(2)}
    others = {name for name in names if int(name.split("/")[0]) < 2 or int(name.split("/")[0]) >= 8}
    damaged = names - others | {"1/0/0", "1/1/0", "0/0/1", "0/1/1"}
    for name in names - damaged:
        assert (root / name).read_bytes()
    for name in damaged:
        with pytest.raises(OSError, match="Input/output") as raised:
            (root / name).read_bytes()
        assert raised.value.errno == errno.EIO
    decoded = mount(source, arguments=["--decode"])
    decoded.expect("unreadable|names bytes|no header|no space|begin at byte|does not decode")
    with pytest.raises(OSError, match="Input/output"):
        (decoded.path / "c/0/8/0/0").read_bytes()
    assert decoded.peak_memory() < 250 * 2**20
    values = zarr.open_array(str(decoded.path), mode="r")[0, 40:]
    assert np.array_equal(values, values_of("uint8", 1, (64, 8, 8))[0, 40:])
    report = run_json("verify", "--json", source, status=1)
    assert {each["shard"] for each in report["problems"]} == {f"z0/y0/x{x}.wkw" for x in range(4)}
    report = run_json("verify", "--json", "--data", source, status=1)
    assert {each["shard"] for each in report["problems"]} == {f"z0/y0/x{x}.wkw" for x in range(5)}


@pytest.mark.parametrize("bits", [0x8F, 0xFF, 0x7F])
@pytest.mark.parametrize("kind", [1, 2])
def test_huge_lengths_are_a_reason_to_show_what_is_stored(mount: Mounter, tmp_path: Path, bits: int, kind: int) -> None:
    source = tmp_path / "source"
    (source / "bad" / "z0" / "y0").mkdir(parents=True)
    data = b"WKW" + bytes([1, bits, kind, 1, 1]) + bytes(8)
    (source / "bad" / "header.wkw").write_bytes(data)
    (source / "bad" / "z0" / "y0" / "x0.wkw").write_bytes(data)
    write_wkw(source / "good", values_of("uint8", 1))
    mounted = mount(source)
    assert (mounted.path / "bad" / "header.wkw").read_bytes() == data
    assert (mounted.path / "bad" / "z0" / "y0" / "x0.wkw").read_bytes() == data
    assert os.getxattr(mounted.path / "bad", "user.shardfs.reason")
    assert "bad is shown as stored" in mounted.log
    assert read_zarr(mounted.path / "good").any()
    assert mounted.peak_memory() < 250 * 2**20
    (item,) = run_json("info", "--json", source, "bad")["arrays"]
    assert item["reason"]


def test_a_large_block_is_read_in_pieces(mount: Mounter, tmp_path: Path) -> None:
    """A file that claims a block of 8 GiB, and has it, as a hole."""
    source = tmp_path / "source"
    (source / "z0" / "y0").mkdir(parents=True)
    data = b"WKW" + bytes([1, 0x0B, 1, 1, 1])
    (source / "header.wkw").write_bytes(data + bytes(8))
    file = source / "z0" / "y0" / "x0.wkw"
    file.write_bytes(data + struct.pack("<Q", 16))
    os.truncate(file, 16 + 2**33)
    mounted = mount(source)
    with (mounted.path / "c/0/0/0/0").open("rb", buffering=0) as opened:
        assert os.fstat(opened.fileno()).st_size == 2**33
        assert os.pread(opened.fileno(), 10, 2**33 - 5) == bytes(5)
    assert mounted.peak_memory() < 250 * 2**20


def test_a_writing_mount_changes_nothing_of_an_array(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_wkw(source / "color" / "1", values_of("uint8", 1))
    store(source / "image", array((4, 4), (4, 4), sharding((2, 2), LITTLE)))
    before = files_below(source)
    mounted = mount(source, write=True)
    mounted.expect("only read|not shown")
    root = mounted.path / "color" / "1"
    chunk = root / "c" / "0" / "0" / "0" / "0"
    (mounted.path / "note").write_text("x")
    refused: list[Callable[[], object]] = [
        lambda: chunk.write_bytes(b"2"),
        chunk.unlink,
        lambda: os.truncate(chunk, 0),
        lambda: os.utime(chunk),
        lambda: chunk.chmod(0o600),
        lambda: chunk.rename(root / "elsewhere"),
        lambda: (mounted.path / "note").rename(chunk),
        lambda: (root / "c" / "0" / "99").mkdir(),
        lambda: (root / "zarr.json").write_text("{}"),
        (root / "zarr.json").unlink,
        lambda: (root / "zarr.json").rename(root / "other"),
        lambda: (mounted.path / "note").rename(root / "zarr.json"),
        lambda: (root / "zarr.json").chmod(0o600),
        lambda: os.setxattr(root / "zarr.json", "user.x", b"1"),
        lambda: (root / "header.wkw").write_bytes(b""),
        lambda: (root / "z0").mkdir(),
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
    assert {path: data for path, data in after.items() if "color" in str(path)} == {
        path: data for path, data in before.items() if "color" in str(path)
    } | {path: b"by hand" for path in after if str(path).endswith("provenance")}
    report = run_json("compact", "--json", source)
    assert "only read" in report["left"][0]["reason"]
    succeed("recover", source)
    kept = {path: data for path, data in files_below(source).items() if str(path).endswith(".wkw")}
    assert kept == {path: data for path, data in before.items() if str(path).endswith(".wkw")}


def test_files_outside_of_the_bounding_box_are_skipped_and_named(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_wkw(source / "color" / "1", values_of("uint8", 1))
    write_properties(source, layer("color", [(0, 0, 0), (16, 16, 16)]))
    root = mount(source).path
    assert os.listdir(root / "color/1/c/0") == ["0", "1", "2", "3"]
    assert run_json("info", "--json", source)["arrays"][0]["stored_shards"] == 1
    assert "no chunk of the array" in succeed("pack", source, tmp_path / "packed")


def test_a_dataset_in_a_bucket(remote: Remote) -> None:
    """Each block takes one request, once the index of its file is known."""
    values = values_of("uint16", 1)
    write_wkw(remote.local / "color" / "1", values, LZ4)
    remote.upload("color")
    root = remote.mount() / "color" / "1"
    assert np.array_equal(read_zarr(root), padded(values))
    fresh = remote.mount() / "color" / "1"
    (fresh / "c/0/0/0/0").read_bytes()
    remote.taken()
    (fresh / "c/0/0/0/1").read_bytes()
    assert [request.method for request in remote.taken()] in (["GET"], [])


def test_a_dataset_is_served(tmp_path: Path) -> None:
    source, values = tmp_path / "source", values_of("uint16", 1)
    write_wkw(source / "color" / "1", values, LZ4)
    with served(source) as site:
        document = json.loads(site.ask("/color/1/zarr.json").body)
        assert document["shape"] == [1, 48, 32, 32]
        reply = site.ask("/color/1/c/0/0/0/0")
        with shardfs.open(source) as dataset:
            assert reply.body == dataset["color/1"].read_chunk((0, 0, 0, 0))
        assert site.ask("/-/v2/color/1/.zarray").status == 200
