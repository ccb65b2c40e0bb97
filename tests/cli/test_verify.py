"""`shardfs verify`: silence about what is sound, and the exact name of all that is not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import run, run_json
from tests.support.corpus import LITTLE, array, extension, sharding
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, document, edit, entry, flip, index
from tests.support.datasets import store


def problems_of(path: Path, *options: str) -> list[tuple[str, str | None]]:
    """Shard and chunk of everything that `verify` finds, which must be something."""
    report = run_json("verify", "--json", *options, path, status=1)
    assert report["sound"] is False
    assert all(problem["message"] for problem in report["problems"])
    return [(problem["shard"], problem["chunk"]) for problem in report["problems"]]


def test_each_kind_of_damage_is_named_with_its_shard_and_chunk(tmp_path: Path) -> None:
    for name, change in (SHARD_FAULTS | ENTRY_FAULTS).items():
        store(tmp_path / name, document())
        edit(tmp_path / name / SHARD, change)
    expected = [(f"{name}/{SHARD}", "c/0/1" if name in ENTRY_FAULTS else None) for name in SHARD_FAULTS | ENTRY_FAULTS]
    assert sorted(problems_of(tmp_path)) == sorted(expected)
    assert sorted(problems_of(tmp_path, "--data")) == sorted(expected)
    done = run("verify", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for shard, chunk in expected:
        start = f"damaged: {shard}, chunk {chunk}: " if chunk else f"damaged: {shard}: "
        assert [line for line in lines if line.startswith(start)]
    assert lines[-1] == f"{len(expected)} arrays, {2 * len(expected)} shards: {len(expected)} problems"


def test_a_damaged_enclosed_shard_is_named_and_its_neighbours_are_looked_into(tmp_path: Path) -> None:
    nested = array((16, 12), (16, 12), sharding((8, 6), sharding((4, 3))))
    store(tmp_path, nested)
    data = (tmp_path / SHARD).read_bytes()
    first, second = (entry(data, number) for number in (0, 1))
    changed = flip(first[0] + first[1] - 9)(data)  # in the index of the first one
    at = second[0] + second[1] - 68  # the index of the second one, whose second entry goes
    inner = index(1, 10**6, 1)(changed[second[0] : second[0] + second[1]])
    (tmp_path / SHARD).write_bytes(changed[: second[0]] + inner + changed[at + 68 :])
    assert sorted(problems_of(tmp_path)) == [(SHARD, "c/0/0"), (SHARD, "c/0/3")]
    lines = run("verify", tmp_path).stdout.splitlines()
    (message,) = [line.partition("chunk c/0/0: ")[2] for line in lines if "chunk c/0/0: " in line]
    assert "shard" in message  # that it is not the one chunk alone


def test_every_array_that_is_not_checked_is_named_with_the_reason(tmp_path: Path) -> None:
    store(tmp_path / "image", document())
    store(tmp_path / "plain", array((4, 6), (2, 3), LITTLE))
    store(tmp_path / "of-neuroglancer", array((4, 6), (2, 3), LITTLE))
    turned = array((4, 6), (2, 3), extension("transpose", order="F"), LITTLE)
    (tmp_path / "of-neuroglancer/zarr.json").write_text(json.dumps(turned))
    store(tmp_path / "transformed", document())
    transformed = document() | {"storage_transformers": [extension("example.cache")]}
    (tmp_path / "transformed/zarr.json").write_text(json.dumps(transformed))
    done = run("verify", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "not checked: of-neuroglancer: transpose: order must be a list of integers, not 'F'",
        "not checked: plain: it is not sharded: each chunk is a file of its own",
        "not checked: transformed: storage transformers, which may change keys and bytes, are not supported",
        "1 array, 2 shards: no damage found; 3 arrays not checked",
    ]
    report = run_json("verify", "--json", "--data", tmp_path)
    assert [item["array"] for item in report["unchecked"]] == ["of-neuroglancer", "plain", "transformed"]
    assert (report["sound"], report["arrays"]) == (True, 1)
