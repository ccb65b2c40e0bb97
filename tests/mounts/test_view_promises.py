"""What views promise beyond what programs need: names, sizes, attributes, and what may be written."""

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
from tests.support.encoder import encode
from tests.support.mounting import Mounter, figures, refuses
from tests.support.viewed import ABSENT, ATTRIBUTES, DOCUMENTS, WITH_V2_FORM, values_of, write_source
from tests.support.writers import document_of

V2_DOCUMENTS = {".zarray", ".zattrs", ".zgroup", ".zmetadata"}
INNER = {
    name: encode(document, values_of(name), frozenset(ABSENT.get(name, ()))).inner
    for name, document in DOCUMENTS.items()
}
FILLED = {
    name: encode(document, np.full_like(values_of(name), float(document["fill_value"]))).inner
    for name, document in DOCUMENTS.items()
}
MISSING = {name: {coords: FILLED[name][coords] for coords in ABSENT.get(name, ())} for name in DOCUMENTS}
"""What is not stored, encoded: arrays with named axes are shown with all of it in the v2 view."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Sharded arrays, two that are not sharded, and one that is stored as v2."""
    path = tmp_path / "data.zarr"
    write_source(path)
    for name, shape, zarr_format in (("loose", (4, 6), 3), ("scalar", (), 3), ("old", (4, 6), 2)):
        chunks = tuple(max(1, length // 2) for length in shape)
        array = zarr.create_array(
            str(path / name),
            shape=shape,
            chunks=chunks,
            dtype="int32",
            zarr_format=zarr_format,  # type: ignore[arg-type]
        )
        array[...] = 7
    return path


def v2_name(key: str, separator: str) -> str:
    """The v2 name of a chunk `c/0/0` of v3."""
    return separator.join(key.split("/")[1:]) or "0"


def written(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("separator", [".", "/"])
def test_the_v2_view_has_every_chunk_byte_for_byte_and_nothing_of_v3(
    mount: Mounter, source: Path, separator: str
) -> None:
    root = mount(source, arguments=["--view=v2", f"--dimension-separator={separator}"]).path
    seen = files_below(root)
    assert not [name for name in seen if name.endswith("zarr.json") or "/c/" in name]
    expected = {
        f"{name}/{separator.join(map(str, coords))}": data
        for name in WITH_V2_FORM
        for coords, data in (INNER[name] | MISSING[name]).items()
    }
    for name in ("loose", "scalar"):
        files = files_below(source / name)
        expected |= {f"{name}/{v2_name(key, separator)}": files[key] for key in files if key != "zarr.json"}
    expected |= {f"old/{key}": data for key, data in files_below(source / "old").items()}
    chunks = {
        key: data for key, data in seen.items() if key.rpartition("/")[2] not in V2_DOCUMENTS or key[:4] == "old/"
    }
    assert chunks == expected
    assert {key for key in seen if key not in chunks} == {".zgroup", ".zattrs", ".zmetadata"} | {
        f"{name}/.zarray" for name in [*WITH_V2_FORM, "loose", "scalar"]
    } | {f"{name}/.zattrs" for name in [*WITH_V2_FORM, "scalar"]}
    with refuses(errno.ENOENT):
        os.stat(root / "image" / "zarr.json")


def chunk_shape_of(array: Path, view: str) -> list[int]:
    """The chunk shape that the document of a mounted array says."""
    if view == "v2":
        shape: list[int] = json.loads((array / ".zarray").read_text())["chunks"]
    else:
        shape = document_of(array)["chunk_grid"]["configuration"]["chunk_shape"]
    return shape


def key_of(coords: tuple[int, ...], view: str) -> str:
    return ".".join(map(str, coords)) if view == "v2" else "/".join(map(str, ("c", *coords)))


@pytest.mark.parametrize("view", ["v2", "v3"])
def test_sizes_of_decoded_chunks_are_known_and_attributes_are_of_the_encoded_bytes(
    mount: Mounter, source: Path, view: str
) -> None:
    root = mount(source, arguments=[f"--view={view}", "--decode"]).path
    for name in DOCUMENTS:
        nbytes = math.prod(chunk_shape_of(root / name, view)) * values_of(name).itemsize
        assert {(root / name / key_of(coords, view)).stat().st_size for coords in INNER[name]} == {nbytes}
    for coords, encoded in INNER["image"].items():
        path = root / "image" / key_of(coords, view)
        shard, offset, length = (os.getxattr(path, f"user.shardfs.{what}") for what in ("shard", "offset", "nbytes"))
        stored = (source / os.fsdecode(shard)).read_bytes()
        assert stored[int(offset) : int(offset) + int(length)] == encoded
    assert figures(root)["decoded_chunks"] == 0


def test_documents_of_v2_are_written_by_their_own_rules(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True, arguments=["--view=v2"], expect=("refused", "cannot"))
    root = mounted.path
    with refuses(errno.EPERM):
        (root / "image/zarr.json").write_text("{}")
    zarray, metadata = (json.loads((root / name).read_text()) for name in ("image/.zarray", ".zmetadata"))
    for member, value in {"chunks": [1, 1, 1], "dtype": "<f4", "compressor": None, "order": "F"}.items():
        with refuses(errno.EINVAL):
            written(root / "image/.zarray", zarray | {member: value})
    written(root / ".zmetadata", metadata)
    metadata["metadata"]["image/.zarray"]["shape"] = [1, 1, 1]
    with refuses(errno.EINVAL):
        written(root / ".zmetadata", metadata)
    assert document_of(source / "image") == DOCUMENTS["image"]

    os.remove(root / "image/.zattrs")
    assert document_of(source / "image").get("attributes", {}) == {}
    assert not (root / "image/.zattrs").exists()
    written(root / "image/.zattrs", ATTRIBUTES | {"_ARRAY_DIMENSIONS": ["a", "b", "c"]})
    document = document_of(source / "image")
    assert (document["attributes"], document["dimension_names"]) == (ATTRIBUTES, ["a", "b", "c"])


def test_a_node_is_removed_with_its_document_and_what_was_beside_it_can_be(mount: Mounter, source: Path) -> None:
    (source / "group").mkdir()
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}, "consolidated_metadata": consolidated}
    written(source / "group/zarr.json", group)
    root = mount(source, write=True, arguments=["--view=v2"]).path
    for name, document, left in (("plane", ".zarray", [".zattrs"]), ("group", ".zgroup", [".zattrs", ".zmetadata"])):
        before = {key: data for key, data in files_below(root / name).items() if key in left}
        assert before.keys() == set(left)
        os.remove(root / name / document)
        assert not (source / name / "zarr.json").exists()
        assert {key: data for key, data in files_below(root / name).items() if key[0] == "."} == before
    for name in ("plane", "group", "nested", "loose", "old"):
        shutil.rmtree(root / name)
        assert not (source / name).exists()


def test_a_new_array_without_a_v3_form_is_stored_as_written_and_the_log_says_why(mount: Mounter, source: Path) -> None:
    mounted = mount(source, write=True, shards="2", arguments=["--view=v2"])
    zarray = json.loads((mounted.path / "loose/.zarray").read_text()) | {"compressor": {"id": "example-unknown"}}
    (mounted.path / "new").mkdir()
    written(mounted.path / "new/.zarray", zarray)
    (mounted.path / "new/0.0").write_bytes(b"anything")
    assert files_below(source / "new") == {".zarray": json.dumps(zarray).encode(), "0.0": b"anything"}
    assert "example-unknown" in mounted.log


def test_what_is_written_decoded_has_the_right_size_and_a_new_array_is_plain(mount: Mounter, source: Path) -> None:
    mounted = mount(
        source,
        write=True,
        shards="2",
        arguments=["--view=v2", "--decode"],
        expect=(
            "image/0.0.0 .* has 512 bytes, not",
            "chunks are decoded here",
            "0.1 has 23 bytes, not 24, and stays in",
        ),
    )
    root = mounted.path
    chunk = root / "image/0.0.0"
    right = chunk.read_bytes()
    for wrong in (right[:-1], right + b"x"):
        with refuses(errno.EINVAL):
            chunk.write_bytes(wrong)
        assert chunk.read_bytes() == right
    chunk.write_bytes(b"")  # which nobody can be told at its end
    assert chunk.read_bytes() == right
    chunk.write_bytes(right[::-1])
    assert chunk.read_bytes() == right[::-1]
    plain = json.loads((root / "loose/.zarray").read_text())
    (root / "new").mkdir()
    for member, value in {"compressor": {"id": "zlib", "level": 1}, "order": "F", "dtype": ">i4"}.items():
        with refuses(errno.EINVAL):
            written(root / "new/.zarray", plain | {member: value})
    (root / "new/0.1").write_bytes(bytes(23))  # a chunk that comes before its document, and is too short
    written(root / "new/.zarray", plain)
    assert not (root / "new/0.1").exists()
    (root / "new/0.0").write_bytes(bytes(range(24)))
    assert (root / "new/0.0").read_bytes() == bytes(range(24))
    subprocess.run(["fusermount3", "-u", root], check=True)
    mounted.process.wait(60)
    assert zarr.open_array(str(source / "new"), mode="r").metadata.zarr_format == 3


def test_an_open_npy_file_is_stale_when_its_array_becomes_another_one(mount: Mounter, source: Path) -> None:
    root = mount(source, metadata_ttl=0, arguments=["--view=npy"]).path
    with open(root / "image.npy", "rb") as file:
        written(source / "image/zarr.json", DOCUMENTS["image"] | {"data_type": "float16"})
        with refuses(errno.ESTALE):
            file.read()
    assert np.load(root / "image.npy").dtype == np.float16
