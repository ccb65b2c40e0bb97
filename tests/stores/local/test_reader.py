"""Reads of local files: exact bytes of one version or `StaleError`; what is not there is told from what is damaged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError, StaleError
from shardfs.stores.local.reader import LocalSnapshot
from shardfs.stores.local.tree import LocalStore
from tests.support.datasets import LONG_AGO, age
from tests.support.opened import in_trio

CONTENT = bytes(i * 7 % 251 for i in range(300_000))
OLD = b"old content, " * 100


@pytest.mark.parametrize("is_in_memory", [False, True])
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_any_range_is_read_exactly(is_in_memory: bool, data: st.DataObject) -> None:
    """Also on tmpfs, which knows no RWF_NOWAIT, and where the page cache has nothing."""
    offset = data.draw(st.integers(0, len(CONTENT)))
    nbytes = data.draw(st.integers(0, len(CONTENT) - offset))

    async def read(directory: str) -> None:
        snapshot = await LocalStore(directory).open("file")
        assert snapshot.size == len(CONTENT)
        assert bytes(await snapshot.read(offset, nbytes)) == CONTENT[offset : offset + nbytes]

    with tempfile.TemporaryDirectory(dir="/dev/shm" if is_in_memory else None) as directory:
        with Path(directory, "file").open("wb") as file:
            file.write(CONTENT)
            file.flush()
            if data.draw(st.booleans()):
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        trio.run(read, directory)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("gone/f", NotFoundError),
        ("dangling", CorruptionError),
        ("pipe", CorruptionError),
        ("d/f/x", NotADirectoryHereError),
        ("d/" + "x" * 300 + "/f", NotFoundError),
        ("/".join(["x" * 200] * 30), NotFoundError),
        ("a\0b", NotFoundError),
        ("\ud800", NotFoundError),
    ],
    ids=lambda value: ascii(value)[:20],
)
@in_trio
async def test_what_is_not_there_is_told_from_what_is_damaged(
    tmp_path: Path, key: str, expected: type[Exception]
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(str(tmp_path))
    with pytest.raises(expected):
        await store.open(key)
    with pytest.raises(NotADirectoryHereError if key == "pipe" else expected):
        await store.list(key)


# Versions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    age(tmp_path)
    return path


async def opened(path: Path) -> LocalSnapshot:
    return await LocalStore(str(path.parent)).open(path.name)


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def append(path: Path, data: bytes = b"appended") -> None:
    write(path, path.stat().st_size, data)


def shorten(path: Path) -> None:
    """Make the file shorter, under its old time."""
    os.truncate(path, len(OLD) - 1)
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


CHANGES: dict[str, Callable[[Path], object]] = {
    "touch": os.utime,
    "overwrite": lambda path: write(path, 3, b"x"),
    "append": append,
    "shorten": shorten,
    "empty": lambda path: os.truncate(path, 0),
    "replace": lambda path: path.write_bytes(b"new content, " * 100),
}


@pytest.mark.parametrize("name", CHANGES)
@in_trio
async def test_a_change_in_place_is_stale(path: Path, name: str) -> None:
    snapshot = await opened(path)
    os.chmod(path, 0o600)
    os.link(path, path.parent / "other")
    assert bytes(await snapshot.read(0, len(OLD))) == OLD, "another name is no change"
    CHANGES[name](path)
    for _ in range(2):
        with pytest.raises(StaleError):
            await snapshot.read(0, 5)
        assert not await snapshot.is_current()
        assert name == "append" or not await snapshot.accept_growth(100, OLD[100:200])


@in_trio
async def test_growth_that_left_the_content_is_accepted(path: Path) -> None:
    snapshot = await opened(path)
    for _ in range(2):
        append(path)
        with pytest.raises(StaleError):
            await snapshot.read(0, 5)
        assert await snapshot.accept_growth(100, OLD[100:200])
        assert bytes(await snapshot.read(0, len(OLD) + 8)) == OLD + b"appended"
    write(path, 150, b"!")
    append(path)
    assert not await snapshot.accept_growth(100, OLD[100:200])
    with pytest.raises(StaleError):
        await snapshot.read(0, 5)
