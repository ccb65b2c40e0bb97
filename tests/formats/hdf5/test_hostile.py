"""Damaged and hostile files: what comes of them is an error of shardfs, and nothing but them is opened."""

import gc
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import h5py
import numpy as np
import pytest
import trio

import shardfs
from shardfs.errors import CorruptionError, NotFoundError, OversizedDataError, ShardfsError, StoreError
from shardfs.formats import InlinePart, TreeStore
from shardfs.formats.hdf5 import nodes, process
from shardfs.formats.hdf5.nodes import Hdf5Contents
from shardfs.formats.hdf5.process import LibraryProcess
from shardfs.stores.base import Kind
from shardfs.stores.local.reader import LocalReader
from tests.formats.hdf5.files import write_random
from tests.formats.hdf5.test_reading import questions
from tests.support.commands import run_program
from tests.support.opened import in_trio, session
from tests.support.users import SOMEBODY, shared_directory


def opened(path: Path) -> TreeStore:
    async def load(snapshot: Any) -> Hdf5Contents:
        contents = Hdf5Contents(snapshot, session())
        await contents.begin()
        return contents

    return TreeStore(str(path), LocalReader(str(path.parent)), path.name, load, ttl=0)


async def library(path: Path) -> LibraryProcess:
    return LibraryProcess(await LocalReader(str(path.parent)).open(path.name), session())


async def contents_of(path: Path) -> Hdf5Contents:
    return Hdf5Contents(await LocalReader(str(path.parent)).open(path.name), session())


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


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
@in_trio
async def test_a_process_that_somebody_kills_says_nothing_of_the_file(tmp_path: Path, number: int) -> None:
    write_sound(tmp_path / "a.h5", 0)
    others = set(_children())
    asked = await library(tmp_path / "a.h5")
    await asked.ask("node", path=[])
    (child,) = set(_children()) - others
    os.kill(child, number)
    assert (await asked.ask("node", path=[])).value["kind"] == "group"
    (other,) = set(_children()) - others
    assert other != child


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (signal.SIGSEGV, r"crashed \(SIGSEGV\)"),
        (signal.SIGABRT, r"crashed \(SIGABRT\)"),
        (signal.SIGXCPU, "took too much time"),
    ],
)
@in_trio
async def test_a_question_of_which_libhdf5_dies_is_asked_of_a_new_process_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: int, reason: str
) -> None:
    write_sound(tmp_path / "a.h5", 0)
    nstarted = 0
    start = process._Child.start

    async def counted(*arguments: Any) -> Any:
        nonlocal nstarted
        nstarted += 1
        return await start(*arguments)

    monkeypatch.setattr(process._Child, "start", counted)
    killing = (
        f"import os; from library import file; file.Hdf5File.listing = lambda *_, **__: os.kill(os.getpid(), {what})"
    )
    monkeypatch.setattr(process, "_PROGRAM", _changed(killing))
    asked = await library(tmp_path / "a.h5")
    await asked.ask("node", path=[])
    for _ in range(3):
        with pytest.raises(CorruptionError, match=reason):
            await asked.ask("listing", path=[], most=10)
    # Time is counted for each question, whatever was before it.
    assert nstarted == (1 if what == signal.SIGXCPU else 2)
    assert (await asked.ask("node", path=["y"])).value["kind"] == "dataset"


@in_trio
async def test_a_process_that_is_killed_again_and_again_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a kernel without memory."""
    write_sound(tmp_path / "a.h5", 0)
    killing = "import os; from library import file; file.Hdf5File.node = lambda self, path: os.kill(os.getpid(), 9)"
    monkeypatch.setattr(process, "_PROGRAM", _changed(killing))
    asked = await library(tmp_path / "a.h5")
    with pytest.raises(StoreError, match=r"was killed \(SIGKILL\): is there enough memory"):
        await asked.ask("node", path=[])
    monkeypatch.undo()
    assert (await asked.ask("node", path=[])).value["kind"] == "group"


@in_trio
async def test_a_question_that_nobody_waits_for_any_more_says_nothing_of_the_file(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.h5", 0)
    others = set(_children())
    asked = await library(tmp_path / "a.h5")
    for moment in range(20):
        with trio.move_on_after(0.02 * moment):
            await asked.ask("node", path=["g", "x"])
        assert (await asked.ask("node", path=["g", "x"])).value["shape"] == [10, 6]
    await _until(lambda: len(set(_children()) - others) == 1)


@in_trio
async def test_who_gives_up_while_bytes_are_read_leaves_no_answer_to_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sound(tmp_path / "a.h5", 0)
    asked = await library(tmp_path / "a.h5")
    read = process._Child._bytes
    is_slow = True

    async def slowly(child: Any, offset: int, nbytes: int) -> Any:
        if is_slow:
            await trio.sleep_forever()
        return await read(child, offset, nbytes)

    monkeypatch.setattr(process._Child, "_bytes", slowly)
    with trio.move_on_after(0.5) as scope:
        await asked.ask("node", path=["y"])
    assert scope.cancelled_caught
    is_slow = False
    assert (await asked.ask("node", path=["g", "x"])).value["shape"] == [10, 6]
    assert (await asked.ask("node", path=["y"])).value["shape"] == [5]


@in_trio
async def test_a_process_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sound(tmp_path / "a.h5", 0)
    monkeypatch.setattr(process, "MAX_SECONDS", 1)
    monkeypatch.setattr(process, "PATIENCE", 0.5)
    monkeypatch.setattr(process, "_PROGRAM", "import time; time.sleep(1000)")
    others = set(_children())
    asked = await library(tmp_path / "a.h5")
    begun = monotonic()
    with pytest.raises(StoreError, match="did not answer"):
        await asked.ask("node", path=[])
    assert monotonic() - begun < 5
    await _until(lambda: set(_children()) == others)


@in_trio
async def test_a_process_lives_with_lower_limits_than_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sound(tmp_path / "a.h5", 0)
    lower = "import resource as r; r.setrlimit(r.RLIMIT_CPU, (9, 9)); r.setrlimit(r.RLIMIT_DATA, (2**30, 2**30))"
    monkeypatch.setattr(process, "_PROGRAM", f"{lower}; {process._PROGRAM}")
    assert (await (await library(tmp_path / "a.h5")).ask("node", path=[])).value["kind"] == "group"


@pytest.mark.slow
def test_a_user_who_is_not_root_reads_a_file_within_the_limits() -> None:
    """For whom they hold: root may start processes, and have files, whatever is said."""
    program = "import sys, shardfs; print(len(shardfs.open(sys.argv[1]).filesystem().cat_file('g/x/zarr.json')) > 100)"
    with shared_directory() as directory:
        write_sound(directory / "a.h5", 0)
        (directory / "a.h5").chmod(0o644)
        done = run_program(program, directory / "a.h5", user=SOMEBODY)
    assert done.stdout == "True\n", done.stderr


@in_trio
async def test_a_process_ends_without_what_is_registered_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sound(tmp_path / "a.h5", 0)
    change = "import atexit, os; from library import main; atexit.register(os._exit, 77); main._serve = lambda: 1 / 0"
    monkeypatch.setattr(process, "_PROGRAM", _changed(change))
    with pytest.raises(CorruptionError, match="status 1"):
        await (await library(tmp_path / "a.h5")).ask("node", path=[])


@in_trio
async def test_a_process_knows_no_keys_of_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sound(tmp_path / "a.h5", 0)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    change = "import os; from library import file; file.Hdf5File.node = lambda self, path: dict(os.environ)"
    monkeypatch.setattr(process, "_PROGRAM", _changed(change))
    found = (await (await library(tmp_path / "a.h5")).ask("node", path=[])).value
    assert found["OPENBLAS_NUM_THREADS"] == "1"
    assert "secret" not in found.values()


@in_trio
async def test_a_process_without_h5py_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sound(tmp_path / "a.h5", 0)
    monkeypatch.setattr(process, "_PROGRAM", _changed("sys.modules['h5py'] = None"))
    with pytest.raises(StoreError, match="h5py cannot be used: import of h5py halted"):
        await (await library(tmp_path / "a.h5")).ask("node", path=[])


def _changed(change: str) -> str:
    """Return the program with a *change* before it begins."""
    return f"import sys; sys.path.insert(0, sys.argv[1]); {change}; {process._PROGRAM}"


async def _until(condition: Callable[[], bool]) -> None:
    """Wait until something is true that is so soon."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - of other processes
            await trio.sleep(0.01)


@in_trio
async def test_the_process_ends_with_the_version_that_it_reads(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.h5", 0)
    others = set(_children())
    store = opened(tmp_path / "a.h5")
    await store.list("")
    (before,) = set(_children()) - others
    write_sound(tmp_path / "new.h5", 1)
    (tmp_path / "new.h5").replace(tmp_path / "a.h5")
    await store.list("")
    gc.collect()
    await _until(lambda: len(set(_children()) - others) == 1)
    assert before not in _children()
    del store
    gc.collect()
    await _until(lambda: set(_children()) == others)


@pytest.mark.parametrize("number", range(3))
def test_the_process_ends_when_the_source_is_closed(tmp_path: Path, number: int) -> None:
    write_sound(tmp_path / "a.h5", number)
    others = set(_children())
    with shardfs.open(tmp_path / "a.h5") as dataset:
        kept = dataset.filesystem()
        kept.ls("")
        assert len(set(_children()) - others) == 1
    assert set(_children()) == others


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
    "an error that there is not": lambda: _says('{"error": "other", "text": ""}'),
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


ROWS = {
    "chunks outside of the grid": b"".join(number.to_bytes(8, "little") for number in (99, 0, 1, 0)),
    "parts of rows": bytes(33),
}


@pytest.mark.parametrize("name", ROWS)
@in_trio
async def test_an_index_that_is_none_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_sound(tmp_path / "a.h5", 0)
    change = f"from library import file; file.Hdf5File.chunks = lambda self, **_: iter([{ROWS[name]!r}])"
    monkeypatch.setattr(process, "_PROGRAM", _changed(change))
    found = await contents_of(tmp_path / "a.h5")
    with pytest.raises(CorruptionError, match=r"outside of the grid|answered what it may not"):
        await found.find("g/x/c/0/0")


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
    found = await contents_of(tmp_path / "a.h5")
    with pytest.raises(CorruptionError):
        await found.find("x/c/0")
    assert (await found.find("zarr.json")) is not None


# What is damaged within a file, and what is too much.


def write_damaged(path: Path) -> None:
    """A file with a dataset whose header is damaged."""
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
        file["sound"] = np.arange(5)
        at = h5py.h5o.get_info(file["x"].id).addr
    with path.open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff" * 16)


@pytest.mark.parametrize("is_listed", [False, True])
@in_trio
async def test_a_damaged_dataset_is_an_error_before_and_after_its_group_is_listed(
    tmp_path: Path, is_listed: bool
) -> None:
    write_damaged(tmp_path / "a.h5")
    store = opened(tmp_path / "a.h5")
    if is_listed:
        assert {entry.name for entry in await store.list("")} == {"zarr.json", "sound", "x"}
    assert (await store.stat("x")).kind == Kind.DIRECTORY
    assert [entry.name for entry in await store.list("x")] == ["zarr.json"]
    assert (await store.stat("x/zarr.json")).kind == Kind.FILE
    with pytest.raises(CorruptionError, match=r"x/zarr\.json cannot be read: Unable"):
        await store.open("x/zarr.json")
    for look in (store.stat, store.open, store.list):
        with pytest.raises(CorruptionError, match="x cannot be read"):
            await look("x/c/0")
    with pytest.raises(NotFoundError):
        await store.stat("y")
    assert (await store.open("sound/zarr.json")).size


def test_a_group_with_a_damaged_dataset_is_read_but_for_that(tmp_path: Path) -> None:
    write_damaged(tmp_path / "a.h5")
    with shardfs.open(tmp_path / "a.h5") as dataset:
        files = dataset.filesystem()
        assert {name.rpartition("/")[2] for name in files.ls("", detail=False)} == {"zarr.json", "sound", "x"}
        assert len(files.cat_file("sound/c/0")) == 40
        with pytest.raises(CorruptionError, match="cannot be read"):
            files.cat_file("x/zarr.json")


@in_trio
async def test_names_that_no_file_can_have_are_hidden_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("x" * 255, "x" * 256, "ü" * 127, "ü" * 128, "..", ".shardfs", "zarr.json"):
            file[name] = 1
    store = opened(tmp_path / "a.h5")
    assert {entry.name for entry in await store.list("")} == {"zarr.json", "x" * 255, "ü" * 127}
    (message,) = [record.getMessage() for record in caplog.records]
    assert "no file can have 5 names" in message
    assert ".shardfs (no file can have this name); xxx" in str(await store.note())


@in_trio
async def test_more_names_than_are_kept_in_memory_are_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MAX_NAMES", 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(11):
            file[f"g/{number}"] = number
    found = await contents_of(tmp_path / "a.h5")
    with pytest.raises(OversizedDataError, match="g cannot be listed: it has more than 10 names"):
        await found.list("g")
    assert await found.find("g/7/zarr.json") is not None
    assert await found.find("g/77/zarr.json") is None


@in_trio
async def test_of_many_arrays_those_that_are_not_remembered_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_MAX_NODES", 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(25):
            file[f"g/{number:02}"] = np.arange(3)
    found = await contents_of(tmp_path / "a.h5")
    asked = questions(monkeypatch)
    assert len(await found.list("g") or ()) == 26
    assert all([await found.is_directory(f"g/{number:02}") for number in range(25)])
    assert asked == ["begin", "node", "listing"]
    assert len([key async for key in found.walk()]) == 2 + 2 * 25
    assert await found.is_directory("g/24")
    assert not await found.is_directory("g/25")


@in_trio
async def test_an_attribute_that_repeats_itself_without_end_is_skipped(tmp_path: Path) -> None:
    """250,000 elements that are all the same 16 MiB of text: 4 TB."""
    count, length = 2**18 - 1, 2**24 + 12_345
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.attrs.create(
            "large", np.array(["x" * length] + ["marker"] * (count - 1), object), dtype=h5py.string_dtype()
        )
        file.attrs["small"] = 42
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = data.index(length.to_bytes(4, "little"))
    element = data[at : at + 16]
    data[at : at + 16 * count] = element * count
    (tmp_path / "a.h5").write_bytes(data)
    found = await contents_of(tmp_path / "a.h5")
    part = await found.find("zarr.json")
    assert isinstance(part, InlinePart)
    assert json.loads(part.data)["attributes"] == {"small": 42}
