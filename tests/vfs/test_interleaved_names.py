"""Programs that look up, create, rename, link and remove the same names while every call of the store takes time."""

import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from shardfs.errors import ExistsError
from shardfs.stores.local.tree import LocalStore
from shardfs.vfs.handles import ABSENT, Owner
from tests.crash.harness import Process
from tests.crash.histories import make_source, payload_of
from tests.dataset.test_interleaved import Chance
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import find, in_trio, read_file

OWNER = Owner(os.geteuid(), os.getegid())
ROUNDS = 20
EXCLUSIVE = os.O_CREAT | os.O_EXCL | os.O_WRONLY
GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {"by": %d}}'


@dataclass
class Name:
    """A name in a directory, which several programs use; *content* is what the program with a number writes to it."""

    process: Process
    chance: Chance
    directory: int
    name: bytes
    content: Callable[[int], bytes]

    async def is_there(self) -> bool:
        return (await self.process.fs.lookup(self.directory, self.name)).ino != ABSENT

    async def create(self, number: int, *, name: bytes | None = None) -> None:
        """Create the file, write to it, and close it; raises `ExistsError`."""
        handle, _, _ = await self.process.fs.create(self.directory, name or self.name, 0o644, EXCLUSIVE, OWNER)
        await self.chance.let_others(4)
        await self.process.fs.open_files[handle].write(0, self.content(number))
        await self.chance.let_others(4)
        await self.process.fs.open_files[handle].flush()
        await self.process.fs.close(handle)

    async def move_here(self, number: int) -> None:
        """Write beside the name, and move the file there; raises `ExistsError`."""
        fs, beside = self.process.fs, b"%d.partial" % number
        await self.create(number, name=beside)
        try:
            await fs.rename(self.directory, beside, self.directory, self.name, exclusive=True)
        except ExistsError:
            await fs.unlink(self.directory, beside)
            raise

    async def link_here(self, number: int) -> None:
        """Write beside the name, and give the file the name as a second one; raises `ExistsError`."""
        fs, beside = self.process.fs, b"%d.partial" % number
        await self.create(number, name=beside)
        try:
            ino = (await fs.lookup(self.directory, beside)).ino
            await fs.link(ino, self.directory, self.name)
        finally:
            await fs.unlink(self.directory, beside)

    async def read(self) -> bytes:
        return await read_file(self.process.fs, (await self.process.fs.lookup(self.directory, self.name)).ino)

    async def remove(self) -> None:
        await self.process.fs.unlink(self.directory, self.name)


@pytest.fixture(params=range(3))
def chance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Chance:
    chance = Chance(request.param)
    calls = [name for name, method in inspect.getmembers(LocalStore, inspect.iscoroutinefunction) if name[0] != "_"]
    chance.slow(monkeypatch, LocalStore, *calls)
    return chance


async def begin(root: Path, chance: Chance, kind: str) -> Name:
    """Open a source with a name that is free, of a chunk or of a document."""
    make_source(root)
    (root / "new").mkdir()
    process = await Process.start(root, QuickDisk())
    if kind == "document":
        directory = (await find(process.fs, "new")).ino
        return Name(process, chance, directory, b"zarr.json", lambda number: GROUP % number)
    directory = (await find(process.fs, f"{kind}/c")).ino
    return Name(process, chance, directory, b"1", lambda number: payload_of(kind, number + 1))


KINDS = ["end", "nested", "document"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@in_trio
async def test_a_name_is_found_from_its_creation_to_its_removal(tmp_path: Path, chance: Chance, kind: str) -> None:
    name = await begin(tmp_path / "source", chance, kind)
    file: int | None = None  # which one has the name for sure
    is_done = False

    async def write() -> None:
        nonlocal file, is_done
        for number in range(ROUNDS):
            handle, _, _ = await name.process.fs.create(name.directory, name.name, 0o644, EXCLUSIVE, OWNER)
            file = number
            await chance.let_others(8)
            await name.process.fs.open_files[handle].write(0, name.content(number))
            await name.process.fs.open_files[handle].flush()
            await name.process.fs.close(handle)
            await chance.let_others(30)
            file = None
            await name.remove()
        is_done = True

    async def look() -> None:
        while not is_done:
            before = file
            found = await name.is_there()
            assert found or before is None or before != file
            await chance.let_others(3)
            await trio.lowlevel.checkpoint()

    async def commit() -> None:
        while not is_done:
            await chance.let_others(40)
            await name.process.writing.commit()

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for task in (write, look, look, look, commit):
                nursery.start_soon(task)
    chance.is_on = False
    await name.process.finish()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", [("create", "create", "create"), ("create", "move_here", "link_here")])
@in_trio
async def test_of_those_who_want_a_name_for_themselves_one_gets_it(
    tmp_path: Path, chance: Chance, kind: str, ways: tuple[str, ...]
) -> None:
    name = await begin(tmp_path / "source", chance, kind)
    is_done = False

    async def commit() -> None:
        while not is_done:
            await chance.let_others(40)
            await name.process.writing.commit()

    async def take(way: Callable[[int], Awaitable[None]], number: int, winners: list[int]) -> None:
        await chance.let_others(30)
        try:
            await way(number)
        except ExistsError:
            return
        winners.append(number)

    with trio.fail_after(120):
        async with trio.open_nursery() as committing:
            committing.start_soon(commit)
            for turn in range(ROUNDS):
                winners: list[int] = []
                async with trio.open_nursery() as nursery:
                    for number, way in enumerate(ways):
                        nursery.start_soon(take, getattr(name, way), 10 * turn + number, winners)
                assert len(winners) == 1
                assert await name.read() == name.content(winners[0])
                await name.remove()
            is_done = True
    chance.is_on = False
    await name.process.finish()
