"""The npy view without a mount: what a handle reads, what it survives, and what is reported."""

import io
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import FileHandle
from shardfs.vfs.views import NpyView
from tests.support.corpus import GZIP, LITTLE, array, sharding, transpose
from tests.support.datasets import store
from tests.support.documents import write
from tests.support.opened import Opened, find, in_trio, open_source

SHAPE = (5, 7, 11)
VALUES = np.arange(math.prod(SHAPE), dtype="<i4").reshape(SHAPE)
CODECS = {"plain": (LITTLE,), "gzip": (LITTLE, GZIP), "transposed": (transpose(2, 0, 1), LITTLE)}


async def open_npy(root: Path, max_nbytes: int = 2**20) -> tuple[Opened, Filesystem]:
    opened = open_source(root)
    fs = Filesystem(
        opened.store, opened.hierarchy, NpyView(str(root)), ChunkCache(max_nbytes, opened.statistics), ttl=1.0
    )
    await fs.start()
    return opened, fs


async def open_file(fs: Filesystem, name: str) -> FileHandle:
    return (await fs.open((await find(fs, name)).ino))[1]


def saved(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


@pytest.fixture(scope="module")
def ranges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ranges")
    for name, codecs in CODECS.items():
        document = array(SHAPE, (4, 8, 12), sharding((2, 4, 3), *codecs), fill_value=-1)
        store(root / name, document, VALUES, absent=[(0, 0, 0), (2, 1, 3)])
    return root


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
@in_trio
async def test_who_reads_in_order_gets_every_byte_whatever_is_made_ready(
    codecs: tuple[Any, ...], tmp_path: Path
) -> None:
    shape = (40, 61, 67)
    values = np.arange(math.prod(shape), dtype="<i4").reshape(shape)
    store(tmp_path / "a", array(shape, (40, 64, 72), sharding((8, 16, 9), *codecs)), values)
    content = saved(values)
    opened, fs = await open_npy(tmp_path)
    handles = [await open_file(fs, "a.npy") for _ in range(3)]
    for handle, nbytes in zip(handles, (1000, 4096, 2**17), strict=True):
        parts = [bytes(await handle.read(at, nbytes)) for at in range(0, len(content), nbytes)]
        assert b"".join(parts) == content
    if opened.statistics.decoded_chunks:
        assert opened.statistics.decoded_chunks == 5 * 4 * 8
    found: dict[int, bytes] = {}

    async def read(at: int) -> None:
        found[at] = bytes(await handles[0].read(at, 2**16))

    # The kernel asks for what is behind, too, before it has an answer.
    for start in range(0, len(content), 2**17):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, start)
            nursery.start_soon(read, start + 2**16)
    assert b"".join(found[at] for at in sorted(found)) == content


@pytest.mark.slow
@in_trio
async def test_a_read_of_very_many_chunks_lets_others_work_and_can_be_given_up(tmp_path: Path) -> None:
    write(tmp_path / "a", array((2, 2**31), (2, 2), LITTLE, data_type="uint8", fill_value=7))
    _, fs = await open_npy(tmp_path)
    handle = await open_file(fs, "a.npy")
    turns = 0

    async def work(scope: trio.CancelScope) -> None:
        nonlocal turns
        while not scope.cancel_called:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, nursery.cancel_scope)
        assert bytes(await handle.read(2**20, 2**14)) == b"\7" * 2**14
        nursery.cancel_scope.cancel()
    assert turns >= 10

    with trio.CancelScope() as scope:
        scope.cancel()
        await handle.read(2**24, 2**17)
    assert scope.cancelled_caught


@pytest.mark.parametrize("codecs", CODECS.values(), ids=CODECS)
def test_a_shard_that_is_rewritten_is_read_as_it_is_by_who_opens_next_or_has_not_read_it(
    codecs: tuple[Any, ...], tmp_path: Path
) -> None:
    document = array((4, 6, 1), (4, 3, 1), sharding((2, 3, 1), *codecs))
    nine = np.full((4, 6, 1), 9, "<i4")
    old = np.arange(24, dtype="<i4").reshape(4, 6, 1)
    store(tmp_path / "a", document, old)
    store(tmp_path / "nine", document, nine)

    @in_trio
    async def main() -> None:
        _, fs = await open_npy(tmp_path)
        before, other = await open_file(fs, "a.npy"), await open_file(fs, "a.npy")
        assert bytes(await before.read(0, 1000)) == saved(old)
        shutil.copyfile(tmp_path / "nine/c/0/1/0", tmp_path / "a/c/0/1/0")  # in place: what is open is stale
        expected = saved(np.concatenate([old[:, :3], nine[:, 3:]], axis=1))
        assert bytes(await other.read(0, 1000)) == expected
        assert bytes(await (await open_file(fs, "a.npy")).read(0, 1000)) == expected

    main()


@in_trio
async def test_a_chunk_that_is_not_cached_any_more_is_read_anew_from_a_shard_that_was_rewritten(tmp_path: Path) -> None:
    document = array((4, 6, 1), (4, 3, 1), sharding((2, 3, 1), LITTLE, GZIP))
    old = np.arange(24, dtype="<i4").reshape(4, 6, 1)
    store(tmp_path / "a", document, old)
    store(tmp_path / "nine", document, np.full((4, 6, 1), 9, "<i4"))
    _, fs = await open_npy(tmp_path, max_nbytes=0)
    handle = await open_file(fs, "a.npy")
    assert bytes(await handle.read(0, 1000)) == saved(old)
    shutil.copyfile(tmp_path / "nine/c/0/1/0", tmp_path / "a/c/0/1/0")
    found = np.load(io.BytesIO(bytes(await handle.read(0, 1000))))
    assert (found[:, :3] == old[:, :3]).all()
    assert (found[:2, 3:] == 9).all()
