"""Calls that read or write less than they are asked for, as those for 2 GiB do, or some file systems after a signal."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.kept_files import KeptFile
from shardfs.stores.local.syscalls import SYSCALLS
from shardfs.stores.local.tree import LocalStore
from shardfs.vfs.write_buffer import BufferBytes, BufferSpace
from tests.dataset.test_journal import contents_of, opened, put
from tests.support.opened import in_trio

CONTENT = bytes(range(100))
_AT_MOST = 3


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call read or write more than a few bytes."""
    pread, preadv, pwrite, pwritev = os.pread, os.preadv, os.pwrite, os.pwritev

    def first(buffers: Sequence[Buffer]) -> list[memoryview]:
        return [memoryview(next(buffer for buffer in buffers if len(memoryview(buffer))))[:_AT_MOST]]

    monkeypatch.setattr(os, "pread", lambda fd, nbytes, offset: pread(fd, min(nbytes, _AT_MOST), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, *more: preadv(fd, first(buffers), *more))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, memoryview(data)[:_AT_MOST], offset))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: pwritev(fd, first(buffers), offset))


@in_trio
async def test_a_file_is_read_whole_and_its_growth_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    snapshot = await LocalStore(str(tmp_path)).open("f")
    assert bytes(await snapshot.read(10, 80)) == CONTENT[10:90]
    assert snapshot.read_if_current(10, 80, waits=True) == CONTENT[10:90]
    with (tmp_path / "f").open("ab") as file:
        file.write(b"more")
    assert await snapshot.accept_growth(50, CONTENT[50:])


def test_all_is_written(tmp_path: Path) -> None:
    file = Descriptor(os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT))
    SYSCALLS.pwrite(file.fd, [CONTENT[:10], b"", CONTENT[10:]], 0)
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_what_is_kept_or_being_written_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    assert KeptFile("f", str(tmp_path / "f"), 100, 0, "").read(1, 90) == CONTENT[1:91]
    buffer = BufferBytes(BufferSpace(str(tmp_path), memory=2**40))
    buffer.write(0, CONTENT)
    assert bytes(buffer.read(1, 90)) == CONTENT[1:91]


def test_a_journal_is_read_whole_and_without_damage(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(3):
        put(log, CONTENT, coords=(number,))
    log.sync()
    contents = contents_of(tmp_path)
    assert not contents.damage
    assert [record.payload.read(0, 100) for record in contents.records] == [CONTENT] * 3  # type: ignore[union-attr]
