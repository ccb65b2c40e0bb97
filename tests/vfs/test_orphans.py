"""Chunk files that an earlier mount put aside, when a mount begins."""

import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from shardfs.dataset import admission
from shardfs.dataset.state.directory import StateDirectory
from shardfs.errors import NoSpaceError, RefusedError, ShardfsError, StoreError
from shardfs.stores.local import tree
from shardfs.stores.local.syscalls import Syscalls
from shardfs.vfs.inodes import ROOT
from tests.crash.harness import OWNER, Process, stored
from tests.crash.histories import INNER, NCHUNKS
from tests.support.documents import aside_of
from tests.support.opened import find, in_trio


def unsharded(root: Path) -> dict[str, Any]:
    """The document of an array as programs write it that know of no shards."""
    document: dict[str, Any] = json.loads((root / "unchecked/zarr.json").read_text())
    document["codecs"] = document["codecs"][0]["configuration"]["codecs"]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [INNER]
    return document


async def put_chunks(process: Process, numbers: Iterable[int], *, seed: int = 0) -> int:
    """Write chunk files of the array "new", of which there is no document; returns the number of its directory."""
    made = await process.fs.mkdir(ROOT, b"new", 0o755, OWNER)
    below = await process.fs.mkdir(made.ino, b"c", 0o755, OWNER)
    for number in numbers:
        await process.write_file(below.ino, b"%d" % number, bytes([seed + number]) * INNER)
    return made.ino


@pytest.mark.slow
@in_trio
async def test_more_than_may_be_pending_is_brought_into_shards_before_a_mount_answers(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_PENDING", 3)
    aside = aside_of(root, "unchecked", json.loads((root / "unchecked/zarr.json").read_text())) / "c"
    aside.mkdir(parents=True)
    for number in range(NCHUNKS):
        (aside / str(number)).write_bytes(bytes([number]) * INNER)
    with trio.fail_after(10):
        process = await Process.start(root, Syscalls())
    array = await process.array("unchecked")
    for number in range(NCHUNKS):
        extent = await array.extent((number,))
        assert extent is not None
        assert await extent.read(0, INNER) == bytes([number]) * INNER
    assert not aside.exists()


@in_trio
async def test_where_something_was_stored_meanwhile_only_what_is_in_its_place_stays_aside(root: Path) -> None:
    """The document never arrived, and somebody copied the array again, without a mount."""
    aside = aside_of(root, "new", json.loads((root / "unchecked/zarr.json").read_text())) / "c/0"
    aside.mkdir(parents=True)
    (root / "new/c/0").mkdir(parents=True)
    for number in range(2):
        (aside / str(number)).write_bytes(b"older")
    (root / "new/c/0/1").write_bytes(b"newer")
    await Process.start(root, Syscalls())
    assert [(root / f"new/c/0/{number}").read_bytes() for number in range(2)] == [b"older", b"newer"]
    assert [path.name for path in aside.iterdir()] == ["1"]


@pytest.mark.parametrize("now", ["nothing", "a file", "a link", "half a document"])
@in_trio
async def test_whatever_became_of_the_directory_meanwhile_a_mount_begins_and_keeps_the_files(
    root: Path, now: str
) -> None:
    aside = aside_of(root, "new", json.loads((root / "unchecked/zarr.json").read_text())) / "c"
    aside.mkdir(parents=True)
    (aside / "0").write_bytes(b"a chunk")
    match now:
        case "a file":
            (root / "new").write_bytes(b"x")
        case "a link":
            (root / "new").symlink_to("/nowhere")
        case "half a document":
            (root / "new").mkdir()
            (root / "new/zarr.json").write_bytes(b"{")
    await Process.start(root, Syscalls())
    kept = [path for path in (aside / "0", root / "new/c/0") if path.exists()]
    assert [path.read_bytes() for path in kept] == [b"a chunk"]


@in_trio
async def test_chunk_files_stay_where_they_are_if_the_document_of_their_array_cannot_be_stored(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a program has open."""
    document = unsharded(root)
    process = await Process.start(root, Syscalls(), shards=(4,))
    fs = process.fs
    made = await fs.mkdir(ROOT, b"new", 0o755, OWNER)
    below = await fs.mkdir(made.ino, b"c", 0o755, OWNER)
    opened = []
    for name, directory in ((b"0", below), (b"zarr.json", made)):
        opened.append((await fs.create(directory.ino, name, 0o644, os.O_CREAT | os.O_WRONLY, OWNER))[0])
    chunk, text = [fs.open_files[number] for number in opened]
    await text.write(0, json.dumps(document).encode())

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(tree, "write_and_rename", fail)
    with pytest.raises(NoSpaceError):
        await text.flush()
    monkeypatch.undo()
    await chunk.write(0, bytes([7]) * INNER)
    assert (root / "new/c/0").read_bytes() == bytes([7]) * INNER
    assert (await find(fs, "new/c/0")).ino == chunk.ino
    await text.flush()
    for number in opened:
        await fs.close(number)
    assert await process.read("new", 0) == bytes([7]) * INNER


@in_trio
async def test_shards_of_an_array_that_another_session_made_meanwhile_are_not_taken_for_early_chunks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(unsharded(root)).encode()
    first, second = [await Process.start(root, Syscalls(), shards=(4,), slot=slot) for slot in range(2)]
    late = await second.fs.mkdir(ROOT, b"new", 0o755, OWNER)
    assert not (await second.fs.lookup(late.ino, b"zarr.json")).ino

    async def make_it_first(below: str | None = None) -> Sequence[ShardfsError]:
        """The others commit, as they are asked to, and one of them makes the array."""
        directory = await find(first.fs, "new")
        await first.write_file(directory.ino, b"zarr.json", text)
        await first.fs.mkdir(directory.ino, b"c", 0o755, OWNER)
        for number in range(NCHUNKS):
            await first.write("new", number, bytes([number]) * INNER)
        await first.commit()
        return []

    monkeypatch.setattr(second.fs.document_writer._others, "flush", make_it_first)
    await second.write_file(late.ino, b"zarr.json", text)
    await second.write("new", 0, bytes([99]) * INNER)
    monkeypatch.undo()
    await first.finish()
    await second.finish()
    assert await stored(root, "new", range(NCHUNKS)) == [bytes([number or 99]) * INNER for number in range(NCHUNKS)]


@in_trio
async def test_what_a_killed_mount_put_aside_does_not_come_into_another_array_with_the_same_path(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    was = {**unsharded(root), "data_type": "int8"}
    aside = aside_of(root, "unchecked", was) / "c"
    aside.mkdir(parents=True)
    (aside / "0").write_bytes(bytes(INNER))
    assert StateDirectory(str(root)).left() == ["chunk files that came before the document of their array"]
    process = await Process.start(root, Syscalls())
    assert await process.read("unchecked", 0) is None
    await process.finish()
    assert await stored(root, "unchecked", range(1)) == [None]
    assert (aside / "0").read_bytes() == bytes(INNER)
    assert f"stay in {aside.parent.relative_to(root)}: " in caplog.text


@pytest.mark.parametrize("retry", ["document", "flush"])
@in_trio
async def test_after_an_error_early_chunks_are_published_by_the_next_close_or_flush_and_none_is_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch, retry: str
) -> None:
    process = await Process.start(root, Syscalls(), shards=(4,))
    text = json.dumps(unsharded(root)).encode()
    directory, put, done = await put_chunks(process, range(NCHUNKS)), process.writing.writer.put, []

    async def put_some(*arguments: Any, **options: Any) -> None:
        if len(done) == 3:
            raise NoSpaceError("injected")
        done.append(await put(*arguments, **options))

    monkeypatch.setattr(process.writing.writer, "put", put_some)
    with pytest.raises(NoSpaceError):
        await process.write_file(directory, b"zarr.json", text)
    with pytest.raises(NoSpaceError):
        await process.fs.flush_all()
    monkeypatch.undo()
    for number in range(NCHUNKS):
        if await process.read("new", number) is not None:
            await process.write("new", number, bytes([100 + number]) * INNER)
    written = [await process.read("new", number) for number in range(NCHUNKS)]
    assert sum(chunk is not None for chunk in written) == 3
    if retry == "document":
        await process.write_file(directory, b"zarr.json", text)
    else:
        await process.fs.flush_all()
    expected = [chunk or bytes([number]) * INNER for number, chunk in enumerate(written)]
    assert [await process.read("new", number) for number in range(NCHUNKS)] == expected
    await process.finish()
    assert await stored(root, "new", range(NCHUNKS)) == expected
    assert not StateDirectory(str(root)).left()


@in_trio
async def test_a_file_goes_only_when_its_own_chunk_is_durable_though_another_one_is_closed_at_the_same_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls(), shards=(4,))
    fs, made = process.fs, await process.fs.mkdir(ROOT, b"new", 0o755, OWNER)
    below = await fs.mkdir(made.ino, b"c", 0o755, OWNER)
    opened = [(await fs.create(below.ino, name, 0o644, os.O_CREAT | os.O_WRONLY, OWNER))[0] for name in (b"0", b"1")]
    await process.write_file(made.ino, b"zarr.json", json.dumps(unsharded(root)).encode())
    for number in opened:
        await fs.open_files[number].write(0, bytes([7]) * INNER)
    aside = [path for path in (root / StateDirectory(str(root)).staged_key).rglob("*") if path.is_file()]
    assert len(aside) == 2
    commits, syncs = process.writing.writer.commits, [trio.Event(), trio.Event()]
    waiting, sync_soon = iter(syncs), commits.sync_soon

    async def sync_late() -> None:
        await next(waiting).wait()
        await sync_soon()

    monkeypatch.setattr(commits, "sync_soon", sync_late)
    async with trio.open_nursery() as nursery:
        for number in opened:
            nursery.start_soon(fs.close, number)
            await trio.testing.wait_all_tasks_blocked()
        syncs[0].set()
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert sum(path.exists() for path in aside) == 1
        syncs[1].set()
    monkeypatch.undo()
    assert not any(path.exists() for path in aside)
    assert [await process.read("new", number) for number in range(2)] == [bytes([7]) * INNER] * 2
    await process.finish()


@in_trio
async def test_early_chunks_whose_document_is_not_known_to_be_stored_are_named_by_each_flush_which_commits_the_rest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls(), shards=(4,))
    text = json.dumps(unsharded(root)).encode()
    directory = await put_chunks(process, range(2))

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(tree, "write_and_rename", fail)
    with pytest.raises(StoreError):
        await process.write_file(directory, b"zarr.json", text)
    monkeypatch.undo()
    await process.write("unchecked", 0, bytes([5]) * INNER)
    with pytest.raises(RefusedError, match=r"chunks of new that came before its zarr\.json are not in it"):
        await process.fs.flush_all()
    assert await stored(root, "unchecked", range(1)) == [bytes([5]) * INNER]
    await process.write_file(directory, b"zarr.json", text)
    assert [await process.read("new", number) for number in range(2)] == [bytes([n]) * INNER for n in range(2)]
    await process.finish()


async def structure() -> None:
    """What is locked: all."""


@in_trio
async def test_a_file_on_its_way_to_another_place_is_not_taken_for_absent(root: Path) -> None:
    (root / "partial").write_bytes(b"x")
    process = await Process.start(root, Syscalls())
    editor, found = process.fs, []

    async def look() -> None:
        found.append((await editor.lookup(ROOT, b"partial")).size)

    async with trio.open_nursery() as nursery, process.fs._locks.hold(structure):
        (root / "partial").rename(root / "elsewhere")
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        (root / "elsewhere").rename(root / "partial")
    assert found == [1]
    assert not (await editor.lookup(ROOT, b"never")).ino


@in_trio
async def test_a_name_that_is_absent_is_told_while_files_that_will_be_moved_wait_for_a_slow_writer(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs

    async def nodes() -> dict[str, bool]:
        return {"unchecked": False}

    async def move() -> None:
        async with fs._locks.hold(structure):
            pass

    async with trio.open_nursery() as nursery, fs._locks.hold(nodes):
        nursery.start_soon(move)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            assert not (await fs.lookup(ROOT, b"never")).ino


@in_trio
async def test_a_file_on_its_way_to_another_place_is_moved_and_looked_at_when_it_is_there(root: Path) -> None:
    (root / "partial").write_bytes(b"x")
    process = await Process.start(root, Syscalls())
    editor = process.fs
    ino = (await editor.lookup(ROOT, b"partial")).ino
    found: list[int] = []

    async def move() -> None:
        await editor.rename(ROOT, b"partial", ROOT, b"whole", exclusive=False)

    async def look() -> None:
        found.append((await editor.attributes(ino)).size)

    for task, name in ((move, root / "partial"), (look, root / "whole")):
        async with trio.open_nursery() as nursery, process.fs._locks.hold(structure):
            name.rename(root / "elsewhere")
            nursery.start_soon(task)
            await trio.testing.wait_all_tasks_blocked()
            (root / "elsewhere").rename(name)
        assert (root / "whole").read_bytes() == b"x"
    assert found == [1]
