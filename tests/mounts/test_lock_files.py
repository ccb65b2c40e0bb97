"""Lock files that programs keep beside shards: not shown, not used by programs on the mount, and in nobody's way."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.writers import assert_sound, flush, open_tensorstore

SHAPE = (8, 8)
VALUES = np.arange(64, dtype="i4").reshape(SHAPE)
LOCKS = {"/": "c/0/0.__lock", ".": "c.0.0.__lock"}
"""The lock of the first shard, by the separator of keys; the inner chunk of the same key is another one."""

every_separator = pytest.mark.parametrize("separator", LOCKS)


def make(source: Path, separator: str) -> Path:
    """Make an array in a group, and a lock file that a program has left beside a shard; returns that."""
    zarr.create_group(source)
    array = zarr.create_array(
        source,
        name="a",
        shape=SHAPE,
        shards=(4, 4),
        chunks=(2, 2),
        dtype="i4",
        compressors=None,
        chunk_key_encoding={"name": "default", "configuration": {"separator": separator}},
    )
    array[...] = VALUES
    lock = source / "a" / LOCKS[separator]
    lock.write_bytes(b"half of a shard")
    os.utime(lock, (1e9, 1e9))
    return lock


@every_separator
def test_programs_on_the_mount_lock_inner_chunks_and_not_the_shard_of_the_same_key(
    mount: Mounter, tmp_path: Path, separator: str
) -> None:
    lock = make(tmp_path / "source", separator)
    mounted = mount(tmp_path / "source", write=True)
    assert not [name for _, _, names in os.walk(mounted.path) for name in names if "lock" in name]
    assert not (mounted.path / "a" / LOCKS[separator]).exists()
    open_tensorstore(mounted.path / "a")[...] = VALUES + 1
    assert lock.read_bytes() == b"half of a shard"
    assert_same(READERS["zarr"](mounted.path / "a"), VALUES + 1)
    lock.unlink()
    flush(mounted)
    mounted.unmount()
    for read in READERS.values():
        assert_same(read(tmp_path / "source" / "a"), VALUES + 1)
    assert_sound(tmp_path / "source")


@every_separator
def test_removing_an_array_removes_the_locks_in_it(mount: Mounter, tmp_path: Path, separator: str) -> None:
    lock = make(tmp_path / "source", separator)
    mounted = mount(tmp_path / "source", write=True)
    (mounted.path / "a" / LOCKS[separator]).write_bytes(b"of a program that was killed")
    lock.rename(lock.with_name(lock.name.replace("0.__", "1.__")))  # of a shard that is removed with the others
    lock.with_name(lock.name.replace("0.__", "1.__")).write_bytes(b"")
    os.chmod(lock.with_name(lock.name.replace("0.__", "1.__")), 0o1644)
    shutil.rmtree(mounted.path / "a")
    mounted.unmount()
    assert os.listdir(tmp_path / "source") == ["zarr.json"]


def test_a_leftover_lock_is_reported_and_changes_stay_pending(mount: Mounter, tmp_path: Path) -> None:
    lock = make(tmp_path / "source", "/")
    mounted = mount(tmp_path / "source", write=True, expect=(r"0\.__lock was left beside it",))
    (mounted.path / "a/c/0/0").write_bytes(np.full(4, 7, "i4").tobytes())
    with pytest.raises(AssertionError, match=r"could not be flushed: a/c.*0\.__lock.*; its log says more"):
        flush(mounted)
    lock.unlink()
    flush(mounted)
    assert READERS["zarr"](tmp_path / "source/a")[0, 0] == 7


def test_temporary_names_of_chunks_are_stored_in_a_directory(mount: Mounter, tmp_path: Path) -> None:
    """Nothing but locks is taken out of a directory of this machine: there such a name costs no request."""
    make(tmp_path / "source", ".")
    path = mount(tmp_path / "source", write=True).path / "a"
    for name in ("c.0.0.0123456789abcdef.partial", ".c.0.0.a1B2c3", "c.0.0.backup"):
        (path / name).write_bytes(name.encode())
        assert (tmp_path / "source/a" / name).read_bytes() == name.encode()
