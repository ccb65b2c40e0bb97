"""What has had two names, one after the other, is there after a power cut, under one of them."""

import json
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.crash.crashes import check_left_behind, recover
from tests.crash.harness import OWNER, Process, stored
from tests.crash.histories import ARRAYS, PER_SHARD, payload_of
from tests.support.lossy_disk import LossyDisk, QuickDisk, newest, oldest
from tests.support.opened import find, read_file

ARRAY = "unchecked"


def cut(directory: Path, template: Path, change: Callable[[Process], Awaitable[None]]) -> Iterator[Path]:
    """Yield what the next mount finds after a power cut at each call of *change*, which is to one array."""
    root = directory / "source"
    shutil.copytree(template, root, ignore=lambda _, names: {*names} & {*ARRAYS} - {ARRAY})
    disk = LossyDisk(root)

    async def live() -> None:
        process = await Process.start(root, disk)
        await change(process)

    trio.run(live)
    choices = (oldest, newest, *(random.Random(seed).randrange for seed in range(4)))
    calls = range(len(disk.calls) + 1)
    states = [disk.after_power_cut(choose, at, keeps_inodes=True) for at in calls for choose in choices]
    for state in dict.fromkeys(states):
        after = directory / "after"
        state.build(after)
        trio.run(recover, after, QuickDisk(), False)
        check_left_behind(after, power_cut=True, left=())
        yield after
        shutil.rmtree(after)


@pytest.mark.parametrize("way", ["renames it", "removes it"])
def test_the_document_of_an_array_that_an_editor_replaces(template: Path, tmp_path: Path, way: str) -> None:
    """It says how the array is sharded, as nothing else does: it is there at every moment, old or new."""
    name = b"zarr.json"

    async def change(process: Process) -> None:
        fs = process.fs
        directory = (await find(fs, ARRAY)).ino
        shown = json.loads(await read_file(fs, (await find(fs, f"{ARRAY}/zarr.json")).ino))
        if way == "renames it":
            await fs.rename(directory, name, directory, name + b"~", exclusive=False)
        else:
            await fs.unlink(directory, name)
        assert not (await fs.lookup(directory, name)).ino
        handle, _, _ = await fs.create(directory, name, 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
        await fs.open_files[handle].write(0, json.dumps(shown | {"attributes": {"new": 1}}).encode())
        await fs.open_files[handle].flush()
        await fs.close(handle)

    before = json.loads((template / f"{ARRAY}/zarr.json").read_bytes())
    for after in cut(tmp_path, template, change):
        found = json.loads((after / f"{ARRAY}/zarr.json").read_bytes())
        assert found in (before, before | {"attributes": {"new": 1}})


def test_a_chunk_that_is_renamed_to_another_file(template: Path, tmp_path: Path) -> None:
    async def change(process: Process) -> None:
        for number in (1, 2):  # the log is durable when the second one is renamed
            directory, chunks = [(await find(process.fs, path)).ino for path in ("", f"{ARRAY}/c")]
            names = b"%d" % number, b"kept-%d" % number
            await process.fs.rename(chunks, names[0], directory, names[1], exclusive=False)
            await process.sync()

    for after in cut(tmp_path, template, change):
        chunks = trio.run(stored, after, ARRAY, range(3))
        for number in (1, 2):
            kept = after / f"kept-{number}"
            found = kept.read_bytes() if chunks[number] is None else chunks[number]
            assert found == payload_of(ARRAY, 1 + number)


def test_a_chunk_file_that_came_before_the_document_of_its_array(template: Path, tmp_path: Path) -> None:
    source = tmp_path / "template"
    shutil.copytree(template, source)
    document = json.loads((source / f"{ARRAY}/zarr.json").read_text())
    shutil.rmtree(source / ARRAY)
    (source / f"{ARRAY}/c").mkdir(parents=True)
    numbers = range(PER_SHARD + 1)  # of one whole shard, and of one that is not
    for number in numbers:
        (source / f"{ARRAY}/c/{number}").write_bytes(payload_of(ARRAY, 1 + number))
    document["codecs"] = document["codecs"][0]["configuration"]["codecs"]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [len(payload_of(ARRAY, 1))]

    async def change(process: Process) -> None:
        fs = process.fs
        fs.document_writer._chunks_per_shard = (PER_SHARD,)
        directory = (await find(process.fs, ARRAY)).ino
        handle, _, _ = await fs.create(directory, b"zarr.json", 0o644, os.O_CREAT | os.O_WRONLY, OWNER)
        await process.fs.open_files[handle].write(0, json.dumps(document).encode())
        await process.fs.open_files[handle].flush()
        await fs.close(handle)

    for after in cut(tmp_path, source, change):
        if (after / f"{ARRAY}/zarr.json").exists():
            found = trio.run(stored, after, ARRAY, numbers)
        else:
            found = [(after / f"{ARRAY}/c/{number}").read_bytes() for number in numbers]
        assert found == [payload_of(ARRAY, 1 + number) for number in numbers]
