"""A disk that fails, that dies, and that shows what a power cut leaves of what was not synced.

A `LossyDisk` works on a real directory and remembers every call. What a power cut at any call may leave is rebuilt
from them, by this model:

- A file has the content of its last sync; of what was written or truncated since, each page of 4 KiB may be on the disk
  or not, in any of its versions, and the size may be any that the file had meanwhile, or one that a write passed
  through. Pages of a larger size that were not written are zeros.
- A failed sync leaves the pages that it was to write as uncertain as they were, even if a later sync succeeds: the
  kernel forgets that they are dirty.
- A change of names (creation, link, rename, removal) is certain once all its directories were synced after it; before,
  it happened or not, as a whole, whatever happened to others. The sync of a file says nothing of its name, unless
  `sync_keeps_name`.
- A file has any of the times that it had since its last sync, whatever is left of its content.
- A file has the sticky bit if it was found or made with it. Other modes and owners are not followed; links and pipes
  become empty files.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardfs.stores.local.syscalls import Syscalls

PAGE = 4096

Choose = Callable[[int], int]
"""Chooses one of so many states, the oldest of which is 0: `random.Random().randrange`, `oldest` or `newest`."""


def oldest(states: int) -> int:
    """Lose all that was not synced."""
    return 0


def newest(states: int) -> int:
    """Lose nothing."""
    return states - 1


class Killed(BaseException):
    """The process ends here, as by SIGKILL: what was done stays, and nothing is done any more."""


@dataclass(frozen=True)
class Fault:
    """What a call raises in place of what it is to do; a `pwrite` writes its first *written* bytes all the same."""

    error: BaseException
    written: int = 0


@dataclass(frozen=True)
class Call:
    """One call: its name, the name or names of files in it, and what was to be written where."""

    name: str
    files: tuple[str, ...] = ()
    offset: int = 0
    data: bytes = b""


@dataclass(eq=False)
class _File:
    initial: bytes = b""
    identity: tuple[int, int] = (0, 0)
    mtime_ns: int = 0
    is_sticky: bool = False


@dataclass(eq=False)
class _Directory:
    initial: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Directory


@dataclass(frozen=True)
class _Written:
    file: _File
    offset: int
    data: bytes


@dataclass(frozen=True)
class _Truncated:
    file: _File
    nbytes: int


@dataclass(frozen=True)
class _Timed:
    file: _File
    mtime_ns: int


@dataclass(frozen=True)
class _Synced:
    node: _Node
    failed: bool = False


@dataclass(frozen=True)
class _Renamed:
    """Names that stand for something else from then on, all of them or none."""

    names: tuple[tuple[_Directory, str, _Node | None], ...]


_Effect = _Written | _Truncated | _Timed | _Synced | _Renamed


@dataclass(frozen=True)
class State:
    """What may be there afterwards: two are equal if `build` does the same for both."""

    _nodes: tuple[tuple[str, _Node], ...]
    _contents: tuple[tuple[_File, bytes, int, Path | None], ...]

    def build(self, directory: Path) -> None:
        """Make it in *directory*, which does not exist."""
        contents = {file: values for file, *values in self._contents}
        paths: dict[_File, Path] = {}
        for name, node in self._nodes:
            path = Path(f"{directory}{name}")
            if isinstance(node, _Directory):
                path.mkdir()
            elif node in paths:
                path.hardlink_to(paths[node])
            else:
                paths[node] = path
                content, mtime_ns, kept = contents[node]
                if kept is not None:
                    path.hardlink_to(kept)
                path.write_bytes(content)
                os.utime(path, ns=(mtime_ns, mtime_ns))
                if node.is_sticky:
                    path.chmod(path.stat().st_mode | stat.S_ISVTX)


def _only_counted(name: str) -> Callable[..., None]:
    """A call that changes nothing of what a power cut leaves, or is made where no power is cut."""

    def call(self: LossyDisk, *args: Any) -> None:
        with self._call(name):
            getattr(Syscalls, name)(self, *args)

    return call


class LossyDisk(Syscalls):
    """A disk below *root*, whose calls fail as *faults* says, by their number from 0 on."""

    def __init__(
        self, root: Path, faults: dict[int, Fault] | None = None, *, at_once: bool = True, clones: bool = False
    ) -> None:
        """With *at_once* it is like ext4, with *clones* like btrfs, else like a file system that can do neither."""
        self._at_once = at_once
        self._clones = clones
        self.calls: list[Call] = []
        self.faults = faults or {}
        self._root = root
        self._killed: BaseException | None = None
        self._lock = threading.Lock()
        self._graveyard: Path | None = None
        self._kept: dict[tuple[int, int], Path] | None = None
        self._contents: dict[bytes, bytes] = {}  # of states, most of which have the same ones
        self._directories: list[_Directory] = []
        self._nodes: dict[tuple[int, int], _Node] = {}
        self._effects: list[tuple[int, _Effect]] = []
        self._tree = self._scan(root)

    @property
    def names(self) -> list[str]:
        """The names of all calls."""
        return [call.name for call in self.calls]

    def create(self, name: str, flags: int, mode: int, dir_fd: int) -> int:
        with self._call("create", name):
            before = _look(name, dir_fd)
            fd = super().create(name, flags, mode, dir_fd)
            if before is None:
                self._made(_File(is_sticky=bool(mode & stat.S_ISVTX)), name, dir_fd)
            elif flags & os.O_TRUNC:
                self._changed(_Truncated(self._file(fd), 0), fd)
            return fd

    def pwrite(self, fd: int, buffers: Sequence[Any], offset: int) -> None:
        data = b"".join(buffers)
        with self._call("pwrite", offset=offset, data=data, fd=fd):
            super().pwrite(fd, [data], offset)
            self._changed(_Written(self._file(fd), offset, data), fd)

    def appends_at_once(self, fd: int) -> bool:
        return self._at_once

    def pwrite_direct(self, fd: int, buffer: Any, offset: int) -> None:
        data = bytes(buffer)
        assert offset % PAGE == len(data) % PAGE == 0
        with self._call("pwrite_direct", offset=offset, data=data, fd=fd):
            Syscalls.pwrite(self, fd, [data], offset)
            self._changed(_Written(self._file(fd), offset, data), fd)

    def clone(self, fd: int, source: int) -> None:
        if not self._clones:
            raise OSError(errno.EOPNOTSUPP, "no clones")
        data = os.pread(source, os.fstat(source).st_size, 0)
        with self._call("clone", fd=fd):
            Syscalls.pwrite(self, fd, [data], 0)
            self._changed(_Written(self._file(fd), 0, data), fd)

    def truncate(self, fd: int, nbytes: int) -> None:
        with self._call("truncate", offset=nbytes):
            super().truncate(fd, nbytes)
            status = os.fstat(fd)
            if status.st_nlink or (status.st_dev, status.st_ino) in self._nodes:  # else it never had a name
                self._changed(_Truncated(self._file(fd), nbytes), fd)

    def utime(self, target: Any, times: tuple[int, int] | None = None) -> None:
        with self._call("utime"):
            super().utime(target, times)
            if isinstance(target, int):
                self._note(_Timed(self._file(target), os.fstat(target).st_mtime_ns))

    def sync(self, fd: int) -> None:
        with self._call("sync", fd=fd):
            self._note(_Synced(self._file(fd)))

    def sync_directory(self, fd: int) -> None:
        with self._call("sync_directory"):
            self._note(_Synced(self._directory(fd)))

    def rename(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        with self._call("rename", name, new):
            node = self._at(name, dir_fd)
            self._bury(new, new_dir_fd)
            super().rename(name, new, dir_fd, new_dir_fd)
            self._moved(node, name, new, dir_fd, new_dir_fd)

    def rename_exclusive(self, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        with self._call("rename_exclusive", name, new):
            node = self._at(name, dir_fd)
            super().rename_exclusive(name, new, dir_fd, new_dir_fd)
            self._moved(node, name, new, dir_fd, new_dir_fd)

    def unlink(self, name: str, dir_fd: int) -> None:
        with self._call("unlink", name):
            self._bury(name, dir_fd)
            super().unlink(name, dir_fd)
            self._note(_Renamed(((self._directory(dir_fd), name, None),)))

    def mkdir(self, name: str, mode: int, dir_fd: int) -> None:
        with self._call("mkdir", name):
            super().mkdir(name, mode, dir_fd)
            self._made(_Directory(), name, dir_fd)

    def rmdir(self, name: str, dir_fd: int) -> None:
        with self._call("rmdir", name):
            super().rmdir(name, dir_fd)
            self._note(_Renamed(((self._directory(dir_fd), name, None),)))

    def link(self, *args: Any) -> None:
        raise NotImplementedError("no test needs it")

    symlink = link
    chmod, chown, sync_file_system = map(_only_counted, ("chmod", "chown", "sync_file_system"))
    set_attribute, remove_attribute = map(_only_counted, ("set_attribute", "remove_attribute"))

    def after_kill(self, calls: int, written: int = 0) -> State:
        """What is there if the process is killed after so many *calls*.

        Of the next call, if it is a write, the first *written* bytes are written. The files are the very files of the
        root, whose contents are lost when it is built; it may be done for one number of calls after the other.
        """
        effects = [effect for number, effect in self._effects if number < calls]
        for number, effect in self._effects:
            if number == calls and isinstance(effect, _Written) and written:
                effects.append(_Written(effect.file, effect.offset, effect.data[:written]))
        return self._state(newest, effects, sync_keeps_name=False, keeps_inodes=True)

    def after_power_cut(
        self, choose: Choose, calls: int | None = None, *, sync_keeps_name: bool = False, keeps_inodes: bool = False
    ) -> State:
        """A state that a power cut after so many *calls* may leave.

        With *keeps_inodes* the files are the very files of the root, as in `after_kill`.
        """
        stop = len(self.calls) if calls is None else calls
        effects = [effect for number, effect in self._effects if number < stop]
        return self._state(choose, effects, sync_keeps_name=sync_keeps_name, keeps_inodes=keeps_inodes)

    def _state(self, choose: Choose, effects: Sequence[_Effect], *, sync_keeps_name: bool, keeps_inodes: bool) -> State:
        entries = _entries(self._directories, effects, choose, sync_keeps_name)
        inodes = self._inodes() if keeps_inodes else {}
        nodes: list[tuple[str, _Node]] = []
        contents: dict[_File, tuple[bytes, int]] = {}

        def follow(node: _Node, path: str) -> None:
            nodes.append((path, node))
            if isinstance(node, _Directory):
                for name, below in entries[node].items():
                    follow(below, f"{path}/{name}")
            elif node not in contents:
                content = _content(node, effects, choose)
                contents[node] = self._contents.setdefault(content, content), _time(node, effects, choose)

        follow(self._tree, "")
        files = [(file, *values, inodes.get(file.identity)) for file, values in contents.items()]
        return State(tuple(nodes), tuple(files))

    @contextmanager
    def _call(
        self, name: str, *files: str, offset: int = 0, data: bytes = b"", fd: int | None = None
    ) -> Iterator[None]:
        """Count a call, and do in its place what is to go wrong."""
        with self._lock:
            if self._killed is not None:
                raise self._killed
            self.calls.append(Call(name, files, offset, data))
            fault = self.faults.get(len(self.calls) - 1)
            if fault is None:
                yield
                return
            if fault.written and fd is not None:
                super().pwrite(fd, [data[: fault.written]], offset)
                self._changed(_Written(self._file(fd), offset, data[: fault.written]), fd)
            if isinstance(fault.error, Killed):
                self._killed = fault.error
            elif name == "sync" and fd is not None:
                self._note(_Synced(self._file(fd), failed=True))
            raise fault.error

    def _changed(self, effect: _Written | _Truncated, fd: int) -> None:
        self._note(effect)
        self._note(_Timed(effect.file, os.fstat(fd).st_mtime_ns))

    def _note(self, effect: _Effect) -> None:
        self._effects.append((len(self.calls) - 1, effect))

    def _made(self, node: _Node, name: str, dir_fd: int) -> None:
        status = _look(name, dir_fd)
        assert status is not None
        self._know(node, status)
        self._note(_Renamed(((self._directory(dir_fd), name, node),)))

    def _moved(self, node: _Node, name: str, new: str, dir_fd: int, new_dir_fd: int) -> None:
        self._note(_Renamed(((self._directory(dir_fd), name, None), (self._directory(new_dir_fd), new, node))))

    def _know(self, node: _Node, status: os.stat_result) -> None:
        identity = status.st_dev, status.st_ino
        self._nodes[identity] = node
        if isinstance(node, _Directory):
            self._directories.append(node)
        else:
            node.identity, node.mtime_ns = identity, status.st_mtime_ns

    def _at(self, name: str, dir_fd: int) -> _Node:
        return self._scan(Path(f"/proc/self/fd/{dir_fd}") / name)

    def _file(self, fd: int) -> _File:
        node = self._scan(Path(os.readlink(f"/proc/self/fd/{fd}")), os.fstat(fd))
        assert isinstance(node, _File)
        return node

    def _directory(self, fd: int) -> _Directory:
        node = self._scan(Path(os.readlink(f"/proc/self/fd/{fd}")), os.fstat(fd))
        assert isinstance(node, _Directory)
        return node

    def _scan(self, path: Path, status: os.stat_result | None = None) -> _Node:
        """Return what is at *path*; if it was not made through this disk, as something durable under no name."""
        status = status or path.lstat()
        known = self._nodes.get((status.st_dev, status.st_ino))
        if known is not None:
            return known
        node: _Node
        if stat.S_ISDIR(status.st_mode):
            node = _Directory({entry.name: self._scan(entry) for entry in path.iterdir()})
        else:
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            node = _File(content, is_sticky=bool(status.st_mode & stat.S_ISVTX))
        self._know(node, status)
        return node

    def _bury(self, name: str, dir_fd: int) -> None:
        """Keep the inode of a file that loses a name, so that it is found and its number not given to another file."""
        status = _look(name, dir_fd)
        if status is not None and stat.S_ISREG(status.st_mode):
            if self._graveyard is None:
                self._graveyard = Path(tempfile.mkdtemp(".buried", self._root.name, self._root.parent))
            os.link(name, self._graveyard / str(len(self.calls)), src_dir_fd=dir_fd, follow_symlinks=False)

    def _inodes(self) -> dict[tuple[int, int], Path]:
        """Every file of the root, and every one that was removed from it, by its inode."""
        if self._kept is None:
            self._kept = {}
            for top in (self._root, self._graveyard):
                for path in top.rglob("*") if top is not None else ():
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        self._kept[status.st_dev, status.st_ino] = path
        return self._kept


class Machine(LossyDisk):
    """A lossy disk that outlives its processes: after `restart` it goes on where the last one was killed.

    So what a recovery relied on is lost too if nobody made it durable.
    """

    def kill_at(self, call: int, written: int = 0) -> None:
        """Let the process end in place of the call of this number, of which *written* bytes are written."""
        self.faults = {call: Fault(Killed(), written)}

    def restart(self) -> None:
        self.faults = {}
        self._killed = None


class QuickDisk(Syscalls):
    """A disk that is not waited for, where nothing is cut."""

    def sync(self, fd: int) -> None:
        pass

    sync_directory = sync_file_system = sync


def _look(name: str, dir_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _entries(
    directories: Sequence[_Directory], effects: Sequence[_Effect], choose: Choose, sync_keeps_name: bool
) -> dict[_Directory, dict[str, _Node]]:
    """Return the names in every directory, as far as they are kept."""
    entries = {directory: dict(directory.initial) for directory in directories}
    for place, effect in enumerate(effects):
        if not isinstance(effect, _Renamed):
            continue
        synced = {later.node for later in effects[place:] if isinstance(later, _Synced) and not later.failed}
        is_certain = all(directory in synced for directory, _, _ in effect.names) or (
            sync_keeps_name and any(node in synced for _, _, node in effect.names if isinstance(node, _File))
        )
        if is_certain or choose(2):
            for directory, name, node in effect.names:
                entries[directory].pop(name, None)
                if node is not None:
                    entries[directory][name] = node
    return entries


def _content(file: _File, effects: Sequence[_Effect], choose: Choose) -> bytes:
    """Return the content of a file, as far as it is kept."""
    now = bytearray(file.initial)
    pages: dict[int, list[bytes]] = {}  # the versions of those that are uncertain
    sizes = [len(now)]
    given_up: set[int] = set()

    def page_at(page: int) -> bytes:
        return bytes(now[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0")

    for effect in effects:
        match effect:
            case _Written(written, offset, data) if written is file:
                touched = range(offset // PAGE, -(-(offset + len(data)) // PAGE))
                for page in touched:
                    pages.setdefault(page, [page_at(page)])
                now.extend(bytes(max(0, offset + len(data) - len(now))))
                now[offset : offset + len(data)] = data
                for page in touched:
                    pages[page].append(page_at(page))
                given_up.difference_update(touched)
                sizes.append(len(now))
            case _Truncated(truncated, nbytes) if truncated is file:
                touched = range(nbytes // PAGE, -(-len(now) // PAGE))
                for page in touched:
                    pages.setdefault(page, [page_at(page)])
                now[nbytes:] = bytes(max(0, nbytes - len(now)))
                for page in touched:
                    pages[page].append(page_at(page))
                sizes.append(len(now))
            case _Synced(synced, failed) if synced is file:
                if failed:
                    given_up.update(pages)
                else:
                    pages = {page: versions for page, versions in pages.items() if page in given_up}
                    sizes = [len(now)]
    size = _size(sizes, choose)
    kept = bytearray(now[:size].ljust(size, b"\0"))
    for page, versions in sorted(pages.items()):
        if page * PAGE < size:
            kept[page * PAGE : (page + 1) * PAGE] = versions[choose(len(versions))]
    return bytes(kept[:size])


def _time(file: _File, effects: Sequence[_Effect], choose: Choose) -> int:
    """Return the time of a file, which may be kept where its content is not."""
    times = [file.mtime_ns]
    for effect in effects:
        match effect:
            case _Timed(changed, mtime_ns) if changed is file:
                times.append(mtime_ns)
            case _Synced(synced, False) if synced is file:
                times = times[-1:]
    return times[choose(len(times))]


def _size(sizes: Sequence[int], choose: Choose) -> int:
    """Return one of *sizes*, or one between it and the one before that a write passed through at the end of a page."""
    which = choose(len(sizes))
    before, after = sizes[max(0, which - 1)], sizes[which]
    ends = [*range((before // PAGE + 1) * PAGE, after, PAGE), after]
    return ends[choose(len(ends))]
