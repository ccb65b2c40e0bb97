"""Chunks of damaged shards: listed, so that nobody takes them for absent, and failing whoever looks closer."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from shardfs.errors import CorruptionError
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.opened import find, in_trio, open_source, open_tree, rows

NESTED = array((8, 6), (4, 6), sharding((2, 3)))
FLAT = NESTED | {"chunk_key_encoding": extension("v2")}


@pytest.mark.parametrize("document", [NESTED, FLAT], ids=["nested", "flat"])
@in_trio
async def test_names_of_an_unreadable_shard_are_listed_and_fail(tmp_path: Path, document: Any) -> None:
    store(tmp_path / "a", document)
    shard = tmp_path / "a" / ("c/0/0" if document is NESTED else "0.0")
    shard.write_bytes(shard.read_bytes()[:-1])
    fs = await open_tree(open_source(tmp_path))
    if document is NESTED:
        directories, expected = {f"a/c/{i}": ["0", "1"] for i in range(4)}, {"a/c/0", "a/c/1"}
    else:
        directories = {"a": [f"{i}.{j}" for i in range(4) for j in range(2)]}
        expected = {"a"}
    for directory, names in directories.items():
        ino = (await find(fs, directory)).ino
        listed = {row[0].decode(): each async for row, each in rows(fs, ino)}
        listed.pop("zarr.json", None)
        assert list(listed) == names
        for name, attributes in listed.items():
            damaged = directory in expected and not name.startswith(("2.", "3."))
            assert (attributes.ttl == 0.0) == damaged
            assert stat.S_ISREG(attributes.status.mode)
            assert attributes.ino
            if damaged:
                with pytest.raises(CorruptionError):
                    await fs.lookup(ino, name.encode())
                with pytest.raises(CorruptionError):
                    await fs.open(attributes.ino)
            else:
                assert (await fs.lookup(ino, name.encode())).ino == attributes.ino


@in_trio
async def test_the_only_chunk_of_an_array_without_axes_is_listed_if_it_is_damaged(tmp_path: Path) -> None:
    store(tmp_path, array((), (), sharding(())))
    (tmp_path / "c").write_bytes(b"")
    fs = await open_tree(open_source(tmp_path))
    listed = {row[0]: each.ttl async for row, each in rows(fs, ROOT)}
    assert listed.keys() == {b"c", b"zarr.json"}
    assert listed[b"c"] == 0.0
    with pytest.raises(CorruptionError):
        await fs.lookup(ROOT, b"c")


@in_trio
async def test_one_damaged_entry_is_listed_without_being_believed(tmp_path: Path) -> None:
    document = array((8,), (8,), sharding((2,), index_codecs=[extension("bytes", endian="little")]))
    store(tmp_path, document)
    data = bytearray((tmp_path / "c" / "0").read_bytes())
    data[-64 + 16 : -64 + 24] = (10**6).to_bytes(8, "little")
    (tmp_path / "c" / "0").write_bytes(data)
    fs = await open_tree(open_source(tmp_path))
    ino = (await find(fs, "c")).ino
    listed = {row[0]: (each.size, each.ttl > 0) async for row, each in rows(fs, ino)}
    assert listed == {b"0": (8, True), b"1": (0, False), b"2": (8, True), b"3": (8, True)}
    with pytest.raises(CorruptionError):
        await fs.lookup(ino, b"1")
    assert (await fs.lookup(ino, b"2")).size == 8
