"""Renames of which any call of the store fails: the old name stays as it was, with the files that are open."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from shardfs.dataset.journal.journal import Journal
from shardfs.errors import ShardfsError, StaleError, StoreError
from shardfs.stores.local.tree import LocalStore
from shardfs.vfs.handles import ABSENT
from tests.crash.harness import Process
from tests.crash.histories import make_source, payload_of
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import find, in_trio, read_file

GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {"of": "%s"}}'


class Faults:
    """Counts calls of the store and of the journal, and lets that with the number *failing* fail.

    Calls of one name right after each other count as one. If one that fails *takes_effect*, it does first what it
    should: the answer was lost.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ncalls = 0
        self.failing = 0
        self.takes_effect = False
        self.failed = self.last = ""
        for name, method in inspect.getmembers(LocalStore, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                monkeypatch.setattr(LocalStore, name, self._asking(name, method))
        append = Journal.append

        def failing(*args: Any, **options: Any) -> Any:
            if self._fails("append"):
                raise StoreError("the journal fails, says the test")
            return append(*args, **options)

        monkeypatch.setattr(Journal, "append", failing)

    def begin(self, failing: int, *, takes_effect: bool = False) -> None:
        self.ncalls, self.failing, self.takes_effect = 0, failing, takes_effect
        self.failed = self.last = ""

    def end(self) -> None:
        self.failing = 0

    def _fails(self, name: str) -> bool:
        if not self.failing or name == self.last:
            return False
        self.last = name
        self.ncalls += 1
        if self.ncalls != self.failing:
            return False
        self.failed = name
        return True

    def _asking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        async def ask(*args: Any, **options: Any) -> Any:
            fails = self._fails(name)
            if fails and not self.takes_effect:
                raise StoreError(f"{name} fails, says the test")
            answer = await method(*args, **options)
            if fails:
                raise StoreError(f"the answer to {name} is lost, says the test")
            return answer

        return ask


@dataclass(frozen=True)
class Rename:
    """A file, or a directory with a *file* in it, and its new name; *content* makes contents of both.

    *replaces*: there is a file with the new name. *is_followed*: who writes to the file goes on under the new name.
    """

    old: str
    new: str
    content: Callable[[str], bytes] = lambda text: text.encode()
    file: str = ""
    replaces: bool = True
    is_followed: bool = False


def chunk(text: str) -> bytes:
    return payload_of("unchecked", sum(text.encode()))


RENAMES = {
    "a chunk": Rename("unchecked/c/0", "unchecked/c/5", chunk),
    "a chunk to a free name": Rename("unchecked/c/0", "unchecked/c/5", chunk, replaces=False),
    "a chunk to another array": Rename("unchecked/c/0", "start/c/1", chunk),
    "a chunk to a file": Rename("unchecked/c/0", "saved", chunk),
    "a scratch file to a chunk": Rename("unchecked/c/0.partial", "unchecked/c/0", chunk),
    "a file to a chunk": Rename("saved", "unchecked/c/0", chunk, replaces=False),
    "a file": Rename("notes", "others", is_followed=True),
    "a file to a document": Rename("notes", "zarr.json", lambda text: GROUP % text.encode()),
    "a document": Rename("a/zarr.json", "b/zarr.json", lambda text: GROUP % text.encode(), replaces=False),
    "a document to a file": Rename("a/zarr.json", "a/saved", lambda text: GROUP % text.encode()),
    "a directory": Rename("nested", "moved", file="/c/3", replaces=False),
}


async def write(process: Process, path: str, data: bytes) -> None:
    directory, _, name = path.rpartition("/")
    await process.write_file((await find(process.fs, directory)).ino if directory else 1, name.encode(), data)


async def read(process: Process, path: str) -> bytes | None:
    found = await find(process.fs, path)
    return None if found.ino == ABSENT else await read_file(process.fs, found.ino)


async def rename(process: Process, old: str, new: str) -> None:
    (above, _, name), (new_above, _, new_name) = old.rpartition("/"), new.rpartition("/")
    parent = (await find(process.fs, above)).ino if above else 1
    new_parent = (await find(process.fs, new_above)).ino if new_above else 1
    await process.fs.rename(parent, name.encode(), new_parent, new_name.encode(), exclusive=False)


async def begin(root: Path, case: Rename) -> Process:
    make_source(root)
    for directory in "ab":
        (root / directory).mkdir()
    process = await Process.start(root, QuickDisk())
    await write(process, case.old + case.file, case.content("old"))
    if case.replaces:
        await write(process, case.new, case.content("replaced"))
    return process


@pytest.mark.parametrize("case", RENAMES.values(), ids=RENAMES)
@in_trio
async def test_a_rename_that_fails_leaves_the_old_name_and_its_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Rename
) -> None:
    faults = Faults(monkeypatch)
    failing, old, file = 0, case.content("old"), case.old + case.file
    was_reached = True
    while was_reached:
        failing += 1
        process = await begin(tmp_path / str(failing), case)
        ino = (await find(process.fs, file)).ino
        _, reader = await process.fs.open(ino)
        writing, _ = await process.fs.open_to_write(ino, os.O_WRONLY)
        writer = process.fs.open_files[writing]
        faults.begin(failing)
        try:
            await rename(process, case.old, case.new)
        except ShardfsError:
            faults.end()
            assert await read(process, file) == old, faults.failed
            assert bytes(await reader.read(0, len(old))) == old, faults.failed
            if case.replaces:
                assert await read(process, case.new) in (old, case.content("replaced")), faults.failed
            await writer.truncate(0)
            await writer.write(0, case.content("written"))
            await writer.flush()
            assert await read(process, file) == case.content("written"), faults.failed
            assert (await find(process.fs, file)).size == len(case.content("written")), faults.failed
            assert await read(process, case.new + case.file) != case.content("written"), faults.failed
            await rename(process, case.old, case.new)
            assert await read(process, file) is None, faults.failed
            assert await read(process, case.new + case.file) == case.content("written"), faults.failed
        else:
            was_reached = faults.failed != ""
            faults.end()
            assert await read(process, file) is None, faults.failed
            assert await read(process, case.new + case.file) == old, faults.failed
            if not case.is_followed:
                with pytest.raises(StaleError):
                    await writer.write(0, b"late")
    assert failing > 2


@pytest.mark.parametrize("case", RENAMES.values(), ids=RENAMES)
@in_trio
async def test_content_is_found_under_one_name_though_an_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Rename
) -> None:
    faults = Faults(monkeypatch)
    failing, has_failed = 0, True
    while has_failed:
        failing += 1
        process = await begin(tmp_path / str(failing), case)
        faults.begin(failing, takes_effect=True)
        try:
            await rename(process, case.old, case.new)
        except ShardfsError:
            faults.end()
        else:
            has_failed = faults.failed != ""
            faults.end()
        contents = [await read(process, path + case.file) for path in (case.old, case.new)]
        assert case.content("old") in contents, faults.failed
        await process.finish()
