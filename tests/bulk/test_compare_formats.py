"""`shardfs verify SOURCE DEST` of other formats than Zarr: copies in every form are the same, and changes are named."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.bulk.test_unpack import differences
from tests.mounts.test_values import MESHES, SKELETONS, values_of, write_info, write_values
from tests.support.b2nd import GEOMETRIES, write_b2nd
from tests.support.commands import run
from tests.support.precomputed import KEY, info, scale, shard, sharding, write_volume
from tests.support.wkw import LZ4, layer, write_properties, write_wkw

pytestmark = pytest.mark.slow

FORMS = {
    "as it is": ["unpack"],
    "v2": ["unpack", "--view=v2"],
    "decoded": ["unpack", "--decode"],
    "v2 decoded": ["unpack", "--view=v2", "--decode"],
    "packed": ["pack"],
}
SIZE, CHUNK, IDS = (10, 9, 8), (4, 4, 4), [0, 7, 2**40, 2**64 - 1]
SHARDING = sharding(1, "murmurhash3_x86_128", 2, 1, "gzip", "gzip")
NO_FORM = "meshes, skeletons and annotations have no form in Zarr"


def copied(source: Path, made: Path, form: str) -> list[str]:
    """What differs in a copy in this form."""
    command, *options = FORMS[form]
    run(command, "--jobs=1", *options, source, made)
    return differences(source, made)


def rng(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(1, 250, shape).astype("u2")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume whose scales are raw, without chunks, encoded, and not readable; with skeletons and a note."""
    root = tmp_path / "volume"
    scales = [scale(SIZE, CHUNK, SHARDING, key="raw"), scale((8, 8, 8), CHUNK, SHARDING, key="empty")]
    write_volume(root, info(*scales), [rng(*SIZE, 1), np.zeros((8, 8, 8, 1), "u2")])
    encoded = scale(SIZE, CHUNK, SHARDING, key="encoded", encoding="compressed_segmentation")
    odd = scale(SIZE, CHUNK, SHARDING | {"hash": "another"}, key="odd")
    shutil.copytree(root / "raw", root / "encoded")
    shutil.copytree(root / "raw", root / "odd")
    shutil.rmtree(root / "empty", ignore_errors=True)
    write_info(root, info(*scales, encoded, odd, mesh="mesh"))
    write_info(root / "mesh/below", SKELETONS | {"sharding": SHARDING})
    write_values(root / "mesh/below", SHARDING, values_of(IDS))
    (root / "note").write_text("beside")
    return root


def test_an_unpacked_volume_is_the_same_and_whatever_differs_in_it_is_named(volume: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert copied(volume, made, "as it is") == []
    assert len(os.listdir(made / "raw")) == 3 * 3 * 2
    assert not list((made / "mesh").rglob("*.shard"))
    chunk, value = "raw/0-4_0-4_0-4", "mesh/below/7"
    (made / chunk).write_bytes(bytes([*(made / chunk).read_bytes()[:-1], 251]))
    (made / "raw/4-8_0-4_0-4").unlink()
    (made / "empty").mkdir()
    shutil.copy(made / chunk, made / "empty/0-4_0-4_0-4")
    os.truncate(made / value, 3)
    (made / "mesh/below/0").unlink()
    (made / "mesh/below/8").write_bytes(b"more")
    (made / "encoded/8-10_8-9_4-8").write_bytes(b"")
    (made / "odd/0.shard").write_bytes(b"")
    (made / "note").write_text("another")
    (made / "of somebody").write_text("no part of the volume")
    document = json.loads((made / "info").read_text())
    (made / "info").write_text(json.dumps(document | {"type": "segmentation"}))
    assert sorted(differences(volume, made)) == [
        "empty/0-4_0-4_0-4 is in DEST only",
        "encoded/8-10_8-9_4-8: differs",
        "info: differs",
        "mesh/below/0: is missing in DEST",
        "mesh/below/7: differs",
        "mesh/below/8 is in DEST only",
        "note: differs",
        "odd/0.shard: differs",
        "raw/0-4_0-4_0-4: differs",
        "raw/4-8_0-4_0-4: is missing in DEST",
    ]


def test_a_copy_of_a_volume_in_shards_is_the_same_and_a_damaged_shard_is_named(volume: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    shutil.copytree(volume, made)
    assert differences(volume, made) == []
    os.truncate(next(made.glob("raw/*.shard")), 20)
    assert [line for line in differences(volume, made) if line.startswith("raw")]
    assert [line for line in differences(made, volume) if line.startswith("raw")]


def test_a_volume_as_zarr_is_the_same_but_for_what_has_no_form_there(volume: Path, tmp_path: Path) -> None:
    for form in ("decoded", "v2 decoded", "packed"):
        found = copied(volume, tmp_path / form, form)
        assert [line.partition(":")[0] for line in found if line.startswith(("raw", "empty", "note"))] == []
        assert len([line for line in found if line.startswith(("encoded", "odd"))]) == 2
        assert [line for line in found if NO_FORM in line] == ([] if form != "packed" else [f"mesh/below: {NO_FORM}"])
    assert zarr.open_array(tmp_path / "decoded/raw")[0, 0, 0, 0] == rng(*SIZE, 1)[0, 0, 0, 0]


@pytest.mark.parametrize("kind", [SKELETONS, MESHES], ids=["skeletons", "meshes"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "packed"])
def test_unpacked_values_are_the_same_and_whatever_differs_is_named(
    tmp_path: Path, kind: dict[str, object], form: str
) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    manifest = np.zeros(9, "<u4").tobytes()  # of a mesh without levels of detail
    write_info(source, kind | {"sharding": SHARDING})
    write_values(source, SHARDING, dict.fromkeys(IDS, manifest))
    assert copied(source, made, form) == []
    first = "7.index" if kind is MESHES else "7"
    (made / first).unlink()
    (made / "5").write_bytes(b"")
    assert sorted(differences(source, made)) == ["5 is in DEST only", f"{first}: is missing in DEST"]


@pytest.mark.parametrize("form", FORMS)
def test_arrays_in_every_form_are_the_same_and_other_attributes_are_named(tmp_path: Path, form: str) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    write_wkw(source / "color/1", rng(1, 20, 16, 8), LZ4)
    write_properties(source, layer("color", ((1, 0, 0), (18, 15, 8))))
    write_b2nd(source / "blosc", GEOMETRIES["two axes"], sparse=True)
    whole = scale((8, 8, 8), CHUNK, SHARDING, key="whole")
    write_volume(source / "volume", info(whole), [rng(8, 8, 8, 1)])
    arrays = ["color/1", "blosc", *(["volume/whole"] if form != "as it is" else [])]
    assert copied(source, made, form) == []
    for path in arrays:
        name = ".zattrs" if form.startswith("v2") else "zarr.json"
        file = made / path / name
        document = json.loads(file.read_text()) if file.exists() else {}
        attributes = document if name == ".zattrs" else document.setdefault("attributes", {})
        attributes["somebody"] = "was here"
        file.write_text(json.dumps(document))
    assert differences(source, made) == [f"{path}: other attributes" for path in sorted(arrays)]


def test_attributes_of_zarr_in_the_other_version_are_compared(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    group = zarr.open_group(source, mode="w", attributes={"title": "one"})
    small = {"shape": (4, 4), "chunks": (2, 2), "dtype": "f4", "shards": (4, 4)}
    group.create_array("named", dimension_names=["y", "x"], attributes={"units": "m"}, **small)[...] = 3
    group.create_array("plain", attributes={"units": "m", "_ARRAY_DIMENSIONS": ["a", "b"]}, **small)[...] = 3
    multiscale = {"axes": [{"name": name, "type": "space"} for name in "yx"], "name": "scan"}
    multiscale |= {"datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1]}]}]}
    image = group.create_group("image", attributes={"ome": {"version": "0.5", "multiscales": [multiscale]}})
    image.create_array("0", dimension_names=["y", "x"], **small)[...] = 3
    for form in ("v2", "v2 decoded"):
        assert copied(source, made, form) == []
        for path in ("", "named", "image"):
            file = made / path / ".zattrs"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"somebody": "was here"}))
        assert differences(source, made) == [
            "(root): other attributes",
            "image: other attributes",
            "named: other attributes",
        ]
        file.write_text("{}")
        shutil.rmtree(made)


def test_a_missing_chunk_is_one_of_zeros_in_volumes_of_raw_elements(tmp_path: Path) -> None:
    """As for every reader of them; not so if there is anything else in it, or elements are encoded."""
    specification = sharding(0, "identity", 0, 0)

    def made(name: str, chunks: list[tuple[int, bytes]], encoding: str = "raw") -> Path:
        root = tmp_path / name
        write_info(root, info(scale((6, 2, 2), (2, 2, 2), specification, encoding=encoding), data_type="uint8"))
        (root / KEY).mkdir()
        (root / KEY / "0.shard").write_bytes(shard([chunks]))
        return root

    sparse, dense = made("sparse", [(0, b"1" * 8)]), made("dense", [(0, b"1" * 8), (1, bytes(8)), (2, bytes(8))])
    assert differences(sparse, dense) == differences(dense, sparse) == []
    for source in (sparse, dense):
        run("unpack", source, tmp_path / f"{source.name} unpacked")
        run("pack", source, tmp_path / f"{source.name} packed")
        for other in (sparse, dense):
            assert differences(other, tmp_path / f"{source.name} unpacked") == []
            assert differences(other, tmp_path / f"{source.name} packed") == []
    other = made("other", [(0, b"1" * 8), (1, bytes(7) + b"1")])
    assert differences(other, sparse) == [f"{KEY}/2-4_0-2_0-2: is missing in DEST"]
    assert differences(sparse, other) == [f"{KEY}/2-4_0-2_0-2 is in DEST only"]
    encoded = [made(f"jpeg{number}", [(0, b"1"), (1, bytes(8))][: number + 1], "jpeg") for number in range(2)]
    assert differences(*encoded) == [f"{KEY}/2-4_0-2_0-2 is in DEST only"]


def test_a_copy_as_files_of_numpy_is_the_same_and_whatever_differs_in_it_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "data.zarr", mode="w", attributes={"x": 1})
    array = group.create_array("a", shape=(20, 8), chunks=(4, 4), shards=(8, 8), dtype="i4", attributes={"y": 2})
    array[:10] = rng(10, 8)
    group.create_group("below").create_array("b", shape=(5,), chunks=(5,), shards=(5,), dtype="f4", fill_value=np.nan)
    (tmp_path / "data.zarr/note").write_text("beside")
    copy = tmp_path / "copy"
    run("unpack", "--view=npy", tmp_path / "data.zarr", copy)
    assert differences(tmp_path / "data.zarr", copy) == []
    values = np.load(copy / "a.npy")
    values[3, 3] += 1
    np.save(copy / "a.npy", values)
    (copy / "below/b.npy").unlink()
    (copy / "a.json").write_text("{}")
    np.save(copy / "more.npy", values)
    assert sorted(differences(tmp_path / "data.zarr", copy)) == [
        "a.json: differs",
        "a.npy: differs",
        "below/b.npy: is missing in DEST",
        "more.npy is in DEST only",
    ]
    run("unpack", "--view=npy", tmp_path / "data.zarr/a", tmp_path / "one array")
    assert differences(tmp_path / "data.zarr/a", tmp_path / "one array") == []
