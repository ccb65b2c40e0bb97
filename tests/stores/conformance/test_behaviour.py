"""What every store does, on a local disk and on S3."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import pytest
import trio

from shardfs.dataset.maintenance.walk import prune
from shardfs.errors import (
    CrossDeviceError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    RefusedError,
    StaleError,
)
from shardfs.stores.base import ANY, Kept, Kind, Splice, Stat, Store
from tests.stores.conformance.conftest import Subject
from tests.stores.local.splices import content
from tests.support.opened import in_session


def with_store(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test on a store with `zarr.json`, `d/f` and the empty directory `e`."""

    @wraps(test)
    def run(subject: Subject) -> None:
        async def main() -> None:
            store = await subject.begin()
            await store.replace("zarr.json", b"{}", ANY)
            await store.make_directories("d")
            await store.replace("d/f", b"0123456789", ANY)
            await store.mkdir("e", 0o755)
            await test(store, subject)

        trio.run(in_session, main)

    del run.__wrapped__  # type: ignore[attr-defined]  # whose arguments are no fixtures
    return run


def state(status: Stat) -> tuple[Any, ...]:
    """What is equal of two states of one version: S3 tells the time of a change only when it is asked."""
    return status.kind, status.size, status.version, status.identity, status.mode


async def states(store: Store, key: str) -> set[tuple[Any, ...]]:
    """The state of *key* by each way to it."""
    directory, _, name = key.rpartition("/")
    listed = (await store.stat_in(directory, [name]))[0]
    assert listed is not None
    return {state(await store.stat(key)), state((await store.open(key)).stat), state(listed)}


async def names(store: Store, key: str = "") -> dict[str, Kind]:
    return {entry.name: entry.kind for entry in await store.list(key) if not entry.name.startswith(".shardfs")}


async def read(store: Store, key: str) -> bytes:
    snapshot = await store.open(key)
    return bytes(await snapshot.read(0, snapshot.size))


async def put(store: Store, key: str, data: bytes) -> None:
    file = await store.create(key, 0o644, exclusive=False)
    await file.truncate(0)
    await file.write(0, data)
    await file.flush()
    await file.close()


async def move(store: Store, key: str, to: str) -> None:
    """Move a directory, name by name where the store does not move what is stored in it."""
    try:
        await store.rename(key, to, exclusive=False)
    except CrossDeviceError:
        await store.make_directories(to)
        for entry in await store.list(key):
            await move(store, f"{key}/{entry.name}", f"{to}/{entry.name}")
        await store.rmdir(key)


# Names and states


@with_store
async def test_names_have_states(store: Store, subject: Subject) -> None:
    for opened in (store, await subject.again(store)):
        assert (await opened.stat("")).kind is Kind.DIRECTORY
        assert (await opened.stat("d")).kind is Kind.DIRECTORY
        status = await opened.stat("d/f")
        assert (status.kind, status.size) == (Kind.FILE, 10)
        with pytest.raises(NotFoundError):
            await opened.stat("d/g")
        with pytest.raises(NotFoundError):
            await opened.stat("x/y")
        assert [s and s.kind for s in await opened.stat_in("", ["d", "x", "zarr.json"])] == [
            Kind.DIRECTORY,
            None,
            Kind.FILE,
        ]
        assert await states(opened, "d/f") == {state(status)}
        assert await opened.is_absent("x")
        assert await opened.is_absent("d/g")
        assert not await opened.is_absent("d/f")


# Versions


@with_store
async def test_ranges_are_read_exactly(store: Store, subject: Subject) -> None:
    for opened in (store, await subject.again(store)):
        for hints in ({}, {"head_nbytes": 4}, {"tail_nbytes": 4}, {"tail_nbytes": 100}):
            snapshot = await opened.open("d/f", **hints)
            assert snapshot.size == snapshot.stat.size == 10
            snapshot.expect(0, 10)
            assert bytes(await snapshot.read(0, 10)) == b"0123456789"
            assert bytes(await snapshot.read(3, 4)) == b"3456"
            assert bytes(await snapshot.read(10, 0)) == b""
            part = snapshot.content(2, 5)
            assert part.nbytes == 5
            assert bytes(await trio.to_thread.run_sync(part.read, 1, 3)) == b"345"


@with_store
async def test_an_open_version_is_kept_or_stale_and_never_mixed(store: Store, subject: Subject) -> None:
    snapshot = await store.open("d/f")
    before = await store.stat("d/f")
    assert await snapshot.is_current()
    after = await store.replace("d/f", b"ABCDEFGHIJ", ANY)
    assert after.version != before.version
    assert not await snapshot.is_current()
    with suppress(StaleError):
        assert bytes(await snapshot.read(2, 4)) == b"2345"
    assert await read(store, "d/f") == b"ABCDEFGHIJ"
    assert await states(store, "d/f") == {state(after)}


# Changes of one object


@with_store
async def test_edits_make_new_versions_of_old_ranges_and_new_content(store: Store, subject: Subject) -> None:
    async with store.edit("d/f", tail_nbytes=2) as edit:
        assert edit.snapshot is not None
        assert bytes(await edit.snapshot.read(8, 2)) == b"89"
        status = await edit.splice(Splice((Kept(0, 3), content(b"abc"), Kept(5, 2), content(b"zz")), 2))
    assert await states(store, "d/f") == {state(status)}
    async with store.edit("d/f") as edit:
        await edit.splice(Splice((Kept(0, 10), content(b"appended"), content(b"zz")), 2))
    for opened in (store, await subject.again(store)):
        assert await read(opened, "d/f") == b"012abc56zzappendedzz"


# Documents


# Files that pass through


@with_store
async def test_files_that_pass_through_are_seen_at_once(store: Store, subject: Subject) -> None:
    file = await store.create("d/new", 0o644, exclusive=True)
    assert await file.write(3, b"abc") == 3
    assert file.stat().size == (await store.stat("d/new")).size == 6
    assert bytes(await file.read(0, 100)) == b"\0\0\0abc"
    assert await read(store, "d/new") == b"\0\0\0abc"
    await file.truncate(4)
    await file.sync()
    other = await store.open_passthrough("d/new")
    await file.write(4, b"more")
    assert bytes(await other.read(0, 100)) == b"\0\0\0amore"
    assert await names(store, "d") == {"f": Kind.FILE, "new": Kind.FILE}
    await file.flush()
    assert await read(await subject.again(store), "d/new") == b"\0\0\0amore"
    await file.write(0, b"xyz")
    await file.flush()
    await other.close()
    await file.close()
    for opened in (store, await subject.again(store)):
        assert await read(opened, "d/new") == b"xyzamore"


@pytest.mark.slow
@with_store
async def test_a_file_that_is_open_keeps_its_content_when_its_name_goes(store: Store, subject: Subject) -> None:
    removed = await store.create("d/removed", 0o644, exclusive=True)
    replaced = await store.create("d/replaced", 0o644, exclusive=True)
    moved = await store.create("d/moved", 0o644, exclusive=True)
    for file in (removed, replaced, moved):
        await file.write(0, b"one")
    await store.unlink("d/removed")
    await store.rename("d/f", "d/replaced", exclusive=False)
    await store.rename("d/moved", "e/moved", exclusive=True)
    for file in (removed, replaced, moved):
        await file.write(3, b" two")
        assert bytes(await file.read(0, 100)) == b"one two"
        await file.sync()
        await file.close()
    for opened in (store, await subject.again(store)):
        assert await names(opened, "d") == {"replaced": Kind.FILE}
        assert await read(opened, "d/replaced") == b"0123456789"
        assert await read(opened, "e/moved") == b"one two"


# Names that change


@with_store
async def test_directories_are_made_with_all_above_them(store: Store, subject: Subject) -> None:
    await store.make_directories("a/b/c")
    await store.make_directories("a/b/c")
    await store.make_directories("d")
    await store.sync_directory("d")
    assert (await store.stat("a/b/c")).kind is Kind.DIRECTORY
    await put(store, "a/b/c/f", b"x")
    await store.unlink("a/b/c/f")
    await prune(store, "a")
    assert await names(store) == {"d": Kind.DIRECTORY, "e": Kind.DIRECTORY, "zarr.json": Kind.FILE}


@with_store
async def test_directories_of_new_files_are_moved(store: Store, subject: Subject) -> None:
    await store.make_directories("e/g/h")
    await put(store, "e/g/new", b"x")
    for to, error in (("d", NotEmptyError), ("zarr.json", NotADirectoryHereError), ("e/g/h/i", RefusedError)):
        with pytest.raises((error, CrossDeviceError)):
            await store.rename("e/g", to, exclusive=False)
    await move(store, "e/g", "g")
    assert await names(store, "e") == {}
    assert await names(store, "g") == {"h": Kind.DIRECTORY, "new": Kind.FILE}
    await move(store, "g", "e")
    assert await names(store) == {"d": Kind.DIRECTORY, "e": Kind.DIRECTORY, "zarr.json": Kind.FILE}
    assert await read(await subject.again(store), "e/new") == b"x"


@pytest.mark.slow
@with_store
async def test_names_may_be_odd_and_files_large(store: Store, subject: Subject) -> None:
    data = bytes(range(256)) * (9 * 2**20 // 256)
    odd = ["%41 b?#&+=~*[x].txt", "ü 漢", "a\\b'\"", ".hidden", "-x"]
    for name in odd:
        await put(store, f"e/{name}", name.encode())
    await put(store, "e/large", data)
    await store.rename("e/large", "e/larger +", exclusive=True)
    await store.flush()
    await store.rename("e/larger +", "e/largest %", exclusive=True)
    await store.rename(f"e/{odd[0]}", f"d/{odd[0]}", exclusive=True)
    for opened in (store, await subject.again(store)):
        assert set(await names(opened, "e")) == {*odd[1:], "largest %"}
        assert await read(opened, "e/largest %") == data
        assert await read(opened, f"d/{odd[0]}") == odd[0].encode()
        for name in odd[1:]:
            assert await read(opened, f"e/{name}") == name.encode()


# What shardfs keeps for itself


@with_store
async def test_reserved_names_are_names_as_others(store: Store, subject: Subject) -> None:
    await store.make_directories(".shardfs/0/scratch/a")
    await put(store, ".shardfs/0/scratch/a/f", b"x")
    await store.rename(".shardfs/0/scratch/a/f", "d/new", exclusive=True)
    assert await read(store, "d/new") == b"x"
    await store.rename("d/new", ".shardfs/0/scratch/a/g", exclusive=True)
    assert await names(store, ".shardfs/0/scratch/a") == {"g": Kind.FILE}
    assert await read(store, ".shardfs/0/scratch/a/g") == b"x"
    assert await (await subject.again(store)).is_absent("d/new")
    await move(store, "d", ".shardfs/0/scratch/d")
    assert await read(store, ".shardfs/0/scratch/d/f") == b"0123456789"
    assert "d" not in await names(store)
    await move(store, ".shardfs/0/scratch/d", "d")
    assert await read(await subject.again(store), "d/f") == b"0123456789"


@with_store
async def test_fresh_is_what_others_have_stored_meanwhile_whatever_is_cached(store: Store, subject: Subject) -> None:
    reader = await subject.again(store)
    assert await reader.list("d")
    assert state(await reader.fresh("d/f")) == state(await store.fresh("d/f")) == state(await reader.stat("d/f"))
    await store.replace("d/f", b"other", ANY)
    assert state(await reader.fresh("d/f")) == state(await store.stat("d/f"))
    await store.unlink("d/f")
    with pytest.raises(NotFoundError):
        await reader.fresh("d/f")
