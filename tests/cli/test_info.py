"""`shardfs info`: what it says of every array, sound or not, and what it counts in shards."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardfs.fuse.progress import size
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import CASES, GZIP, LITTLE, array, sharding, write_case
from tests.support.datasets import store
from tests.support.encoder import SHARDING, named

BY_NAME = {case.name: case for case in CASES}


def levels_of(codecs: Sequence[Any], rank: int) -> tuple[list[int], list[Any], int]:
    """Shape of the innermost chunks along the array's axes, their codecs, and how deep they lie."""
    axes, shape, depth = list(range(rank)), [], 0
    while any(named(codec)[0] == SHARDING for codec in codecs):
        for codec in codecs:
            name, configuration = named(codec)
            if name == "transpose":
                axes = [axes[axis] for axis in configuration["order"]]
            if name == SHARDING:
                shape, codecs, depth = configuration["chunk_shape"], configuration["codecs"], depth + 1
                break
    return [shape[axes.index(axis)] for axis in range(rank)], codecs, depth


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A group of arrays that are stored in different ways, one of them not as a whole."""
    write_case(BY_NAME["after-gzip"], tmp_path / "wrapped")
    store(tmp_path / "group/nested", array((20, 13), (16, 12), sharding((8, 6), sharding((2, 3), LITTLE, GZIP))))
    (tmp_path / "group/nested/c/1/1").unlink()
    store(tmp_path / "group/plain", array((4, 4), (2, 2), LITTLE))
    (tmp_path / "group/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_the_table_has_a_row_for_each_array_and_totals(several: Path) -> None:
    done = run("info", several)
    assert (done.returncode, done.stderr) == (0, "")
    sizes = {
        path: sum(file.stat().st_size for file in (several / path / "c").rglob("*") if file.is_file())
        for path in ("group/nested", "group/plain", "wrapped")
    }
    decoded = {"group/nested": 4 * (20 * 13 - 4 * 1), "group/plain": 64, "wrapped": BY_NAME["after-gzip"].values.nbytes}
    ratios = {path: f"{decoded[path] / nbytes:.2f}" for path, nbytes in sizes.items()}
    nested, wrapped = ([size(sizes[path]), ratios[path]] for path in ("group/nested", "wrapped"))
    shape = "×".join(map(str, BY_NAME["after-gzip"].document["shape"]))
    said, header, *rows, total, hint = [re.split(" {2,}", line) for line in done.stdout.splitlines()]
    assert said == ["In all of them: dtype int32; view v3 v2 npy"]
    assert header == ["path", "shape", "inner chunk", "shard", "codecs", "shards", "bytes", "ratio"]
    assert rows == [
        ["group/nested", "20×13", "2×3", "16×12", "gzip", "3/4", *nested],
        ["group/plain", "4×4", "2×2", "none", "4/4", "64 B", "1.00"],
        ["wrapped", shape, "2×3", "4×6", "none in gzip", "4/4", *wrapped],
    ]
    ratio = f"{sum(decoded.values()) / sum(sizes.values()):.2f}"
    assert total == [f"3 arrays, 7 of 8 shards stored, {size(sum(sizes.values()))}, ratio {ratio}"]
    assert "shardfs info SOURCE ARRAY" in hint[0]


def test_one_array_is_described_on_demand(several: Path) -> None:
    done = run("info", several, "group/nested/")
    assert (done.returncode, done.stderr) == (0, "")
    path, *lines = done.stdout.splitlines()
    assert path == "group/nested"
    told = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in lines)
    assert told.pop("stored").endswith(" bytes)")
    assert told.pop("ratio")
    assert told == {
        "shape": "20 × 13",
        "data type": "int32",
        "sharded": "yes",
        "chunk grid": 'regular {"chunk_shape": [16, 12]}',
        "codecs": "sharding_indexed",
        "inner chunk shape": "2 × 3",
        "inner chunks": "50",
        "nesting": "2",
        "inner codecs": "bytes, gzip",
        "shards": "4",
        "stored shards": "3",
        "decoded": "1.0 KiB (1,024 bytes)",
        "--view v3": "unsharded",
        "--view v3 --decode": "decoded",
        "--view v2": "as Zarr v2",
        "--view v2 --decode": "as Zarr v2, decoded",
        "--view npy": "as a .npy file",
    }
    assert run_json("info", "--json", several, "group/nested")["arrays"] == [
        item for item in run_json("info", "--json", several)["arrays"] if item["path"] == "group/nested"
    ]
    way_out = f"`shardfs info {several}` lists all arrays"
    assert one_line_of(run("info", several, "group"), 1) == f"group is not a Zarr v3 array; {way_out}"
    for name in ("nothing", "../nothing"):
        said = one_line_of(run("info", several, name), SOURCE)
        assert said == f"there is no array {name} in {several}; {way_out}"
    for command in ("info", "map"):
        said = one_line_of(run(command, several, "group/plan"), SOURCE)
        assert said == f"there is no array group/plan in {several}; did you mean group/plain?"


def test_sizes_that_only_a_document_claims_are_no_sizes(tmp_path: Path) -> None:
    shape = (2**60,) * 20
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge/zarr.json").write_text(json.dumps(array(shape, shape, sharding(shape))))
    shard = tmp_path / "huge/c" / "/".join("0" * 20)
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"1234")
    (item,) = run_json("info", "--json", tmp_path)["arrays"]
    assert (item["stored_shards"], item["stored_nbytes"], item["decoded_nbytes"]) == (1, 4, None)
    for arguments in (["info", tmp_path], ["info", tmp_path, "huge"], ["map", tmp_path]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
