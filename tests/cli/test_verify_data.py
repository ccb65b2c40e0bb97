"""`shardfs verify --data`: what only shows when inner chunks are decoded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numcodecs

from tests.support.commands import run, run_json
from tests.support.corpus import BLOSC, CRC32C, GZIP, LITTLE, ZSTD, array, extension, sharding, transpose
from tests.support.damage import SHARD, document, edit, entry, flip, index, payload
from tests.support.datasets import store

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NBYTES = 4 * 3 * 4
"""Of a decoded inner chunk."""


def damaged(path: Path) -> list[str]:
    """Arrays of which `verify --data` names the second inner chunk, and nothing else."""
    report = run_json("verify", "--data", "--json", path, status=1)
    for problem in report["problems"]:
        assert (problem["chunk"], problem["document"]) == ("c/0/1", None)
        assert problem["message"]
    names = [problem["shard"].removesuffix(f"/{SHARD}") for problem in report["problems"]]
    assert len(set(names)) == len(names)
    return sorted(names)


def test_a_damaged_payload_is_found_that_the_index_knows_nothing_of(tmp_path: Path) -> None:
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
    assert damaged(tmp_path) == sorted(path.name for path in tmp_path.iterdir())


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
    names = (path.name for path in tmp_path.iterdir())
    assert damaged(tmp_path) == sorted(name for name in names if not name.endswith(f"-{NBYTES}"))


ZEROS = zstd.compress(bytes(64 * 2**20))


def test_a_chunk_of_more_bytes_than_are_decoded_is_named_and_no_damage(tmp_path: Path) -> None:
    """The first is 12 GiB as its document declares, the second 576 MiB, of elements that vary in size."""
    long = 2**28
    store(tmp_path / "declared", document(LITTLE, ZSTD))
    edit(tmp_path / "declared" / SHARD, payload(1, ZEROS * 192))
    edit(tmp_path / "declared" / SHARD, index(0, 2**64 - 1, 2**64 - 1))
    declared = array((8 * long, 12), (8 * long, 6), sharding((4 * long, 3), LITTLE, ZSTD))
    (tmp_path / "declared/zarr.json").write_text(json.dumps(declared))
    store(tmp_path / "sound", document(LITTLE, GZIP))
    strings = document(extension("vlen-utf8"), ZSTD) | {"data_type": "string", "fill_value": ""}
    store(tmp_path / "strings", strings)
    edit(tmp_path / "strings" / SHARD, payload(1, ZEROS * 9))
    limited = ("prlimit", f"--as={6 * 2**30}")
    done = run("verify", "--data", tmp_path, prefix=limited)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert f"too large to check: strings/{SHARD}, chunk c/0/1: " in "\n".join(lines)
    large = [line for line in lines if line.startswith("too large to check: ")]
    assert f"too large to check: declared/{SHARD}, chunk c/0/1: " in large[0]
    assert "536,870,912" in large[0]
    assert not [line for line in lines if line.startswith("damaged")]
    assert lines[-1].endswith(f"no damage found, {len(large)} chunks too large to check")
    report = run_json("verify", "--data", "--json", tmp_path / "declared", status=1)
    assert (report["sound"], report["problems"], len(report["too_large"])) == (False, [], len(large) - 1)
    assert run_json("verify", "--json", tmp_path)["sound"] is True  # whose indexes are
