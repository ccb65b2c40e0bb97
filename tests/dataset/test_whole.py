"""Unsharded arrays below the mount: what is read and listed of them, what is damaged, and what is left for recovery."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from shardfs.dataset.writer import empty_outside
from shardfs.stores.local.tree import LocalStore
from tests.support.commands import run
from tests.support.datasets import age
from tests.support.documents import GROUP, write
from tests.support.fake_s3 import FakeS3
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import in_trio, open_source
from tests.support.s3_writing import PREFIX, changes, objects, writing
from tests.support.whole import PATH, Life, store_document, whole_document


def local(root: Path) -> LocalStore:
    return LocalStore(str(root), QuickDisk())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source with the array `a` of 8 chunks, of which 0, 1 and 5 are stored."""
    root = tmp_path / "source"
    root.mkdir()
    write(root, GROUP)
    write(root / PATH, whole_document((8,), (1,)))
    (root / PATH / "c").mkdir()
    for number, data in ((0, b"zero"), (1, b""), (5, b"five" * 1000)):
        (root / PATH / "c" / str(number)).write_bytes(data)
    age(root)
    return root


@in_trio
async def test_a_replaced_chunk_is_another_version_and_a_commit_of_our_own_is_not(root: Path, tmp_path: Path) -> None:
    life = await Life.begin(local(root), tmp_path)
    array = await life.array()
    (before, _) = await array.find((0,), fresh=True)
    (beside, _) = await array.find((5,), fresh=True)
    await life.put((0,), b"ours")
    await life.writer.commits.flush()
    (committed, _) = await array.find((0,), fresh=True)
    assert committed.generation == before.generation
    (root / "new").write_bytes(b"theirs")
    (root / "new").rename(root / PATH / "c/0")
    (replaced, _) = await array.find((0,), fresh=True)
    assert replaced.generation != committed.generation
    states = {run.first: run.state async for run in array.list_row((), 0)}
    assert states[0].generation == replaced.generation
    assert states[5].generation == beside.generation
    assert states[0].stat == replaced.stat


@in_trio
async def test_a_chunk_is_replaced_by_rename_and_never_written_in_place(root: Path, tmp_path: Path) -> None:
    life = await Life.begin(local(root), tmp_path)
    path = root / PATH / "c/5"
    os.link(path, tmp_path / "the same file")
    path.chmod(0o640)
    await life.put((5,), b"new")
    await life.writer.commits.flush()
    assert (tmp_path / "the same file").read_bytes() == b"five" * 1000
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    await life.erase((5,))
    await life.writer.commits.flush()
    assert not path.exists()


@in_trio
async def test_what_is_pending_is_in_its_files_when_a_mount_begins_that_passes_them_through(
    root: Path, tmp_path: Path
) -> None:
    life = await Life.begin(local(root), tmp_path)
    await life.put((0,), b"new")
    await life.put((2,), b"")
    await life.erase((5,))
    life.kill()
    again = await Life.begin(local(root), tmp_path, takes_unsharded=False)
    assert len(again.recovery.pending) == 3
    assert again.writer.commits.npending == 0
    assert {path.name: path.read_bytes() for path in (root / PATH / "c").iterdir()} == {"0": b"new", "1": b"", "2": b""}


@in_trio
async def test_what_another_program_changed_since_is_not_replaced(root: Path, tmp_path: Path) -> None:
    life = await Life.begin(local(root), tmp_path)
    await life.put((0,), b"ours")
    await life.put((1,), b"ours")
    await life.put((2,), b"ours")
    life.kill()
    for number, data in ((0, b"them"), (2, b"them")):  # of the same size as what was there, or as ours
        (root / PATH / "c" / str(number)).write_bytes(data)
    again = await Life.begin(local(root), tmp_path)
    assert {conflict.change.coords for conflict in again.recovery.conflicts} == {(0,), (2,)}
    assert [await again.read((n,)) for n in range(3)] == [b"them", b"ours", b"them"]


@in_trio
async def test_a_shrink_removes_the_files_outside_the_shape(root: Path, tmp_path: Path) -> None:
    life = await Life.begin(local(root), tmp_path)
    await empty_outside(life.writer.commits, await life.array(), (1,))
    assert os.listdir(root / PATH / "c") == ["0"]


@in_trio
async def test_a_shrink_that_was_begun_is_finished_by_the_next_mount(root: Path, tmp_path: Path) -> None:
    life = await Life.begin(local(root), tmp_path)
    await life.writer.shrink(PATH, (8,))
    life.kill()
    write(root / PATH, whole_document((3,), (1,)))
    await Life.begin(local(root), tmp_path, takes_unsharded=False)
    assert sorted(os.listdir(root / PATH / "c")) == ["0", "1"]


@in_trio
async def test_a_document_that_goes_leaves_the_array_only_where_it_is_shown(root: Path, tmp_path: Path) -> None:
    for takes_unsharded in (True, False):
        life = await Life.begin(local(root), tmp_path, takes_unsharded=takes_unsharded)
        hierarchy = life.source.hierarchy
        node = await hierarchy.node(PATH)
        (root / PATH / "zarr.json").rename(root / "kept")
        hierarchy.leave(node)
        left = await hierarchy.node(PATH, fresh=True)
        assert (left.unsharded is not None, left.document) == (takes_unsharded, None)
        (root / "kept").rename(root / PATH / "zarr.json")


@in_trio
async def test_only_so_many_versions_of_chunks_are_remembered(root: Path) -> None:
    for number in range(8):
        (root / PATH / "c" / str(number)).write_bytes(b"data")
    source = open_source(root, max_own=2)
    array = (await source.hierarchy.node(PATH)).unsharded
    assert array is not None
    for number in range(8):
        await array.extent((number,))
        assert len(array.layout.versions) <= 4


S3_ARRAY = whole_document((100,), (1,))


async def remote(directory: Path, nchunks: int) -> tuple[FakeS3, Life]:
    fake = FakeS3()
    for number in range(nchunks):
        fake.store(f"{PREFIX}/{PATH}/c/{number}", b"data%d" % number)
    reader = await writing(fake, directory / "s3")
    await store_document(reader, S3_ARRAY)
    life = await Life.begin(reader, directory)
    await life.array()
    fake.take_log()
    return fake, life


@in_trio
async def test_on_s3_a_listing_is_one_request_and_an_open_after_it_none(tmp_path: Path) -> None:
    fake, life = await remote(tmp_path, 40)
    assert len(await life.listed()) == 40
    assert [request.operation for request in fake.take_log()] == ["ListObjectsV2"]
    array = await life.array()
    extent = await array.extent((7,))
    assert extent is not None
    assert not fake.take_log()
    assert bytes(await extent.read(0, 10)) == b"data7"
    assert [request.operation for request in fake.take_log()] == ["GetObject"]


@in_trio
async def test_on_s3_a_cold_chunk_takes_as_many_requests_as_any_object(tmp_path: Path) -> None:
    fake, life = await remote(tmp_path, 2)
    assert await life.read((1,)) == b"data1"
    assert [request.operation for request in fake.take_log()] == ["HeadObject", "GetObject"]


@in_trio
async def test_on_s3_a_commit_is_one_put_and_a_removal_one_delete_for_each_chunk(tmp_path: Path) -> None:
    fake, life = await remote(tmp_path, 2)
    await life.put((0,), b"new")
    await life.put((5,), b"")
    await life.erase((1,))
    await life.writer.commits.flush()
    assert changes(fake) == {"PutObject": 2, "DeleteObject": 1}
    stored = {key: data for key, data in objects(fake).items() if key.startswith(f"{PATH}/c/")}
    assert stored == {f"{PATH}/c/0": b"new", f"{PATH}/c/5": b""}


@in_trio
async def test_recover_applies_a_chunk_that_was_put_aside(root: Path) -> None:
    state = root / ".shardfs"
    life = await Life.begin(local(root), state)
    await life.put((0,), b"ours")
    life.kill()
    (root / PATH / "c/0").write_bytes(b"them")
    (await Life.begin(local(root), state)).kill()
    shown = await trio.to_thread.run_sync(run, "recover", str(root))
    assert shown.stdout == (
        "put aside: the new bytes of chunk 0 of a: another program has changed the chunk since; "
        "`shardfs recover --apply` applies it\n"
    )
    assert (root / PATH / "c/0").read_bytes() == b"them"
    await trio.to_thread.run_sync(run, "recover", "--apply", str(root))
    assert (root / PATH / "c/0").read_bytes() == b"ours"
