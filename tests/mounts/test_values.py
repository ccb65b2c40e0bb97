"""Meshes, skeletons and annotations in shards, through a mount: files by id, as the unsharded form has them."""

import errno
import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

from shardfs.dataset.hierarchy import open_source as open_web_source
from shardfs.dataset.maintenance.walk import NO_ZARR, foreign_format
from shardfs.errors import StaleError
from shardfs.stores.base import Kind, ListedName
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.options import TreeOptions
from shardfs.vfs.paths import open_paths
from tests.support.clients import CLOUD_VOLUME
from tests.support.commands import run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.opened import find, in_trio, list_directory, open_source, open_tree, read_file
from tests.support.precomputed import info, minishard_index, scale, sharding, write_volume
from tests.support.serving import served
from tests.support.web_server import web_server

IDS = [0, 1, 7, 8, 255, 256, 10**6, 2**40 + 3, 2**63, 2**64 - 1]
SPECIFICATIONS = {
    "identity raw": sharding(1, "identity", 2, 2),
    "murmur gzip": sharding(0, "murmurhash3_x86_128", 3, 2, "gzip", "gzip"),
    "one shard": sharding(0, "identity", 0, 0, "gzip", "raw"),
}
every_sharding = pytest.mark.parametrize("specification", SPECIFICATIONS.values(), ids=SPECIFICATIONS)
SKELETONS = {
    "@type": "neuroglancer_skeletons",
    "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "vertex_attributes": [],
}
MESHES = {
    "@type": "neuroglancer_multilod_draco",
    "vertex_quantization_bits": 10,
    "transform": SKELETONS["transform"],
    "lod_scale_multiplier": 1.0,
}


def write_values(directory: Path, specification: dict[str, Any], values: dict[int, bytes]) -> None:
    """Write values by id, by tensorstore."""
    spec = {
        "driver": "neuroglancer_uint64_sharded",
        "base": {"driver": "file", "path": f"{directory}/"},
        "metadata": specification,
    }
    with tensorstore.Transaction() as transaction:
        store = tensorstore.KvStore.open(spec).result().with_transaction(transaction)
        for value_id, value in values.items():
            store[struct.pack(">Q", value_id)] = value


def write_info(directory: Path, document: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "info").write_text(json.dumps(document))


def skeleton(value_id: int) -> bytes:
    """Two vertices and an edge, of an object with this id."""
    return struct.pack("<II", 2, 1) + np.arange(6, dtype="<f4").tobytes() + struct.pack("<II", 0, 1) + b"" * value_id


def values_of(ids: list[int]) -> dict[int, bytes]:
    return {value_id: f"value {value_id} ".encode() * (value_id % 5 + 1) for value_id in ids}


@every_sharding
def test_each_skeleton_is_a_file(mount: Mounter, tmp_path: Path, specification: dict[str, Any]) -> None:
    source, values = tmp_path / "skeletons", values_of(IDS)
    write_info(source, SKELETONS | {"sharding": specification})
    (source / "notes.txt").write_text("beside")
    write_values(source, specification, values)
    root = mount(source).path
    assert sorted(os.listdir(root)) == sorted([*map(str, IDS), "info", "notes.txt"])
    assert json.loads((root / "info").read_bytes()) == SKELETONS
    for value_id, value in values.items():
        assert (root / str(value_id)).read_bytes() == value
        assert (root / str(value_id)).stat().st_size == len(value)
    for absent in ("2", "007", "-1", str(2**64), "1.index", "0.shard", "1_2"):
        assert not (root / absent).exists()
    assert {entry.name: entry.stat().st_size for entry in os.scandir(root) if entry.name.isdigit()} == {
        str(value_id): len(value) for value_id, value in values.items()
    }


def test_a_directory_of_values_is_not_called_foreign() -> None:
    names = [ListedName("info", Kind.FILE), ListedName("0.shard", Kind.FILE)]
    assert foreign_format(names) is None
    assert foreign_format(names[1:]) == NO_ZARR


@every_sharding
def test_commands_see_values_by_id(tmp_path: Path, specification: dict[str, Any]) -> None:
    source, values = tmp_path / "volume/skeletons", values_of(IDS)
    write_volume(tmp_path / "volume", info(scale((8, 8, 8), (4, 4, 4), sharding()), skeletons="skeletons"), [])
    write_volume(
        tmp_path / "volume",
        info(scale((8, 8, 8), (4, 4, 4), sharding()), skeletons="skeletons"),
        [np.ones((8, 8, 8, 1), "u2")],
    )
    write_info(source, SKELETONS | {"sharding": specification})
    write_values(source, specification, values)
    (item,) = run_json("info", "--json", tmp_path / "volume", "skeletons")["arrays"]
    nbytes = sum(path.stat().st_size for path in source.glob("*.shard"))
    assert (item["values"], item["stored_nbytes"], item["shards"]) == (
        "skeletons",
        nbytes,
        2 ** specification["shard_bits"],
    )
    table = run("info", tmp_path / "volume")
    assert "1 array, 1 collection" in table.stdout
    (found,) = run_json("map", "--json", tmp_path / "volume", "skeletons")["arrays"]
    assert sum(one["chunks"] for one in found["shards"]) == len(IDS)
    assert "10 values" in run("map", tmp_path / "volume", "skeletons").stdout
    report = run_json("verify", "--json", "--data", tmp_path / "volume")
    assert (report["sound"], report["arrays"]) == (True, 2)
    assert run("unpack", "--jobs=1", tmp_path / "volume", tmp_path / "unpacked").returncode == 0
    unpacked = files_below(tmp_path / "unpacked/skeletons")
    assert {name for name in unpacked if name != "info"} == set(map(str, IDS))
    for value_id, value in values.items():
        assert (tmp_path / "unpacked/skeletons" / str(value_id)).read_bytes() == value
    packed = run("pack", "--jobs=1", tmp_path / "volume", tmp_path / "packed.zarr")
    assert packed.stderr.count("skeletons") + packed.stdout.count("skeletons: ") >= 1
    assert "have no form in Zarr" in packed.stderr + packed.stdout
    assert not (tmp_path / "packed.zarr/skeletons").exists()


def fragments_of(value_id: int) -> list[bytes]:
    return [f"{value_id}-{number}".encode() * (number + 1) for number in range(3)]


def manifest_of(fragments: list[bytes], levels: tuple[int, ...] = (2, 1)) -> bytes:
    """A manifest of fragments in levels of detail, all at one place."""
    head = np.array([64, 64, 64, 0, 0, 0], "<f4").tobytes() + struct.pack("<I", len(levels))
    head += np.ones(len(levels), "<f4").tobytes() + np.zeros(3 * len(levels), "<f4").tobytes()
    head += np.array(levels, "<u4").tobytes()
    sizes = iter(map(len, fragments))
    for count in levels:
        head += np.zeros((3, count), "<u4").tobytes() + np.array([next(sizes) for _ in range(count)], "<u4").tobytes()
    return head


def shard_of_meshes(
    meshes: dict[int, tuple[bytes, bytes]], *, data: str = "raw", between: bytes = b"other bytes"
) -> bytes:
    """A shard with one minishard: of each mesh, its fragments and then its manifest."""
    payload, listed = b"", []
    for value_id, (fragments, manifest) in meshes.items():
        manifest = gzip.compress(manifest) if data == "gzip" else manifest
        payload += between + fragments
        listed.append((value_id, len(payload), len(manifest)))
        payload += manifest
    index = minishard_index(listed)
    return struct.pack("<QQ", len(payload), len(payload) + len(index)) + payload + index


def write_meshes(directory: Path, *, data: str = "raw") -> dict[int, tuple[bytes, bytes]]:
    meshes = {value_id: (b"".join(fragments_of(value_id)), manifest_of(fragments_of(value_id))) for value_id in IDS}
    write_info(directory, MESHES | {"sharding": sharding(0, "identity", 0, 0, "raw", data)})
    (directory / "0.shard").write_bytes(shard_of_meshes(meshes, data=data))
    return meshes


@pytest.mark.parametrize("data", ["raw", "gzip"])
def test_a_mesh_is_two_files_its_manifest_and_its_fragments(mount: Mounter, tmp_path: Path, data: str) -> None:
    meshes = write_meshes(tmp_path / "mesh", data=data)
    root = mount(tmp_path / "mesh").path
    assert sorted(os.listdir(root)) == sorted(["info", *map(str, IDS), *(f"{value_id}.index" for value_id in IDS)])
    for value_id, (fragments, manifest) in meshes.items():
        assert (root / str(value_id)).read_bytes() == fragments
        assert (root / str(value_id)).stat().st_size == len(fragments)
        assert (root / f"{value_id}.index").read_bytes() == manifest
        assert (root / f"{value_id}.index").stat().st_size == len(manifest)
    report = run_json("verify", "--json", "--data", tmp_path / "mesh")
    assert report["sound"]
    assert run("unpack", "--jobs=1", tmp_path / "mesh", tmp_path / "unpacked").returncode == 0
    assert files_below(tmp_path / "unpacked") == files_below(root)


def error_of(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def test_a_mesh_whose_fragments_are_not_all_in_the_shard_is_an_error_for_it_alone(
    mount: Mounter, tmp_path: Path
) -> None:
    sound = b"".join(fragments_of(1))
    manifest = manifest_of(fragments_of(1))
    many = manifest[:24] + struct.pack("<I", 2**32 - 1) + manifest[28:]
    counts = manifest_of(fragments_of(1), (3,))[: 28 + 16] + struct.pack("<I", 2**32 - 1) + bytes(48)
    huge = manifest_of([sound, b""], (1, 1))[:-4] + struct.pack("<I", 2**32 - 1)
    meshes = {
        1: (b"", huge),
        2: (b"", many),
        3: (b"", counts),
        4: (b"", manifest[:-1]),
        5: (b"", b""),
        6: (sound, manifest),
        7: (b"", manifest_of([], ())),
    }
    write_info(tmp_path / "mesh", MESHES | {"sharding": sharding(0, "identity", 0, 0)})
    (tmp_path / "mesh/0.shard").write_bytes(shard_of_meshes(meshes, between=b""))
    mounted = mount(tmp_path / "mesh")
    root = mounted.path
    assert {value_id: error_of(root / str(value_id)) for value_id in meshes} == dict.fromkeys(
        range(1, 6), errno.EIO
    ) | {
        6: None,
        7: None,
    }
    for value_id, (_, stored) in meshes.items():
        assert (root / f"{value_id}.index").read_bytes() == stored
    assert (root / "6").read_bytes() == sound
    report = run_json("verify", "--json", "--data", tmp_path / "mesh", status=1)
    assert {problem["chunk"] for problem in report["problems"]} == set(map(str, range(1, 6)))
    mounted.expect("unreadable|before|ends too early")


def annotations(specification: dict[str, Any] | None, **spatial: Any) -> dict[str, Any]:
    sharded = {} if specification is None else {"sharding": specification}
    return {
        "@type": "neuroglancer_annotations_v1",
        "dimensions": {"x": [1e-9, "m"], "y": [1e-9, "m"], "z": [1e-9, "m"]},
        "lower_bound": [0, 0, 0],
        "upper_bound": [100, 50, 30],
        "annotation_type": "POINT",
        "properties": [],
        "relationships": [{"id": "segment", "key": "by_segment", **sharded}],
        "by_id": {"key": "by_id", **sharded},
        "spatial": [
            {"key": "spatial0", "grid_shape": [5, 3, 1], "chunk_size": [20, 20, 30], "limit": 10} | sharded | spatial
        ],
    }


def codes(shape: tuple[int, ...]) -> dict[str, int]:
    """The compressed Morton codes of all cells, by file name, bit by bit as the specification says."""
    found = {}
    for cell in np.ndindex(shape):
        code = place = 0
        for bit in range(8):
            for axis, length in enumerate(shape):
                if 1 << bit < length:
                    code |= (cell[axis] >> bit & 1) << place
                    place += 1
        found["_".join(map(str, cell))] = code
    return found


@every_sharding
def test_annotations_are_files_by_id_by_object_and_by_cell(
    mount: Mounter, tmp_path: Path, specification: dict[str, Any]
) -> None:
    source, cells = tmp_path / "annotations", codes((5, 3, 1))
    write_info(source, annotations(specification))
    by_id, by_segment = values_of(IDS), values_of([3, 5])
    write_values(source / "by_id", specification, by_id)
    write_values(source / "by_segment", specification, by_segment)
    write_values(source / "spatial0", specification, {code: name.encode() for name, code in cells.items()})
    root = mount(source).path
    assert json.loads((root / "info").read_bytes()) == annotations(None)
    assert sorted(os.listdir(root)) == ["by_id", "by_segment", "info", "spatial0"]
    for name, values in (("by_id", by_id), ("by_segment", by_segment)):
        assert {path.name: path.read_bytes() for path in (root / name).iterdir()} == {
            str(value_id): value for value_id, value in values.items()
        }
    assert {path.name: path.read_bytes() for path in (root / "spatial0").iterdir()} == {
        name: name.encode() for name in cells
    }
    for absent in ("5_0_0", "0_0", "0_0_0_0", "00_0_0", "0"):
        assert not (root / "spatial0" / absent).exists()
    report = run_json("verify", "--json", "--data", source)
    assert (report["sound"], report["arrays"]) == (True, 3)
    assert run("unpack", "--jobs=1", source, tmp_path / "unpacked").returncode == 0
    assert files_below(tmp_path / "unpacked") == files_below(root)


def test_indexes_that_cannot_be_read_are_as_stored(mount: Mounter, tmp_path: Path) -> None:
    source, specification = tmp_path / "annotations", SPECIFICATIONS["one shard"]
    document = annotations(specification, grid_shape=[2**40, 2**40])
    document["relationships"].append({"id": "twice", "key": "by_segment", "sharding": specification})
    document["relationships"].append({"id": "outside", "key": "../outside", "sharding": specification})
    write_info(source, document)
    for name in ("by_id", "by_segment", "spatial0"):
        write_values(source / name, specification, {1: b"one"})
    mounted = mount(source)
    shown = json.loads((mounted.path / "info").read_bytes())
    del document["by_id"]["sharding"]
    assert shown == document
    assert [sorted(os.listdir(mounted.path / name)) for name in ("by_id", "by_segment", "spatial0")] == [
        ["1"],
        ["0.shard"],
        ["0.shard"],
    ]
    reasons = {item["path"]: item["reason"] for item in run_json("info", "--json", source)["arrays"]}
    assert "several" in reasons["by_segment"]
    assert "64 bits" in reasons["spatial0"]
    mounted.expect("shown as stored")


def test_a_writing_mount_changes_nothing_of_values(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "skeletons"
    write_info(source, SKELETONS | {"sharding": SPECIFICATIONS["one shard"]})
    write_values(source, SPECIFICATIONS["one shard"], {1: b"one"})
    before = files_below(source)
    mounted = mount(source, write=True)
    for name in ("1", "2", "info"):
        with pytest.raises(OSError) as raised:
            (mounted.path / name).write_bytes(b"new")
        assert raised.value.errno == errno.EROFS
    for name in ("1", "info"):
        with pytest.raises(OSError) as raised:
            (mounted.path / name).unlink()
        assert raised.value.errno == errno.EROFS
    (mounted.path / "notes.txt").write_text("beside")
    mounted.expect("only read")
    mounted.unmount()
    assert files_below(source) == {**before, **{"notes.txt": files_below(source)["notes.txt"]}}


def test_thousands_of_values_are_listed(mount: Mounter, tmp_path: Path) -> None:
    source, specification = tmp_path / "skeletons", sharding(0, "murmurhash3_x86_128", 2, 2)
    write_info(source, SKELETONS | {"sharding": specification})
    write_values(source, specification, dict.fromkeys(range(5000), b"x"))
    assert sorted(os.listdir(mount(source).path)) == sorted([*map(str, range(5000)), "info"])


@in_trio
async def test_a_listing_resumes_behind_any_value(tmp_path: Path) -> None:
    write_meshes(tmp_path / "mesh")
    fs = await open_tree(open_source(tmp_path / "mesh"))
    listed = await list_directory(fs, ROOT)
    assert len(listed) == 1 + 2 * len(IDS)
    for number, row in enumerate(listed):
        assert await list_directory(fs, ROOT, row[3]) == listed[number + 1 :]


@in_trio
async def test_a_shard_that_is_replaced_makes_its_files_other_ones(tmp_path: Path) -> None:
    source, specification = tmp_path / "skeletons", SPECIFICATIONS["one shard"]
    write_info(source, SKELETONS | {"sharding": specification})
    write_values(source, specification, {1: b"before"})
    opened = open_source(source)
    fs = await open_tree(opened)
    ino = (await find(fs, "1")).ino
    number, handle = await fs.open(ino)
    write_values(source, specification, {1: b"after"})
    opened.clock.now += 60
    new = await find(fs, "1")
    assert new.ino != ino
    assert await read_file(fs, new.ino) == b"after"
    assert bytes(await handle.read(0, 100)) == b"before"
    await fs.close(number)
    with pytest.raises(StaleError):
        await fs.open(ino)


READ = """
import json, sys, numpy
from cloudvolume import CloudVolume
found, root, native = sys.argv[1:]
ids = json.load(open(native + "/ids"))
arrays = {}
for name, path in (("mount", root), ("native", native)):
    volume = CloudVolume(f"precomputed://file://{path}", progress=False)
    assert ("sharding" in volume.skeleton.meta.info) == (name == "native")
    for segment in ids:
        skeleton = volume.skeleton.get(segment)
        arrays[f"{name} skeleton {segment}"] = skeleton.vertices
        for level in (0, 1):
            mesh = volume.mesh.get(segment, lod=level)[segment]
            arrays[f"{name} mesh {segment} {level}"] = mesh.vertices
            arrays[f"{name} faces {segment} {level}"] = mesh.faces
numpy.savez(found, **arrays)
"""
WRITE = """
import json, os, sys, numpy, DracoPy
directory, ids = sys.argv[1], json.loads(sys.argv[2])
for segment in ids:
    for part in range(2):
        points = (numpy.random.default_rng(segment % 1000 + part).integers(0, 1023, (12, 3))).astype("uint32")
        faces = numpy.arange(12, dtype="uint32").reshape(4, 3)
        data = DracoPy.encode(points, faces, quantization_bits=10)
        open(os.path.join(directory, f"{segment}-{part}"), "wb").write(data)
"""


@pytest.mark.parametrize("data", ["raw", "gzip"])
def test_cloud_volume_reads_meshes_and_skeletons_through_a_mount(mount: Mounter, tmp_path: Path, data: str) -> None:
    source, ids = tmp_path / "volume", [1, 7, 2**40 + 3]
    specification = sharding(0, "murmurhash3_x86_128", 1, 0, "gzip", data)
    document = info(
        scale((8, 8, 8), (4, 4, 4), sharding()),
        data_type="uint64",
        type="segmentation",
        mesh="mesh",
        skeletons="skeletons",
    )
    write_volume(source, document, [np.ones((8, 8, 8, 1), "u8")])
    (source / "info").write_text(json.dumps(document))
    (source / "ids").write_text(json.dumps(ids))
    write_info(source / "skeletons", SKELETONS | {"sharding": specification})
    write_values(source / "skeletons", specification, {segment: skeleton(segment) for segment in ids})
    fragments = tmp_path / "fragments"
    fragments.mkdir()
    CLOUD_VOLUME.run(WRITE, fragments, json.dumps(ids))
    meshes = {}
    for segment in ids:
        parts = [(fragments / f"{segment}-{part}").read_bytes() for part in range(2)]
        meshes[segment] = b"".join(parts), manifest_of(parts, (1, 1))
    write_info(source / "mesh", MESHES | {"sharding": sharding(0, "identity", 0, 0, "raw", data)})
    (source / "mesh/0.shard").write_bytes(shard_of_meshes(meshes, data=data))
    found = CLOUD_VOLUME.arrays(READ, tmp_path, mount(source).path, source)
    names = [name.removeprefix("native ") for name in found if name.startswith("native ")]
    assert len(names) == 5 * len(ids)
    for name in names:
        assert len(found[f"mount {name}"])
        np.testing.assert_array_equal(found[f"mount {name}"], found[f"native {name}"])


ANNOTATED = """
import json, sys, numpy
from cloudvolume.datasource.precomputed.annotation import PrecomputedAnnotationSource
found, root, native, ids = sys.argv[1:]
arrays = {}
for name, path in (("mount", root), ("native", native)):
    source = PrecomputedAnnotationSource(f"precomputed://file://{path}")
    assert source.meta.is_id_index_sharded() == (name == "native")
    for number, one in source.get_by_id(json.loads(ids)).items():
        arrays[f"{name} {number}"] = one.geometry
    for mip in (0, 1):
        everything = source.get_by_bbox(numpy.s_[0:100, 0:50, 0:30], mip=mip)
        arrays[f"{name} places {mip}"] = everything.ids
    arrays[f"{name} related"] = source.get_by_relationship("segment", 5).ids
numpy.savez(found, **arrays)
"""


def test_cloud_volume_reads_annotations_through_a_mount(mount: Mounter, tmp_path: Path) -> None:
    source, specification, ids = tmp_path / "annotations", SPECIFICATIONS["murmur gzip"], [1, 2, 77, 10**6]
    document = annotations(specification)
    document["spatial"].append(document["spatial"][0] | {"key": "finer", "grid_shape": [10, 3, 2]})
    document["spatial"][1]["chunk_size"] = [10, 20, 15]
    write_info(source, document)
    points = {value_id: np.array([value_id % 90, 3, 5], "<f4").tobytes() for value_id in ids}
    some = struct.pack("<Q", 2) + points[1] + points[77] + struct.pack("<QQ", 1, 77)
    related = struct.pack("<IQ", 1, 5)
    write_values(source / "by_id", specification, {value_id: point + related for value_id, point in points.items()})
    write_values(source / "by_segment", specification, {5: some})
    for key, shape in (("spatial0", (5, 3, 1)), ("finer", (10, 3, 2))):
        write_values(source / key, specification, dict.fromkeys(codes(shape).values(), some))
    found = CLOUD_VOLUME.arrays(ANNOTATED, tmp_path, mount(source).path, source, json.dumps(ids))
    names = [name.removeprefix("native ") for name in found if name.startswith("native ")]
    assert len(names) == 3 + len(ids)
    for name in names:
        np.testing.assert_array_equal(np.sort(found[f"mount {name}"]), np.sort(found[f"native {name}"]))
        assert len(found[f"mount {name}"])


def test_entries_of_values_are_not_followed_out_of_their_shard(mount: Mounter, tmp_path: Path) -> None:
    write_info(tmp_path / "skeletons", SKELETONS | {"sharding": sharding(0, "identity", 1, 0)})
    listed = [(0, 0, 4), (2, 2**63, 4), (4, 2, 2**64 - 1), (5, 0, 4), (6, 4, 4), (8, 10**6, 1)]
    index = minishard_index(listed)
    twice = minishard_index([(1, 0, 4), (1, 4, 4)])
    payload = b"zerosix!" + index + twice
    table = struct.pack("<QQQQ", 8, 8 + len(index), 8 + len(index), len(payload))
    (tmp_path / "skeletons/0.shard").write_bytes(table + payload)
    mounted = mount(tmp_path / "skeletons")
    root = mounted.path
    assert (root / "0").read_bytes() == b"zero"
    assert (root / "6").read_bytes() == b"six!"
    assert [error_of(root / name) for name in ("2", "4", "8", "1", "3")] == [errno.EIO] * 5
    assert error_of(root / "5") == errno.EIO  # it belongs to the minishard whose index is damaged
    with pytest.raises(OSError, match="Input/output error"):
        os.listdir(root)
    report = run_json("verify", "--json", tmp_path / "skeletons", status=1)
    messages = [problem["message"] for problem in report["problems"]]
    assert sum("names bytes" in message for message in messages) == 3
    assert any("lists chunk 5, which does not belong there" in message for message in messages)
    assert any("twice" in message for message in messages)
    mounted.expect("twice|names bytes|minishard")


def test_a_server_gives_values_and_no_sizes_that_it_does_not_know(tmp_path: Path) -> None:
    meshes = write_meshes(tmp_path / "mesh")
    with served(tmp_path / "mesh") as server:
        entries = {one["name"]: one for one in json.loads(server.ask("/-/v3/").body)["entries"]}
        for value_id, (fragments, manifest) in meshes.items():
            assert entries[f"{value_id}.index"]["size"] == len(manifest)
            assert "size" not in entries[str(value_id)]
            assert server.ask(f"/-/v3/{value_id}").body == fragments
            assert server.ask(f"/-/v3/{value_id}.index", Range="bytes=2-5").body == manifest[2:6]


@in_trio
async def test_a_cold_mesh_takes_a_request_for_each_index_its_manifest_and_its_fragments(tmp_path: Path) -> None:
    meshes = write_meshes(tmp_path / "files/mesh")
    with web_server(tmp_path / "files") as web:
        async with open_web_source(f"{web.url}/mesh") as source, open_paths(source, TreeOptions()) as paths:
            web.asked()
            assert bytes(await paths.read("7")) == meshes[7][0]
            assert [request[:2] for request in web.asked()] == [("GET", "/mesh/0.shard")] * 4
            assert bytes(await paths.read("7.index")) == meshes[7][1]
            assert len(web.asked()) == 1


def test_values_behind_a_web_server_are_read_by_name(mount: Mounter, tmp_path: Path) -> None:
    meshes = write_meshes(tmp_path / "files/mesh")
    with web_server(tmp_path / "files") as web:
        root = mount(f"{web.url}/mesh").path
        assert (root / "7").read_bytes() == meshes[7][0]
        assert (root / "7.index").read_bytes() == meshes[7][1]
        assert error_of(root / "6") == errno.ENOENT
        with pytest.raises(OSError) as raised:
            os.listdir(root)
        assert raised.value.errno == errno.EOPNOTSUPP
        assert run_json("verify", "--json", "--data", "--jobs=1", "--assume-complete", f"{web.url}/mesh")["sound"]
