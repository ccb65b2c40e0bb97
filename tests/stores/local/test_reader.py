"""A directory of this machine as a store: names, states, bytes, errors."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, NotADirectoryHereError, NotFoundError
from shardfs.stores.base import Descriptor, Kind
from shardfs.stores.local import reader
from shardfs.stores.local.syscalls import open_beneath
from shardfs.stores.local.tree import LocalStore
from shardfs.stores.ttl import one_request
from tests.support.opened import in_trio

CONTENT = bytes(i * 7 % 251 for i in range(300_000))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "link").symlink_to("d/f")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    return LocalStore(str(tmp_path))


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on tmpfs, which knows no RWF_NOWAIT."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@in_trio
async def test_states_are_those_of_the_names_themselves(store: LocalStore, tmp_path: Path) -> None:
    for key in ("d", "d/f", "empty", "link", "dangling", "pipe", ""):
        expected = os.lstat(tmp_path / key)
        status = await store.stat(key)
        assert (status.mode, status.size, status.nlink) == (expected.st_mode, expected.st_size, expected.st_nlink)
        assert (status.uid, status.gid, status.rdev) == (expected.st_uid, expected.st_gid, expected.st_rdev)
        times = (expected.st_atime_ns, expected.st_mtime_ns, expected.st_ctime_ns)
        assert (status.atime_ns, status.mtime_ns, status.ctime_ns) == times
    kinds = [(await store.stat(key)).kind for key in ("", "d", "d/f", "link", "pipe")]
    assert kinds == [Kind.DIRECTORY, Kind.DIRECTORY, Kind.FILE, Kind.SYMLINK, Kind.SPECIAL]


@pytest.mark.parametrize("place", ["tmp_path", "in_memory"])
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_any_range_is_read_exactly(place: str, request: pytest.FixtureRequest, data: st.DataObject) -> None:
    path = request.getfixturevalue(place) / "file"
    path.write_bytes(CONTENT)
    offset = data.draw(st.integers(0, len(CONTENT)))
    nbytes = data.draw(st.integers(0, len(CONTENT) - offset))

    async def read() -> None:
        snapshot = await LocalStore(str(path.parent)).open("file")
        assert snapshot.size == len(CONTENT)
        assert bytes(await snapshot.read(offset, nbytes)) == CONTENT[offset : offset + nbytes]

    trio.run(read)


@in_trio
async def test_what_the_page_cache_has_not_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "cold"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    snapshot = await LocalStore(str(tmp_path)).open("cold")
    assert bytes(await snapshot.read(0, len(CONTENT))) == CONTENT


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("gone", NotFoundError),
        ("gone/f", NotFoundError),
        ("dangling", CorruptionError),
        ("pipe", CorruptionError),
        ("d/f/x", NotADirectoryHereError),
        ("empty/x/y", NotADirectoryHereError),
        ("x" * 300, NotFoundError),
        ("d/" + "x" * 300 + "/f", NotFoundError),
        ("/".join(["x" * 200] * 30), NotFoundError),
        ("a\0b", NotFoundError),
        ("\ud800", NotFoundError),
    ],
    ids=lambda value: ascii(value)[:20],
)
@in_trio
async def test_errors_are_translated(store: LocalStore, key: str, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        await store.open(key)
    with pytest.raises(NotADirectoryHereError if key == "pipe" else expected):
        await store.list(key)
    if key not in ("dangling", "pipe"):
        with pytest.raises(expected):
            await store.stat(key)


@in_trio
async def test_a_request_opens_a_directory_once_and_the_next_one_again(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def watched(root: Descriptor, key: str, flags: int) -> Descriptor:
        opened.append(key)
        return open_beneath(root, key, flags)

    monkeypatch.setattr(reader, "open_beneath", watched)
    with one_request():
        before = await store.stat("d/f")
        assert await store.stat("d/f") == before
        assert opened == ["d"]
        await store.rename("d", "e", exclusive=True)
        with pytest.raises(NotFoundError):
            await store.stat("d/f")
        assert (await store.stat("e/f")).identity == before.identity
    (tmp_path / "e").rename(tmp_path / "behind")
    with one_request(), pytest.raises(NotFoundError):
        await store.stat("e/f")


@in_trio
async def test_after_a_call_that_took_long_names_are_looked_at_in_threads(store: LocalStore) -> None:
    main = threading.get_ident()
    seen: list[bool] = []

    def look(*args: Any) -> Any:
        seen.append(threading.get_ident() == main)
        time.sleep(0.3 if len(seen) == 1 else 0)
        return os.lstat("/")

    for _ in range(3):
        await store.threads.on_names(look)
    assert seen == [True, False, False]
