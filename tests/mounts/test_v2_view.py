"""The v2 view, encoded and decoded: which files it shows, and what may be written."""

import errno
import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.datasets import files_below
from tests.support.encoder import Coordinates, encode
from tests.support.mounting import Mounter, flush, metrics, refuses
from tests.support.readers import READERS, assert_same
from tests.support.viewed import ABSENT, ATTRIBUTES, DOCUMENTS, WITH_V2_FORM, values_of, write_source
from tests.support.writers import assert_sound, document_of

GROUP = {"zarr_format": 2}
V2 = ["--view=v2"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sharded arrays, two that are not sharded, and one that is stored as v2."""
    path = tmp_path / "data.zarr"
    write_source(path)
    for name, shape, zarr_format in (("loose", (4, 6), 3), ("scalar", (), 3), ("old", (4, 6), 2)):
        chunks = tuple(max(1, length // 2) for length in shape)
        zarr.create_array(
            str(path / name),
            shape=shape,
            chunks=chunks,
            dtype="int32",
            zarr_format=zarr_format,  # type: ignore[arg-type]
        )[...] = 7
    return path


def chunks_of(name: str) -> dict[Coordinates, bytes]:
    """All chunks of an array, encoded, also those that are not stored."""
    values = values_of(name)
    document = DOCUMENTS[name]
    fill = encode(document, np.full_like(values, float(document["fill_value"]))).inner
    return encode(document, values).inner | {coords: fill[coords] for coords in ABSENT.get(name, ())}


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("separator", [".", "/"])
def test_the_v2_view_has_every_chunk_byte_for_byte_and_nothing_of_v3(
    mount: Mounter, source: Path, separator: str
) -> None:
    root = mount(source, arguments=[*V2, f"--dimension-separator={separator}"]).path
    expected = {
        f"{name}/{separator.join(map(str, coords))}": data
        for name in WITH_V2_FORM
        for coords, data in chunks_of(name).items()  # with named axes what is missing is shown, too
    }
    for path in [*(source / "loose").glob("c/*/*"), source / "scalar/c"]:
        key = separator.join(path.relative_to(source / path.relative_to(source).parts[0]).parts[1:]) or "0"
        expected[f"{path.relative_to(source).parts[0]}/{key}"] = path.read_bytes()
    expected |= {f"old/{key}": data for key, data in files_below(source / "old").items()}
    seen = files_below(root)
    assert {key: seen.get(key) for key in expected} == expected
    assert seen.keys() - expected.keys() == {".zgroup", ".zattrs", ".zmetadata"} | {
        f"{name}/.zarray" for name in [*WITH_V2_FORM, "loose", "scalar"]
    } | {f"{name}/.zattrs" for name in [*WITH_V2_FORM, "scalar"]}
    with refuses(errno.ENOENT):
        os.stat(root / "image" / "zarr.json")


@pytest.mark.parametrize("view", ["v2", "v3"])
def test_sizes_of_decoded_chunks_are_known_and_attributes_are_of_the_encoded_bytes(
    mount: Mounter, source: Path, view: str
) -> None:
    root = mount(source, arguments=[f"--view={view}", "--decode"]).path
    for name in DOCUMENTS:
        shown = root / name
        chunks = read(shown / ".zarray")["chunks"] if view == "v2" else None
        nbytes = math.prod(chunks or document_of(shown)["chunk_grid"]["configuration"]["chunk_shape"])
        for coords, encoded in chunks_of(name).items():
            if coords in ABSENT.get(name, ()):
                continue
            path = shown / (".".join(map(str, coords)) if view == "v2" else "/".join(map(str, ("c", *coords))))
            assert path.stat().st_size == nbytes * values_of(name).itemsize
            if name == "image":
                place = [os.getxattr(path, f"user.shardfs.{what}") for what in ("shard", "offset", "nbytes")]
                stored = (source / os.fsdecode(place[0])).read_bytes()
                assert stored[int(place[1]) : int(place[1]) + int(place[2])] == encoded
    assert metrics(root)["decoded_chunks"] == 0


# Documents


def test_documents_of_v2_are_written_by_their_own_rules(mount: Mounter, source: Path) -> None:
    root = mount(source, write=True, arguments=V2, expect=("refused", "cannot")).path
    with refuses(errno.EPERM):
        (root / "image/zarr.json").write_text("{}")
    zarray, metadata = read(root / "image/.zarray"), read(root / ".zmetadata")
    for member, value in {"chunks": [1, 1, 1], "dtype": "<f4", "compressor": None, "order": "F"}.items():
        with refuses(errno.EINVAL):
            write(root / "image/.zarray", zarray | {member: value})
    write(root / ".zmetadata", metadata)
    metadata["metadata"]["image/.zarray"]["shape"] = [1, 1, 1]
    with refuses(errno.EINVAL):
        write(root / ".zmetadata", metadata)
    assert document_of(source / "image") == DOCUMENTS["image"]

    os.remove(root / "image/.zattrs")
    assert document_of(source / "image").get("attributes", {}) == {}
    assert not (root / "image/.zattrs").exists()
    write(root / "image/.zattrs", ATTRIBUTES | {"_ARRAY_DIMENSIONS": ["a", "b", "c"]})
    document = document_of(source / "image")
    assert (document["attributes"], document["dimension_names"]) == (ATTRIBUTES, ["a", "b", "c"])


def test_a_node_is_removed_with_its_document_and_files_beside_it(mount: Mounter, source: Path) -> None:
    (source / "group").mkdir()
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}, "consolidated_metadata": consolidated}
    write(source / "group/zarr.json", group)
    root = mount(source, write=True, arguments=V2).path
    for name, document, left in (("plane", ".zarray", [".zattrs"]), ("group", ".zgroup", [".zattrs", ".zmetadata"])):
        before = {key: (root / name / key).read_bytes() for key in left}
        os.remove(root / name / document)
        flush(root)
        assert not (source / name / "zarr.json").exists()
        assert {key: data for key, data in files_below(root / name).items() if key[0] == "."} == before
    for name in ("plane", "group", "nested", "loose", "old"):
        shutil.rmtree(root / name)
        assert not (source / name).exists()


def test_hidden_documents_do_not_come_back(mount: Mounter, source: Path) -> None:
    for name in (".zarray", ".zattrs"):
        write(source / "image" / name, {"hidden": 1})
    image = mount(source, write=True, arguments=V2).path / "image"
    os.remove(image / ".zattrs")
    os.remove(image / ".zarray")
    assert not list(image.glob(".z*"))
    assert not list((source / "image").glob(".z*"))


def test_arrays_and_groups_become_each_other_only_when_removed(mount: Mounter, source: Path) -> None:
    """Whether it is stored as v2, or has chunks; and no directory takes the name of a document."""
    (source / "group").mkdir()
    write(source / "group/.zgroup", GROUP)
    expected = ("an array is stored there", "a group is stored there", "cannot be a directory")
    root = mount(source, write=True, arguments=[*V2, "--shards=2"], expect=expected).path
    zarray = read(root / "old/.zarray")
    for path, document in ((root / "old/.zgroup", GROUP), (root / "group/.zarray", zarray)):
        with refuses(errno.EINVAL):
            write(path, document)
        assert not path.exists()
    document = read(root / "image/.zarray")
    os.remove(root / "image/.zarray")
    with refuses(errno.EINVAL):
        write(root / "image/.zgroup", GROUP)
    write(root / "image/.zarray", document)
    os.remove(root / "scalar/.zarray")
    os.remove(root / "scalar/0")
    write(root / "scalar/.zgroup", GROUP)
    assert ".zgroup" in os.listdir(root / "scalar")
    with refuses(errno.EPERM):
        (root / "loose/.zattrs").mkdir()


# New arrays


def test_a_new_array_without_a_v3_form_is_stored_as_written_and_the_log_says_why(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True, shards="2", arguments=V2)
    zarray = read(mounted.path / "loose/.zarray") | {"compressor": {"id": "example-unknown"}}
    (mounted.path / "new").mkdir()
    write(mounted.path / "new/.zarray", zarray)
    (mounted.path / "new/0.0").write_bytes(b"anything")
    assert files_below(source / "new") == {".zarray": json.dumps(zarray).encode(), "0.0": b"anything"}
    assert "example-unknown" in mounted.log


def test_the_document_of_a_new_array_describes_decoded_chunks_where_they_are_decoded(
    mount: Mounter, source: Path
) -> None:
    expected = ("chunks are decoded here", "0.1 has 23 bytes, not 24, and stays in")
    root = mount(source, write=True, shards="2", arguments=[*V2, "--decode"], expect=expected).path
    zarray = read(root / "loose/.zarray")
    (root / "new").mkdir()
    for member, value in {"compressor": {"id": "zlib", "level": 1}, "order": "F", "dtype": ">i4"}.items():
        with refuses(errno.EINVAL):
            write(root / "new/.zarray", zarray | {member: value})
    (root / "new/0.1").write_bytes(bytes(23))  # a chunk that comes before its document, and is too short
    write(root / "new/.zarray", zarray)
    assert not (root / "new/0.1").exists()
    (root / "new/0.0").write_bytes(bytes(range(24)))
    assert (root / "new/0.0").read_bytes() == bytes(range(24))
    assert document_of(source / "new")["codecs"][0]["name"] == "sharding_indexed"


VIEWS = {"v2": V2, "v2 decoded": [*V2, "--decode"], "v3": []}


@pytest.mark.parametrize(("killed", "next_view"), [("v2", "v2 decoded"), ("v2 decoded", "v3")])
def test_a_journal_of_one_view_is_committed_in_another(
    mount: Mounter, tmp_path: Path, killed: str, next_view: str
) -> None:
    source = tmp_path / "data.zarr"
    expected = write_source(source)
    mounted = mount(source, write=True, shards="2", arguments=VIEWS[killed])
    root = mounted.path
    lengths = {"image": 4, "plane": 4, "plain": 14, "big": 14}  # of chunks along the last axis
    for name, length in lengths.items():
        first, second = (root / name / ".".join([*"0" * (expected[name].ndim - 1), str(i)]) for i in (0, 1))
        first.write_bytes(second.read_bytes())
        chunks = read(root / name / ".zarray")["chunks"]
        rows = tuple(slice(0, edge) for edge in chunks[:-1])
        expected[name][(*rows, slice(length))] = expected[name][(*rows, slice(length, 2 * length))]
    zarray = read(root / "plain/.zarray") | {"shape": [4], "chunks": [2], "compressor": None}
    for name in ("new", "late"):
        (root / name).mkdir()
        (root / name / "1").write_bytes(np.array([5, 6], "<i2").tobytes())
    write(root / "new/.zarray", zarray)
    mounted.process.kill()
    mounted.process.wait()
    subprocess.run(["fusermount3", "-u", "-z", root], check=True)

    again = mount(source, write=True, shards="2", arguments=VIEWS[next_view])
    assert (again.path / "late/1").read_bytes() == np.array([5, 6], "<i2").tobytes()
    again.unmount()
    for name in lengths:
        assert_same(READERS["zarr"](source / name), expected[name])
    new = zarr.open_array(str(source / "new"), mode="r")
    assert (new.shards, list(new[...])) == ((4,), [0, 0, 5, 6])
    assert_sound(source)
