"""What cannot be read does not hide the rest from the commands that look at everything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import trio

from shardfs.dataset.maintenance.walk import walk_nodes
from shardfs.dataset.source import Source
from shardfs.stores.local.tree import LocalStore
from tests.support.commands import run_json
from tests.support.corpus import BASE
from tests.support.datasets import store
from tests.support.mounting import command, environment


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
