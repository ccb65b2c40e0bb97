"""Chunk files that an earlier mount put aside, when a mount begins."""

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.testing

from shardfs.dataset import admission
from shardfs.dataset.state.directory import StateDirectory
from shardfs.errors import NoSpaceError
from shardfs.stores.local import tree
from shardfs.stores.local.syscalls import Syscalls
from shardfs.vfs.inodes import ROOT
from tests.crash.harness import OWNER, Process
from tests.crash.histories import INNER, NCHUNKS
from tests.support.opened import find, in_trio


@pytest.mark.slow
@in_trio
async def test_more_than_may_be_pending_is_brought_into_shards_before_a_mount_answers(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_PENDING", 3)
    aside = root / StateDirectory(str(root)).staged_key / "unchecked/.chunks/c"
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
    aside = root / StateDirectory(str(root)).staged_key / "new/.chunks/c/0"
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
    aside = root / StateDirectory(str(root)).staged_key / "new/.chunks/c"
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
    document = json.loads((root / "unchecked/zarr.json").read_text())
    document["codecs"] = document["codecs"][0]["configuration"]["codecs"]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [INNER]
    process = await Process.start(root, Syscalls())
    fs = process.fs
    fs.document_writer._chunks_per_shard = (4,)
    fs, made = process.fs, await fs.mkdir(ROOT, b"new", 0o755, OWNER)
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
