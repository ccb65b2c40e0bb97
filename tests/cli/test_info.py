"""`shardfs info`: what it says of every array, sound or not, and what it counts in shards."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.changing import ChangingArray
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import BROKEN, CASES, GZIP, LITTLE, array, extension, sharding, write_case
from tests.support.datasets import store
from tests.support.encoder import EMPTY, SHARDING, named, with_codec

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
    described = {item["path"]: item for item in run_json("info", "--json", stored / "sound")}
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
        assert (item["shown"], item["sharded"], item["reason"]) == ("unsharded", True, None)


def _ceil_div(length: int, by: int) -> int:
    return -(-length // by)


def test_a_valid_array_that_cannot_be_unsharded_is_described_all_the_same(tmp_path: Path) -> None:
    codecs = [extension("numcodecs.delta", dtype="<i4"), sharding((2, 3), LITTLE, GZIP)]
    store(tmp_path, array((7, 11), (4, 6), codecs[1]))
    (tmp_path / "zarr.json").write_text(json.dumps(array((7, 11), (4, 6), *codecs)))
    (item,) = run_json("info", "--json", tmp_path)
    assert "numcodecs.delta" in item["reason"]
    assert (item["shown"], item["sharded"], item["shape"]) == ("as stored", True, [7, 11])
    assert item["data_type"] == "int32"
    text = run("info", tmp_path).stdout
    assert "7 × 11" in text
    assert '{"chunk_shape": [4, 6]}' in text
    assert "as stored\n  reason              the codec numcodecs.delta" in text


def test_the_text_says_what_a_person_asks(tmp_path: Path) -> None:
    nested = sharding((8, 6), sharding((2, 3), LITTLE, GZIP))
    write_case(BY_NAME["after-gzip"], tmp_path / "wrapped")
    store(tmp_path / "group/nested", array((20, 13), (16, 12), nested))
    store(tmp_path / "group/plain", array((4, 4), (2, 2), LITTLE))
    (tmp_path / "group/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "notes").mkdir()
    done = run("info", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    nested_text, plain_text, wrapped_text, table = done.stdout.split("\n\n")
    assert [re.split(" {2,}", line.strip(), maxsplit=1) for line in nested_text.splitlines()[1:-1]] == [
        ["shape", "20 × 13"],
        ["data type", "int32"],
        ["sharded", "yes"],
        ["chunk grid", 'regular {"chunk_shape": [16, 12]}'],
        ["codecs", "sharding_indexed"],
        ["inner chunk shape", "2 × 3"],
        ["inner chunks", "50"],
        ["nesting", "2"],
        ["inner codecs", "bytes, gzip"],
        ["shown", "unsharded"],
    ]
    assert nested_text.startswith("group/nested\n")
    assert "  sharded             no\n" in plain_text
    assert "  shown               as stored\n" in plain_text
    assert "  codecs              sharding_indexed, gzip\n" in wrapped_text
    assert table.startswith("your tool")


def test_an_array_at_the_root_is_called_root_and_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    store(tmp_path / "array", array((4, 4), (4, 4), sharding((2, 2))))
    (tmp_path / "empty").mkdir()
    assert run("info", tmp_path / "array").stdout.startswith("(root)\n")
    assert run_json("info", "--json", tmp_path / "array")[0]["path"] == ""
    assert run("info", tmp_path / "empty").stdout.startswith("There are no Zarr v3 arrays here: it is empty")
    assert run_json("info", "--json", tmp_path / "empty") == []
    assert "nowhere does not exist" in one_line_of(run("info", "nowhere"), SOURCE)


@dataclass
class Use:
    """What the bytes of one shard are used for, byte by byte, from a plain reading of its indexes."""

    data: bytes
    live: bytearray = field(init=False)
    chunks: int = 0

    def __post_init__(self) -> None:
        self.live = bytearray(len(self.data))

    def read(self, codec: dict[str, Any], shape: Sequence[int], start: int, stop: int) -> None:
        configuration = codec["configuration"]
        inner_shape = configuration["chunk_shape"]
        count = math.prod(length // inner for length, inner in zip(shape, inner_shape, strict=True))
        index_size = 16 * count + 4 * len(configuration["index_codecs"][1:])
        at = start if configuration.get("index_location") == "start" else stop - index_size
        self.mark(at, index_size)
        for offset, nbytes in struct.iter_unpack("<QQ", self.data[at : at + 16 * count]):
            if (offset, nbytes) == (EMPTY, EMPTY):
                continue
            if configuration["codecs"][0]["name"] == SHARDING:
                self.read(configuration["codecs"][0], inner_shape, start + offset, start + offset + nbytes)
            else:
                self.chunks += 1
                self.mark(start + offset, nbytes)

    def mark(self, at: int, nbytes: int) -> None:
        self.live[at : at + nbytes] = b"\1" * nbytes


def expected_use(document: dict[str, Any], key: str, data: bytes) -> dict[str, Any]:
    use = Use(data)
    use.read(document["codecs"][0], document["chunk_grid"]["configuration"]["chunk_shape"], 0, len(data))
    live = sum(use.live)
    return {
        "key": key,
        "size": len(data),
        "chunks": use.chunks,
        "live": live,
        "dead": len(data) - live,
        "error": None,
    }


LAYOUTS = ["reversed", "gaps", "gaps-start", "gaps-nested", "foreign-prefix", "foreign-prefix-nested", "shared"]
LAYOUTS += ["shared-nested", "everything-at-once", "stored-beyond", "empty-index", "absent-enclosed-shard", "nested-3"]


def test_sizes_chunks_live_and_dead_bytes_are_counted_exactly(tmp_path: Path) -> None:
    expected = {}
    for name in LAYOUTS:
        encoded = write_case(BY_NAME[name], tmp_path / name)
        expected[name] = [
            expected_use(BY_NAME[name].document, f"{name}/{key}", data) for key, data in sorted(encoded.files.items())
        ]
    appended = ChangingArray(tmp_path / "appended")
    appended.append("c/0/0", 1, b"a new payload")
    appended.append("c/0/0", 1, b"and yet another one")
    expected["appended"] = [
        expected_use(appended.document, f"appended/{key}", (appended.directory / key).read_bytes())
        for key in ("c/0/0", "c/1/0")
    ]
    assert [use["dead"] > 0 for use in expected["appended"]] == [True, False]
    described = run_json("info", "--shards", "--json", tmp_path)
    assert {item["path"]: item["shards"] for item in described} == expected


def test_shards_that_cannot_be_told_apart_or_read_say_so(tmp_path: Path) -> None:
    whole = write_case(BY_NAME["after-gzip"], tmp_path / "whole").files["c/0/0"]
    store(tmp_path / "cut", array((4, 6), (4, 6), sharding((2, 3))))
    (tmp_path / "cut/c/0/0").write_bytes(b"too short")
    store(tmp_path / "sound", array((4, 6), (4, 6), sharding((2, 3))))
    by_path = {item["path"]: item["shards"][0] for item in run_json("info", "--shards", "--json", tmp_path)}
    assert (by_path["whole"]["size"], by_path["whole"]["live"], by_path["whole"]["dead"]) == (len(whole), None, None)
    assert (by_path["cut"]["size"], by_path["cut"]["chunks"], by_path["cut"]["live"]) == (9, 0, None)
    assert "no room for its index" in by_path["cut"]["error"]
    text = run("info", "--shards", tmp_path).stdout
    assert f"whole/c/0/0  {len(whole):,} bytes, 3 chunks, encoded as a whole" in text
    assert "cut/c/0/0  9 bytes, UNREADABLE: " in text
    assert "sound/c/0/0  164 bytes, 4 chunks, 164 live, 0 dead" in text
