"""Files that are opened to be written while their names come to stand for something else."""

import errno
import json
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shardfs.dataset.array import Array
from shardfs.errors import ExistsError, NoSpaceError, RefusedError, ShardfsError, StaleError, StoreError
from shardfs.format.sharding import Coords
from shardfs.stores.base import Buffer
from shardfs.stores.local.reader import LocalReader
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.memory import MemoryContent
from shardfs.vfs import documents, write_buffer
from shardfs.vfs.entries.chunk import Chunk
from shardfs.vfs.entries.document import Document
from shardfs.vfs.entries.passthrough import Passthrough
from shardfs.vfs.handles import ChunkHandle, Owner
from shardfs.vfs.inodes import ROOT
from shardfs.vfs.texts import TextCache
from shardfs.vfs.writable import WritableFilesystem
from shardfs.vfs.write_buffer import BufferBytes, BufferSpace, State, WriteBuffer
from tests.crash.harness import Process
from tests.support.opened import find, in_trio, list_directory, read_file

OWNER = Owner(os.geteuid(), os.getegid())
LOCK = b"0.__lock"


async def write(files: WritableFilesystem, directory: int, name: bytes, text: bytes) -> None:
    """Write a file as a whole, whatever it was."""
    handle, _, _ = await files.create(directory, name, 0o644, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, OWNER)
    await files.open_files[handle].write(0, text)
    await files.open_files[handle].flush()
    await files.close(handle)


@in_trio
async def test_the_number_of_a_lock_file_that_is_gone_is_not_that_of_the_next(root: Path) -> None:
    """Who waited for the lock compares numbers: it would write the old file, and rename the new and empty one."""
    process = await Process.start(root, Syscalls())
    fs = files = process.fs
    directory = (await find(fs, "unchecked/c")).ino
    creating = os.O_CREAT | os.O_WRONLY
    handle, first, _ = await files.create(directory, LOCK, 0o644, creating, OWNER)
    await files.close(handle)
    (stored,) = root.rglob("0.__lock")  # noqa: ASYNC240
    os.link(stored, root / "kept")
    await files.unlink(directory, LOCK)
    late, _ = await files.open_to_write(first.ino, os.O_WRONLY)
    (root / "kept").rename(stored)  # as a file system does that gives a new file the inode of the last one
    found = await files.lookup(directory, LOCK)
    assert found.ino not in (0, first.ino)
    await files.open_files[late].write(0, b"nobody sees this")
    assert (await files.attributes(first.ino)).size == 16
    assert (await files.attributes(found.ino)).size == 0


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
@pytest.mark.parametrize("way", ["unlink", "onto a document", "onto a chunk", "over another", "by a chunk"])
@in_trio
async def test_a_file_that_gets_the_identity_of_one_that_just_went_is_another_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str, fails: bool
) -> None:
    """The store may give it to a new file before the operation that removed the old one has returned."""
    process = await Process.start(root, Syscalls())
    fs = process.fs
    node, chunks = (await find(fs, "unchecked")).ino, (await find(fs, "unchecked/c")).ino
    document = await read_file(fs, (await find(fs, "unchecked/zarr.json")).ino)
    await write(fs, node, b"old", document.replace(b'"attributes":{}', b'"attributes":{"a":1}'))
    await write(fs, node, b"other", b"other")
    await write(fs, chunks, b"0", b"chunk")
    old = await find(fs, "unchecked/old")
    numbers: list[int] = []

    def meeting(operation: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def done(*arguments: Any, **options: Any) -> None:
            if "unchecked/old" not in arguments:
                return await operation(*arguments, **options)
            status = await fs.store.stat("unchecked/old")
            if fails:
                raise NoSpaceError("full")
            await operation(*arguments, **options)
            attributes = fs.attributes_of("reused", status)
            numbers.append(attributes.ino)
            assert not fs.inodes.row(attributes.ino).became
            return None

        return done

    store = fs.writable.store
    monkeypatch.setattr(store, "unlink", meeting(store.unlink))
    monkeypatch.setattr(store, "rename", meeting(store.rename))
    with pytest.raises(NoSpaceError) if fails else nullcontext():
        match way:
            case "unlink":
                await fs.unlink(node, b"old")
            case "onto a document":
                await fs.rename(node, b"old", node, b"zarr.json", exclusive=False)
            case "onto a chunk":
                await fs.rename(node, b"old", chunks, b"1", exclusive=False)
            case "over another":
                await fs.rename(node, b"other", node, b"old", exclusive=False)
            case "by a chunk":
                await fs.rename(chunks, b"0", node, b"old", exclusive=False)
    if fails:
        assert (await find(fs, "unchecked/old")).ino == old.ino
        number, _ = await fs.open_to_write(old.ino, os.O_WRONLY)
        await fs.open_files[number].write(0, b"it is what it was")
        await fs.close(number)
    else:
        assert numbers
        assert old.ino not in numbers


@in_trio
async def test_a_lock_file_that_became_a_chunk_is_opened_as_the_chunk(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    fs = files = process.fs
    directory = (await find(fs, "unchecked/c")).ino
    handle, first, _ = await files.create(directory, LOCK, 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
    await files.open_files[handle].write(0, b"one")
    await files.close(handle)
    await files.rename(directory, LOCK, directory, b"0", exclusive=False)
    late, _ = await files.open_to_write(first.ino, os.O_WRONLY)
    await files.open_files[late].write(3, b" more")
    await files.open_files[late].flush()
    extent = await (await process.array("unchecked")).extent((0,))
    assert extent is not None
    assert bytes(await extent.read(0, extent.nbytes)) == b"one more"


@in_trio
async def test_what_was_replaced_since_the_kernel_looked_is_read_as_it_is_now(root: Path) -> None:
    """The kernel looks only once more: with writers that are faster, a file that is there seemed to be none."""
    process = await Process.start(root, Syscalls())
    files = process.fs
    directory = (await find(process.fs, "unchecked/c")).ino

    await write(files, directory, b"0", b"first")
    first = (await files.lookup(directory, b"0")).ino
    await write(files, directory, b"0", b"the second")
    assert (await files.attributes(first)).size == 10
    number, late = await files.open(first)
    assert late.is_late
    assert bytes(await late.read(0, 100)) == b"the second"
    await write(files, directory, b"0", b"third")
    assert (await files.attributes(first)).size == 10  # of who has it open
    with pytest.raises(StaleError):  # whose size that would be, nobody could say
        await files.open(first)
    await files.close(number)
    _, later = await files.open(first)
    assert bytes(await later.read(0, 100)) == b"third"
    await files.unlink(directory, b"0")
    with pytest.raises(StaleError):  # the kernel looks once more, and finds nothing
        await files.open(first)


@in_trio
async def test_writers_who_keep_away_from_pages_have_to_look_only_once_more(root: Path) -> None:
    """The kernel does no more for an open, however fast others publish versions, and read them in pages."""
    process = await Process.start(root, Syscalls())
    files = process.fs
    directory = (await find(process.fs, "unchecked/c")).ino

    async def look() -> int:
        return (await files.lookup(directory, b"0")).ino

    async def has_pages(ino: int) -> bool:
        return files.gives_pages((await files.open(ino)).handle, chunks=True)

    async def publish(number: int, text: bytes) -> None:
        await files.open_files[number].write(0, text)
        await files.open_files[number].flush()

    await write(files, directory, b"0", b"first")
    other, _ = await files.open_to_write(await look(), os.O_WRONLY)
    await publish(other, b"second")
    read = await look()
    assert await has_pages(read)
    for _ in range(2):
        with pytest.raises(StaleError):
            await files.open_to_write(read, os.O_WRONLY | os.O_TRUNC)
    for text in (b"third", b"fourth"):
        await publish(other, text)
        assert not await has_pages(await look())
        await files.open_to_write(await look(), os.O_WRONLY | os.O_TRUNC)
    await publish(other, b"fifth")
    assert await has_pages(await look())


@pytest.mark.parametrize("is_committed", [False, True])
@in_trio
async def test_what_is_published_while_a_reader_waits_for_the_store_has_its_own_number_and_bytes(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """A reader that keeps bytes by number and time would keep those of the old version for the new one."""
    process = await Process.start(root, Syscalls())
    files = process.fs
    await process.write("unchecked", 0, b"old")
    await process.writing.commit()
    directory = (await find(process.fs, "unchecked/c")).ino
    find_stored = Array.find_stored

    async def publish_before_the_answer(self: Array, coords: Coords, *, fresh: bool = False) -> Any:
        found = await find_stored(self, coords, fresh=fresh)
        monkeypatch.setattr(Array, "find_stored", find_stored)
        await process.write("unchecked", 0, b"the new one")
        if is_committed:
            await process.writing.commit()
        return found

    monkeypatch.setattr(Array, "find_stored", publish_before_the_answer)
    seen = await files.lookup(directory, b"0")
    now = await files.lookup(directory, b"0")
    assert (now.size, await read_file(process.fs, now.ino)) == (11, b"the new one")
    assert seen.ino != now.ino or (seen.size, seen.mtime_ns) == (now.size, now.mtime_ns)


@pytest.mark.parametrize("is_published", [False, True], ids=["pending", "published"])
@in_trio
async def test_a_chunk_file_that_is_committed_while_it_is_listed_keeps_its_number(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    """A listing that has looked at the file before its commit must not take it for one that others have changed."""
    process = await Process.start(root, Syscalls(), v2=True)
    files = process.fs
    directory = (await find(process.fs, "unsharded")).ino
    await process.write("unsharded", 0, b"old")
    await process.writing.commit()
    if is_published:
        await process.write("unsharded", 0, b"the new one")
    stat_in = LocalReader.stat_in

    async def commit_before_the_answer(self: LocalReader, key: str, names: list[str]) -> Any:
        states = await stat_in(self, key, names)
        monkeypatch.setattr(LocalReader, "stat_in", stat_in)
        if not is_published:
            await process.write("unsharded", 0, b"the new one")
        await process.writing.commit()
        return states

    before = await files.lookup(directory, b"0")
    monkeypatch.setattr(LocalReader, "stat_in", commit_before_the_answer)
    listed = {name: (ino, size) for name, ino, size, _ in await list_directory(files, directory)}
    after = await files.lookup(directory, b"0")
    assert listed[b"0"] == (after.ino, 11)
    assert after.size == 11
    if is_published:
        assert (after.ino, after.own_mtime_ns) == (before.ino, before.own_mtime_ns)
    assert await files.lookup(directory, b"0") == after


@in_trio
async def test_a_shard_is_not_read_under_the_number_of_the_file_that_was_in_its_place(root: Path) -> None:
    """A chunk file that came before the document of its array may have the name of a shard that is stored later."""
    (root / "unchecked/zarr.json").rename(root.parent / "zarr.json")
    (root / "unchecked/c").mkdir(exist_ok=True)
    (root / "unchecked/c/0").write_bytes(b"a chunk")
    process = await Process.start(root, Syscalls())
    first = (await find(process.fs, "unchecked/c/0")).ino
    (root.parent / "zarr.json").rename(root / "unchecked/zarr.json")
    (root / "unchecked/next").write_bytes(b"a shard")
    (root / "unchecked/next").rename(root / "unchecked/c/0")
    await process.fs.refresh("unchecked")
    with pytest.raises(StaleError):
        await process.fs.attributes(first)
    with pytest.raises(StaleError):
        await process.fs.open(first)


@in_trio
async def test_a_document_that_is_shown_in_another_text_has_another_number(root: Path) -> None:
    """The stored one stays as it is: a reader would have one text and the size of the other."""
    process = await Process.start(root, Syscalls())
    fs = files = process.fs
    directory = (await find(fs, "unchecked")).ino
    generated = await read_file(fs, (await files.lookup(directory, b"zarr.json")).ino)
    compact = json.dumps(json.loads(generated), separators=(",", ":")).encode()
    await write(files, directory, b"zarr.json", compact)
    before = await files.lookup(directory, b"zarr.json")
    number, reader = await files.open(before.ino)
    fs.texts = TextCache()  # as when too many others were written
    after = await files.lookup(directory, b"zarr.json")
    assert (before.size, after.size) == (len(compact), len(generated))
    assert after.ino != before.ino
    assert await read_file(fs, after.ino) == generated
    assert (await files.attributes(before.ino)).size == len(bytes(await reader.read(0, 10**6))) == len(compact)
    await files.close(number)


@in_trio
async def test_a_write_that_ends_after_its_descriptor_was_flushed_is_published(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    files = process.fs
    directory = (await find(process.fs, "unchecked/c")).ino
    handle, made, _ = await files.create(directory, b"0", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
    beside, _ = await files.open_to_write(made.ino, os.O_WRONLY)
    await files.open_files[handle].write(0, b"first")
    await files.open_files[handle].flush()
    await files.open_files[handle].write(5, b" and the rest")
    await files.close(handle)
    assert await read_file(process.fs, (await files.lookup(directory, b"0")).ino) == b"first and the rest"
    await files.open_files[beside].flush()
    await files.close(beside)


@in_trio
async def test_a_write_that_began_before_its_chunk_was_renamed_is_taken_along(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls())
    files = process.fs
    await process.write("unchecked", 0, b"old")
    directory = (await find(process.fs, "unchecked/c")).ino
    handle, _ = await files.open_to_write((await files.lookup(directory, b"0")).ino, os.O_WRONLY)
    read = ChunkHandle.read

    async def rename_first(self: ChunkHandle, offset: int, nbytes: int) -> Buffer:
        monkeypatch.setattr(ChunkHandle, "read", read)
        nursery.start_soon(partial(files.rename, directory, b"0", directory, b"1", exclusive=False))
        await trio.testing.wait_all_tasks_blocked()
        return await self.read(offset, nbytes)

    monkeypatch.setattr(ChunkHandle, "read", rename_first)
    async with trio.open_nursery() as nursery:
        await files.open_files[handle].write(0, b"new")
    with pytest.raises(StaleError):
        await files.open_files[handle].write(0, b"late")
    await files.close(handle)
    assert (await process.read("unchecked", 0), await process.read("unchecked", 1)) == (None, b"new")


@in_trio
async def test_a_chunk_that_waits_to_be_moved_while_its_array_is_resized_brings_nothing_old(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs
    fs.hierarchy._ttl = 3600.0
    await process.write("unchecked", 0, b"old")
    directory = (await find(fs, "unchecked/c")).ino

    async def unchecked() -> dict[str, bool]:
        return {"unchecked": True}

    async def move() -> None:
        with suppress(StaleError):  # the kernel looks at the names again
            await fs.rename(directory, b"0", ROOT, b"moved", exclusive=False)

    async with trio.open_nursery() as nursery, fs._locks.hold(unchecked):
        nursery.start_soon(move)
        await trio.testing.wait_all_tasks_blocked()
        document = json.loads(await read_file(fs, (await find(fs, "unchecked/zarr.json")).ino))
        resized = json.dumps({**document, "shape": [document["shape"][0] * 2]}).encode()
        await fs.document_writer.publish(Document(fs, "unchecked/zarr.json"), resized, {"mode": 0o644}, exclusive=False)
        tree = fs.chunk_tree(await fs.hierarchy.node("unchecked"))
        assert tree is not None
        chunk = Chunk(tree, (0,))
        handle = await chunk.current()
        assert handle is not None
        await chunk.replace(MemoryContent(memoryview(b"new")), handle.attributes, None)
    found = [await find(fs, path) for path in ("unchecked/c/0", "moved")]
    assert [await read_file(fs, each.ino) for each in found if each.ino] == [b"new"]


@in_trio
async def test_a_file_that_gets_a_second_name_while_it_is_renamed_onto_a_chunk_can_be_written_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls())
    fs, move_to = process.fs, Passthrough.move_to
    await write(fs, ROOT, b"temporary", b"data")

    async def link_and_move(self: Passthrough, *args: Any, **options: Any) -> None:
        os.link(root / "temporary", root / "second")
        await move_to(self, *args, **options)

    monkeypatch.setattr(Passthrough, "move_to", link_and_move)
    await fs.rename(ROOT, b"temporary", (await find(fs, "unchecked/c")).ino, b"0", exclusive=False)
    number, _ = await fs.open_to_write((await find(fs, "second")).ino, os.O_WRONLY)
    await fs.open_files[number].write(0, b"more")
    await fs.close(number)
    assert (root / "second").read_bytes() == b"more"
    assert await read_file(fs, (await find(fs, "unchecked/c/0")).ino) == b"data"


@pytest.mark.parametrize(
    ("name", "is_late", "is_published"),
    [
        ("c/0", False, False),
        ("c/0", False, True),
        ("temporary", False, False),
        ("temporary", False, True),
        ("temporary", True, False),
    ],
)
def test_who_writes_a_file_while_it_is_renamed_onto_a_chunk_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_late: bool, is_published: bool
) -> None:
    """Also who opens a temporary file (*is_late*) after its content was taken."""

    @in_trio
    async def run() -> None:
        process = await Process.start(root, Syscalls())
        fs = process.fs
        path, _, last = f"unchecked/{name}".rpartition("/")
        directory, chunks = [(await find(fs, each)).ino for each in (path, "unchecked/c")]
        await write(fs, directory, last.encode(), b"first")
        ino = (await fs.lookup(directory, last.encode())).ino
        opened = [] if is_late else [(await fs.open_to_write(ino, os.O_RDWR))[0]]
        replace, told = Chunk.replace, []

        async def write_again() -> None:
            try:
                await fs.open_files[opened[0]].write(0, b"FIRST")
            except StaleError as error:
                told.append(error)

        async def write_meanwhile(chunk: Chunk, *args: Any, **options: Any) -> None:
            if is_published:
                await replace(chunk, *args, **options)
            if is_late:
                opened.append((await fs.open_to_write(ino, os.O_RDWR))[0])
            nursery.start_soon(write_again)  # who writes to a chunk waits until it has its new name
            await trio.testing.wait_all_tasks_blocked(0.05)
            if not is_published:
                await replace(chunk, *args, **options)

        monkeypatch.setattr(Chunk, "replace", write_meanwhile)
        async with trio.open_nursery() as nursery:
            await fs.rename(directory, last.encode(), chunks, b"1", exclusive=False)
        try:
            await fs.open_files[opened[0]].flush()
        except StaleError as error:
            told.append(error)
        assert len(told) == 1
        await fs.close(opened[0])
        assert not fs.buffers
        assert await read_file(fs, (await find(fs, "unchecked/c/1")).ino) == b"first"

    run()


@in_trio
async def test_who_writes_a_file_that_lost_its_second_name_when_it_is_renamed_onto_a_chunk_is_told(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs
    await write(fs, ROOT, b"temporary", b"first")
    os.link(root / "temporary", root / "second")
    number, _ = await fs.open_to_write((await find(fs, "temporary")).ino, os.O_RDWR)  # which finds two names
    (root / "second").unlink()
    await fs.rename(ROOT, b"temporary", (await find(fs, "unchecked/c")).ino, b"1", exclusive=False)
    with pytest.raises(StaleError, match="renamed to unchecked/c/1"):
        await fs.open_files[number].write(0, b"FIRST")
    await fs.close(number)
    assert await read_file(fs, (await find(fs, "unchecked/c/1")).ino) == b"first"


@in_trio
async def test_a_write_while_another_buffer_is_published_is_made_in_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs
    directory = (await find(fs, "unchecked/c")).ino
    await write(fs, directory, b"0", b"first")
    ino = (await fs.lookup(directory, b"0")).ino
    changing, _ = await fs.open_to_write(ino, os.O_RDWR)
    writing, _ = await fs.open_to_write(ino, os.O_WRONLY | os.O_TRUNC)
    await fs.open_files[writing].write(0, b"second")
    await fs.open_files[writing].flush()
    await fs.open_files[writing].write(0, b"third ")
    put = Chunk.put

    async def put_late(chunk: Chunk, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        nursery.start_soon(fs.open_files[changing].write, 0, b"F")
        await trio.testing.wait_all_tasks_blocked(0.05)
        return await put(chunk, *args, **options)

    monkeypatch.setattr(Chunk, "put", put_late)
    async with trio.open_nursery() as nursery:
        await fs.open_files[writing].flush()
    for number, expected in ((writing, b"third "), (changing, b"First")):
        await fs.open_files[number].flush()
        await fs.close(number)
        assert await read_file(fs, (await find(fs, "unchecked/c/0")).ino) == expected


@in_trio
async def test_what_is_refused_at_a_close_is_not_published_behind_its_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was told, and may have written the file again since; another close, or a sync, tries again."""
    process = await Process.start(root, Syscalls())
    fs = process.fs
    directory = (await find(fs, "unchecked/c")).ino
    await write(fs, directory, b"0", b"before")
    number, _, _ = await fs.create(directory, b"0", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
    handle, ntries = fs.open_files[number], 0

    async def refuse(*_: Any, **__: Any) -> Any:
        nonlocal ntries
        ntries += 1
        raise NoSpaceError("injected")

    await handle.write(0, b"BEFORE")
    with monkeypatch.context() as patch:
        patch.setattr(Chunk, "put", refuse)
        for _ in range(2):
            with pytest.raises(NoSpaceError):
                await handle.flush()
        assert ntries == 2
    await fs.close(number)
    assert await read_file(fs, (await find(fs, "unchecked/c/0")).ino) == b"before"


class Late:
    """A call of a store for *key* that is made, or *answers*, only when a test says so: the first one."""

    def __init__(self, call: Callable[..., Awaitable[Any]], key: str, *, answers: bool) -> None:
        self.begun, self.may_end = trio.Event(), trio.Event()
        self._call = call
        self._key = key
        self._answers = answers

    async def __call__(self, key: str, *args: Any, **options: Any) -> Any:
        is_late = key == self._key and not self.begun.is_set()
        if is_late and not self._answers:
            await self._wait()
        try:
            return await self._call(key, *args, **options)
        finally:
            if is_late and self._answers:
                await self._wait()

    async def _wait(self) -> None:
        self.begun.set()
        await self.may_end.wait()


@in_trio
async def test_a_document_that_cannot_be_stored_fails_with_that_error_whatever_cannot_be_read_then(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs
    directory = (await find(fs, "end")).ino
    text = await read_file(fs, (await find(fs, "end/zarr.json")).ino)

    async def fail(*_: object, **__: object) -> Any:
        raise StoreError("the disk does not answer")

    async def refuse(*_: object, **__: object) -> Any:
        fs.store.stat = fs.store.open = fail  # type: ignore[method-assign]
        raise NoSpaceError("the disk is full")

    fs.store.replace = refuse  # type: ignore[method-assign]
    with pytest.raises(NoSpaceError, match="the disk is full"):
        await write(fs, directory, b"zarr.json", text.replace(b"{}", b'{"new": 1}'))


class LateRemoval(Syscalls):
    """A disk that removes the document of an array when a test says so."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def unlink(self, name: str, dir_fd: int) -> None:
        if name == "zarr.json":
            self.begun.set()
            self.may_end.wait()
        super().unlink(name, dir_fd)


@in_trio
async def test_a_document_that_is_written_anew_while_all_is_flushed_stays(root: Path) -> None:
    """The flush removes the one that was removed on the mount, as tar does first; a store may take long for that."""
    late = LateRemoval()
    process = await Process.start(root, late)
    fs = process.fs
    await process.write("end", 0, b"data")
    directory = (await find(fs, "end")).ino
    text = await read_file(fs, (await find(fs, "end/zarr.json")).ino)
    await fs.unlink(directory, b"zarr.json")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.flush_all)
        await trio.to_thread.run_sync(late.begun.wait)
        nursery.start_soon(write, fs, directory, b"zarr.json", text)
        await trio.testing.wait_all_tasks_blocked(0.2)  # threads that sync a file take less
        late.may_end.set()
    assert await read_file(fs, (await find(fs, "end/zarr.json")).ino) == text
    assert (root / "end/zarr.json").exists()


@in_trio
async def test_an_array_is_looked_at_while_it_is_removed(root: Path) -> None:
    """Also by a commit, which would end the mount by any unexpected error."""
    process = await Process.start(root, Syscalls())
    fs = process.fs
    await fs.unlink((await find(fs, "end")).ino, b"zarr.json")
    fs.store.rmdir = removing = Late(fs.store.rmdir, "end", answers=False)  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.rmdir, ROOT, b"end")
        await removing.begun.wait()
        fs.store.stat = looking = Late(fs.store.stat, "end", answers=True)  # type: ignore[method-assign]
        nursery.start_soon(partial(fs.hierarchy.array, "end", fresh=True))
        await looking.begun.wait()
        removing.may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        looking.may_end.set()
    assert await fs.hierarchy.array("end", fresh=True) is None


@in_trio
async def test_of_two_programs_that_create_a_chunk_exclusively_one_is_told_that_it_exists(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await Process.start(root, Syscalls())
    fs, current = process.fs, Chunk.current
    directory = (await find(process.fs, "unchecked/c")).ino
    told: list[bool] = []

    async def slow_current(self: Chunk, *, fresh: bool = True) -> Any:
        await trio.lowlevel.checkpoint()
        return await current(self, fresh=fresh)

    async def create() -> None:
        try:
            await fs.create(directory, b"0", 0o644, os.O_CREAT | os.O_WRONLY | os.O_EXCL, OWNER)
        except ExistsError:
            told.append(True)
        else:
            told.append(False)

    monkeypatch.setattr(Chunk, "current", slow_current)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        nursery.start_soon(create)
    assert sorted(told) == [False, True]


@in_trio
async def test_an_array_that_gets_other_codecs_takes_what_is_written_for_these_and_nothing_else(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    before = await process.array("end")
    chunks, files = await find(process.fs, "end/c"), process.fs
    early, _, _ = await files.create(chunks.ino, b"1", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
    await files.open_files[early].write(0, b"encoded as before")
    document = json.loads((root / "end/zarr.json").read_text())
    document["codecs"][0]["configuration"]["codecs"].append({"name": "gzip", "configuration": {"level": 1}})
    (root / "end/zarr.json").write_text(json.dumps(document))
    chunks = await find(process.fs, "end/c")
    number, _, _ = await files.create(chunks.ino, b"0", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
    await files.open_files[number].write(0, b"encoded as now")
    await files.open_files[number].flush()
    with pytest.raises(RefusedError, match="other codecs"):
        await files.open_files[early].flush()
    await process.writing.commit()
    now = await process.array("end")
    assert now.layout is before.layout
    assert [(await now.find((n,)))[1] is not None for n in (0, 1)] == [True, False]


@in_trio
async def test_a_document_that_would_be_stored_larger_than_any_is_read_is_refused(root: Path) -> None:
    process = await Process.start(root, Syscalls())
    stored = (root / "end/zarr.json").read_bytes()
    shown = await find(process.fs, "end/zarr.json")
    document = json.loads(await read_file(process.fs, shown.ino))
    written = json.dumps({**document, "attributes": {"numbers": [1e9] * 1000}}).replace("000000000.0", "e9").encode()
    directory, limit = await find(process.fs, "end"), len(written) + 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "MAX_DOCUMENT_NBYTES", limit)
        with pytest.raises(RefusedError, match=f"more than {limit}"):
            await write(process.fs, directory.ino, b"zarr.json", written)
    assert (root / "end/zarr.json").read_bytes() == stored


MISSING_FROM, LIMIT = 40, 100
OPERATIONS: dict[str, Callable[[WritableFilesystem, int, int], Awaitable[object]]] = {
    "write": lambda fs, number, ino: fs.open_files[number].write(0, b"refused"),
    "write behind the end": lambda fs, number, ino: fs.open_files[number].write(MISSING_FROM, bytes(20)),
    "empty": lambda fs, number, ino: fs.truncate(ino, number, 0),
    "cut": lambda fs, number, ino: fs.truncate(ino, number, 3),
    "extend": lambda fs, number, ino: fs.truncate(ino, number, MISSING_FROM),
    "set a time": lambda fs, number, ino: fs.set_attributes(ino, {"mtime_ns": 5}),
    "publish": lambda fs, number, ino: fs.open_files[number].flush(),
}


async def rename(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    chunks = (await find(fs, "unchecked/c")).ino
    await fs.rename(chunks, b"0", chunks, b"1", exclusive=False)


async def fill_buffers(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    def make(**_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    patch.setattr(write_buffer, "_MAX_MEMORY", -1)
    patch.setattr(tempfile, "mkstemp", make)


async def fill_file(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    """No buffer is kept in memory, and the disk takes the first half of what is written."""

    class Full(Syscalls):
        def pwrite(self, fd: int, buffers: Sequence[Any], offset: int) -> None:
            data = b"".join(buffers)
            if data.strip(b"0123456789"):
                os.pwrite(fd, b"", offset)
                if offset:
                    os.pwrite(fd, b"half", offset)
                raise OSError(errno.ENOSPC, "full")
            super().pwrite(fd, buffers, offset)

    patch.setattr(write_buffer, "_MAX_MEMORY", -1)
    patch.setattr(write_buffer, "SYSCALLS", Full())


async def fill_journal(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NoSpaceError("full")

    patch.setattr(fs.writable.buffers, "check_room", refuse)
    patch.setattr(fs.writable.writer.admission, "check_room", refuse)


async def allow_little(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chunk, "max_nbytes", 2)


async def lose_base(fs: WritableFilesystem, patch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> bytes:
        raise StaleError("gone")

    patch.setattr(ChunkHandle, "read", read)


@pytest.mark.parametrize("is_written", [False, True], ids=["unwritten", "written"])
@pytest.mark.parametrize("refuse", [rename, fill_buffers, fill_file, fill_journal, allow_little, lose_base])
@in_trio
async def test_whatever_is_refused_leaves_an_open_file_as_it_was(
    root: Path, refuse: Callable[[WritableFilesystem, pytest.MonkeyPatch], Awaitable[None]], is_written: bool
) -> None:
    process = await Process.start(root, Syscalls())
    fs = process.fs
    await write(fs, (await find(fs, "unchecked/c")).ino, b"0", b"0123456789")
    refused = set()
    for name, operation in OPERATIONS.items():
        ino = (await find(fs, "unchecked/c/0")).ino
        number, _ = await fs.open_to_write(ino, os.O_RDWR)
        handle = fs.open_files[number]
        assert isinstance(handle, WriteBuffer)
        if is_written:
            await handle.write(0, b"9876543210")
        with pytest.MonkeyPatch.context() as patch:
            await refuse(fs, patch)
            attributes, state = handle.attributes, handle.state
            try:
                await operation(fs, number, ino)
            except ShardfsError:
                refused.add(name)
            else:
                continue
            finally:
                after = handle.attributes, handle.state
            assert after == (attributes, state if name != "publish" else State.REFUSED), name
        if refuse is not fill_file or name != "write":
            assert bytes(await handle.read(0, 100)) == (b"9876543210" if is_written else b"0123456789"), name
        if refuse is rename:
            chunks = (await find(fs, "unchecked/c")).ino
            await fs.rename(chunks, b"1", chunks, b"0", exclusive=False)
        else:  # what was refused is done now
            await handle.write(MISSING_FROM, b"x")
            expected = (b"9876543210" if is_written else b"0123456789") + bytes(MISSING_FROM - 10) + b"x"
            assert bytes(await handle.read(0, 100)) == expected, name
    assert bool(refused) != (refuse is lose_base and is_written), "which needs its base no more"


def test_many_open_drafts_take_no_more_memory_than_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffer, "_MAX_MEMORY", 100)
    space = BufferSpace(str(tmp_path))
    opened = [BufferBytes(space) for _ in range(20)]
    for number, draft in enumerate(opened):
        draft.write(0, bytes([number]) * 10)
        assert space.memory <= 100
    for number, draft in enumerate(opened):
        assert bytes(draft.read(0, 11)) == bytes([number]) * 10
        draft.clear()
        assert draft.nbytes == 0
    assert space.memory == 0


def test_many_drafts_that_are_extended_take_no_more_memory_than_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_buffer, "_MAX_MEMORY", 100)
    space = BufferSpace(str(tmp_path))
    opened = [BufferBytes(space) for _ in range(20)]
    for draft in opened:
        draft.write(0, b"x")
    for draft in opened:
        draft.truncate(10)
        assert space.memory <= 100
    for draft in opened:
        draft.truncate(9)
        assert bytes(draft.read(0, 11)) == b"x" + bytes(8)
