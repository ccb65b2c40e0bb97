"""What is left of a dataset that was being written, wherever the process or the machine stopped.

Every call that changes the disk is one where it stops, those of a recovery too.  After a kill all is there that was
published; after a power cut all that was published before a sync that returned; what came later is there or not, but
whole.  Everything is in shards then that any reader understands, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
import trio

from shardfs.dataset.source import Source
from shardfs.stores.durable import Disk
from shardfs.stores.local import LocalStore
from tests.support.crashing import (
    ARRAYS,
    INNER,
    NCHUNKS,
    SHAPE,
    Ledger,
    Machine,
    Operation,
    Process,
    QuickDisk,
    make_source,
    payload_of,
    values_of,
)
from tests.support.lossy_disk import Killed, oldest
from tests.support.readers import READERS, assert_same

IS_LONG = bool(os.environ.get("SHARDFS_LONG"))
RANDOM_HISTORIES = 1500 if IS_LONG else 90
NATIVE_EVERY = 1 if IS_LONG else 8

REFUSED = {("tensorstore", "encoded")}
"""Readers that read no array like that."""

op = Operation


SHORT = {
    "append": [op("put", "{}", (1,), 10), op("sync"), op("put", "{}", (2, 5), 20), op("commit")],
    "overwrite a whole shard": [op("put", "{}", (0, 1, 2, 3), 10), op("commit")],
    "erase all of a shard": [op("erase", "{}", (0, 1, 2)), op("commit"), op("put", "{}", (1,), 10), op("commit")],
    "replace what is pending": [
        op("put", "{}", (1,), 10),
        op("sync"),
        op("put", "{}", (1,), 20),
        op("erase", "{}", (0,)),
        op("commit"),
    ],
    "shrink and grow": [
        op("put", "{}", (5,), 10),
        op("resize", "{}", shape=INNER + 5),
        op("resize", "{}", shape=SHAPE),
        op("put", "{}", (2,), 20),
        op("commit"),
    ],
    "carry forward": [
        op("put", "{}", (0, 3), 10),
        op("erase", "{}", (1,)),
        op("put", "{}", (0,), 20),
        op("sync"),
        op("clean"),
        op("put", "{}", (3,), 30),
        op("clean"),
        op("commit"),
    ],
    "beside and rename": [op("rename", "{}", (3,), 10), op("label", "{}", seed=7), op("commit")],
}
"""Histories of one array, which has the chunks 0, 1, 2 and 4 at the beginning."""


FILE_SYSTEMS = [{"at_once": True}, {"at_once": False, "clones": True}, {"at_once": False}]
"""How appends are made: by direct writes, to clones, or by ordinary writes."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source where every array has the chunks 0, 1, 2 and 4."""
    root = tmp_path_factory.mktemp("crashes") / "template"
    make_source(root)
    trio.run(_live, root, QuickDisk(), STORED, Ledger(ARRAYS))
    (root / ".shardfs/journal").mkdir(exist_ok=True)
    return root


STORED = [op("put", path, (0, 1, 2, 4), 1) for path in ARRAYS] + [op("commit")]


def ledger(paths: Collection[str]) -> Ledger:
    """What the template holds of some arrays."""
    made = Ledger(paths)
    for operation in STORED:
        if operation.path not in paths:
            continue
        made.begin(operation)
        for number in operation.chunks:
            made.publish(operation.path, number, operation.seed + number)
        made.end()
    return made


async def _live(root: Path, disk: Disk, history: Sequence[Operation], book: Ledger) -> None:
    process = await Process.start(root, disk)
    for operation in history:
        await process.run(operation, book)
    await process.writing.finish()


async def _recover(root: Path, disk: Disk) -> None:
    process = await Process.start(root, disk)
    assert process.writing.writer.committer.npending == 0
    assert not process.writing.journal.live
    assert not process.writing.conflicts.live, "nobody else changed anything"
    await process.writing.finish()


def is_killed(machine: Machine, life: Callable[[], None]) -> bool:
    """Run a process; return whether it was killed."""
    try:
        life()
    except Killed:
        machine.restart()
        return True
    return False


class Crashes:
    """One history, which is stopped again and again at other calls, always from the same beginning."""

    def __init__(self, directory: Path, template: Path, history: Sequence[Operation], chance: random.Random) -> None:
        self.directory, self.template, self.history, self.chance = directory, template, history, chance
        self.paths = sorted({operation.path for operation in history if operation.path})
        self.checks = 0
        self.kind = chance.choice(FILE_SYSTEMS)

    def begin(self) -> tuple[Path, Machine, Ledger]:
        for name in os.listdir(self.directory):
            shutil.rmtree(self.directory / name)
        root = self.directory / "source"
        shutil.copytree(self.template, root, ignore=lambda _, names: {*names} & {*ARRAYS} - {*self.paths})
        return root, Machine(root, **self.kind), ledger(self.paths)

    def ncalls(self) -> int:
        root, machine, book = self.begin()
        trio.run(_live, root, machine, self.history, book)
        self.check(root, book, power_cut=False)
        return len(machine.calls)

    def live(self, root: Path, machine: Machine, book: Ledger, at: int) -> bool:
        """Run the history up to the call *at*; return whether that was before its end."""
        machine.kill_at(at, self.chance.choice([0, 0, self.chance.randrange(1, 8000)]))
        return is_killed(machine, lambda: trio.run(_live, root, machine, self.history, book))

    def recover(self, root: Path, machine: Machine, after: int | None = None) -> bool:
        """Recover, up to the call of this number; return whether that was before the end."""
        if after is not None:
            machine.kill_at(len(machine.calls) + after, self.chance.choice([0, self.chance.randrange(1, 8000)]))
        killed = is_killed(machine, lambda: trio.run(_recover, root, machine))
        machine.restart()
        return killed

    def cut_power(self, root: Path, machine: Machine, calls: int) -> Path:
        after = self.directory / "after"
        choose = self.chance.choice([lambda n: 0, lambda n: n - 1, self.chance.randrange, self.chance.randrange])
        machine.after_power_cut(after, choose, calls, keeps_inodes=True)
        return after

    def check(self, root: Path, book: Ledger, *, power_cut: bool) -> None:
        """Recover for good, and compare."""
        trio.run(_recover, root, QuickDisk())
        self.checks += 1
        check_left_behind(root, power_cut=power_cut)
        natively = self.checks % NATIVE_EVERY == 0
        trio.run(check_content, root, book, power_cut, natively)


async def check_content(root: Path, book: Ledger, power_cut: bool, natively: bool) -> None:
    source = Source.of(LocalStore(str(root)), ttl=0.0)
    for path in book.paths:
        document = json.loads((root / path / "zarr.json").read_bytes())
        shape = document["shape"][0]
        assert shape in book.allowed_shapes(path), f"{path} has the shape {shape}"
        assert document["attributes"].get("label", 0) in book.allowed_labels(path)
        values = np.zeros(SHAPE, np.uint8)
        allowed = {n: book.allowed((path, n), shape, power_cut=power_cut) for n in range(NCHUNKS)}
        # As large as it ever was: what was outside the shape must not come back.
        (root / path / "zarr.json").write_text(json.dumps({**document, "shape": [SHAPE]}))
        array = (await source.hierarchy.node(path)).array
        assert array is not None
        for number in range(NCHUNKS):
            extent = await array.extent((number,))
            found = bytes(await extent.read(0, extent.nbytes)) if extent is not None else None
            seeds = {payload_of(path, seed) if seed is not None else None: seed for seed in allowed[number]}
            assert found in seeds, f"chunk {number} of {path}: {describe(found)}, not one of {allowed[number]}"
            seed = seeds[found]
            if seed is not None:
                values[number * INNER : (number + 1) * INNER] = np.frombuffer(values_of(seed), np.uint8)
        if natively:
            for name, reader in READERS.items():
                if (name, path) not in REFUSED:
                    assert_same(reader(root / path), values)


def describe(found: bytes | None) -> str:
    return "nothing" if found is None else f"{len(found)} bytes {found[:8].hex()}"


def check_left_behind(root: Path, *, power_cut: bool) -> None:
    names = [path for path in (root / ".shardfs").rglob("*") if path.is_file() and "scratch" not in path.parts]
    if power_cut:  # a damaged segment is kept
        names = [path for path in names if path.suffix != ".damaged"]
    assert not names, f"left behind: {names}"


def of_array(history: Sequence[Operation], path: str) -> list[Operation]:
    return [Operation(o.what, path if o.path else "", o.chunks, o.seed, o.shape) for o in history]


@pytest.mark.parametrize("path", ARRAYS)
@pytest.mark.parametrize("name", SHORT)
def test_a_process_killed_at_any_call_leaves_what_it_published(
    template: Path, tmp_path: Path, name: str, path: str
) -> None:
    crashes = Crashes(tmp_path, template, of_array(SHORT[name], path), random.Random(f"{name} {path}"))
    for at in range(crashes.ncalls()):
        root, machine, book = crashes.begin()
        assert crashes.live(root, machine, book, at)
        crashes.check(root, book, power_cut=False)


@pytest.mark.parametrize("path", ARRAYS)
@pytest.mark.parametrize("name", SHORT)
def test_a_power_cut_at_any_call_leaves_what_was_synced(template: Path, tmp_path: Path, name: str, path: str) -> None:
    crashes = Crashes(tmp_path, template, of_array(SHORT[name], path), random.Random(f"{name} {path}"))
    for at in range(crashes.ncalls()):
        for _ in range(20 if IS_LONG else 1):
            root, machine, book = crashes.begin()
            assert crashes.live(root, machine, book, at)
            crashes.check(crashes.cut_power(root, machine, at), book, power_cut=True)


@pytest.mark.parametrize("path", ARRAYS)
def test_a_recovery_killed_at_any_call_is_done_by_the_next(template: Path, tmp_path: Path, path: str) -> None:
    history = of_array(SHORT["replace what is pending"], path)
    crashes = Crashes(tmp_path, template, history, random.Random(path))
    ncalls = crashes.ncalls()
    for at in range(ncalls) if IS_LONG else sorted(crashes.chance.sample(range(ncalls), 3)):
        after, killed = 0, True
        while killed:
            root, machine, book = crashes.begin()
            assert crashes.live(root, machine, book, at)
            killed = crashes.recover(root, machine, after)
            crashes.check(root, book, power_cut=False)
            after += 1


@pytest.mark.parametrize("name", ["append", "overwrite a whole shard", "erase all of a shard"])
def test_what_a_recovery_brought_into_shards_is_durable(template: Path, tmp_path: Path, name: str) -> None:
    crashes = Crashes(tmp_path, template, of_array(SHORT[name], "end"), random.Random(name))
    for at in range(crashes.ncalls()):
        root, machine, book = crashes.begin()
        assert crashes.live(root, machine, book, at)
        assert not crashes.recover(root, machine)
        after = tmp_path / "after"
        machine.after_power_cut(after, oldest, keeps_inodes=True)
        crashes.check(after, book, power_cut=False)


def test_random_histories_of_kills_recoveries_and_power_cuts(template: Path, tmp_path: Path) -> None:
    for seed in range(RANDOM_HISTORIES):
        stop_somewhere(template, tmp_path, seed)


def stop_somewhere(template: Path, directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    crashes = Crashes(directory, template, random_history(chance), chance)
    root, machine, book = crashes.begin()
    try:
        killed = crashes.live(root, machine, book, chance.randrange(10, 220))
        stop = len(machine.calls) - killed
        while killed and chance.random() < 0.6:
            killed = crashes.recover(root, machine, chance.randrange(30) if chance.random() < 0.6 else None)
            if not killed:
                book.sync()  # a recovery that ends leaves nothing to be lost
            stop = len(machine.calls) - killed
        power_cut = chance.random() < 0.6
        if power_cut:
            root = crashes.cut_power(root, machine, stop)
        crashes.check(root, book, power_cut=power_cut)
    except BaseException as error:
        error.add_note(f"seed {seed}, history {crashes.history}")
        raise


def random_history(chance: random.Random) -> list[Operation]:
    history: list[Operation] = []
    shapes = dict.fromkeys(ARRAYS, SHAPE)
    paths = chance.sample(list(ARRAYS), chance.choice([1, 2, 5]))
    for step in range(chance.randrange(4, 20)):
        path = chance.choice(paths)
        chunks = range(-(-shapes[path] // INNER))
        seed = 100 * (step + 1)
        what = chance.choice(
            ["put", "put", "put", "full", "erase", "rename", "sync", "commit", "label", "resize", "clean"]
        )
        match what:
            case "put" | "erase":
                some = tuple(sorted(chance.sample(chunks, chance.randrange(1, min(4, len(chunks)) + 1))))
                history.append(Operation(what, path, some, seed))
            case "full":
                some = tuple(n for n in chunks if n // 4 == 0)
                history.append(Operation("put", path, some, seed))
            case "rename":
                history.append(Operation(what, path, (chance.choice(chunks),), seed))
            case "label":
                history.append(Operation(what, path, seed=seed))
            case "resize":
                shapes[path] = chance.choice([SHAPE, SHAPE, INNER * 4, INNER + 5, INNER * 6 - 1])
                history.append(Operation(what, path, shape=shapes[path]))
            case _:
                history.append(Operation(what))
    return history
