"""The directories of chunks of an array that is being created."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from shardfs.vfs.entries import chunk
from shardfs.vfs.entries.chunk import ChunkTree
from tests.support.corpus import array, sharding
from tests.support.opened import in_trio, open_source, open_tree


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count the steps of the interpreter in the module of chunk trees during the block."""
    count, before = [0], sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != chunk.__file__:
            return None
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


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
        with counted_steps() as count:
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
