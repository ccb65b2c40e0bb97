"""Drafts of the specification: what is shown of arrays that only a draft allows, with and without `--draft`."""

import gzip
import json
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardfs
from tests.support.clients import ZARR34
from tests.support.commands import WRONG_USAGE, one_line_of, run, run_json
from tests.support.corpus import GZIP, LITTLE, array, rectilinear, sharding, transpose
from tests.support.datasets import files_below
from tests.support.mounting import Mounter

DRAFT = "--draft=sharding-1.1"
SHAPE = (22, 13)
VALUES = np.arange(1, 1 + 22 * 13, dtype="u2").reshape(SHAPE)
INNER = (LITTLE, GZIP)
MEMBERS: dict[str, Any] = {"data_type": "uint16", "fill_value": 9}
ARRAYS = {
    "regular": (
        [10, 10, 10],
        [6, 6, 6],
        (),
        (4, 4),
        array(SHAPE, (10, 6), sharding((4, 4), *INNER, index_codecs=[LITTLE]), **MEMBERS),
    ),
    "one-axis": (
        [10, 10, 10],
        [6, 6, 6],
        (),
        (5, 4),
        array(SHAPE, (10, 6), sharding((5, 4), *INNER, index_codecs=[LITTLE]), **MEMBERS),
    ),
    "rectilinear": (
        [7, 7, 3, 8],
        [13],
        (),
        (4, 4),
        array(SHAPE, rectilinear([[7, 2], 3, 8], 13), sharding((4, 4), *INNER, index_codecs=[LITTLE]), **MEMBERS),
    ),
    "transposed": (
        [10, 10, 10],
        [6, 6, 6],
        (1, 0),
        (4, 5),
        array(
            SHAPE,
            (10, 6),
            transpose(1, 0),
            sharding((4, 5), *INNER, index_codecs=[LITTLE], index_location="start"),
            **MEMBERS,
        ),
    ),
}
"""Lengths of shards along both axes, the transpose before the codec, the shape of inner chunks, and the document."""


def parts(length: int, inner: int) -> list[slice]:
    """Inner chunks along an axis of a shard."""
    return [slice(start, min(start + inner, length)) for start in range(0, length, inner)]


def store(directory: Path, name: str) -> dict[str, bytes]:
    """Write an array as the draft says, without its shard 0/1; returns its inner chunks by their names."""
    rows, columns, order, inner, document = ARRAYS[name]
    directory.mkdir(parents=True)
    (directory / "zarr.json").write_text(json.dumps(document))
    firsts: list[list[int]] = []  # the first inner chunk of each shard, along each axis of the array
    lengths = [inner[order.index(axis)] if order else inner[axis] for axis in range(2)]
    for edges, length in zip((rows, columns), lengths, strict=True):
        firsts.append([0, *accumulate(-(-edge // length) for edge in edges)])
    chunks = {}
    padded = np.full((40, 40), 9, "<u2")
    padded[: SHAPE[0], : SHAPE[1]] = VALUES
    for i, j in product(range(len(rows)), range(len(columns))):
        if (i, j) == (0, 1):
            continue
        top, left = sum(rows[:i]), sum(columns[:j])
        shard = padded[top : top + rows[i], left : left + columns[j]].transpose(order or (0, 1))
        pieces = {
            (n, m): gzip.compress(np.ascontiguousarray(shard[along, across]).tobytes(), mtime=0)
            for n, along in enumerate(parts(shard.shape[0], inner[0]))
            for m, across in enumerate(parts(shard.shape[1], inner[1]))
        }
        is_at_start = document["codecs"][-1]["configuration"].get("index_location") == "start"
        offset = 16 * len(pieces) * is_at_start
        index = []
        for (n, m), piece in pieces.items():
            index += [offset, len(piece)]
            offset += len(piece)
            at = (m, n) if order else (n, m)
            start = top + at[0] * lengths[0], left + at[1] * lengths[1]
            if start[0] < SHAPE[0] and start[1] < SHAPE[1]:
                chunks[f"c/{firsts[0][i] + at[0]}/{firsts[1][j] + at[1]}"] = piece
        (directory / f"c/{i}").mkdir(parents=True, exist_ok=True)
        text = np.array(index, "<u8").tobytes()
        data = b"".join(pieces.values())
        (directory / f"c/{i}/{j}").write_bytes(text + data if is_at_start else data + text)
    return chunks


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ARRAYS:
        store(tmp_path / "source" / name, name)
    return tmp_path / "source"


@pytest.mark.parametrize("name", ARRAYS)
def test_inner_chunks_that_do_not_divide_shards_are_shown_as_a_rectilinear_grid(
    mount: Mounter, tmp_path: Path, name: str
) -> None:
    chunks = store(tmp_path / "source", name)
    root = mount(tmp_path / "source", arguments=[DRAFT]).path
    shown = files_below(root)
    document = json.loads(shown.pop("zarr.json"))
    assert document["chunk_grid"]["name"] == "rectilinear"
    assert shown == chunks
    for path, data in chunks.items():
        assert (root / path).read_bytes() == data


def test_zarr_python_reads_what_is_shown_of_a_draft(mount: Mounter, source: Path, tmp_path: Path) -> None:
    expected = VALUES.copy()
    root = mount(source, arguments=[DRAFT]).path
    found = ZARR34.arrays(READ_RECTILINEAR, tmp_path, root, *ARRAYS)
    for name, (rows, columns, *_) in ARRAYS.items():
        expected = VALUES.copy()
        expected[: rows[0], columns[0] : sum(columns[:2]) if len(columns) > 1 else columns[0]] = 9
        np.testing.assert_array_equal(found[name], expected, name)


READ_RECTILINEAR = """
import sys, numpy, zarr
found, root, *names = sys.argv[1:]
with zarr.config.set({"array.rectilinear_chunks": True}):
    numpy.savez(found, **{name: zarr.open_array(f"{root}/{name}", mode="r")[...] for name in names})
"""


def test_without_the_option_arrays_of_a_draft_are_as_stored_and_the_reason_names_it(
    mount: Mounter, source: Path
) -> None:
    mounted = mount(source)
    assert files_below(mounted.path) == files_below(source)
    for name in ARRAYS:
        (item,) = run_json("info", "--json", source, name)["arrays"]
        assert "do not divide shards of length" in item["reason"]
        assert "--draft sharding-1.1" in item["reason"]


@pytest.mark.parametrize("options", [["--view=v2"], ["--decode"], ["--view=npy"]], ids=" ".join)
def test_other_views_leave_arrays_of_a_draft_out(mount: Mounter, source: Path, options: list[str]) -> None:
    mounted = mount(source, arguments=options if "--decode" not in options else [*options, DRAFT])
    assert not [path for path in files_below(mounted.path) if path != ".zgroup"]


def test_a_draft_is_only_read(source: Path, tmp_path: Path) -> None:
    for wrong in (["--write"], ["--view=v2"]):
        assert "--draft" in one_line_of(run("mount", DRAFT, *wrong, source, tmp_path), WRONG_USAGE)


def test_inner_chunks_of_nested_shards_must_divide_them_in_a_draft_too(mount: Mounter, tmp_path: Path) -> None:
    document = array(SHAPE, (10, 6), sharding((8, 4), sharding((2, 2), *INNER)), **MEMBERS)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "zarr.json").write_text(json.dumps(document))
    mounted = mount(tmp_path / "source", arguments=[DRAFT])
    assert json.loads((mounted.path / "zarr.json").read_text()) == document
    assert "nested" in mounted.log


def test_python_reads_chunks_of_a_draft(source: Path) -> None:
    with shardfs.open(source, draft="sharding-1.1") as dataset:
        chunk = gzip.decompress(dataset["regular"].read_chunk((2, 0)))
    assert np.frombuffer(chunk, "<u2").tolist() == VALUES[8:10, 0:4].ravel().tolist()


def test_a_grid_of_too_many_cut_off_chunks_is_a_reason(tmp_path: Path, mount: Mounter) -> None:
    document = array((10**9,), (10,), sharding((4,)))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "zarr.json").write_text(json.dumps(document))
    mounted = mount(tmp_path / "source", arguments=[DRAFT])
    assert json.loads((mounted.path / "zarr.json").read_text()) == document
    assert "cut off" in mounted.log


@pytest.mark.parametrize("name", ARRAYS)
def test_commands_that_only_read_take_the_draft_as_a_mount_does(mount: Mounter, tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    chunks = store(source, name)
    shown = files_below(mount(source, arguments=[DRAFT]).path)

    (item,) = run_json("info", "--json", DRAFT, source)["arrays"]
    assert item["reason"] is None
    assert item["views"] == ["--view v3"]
    (found,) = run_json("map", "--json", DRAFT, source)["arrays"]
    assert sum(use["chunks"] for use in found["shards"]) >= len(chunks)
    assert {use["dead"] for use in found["shards"]} == {0}
    references = json.loads(run("refs", DRAFT, source).stdout)["refs"]
    assert references.keys() == shown.keys()
    for key, data in chunks.items():
        url, offset, nbytes = references[key]
        assert Path(url.removeprefix("file://")).read_bytes()[offset : offset + nbytes] == data
    assert run("unpack", DRAFT, source, tmp_path / "unpacked").returncode == 0
    assert files_below(tmp_path / "unpacked") == shown
    tools = run("info", "--tools", DRAFT, source).stdout
    assert f"--view v3 {DRAFT}" in tools
    assert f"shardfs serve {DRAFT} {source}" in tools
    assert 'draft="sharding-1.1"' in tools


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("name", ARRAYS)
def test_verify_decodes_chunks_of_a_draft_and_names_one_that_is_damaged(tmp_path: Path, name: str, jobs: str) -> None:
    source = tmp_path / "source"
    store(source, name)
    options = ["--json", f"--jobs={jobs}", DRAFT]
    report = run_json("verify", "--data", *options, source)
    assert report["sound"]
    assert report["arrays"] == 1
    assert not report["unchecked"]
    shard = source / "c" / "1" / "0"
    data = bytearray(shard.read_bytes())
    data[data.index(b"\x1f\x8b") + 12] ^= 0xFF  # in the first chunk, behind its header
    shard.write_bytes(data)
    ((_, keyword),) = {(problem["shard"], problem["chunk"]) for problem in problems_of(source, *options)}
    assert keyword is not None


def problems_of(source: Path, *options: str) -> list[dict[str, Any]]:
    done = run("verify", "--data", *options, source)
    assert done.returncode == 1
    return list(json.loads(done.stdout)["problems"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["unpack", "--view=v2", DRAFT, "SOURCE", "DEST"],
        ["refs", "--view=v2", DRAFT, "SOURCE"],
        ["refs", "--parquet=DEST", DRAFT, "SOURCE"],
        ["verify", DRAFT, "SOURCE", "DEST"],
    ],
    ids=" ".join,
)
def test_commands_that_show_no_draft_refuse_the_option(source: Path, tmp_path: Path, arguments: list[str]) -> None:
    names = {"SOURCE": str(source), "DEST": str(tmp_path / "dest"), "--parquet=DEST": f"--parquet={tmp_path / 'dest'}"}
    assert "--draft" in one_line_of(run(*(names.get(each, each) for each in arguments)), WRONG_USAGE)
    assert not (tmp_path / "dest").exists()
