"""Files that pass through: spooled on this machine while they are open, stored on condition when they are closed."""

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import (
    AccessDeniedError,
    ConflictError,
    ExistsError,
    NoSpaceError,
    NotFoundError,
    StaleError,
    StoreError,
    UnknownOutcomeError,
    UnreachableError,
)
from shardfs.stores import kept_files
from shardfs.stores.base import ABSENT, ANY, Buffer, OpenFile
from shardfs.stores.kept_files import KeptFiles
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.objects import heads
from shardfs.stores.s3 import change
from shardfs.stores.s3.files import SPOOLS
from shardfs.stores.s3.routed import RoutedStore
from tests.stores.s3.hosts import HONOURED
from tests.support.fake_s3 import FakeS3, Request
from tests.support.lossy_disk import LossyDisk, QuickDisk, oldest
from tests.support.s3_reading import on_mock_clock
from tests.support.s3_writing import PREFIX, changes, objects, put_file, text, writing


@pytest.fixture
def fake() -> FakeS3:
    fake = FakeS3()
    fake.store(f"{PREFIX}/zarr.json", b"{}")
    return fake


def spools(directory: Path) -> list[str]:
    """The files below *directory* that are written, or kept."""
    return sorted(path.suffix for path in (directory / ".shardfs/0" / SPOOLS).iterdir())


def kept(directory: Path) -> dict[str, bytes]:
    """What is kept below *directory*, by key."""
    return {file.key: Path(file.path).read_bytes() for file in KeptFiles(str(directory / ".shardfs/0" / SPOOLS)).find()}


@on_mock_clock
async def test_what_is_known_of_keys_is_bounded(fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(30):
        fake.store(f"{PREFIX}/c/{i}", b"shard")
    store = await writing(fake, tmp_path)
    monkeypatch.setattr(heads, "_MAX_PROPERTIES", 5)
    monkeypatch.setattr(heads, "_MAX_KEYS", 10)
    for i in range(30):
        await store.open(f"c/{i}", tail_nbytes=2)
    assert len(store.remote.heads._records) <= 10
    assert len(store.remote.heads._properties) <= 5


# What is closed is stored


@on_mock_clock
async def test_what_was_cut_waits_for_what_follows(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    for key in ("f", "new"):
        file = await store.create(key, 0o644, exclusive=False)
        await file.truncate(0)
        await file.flush()  # as shells do, which open a file for a program and close it themselves
        assert changes(fake) == {}
        await file.write(0, b"all")
        await file.flush()
        await file.close()
        assert changes(fake) == {"PutObject": 1}
        assert objects(fake)[key] == b"all"


# What is in the bucket already


@on_mock_clock
async def test_a_fetch_that_fails_leaves_the_object_and_nothing_here(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"0123456789")
    store = await writing(fake, tmp_path)
    file = await store.open_to_write("f")

    async def refuse(request: Request) -> None:
        raise StoreError("the bucket cannot be reached")

    fake.before = refuse
    with pytest.raises(StoreError):
        await file.write(0, b"x")
    assert spools(tmp_path) == []
    fake.before = None
    await file.write(0, b"x")
    await file.flush()
    assert objects(fake)["f"] == b"x123456789"


# Other hosts


async def in_place(store: RoutedStore, data: bytes) -> None:
    await put_file(store, "f", data)


async def by_rename(store: RoutedStore, data: bytes) -> None:
    await put_file(store, "f.tmp", data)
    await store.rename("f.tmp", "f", exclusive=False)


async def by_rename_of_an_open_file(store: RoutedStore, data: bytes) -> None:
    file = await store.create("f.tmp", 0o644, exclusive=True)
    await file.write(0, data)
    try:
        await store.rename("f.tmp", "f", exclusive=False)
    finally:
        await file.close()


async def as_a_document(store: RoutedStore, data: bytes) -> None:
    await store.replace("f", data, ANY)


async def open_to_cut(store: RoutedStore, key: str) -> OpenFile:
    file = await store.create(key, 0o644, exclusive=False)
    await file.truncate(0)
    return file


async def open_in_place(store: RoutedStore, key: str) -> OpenFile:
    return await store.open_to_write(key)


async def write_and_flush(file: OpenFile, data: bytes) -> None:
    await file.write(0, data)
    await file.flush()


@pytest.mark.parametrize("is_written_first", [False, True])
@pytest.mark.parametrize("begin", [open_to_cut, open_in_place])
@on_mock_clock
async def test_what_another_host_stored_since_a_file_was_opened_is_not_replaced(
    fake: FakeS3, tmp_path: Path, begin: Callable[[RoutedStore, str], Awaitable[OpenFile]], is_written_first: bool
) -> None:
    fake.store(f"{PREFIX}/f", b"first")
    store = await writing(fake, tmp_path)
    file = await begin(store, "f")
    if is_written_first:
        await file.write(0, b"begun")
    fake.store(f"{PREFIX}/f", b"of another host")
    store.forget("f")
    for _ in range(2):
        with pytest.raises(StaleError, match=r"f was (changed|replaced)"):
            await write_and_flush(file, b"ours!")
        assert objects(fake)["f"] == b"of another host"
    await file.close()
    assert kept(tmp_path) == ({"f": b"ours!"} if is_written_first or begin is open_to_cut else {})
    await put_file(store, "f", b"ours, opened again")
    assert objects(fake)["f"] == b"ours, opened again"
    assert kept(tmp_path) == {}


@on_mock_clock
async def test_a_file_that_was_created_replaces_none_of_another_host(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=False)
    await file.write(0, b"ours")
    fake.store(f"{PREFIX}/f", b"of another host")
    for _ in range(2):
        with pytest.raises(StaleError, match="f exists"):
            await file.flush()
    await file.close()
    assert objects(fake)["f"] == b"of another host"
    assert kept(tmp_path) == {"f": b"ours"}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("write", [by_rename, by_rename_of_an_open_file, as_a_document], ids=lambda way: way.__name__)
@on_mock_clock
async def test_a_rename_replaces_what_is_there_by_then(
    fake: FakeS3, tmp_path: Path, write: Callable[[RoutedStore, bytes], Awaitable[None]], is_known: bool
) -> None:
    fake.store(f"{PREFIX}/f", b"first")
    store = await writing(fake, tmp_path)
    if is_known:
        await text(store, "f")
    fake.store(f"{PREFIX}/f", b"of another host")
    await write(store, b"ours")
    assert objects(fake)["f"] == b"ours"
    fake.remove(f"{PREFIX}/f")
    await write(store, b"ours again")
    assert objects(fake)["f"] == b"ours again"


@on_mock_clock
async def test_a_name_that_is_replaced_without_end_is_an_error(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"first")
    store = await writing(fake, tmp_path)
    await put_file(store, "g", b"ours")
    nchanges = 0

    async def change(request: Request) -> None:
        nonlocal nchanges
        if request.operation == "PutObject" and request.key == f"{PREFIX}/f":
            nchanges += 1
            fake.store(f"{PREFIX}/f", b"of another host %d" % nchanges)

    fake.before = change
    with pytest.raises(StaleError, match="10 times"):
        await store.rename("g", "f", exclusive=False)
    assert objects(fake)["f"] == b"of another host 10"
    assert objects(fake)["g"] == b"ours"


@on_mock_clock
async def test_a_document_replaces_what_is_expected_and_nothing_else(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    first = await store.replace("f", b"first", ABSENT)
    with pytest.raises(ExistsError):
        await store.replace("f", b"ours", ABSENT)
    second = await store.replace("f", b"second", first)
    with pytest.raises(StaleError, match="f was changed by another program"):
        await store.replace("f", b"ours", first)
    fake.remove(f"{PREFIX}/f")
    with pytest.raises(StaleError):
        await store.replace("f", b"ours", second)
    fake.store(f"{PREFIX}/f", b"of another host")
    with pytest.raises(ExistsError):
        await store.replace("f", b"ours", ABSENT)
    await store.replace("f", b"third", ANY)
    assert objects(fake)["f"] == b"third"
    assert kept(tmp_path) == {}


class _Cut:
    """Requests to *fake*, of which changes are made and get no reply; nor do questions for the object."""

    def __init__(self, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cut = False
        for name in ("put", "complete_upload", "head"):
            monkeypatch.setattr(fake, name, partial(self._call, getattr(fake, name), name))

    async def _call(self, real: Callable[..., Awaitable[Any]], name: str, *args: Any, **options: Any) -> Any:
        result = await real(*args, **options)
        if self.is_cut:
            raise UnreachableError("no reply") if name == "head" else UnknownOutcomeError("no reply")
        return result


@pytest.mark.parametrize("way", ["in place", "by rename", "as a document", "as an edit"])
@on_mock_clock
async def test_what_was_stored_without_a_reply_is_no_conflict_when_it_is_stored_again(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fake.store(f"{PREFIX}/f", b"first")
    store, cut = await writing(fake, tmp_path), _Cut(fake, monkeypatch)
    await put_file(store, "other", b"ours")
    first = (await store.open("f", head_nbytes=5)).stat  # with its properties, which take no request then
    file = await store.open_to_write("f")
    if way == "in place":
        await file.truncate(0)
        await file.write(0, b"ours")
    write: dict[str, Callable[[], Awaitable[Any]]] = {
        "in place": file.flush,
        "by rename": lambda: store.rename("other", "f", exclusive=False),
        "as a document": lambda: store.replace("f", b"ours", ANY),
        "as an edit": lambda: store.replace("f", b"ours", first),
    }
    cut.is_cut = True
    for _ in range(2):  # the second time it is refused, and that too is not known
        with pytest.raises(StoreError):
            await write[way]()
        assert objects(fake)["f"] == b"ours"
    cut.is_cut = False
    await write[way]()
    await file.close()
    assert objects(fake)["f"] == b"ours"
    assert kept(tmp_path) == {}


class _Slow:
    """Requests to *fake*, of which the first PUT gets no reply, and is carried out after *nlooks* HEAD requests.

    Until then, the server answers others as S3 does beside a PUT of the same object that is under way.
    """

    def __init__(self, fake: FakeS3, monkeypatch: pytest.MonkeyPatch, nlooks: int) -> None:
        self._nlooks = nlooks
        self._first: Callable[[], Awaitable[Any]] | None = None
        self._put, self._head = fake.put, fake.head
        monkeypatch.setattr(fake, "put", self.put)
        monkeypatch.setattr(fake, "head", self.head)

    @property
    def is_over(self) -> bool:
        return self._nlooks < 0

    async def put(self, *args: Any, **options: Any) -> Any:
        if self._first is None:
            self._first = partial(self._put, *args, **options)
            raise UnknownOutcomeError("no reply")
        if self._nlooks >= 0:
            raise ConflictError("ConditionalRequestConflict")
        return await self._put(*args, **options)

    async def head(self, *args: Any, **options: Any) -> Any:
        if self._first is not None:
            self._nlooks -= 1
            if self._nlooks == -1:
                await self._first()
        return await self._head(*args, **options)


@pytest.mark.parametrize("nlooks", [2, 4])
@on_mock_clock
async def test_a_file_is_no_conflict_with_its_own_request_that_the_server_is_slow_with(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nlooks: int
) -> None:
    fake.store(f"{PREFIX}/f", b"first")
    store = await writing(fake, tmp_path)
    await store.open("f", head_nbytes=5)  # with its properties, which take no request then
    file = await store.open_to_write("f")
    await file.write(0, b"ours!")
    slow = _Slow(fake, monkeypatch, nlooks)
    await file.flush()
    await file.close()
    assert objects(fake)["f"] == b"ours!"
    assert kept(tmp_path) == {}
    assert slow.is_over


@on_mock_clock
async def test_of_changes_whose_outcome_is_unknown_the_last_are_remembered(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "_MAX_UNDECIDED", 2)
    for name in "fgh":
        fake.store(f"{PREFIX}/{name}", b"first")
    store, cut = await writing(fake, tmp_path), _Cut(fake, monkeypatch)
    files = {name: await store.open_to_write(name) for name in "fgh"}
    for file in files.values():
        await file.write(0, b"ours!")
    cut.is_cut = True
    for file in files.values():
        with pytest.raises(StoreError):
            await file.flush()

    async def refuse(request: Request) -> None:
        raise AccessDeniedError("no permission")

    cut.is_cut, fake.before = False, refuse
    for _ in range(3):  # what was refused is decided, and takes no room
        with pytest.raises(AccessDeniedError):
            await store.replace("document", b"{}", ABSENT)
    fake.before = None
    with pytest.raises(StaleError):
        await files["f"].flush()
    for name in "gh":
        await files[name].flush()
    for file in files.values():
        await file.close()
    assert kept(tmp_path) == {"f": b"ours!"}


async def _rename(store: RoutedStore, key: str, to: str) -> None:
    await store.rename(key, to, exclusive=False)


@pytest.mark.parametrize("nbytes", [4, 6 * 2**20])
@on_mock_clock
async def test_what_another_host_made_of_what_was_stored_without_a_reply_is_not_replaced(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    store, cut = await writing(fake, tmp_path), _Cut(fake, monkeypatch)
    other = await writing(fake, tmp_path / "other")
    await put_file(store, "f", b"first")
    file = await store.open_to_write("f")
    await file.write(0, bytes(nbytes))
    cut.is_cut = True
    with pytest.raises(StoreError):
        await file.flush()
    cut.is_cut = False
    await put_file(other, "f", b"of another host")
    with pytest.raises(StaleError):
        await file.flush()
    await file.close()
    assert objects(fake)["f"] == b"of another host"
    assert {key: len(data) for key, data in kept(tmp_path).items()} == {"f": max(nbytes, len(b"first"))}


@pytest.mark.parametrize("write", [by_rename, by_rename_of_an_open_file, as_a_document], ids=lambda way: way.__name__)
@on_mock_clock
async def test_programs_of_one_mount_that_replace_a_file_at_the_same_time_are_not_in_conflict(
    fake: FakeS3, tmp_path: Path, write: Callable[[RoutedStore, bytes], Awaitable[None]]
) -> None:
    fake.store(f"{PREFIX}/f", b"old")
    store = await writing(fake, tmp_path)
    file = await store.open_to_write("f")
    await file.write(0, b"in place")

    async def wait(request: Request) -> None:
        if request.operation == "PutObject" and request.key == f"{PREFIX}/f":
            fake.before = None
            nursery.start_soon(write, store, b"by another program")
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        fake.before = wait
        await file.flush()
    assert objects(fake)["f"] == b"by another program"
    await file.close()


@on_mock_clock
async def test_what_is_added_to_a_file_is_added_to_what_is_there(fake: FakeS3, tmp_path: Path) -> None:
    fake.store(f"{PREFIX}/f", b"one")
    store = await writing(fake, tmp_path)
    fake.store(f"{PREFIX}/f", b"one two")
    store.forget("f")
    file = await store.open_to_write("f")
    await file.write(7, b" three")
    await file.flush()
    assert objects(fake)["f"] == b"one two three"


@pytest.mark.parametrize(("is_honoured", "moment"), [(True, "DeleteObject"), (False, "PutObject")])
@on_mock_clock
async def test_what_another_host_changed_while_it_was_moved_stays_under_both_names(
    fake: FakeS3, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_honoured: bool, moment: str
) -> None:
    store = await writing(fake, tmp_path)
    assert store.remote.files is not None
    changes = store.remote.files.changes
    uploads = replace(changes.uploads, conditions=replace(HONOURED, delete=is_honoured))
    store.remote.files.changes = replace(changes, uploads=uploads)
    await put_file(store, "f", b"ours")

    async def change(request: Request) -> None:
        if request.operation == moment:
            fake.before = None
            fake.store(f"{PREFIX}/f", b"of another host")

    fake.before = change
    await store.rename("f", "g", exclusive=True)
    assert objects(fake) == {"zarr.json": b"{}", "f": b"of another host", "g": b"ours"}
    assert "f stays under its old name" in caplog.text


@on_mock_clock
async def test_an_object_that_becomes_a_local_file_is_deleted_when_that_is_durable(
    fake: FakeS3, tmp_path: Path
) -> None:
    fake.store(f"{PREFIX}/f", b"the only copy")
    store = await writing(fake, tmp_path / "side")
    await store.make_directories(".shardfs/0/scratch")
    assert store.remote.files is not None
    disk = store.remote.files.side.syscalls = LossyDisk(tmp_path / "side")

    async def cut(request: Request) -> None:
        if request.operation == "DeleteObject":
            disk.after_power_cut(oldest).build(tmp_path / "cut")

    fake.before = cut
    await store.rename("f", ".shardfs/0/scratch/x", exclusive=True)
    assert (tmp_path / "cut/.shardfs/0/scratch/x").read_bytes() == b"the only copy"
    assert objects(fake) == {"zarr.json": b"{}"}


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("nbytes", [4, 6 * 2**20])
@on_mock_clock
async def test_a_file_that_another_host_changed_is_moved_at_the_second_attempt(
    fake: FakeS3, tmp_path: Path, nbytes: int, exclusive: bool
) -> None:
    store = await writing(fake, tmp_path)
    await put_file(store, "f", bytes(nbytes))
    fake.store(f"{PREFIX}/f", b"of another host")
    with pytest.raises(StaleError, match="f was changed"):
        await store.rename("f", "g", exclusive=exclusive)
    await store.rename("f", "g", exclusive=exclusive)  # as the kernel does by itself
    assert objects(fake) == {"zarr.json": b"{}", "g": b"of another host"}


@pytest.mark.parametrize("nbytes", [4, 6 * 2**20])
@on_mock_clock
async def test_a_file_that_is_moved_while_it_is_open_can_be_written_after_that(
    fake: FakeS3, tmp_path: Path, nbytes: int
) -> None:
    store = await writing(fake, tmp_path)
    await put_file(store, "f", bytes(nbytes))
    file = await store.open_to_write("f")
    await store.rename("f", "g", exclusive=True)
    await file.write(0, b"ours")
    await file.flush()
    await file.close()
    assert objects(fake) == {"zarr.json": b"{}", "g": b"ours" + bytes(nbytes - 4)}
    assert kept(tmp_path) == {}


@on_mock_clock
async def test_a_file_is_moved_while_another_one_takes_long(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    for key in ("a/f", "b/f"):
        await store.make_directories(key[0])
        await put_file(store, key, key.encode())

    async def hang(request: Request) -> None:
        if request.key == f"{PREFIX}/a/g":
            await trio.sleep_forever()

    fake.before = hang
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_rename, store, "a/f", "a/g")
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await _rename(store, "b/f", "b/g")
        nursery.cancel_scope.cancel()
    assert objects(fake) == {"zarr.json": b"{}", "a/f": b"a/f", "b/g": b"b/f"}


# What is not stored is kept


@on_mock_clock
async def test_what_cannot_be_read_to_be_stored_is_kept(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=True)
    await file.write(0, b"data")

    async def refuse(key: str) -> None:
        raise StoreError("too many files are open")

    assert store.remote.files is not None
    monkeypatch.setattr(store.remote.files.side, "open", refuse)
    with pytest.raises(StoreError, match="too many"):
        await file.flush()
    await file.close()
    assert kept(tmp_path) == {"f": b"data"}


@on_mock_clock
async def test_with_too_much_kept_nothing_more_is_written(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "_MAX_NBYTES", 8)
    store = await writing(fake, tmp_path)
    for number in range(2):
        await store.keep(f"f{number}", b"ours", "it was refused")
    for write in (put_file(store, "g", b"x"), store.replace("g", b"x", ANY)):
        with pytest.raises(NoSpaceError, match="recover"):
            await write
    for path in (tmp_path / ".shardfs/0" / SPOOLS).iterdir():
        path.unlink()
    await put_file(store, "g", b"x")
    assert objects(fake)["g"] == b"x"


@on_mock_clock
async def test_the_number_of_files_that_are_kept_is_limited_too(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "_MAX_NBYTES", 10 * 4096)
    store = await writing(fake, tmp_path)
    for number in range(10):
        await store.keep(f"f{number}", b"", "it was refused")
    for again in (store, await writing(fake, tmp_path)):  # a later mount counts the same
        with pytest.raises(NoSpaceError, match="recover"):
            await again.replace("g", b"x", ANY)


@on_mock_clock
async def test_what_is_refused_again_is_kept_once_and_is_the_latest(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    for mtime_ns, content in enumerate((b"first", b"other", b"first")):
        await store.keep("f", content, "it was refused")
        for path in (tmp_path / ".shardfs/0" / SPOOLS).glob("????????????????"):
            if path.stat().st_mtime_ns > 2 and path.read_bytes() == content:
                os.utime(path, ns=(mtime_ns, mtime_ns))
    files = KeptFiles(str(tmp_path / ".shardfs/0" / SPOOLS)).find()
    assert [file.read(0, file.nbytes) for file in files] == [b"other", b"first"]


@on_mock_clock
async def test_what_is_being_stored_when_the_mount_ends_is_kept(fake: FakeS3, tmp_path: Path) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=True)
    await file.write(0, b"data")

    async def hang(request: Request) -> None:
        await trio.sleep_forever()

    fake.before = hang
    with trio.move_on_after(1):
        await file.close()
    assert kept(tmp_path) == {"f": b"data"}


@on_mock_clock
async def test_what_cannot_be_stored_is_an_error_each_time_and_kept_in_the_end(
    fake: FakeS3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=True)
    await file.write(0, b"data")

    if_killed: list[dict[str, bytes]] = []

    async def refuse(request: Request) -> None:
        if request.operation == "PutObject":
            if_killed.append(kept(tmp_path))
            raise StoreError("the bucket cannot be reached")

    fake.before = refuse
    for store_it in (file.flush, file.sync, store.flush):
        with pytest.raises(StoreError, match="cannot be reached"):
            await store_it()
    assert await text(store, "f") == b"data"
    assert kept(tmp_path) == {"f": b"data"}
    assert if_killed == [{}, {"f": b"data"}, {"f": b"data"}]
    fake.before = None
    await file.flush()
    assert kept(tmp_path) == {}
    assert "older than what is stored" not in caplog.text
    fake.remove(f"{PREFIX}/f")
    store.forget("f")
    fake.before = refuse
    await file.write(0, b"data")
    with pytest.raises(StoreError, match="cannot be reached"):
        await file.flush()
    fake.take_log()
    await file.close()
    assert changes(fake) == {}, "it was tried"
    assert kept(tmp_path) == {"f": b"data"}
    with pytest.raises(NotFoundError):
        await store.stat("f")


class FullDisk(QuickDisk):
    """A disk on which there is no space for content any more, at some time."""

    is_full = False

    def pwrite(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if self.is_full:
            super().pwrite(fd, [memoryview(buffers[0])[:1]], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, buffers, offset)


@pytest.mark.parametrize("way", ["close", "flush", "sync", "rename", "another writer"])
@on_mock_clock
async def test_what_was_not_written_whole_is_never_stored(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fake.store(f"{PREFIX}/f", b"whole")
    disk = FullDisk()
    monkeypatch.setattr(LocalStore, "__init__", partialmethod(LocalStore.__init__, syscalls=disk))
    store = await writing(fake, tmp_path)
    for key in ("f", "new"):
        file = await store.create(key, 0o644, exclusive=False)
        await file.truncate(0)
        disk.is_full = True
        with pytest.raises(NoSpaceError):
            await file.write(0, b"other")
        disk.is_full = False
        with pytest.raises(NoSpaceError) if way != "close" else nullcontext():
            match way:
                case "flush":
                    await file.flush()
                case "sync":
                    await file.sync()
                case "rename":
                    await store.rename(key, f"{key}-moved", exclusive=False)
                case "another writer":
                    await file.write(2, b"more")
                    await file.flush()
        await file.close()
    assert objects(fake) == {"zarr.json": b"{}", "f": b"whole"}
    assert not spools(tmp_path)


@on_mock_clock
async def test_a_file_that_could_not_be_written_is_stored_when_it_was_cut_and_written_again(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk()
    monkeypatch.setattr(LocalStore, "__init__", partialmethod(LocalStore.__init__, syscalls=disk))
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=False)
    await file.write(0, b"begin")
    disk.is_full = True
    with pytest.raises(NoSpaceError):
        await file.write(5, b"rest")
    disk.is_full = False
    await file.write(6, b"x")
    await file.truncate(6)
    with pytest.raises(NoSpaceError):
        await file.flush()
    await file.truncate(5)
    await file.write(5, b" again")
    await file.close()
    assert objects(fake)["f"] == b"begin again"


@on_mock_clock
async def test_a_write_that_failed_and_is_made_again_is_stored(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk()
    monkeypatch.setattr(LocalStore, "__init__", partialmethod(LocalStore.__init__, syscalls=disk))
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=False)
    await file.write(0, b"begin")
    disk.is_full = True
    with pytest.raises(NoSpaceError):
        await file.write(5, b"rest")
    disk.is_full = False
    await file.write(5, b"rest")
    await file.close()
    assert objects(fake)["f"] == b"beginrest"


@on_mock_clock
async def test_what_was_kept_stays_when_more_cannot_be_written(
    fake: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk()
    monkeypatch.setattr(LocalStore, "__init__", partialmethod(LocalStore.__init__, syscalls=disk))
    store = await writing(fake, tmp_path)
    file = await store.create("f", 0o644, exclusive=False)
    await file.write(0, b"whole")
    fake.store(f"{PREFIX}/f", b"of another host")
    with pytest.raises(StaleError):
        await file.flush()
    assert kept(tmp_path) == {"f": b"whole"}
    disk.is_full = True
    with pytest.raises(NoSpaceError):
        await file.write(5, b"more")
    await file.close()
    assert kept(tmp_path)["f"].startswith(b"whole")
    assert objects(fake)["f"] == b"of another host"
