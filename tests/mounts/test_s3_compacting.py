"""Compaction of shards in a bucket: what is dead is removed as on a directory, also while others write."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.commands import run_json
from tests.support.datasets import store
from tests.support.encoder import Layout
from tests.support.hosts import DOCUMENT, PREFIX, Host, make_host
from tests.support.mounting import Mounter, flush
from tests.support.readers import READERS, assert_same
from tests.support.s3_server import Bucket
from tests.support.writers import assert_sound

CHUNKS = [(i, j) for i in range(4) for j in range(4)]
PLAIN_NBYTES = 4 * 24 + 4 * 16 + 4
"""Size of a shard without dead bytes."""


def pattern(number: int) -> bytes:
    return number.to_bytes(4, "little") * 6


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_a_shard_whose_first_chunk_was_replaced_is_compacted_wherever_it_is_stored(
    s3_bucket: Bucket, mount: Mounter, tmp_path: Path, place: str
) -> None:
    host = make_host(s3_bucket, tmp_path, mount)
    source, variables = (host.url, host.variables) if place == "bucket" else (str(tmp_path / "source"), {})
    for number in range(3):
        mounted = mount(source, write=True, state=host.state, env=variables)
        for name in ("c/0/0", "c/1/1") if number else ("c/0/0",):
            (mounted.path / name).write_bytes(pattern(number))
        mounted.unmount()
    report = run_json("compact", "--json", "--threshold", "0.01", source, **variables)
    assert (report["compacted"], report["left"]) == (1, [])
    sizes = {
        use["key"]: use for item in run_json("map", "--json", source, **variables)["arrays"] for use in item["shards"]
    }
    assert (sizes["c/0/0"]["size"], sizes["c/0/0"]["dead"]) == (PLAIN_NBYTES, 0)


def test_bytes_of_another_format_before_the_first_chunk_are_left_in_a_bucket_too(
    s3_bucket: Bucket, mount: Mounter, tmp_path: Path
) -> None:
    host = make_host(s3_bucket, tmp_path, mount)
    store(tmp_path / "behind", DOCUMENT, layout=Layout(foreign_prefix=400))
    s3_bucket.put(f"{PREFIX}/c/0/0", (tmp_path / "behind/c/0/0").read_bytes())
    host.commit("c/0/1", pattern(1))
    host.commit("c/0/1", pattern(2))
    before = s3_bucket.get(f"{PREFIX}/c/0/0")
    report = run_json("compact", "--json", "--threshold", "0.01", host.url, **host.variables)
    assert [item["shard"] for item in report["left"]] == ["c/0/0"]
    assert "another format may own them" in report["left"][0]["reason"]
    assert s3_bucket.get(f"{PREFIX}/c/0/0") == before


def test_compaction_beside_two_writers_loses_nothing(s3_bucket: Bucket, mount: Mounter, tmp_path: Path) -> None:
    s3_bucket.put(f"{PREFIX}/zarr.json", json.dumps(DOCUMENT).encode())
    writers = [Host(s3_bucket, tmp_path / f"state-{number}", mount) for number in range(2)]
    third = Host(s3_bucket, tmp_path / "state-third", mount)
    mounts = [host.mount() for host in writers]
    turns, compacted = 6, 0

    def write(number: int) -> None:
        for turn in range(1, turns + 1):
            for i, j in CHUNKS[number::2]:
                (mounts[number].path / f"c/{i}/{j}").write_bytes(pattern(1000 * turn + 4 * i + j))
            flush(mounts[number].path)

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        while not all(one.done() for one in writing):
            done = run_json("compact", "--json", "--threshold", "0.01", third.url, **third.variables)
            compacted += done["compacted"]
        for one in writing:
            one.result()
    for mounted in mounts:
        mounted.unmount()
    assert compacted, "there was nothing to compact while others wrote"
    run_json("compact", "--json", "--threshold", "0.01", third.url, **third.variables)
    local = s3_bucket.download(tmp_path / "native", PREFIX)
    assert_sound(local)
    found = READERS["zarr"](local)
    assert_same(READERS["tensorstore"](local), found)
    for i, j in CHUNKS:
        assert found[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].tobytes() == pattern(1000 * turns + 4 * i + j)
        assert third.chunk(i, j) == pattern(1000 * turns + 4 * i + j)
    for host in (*writers, third):
        assert host.recover() == []
    assert not s3_bucket.uploads()
