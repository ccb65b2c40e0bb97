"""What the kernel forgets, the tree forgets."""

import gc
import os
import stat
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import pytest

from shardfs.dataset.layout import _MAX_RETIRED, ArrayLayout
from shardfs.dataset.node import Node
from shardfs.dataset.statistics import Statistics
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.entries.chunk import ChunkTree
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.inodes import ROOT, Inodes
from shardfs.vfs.views import ZarrV2
from tests.crash.harness import Process
from tests.crash.histories import INNER, make_source, payload_of
from tests.support.corpus import BASE, CRC32C, LITTLE, array, extension, sharding
from tests.support.datasets import store
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import Opened, find, in_trio, open_source, open_tree, read_file


class Kernel:
    """Looks up and lists as the kernel does, and counts the references that it holds."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs
        self.references: Counter[int] = Counter()

    async def look_up(self, parent: int, name: bytes) -> int:
        ino = (await self.fs.lookup(parent, name)).ino
        if ino:
            self.references[ino] += 1
        return ino

    async def list(self, ino: int) -> list[tuple[bytes, int, bool]]:
        number = self.fs.open_directory(ino)
        handle = self.fs.open_directories[number]
        await handle.seek(0)
        found: list[tuple[bytes, int, bool]] = []
        while (batch := await handle.next_batch()) is not None:
            for name, child, _, _ in batch.rows:
                self.fs.retain(child)
                self.references[child] += 1
                found.append((name, child, stat.S_ISDIR(batch.attributes.status.mode)))
        await self.fs.close_directory(number)
        return found

    async def walk(self, ino: int = ROOT) -> None:
        for name, child, is_directory in await self.list(ino):
            assert await self.look_up(ino, name) == child
            if is_directory:
                await self.walk(child)
            else:
                number, handle = await self.fs.open(child)
                await handle.read(0, 10)
                self.fs.open_files.pop(number)

    def forget(self) -> None:
        for ino, lookups in self.references.items():
            self.fs.drop_references(ino, lookups)
        self.references.clear()


def known(fs: Filesystem) -> int:
    return len(fs.inodes)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    store(tmp_path / "nested", array((8, 6), (4, 6), sharding((2, 3))))
    store(tmp_path / "flat", BASE | {"chunk_key_encoding": extension("v2")})
    (tmp_path / "nested" / "c" / "note").write_bytes(b"x")
    (tmp_path / "directory" / "deep").mkdir(parents=True)
    for i in range(20):
        (tmp_path / "directory" / f"f{i}").write_bytes(b"x")
    return open_source(tmp_path)


@in_trio
async def test_nothing_is_left_after_everything_was_seen_and_forgotten(opened: Opened) -> None:
    fs = await open_tree(opened)
    kernel = Kernel(fs)
    for _ in range(3):
        await kernel.walk()
        assert known(fs) > 20
        kernel.forget()
        assert known(fs) == 1


@pytest.mark.slow
@in_trio
async def test_chunks_take_no_place_in_the_table(opened: Opened, tmp_path: Path) -> None:
    store(tmp_path / "large", array((64, 64), (64, 64), sharding((1, 1)), data_type="uint8"))
    fs = await open_tree(opened)
    kernel = Kernel(fs)
    await kernel.walk(await kernel.look_up(ROOT, b"large"))
    assert len(kernel.references) > 64 * 64
    assert known(fs) == 3, "the root, the array and its document"


@in_trio
async def test_numbers_that_are_told_to_nobody_are_forgotten(opened: Opened) -> None:
    fs = await open_tree(opened)
    fs.inodes = Inodes(max_untold=5)
    await fs.start()
    kernel = Kernel(fs)
    for _ in range(3):
        directory = await kernel.look_up(ROOT, b"directory")
        assert len([batch async for batch in (await fs.entry(directory)).list(0)]) == 21
    assert known(fs) == 1 + 1 + 5
    kernel.forget()
    assert known(fs) <= 1 + 5


@in_trio
async def test_a_name_that_is_looked_up_slowly_is_known_whatever_others_list_meanwhile(tmp_path: Path) -> None:
    store(tmp_path / "a", BASE)
    opened = open_source(tmp_path)
    fs = Filesystem(opened.store, opened.hierarchy, ZarrV2(), ChunkCache(0, Statistics()), ttl=1.0)
    await fs.start()
    node = opened.hierarchy.node

    async def slow_node(path: str, *, fresh: bool = False) -> Node:
        if path:
            await fs.close_directory(fs.open_directory(ROOT))
        return await node(path, fresh=fresh)

    with patch.object(opened.hierarchy, "node", slow_node):
        found = await fs.lookup(ROOT, b"a")
    assert (await fs.attributes(found.ino)).ino == found.ino


@in_trio
async def test_encoded_missing_chunks_take_bounded_memory_however_many_arrays_have_them(tmp_path: Path) -> None:
    nbytes = 2**18
    for n in range(6):
        document = array((2 * nbytes,), (2 * nbytes,), sharding((nbytes,), LITTLE, CRC32C), data_type="uint8")
        attributes = {"attributes": {"_FillValue": 7}, "dimension_names": ["x"]}
        store(tmp_path / f"a{n}", document | attributes, absent=[(0,), (1,)])
    opened = open_source(tmp_path)
    with patch("shardfs.vfs.views._MAX_FILLS_NBYTES", nbytes):
        fs = Filesystem(opened.store, opened.hierarchy, ZarrV2(), ChunkCache(0, Statistics()), ttl=1.0)
    await fs.start()
    tracemalloc.start()
    for n in range(6):
        assert len(await read_file(fs, (await find(fs, f"a{n}/0")).ino)) == nbytes + 4
    assert tracemalloc.get_traced_memory()[0] < 2.5 * nbytes
    tracemalloc.stop()


@in_trio
async def test_what_is_absent_leaves_no_frames_to_the_garbage_collector(tmp_path: Path) -> None:
    """They would keep what callers have in memory, whole chunks too, until enough of them were there."""
    store(tmp_path / "a", array((8, 6), (4, 6), sharding((2, 3))), absent=[(0, 0), (0, 1), (1, 0), (1, 1)])
    fs = await open_tree(open_source(tmp_path))
    assert (await find(fs, "a/c/2/0")).ino
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            for name in ("nothing", "a\0b", "a/nothing", "a/c/0/0"):
                assert not (await find(fs, name)).ino
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [kept for kept in gc.garbage if isinstance(kept, FrameType)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.slow
@in_trio
async def test_an_array_of_many_shapes_keeps_no_file_no_tree_and_few_layouts_of_earlier_ones(
    tmp_path: Path,
) -> None:
    root = tmp_path / "source"
    make_source(root)
    process = await Process.start(root, QuickDisk())
    for turn in range(6 * _MAX_RETIRED):  # what is pending in one array keeps nothing when the other is looked at
        path, shape = ("start", "end")[turn % 2], INNER * (3 + turn // 2 % 4)
        await process.edit(path, lambda document, shape=shape: document.update(shape=[shape]))  # type: ignore[misc]
        for number in range(3):
            await process.write(path, number, payload_of(path, 1 + turn))
            assert await process.read(path, number)
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: ASYNC240
    assert len([file for file in files if file.startswith(f"{root}/start/c/")]) <= 1
    gc.collect()
    trees = [tree for tree in gc.get_objects() if isinstance(tree, ChunkTree) and tree.path == "start"]
    assert len(trees) <= 2
    layouts = [layout for layout in gc.get_objects() if isinstance(layout, ArrayLayout) and layout.path]
    assert len(layouts) <= 2 * _MAX_RETIRED + 4
    await process.finish()
