"""The system calls themselves."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardfs.stores.local.syscalls import Syscalls


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def create(here: int) -> int:
    return Syscalls().create("f", os.O_RDWR, 0o644, here)


@given(st.lists(st.binary(max_size=9), max_size=12), st.integers(0, 20), st.lists(st.integers(1, 30), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_is_written_however_little_the_kernel_takes(
    here: int, parts: list[bytes], offset: int, takes: list[int]
) -> None:
    fd = create(here)
    os.ftruncate(fd, 0)
    real = os.pwritev

    def some(fd: int, buffers: list[memoryview], offset: int) -> int:
        data = b"".join(buffers)
        return real(fd, [data[: takes.pop()] if takes else data], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", some)
        Syscalls().pwrite(fd, parts, offset)
    written = b"".join(parts)
    assert os.pread(fd, 1000, 0) == (bytes(offset) + written if written else b"")
    os.close(fd)


def test_an_exclusive_rename_replaces_nothing(here: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    disk = Syscalls()
    with pytest.raises(FileExistsError):
        disk.rename_exclusive("a", "b", here, here)
    with pytest.raises(ValueError, match="null"):
        disk.rename_exclusive("a", "c\0d", here, here)
    disk.rename_exclusive("a", "\udcff", here, here)
    assert set(os.listdir(os.fsencode(tmp_path))) == {b"\xff", b"b"}


def test_a_directory_that_cannot_be_synced_is_as_durable_as_it_gets(here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> None:
        def fsync(fd: int) -> None:
            raise OSError(number, "injected")

        monkeypatch.setattr(os, "fsync", fsync)

    fails(errno.EINVAL)
    Syscalls().sync_directory(here)
    with pytest.raises(OSError, match="injected"):
        Syscalls().sync(here)
    fails(errno.EIO)
    with pytest.raises(OSError, match="injected"):
        Syscalls().sync_directory(here)
