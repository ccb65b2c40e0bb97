"""Damaged and hostile files: what comes of them is an error of shardfs, and nothing but them is opened."""

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from shardfs.errors import CorruptionError, ShardfsError
from shardfs.formats import TreeStore
from shardfs.formats.hdf5 import process
from shardfs.formats.hdf5.contents import Hdf5Contents
from shardfs.formats.hdf5.process import LibraryProcess
from shardfs.stores.local.reader import LocalReader
from tests.formats.hdf5.files import write_random
from tests.support.opened import in_trio


def opened(path: Path) -> TreeStore:
    async def load(snapshot: Any) -> Hdf5Contents:
        contents = Hdf5Contents(snapshot)
        await contents.begin()
        return contents

    return TreeStore(str(path), LocalReader(str(path.parent)), path.name, load, ttl=0)


async def library(path: Path) -> LibraryProcess:
    return LibraryProcess(await LocalReader(str(path.parent)).open(path.name))


async def look_at_everything(path: Path) -> tuple[int, int]:
    """Read all of a file; return how many keys could be read, and how many errors of shardfs there were."""
    store, nread, nerrors = opened(path), 0, 0
    try:
        await store.note()
        async for key in store.walk():
            try:
                snapshot = await store.open(key)
                await snapshot.read(0, snapshot.size)
                nread += 1
            except ShardfsError:
                nerrors += 1
            if nread + nerrors > 2000:
                break
    except ShardfsError:
        nerrors += 1
    return nread, nerrors


def write_sound(path: Path, seed: int) -> bytes:
    with h5py.File(path, "w", libver="latest" if seed % 2 else "earliest") as file:
        file.attrs["text"] = "text"
        file.create_dataset("g/x", data=np.arange(60.0).reshape(10, 6), chunks=(4, 3), compression="gzip", shuffle=True)
        file["g/text"] = np.array(["a", "bcd"], h5py.string_dtype())
        file["y"] = np.arange(5)
        file["y"].make_scale("y")
        file["z"] = np.zeros((5, 2), [("a", "i4"), ("b", ">f8")])
        file["z"].dims[0].attach_scale(file["y"])
        file["soft"] = h5py.SoftLink("/g/x")
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@in_trio
async def test_a_file_with_damaged_bytes_is_errors_of_shardfs_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(process, "MAX_SECONDS", 2)
    monkeypatch.setattr(process, "MAX_INDEX_SECONDS", 2)
    path, rng = tmp_path / "a.h5", np.random.default_rng(seed)
    data = bytearray(write_sound(path, seed))
    used = np.flatnonzero(np.frombuffer(data, np.uint8))  # what is zero is mostly not used
    for at in rng.choice(used, rng.integers(1, 6)):
        data[at] = rng.choice([0, 1, 0x7F, 0xFF, int(rng.integers(256))])
    if seed % 8 == 0:
        del data[int(rng.integers(len(data))) :]
    path.write_bytes(data)
    await look_at_everything(path)


@pytest.mark.slow
@in_trio
async def test_random_files_that_are_sound_are_read_whole(tmp_path: Path) -> None:
    for seed in range(3):
        write_random(tmp_path / "a.h5", seed)
        nread, nerrors = await look_at_everything(tmp_path / "a.h5")
        assert (nread > 24, nerrors) == (True, 0)


@in_trio
async def test_the_process_opens_no_file_whatever_is_asked(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret" * 10)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 42
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("outside", (12,), "u1", external=[(str(tmp_path / "secret"), 0, 12)])
        layout = h5py.VirtualLayout((), "i8")
        layout[()] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", ())
        file.create_virtual_dataset("virtual", layout, fillvalue=-1)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
    others = set(_children())
    asked = await library(tmp_path / "a.h5")
    with pytest.raises(CorruptionError):
        await asked.ask("values", path=["outside"], start=[0], shape=[12])
    values = await asked.ask("values", path=["virtual"], start=[], shape=[])
    assert np.frombuffer(values.data, "<i8") == -1, "what is not found has the fill value"
    assert (await asked.ask("values", path=["link"], start=[], shape=[])).absent == "it is a link to another file"
    await asked.ask("node", path=[])
    (number,) = set(_children()) - others
    files = [os.readlink(f"/proc/{number}/fd/{each}") for each in os.listdir(f"/proc/{number}/fd")]
    assert not [name for name in files if name.startswith(str(tmp_path))]


def _children() -> list[int]:
    """Return the processes that any thread of this one has started."""
    return [int(number) for file in Path("/proc/self/task").glob("*/children") for number in file.read_text().split()]


@in_trio
async def test_a_process_that_crashed_is_an_error_and_the_next_one_answers(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.h5", 0)
    others = set(_children())
    asked = await library(tmp_path / "a.h5")
    await asked.ask("node", path=[])
    (number,) = set(_children()) - others
    os.kill(number, signal.SIGSEGV)
    for _ in range(2):  # what it died of is not asked again
        with pytest.raises(CorruptionError, match=r"libhdf5 crashed \(SIGSEGV\)"):
            await asked.ask("node", path=[])
    assert (await asked.ask("node", path=["y"])).value["kind"] == "dataset"


@in_trio
async def test_the_process_ends_with_the_version_that_it_reads(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.h5", 0)
    others = set(_children())  # which what earlier tests raised keeps
    store = opened(tmp_path / "a.h5")
    await store.list("")
    (before,) = set(_children()) - others
    write_sound(tmp_path / "new.h5", 1)
    (tmp_path / "new.h5").replace(tmp_path / "a.h5")
    await store.list("")
    gc.collect()
    (after,) = set(_children()) - others
    assert before != after
    del store
    gc.collect()
    assert not set(_children()) - others


ANSWERS: dict[str, Callable[[], str]] = {
    "no bytes": lambda: "pass",
    "random bytes": lambda: "import os; os.write(1, os.urandom(1000))",
    "a text of 4 GB": lambda: "import os; os.write(1, b'\\xff' * 12)",
    "bytes beyond the file": lambda: _says('{"need": [0, 1000000000]}'),
    "bytes before the file": lambda: _says('{"need": [-5, 3]}'),
    "bytes of no place": lambda: _says('{"need": ["a", 3]}'),
    "no message": lambda: _says("[]"),
    "no JSON": lambda: _says("{"),
    "nested JSON": lambda: _says("[" * 100_000),
    "parts that nobody wants": lambda: _says('{"part": 1}'),
}


def _says(text: str) -> str:
    return f"import os, struct, time; text = {text!r}.encode(); os.write(1, struct.pack('<IQ', len(text), 0) + text)"


@pytest.mark.parametrize("name", ANSWERS)
@in_trio
async def test_what_a_process_that_was_taken_over_says_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_sound(tmp_path / "a.h5", 0)
    monkeypatch.setattr(process, "_PROGRAM", ANSWERS[name]())
    with pytest.raises(CorruptionError, match="the file is damaged: libhdf5"):
        await (await library(tmp_path / "a.h5")).ask("node", path=[])


@in_trio
async def test_an_index_with_chunks_outside_of_the_grid_is_damage(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.h5", 0)
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"))

    async def ask(what: str, take: Any = None, **arguments: Any) -> Any:
        if what != "chunks":
            return await LibraryProcess.ask(contents._library, what, take, **arguments)
        take(None, np.array([[99, 0, 1, 0]], "<u8").tobytes())
        return process.LibraryReply()

    monkeypatched = contents._library
    monkeypatched.ask = ask  # type: ignore[method-assign]
    with pytest.raises(CorruptionError, match="outside of the grid"):
        await contents.find("g/x/c/0/0")


@in_trio
async def test_text_that_repeats_itself_without_end_takes_limited_memory(tmp_path: Path) -> None:
    """A million elements that are all the same 16 MiB of text: 16 TB."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (2**18,), h5py.string_dtype(), chunks=(2**18,))
        made[0] = "x" * 2**24
        offset = made.id.get_chunk_info(0).byte_offset
        file.flush()
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(offset)
        element = raw.read(16)
        raw.seek(offset)
        raw.write(element * 2**18)
    contents = Hdf5Contents(await LocalReader(str(tmp_path)).open("a.h5"))
    with pytest.raises(CorruptionError):
        await contents.find("x/c/0")
    assert (await contents.find("zarr.json")) is not None
