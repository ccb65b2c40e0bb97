"""Names, attributes, documents and files that pass through: what a local store changes."""

from __future__ import annotations

import errno
import gc
import os
import random
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from shardfs.errors import (
    CrossDeviceError,
    ExistsError,
    IsADirectoryHereError,
    NameTooLongError,
    NoAttributeError,
    NoSpaceError,
    NotADirectoryHereError,
    NotEmptyError,
    NotFoundError,
    NotPermittedError,
    OutsideSourceError,
    ReadOnlyError,
    RefusedError,
    ShardfsError,
    StoreError,
    UnsupportedError,
)
from shardfs.stores.base import Kind, Splice
from shardfs.stores.local.file_lock import is_lock
from shardfs.stores.local.syscalls import Syscalls
from shardfs.stores.local.tree import LocalStore
from tests.stores.local.splices import content, content_of, files
from tests.support.lossy_disk import Fault, LossyDisk, newest, oldest
from tests.support.opened import in_trio

NOW = 1_700_000_000_123_456_789


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_bytes(b"content")
    (root / "link").symlink_to("d/f")
    (root / "dlink").symlink_to("d")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(str(root))


@pytest.fixture(autouse=True)
def umask() -> Any:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# Files that pass through


@pytest.mark.parametrize("mode", [0o666, 0o640, 0o400, 0o7777 & ~0o111])
@in_trio
async def test_modes_are_exact_whatever_the_umask(store: LocalStore, root: Path, mode: int) -> None:
    file = await store.create("new", mode | stat.S_IFREG, exclusive=True)
    await file.write(0, b"x")
    assert mode_of(root / "new") == mode
    await store.replace("document", b"x", mode=mode)
    assert mode_of(root / "document") == mode
    async with store.edit("shard", mode=mode | stat.S_IFREG) as edit:
        await edit.splice(Splice((content(b"x"),)))
    assert mode_of(root / "shard") == mode
    await store.mkdir("made", mode | 0o700)
    assert mode_of(root / "made") & 0o777 == (mode | 0o700) & 0o777


@in_trio
async def test_modes_that_are_not_given_obey_the_umask(store: LocalStore, root: Path) -> None:
    await store.replace("document", b"x")
    async with store.edit("a/shard") as edit:
        await edit.splice(Splice((content(b"x"),)))
    assert mode_of(root / "document") == mode_of(root / "a" / "shard") == 0o640
    assert mode_of(root / "a") == 0o750


@in_trio
async def test_a_directory_takes_the_group_bit_of_the_one_above(store: LocalStore, root: Path) -> None:
    (root / "d").chmod(0o2775)
    await store.mkdir("d/e", 0o777)
    assert mode_of(root / "d" / "e") == 0o2777


@in_trio
async def test_failures_of_the_disk_are_told(root: Path) -> None:
    disk = LossyDisk(root)
    store = LocalStore(str(root), disk)
    file = await store.open_passthrough("d/f", writable=True)
    for number, expected in ((errno.ENOSPC, NoSpaceError), (errno.EROFS, ReadOnlyError), (errno.EIO, StoreError)):
        for request in (
            lambda: file.write(0, b"x"),
            lambda: file.write(0, bytes(10**6)),
            lambda: file.truncate(0),
            file.sync,
            lambda: store.mkdir("x", 0o700),
            lambda: store.rename("d", "e", exclusive=False),
            lambda: store.sync_directory("d"),
        ):
            disk.faults = {len(disk.calls): Fault(OSError(number, "injected"))}
            with pytest.raises(expected, match="injected"):
                await request()
    assert (root / "d" / "f").read_bytes() == b"content"


# Documents

REPLACED = ("create", "pwrite", "sync", "rename", "sync_directory")
MADE = ("create", "pwrite", "chmod", "sync", "rename_exclusive", "sync_directory")


@in_trio
async def test_a_document_is_replaced_at_once_and_durably(root: Path) -> None:
    os.chmod(root / "d" / "f", 0o600)
    disk = LossyDisk(root)
    store = LocalStore(str(root), disk)
    old = await store.open("d/f")
    status = await store.replace("d/f", b"new")
    assert tuple(disk.names) == REPLACED
    assert status == await store.stat("d/f")
    assert bytes(await old.read(0, 7)) == b"content"
    assert (root / "d" / "f").read_bytes() == b"new"
    disk.after_power_cut(root.parent / "cut", oldest)
    assert (root.parent / "cut" / "d" / "f").read_bytes() == b"new"


@in_trio
async def test_an_exclusive_document_replaces_nothing(root: Path) -> None:
    disk = LossyDisk(root)
    store = LocalStore(str(root), disk)
    await store.replace("d/new", b"new", exclusive=True, mode=0o644)
    assert tuple(disk.names) == MADE
    for key in ("d/new", "d", "link", "pipe"):
        with pytest.raises(ExistsError):
            await store.replace(key, b"x", exclusive=True)
    assert (root / "d" / "new").read_bytes() == b"new"


@pytest.mark.parametrize(("exclusive", "calls"), [(False, REPLACED), (True, MADE)])
@in_trio
async def test_a_document_is_old_or_new_whatever_happens(root: Path, exclusive: bool, calls: tuple[str, ...]) -> None:
    os.chmod(root / "d" / "f", 0o600)
    key = "d/new" if exclusive else "d/f"
    old = content_of(root / key)
    for number in range(len(calls)):
        for fault in (Fault(OSError(errno.ENOSPC, "injected"), 2), Fault(OSError(errno.ENOSPC, "injected")), None):
            disk = LossyDisk(root, {} if fault is None else {number: fault})
            store = LocalStore(str(root), disk)
            if fault is not None:
                with pytest.raises(NoSpaceError):
                    await store.replace(key, b"new", exclusive=exclusive, mode=0o644)
            else:
                await store.replace(key, b"new", exclusive=exclusive, mode=0o644)
                for seed, choose in enumerate([oldest, newest, *(random.Random(i).randrange for i in range(10))]):
                    cut = root.parent / f"cut{number}-{seed}"
                    disk.after_power_cut(cut, choose, number)
                    assert content_of(cut / key) in (old, b"new")
            assert content_of(root / key) == (b"new" if fault is None or number == len(calls) - 1 else old)
            assert files(root) - {key} == {"d/f", "link", "pipe"} - {key}
            if exclusive:
                (root / key).unlink(missing_ok=True)
            else:
                (root / key).write_bytes(b"content")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@in_trio
async def test_what_is_replaced_leaves_its_mode_and_owner(store: LocalStore, root: Path) -> None:
    for key in ("d/f", "shard"):
        (root / key).write_bytes(b"x")
        os.chown(root / key, 1234, 5678)
        os.chmod(root / key, 0o604)
    await store.replace("d/f", b"new", mode=0o777)
    async with store.edit("shard", mode=0o777, uid=1, gid=1) as edit:
        await edit.splice(Splice((content(b"new"),)))
    for key in ("d/f", "shard"):
        status = (root / key).stat()
        assert (status.st_uid, status.st_gid, mode_of(root / key)) == (1234, 5678, 0o604)
    async with store.edit("shard2", mode=0o644, uid=1234, gid=5678) as edit:
        after = await edit.splice(Splice((content(b"new"),)))
    assert (after.uid, after.gid) == (1234, 5678)


@pytest.mark.parametrize("number", [0, 1])
@in_trio
async def test_an_owner_that_may_not_be_set_is_left(root: Path, number: int) -> None:
    class Unprivileged(Syscalls):
        calls = 0

        def chown(self, target: Any, uid: int, gid: int) -> None:
            self.calls += not is_lock(os.readlink(f"/proc/self/fd/{target}"))
            if self.calls <= number + 1:
                raise PermissionError(errno.EPERM, "not root")
            super().chown(target, uid, gid)

    disk = Unprivileged()
    async with LocalStore(str(root), disk).edit("shard", uid=1234, gid=5678) as edit:
        after = await edit.splice(Splice((content(b"new"),)))
    assert disk.calls == 2
    assert (after.uid, after.gid) == (os.geteuid(), 5678 if number == 0 else os.getegid())


@in_trio
async def test_a_link_is_replaced_and_not_what_it_leads_to(store: LocalStore, root: Path) -> None:
    await store.replace("link", b"new")
    assert not (root / "link").is_symlink()
    assert (root / "d" / "f").read_bytes() == b"content"


# Names


@in_trio
async def test_missing_directories_are_made_durably_and_only_those(root: Path) -> None:
    disk = LossyDisk(root)
    store = LocalStore(str(root), disk)
    await store.make_directories("d/x/y")
    assert disk.names == ["mkdir", "sync_directory"] * 2
    await store.make_directories("d/x/y")
    await store.make_directories("dlink/x")
    await store.make_directories("")
    assert len(disk.calls) == 4
    await store.make_directories("dlink/x/z")
    assert (root / "d" / "x" / "z").is_dir()
    disk.after_power_cut(root.parent / "cut", oldest)
    assert {path.name for path in (root.parent / "cut" / "d" / "x").iterdir()} == {"y", "z"}
    with pytest.raises(NotADirectoryHereError):
        await store.make_directories("d/f/x")
    with pytest.raises(RefusedError):
        await store.make_directories("a\0b")


@in_trio
async def test_directories_that_many_make_are_durable_for_each(root: Path) -> None:
    disk = LossyDisk(root)
    store = LocalStore(str(root), disk)

    async def make(name: str) -> None:
        await store.make_directories(f"a/b/{name}")
        disk.after_power_cut(root.parent / name, oldest)
        assert (root.parent / name / "a" / "b" / name).is_dir()

    async with trio.open_nursery() as nursery:
        for name in "pqrst":
            nursery.start_soon(make, name)
    assert disk.names.count("mkdir") == 7


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (lambda s: s.mkdir("d", 0o755), ExistsError),
        (lambda s: s.mkdir("gone/x", 0o755), NotFoundError),
        (lambda s: s.mkdir("d/f/x", 0o755), NotADirectoryHereError),
        (lambda s: s.mkdir("x" * 300, 0o755), NameTooLongError),
        (lambda s: s.mkdir("", 0o755), RefusedError),
        (lambda s: s.mkdir("d/..", 0o755), RefusedError),
        (lambda s: s.mkdir("a\0b", 0o755), RefusedError),
        (lambda s: s.rmdir("."), RefusedError),
        (lambda s: s.rmdir("d"), NotEmptyError),
        (lambda s: s.rmdir("gone"), NotFoundError),
        (lambda s: s.rmdir("d/f"), NotADirectoryHereError),
        (lambda s: s.unlink("d"), IsADirectoryHereError),
        (lambda s: s.unlink("gone"), NotFoundError),
        (lambda s: s.rename("gone", "x", exclusive=False), NotFoundError),
        (lambda s: s.rename("gone", "x", exclusive=True), NotFoundError),
        (lambda s: s.rename("d", "d/x", exclusive=False), RefusedError),
        (lambda s: s.rename("d", "d/x", exclusive=True), RefusedError),
        (lambda s: s.rename("link", "d", exclusive=False), IsADirectoryHereError),
        (lambda s: s.rename("d", "link", exclusive=False), NotADirectoryHereError),
        (lambda s: s.rename("", "x", exclusive=False), RefusedError),
        (lambda s: s.rename("d/f", "", exclusive=False), RefusedError),
        (lambda s: s.link("d/f", "link"), ExistsError),
        (lambda s: s.link("d", "x"), NotPermittedError),
        (lambda s: s.symlink("link", b"x"), ExistsError),
        (lambda s: s.symlink("x", b""), NotFoundError),
        (lambda s: s.create("d", 0o644, exclusive=False), IsADirectoryHereError),
        (lambda s: s.create("link", 0o644, exclusive=False), RefusedError),
        (lambda s: s.create("pipe", 0o644, exclusive=False), RefusedError),
        (lambda s: s.create("gone/x", 0o644, exclusive=False), NotFoundError),
        (lambda s: s.open_passthrough("link", writable=True), RefusedError),
        (lambda s: s.replace("d", b"x"), IsADirectoryHereError),
        (lambda s: s.replace("", b"x"), RefusedError),
        (lambda s: s.replace("gone/x", b"x"), NotFoundError),
        (lambda s: s.replace("x" * 300, b"x"), NameTooLongError),
        (lambda s: s.sync_directory("d/f"), NotADirectoryHereError),
        (lambda s: s.set_attributes("gone", mode=0o600), NotFoundError),
        (lambda s: s.set_attribute("gone", b"user.x", b""), NotFoundError),
        (lambda s: s.set_attribute("link", b"user.x", b""), NotPermittedError),
        (lambda s: s.set_attribute("pipe", b"user.x", b""), NotPermittedError),
        (lambda s: s.set_attribute("d/f", b"security.selinux", b""), UnsupportedError),
        (lambda s: s.remove_attribute("d/f", b"user.gone"), NoAttributeError),
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
    assert (root / "d" / "f").read_bytes() == b"content"


@in_trio
async def test_a_name_does_not_move_to_another_device(root: Path) -> None:
    class Elsewhere(Syscalls):
        def rename(self, *args: Any) -> None:
            raise OSError(errno.EXDEV, "elsewhere")

    with pytest.raises(CrossDeviceError):
        await LocalStore(str(root), Elsewhere()).rename("d/f", "g", exclusive=False)


# Attributes


@in_trio
async def test_attributes_are_set_one_by_one(store: LocalStore, root: Path) -> None:
    for key in ("d/f", "d", "", "pipe"):
        before = await store.stat(key)
        after = await store.set_attributes(key, mtime_ns=NOW)
        assert (after.mtime_ns, after.atime_ns, after.mode) == (NOW, before.atime_ns, before.mode)
        after = await store.set_attributes(key, atime_ns=NOW + 5)
        assert (after.mtime_ns, after.atime_ns) == (NOW, NOW + 5)
        after = await store.set_attributes(key, mode=0o7700)
        assert after.mode & 0o7777 == 0o7700
        assert after == await store.stat(key)
        assert await store.set_attributes(key) == after


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@in_trio
async def test_owners_are_set_with_the_mode_after_them(store: LocalStore, root: Path) -> None:
    after = await store.set_attributes("d/f", uid=1234, mode=0o4755)
    assert (after.uid, after.gid, after.mode & 0o7777) == (1234, os.getegid(), 0o4755)
    after = await store.set_attributes("d/f", gid=5678)
    assert (after.uid, after.gid) == (1234, 5678)
    after = await store.set_attributes("link", uid=1, gid=2)
    assert (after.uid, after.gid) == (1, 2)
    assert (await store.stat("d/f")).uid == 1234


@in_trio
async def test_attributes_of_a_link_are_its_own(store: LocalStore, root: Path) -> None:
    before = await store.stat("d/f")
    after = await store.set_attributes("link", mtime_ns=NOW)
    assert (after.kind, after.mtime_ns) == (Kind.SYMLINK, NOW)
    with pytest.raises(NotPermittedError):
        await store.set_attributes("link", mode=0o600)
    assert await store.stat("d/f") == before


@in_trio
async def test_extended_attributes_are_set_and_removed(store: LocalStore, root: Path) -> None:
    for key in ("d/f", "d", "", "dlink/f"):
        await store.set_attribute(key, b"user.note", b"text")
        assert await store.attribute(key, b"user.note") == b"text"
        await store.set_attribute(key, b"user.note", b"other")
        assert await store.attribute(key, b"user.note") == b"other"
        await store.remove_attribute(key, b"user.note")
        assert await store.attributes(key) == []
    await store.set_attribute("d/f", b"user.note", b"text")
    for key in ("link", "pipe"):  # the kernel allows none there, and `tar --xattrs` asks all the same
        assert await store.attributes(key) == []
        with pytest.raises(NoAttributeError):
            await store.attribute(key, b"user.note")


# The source is never left

CHANGES = {
    "create": lambda s, key: s.create(key, 0o644, exclusive=False),
    "open_passthrough": lambda s, key: s.open_passthrough(key, writable=True),
    "replace": lambda s, key: s.replace(key, b"x"),
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
@pytest.mark.parametrize(
    "key", ["out/f", "out/new", "absolute/f", "d/up/f", "../outside/f", "d/../../outside/f", "twice/f"]
)
@in_trio
async def test_no_change_leads_out_of_the_source(store: LocalStore, root: Path, change: Any, key: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    os.setxattr(outside / "f", "user.x", b"1")
    (root / "out").symlink_to("../outside")
    (root / "absolute").symlink_to(outside)
    (root / "d" / "up").symlink_to("../../outside")
    (root / "twice").symlink_to("out")
    before = (outside / "f").stat(), outside.stat()
    with pytest.raises(OutsideSourceError):
        await change(store, key)
    assert ((outside / "f").stat(), outside.stat()) == before
    assert (outside / "f").read_bytes() == b"secret"
    assert os.getxattr(outside / "f", "user.x") == b"1"
    assert (root / "d" / "f").read_bytes() == b"content"


@pytest.mark.parametrize("target", ["../outside", "{root}/../outside", "d/f"])
@pytest.mark.parametrize("change", ["create", "open_passthrough", "edit", "set_attribute"])
@in_trio
async def test_a_final_link_is_not_written_through(store: LocalStore, root: Path, change: str, target: str) -> None:
    (root.parent / "outside").write_bytes(b"secret")
    (root / "l").symlink_to(target.format(root=root))
    with pytest.raises((RefusedError, NotPermittedError)):
        await CHANGES[change](store, "l")
    assert (root.parent / "outside").read_bytes() == b"secret"
    assert (root / "d" / "f").read_bytes() == b"content"


UNPRIVILEGED = """
import os, sys, trio
from shardfs.errors import AccessDeniedError, NotPermittedError
from shardfs.stores.base import Splice
from shardfs.stores.local.tree import LocalStore
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
async def edit(store, key):
    async with store.edit(key) as edit:
        await edit.splice(Splice(()))
async def main():
    store = LocalStore(sys.argv[1])
    for request, expected in [
        (store.open_passthrough("readonly", writable=True), AccessDeniedError),
        (edit(store, "readonly"), AccessDeniedError),
        (edit(store, "closed/new"), AccessDeniedError),
        (store.replace("closed/f", b"x"), AccessDeniedError),
        (store.create("closed/new", 0o644, exclusive=True), AccessDeniedError),
        (store.unlink("closed/f"), AccessDeniedError),
        (store.set_attributes("readonly", mode=0o777), NotPermittedError),
        (store.set_attributes("readonly", uid=1), NotPermittedError),
    ]:
        try:
            await request
        except expected:
            continue
        raise AssertionError(str(request))
trio.run(main)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_what_modes_forbid_is_not_changed() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "closed").mkdir()
        (root / "closed").chmod(0o755)
        for key in ("closed/f", "readonly"):
            (root / key).write_bytes(b"x")
            (root / key).chmod(0o444)
        done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, directory], capture_output=True, text=True)
        assert files(root) == {"closed/f", "readonly"}
    assert done.returncode == 0, str(done)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@in_trio
async def test_no_descriptor_is_left_behind(store: LocalStore, root: Path) -> None:
    (root / "out").symlink_to("..")
    await trio.to_thread.run_sync(lambda: None)
    before = descriptors()
    for i in range(5):
        for key in ("d/f", f"new{i}", "gone/x", "out/x", "d", "link", "d/f/x"):
            for change in CHANGES.values():
                try:
                    await change(store, key)
                except ShardfsError as error:
                    error.with_traceback(None)
    assert descriptors() <= before
