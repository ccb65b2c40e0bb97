"""What has had two names, one after the other, is there after a power cut, under one of them."""

import json
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio

from tests.crash.crashes import recover
from tests.crash.harness import OWNER, Process, stored
from tests.crash.histories import NCHUNKS, payload_of
from tests.support.lossy_disk import LossyDisk, QuickDisk, newest, oldest
from tests.support.opened import find, read_file


def cut(directory: Path, template: Path, change: Callable[[Process], Awaitable[None]]) -> Iterator[Path]:
    """Yield what the next mount finds after a power cut at each call of *change*."""
    root = directory / "source"
    shutil.copytree(template, root)
    disk = LossyDisk(root)

    async def live() -> None:
        process = await Process.start(root, disk)
        await change(process)

    trio.run(live)
    for at in range(len(disk.calls) + 1):
        for choose in (oldest, newest, *(random.Random(seed).randrange for seed in range(4))):
            after = directory / "after"
            disk.after_power_cut(after, choose, at, keeps_inodes=True)
            trio.run(recover, after, QuickDisk(), False)
            yield after
            shutil.rmtree(after)


def test_a_document_that_is_renamed_as_editors_do(template: Path, tmp_path: Path) -> None:
    """Before they write the new one."""
    shown: list[bytes] = []

    async def change(process: Process) -> None:
        directory = (await find(process.fs, "unchecked")).ino
        shown.append(await read_file(process.fs, (await find(process.fs, "unchecked/zarr.json")).ino))
        await process.writing.changes.rename(directory, b"zarr.json", directory, b"zarr.json~", exclusive=False)

    document = (template / "unchecked/zarr.json").read_bytes()
    for after in cut(tmp_path, template, change):
        kept = after / "unchecked/zarr.json"
        assert kept.read_bytes() == document if kept.exists() else Path(f"{kept}~").read_bytes() == shown[0]


def test_a_chunk_that_is_renamed_to_another_file(template: Path, tmp_path: Path) -> None:
    async def change(process: Process) -> None:
        for number in (1, 2):  # the log is durable when the second one is renamed
            directory, chunks = [(await find(process.fs, path)).ino for path in ("", "unchecked/c")]
            names = b"%d" % number, b"kept-%d" % number
            await process.writing.changes.rename(chunks, names[0], directory, names[1], exclusive=False)
            await process.sync()

    for after in cut(tmp_path, template, change):
        chunks = trio.run(stored, after, "unchecked", range(3))
        for number in (1, 2):
            kept = after / f"kept-{number}"
            found = kept.read_bytes() if chunks[number] is None else chunks[number]
            assert found == payload_of("unchecked", 1 + number)


def test_a_chunk_file_that_came_before_the_document_of_its_array(template: Path, tmp_path: Path) -> None:
    source = tmp_path / "template"
    shutil.copytree(template, source)
    document = json.loads((source / "unchecked/zarr.json").read_text())
    shutil.rmtree(source / "unchecked")
    (source / "unchecked/c").mkdir(parents=True)
    for number in range(NCHUNKS):
        (source / f"unchecked/c/{number}").write_bytes(payload_of("unchecked", 1 + number))
    document["codecs"] = document["codecs"][0]["configuration"]["codecs"]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [len(payload_of("unchecked", 1))]

    async def change(process: Process) -> None:
        changes = process.writing.changes
        changes.documents._chunks_per_shard = (4,)
        directory = (await find(process.fs, "unchecked")).ino
        handle, _, _ = await changes.create(directory, b"zarr.json", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
        await process.fs.open_files[handle].write(0, json.dumps(document).encode())
        await process.fs.open_files[handle].flush()
        await changes.close(handle)

    for after in cut(tmp_path, source, change):
        if (after / "unchecked/zarr.json").exists():
            found = trio.run(stored, after, "unchecked", range(NCHUNKS))
        else:
            found = [(after / f"unchecked/c/{number}").read_bytes() for number in range(NCHUNKS)]
        assert found == [payload_of("unchecked", 1 + number) for number in range(NCHUNKS)]
