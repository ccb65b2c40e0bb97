"""Arrays inside the directories of other arrays, where Zarr has none: every command sees them, or names them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.bulk.test_pack import pack
from tests.support.commands import FAILED, run, run_json
from tests.support.datasets import files_below
from tests.support.mounting import Mounter

pytestmark = pytest.mark.slow

VALUES = np.arange(1, 9, dtype="i4")
LONG = "x" * 253
SEEN = ["plain", "plain/0", "plain/inside", "plain/folder/deep", "bfloat", "bfloat/inside", LONG, ".zarray", "grid"]
AMONG = {"plain/c/lost": "plain", "grid/c/0/lost": "grid", "grid/c/zarr.json": "grid", "grid/c/c": "grid"}
"""Directories and documents among the shards of an array."""

UNSEEN = {
    "v3": {},
    "v3 --decode": {},
    "v2": {
        ".zarray": "the name .zarray is that of a document of Zarr v2",
        "plain/0": "the name 0 is that of chunks of the array plain",
        "bfloat": "bfloat16",
        "bfloat/inside": "it is inside the array bfloat, which is skipped itself: ",
    },
    "npy": {
        "plain/0": "it is inside the array plain, which is a file here",
        "plain/inside": "it is inside the array plain, which is a file here",
        "plain/folder/deep": "it is inside the array plain, which is a file here",
        "bfloat": "bfloat16",
        "bfloat/inside": "it is inside the array bfloat, which is skipped itself: ",
        LONG: "its name with .npy would have more than 255 bytes",
    },
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    zarr.create_group(tmp_path / "source")
    for path in [*SEEN, "plain/c/lost", "grid/c/0/lost", "grid/c"]:
        shape = (2, 4) if path == "grid" else (8,)
        array = zarr.create_array(
            tmp_path / "source" / path,
            shape=shape,
            shards=tuple(n // 2 for n in shape),
            chunks=tuple(n // 2 if n == 2 else n // 4 for n in shape),
            dtype="u2" if path == "bfloat" else "i4",
        )
        array[...] = VALUES.reshape(shape)
    document = tmp_path / "source/bfloat/zarr.json"
    document.write_text(document.read_text().replace("uint16", "bfloat16"))
    return tmp_path / "source"


def described(source: Path) -> dict[str, Any]:
    return {item["path"]: item for item in run_json("info", "--json", source)["arrays"]}


@pytest.mark.parametrize("view", UNSEEN)
def test_an_array_is_unpacked_or_skipped_by_name_with_the_reason_that_info_gives(
    source: Path, mount: Mounter, view: str
) -> None:
    items, options = described(source), ["--view", *view.split()]
    assert items.keys() == {*SEEN}
    unseen: dict[str, str] = UNSEEN[view]
    for path, item in items.items():
        assert (f"--view {view}" in item["views"]) is (path not in unseen), path
        assert item["left_out"].get(f"--view {view}", "").startswith(unseen.get(path, "")) or path == "bfloat"
    done = run("unpack", "--jobs", "1", *options, source, source.parent / "unpacked")
    lines = {line.split(": ")[2]: line for line in done.stderr.splitlines()}
    among = {} if view.startswith("v3") else AMONG
    assert lines.keys() == unseen.keys() | among.keys(), str(done)
    for path, reason in unseen.items():
        assert reason in lines[path]
    assert done.returncode == (FAILED if lines else 0)
    shown = files_below(mount(source, arguments=options, expect=("is skipped in the",)).path)
    assert files_below(source.parent / "unpacked") == shown
    seen = set(SEEN) - unseen.keys()
    if view == "npy":
        assert {name.removesuffix(".npy") for name in shown if name.endswith(".npy")} == seen
        return
    name = "zarr.json" if view.startswith("v3") else ".zarray"
    documents = {path.rpartition("/")[0]: json.loads(text) for path, text in shown.items() if path.endswith(f"/{name}")}
    arrays = {path for path, document in documents.items() if "shape" in document}
    assert arrays == seen | ({"plain/c/lost", "grid/c/0/lost", "grid/c"} if view.startswith("v3") else set())


def test_what_is_among_shards_is_named_by_every_command_that_lists_them(source: Path) -> None:
    for key, above in AMONG.items():
        assert key in described(source)[above]["among_shards"]
        assert f"it is among the shards of {above}" in " ".join(run("info", source).stdout.split())
    unchecked = {item["array"]: item["reason"] for item in run_json("verify", "--json", source)["unchecked"]}
    not_shown = run_json("map", "--json", source)["not_shown"]
    packed = run("pack", "--jobs", "1", "--shards", "1", source, source.parent / "packed")
    assert packed.returncode == FAILED
    compared = run("verify", "--jobs", "1", source, source.parent / "packed")
    assert compared.returncode == FAILED
    references = run("refs", source, "-o", source.parent / "refs.json")
    assert references.returncode == FAILED
    left = {item["shard"]: item["reason"] for item in run_json("compact", "--json", source)["left"]}
    recovered = run_json("recover", "--json", source, status=FAILED)["findings"]
    applied = run("recover", "--apply", source)
    assert applied.returncode == FAILED
    for key, above in AMONG.items():
        reason = f"it is among the shards of {above}, where no array or group can be: move it elsewhere"
        assert unchecked[key] == not_shown[key] == left[key] == reason
        assert f"not looked at: {key}: {reason}" in [item["message"] for item in recovered]
        assert f"not looked at: {key}: {reason}\n" in applied.stdout
        assert f"skipped: {key}: {reason}\n" in packed.stderr
        assert f"{key}: {reason}\n" in compared.stdout
        assert f"{key} cannot be referenced: {reason}\n" in references.stderr


def test_files_among_the_shards_of_an_array_are_no_arrays(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "source/a", shape=(8,), shards=(4,), chunks=(2,), dtype="i4")[...] = VALUES
    (tmp_path / "source/a/c/notes.txt").write_text("notes")
    assert described(tmp_path / "source")["a"]["among_shards"] == []
    assert run_json("verify", "--json", tmp_path / "source")["unchecked"] == []
    assert "a/c/notes.txt: no chunk" in pack(tmp_path / "source", tmp_path / "packed", "--shards", "1")


def test_an_array_inside_one_that_is_the_source_is_a_file_beside_it(tmp_path: Path, mount: Mounter) -> None:
    source = tmp_path / "cells.zarr"
    for path in ("", "0", "folder/deep", "inside", "inside/further"):
        zarr.create_array(source / path, shape=(8,), shards=(4,), chunks=(2,), dtype="i4")[...] = VALUES + len(path)
    shown = ["0.npy", "cells.zarr.npy", "folder/deep.npy", "inside.npy"]
    mounted = mount(source, arguments=["--view=npy"])
    assert sorted(files_below(mounted.path)) == shown
    for path in ("0", "folder/deep", "inside"):
        assert np.array_equal(np.load(mounted.path / f"{path}.npy"), VALUES + len(path))
    assert not (mounted.path / "inside").exists()
    done = run("unpack", "--jobs", "1", "--view=npy", source, tmp_path / "unpacked")
    reason = "it is inside the array inside, which is a file here: move it out of that, or use --view v3"
    assert (done.stderr, done.returncode) == (f"shardfs: skipped: inside/further: {reason}\n", FAILED)
    assert sorted(files_below(tmp_path / "unpacked")) == shown


def test_what_is_in_a_directory_that_has_the_name_of_a_file_of_the_view_is_named(tmp_path: Path) -> None:
    for path in ("image", "image.npy/inside", "image.json/inside"):
        array = zarr.create_array(tmp_path / "source" / path, shape=(8,), shards=(4,), chunks=(2,), dtype="i4")
        array[...] = VALUES
    done = run("unpack", "--jobs", "1", "--view=npy", tmp_path / "source", tmp_path / "unpacked")
    reason = "the name image.npy is that of another file of this view: rename it, or use --view v3"
    assert (done.stderr, done.returncode) == (f"shardfs: skipped: image.npy/inside: {reason}\n", FAILED)
    assert sorted(files_below(tmp_path / "unpacked")) == ["image.json/inside.npy", "image.npy"]


def test_a_mount_inside_an_array_is_found_by_one_of_the_whole(tmp_path: Path, mount: Mounter) -> None:
    for path in ("", "0"):
        zarr.create_array(tmp_path / "source" / path, shape=(8,), shards=(4,), chunks=(2,), dtype="i4")[...] = VALUES
    mount(tmp_path / "source/0", write=True)
    (tmp_path / "second").mkdir()
    done = run("mount", "--write", tmp_path / "source", tmp_path / "second")
    assert done.returncode
    assert str(tmp_path / "source/0") in done.stderr
