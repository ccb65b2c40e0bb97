"""The npy view without a mount: what a handle reads, what it survives, and what is reported."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, StaleError, StoreError
from shardfs.vfs.chunk_cache import ChunkCache
from shardfs.vfs.filesystem import Filesystem
from shardfs.vfs.handles import FileHandle
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.views import NpyView
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding, transpose
from tests.support.datasets import store
from tests.support.documents import GROUP, write
from tests.support.opened import Opened, find, in_trio, list_directory, open_source

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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_ranges_of_an_open_file_are_exact(ranges: Path, data: st.DataObject) -> None:
    expected = VALUES.copy()
    expected[0:2, 0:4, 0:3] = expected[4:, 4:, 9:] = -1
    content = saved(expected)

    @in_trio
    async def main() -> None:
        _, fs = await open_npy(ranges, max_nbytes=data.draw(st.sampled_from([0, 100, 2**20])))
        handle = await open_file(fs, data.draw(st.sampled_from(sorted(CODECS))) + ".npy")
        for _ in range(data.draw(st.integers(1, 5))):
            offset = data.draw(st.integers(0, len(content) + 10))
            nbytes = data.draw(st.integers(0, len(content) + 10))
            assert bytes(await handle.read(offset, nbytes)) == content[offset : offset + nbytes]

    main()


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


@in_trio
async def test_damage_in_what_is_made_ready_is_met_where_it_is(tmp_path: Path) -> None:
    values = np.arange(2**15, dtype="<i4")
    store(tmp_path / "a", array(values.shape, values.shape, sharding((2**10,), LITTLE, GZIP)), values)
    content = saved(values)
    _, fs = await open_npy(tmp_path)
    extent = (await (await fs.hierarchy.node("a")).array.find((24,)))[1]
    assert extent is not None
    shard = bytearray((tmp_path / "a/c/0").read_bytes())
    shard[extent.offset + 20] ^= 255
    (tmp_path / "a/c/0").write_bytes(shard)
    _, fs = await open_npy(tmp_path)
    handle = await open_file(fs, "a.npy")
    sound = 128 + 24 * 2**12
    nbytes = 2**12
    for at in range(0, sound - nbytes, nbytes):
        assert bytes(await handle.read(at, nbytes)) == content[at : at + nbytes]
    with pytest.raises(CorruptionError, match="c/24 of a does not decode"):
        await handle.read(sound, nbytes)


@pytest.mark.parametrize("codecs", [(extension("bytes"),), (extension("bytes"), GZIP)], ids=["plain", "gzip"])
def test_chunks_of_one_element_are_read(codecs: tuple[Any, ...], tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (3, 2000), np.uint8)
    store(tmp_path, array(values.shape, values.shape, sharding((1, 1), *codecs), data_type="uint8"), values)

    @in_trio
    async def main() -> None:
        _, fs = await open_npy(tmp_path)
        handle = await open_file(fs, f"{tmp_path.name}.npy")
        assert bytes(await handle.read(0, 2**17)) == saved(values)

    main()


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
async def test_an_open_file_keeps_its_shape_and_is_stale_when_its_chunks_are_others(tmp_path: Path) -> None:
    store(tmp_path / "a", array((4, 6), (4, 3), sharding((2, 3), LITTLE, GZIP)))
    values = zarr.open_array(tmp_path / "a", mode="r+")
    content = saved(values[:])
    opened, fs = await open_npy(tmp_path)
    ino = (await find(fs, "a.npy")).ino
    handle = await open_file(fs, "a.npy")
    values.resize((9, 6))
    values[4:] = 5
    opened.clock.now += 2
    assert bytes(await handle.read(0, 1000)) == content
    assert (await fs.attributes(ino)).size == len(content)
    assert (await find(fs, "a.npy")).size == len(content) + 5 * 6 * 4
    with pytest.raises(StaleError):
        await fs.open(ino)
    shutil.rmtree(tmp_path / "a")
    store(tmp_path / "a", array((4, 6), (4, 6), sharding((2, 2), LITTLE, GZIP)))
    opened.clock.now += 2
    with pytest.raises(StaleError, match="the array a has changed"):
        await handle.read(0, 1000)


@in_trio
async def test_a_chunk_of_the_wrong_size_is_an_error_whichever_part_of_it_is_read(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=VALUES, chunks=(2, 4, 6), compressors=None)
    chunk = tmp_path / "a/c/0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    _, fs = await open_npy(tmp_path)
    handle = await open_file(fs, "a.npy")
    for offset in (128, 128 + 4 * 11):
        with pytest.raises(CorruptionError, match="c/0/0/0 of a has 191 bytes, not 192"):
            await handle.read(offset, 4)
    assert bytes(await handle.read(128 + 4 * 6, 4)) == VALUES[0, 0, 6].tobytes()


@in_trio
async def test_links_to_arrays_are_files_and_other_links_are_links(tmp_path: Path) -> None:
    store(tmp_path / "a", array((4,), (4,), sharding((2,))))
    write(tmp_path / "group", GROUP)
    for name, target in {"link": "a", "to-group": "group", "nowhere": "gone", "out": "/usr"}.items():
        (tmp_path / name).symlink_to(target)
    _, fs = await open_npy(tmp_path)
    names = [row[0] for row in await list_directory(fs, ROOT)]
    assert names == [b"a.npy", b"link.npy", b"group", b"nowhere", b"out", b"to-group"]
    assert await (await open_file(fs, "link.npy")).read(0, 1000) == await (await open_file(fs, "a.npy")).read(0, 1000)
    assert not (await find(fs, "link")).ino


@in_trio
async def test_a_directory_that_became_an_array_is_no_directory_any_more(tmp_path: Path) -> None:
    write(tmp_path / "a", GROUP)
    opened, fs = await open_npy(tmp_path)
    ino = (await find(fs, "a")).ino
    assert await list_directory(fs, ino) == []
    store(tmp_path / "a", array((4,), (4,), sharding((2,))))
    opened.clock.now += 2
    with pytest.raises(StaleError):
        await list_directory(fs, ino)
    with pytest.raises(StaleError):
        await fs.lookup(ino, b"c")
    assert [row[0] for row in await list_directory(fs, ROOT)] == [b"a.npy"]


@in_trio
async def test_a_listing_lasts_while_one_document_is_being_written(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store(tmp_path / name, array((4,), (4,), sharding((2,))))
    opened, fs = await open_npy(tmp_path)
    names = [row[0] for row in await list_directory(fs, ROOT)]
    (tmp_path / "a/zarr.json").write_text("{")
    opened.clock.now += 2
    assert [row[0] for row in await list_directory(fs, ROOT)] == names
    with pytest.raises(StoreError, match=r"a/zarr\.json is being written"):
        await find(fs, "a.npy")


@in_trio
async def test_listings_go_on_behind_any_name(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        store(tmp_path / name, array((4,), (4,), sharding((2,)), attributes={"x": 1}))
    (tmp_path / "plain").write_text("")
    _, fs = await open_npy(tmp_path)
    rows = await list_directory(fs, ROOT)
    assert [row[0] for row in rows] == [b"a.json", b"a.npy", b"b.json", b"b.npy", b"c.json", b"c.npy", b"plain"]
    for i, row in enumerate(rows):
        assert await list_directory(fs, ROOT, row[3]) == rows[i + 1 :]
