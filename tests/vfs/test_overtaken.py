"""A file is put where nothing was, in the moment in which another session makes an array and stores a shard there."""

import errno
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shardfs.errors import ExistsError, StaleError
from tests.crash.harness import OWNER, Process
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.lossy_disk import QuickDisk
from tests.support.opened import find, in_trio, read_file

GROUP = {"zarr_format": 3, "node_type": "group"}
DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), LITTLE))


class OvertakenDisk(QuickDisk):
    """A disk on which, before the file "0" gets its name, another session makes the array `image` with its shard."""

    def __init__(self, root: Path, *, has_exclusive_rename: bool = True) -> None:
        self.root = root
        self.has_exclusive_rename = has_exclusive_rename
        self.is_armed = False

    def overtake(self, name: str) -> None:
        if self.is_armed and name == "0":
            self.is_armed = False
            store(self.root / "image", DOCUMENT)

    def rename(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        self.overtake(new)
        super().rename(name, new, dir_fd, new_dir_fd)

    def rename_exclusive(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        if not self.has_exclusive_rename:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.overtake(new)
        super().rename_exclusive(name, new, dir_fd, new_dir_fd)

    def link(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        self.overtake(new)
        super().link(name, new, dir_fd, new_dir_fd)

    def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
        self.overtake(name)
        return super().create(name, flags, mode, dir_fd)


async def create(process: Process, directory: int) -> None:
    await process.write_file(directory, b"0", b"t" * 24)


async def create_and_cut(process: Process, directory: int) -> None:
    await process.fs.create(directory, b"0", 0o644, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, OWNER)


async def rename(process: Process, directory: int) -> None:
    await process.fs.rename(directory, b"temporary", directory, b"0", exclusive=False)


async def rename_chunk(process: Process, directory: int) -> None:
    chunks = (await find(process.fs, "other/c/0")).ino
    await process.fs.rename(chunks, b"1", directory, b"0", exclusive=False)


async def link(process: Process, directory: int) -> None:
    await process.fs.link((await find(process.fs, "image/c/0/temporary")).ino, directory, b"0")


@pytest.mark.parametrize("has_exclusive_rename", [True, False])
@pytest.mark.parametrize("put", [create, create_and_cut, rename, rename_chunk, link])
@in_trio
async def test_what_is_put_where_nothing_was_never_replaces_a_shard(
    tmp_path: Path, put: Callable[[Process, int], Awaitable[None]], has_exclusive_rename: bool
) -> None:
    chunks = store(tmp_path / "other", DOCUMENT)
    (tmp_path / "image/c/0").mkdir(parents=True)
    (tmp_path / "image/c/0/temporary").write_bytes(b"t" * 24)
    disk = OvertakenDisk(tmp_path, has_exclusive_rename=has_exclusive_rename)
    process = await Process.start(tmp_path, disk, ttl=3600)
    directory = (await find(process.fs, "image/c/0")).ino
    disk.is_armed = True
    with pytest.raises((StaleError, ExistsError)):
        await put(process, directory)
    assert not disk.is_armed
    assert (tmp_path / "image/c/0/0").read_bytes() == (tmp_path / "other/c/0/0").read_bytes()
    assert await read_file(process.fs, (await find(process.fs, "other/c/0/1")).ino) == chunks["c/0/1"]


@in_trio
async def test_a_file_that_somebody_else_has_just_stored_is_replaced_by_a_rename(tmp_path: Path) -> None:
    (tmp_path / "temporary").write_bytes(b"t")

    class Beside(OvertakenDisk):
        def overtake(self, name: str) -> None:
            if self.is_armed and name == "name":
                self.is_armed = False
                (self.root / "name").write_bytes(b"other")

    disk = Beside(tmp_path)
    process = await Process.start(tmp_path, disk)
    root = (await find(process.fs, "")).ino
    disk.is_armed = True
    await process.fs.rename(root, b"temporary", root, b"name", exclusive=False)
    assert not disk.is_armed
    assert (tmp_path / "name").read_bytes() == b"t"


@pytest.mark.parametrize("move", [("image/c/0", "elsewhere"), ("image/c", "elsewhere"), ("chunks", "image/c")])
@in_trio
async def test_no_directory_of_shards_of_a_new_array_is_moved_and_none_is_put_there(
    tmp_path: Path, move: tuple[str, str]
) -> None:
    (tmp_path / "image/c/0").mkdir(parents=True)
    (tmp_path / "image/c/0/0").write_bytes(b"t" * 24)
    (tmp_path / "chunks").mkdir()
    process = await Process.start(tmp_path, QuickDisk(), ttl=3600)
    old, new = move
    parents = [(await find(process.fs, path.rpartition("/")[0])).ino for path in move]
    for path in (old, "image/c"):
        await find(process.fs, path)
    shutil.rmtree(tmp_path / "image/c")  # another session has published what was there
    store(tmp_path / "image", DOCUMENT)
    if new == "image/c":
        shutil.rmtree(tmp_path / "image/c")
    before = files_below(tmp_path)
    with pytest.raises(StaleError, match="another session has just made"):
        await process.fs.rename(parents[0], name_of(old), parents[1], name_of(new), exclusive=False)
    assert files_below(tmp_path) == before


def name_of(path: str) -> bytes:
    return path.rpartition("/")[2].encode()


@pytest.mark.parametrize("path", ["group", "group/image"])
@in_trio
async def test_an_array_that_replaced_another_is_moved_only_when_it_is_known(tmp_path: Path, path: str) -> None:
    image = tmp_path / "group/image"
    store(image, DOCUMENT)
    (tmp_path / "group/zarr.json").write_text(json.dumps(GROUP))
    process = await Process.start(tmp_path, QuickDisk(), ttl=3600)
    root, above = process.fs, (await find(process.fs, path.rpartition("/")[0])).ino
    await read_file(root, (await find(root, "group/image/zarr.json")).ino)
    shutil.rmtree(image)
    store(image, DOCUMENT | {"data_type": "float32"})
    with pytest.raises(StaleError, match="replaced by an array"):
        await root.rename(above, name_of(path), above, b"moved", exclusive=False)
    await process.fs.refresh("group/image")
    await read_file(root, (await find(root, "group/image/zarr.json")).ino)
    await root.rename(above, name_of(path), above, b"moved", exclusive=False)
    assert not (tmp_path / path).exists()
