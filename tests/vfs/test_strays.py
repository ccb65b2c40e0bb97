"""Everything that is stored beside chunks and documents passes through, as far as its name is not a chunk's."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import array, extension, sharding
from tests.support.datasets import age, store
from tests.support.opened import find, in_trio, list_directory, open_source, open_tree, read_file

NESTED = array((8, 6), (4, 6), sharding((2, 3)))
FLAT = NESTED | {"chunk_key_encoding": extension("default", separator=".")}
V2 = NESTED | {"chunk_key_encoding": extension("v2", separator="/")}
V2_FLAT = NESTED | {"chunk_key_encoding": extension("v2", separator=".")}
NOT_KEYS = [
    "README.txt",
    "00",
    "+1",
    "１",
    "1 ",
    "-1",
    "0x0",
    "1e0",
    "c.0",
    "c.0.0.0",
    "C",
    "data~",
    ".hidden",
    "9" * 20,
]


async def tree_of(root: Path) -> Filesystem:
    age(root)
    return await open_tree(open_source(root))


async def names(fs: Filesystem, path: str = "") -> list[str]:
    ino = (await find(fs, path)).ino if path else ROOT
    return sorted(os.fsdecode(row[0]) for row in await list_directory(fs, ino))


async def text(fs: Filesystem, path: str) -> bytes | None:
    attributes = await find(fs, path)
    return await read_file(fs, attributes.ino) if attributes.ino else None


@pytest.mark.parametrize(
    ("document", "own", "chunk_names"),
    [
        (NESTED, ["c"], []),
        (V2, ["0", "1", "2", "3"], []),
        (FLAT, [f"c.{i}.{j}" for i in range(4) for j in range(2)], ["c.0.9", "c.9.9"]),
        (V2_FLAT, [f"{i}.{j}" for i in range(4) for j in range(2)], ["0.9", "9.0"]),
    ],
    ids=["default", "v2", "default flat", "v2 flat"],
)
@in_trio
async def test_strays_beside_the_chunks_pass_through(
    tmp_path: Path, document: Any, own: list[str], chunk_names: list[str]
) -> None:
    store(tmp_path, document)
    strays = [name for name in NOT_KEYS if name not in own]
    for name in [*strays, *chunk_names]:
        (tmp_path / name).write_bytes(name.encode())
    fs = await tree_of(tmp_path)
    assert await names(fs) == sorted(["zarr.json", *own, *strays])
    for name in strays:
        assert await text(fs, name) == name.encode()
    for name in chunk_names:
        assert await text(fs, name) is None, "a name of a chunk outside the grid is never passed through"


@pytest.mark.parametrize("depth", range(880, 1000, 20))
@in_trio
async def test_a_deeply_nested_document_does_not_take_its_directory_with_it(tmp_path: Path, depth: int) -> None:
    store(tmp_path, NESTED)
    nested = "[" * depth + "]" * depth
    (tmp_path / "zarr.json").write_text(json.dumps(NESTED)[:-1] + f', "attributes": {{"deep": {nested}}}}}')
    fs = await tree_of(tmp_path)
    assert "zarr.json" in await names(fs)
    assert nested.encode() in (await text(fs, "zarr.json") or b"").replace(b" ", b"").replace(b"\n", b"")
