"""The directories of chunks of an array that is being created."""

import json
from pathlib import Path

import pytest

from shardfs.errors import CorruptionError
from shardfs.vfs import filesystem, new_directories
from shardfs.vfs.entries import chunk
from shardfs.vfs.entries.chunk import ChunkTree
from shardfs.vfs.inodes import ROOT
from tests.crash.harness import OWNER, Process
from tests.crash.histories import make_source
from tests.support.corpus import LITTLE, array, sharding
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import find, in_trio, open_source, open_tree, read_file
from tests.support.steps import counted_steps


async def new_tree(path: Path, nrows: int) -> ChunkTree:
    """Return the tree of an array that is being created, with *nrows* directories of three each."""
    (path / "new").mkdir(parents=True)
    (path / "new/zarr.json").write_text(json.dumps(array((1000, 8, 2), (1000, 8, 2), sharding((1, 1, 1)))))
    opened = open_source(path)
    fs = await open_tree(opened)
    tree = fs.chunk_tree(await opened.hierarchy.node("new"))
    assert isinstance(tree, ChunkTree)
    tree.begin()
    for row in range(nrows):
        for column in (5, 1, 3):
            tree.make_directory((row, column))
    return tree


async def listed(tree: ChunkTree, *prefix: int) -> list[int]:
    return [index async for numbers in tree.directories_in(prefix) for index in numbers]


@in_trio
async def test_listing_and_removing_a_directory_takes_as_long_however_many_others_there_are(tmp_path: Path) -> None:
    steps: list[int] = []
    for nrows in (5, 500):
        tree = await new_tree(tmp_path / str(nrows), nrows)
        with counted_steps(chunk, new_directories) as count:
            assert await listed(tree, 2) == [1, 3, 5]
            tree.remove_directory((2, 3))
            assert await listed(tree, 2) == [1, 5]
            tree.remove_directory((2,))
        steps += count
        assert await listed(tree) == [row for row in range(nrows) if row != 2]
    assert steps[0] == steps[1] > 0


@in_trio
async def test_a_directory_is_removed_with_those_below_it(tmp_path: Path) -> None:
    tree = await new_tree(tmp_path, 3)
    assert await tree.has_directory(())
    tree.remove_directory((1,))
    assert [await tree.has_directory((row,)) for row in range(4)] == [True, False, True, False]
    tree.make_directory((1,))
    assert await listed(tree, 1) == []
    assert not await tree.has_directory((1, 3))
    tree.remove_directory(())
    assert not await tree.has_directory(())
    tree.make_directory(())
    assert await listed(tree) == []


@in_trio
async def test_of_the_arrays_that_are_created_those_used_last_count_as_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_MAX_RECENT", 3)
    make_source(tmp_path / "source")
    process = await Process.start(tmp_path / "source", QuickDisk(), shards=(2,))
    fs, document = process.fs, json.dumps(array((8, 8), (2, 2), LITTLE)).encode()
    for number in range(8):
        name = b"new%d" % number
        directory = (await fs.mkdir(ROOT, name, 0o755, OWNER)).ino
        await process.write_file(directory, b"zarr.json", document)
    have_no_directories = [number for number in reversed(range(8)) if not (await find(fs, f"new{number}/c")).ino]
    assert have_no_directories == [7, 6, 5]
    assert len(fs._recent) <= 3
    await process.finish()


@in_trio
async def test_an_array_with_too_many_directories_counts_as_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await new_tree(tmp_path, 0)
    monkeypatch.setattr(new_directories, "_MAX_DIRECTORIES", 12)
    for _ in range(3):  # those that are removed do not count
        for row in range(10):
            tree.make_directory((row,))
        for row in range(10):
            tree.remove_directory((row,))
    for row in range(12):
        tree.make_directory((row,))
    assert [await tree.has_directory((row,)) for row in (11, 12)] == [True, False]
    tree.make_directory((12,))
    assert tree.new_directories is None
    assert await tree.has_directory((13,))


@pytest.mark.parametrize("is_flushed", [False, True])
@in_trio
async def test_shards_of_an_array_that_was_described_before_it_was_created_are_protected(
    tmp_path: Path, is_flushed: bool
) -> None:
    """Another program removes its document; the copy in the group says how it is sharded."""
    root = tmp_path / "source"
    root.mkdir()
    process = await Process.start(root, QuickDisk(), shards=(4,))
    document = array((8,), (1,), LITTLE, data_type="uint8")
    copies = {"kind": "inline", "must_understand": False, "metadata": {"a": document}}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": copies}
    await process.write_file(ROOT, b"zarr.json", json.dumps(group).encode())
    directory = (await process.fs.mkdir(ROOT, b"a", 0o755, OWNER)).ino
    await process.write_file(directory, b"zarr.json", json.dumps(document).encode())
    await process.fs.mkdir(directory, b"c", 0o755, OWNER)
    await process.write("a", 0, b"x")
    await (process.fs.flush_all() if is_flushed else process.commit())
    (root / "a/zarr.json").unlink()
    ino = (await find(process.fs, "a/c/0")).ino
    with pytest.raises(CorruptionError, match="says that it is a sharded array"):
        await read_file(process.fs, ino)
