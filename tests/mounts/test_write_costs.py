"""What a commit writes to the store: the payloads and one index per shard, and above 8 MiB one index more."""

import json
import os
from collections import Counter
from pathlib import Path

from shardfs.stores.local.syscalls import BLOCK
from tests.support.corpus import CRC32C, array, extension, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter, flush, metrics

MIB = 2**20
PER_SHARD = 64
INDEX = 16 * PER_SHARD + 4
"""Bytes of an index with its checksum."""

CHUNK = MIB // 4
FEW, MANY = 3, 40
"""Chunks: less than 8 MiB, and more."""


def write_document(directory: Path) -> None:
    directory.mkdir()
    shape = (2 * PER_SHARD * CHUNK,)
    codecs = sharding((CHUNK,), extension("bytes"), CRC32C)
    document = array(shape, (PER_SHARD * CHUNK,), codecs, data_type="uint8")
    (directory / "zarr.json").write_text(json.dumps(document))


def test_a_commit_writes_payloads_and_indexes_and_nothing_else(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_document(source)
    root = mount(source, write=True).path
    shards = [source / "c" / str(number) for number in range(2)]
    contents = [b"", b""]

    def commit(*chunks: int, indexes: int = 1, is_whole: bool = False) -> None:
        """Write chunks, and compare what the shards are then, and what the mount says, with what was to be written."""
        before = metrics(root)["committed_bytes"]
        for number in chunks:
            (root / "c" / str(number)).write_bytes(os.urandom(CHUNK))
        flush(root)
        counted = metrics(root)["committed_bytes"] - before
        found = [shard.read_bytes() if shard.exists() else b"" for shard in shards]
        changed = [number for number in range(2) if found[number] != contents[number]]
        assert changed == sorted({number // PER_SHARD for number in chunks})
        needed = len(chunks) * CHUNK + indexes * INDEX
        if is_whole:
            assert sum(len(found[number]) for number in changed) == counted == needed
        else:  # a step of an append ends at a block, and begins with the block that is there
            assert all(found[number].startswith(contents[number]) for number in changed)
            grown = sum(map(len, found)) - sum(map(len, contents))
            assert needed <= grown < needed + indexes * BLOCK
            assert needed <= counted < needed + indexes * BLOCK, "the statistics tell what was written"
        contents[:] = found

    commit(*range(FEW), is_whole=True)
    commit(FEW)
    commit(*range(FEW))
    commit(*range(FEW + 1, FEW + MANY), indexes=2)
    commit(*range(PER_SHARD), is_whole=True)
    commit(0, PER_SHARD + 1, PER_SHARD + 2, indexes=2)
    commit(1, *range(PER_SHARD + 3, PER_SHARD + MANY), indexes=3)
    commit(indexes=0, is_whole=True)


def test_a_chunk_that_is_renamed_into_place_takes_ten_kernel_requests_at_most(mount: Mounter, tmp_path: Path) -> None:
    store(tmp_path / "source", array((8, 12), (8, 12), sharding((2, 3))))
    root = mount(tmp_path / "source", write=True, metadata_ttl=3600).path
    keys = [f"{root}/c/{i}/{j}" for i in range(4) for j in range(4)]
    os.stat(keys[0])
    for directory in {os.path.dirname(key) for key in keys}:
        os.stat(directory)
    before = Counter(metrics(root)["requests"])
    for key in keys:
        with open(f"{key}.partial", "xb", buffering=0) as file:
            file.write(bytes(24))
        os.rename(f"{key}.partial", key)
    taken = Counter(metrics(root)["requests"]) - before
    del taken["getxattr"]  # by which it is asked
    once = dict.fromkeys(["create", "write", "flush", "release", "rename"], len(keys))
    # Names of files are looked up each time, and the mode of a directory is asked for when something changed in it.
    assert taken.total() <= 10 * len(keys)
    assert taken["lookup"] == 3 * len(keys)
    assert {name: taken[name] for name in taken if name not in ("lookup", "getattr")} == once
