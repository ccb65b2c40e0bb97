"""What a store on S3 makes of documents, names and directories, and what it keeps on this machine."""

from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import (
    ExistsError,
    IsADirectoryHereError,
    NameTooLongError,
    NotFoundError,
    RefusedError,
)
from shardfs.stores.base import ABSENT, ANY
from tests.support.fake_s3 import FakeS3, Request
from tests.support.s3_reading import on_mock_clock
from tests.support.s3_writing import PREFIX, changes, names, objects, put_file, text, writing


@pytest.fixture
def fake() -> FakeS3:
    fake = FakeS3()
    fake.store(f"{PREFIX}/zarr.json", b"{}")
    fake.store(f"{PREFIX}/a/c/0", b"shard")
    return fake


# Documents


@on_mock_clock
async def test_a_document_takes_the_place_of_a_file_that_is_open(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("b.json", 0o644, exclusive=True)
    await file.write(0, b"open")
    with pytest.raises(ExistsError):
        await store.replace("b.json", b"{}", ABSENT)
    await store.replace("b.json", b"{}", ANY)
    await file.sync()
    assert objects(fake)["b.json"] == b"{}"
    with pytest.raises(IsADirectoryHereError):
        await store.replace("a", b"{}", ANY)


# Names that shardfs keeps for itself


@on_mock_clock
async def test_names_move_between_the_side_and_the_bucket(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    await store.make_directories(".shardfs/0/drafts")
    file = await store.create(".shardfs/0/drafts/1", 0o600, exclusive=True)
    await file.write(0, b"draft")
    await store.rename(".shardfs/0/drafts/1", "a/notes", exclusive=True)
    assert await text(store, "a/notes") == b"draft"
    assert (await store.stat("a/notes")).mode & 0o777 == 0o644
    assert objects(fake)["a/notes"] == b"draft"
    await store.rename("a/notes", ".shardfs/0/drafts/2", exclusive=True)
    assert (tmp_path / ".shardfs/0/drafts" / "2").read_bytes() == b"draft"
    assert "a/notes" not in objects(fake)
    file = await store.create("b", 0o644, exclusive=True)
    await file.write(0, b"one")
    await store.rename("b", ".shardfs/0/drafts/3", exclusive=True)
    await file.write(3, b" two")
    await file.sync()
    await file.close()
    assert (tmp_path / ".shardfs/0/drafts" / "3").read_bytes() == b"one two"
    assert "b" not in objects(fake)


# Files that are moved and removed


@on_mock_clock
async def test_a_file_is_not_removed_or_moved_while_it_is_stored(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    for key, change in (("f", store.unlink), ("g", lambda key: store.rename(key, "moved", exclusive=False))):
        async with trio.open_nursery() as nursery:

            async def remove(request: Request, nursery: trio.Nursery = nursery, change: Any = change) -> None:
                if request.operation == "PutObject":
                    fake.before = None
                    nursery.start_soon(change, request.key.removeprefix(f"{PREFIX}/"))
                    await trio.testing.wait_all_tasks_blocked()

            fake.before = remove
            nursery.start_soon(put_file, store, key, b"data")
        assert key not in objects(fake)
    assert objects(fake)["moved"] == b"data"


# Directories


@on_mock_clock
async def test_the_object_that_stands_for_a_directory_goes_with_it(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/d/", b"")
    store = await writing(fake, tmp_path)
    assert await names(store, "d") == set()
    await store.rmdir("d")
    assert "d/" not in objects(fake)
    with pytest.raises(NotFoundError):
        await store.stat("d")


@on_mock_clock
async def test_names_that_s3_cannot_have_are_refused_when_they_are_made(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    deep = "/".join(["x" * 200] * 5)
    await store.make_directories(deep)
    for key, error in ((f"a/{chr(0xDC80)}", RefusedError), (f"{deep}/{'y' * 50}", NameTooLongError)):
        with pytest.raises(error):
            await store.create(key, 0o644, exclusive=True)
        with pytest.raises(error):
            await store.mkdir(key, 0o755)
        with pytest.raises(error):
            await store.rename("zarr.json", key, exclusive=False)
    await store.flush()
    assert changes(fake) == {}
