"""A writing mount and a plain directory, driven by the same random operations, do the same.

`tests/support/write_model.py` says where they differ by design. With `SHARDFS_LONG=1` the run is a long one.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.mounting import Mount, mounter
from tests.support.write_model import (
    ARRAYS,
    GROUP,
    Handle,
    Model,
    chunk_path,
    is_nested,
    make_source,
    outcome,
    place,
    stored_chunks,
)

LONG = bool(os.environ.get("SHARDFS_LONG"))
WRITING = [os.O_WRONLY, os.O_RDWR]
FLAGS = [0, os.O_TRUNC, os.O_APPEND, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL]
OTHER_GROUP = GROUP[:-1] + b', "attributes": {"a": 1}}'
DATA = st.one_of(
    st.binary(max_size=40), st.sampled_from([GROUP, OTHER_GROUP, bytes(300)]), st.binary(min_size=4, max_size=4)
)
OFFSETS = st.sampled_from([0, 0, 0, 1, 7, 40, 5000])
SIZES = st.sampled_from([0, 1, 4, 10, 41, 5000])

machine: Any = st.runner()
files = machine.flatmap(lambda self: st.sampled_from(self.files))
directories = machine.flatmap(lambda self: st.sampled_from(self.directories))
opened = machine.flatmap(lambda self: st.sampled_from(self.opened))


class WritingMount(RuleBasedStateMachine):
    """A mount and its model, with the same files open in both."""

    has_objects: ClassVar = False
    """Whether files that pass through become objects."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        top = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.mount_source = self.stack.enter_context(mounter(top))
        self.source, root = top / "source", top / "model"
        self._make_source()
        self.opened: list[tuple[int, Handle]] = []
        self.mount = self._mount()
        subprocess.run(["cp", "-r", str(self.mount.path), str(root)], check=True)
        self.model = Model(root)
        self.model.make_directories()

    @initialize(names=st.lists(st.sampled_from(sorted(ARRAYS)), min_size=2, max_size=2, unique=True))
    def begin(self, names: list[str]) -> None:
        self.names = names
        self.files = ["g/notes.txt", "g/folder/file", "g/folder/sub", "g/zarr.json", "g/folder/zarr.json"]
        self.directories = ["g/folder", "g/folder/sub", "g/new"]
        for name in names:
            self.files += [chunk_path(name, at) for at in [(0, 0), (0, 1), (2, 2), (3, 1), (0, 4)]]
            self.files += [f"g/{name}/zarr.1.partial"]
            if is_nested(name):
                self.files += [f"g/{name}/c/0/0.partial", f"g/{name}/c/2/.lock"]
                self.directories += [f"g/{name}/c/0", f"g/{name}/c/2", f"g/{name}/c/4", f"g/{name}/c/0/sub"]
            else:
                self.files += [f"g/{name}/0.partial"]
            self.directories.append(f"g/{name}")

    # Open files

    @rule(path=files)
    def open_to_read(self, path: str) -> None:
        if not (self.has_objects and place(path).kind == "file"):  # who reads an object keeps its version
            self._open(path, os.O_RDONLY)

    @rule(path=files, access=st.sampled_from(WRITING), flags=st.sampled_from(FLAGS))
    def open_to_write(self, path: str, access: int, flags: int) -> None:
        self._open(path, access | flags)

    @precondition(lambda self: self.opened)
    @rule(file=opened, offset=OFFSETS)
    def read(self, file: tuple[int, Handle], offset: int) -> None:
        fd, handle = file
        if handle.flags & os.O_ACCMODE != os.O_WRONLY:
            assert os.pread(fd, 10**5, offset) == self.model.read(handle, offset, 10**5)

    @precondition(lambda self: self.opened)
    @rule(file=opened, offset=OFFSETS, data=DATA)
    def write(self, file: tuple[int, Handle], offset: int, data: bytes) -> None:
        fd, handle = file
        if handle.is_writable:
            self._same(lambda: os.pwrite(fd, data, offset), lambda: self.model.write(handle, offset, data) or len(data))

    @precondition(lambda self: self.opened)
    @rule(file=opened, nbytes=SIZES)
    def cut_open(self, file: tuple[int, Handle], nbytes: int) -> None:
        fd, handle = file
        if handle.is_writable:
            self._same(lambda: os.ftruncate(fd, nbytes), lambda: self.model.ftruncate(handle, nbytes))

    @precondition(lambda self: self.opened)
    @rule(file=opened)
    def sync(self, file: tuple[int, Handle]) -> None:
        fd, handle = file
        self._same(lambda: os.fsync(fd), lambda: self.model.sync(handle))

    @precondition(lambda self: self.opened)
    @rule(file=opened)
    def close(self, file: tuple[int, Handle]) -> None:
        fd, handle = file
        is_empty = handle.draft is not None and handle.draft.is_fresh
        self.opened.remove(file)
        self._same(lambda: os.close(fd), lambda: self.model.close(handle))
        if is_empty:
            _files(self.mount.path)  # it is published at release, for which `close` does not wait

    # Names

    @rule(path=files, data=DATA)
    def write_whole(self, path: str, data: bytes) -> None:
        self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if self.opened and self.opened[-1][1] is self.model.handles[-1]:
            fd, handle = self.opened[-1]
            if handle.flags == os.O_WRONLY | os.O_CREAT | os.O_TRUNC:
                self.write((fd, handle), 0, data)
                self.close((fd, handle))

    @rule(path=files, nbytes=SIZES)
    def cut(self, path: str, nbytes: int) -> None:
        self._same(lambda: os.truncate(self._at(path), nbytes), lambda: self.model.truncate(path, nbytes))

    @rule(old=files, new=files)
    def rename(self, old: str, new: str) -> None:
        is_made = any(draft.is_unpublished for draft in self.model.drafts.get(old, []))
        before = None if is_made else outcome(lambda: os.stat(self._at(old)).st_mtime_ns)
        done = self._same(lambda: os.rename(self._at(old), self._at(new)), lambda: self.model.rename(old, new))
        if (
            done is None
            and before is not None
            and not (self.has_objects and "file" in (place(old).kind, place(new).kind))
        ):
            assert os.stat(self._at(new)).st_mtime_ns == before

    @rule(old=files, new=files)
    def link(self, old: str, new: str) -> None:
        if place(old).kind == "file":
            self._same(lambda: os.link(self._at(old), self._at(new)), lambda: self.model.link(old, new))

    @rule(path=files)
    def unlink(self, path: str) -> None:
        self._same(lambda: os.unlink(self._at(path)), lambda: self.model.unlink(path))

    @rule(path=directories)
    def mkdir(self, path: str) -> None:
        self._same(lambda: os.mkdir(self._at(path)), lambda: self.model.mkdir(path))

    @rule(path=directories)
    def rmdir(self, path: str) -> None:
        self._same(lambda: os.rmdir(self._at(path)), lambda: self.model.rmdir(path))

    @rule(old=st.sampled_from(["g/folder", "g/folder/sub"]), new=directories)
    def rename_directory(self, old: str, new: str) -> None:
        if not new.endswith(("/c/4", "/c/0", "/c/2")):
            self._same(lambda: os.rename(self._at(old), self._at(new)), lambda: self.model.rename(old, new))

    @rule(path=files, mtime_ns=st.integers(10**18, 10**18 + 9))
    def set_time(self, path: str, mtime_ns: int) -> None:
        done = self._same(lambda: os.utime(self._at(path), ns=(0, mtime_ns)), lambda: self.model.set_time(path))
        is_made = any(draft.is_unpublished for draft in self.model.drafts.get(path, []))
        if done is None and not is_made and not (self.has_objects and place(path).kind != "chunk"):
            assert os.stat(self._at(path)).st_mtime_ns == mtime_ns

    @rule(index=st.integers(0, 1), value=st.integers(0, 9), in_place=st.booleans())
    def edit_document(self, index: int, value: int, in_place: bool) -> None:
        path = self._at(f"g/{self.names[index]}/zarr.json")
        document = {**json.loads(path.read_bytes()), "attributes": {"value": value}}
        target = path if in_place else path.with_suffix(".2.partial")
        target.write_text(json.dumps(document))
        if not in_place:
            target.rename(path)
        assert json.loads(path.read_bytes()) == document

    @rule(index=st.integers(0, 1))
    def move_array_there_and_back(self, index: int) -> None:
        path, moved = self._at(f"g/{self.names[index]}"), self._at("g/moved")
        path.rename(moved)
        self.model.move_drafts(f"g/{self.names[index]}")
        assert _files(moved).keys() == _files(self.model.root / f"g/{self.names[index]}").keys()
        moved.rename(path)
        _files(path)  # until it looks, or the TTL ends, the kernel asks for names in the directories that were here

    # The whole

    @rule()
    def compare(self) -> None:
        unused = ARRAYS.keys() - {*self.names}  # whose chunks are compared as they are stored
        found, expected = _files(self.mount.path, unused), _files(self.model.root, unused)
        for name in self.names:
            del found[f"g/{name}/zarr.json"], expected[f"g/{name}/zarr.json"]
        assert found == expected
        for path, content in found.items():
            if not self.model.drafts.get(path):  # its number is that of the file that is being written
                assert os.stat(self._at(path)).st_size == len(content)
        sizes: dict[int, set[int]] = {}
        for fd, handle in self.opened:
            sizes.setdefault(os.fstat(fd).st_ino, set()).add(self.model.size(handle))
        for fd in [
            fd for fd, handle in self.opened if not handle.became
        ]:  # two versions of one file may be open under one inode number, and one is answered
            assert os.fstat(fd).st_size in sizes[os.fstat(fd).st_ino]

    @rule()
    def flush(self) -> None:
        os.setxattr(self.mount.path, "user.shardfs.flush", b"")
        self._compare_stored()

    @rule()
    def remount(self) -> None:
        while self.opened:
            self.close(self.opened[-1])
        self.mount.unmount()
        self.model.unmount()
        self._compare_stored()
        self._mount_again()

    @rule()
    def crash(self) -> None:
        self.mount.process.kill()
        self.mount.process.wait()
        for fd, _ in self.opened:
            with suppress(OSError):
                os.close(fd)
        self.opened.clear()
        self.model.abandon()
        subprocess.run(["fusermount3", "-u", "-z", str(self.mount.path)], check=True)
        self._mount_again()

    def teardown(self) -> None:
        try:
            if hasattr(self, "names"):
                self.compare()
                self.remount()
        finally:
            self.model.abandon()
            for fd, _ in self.opened:
                with suppress(OSError):
                    os.close(fd)
            self.stack.close()

    def _mount_again(self) -> None:
        self.mount = self._mount()
        self.compare()

    def _make_source(self) -> None:
        make_source(self.source)

    def _mount(self) -> Mount:
        return self.mount_source(
            self.source,
            write=True,
            expect=(r"ERROR shardfs\.fuse\.operations: \w+: ",),
        )

    def _stored(self) -> Path:
        return self.source

    def _at(self, path: str) -> Path:
        return self.mount.path / path

    def _open(self, path: str, flags: int) -> None:
        fds: list[int] = []
        done = self._same(
            lambda: fds.append(os.open(self._at(path), flags, 0o644)), lambda: self.model.open(path, flags) and None
        )
        if done is None:
            self.opened.append((fds[0], self.model.handles[-1]))

    def _same(self, on_mount: Callable[[], Any], on_model: Callable[[], Any]) -> Any:
        """Do the same on both, with the same end, which is returned."""
        found, expected = outcome(on_mount), outcome(on_model)
        assert found == expected
        return found

    def _compare_stored(self) -> None:
        expected = {path: data for path, data in _files(self.model.root).items() if place(path).kind == "chunk"}
        found = stored_chunks(self._stored())
        assert found == expected


def _files(root: Path, without: Collection[str] = ()) -> dict[str, bytes]:
    """Every file below *root*, and its content, but for directories of some names."""
    found = {}
    for parent, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in without]
        for name in names:
            with open(f"{parent}/{name}", "rb") as file:
                found[f"{parent}/{name}".removeprefix(f"{root}/")] = file.read()
    return found


TestWritingMount = WritingMount.TestCase
TestWritingMount.settings = settings(
    max_examples=400 if LONG else 4,
    stateful_step_count=150 if LONG else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
