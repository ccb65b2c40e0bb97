"""`shardfs verify`: silence about what is sound, and the exact name of all that is not."""

import json
import sys
from pathlib import Path

import numcodecs

from tests.support.commands import run, run_json
from tests.support.corpus import BLOSC, CRC32C, GZIP, LITTLE, ZSTD, array, extension, sharding, transpose
from tests.support.damage import (
    ENTRY_FAULTS,
    SHARD,
    SHARD_FAULTS,
    document,
    edit,
    entry,
    flip,
    index,
    payload,
)
from tests.support.datasets import store

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NBYTES = 4 * 3 * 4
"""Of a decoded inner chunk."""


def problems_of(path: Path, *options: str) -> list[tuple[str, str | None]]:
    """Shard and chunk of everything that `verify` finds, which must be something."""
    report = run_json("verify", "--json", *options, path, status=1)
    assert report["sound"] is False
    assert all(problem["message"] for problem in report["problems"])
    return sorted((problem["shard"], problem["chunk"]) for problem in report["problems"])


def test_each_kind_of_damage_is_named_with_its_shard_and_chunk(tmp_path: Path) -> None:
    for name, change in (SHARD_FAULTS | ENTRY_FAULTS).items():
        store(tmp_path / name, document())
        edit(tmp_path / name / SHARD, change)
    expected = [(f"{name}/{SHARD}", "c/0/1" if name in ENTRY_FAULTS else None) for name in SHARD_FAULTS | ENTRY_FAULTS]
    assert problems_of(tmp_path) == sorted(expected)
    assert problems_of(tmp_path, "--data") == sorted(expected)
    done = run("verify", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for shard, chunk in expected:
        start = f"damaged: {shard}, chunk {chunk}: " if chunk else f"damaged: {shard}: "
        assert [line for line in lines if line.startswith(start)]
    assert lines[-1] == f"{len(expected)} arrays, {2 * len(expected)} shards: {len(expected)} problems"


def test_a_damaged_nested_shard_is_named_and_its_neighbours_are_checked(tmp_path: Path) -> None:
    nested = array((16, 12), (16, 12), sharding((8, 6), sharding((4, 3))))
    store(tmp_path, nested)
    data = (tmp_path / SHARD).read_bytes()
    first, second = (entry(data, number) for number in (0, 1))
    changed = flip(first[0] + first[1] - 9)(data)  # in the index of the first one
    at = second[0] + second[1] - 68  # the index of the second one, whose second entry goes
    inner = index(1, 10**6, 1)(changed[second[0] : second[0] + second[1]])
    (tmp_path / SHARD).write_bytes(changed[: second[0]] + inner + changed[at + 68 :])
    assert problems_of(tmp_path) == [(SHARD, "c/0/0"), (SHARD, "c/0/3")]
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
    lines = done.stdout.splitlines()
    assert lines.pop(3).startswith("no checksum: image: damage to their chunks")
    assert lines == [
        "not checked: of-neuroglancer: transpose: order must be a list of integers, not 'F'",
        "not checked: plain: it is not sharded: each chunk is a file of its own, which --data decodes",
        "not checked: transformed: storage transformers, which may change keys and bytes, are not supported",
        "1 array, 2 shards: no damage found; 3 arrays not checked",
    ]
    report = run_json("verify", "--json", "--data", tmp_path)
    assert [item["array"] for item in report["unchecked"]] == ["of-neuroglancer", "transformed"]
    assert (report["sound"], report["arrays"], report["chunk_files"]) == (True, 2, 4)


def test_chunks_of_unsharded_arrays_are_decoded_too(tmp_path: Path) -> None:
    chains = {"gzip": [LITTLE, GZIP], "zstd": [LITTLE, ZSTD], "blosc": [LITTLE, BLOSC], "crc32c": [LITTLE, CRC32C]}
    for name, chain in (chains | {"bytes": [LITTLE]}).items():
        store(tmp_path / name, array((4, 6), (2, 3), *chain))
        path = tmp_path / name / "c/1/0"
        path.write_bytes(path.read_bytes()[:-1])
    store(tmp_path / "sound", array((4, 6), (2, 3), LITTLE, GZIP))
    store(tmp_path / "unknown", array((4, 6), (2, 3), LITTLE))
    unknown = array((4, 6), (2, 3), LITTLE, extension("example.codec"))
    (tmp_path / "unknown/zarr.json").write_text(json.dumps(unknown))
    assert run_json("verify", "--json", tmp_path)["sound"] is True
    found = problems_of(tmp_path, "--data")
    assert found == sorted((f"{name}/c/1/0", None) for name in (*chains, "bytes"))
    report = run_json("verify", "--json", "--data", tmp_path, status=1)
    assert report["unchecked"] == [
        {"array": "unknown", "reason": "its chunks have unknown codecs; their files were not looked at"}
    ]


def test_arrays_whose_chunks_have_no_checksum_are_named(tmp_path: Path) -> None:
    checked = extension("zstd", level=1, checksum=True)
    with_checksum = {"gzip": [LITTLE, GZIP], "crc32c": [LITTLE, CRC32C], "checked": [LITTLE, checked]}
    without = {"zstd": [LITTLE, ZSTD], "blosc": [LITTLE, BLOSC], "bytes": [LITTLE]}
    for name, chain in (with_checksum | without).items():
        store(tmp_path / f"{name}-sharded", document(*chain))
        store(tmp_path / name, array((4, 6), (2, 3), *chain))
    whole = array((4, 6), (4, 6), sharding((2, 3), LITTLE), CRC32C)
    store(tmp_path / "whole", whole)
    names = sorted([*without, *(f"{name}-sharded" for name in without)])
    assert run_json("verify", "--json", "--data", tmp_path)["without_checksum"] == names
    assert run_json("verify", "--json", tmp_path)["without_checksum"] == [name for name in names if "-" in name]
    arrays = run_json("info", "--json", tmp_path)["arrays"]
    assert [item["path"] for item in arrays if item["checksum"] == "none"] == names
    assert {item["checksum"] for item in arrays} == {"none", "gzip", "crc32c", "zstd"}
    assert "no checksum: blosc, " in run("info", tmp_path).stdout


def second_chunk(names: list[str]) -> list[tuple[str, str | None]]:
    return sorted((f"{name}/{SHARD}", "c/0/1") for name in names)


def test_damaged_payloads_are_found_by_decoding(tmp_path: Path) -> None:
    chains = {"gzip": [LITTLE, GZIP], "zstd": [LITTLE, ZSTD], "blosc": [LITTLE, BLOSC], "crc32c": [LITTLE, CRC32C]}
    chains |= {"two": [LITTLE, CRC32C, GZIP], "transposed": [transpose(1, 0), LITTLE, CRC32C], "bytes": [LITTLE]}
    for name, chain in chains.items():
        store(tmp_path / f"cut-{name}", document(*chain))
        path = tmp_path / f"cut-{name}" / SHARD
        offset, nbytes = entry(path.read_bytes(), 1)
        edit(path, index(1, offset, nbytes - 1))
        if name != "bytes":  # in which any bit is as good as another
            store(tmp_path / f"flip-{name}", document(*chain))
            edit(tmp_path / f"flip-{name}" / SHARD, flip(offset + (2 if name == "zstd" else 12)))
    assert run_json("verify", "--json", tmp_path)["sound"] is True
    assert problems_of(tmp_path, "--data") == second_chunk([path.name for path in tmp_path.iterdir()])


def test_a_payload_that_decodes_to_another_size_is_found(tmp_path: Path) -> None:
    encoders = {"gzip": numcodecs.GZip(), "zstd": numcodecs.Zstd(), "blosc": numcodecs.Blosc()}
    for codec in (GZIP, ZSTD, BLOSC):
        for size in (1, NBYTES - 4, NBYTES, NBYTES + 4, 10**6):
            path = tmp_path / f"{codec['name']}-{size}"
            store(path, document(LITTLE, codec))
            edit(path / SHARD, payload(1, bytes(encoders[codec["name"]].encode(bytes(size)))))
    for size in (0, NBYTES - 1, NBYTES, NBYTES + 1):
        store(tmp_path / f"bytes-{size}", document(LITTLE))
        edit(tmp_path / f"bytes-{size}" / SHARD, payload(1, bytes(size)))
    store(tmp_path / "huge", document(LITTLE, GZIP))
    with (tmp_path / "huge" / SHARD).open("r+b") as file:  # a hole of 1 TiB, in one entry, which is not read
        data = file.read()
        file.truncate(2**40)
        file.seek(2**40)
        file.write(index(1, 0, 2**40)(data)[-68:])
    names = [path.name for path in tmp_path.iterdir()]
    assert problems_of(tmp_path, "--data") == second_chunk([n for n in names if not n.endswith(f"-{NBYTES}")])


ZEROS = zstd.compress(bytes(64 * 2**20))


def test_a_chunk_too_large_to_decode_is_named_and_not_called_damaged(tmp_path: Path) -> None:
    """The first is 12 GiB as its document declares, the second 576 MiB, of elements that vary in size."""
    long = 2**28
    store(tmp_path / "declared", document(LITTLE, ZSTD))
    edit(tmp_path / "declared" / SHARD, payload(1, ZEROS * 192))
    edit(tmp_path / "declared" / SHARD, index(0, 2**64 - 1, 2**64 - 1))
    declared = array((8 * long, 12), (8 * long, 6), sharding((4 * long, 3), LITTLE, ZSTD))
    (tmp_path / "declared/zarr.json").write_text(json.dumps(declared))
    store(tmp_path / "sound", document(LITTLE, GZIP))
    store(tmp_path / "strings", document(extension("vlen-utf8"), ZSTD) | {"data_type": "string", "fill_value": ""})
    edit(tmp_path / "strings" / SHARD, payload(1, ZEROS * 9))
    done = run("verify", "--data", "--jobs", "1", tmp_path, prefix=("prlimit", f"--as={6 * 2**30}"))
    assert (done.returncode, done.stderr) == (1, "")
    *lines, last = done.stdout.splitlines()
    large = [line for line in lines if line.startswith("too large to check: ")]
    assert f"too large to check: declared/{SHARD}, chunk c/0/1: " in large[0]
    assert "536,870,912" in large[0]
    assert f"too large to check: strings/{SHARD}, chunk c/0/1: " in "\n".join(large)
    assert not [line for line in lines if line.startswith("damaged")]
    assert last.endswith(f"no damage found, {len(large)} chunks too large to check")
