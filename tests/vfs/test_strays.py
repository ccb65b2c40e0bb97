"""Everything that is stored beside chunks and documents passes through, as far as its name is not a chunk's."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from shardfs.errors import IsADirectoryHereError, NoAttributeError, NotADirectoryHereError
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import ROOT
from tests.support.corpus import BASE, BROKEN, array, edited, extension, sharding
from tests.support.datasets import LONG_AGO, age, store
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


@pytest.mark.parametrize("document", [NESTED, V2], ids=["default", "v2"])
@in_trio
async def test_strays_inside_directories_of_chunks_pass_through(tmp_path: Path, document: Any) -> None:
    store(tmp_path, document)
    root = "c/" if document is NESTED else ""
    for directory in filter(None, (root.strip("/"), f"{root}0", f"{root}1")):
        for name in NOT_KEYS:
            (tmp_path / directory / name).write_bytes(f"{directory}/{name}".encode())
    (tmp_path / f"{root}0" / "deep").mkdir()
    (tmp_path / f"{root}0" / "deep" / "0").write_bytes(b"deep")
    (tmp_path / f"{root}0" / "7").write_bytes(b"outside the grid")
    fs = await tree_of(tmp_path)
    if root:
        assert await names(fs, "c") == sorted(["0", "1", "2", "3", *NOT_KEYS])
    assert await names(fs, f"{root}0") == sorted(["0", "1", "deep", *NOT_KEYS])
    assert await names(fs, f"{root}1") == sorted(["0", "1", *NOT_KEYS])
    assert await names(fs, f"{root}2") == ["0", "1"]
    for name in NOT_KEYS:
        assert await text(fs, f"{root}0/{name}") == f"{root}0/{name}".encode()
    assert await text(fs, f"{root}0/deep/0") == b"deep"
    assert await text(fs, f"{root}0/7") is None


@in_trio
async def test_many_strays_are_listed_from_every_cookie(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    for i in range(600):
        (tmp_path / "c" / f"stray{i:04}").touch()
        (tmp_path / f"stray{i:04}").touch()
    fs = await tree_of(tmp_path)
    for ino, own in ((ROOT, 2), ((await find(fs, "c")).ino, 4)):
        listed = await list_directory(fs, ino)
        assert len(listed) == 600 + own
        for i in (0, 1, 2, 254, 255, 256, 257, 511, 512, 599, 600, 601):
            assert await list_directory(fs, ino, listed[i][3]) == listed[i + 1 :]


@in_trio
async def test_links_pipes_and_names_of_any_bytes_are_shown(tmp_path: Path) -> None:
    store(tmp_path / "a", NESTED)
    os.symlink("a/zarr.json", tmp_path / "link")
    os.symlink("../..", tmp_path / "a" / "out")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff\x80")).write_bytes(b"odd")
    fs = await tree_of(tmp_path)
    assert await names(fs) == sorted(["a", "link", "pipe", "\udcff\udc80"])
    link, pipe = await find(fs, "link"), await find(fs, "pipe")
    assert stat.S_ISLNK(link.status.mode)
    assert stat.S_ISFIFO(pipe.status.mode)
    assert await (await fs.entry(link.ino)).read_link() == b"a/zarr.json"
    assert await (await fs.entry((await find(fs, "a/out")).ino)).read_link() == b"../.."
    assert await text(fs, "\udcff\udc80") == b"odd"
    for special in (link, pipe):
        with pytest.raises(IsADirectoryHereError):
            await fs.open(special.ino)
        with pytest.raises(NotADirectoryHereError):
            await list_directory(fs, special.ino)


@in_trio
async def test_attributes_are_those_of_the_stored_files(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    (tmp_path / "f").write_bytes(b"12345")
    os.chmod(tmp_path / "f", 0o640)
    os.chmod(tmp_path / "c" / "0" / "0", 0o604)
    fs = await tree_of(tmp_path)
    for path in ("f", "zarr.json", "c/0/0"):
        expected, shown = os.stat(tmp_path / path), (await find(fs, path)).status
        assert shown.mode == expected.st_mode
        assert (shown.uid, shown.gid, shown.mtime_ns) == (expected.st_uid, expected.st_gid, LONG_AGO)
    assert (await find(fs, "f")).size == 5
    assert (await find(fs, "c/1/1")).status.mode == os.stat(tmp_path / "c" / "0" / "0").st_mode
    directory = await find(fs, "c/1")
    assert stat.S_ISDIR(directory.status.mode)
    assert directory.status.mode == os.stat(tmp_path / "c").st_mode


@in_trio
async def test_an_array_that_cannot_be_shown_unsharded_is_shown_as_stored_and_says_why(tmp_path: Path) -> None:
    broken = next(broken for broken in BROKEN if broken.name == "codecs-delta-before")
    store(tmp_path / "a", NESTED)
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(broken.document))
    fs = await tree_of(tmp_path)
    assert await names(fs, "a/c") == ["0", "1"]
    assert await names(fs, "a/c/0") == ["0"]
    assert await text(fs, "a/zarr.json") == json.dumps(broken.document).encode()
    assert await text(fs, "a/c/0/0") == (tmp_path / "a" / "c" / "0" / "0").read_bytes()
    ino = (await find(fs, "a")).ino
    assert b"user.shardfs.reason" in await (await fs.entry(ino)).attribute_names()
    assert b"numcodecs.delta" in await (await fs.entry(ino)).attribute(b"user.shardfs.reason")
    assert b"user.shardfs.reason" not in await (await fs.entry(ROOT)).attribute_names()
    with pytest.raises(NoAttributeError):
        await (await fs.entry(ROOT)).attribute(b"user.shardfs.reason")


@in_trio
async def test_any_reason_can_be_asked_for(tmp_path: Path) -> None:
    store(tmp_path, NESTED)
    document = edited(("codecs",), [extension("\ud800 odd\n\x00" * 1000), sharding((2, 3))])
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    fs = await tree_of(tmp_path)
    assert 0 < len(await (await fs.entry(ROOT)).attribute(b"user.shardfs.reason")) < 65536


@pytest.mark.parametrize("depth", [*range(880, 1000, 6)])
@in_trio
async def test_a_deeply_nested_document_does_not_take_its_directory_with_it(tmp_path: Path, depth: int) -> None:
    store(tmp_path, NESTED)
    nested = "[" * depth + "]" * depth
    (tmp_path / "zarr.json").write_text(json.dumps(NESTED)[:-1] + f', "attributes": {{"deep": {nested}}}}}')
    fs = await tree_of(tmp_path)
    assert "zarr.json" in await names(fs)
    assert nested.encode() in (await text(fs, "zarr.json") or b"").replace(b" ", b"").replace(b"\n", b"")


@in_trio
async def test_groups_show_consolidated_metadata_rewritten(tmp_path: Path) -> None:
    store(tmp_path / "a", NESTED)
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": NESTED, "b": BASE}}}
    (tmp_path / "zarr.json").write_text(json.dumps(group))
    fs = await tree_of(tmp_path)
    shown = json.loads(await text(fs, "zarr.json") or b"")
    copies = shown["consolidated_metadata"]["metadata"]
    assert copies["a"] == json.loads(await text(fs, "a/zarr.json") or b"")
    assert [codec["name"] for codec in copies["b"]["codecs"]] == ["bytes", "gzip"]
    assert await names(fs) == ["a", "zarr.json"]
