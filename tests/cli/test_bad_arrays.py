"""One array that is not as it should be keeps no command, and no mount, from showing the others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.dataset.hierarchy import Source
from shardfs.dataset.maintenance.walk import walk_nodes
from shardfs.stores.local.tree import LocalStore
from tests.support.commands import run, run_json
from tests.support.corpus import BASE, GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter, command, environment

VIEWS = [["--view=v3", "--decode"], ["--view=v2"], ["--view=npy"]]
SOUND = array((8, 12), (4, 6), sharding((2, 3)), dimension_names=["y", "x"])
FROM_FORTRAN = extension("transpose", order="F")
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "order-F": (array((8, 12), (4, 6), FROM_FORTRAN, LITTLE), "order must be a list"),
    "order-F-in-shards": (array((8, 12), (4, 6), sharding((2, 3), FROM_FORTRAN, LITTLE)), ""),
    "order-F-before-shards": (array((8, 12), (4, 6), FROM_FORTRAN, sharding((2, 3))), "transpose: order"),
    "chunk_shape-2": (
        array((8, 12), (4, 6), LITTLE) | {"chunk_grid": extension("regular", chunk_shape=2)},
        "chunk_shape must be a list of integers, not 2",
    ),
    "grid-without-chunks": (array((8, 12), (4, 6), LITTLE) | {"chunk_grid": "regular"}, "chunk_shape must be a list"),
    "grid-unknown": (array((8, 12), (4, 6), LITTLE) | {"chunk_grid": "example.spiral"}, "unknown chunk grid"),
    "keys-unknown": (array((8, 12), (4, 6), LITTLE) | {"chunk_key_encoding": "example.hash"}, "chunk key encoding"),
    "no-serializer": (array((8, 12), (4, 6), GZIP), "no array → bytes codec"),
    "type-with-a-member": (array((8, 12), (4, 6), LITTLE) | {"data_type": extension("int32", of=1)}, ""),
    "transformers": (array((8, 12), (4, 6), LITTLE, storage_transformers=["example.cache"]), "not supported"),
}
"""Documents, and what `info` gives as the reason why nothing but what is stored is shown."""


def deep(nesting: int) -> str:
    """A document with a data type that is nested as deep."""
    document = json.dumps(SOUND | {"data_type": extension("example.deep", inside="@")})
    return document.replace('"@"', "[" * nesting + "]" * nesting)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    store(root / "sound", SOUND)
    for name, (document, _) in BAD.items():
        (root / name).mkdir()
        (root / name / "zarr.json").write_text(json.dumps(document))
    for nesting in (100, 900, 990):
        (root / f"deep-{nesting}").mkdir()
        (root / f"deep-{nesting}/zarr.json").write_text(deep(nesting))
    return root


def test_info_names_every_bad_array_with_its_reason_and_describes_the_others(source: Path) -> None:
    described = {item["path"]: item for item in run_json("info", "--json", source)["arrays"]}
    assert described.keys() == {"sound", *BAD, "deep-100", "deep-900", "deep-990"}
    for name, (_, reason) in BAD.items():
        assert reason in (described[name]["reason"] or ""), name
        assert reason or described[name]["reason"] is None
    assert described["sound"]["reason"] is None
    assert described["sound"]["left_out"] == {}
    by_tool = {item["tool"]: item for item in run_json("info", "--tools", "--json", source)["tools"]}
    assert "sound" not in by_tool["zarr-python 2.18"]["missing"]
    done = run("info", source)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(reason in done.stdout for _, reason in BAD.values())


def test_verify_and_refs_go_on_with_the_others(source: Path) -> None:
    report = run_json("verify", "--data", "--json", source, status=1)
    assert {problem["document"] for problem in report["problems"]} == {"deep-990"}  # too deep to be read
    assert {item["array"] for item in report["unchecked"]} >= BAD.keys() - {"order-F-in-shards"}
    for view in ("v3", "v2"):
        done = run("refs", "--view", view, source)
        refs = json.loads(done.stdout)["refs"]
        assert len([key for key in refs if key.startswith("sound/")]) == 16 + (1 if view == "v3" else 2)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_mount_shows_the_others(mount: Mounter, source: Path, view: list[str]) -> None:
    mounted = mount(source, arguments=view)
    mounted.expect(r"(is left out of the|is shown as stored)")
    files_below(mounted.path)
    assert (mounted.path / ("sound.npy" if "--view=npy" in view else "sound")).exists()


def three_arrays(directory: Path) -> Path:
    for name in "abc":
        store(directory / name, BASE)
    return directory


def test_a_file_in_place_of_shards_is_one_problem_among_all_that_is_checked(tmp_path: Path) -> None:
    source = three_arrays(tmp_path)
    shutil.rmtree(source / "b/c/0")
    (source / "b/c/0").write_text("x")
    report = run_json("verify", "--json", source, status=1)
    assert report["arrays"] == 3
    assert [problem["shard"] for problem in report["problems"]] == ["b"]
    for name in ("map", "info"):
        described = {item["path"]: item for item in run_json(name, "--json", source)["arrays"]}
        assert {path: item["error"] is None for path, item in described.items()} == {"a": True, "b": False, "c": True}
        assert "where shards should be" in described["b"]["error"]


def test_a_directory_that_goes_away_does_not_end_a_walk(tmp_path: Path) -> None:
    source = three_arrays(tmp_path)

    async def walk() -> list[tuple[str, bool]]:
        seen = []
        async for node in walk_nodes(Source.of(LocalStore(str(source)), ttl=1.0)):
            seen.append((node.path, node.array is not None))
            shutil.rmtree(source / "b", ignore_errors=True)
        return seen

    assert trio.run(walk) == [("a", True), ("b", False), ("c", True)]


def test_commands_work_with_a_closed_standard_output(tmp_path: Path) -> None:
    source = three_arrays(tmp_path)
    line = " ".join(["exec", *map(str, command("info", source)), ">&-"])
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
