"""Histories that are stopped at any call of the disk, recovered, and compared with what may be there."""

import json
import os
import random
import shutil
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import numpy as np
import trio

from shardfs.stores.local.syscalls import Syscalls
from tests.crash.harness import Process, stored
from tests.crash.histories import (
    ARRAYS,
    EMPTY,
    INNER,
    NCHUNKS,
    SHAPE,
    Ledger,
    Operation,
    make_source,
    payload_of,
    values_of,
)
from tests.support.lossy_disk import Choose, Killed, Machine, QuickDisk, State, newest, oldest
from tests.support.readers import READERS, assert_same

IS_LONG = bool(os.environ.get("SHARDFS_LONG"))
NATIVE_EVERY = 1 if IS_LONG else 10

REFUSED = {("tensorstore", "encoded")}
"""Readers that read no array like that."""

op = Operation

Recovery = Callable[[Path, Syscalls], Awaitable[None]]
"""What is done to the source at a path."""

STORED = [op("put", path, (0, 1, 2, 4), 1) for path in ARRAYS] + [op("commit")]

FILE_SYSTEMS = [{"at_once": True}, {"at_once": False, "clones": True}, {"at_once": False}]
"""How appends are made: by direct writes, to clones, or by ordinary writes."""


def make_template(root: Path) -> None:
    """Make a source where every array has the chunks 0, 1, 2 and 4."""
    make_source(root)
    for v2 in (False, True):
        begin = [operation for operation in STORED if not operation.path or (operation.path == "unsharded") == v2]
        trio.run(live, root, QuickDisk(), begin, Ledger(ARRAYS), v2)


def ledger(paths: Collection[str]) -> Ledger:
    """What the template holds of some arrays."""
    made = Ledger(paths)
    for operation in STORED:
        if operation.path in paths:
            made.begin(operation)
            for number in operation.chunks:
                made.publish(number)
            made.end()
    made.sync()
    return made


async def live(root: Path, disk: Syscalls, history: Sequence[Operation], book: Ledger, v2: bool) -> None:
    process = await Process.start(root, disk, v2=v2)
    for operation in history:
        book.begin(operation)
        await _do(process, operation, book)
        book.end()
    await process.finish()


async def _do(process: Process, operation: Operation, book: Ledger) -> None:
    path, seed = operation.path, operation.seed
    match operation.what:
        case "put" | "empty" | "rename" | "erase":
            for number in operation.chunks:
                now = operation.seed_of(number)
                if now is None:
                    await process.remove(path, number)
                elif operation.what == "rename":
                    await process.write_beside(path, number, payload_of(path, now))
                else:
                    await process.write(path, number, payload_of(path, now))
                book.publish(number)
        case "resize":
            await process.edit(path, lambda document: document.update(shape=[operation.shape]))
        case "label":
            await process.edit(path, lambda document: document.update(attributes={"label": seed}))
        case "sync":
            await process.sync()
        case "clean":
            await process.clean()
        case _:
            await process.commit()


async def recover(root: Path, disk: Syscalls, v2: bool) -> None:
    process = await Process.start(root, disk, v2=v2)
    process.check_done()
    await process.finish()


class Crashes:
    """One history, which is stopped again and again at other calls, always from the same beginning."""

    def __init__(self, directory: Path, template: Path, history: Sequence[Operation], chance: random.Random) -> None:
        self.directory, self.template, self.history, self.chance = directory, template, history, chance
        self.paths = sorted({operation.path for operation in history if operation.path})
        self.v2 = "unsharded" in self.paths
        self.checks = 0
        self.checked: set[tuple[State, Ledger, bool, Recovery | None]] = set()
        self.kind = chance.choice(FILE_SYSTEMS)

    def begin(self) -> tuple[Path, Machine, Ledger]:
        for name in os.listdir(self.directory):
            shutil.rmtree(self.directory / name)
        root = self.directory / "source"
        shutil.copytree(self.template, root, ignore=lambda _, names: {*names} & {*ARRAYS} - {*self.paths})
        return root, Machine(root, **self.kind), ledger(self.paths)

    def whole(self) -> tuple[Machine, Ledger]:
        """Run the history to its end; it can be looked at as it was at every call."""
        root, machine, book = self.begin()
        book.follow(lambda: len(machine.calls))
        trio.run(live, root, machine, self.history, book, self.v2)
        return machine, book

    def after(self, name: str = "after") -> Path:
        """Where a state may be built."""
        after = self.directory / name
        shutil.rmtree(after, ignore_errors=True)
        return after

    @staticmethod
    def kills(machine: Machine) -> list[int]:
        """Numbers of the calls before which it may be killed, and the end; before a sync is as after it."""
        syncs = [call.name.startswith("sync") for call in machine.calls]
        return [at for at, is_sync in enumerate([*syncs, False]) if not is_sync]

    def any_choice(self) -> Choose:
        return self.chance.choice([oldest, newest, self.chance.randrange, self.chance.randrange])

    def any_part(self) -> int:
        """How much of the last write is done."""
        return self.chance.choice([0, 0, self.chance.randrange(1, 8000)])

    def live(self, root: Path, machine: Machine, book: Ledger, at: int) -> bool:
        """Run the history up to the call *at*; return whether that was before its end."""
        machine.kill_at(at, self.any_part())
        return is_killed(machine, lambda: trio.run(live, root, machine, self.history, book, self.v2))

    def recover(self, root: Path, machine: Machine, after: int | None = None) -> bool:
        """Recover, up to the call of this number; return whether that was before the end."""
        if after is not None:
            machine.kill_at(len(machine.calls) + after, self.chance.choice([0, self.chance.randrange(1, 8000)]))
        killed = is_killed(machine, lambda: trio.run(recover, root, machine, self.v2))
        machine.restart()
        return killed

    def check(self, root: Path, book: Ledger, *, power_cut: bool, left: tuple[str, ...] = ()) -> None:
        """Recover for good, and compare; files with such ends to their names may be left behind."""
        trio.run(recover, root, QuickDisk(), self.v2)
        self.checks += 1
        check_left_behind(root, power_cut=power_cut, left=left)
        check_content(root, book, power_cut=power_cut, natively=self.checks % NATIVE_EVERY == 0)

    def check_state(self, state: State, book: Ledger, *, power_cut: bool, first: Recovery | None = None) -> None:
        """Do the same with a state that is built for it, in which *first* something is done.

        Once is enough, as the result depends on nothing else: most calls of the disk change nothing that may be left.
        """
        checked = (state, book, power_cut, first)
        if checked not in self.checked:
            self.checked.add(checked)
            after = self.after()
            state.build(after)
            if first is not None:
                trio.run(first, after, QuickDisk())
            self.check(after, book, power_cut=power_cut)


def is_killed(machine: Machine, life: Callable[[], None]) -> bool:
    """Run a process; return whether it was killed."""
    ended = []
    try:
        life()
    except* Killed as group:
        ended.append(group)
        machine.restart()
    return bool(ended)


def check_content(root: Path, book: Ledger, *, power_cut: bool, natively: bool) -> None:
    for path in book.paths:
        document = json.loads((root / path / "zarr.json").read_bytes())
        shape = document["shape"][0]
        assert shape in book.allowed_shapes(path), f"{path} has the shape {shape}"
        assert document["attributes"].get("label", 0) in book.allowed_labels(path)
        values = np.zeros(SHAPE, np.uint8)
        allowed = {n: book.allowed((path, n), shape, power_cut=power_cut) for n in range(NCHUNKS)}
        # As large as it ever was: what was outside the shape must not come back.
        (root / path / "zarr.json").write_text(json.dumps({**document, "shape": [SHAPE]}))
        if path == "unsharded":
            files = [root / path / f"c/{number}" for number in range(NCHUNKS)]
            chunks = [file.read_bytes() if file.exists() else None for file in files]
        else:
            chunks = trio.run(stored, root, path, range(NCHUNKS))
        for number, found in enumerate(chunks):
            seeds = {payload_of(path, seed) if seed is not None else None: seed for seed in allowed[number]}
            assert found in seeds, f"chunk {number} of {path}: {describe(found)}, not one of {allowed[number]}"
            seed = seeds[found]
            natively = natively and seed != EMPTY
            if seed is not None:
                values[number * INNER : (number + 1) * INNER] = np.frombuffer(values_of(seed), np.uint8)
        if natively:
            for name, reader in READERS.items():
                if (name, path) not in REFUSED:
                    assert_same(reader(root / path), values)


def describe(found: bytes | None) -> str:
    return "nothing" if found is None else f"{len(found)} bytes {found[:8].hex()}"


def check_left_behind(root: Path, *, power_cut: bool, left: tuple[str, ...]) -> None:
    state = [path for path in (root / ".shardfs").rglob("*") if path.is_file() and "scratch" not in path.parts]
    beside = [path for path in root.glob("*/c/*") if path.is_file() and not path.name.isdecimal()]
    if power_cut:  # a damaged segment is kept, and its slot; what a lock is known to be of the next commit takes over
        kept = {above / "lock" for path in state if path.suffix == ".damaged" for above in path.parents}
        state = [path for path in state if path.suffix != ".damaged" and path not in kept]
        beside = [path for path in beside if not path.stat().st_mode & stat.S_ISVTX and path.parts[-3] == "unsharded"]
    names = [str(path) for path in [*state, *beside] if not path.name.endswith(left)]
    assert not names, f"left behind: {names}"
