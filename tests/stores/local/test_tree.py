"""Names, attributes, documents and files that pass through: what a local store changes."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import (
    ExistsError,
    NameTooLongError,
    NoAttributeError,
    NoSpaceError,
    NotADirectoryHereError,
    NotEmptyError,
    NotPermittedError,
    OutsideSourceError,
    RefusedError,
    ShardfsError,
    UnsupportedError,
)
from shardfs.stores.base import ABSENT, ANY, Descriptor, Splice, is_reserved
from shardfs.stores.local.atomic_write import Permissions, temporary_name
from shardfs.stores.local.file_lock import DOCUMENTS_LOCK, lock
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import content, content_of, files
from tests.support.lossy_disk import Fault, Killed, LossyDisk, newest, oldest
from tests.support.opened import in_trio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "d").mkdir(parents=True)
    (root / "d/f").write_bytes(b"content")
    (root / "link").symlink_to("d/f")
    (root / "dlink").symlink_to("d")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(str(root))


REPLACED = ("create", "pwrite", "sync", "rename", "sync_directory")
MADE = ("create", "pwrite", "chmod", "sync", "rename_exclusive", "sync_directory")


@pytest.mark.parametrize(("exclusive", "calls"), [(False, REPLACED), (True, MADE)])
@in_trio
async def test_a_document_is_old_or_new_whatever_happens(root: Path, exclusive: bool, calls: tuple[str, ...]) -> None:
    os.chmod(root / "d/f", 0o600)
    key = "d/new" if exclusive else "d/f"
    old = content_of(root / key)

    async def replace(disk: LossyDisk) -> None:
        if exclusive:
            (root / key).unlink(missing_ok=True)
        else:
            (root / key).write_bytes(b"content")
        await LocalStore(str(root), disk).replace(key, b"new", ABSENT if exclusive else ANY, mode=0o644)

    calls = ("create", *calls, "unlink")  # the lock
    for number in range(len(calls) - 1):
        for written in (0, 2):
            with pytest.raises(NoSpaceError):
                await replace(LossyDisk(root, {number: Fault(OSError(errno.ENOSPC, "injected"), written)}))
            assert content_of(root / key) == (b"new" if number == len(calls) - 2 else old)
            assert files(root) - {key} == {"d/f", "link", "pipe"} - {key}
        disk = LossyDisk(root)
        await replace(disk)
        assert tuple(disk.names) == calls
        for seed, choose in enumerate([oldest, newest, *(random.Random(i).randrange for i in range(10))]):
            cut = root.parent / f"cut{number}-{seed}"
            disk.after_power_cut(choose, number).build(cut)
            assert content_of(cut / key) in (old, b"new")
    disk.after_power_cut(oldest).build(root.parent / "cut")
    assert content_of(root.parent / "cut" / key) == b"new"


@pytest.mark.parametrize("nleft", [1, 2], ids=["lock", "lock and temporary file"])
@in_trio
async def test_a_directory_that_has_only_what_a_killed_process_left_can_be_removed(root: Path, nleft: int) -> None:
    before = files(root)
    with pytest.raises(Killed):
        await LocalStore(str(root), LossyDisk(root, {nleft: Fault(Killed())})).replace("d/f", b"new", ANY)
    store = LocalStore(str(root))
    there = files(root)
    assert len(there - before) == nleft
    assert "d/.shardfs-documents" in there
    with pytest.raises(NotEmptyError):
        await store.rmdir("d")
    assert files(root) == there
    await store.unlink("d/f")
    (root / "d/.shardfs-notes").touch()
    with pytest.raises(NotEmptyError):
        await store.rmdir("d")
    await store.unlink("d/.shardfs-notes")
    await store.rmdir("d")
    assert not (root / "d").exists()


@in_trio
async def test_a_directory_in_which_another_session_makes_a_document_cannot_be_removed(root: Path) -> None:
    store, directory = LocalStore(str(root)), Descriptor(os.open(root / "d", os.O_RDONLY))
    await store.unlink("d/f")
    (root / "d" / temporary_name()).touch()
    there = files(root)
    held = await lock(store, directory, "d/zarr.json", Permissions(), name=DOCUMENTS_LOCK)
    assert held is not None
    with pytest.raises(NotEmptyError):
        await store.rmdir("d")
    assert files(root) == there | {"d/.shardfs-documents"}
    held.release()
    await store.rmdir("d")
    assert not (root / "d").exists()


def test_names_that_shardfs_makes_are_reserved_and_those_of_users_are_not() -> None:
    early = [f".shardfs-{letters}.tmp" for letters in ("abcd_0z9", "________")]  # as tempfile made them
    names = [
        ".shardfs",
        ".shardfs.1",
        ".shardfs.15",
        ".shardfs-documents",
        temporary_name(),
        f".shardfs-probe-{'0f' * 8}",
        *early,
    ]
    assert all(map(is_reserved, names))
    users = [
        "shardfs",
        ".shardfs.conf",
        ".shardfs-notes",
        ".shardfs-notes.txt.Ab12cD",
        ".shardfs-0f.tmp",
        ".shardfs-probe",
        ".shardfs.0",
        ".shardfs.16",
    ]
    assert not any(map(is_reserved, [*users, *(f"{name}.Ab12cD" for name in names), *(f".{name}" for name in names)]))


@in_trio
async def test_who_writes_next_removes_what_a_killed_process_left_of_new_objects(root: Path) -> None:
    before, store = files(root), LocalStore(str(root))

    async def make(disk: LossyDisk) -> None:
        async with LocalStore(str(root), disk).new_object("new", 3) as new:
            await new.write([b"new"])
            await new.finish()

    for _ in range(2):  # the first makes the directory
        disk = LossyDisk(root)
        await make(disk)
        (root / "new").unlink()
    with pytest.raises(Killed):
        await make(LossyDisk(root, {disk.names.index("rename"): Fault(Killed())}))
    assert len(files(root) - before) == 1
    await store.start_writing(str(root), ".shardfs", single_writer=False)
    assert files(root) == before

    (root / ".shardfs").mkdir(exist_ok=True)
    (root / ".shardfs/unfinished").symlink_to("../d")
    await store.start_writing(str(root), ".shardfs", single_writer=False)
    assert (root / "d/f").exists()


@in_trio
async def test_a_large_new_object_is_durable_before_it_has_its_name(root: Path) -> None:
    disk = LossyDisk(root)
    async with LocalStore(str(root), disk).new_object("new", 8 * 2**20) as new:
        await new.write([bytes(8 * 2**20)])
        await new.finish()
    assert disk.names[-3:] == ["sync", "rename", "sync_directory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@in_trio
async def test_what_is_replaced_leaves_its_mode_and_owner(store: LocalStore, root: Path) -> None:
    for key in ("d/f", "shard"):
        (root / key).write_bytes(b"x")
        os.chown(root / key, 1234, 5678)
        os.chmod(root / key, 0o604)
    await store.replace("d/f", b"new", ANY, mode=0o777)
    async with store.edit("shard", mode=0o777, uid=1, gid=1) as edit:
        await edit.splice(Splice((content(b"new"),)))
    for key in ("d/f", "shard"):
        status = await store.stat(key)
        assert (status.uid, status.gid, status.mode & 0o7777) == (1234, 5678, 0o604)
    async with store.edit("shard2", mode=0o644, uid=1234, gid=5678) as edit:
        after = await edit.splice(Splice((content(b"new"),)))
    assert (after.uid, after.gid) == (1234, 5678)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (lambda s: s.mkdir("x" * 300, 0o755), NameTooLongError),
        (lambda s: s.mkdir("", 0o755), RefusedError),
        (lambda s: s.mkdir("d/..", 0o755), RefusedError),
        (lambda s: s.mkdir("a\0b", 0o755), RefusedError),
        (lambda s: s.make_directories("a\0b"), RefusedError),
        (lambda s: s.make_directories("d/f/x"), NotADirectoryHereError),
        (lambda s: s.rmdir("."), RefusedError),
        (lambda s: s.rename("", "x", exclusive=False), RefusedError),
        (lambda s: s.rename("d/f", "", exclusive=False), RefusedError),
        (lambda s: s.link("d/f", "link"), ExistsError),
        (lambda s: s.create("pipe", 0o644, exclusive=False), RefusedError),
        *((lambda s, key=key: s.replace(key, b"x", ABSENT), ExistsError) for key in ("d/f", "d", "link", "pipe")),
        (lambda s: s.replace("", b"x", ANY), RefusedError),
        (lambda s: s.set_attribute("link", b"user.x", b""), NotPermittedError),
        (lambda s: s.set_attribute("d/f", b"security.selinux", b""), UnsupportedError),
        (lambda s: s.remove_attribute("d/f", b"security.selinux"), NoAttributeError),
    ],
)
@in_trio
async def test_what_cannot_be_is_refused_and_changes_nothing(
    store: LocalStore, root: Path, request_: Any, expected: type[ShardfsError]
) -> None:
    before = files(root)
    with pytest.raises(expected):
        await request_(store)
    assert files(root) == before
    assert (root / "d/f").read_bytes() == b"content"


# The source is never left

CHANGES = {
    "create": lambda s, key: s.create(key, 0o644, exclusive=False),
    "open_to_write": lambda s, key: s.open_to_write(key),
    "replace": lambda s, key: s.replace(key, b"x", ANY),
    "unlink": lambda s, key: s.unlink(key),
    "mkdir": lambda s, key: s.mkdir(key, 0o755),
    "rmdir": lambda s, key: s.rmdir(key),
    "rename": lambda s, key: s.rename(key, "x", exclusive=False),
    "rename to": lambda s, key: s.rename("d/f", key, exclusive=False),
    "rename to exclusive": lambda s, key: s.rename("d/f", key, exclusive=True),
    "link": lambda s, key: s.link(key, "x"),
    "link to": lambda s, key: s.link("d/f", key),
    "symlink": lambda s, key: s.symlink(key, b"x"),
    "make_directories": lambda s, key: s.make_directories(key),
    "set_attributes": lambda s, key: s.set_attributes(key, mode=0o600),
    "set_attribute": lambda s, key: s.set_attribute(key, b"user.x", b"x"),
    "remove_attribute": lambda s, key: s.remove_attribute(key, b"user.x"),
    "sync_directory": lambda s, key: s.sync_directory(key),
    "edit": lambda s, key: _splice(s, key),
}


async def _splice(store: LocalStore, key: str) -> None:
    async with store.edit(key) as edit:
        await edit.splice(Splice((content(b"x"),)))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("key", ["out/f", "absolute/new", "d/up/f", "../outside/f", "twice/f"])
@in_trio
async def test_no_change_leads_out_of_the_source(store: LocalStore, root: Path, change: Any, key: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    os.setxattr(outside / "f", "user.x", b"1")
    (root / "out").symlink_to("../outside")
    (root / "absolute").symlink_to(outside)
    (root / "d/up").symlink_to("../../outside")
    (root / "twice").symlink_to("out")
    before = (outside / "f").stat(), outside.stat()
    with pytest.raises(OutsideSourceError):
        await change(store, key)
    assert ((outside / "f").stat(), outside.stat()) == before
    assert (outside / "f").read_bytes() == b"secret"
    assert os.getxattr(outside / "f", "user.x") == b"1"
    assert (root / "d/f").read_bytes() == b"content"


@pytest.mark.parametrize("change", ["create", "open_to_write", "edit", "set_attribute"])
@in_trio
async def test_a_final_link_is_not_written_through(store: LocalStore, root: Path, change: str) -> None:
    with pytest.raises((RefusedError, NotPermittedError)):
        await CHANGES[change](store, "link")
    assert (root / "d/f").read_bytes() == b"content"


# The calls themselves


@pytest.mark.slow
@given(st.lists(st.binary(max_size=9), max_size=12), st.integers(0, 20), st.lists(st.integers(1, 30), max_size=20))
def test_all_is_written_however_little_the_kernel_takes(parts: list[bytes], offset: int, takes: list[int]) -> None:
    fd, real = os.memfd_create("written"), os.pwritev

    def some(fd: int, buffers: list[memoryview], offset: int) -> int:
        data = b"".join(buffers)
        return real(fd, [data[: takes.pop()] if takes else data], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", some)
        Syscalls().pwrite(fd, parts, offset)
    written = b"".join(parts)
    assert os.pread(fd, 1000, 0) == (bytes(offset) + written if written else b"")
    os.close(fd)
