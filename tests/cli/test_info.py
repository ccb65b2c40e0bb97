"""`shardfs info`: what it says of every array, sound or not, and what it counts in shards."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardfs.fuse.progress import size
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import BROKEN, CASES, GZIP, LITTLE, array, extension, sharding, write_case
from tests.support.datasets import store
from tests.support.encoder import SHARDING, named, with_codec
from tests.support.terminal import on_terminal

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, and documents that are shown as stored."""
    root = tmp_path_factory.mktemp("stored")
    for case in CASES:
        write_case(case, root / "sound" / case.name)
    for broken in BROKEN:
        (root / "broken" / broken.name).mkdir(parents=True)
        (root / "broken" / broken.name / "zarr.json").write_text(json.dumps(broken.document))
    return root


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


def test_every_array_of_the_corpus_is_described_as_it_is(stored: Path) -> None:
    described = {item["path"]: item for item in run_json("info", "--json", stored / "sound")["arrays"]}
    assert described.keys() == BY_NAME.keys()
    for case in CASES:
        document, item = with_codec(case.document), described[case.name]
        inner_shape, codecs, depth = levels_of(document["codecs"], case.values.ndim)
        names = [named(codec)[0].replace("endian", "bytes") for codec in codecs]
        assert item["shape"] == document["shape"]
        assert item["data_type"] == document["data_type"]
        assert named(item["chunk_grid"])[0] == named(document["chunk_grid"])[0]
        assert item["inner_chunk_shape"] == inner_shape
        assert item["inner_chunks"] == math.prod(map(_ceil_div, document["shape"], inner_shape))
        assert item["nesting"] == depth
        assert item["inner_codecs"][-len(names) :] == [name for name in names if name != "example.hint"]
        assert (item["sharded"], item["reason"], item["views"][0]) == (True, None, "--view v3")


def _ceil_div(length: int, by: int) -> int:
    return -(-length // by)


def test_a_valid_array_that_cannot_be_unsharded_is_described_all_the_same(tmp_path: Path) -> None:
    codecs = [extension("numcodecs.delta", dtype="<i4"), sharding((2, 3), LITTLE, GZIP)]
    store(tmp_path, array((7, 11), (4, 6), codecs[1]))
    (tmp_path / "zarr.json").write_text(json.dumps(array((7, 11), (4, 6), *codecs)))
    (item,) = run_json("info", "--json", tmp_path)["arrays"]
    assert "numcodecs.delta" in item["reason"]
    assert (item["path"], item["views"], item["sharded"], item["shape"]) == ("", [], True, [7, 11])
    row, note, *_ = run("info", tmp_path).stdout.splitlines()[1:]
    assert row.split() == ["(root)", "7×11", "int32", "4×6", "numcodecs.delta", "sharding_indexed", "as", "stored"]
    assert note == f"as stored: (root): {item['reason']}"


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


def test_a_dataset_of_43_arrays_fits_a_screen(tmp_path: Path) -> None:
    document = array((87600, 721, 1440), (8760, 721, 1440), sharding((24, 103, 180), LITTLE, GZIP), data_type="float32")
    for number in range(40):
        (tmp_path / f"variable_{number:02}").mkdir()
        (tmp_path / f"variable_{number:02}/zarr.json").write_text(json.dumps({**document, "fill_value": 0.0}))
    for name in ("latitude", "longitude", "time"):
        store(tmp_path / name, array((721,), (721,), LITTLE))
    for columns in (80, 120):
        with on_terminal("info", tmp_path, columns=columns) as terminal:
            assert terminal.end() == 0
        lines = terminal.shown.rpartition("\x1b[K")[2].splitlines()
        assert 46 <= len(lines) <= 50
        assert {len(line) <= columns for line in lines[:-1]} == {True}
        shown = " ".join(lines)
        for word in ("variable_39", "87600×721×1440", "24×103×180", "8760×721×1440", "0/10", "43 arrays"):
            assert word in shown, columns
        left_out = re.search("The terminal is too narrow for (.*)\\.", shown)
        for title, word in {"ratio": "  1.00", "codecs": "gzip", "view": "v3 v2 npy", "dtype": "float32"}.items():
            assert (word in shown) == (left_out is None or title not in left_out[1]), (columns, title)
    assert left_out is None


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


def test_a_link_to_a_shard_counts_as_one_and_a_directory_is_damage(tmp_path: Path) -> None:
    store(tmp_path, array((4, 18), (4, 6), sharding((2, 3))))
    (tmp_path / "c/0/0").rename(tmp_path / "elsewhere")
    (tmp_path / "c/0/0").symlink_to("../../elsewhere")
    (item,) = run_json("info", "--json", tmp_path)["arrays"]
    assert (item["stored_shards"], item["stored_nbytes"], item["error"]) == (3, 3 * 164, None)
    (tmp_path / "c/0/1").unlink()
    (tmp_path / "c/0/1").mkdir()
    assert "damaged: (root): c/0/1 is a directory where a shard should be\n" in run("info", tmp_path).stdout
