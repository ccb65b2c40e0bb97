"""A plain directory that keeps the promises of a writing mount: what the state machine holds the mount against.

Every operation is done by the operating system in a directory, but for what differs by design:

- What is written to a chunk or a document is published as a whole, when a descriptor is closed or synced, when its
  name is cut, and when it is renamed; each who opens it to write has a `Draft` of its own; a reader keeps the version
  that it opened. A published version is a file of its own, put in place by rename.
- A name that is made is taken, and has nothing to read until it is published.
- Directories of chunks are there as far as the grid goes; a name beyond the grid is `EINVAL` to writers, and not there
  to readers.
- A chunk or a document has one name only: a link to it is `EPERM`, a link that becomes one is a copy.
- What becomes a document must be one, or is `EINVAL`; then nothing is changed.
"""

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import shardfs
from tests.support.corpus import BIG, GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import store
from tests.support.encoder import SHARDING, Coordinates, chunk_key

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
GRID = (4, 4)
"""Inner chunks of each array along its axes; shards hold two by two of them."""


def _keys(name: str, separator: str) -> dict[str, Any]:
    return {"chunk_key_encoding": {"name": name, "configuration": {"separator": separator}}}


_INNER = sharding((1, 1), BIG)
_START = extension(
    SHARDING, chunk_shape=(1, 1), codecs=[BIG], index_codecs=[LITTLE, extension("crc32c")], index_location="start"
)
ARRAYS = {
    "plain": array((4, 4), (2, 2), _INNER),
    "flat": array((4, 4), (2, 2), _INNER, **_keys("default", ".")),
    "v2": array((4, 4), (2, 2), _INNER, **_keys("v2", ".")),
    "deep": array((4, 4), (4, 2), sharding((2, 2), _INNER)),
    "start": array((4, 4), (2, 2), _START),
    "around": array((4, 4), (2, 2), _INNER, GZIP),
}
"""Arrays by name, in a group `g`: each is written by another way."""

_CHUNK = re.compile(r"g/(\w+)/(?:(c)[/.])?(\d+)[./](\d+)")


@dataclass(frozen=True)
class Place:
    """What a path is by its name: `chunk`, `document`, or `file` for all others."""

    kind: str
    is_within: bool = True
    """Whether it lies within the grid, for a chunk."""


def place(path: str) -> Place:
    """Return what *path*, relative to the root, stands for."""
    if path.rpartition("/")[2] == "zarr.json":
        return Place("document")
    found = _CHUNK.fullmatch(path)
    if found is None or found[1] not in ARRAYS:
        return Place("file")
    coordinates = tuple(map(int, found.group(3, 4)))
    if path != f"g/{found[1]}/{chunk_key(ARRAYS[found[1]], coordinates)}":
        return Place("file")
    return Place("chunk", all(n < m for n, m in zip(coordinates, GRID, strict=True)))


def chunk_path(name: str, coordinates: Coordinates) -> str:
    """Return the path of a chunk of the array *name*."""
    return f"g/{name}/{chunk_key(ARRAYS[name], coordinates)}"


def is_nested(name: str) -> bool:
    """Whether the chunks of the array *name* lie in directories."""
    return "/" in chunk_key(ARRAYS[name], (0, 0))


def make_source(directory: Path) -> None:
    """Write the arrays, each without some of its chunks, beside plain files."""
    (directory / "g/folder").mkdir(parents=True)
    for path in ("zarr.json", "g/zarr.json"):
        (directory / path).write_bytes(GROUP)
    (directory / "g/notes.txt").write_bytes(b"notes")
    absent = [(0, 1), (2, 2), (2, 3), (3, 2), (3, 3)]
    for name, document in ARRAYS.items():
        store(directory / "g" / name, document, np.arange(16, dtype="int32").reshape(GRID), absent)


def stored_chunks(directory: Path) -> dict[str, bytes]:
    """Read the chunks of all arrays out of their shards, by their paths."""
    dataset = shardfs.open(str(directory))
    chunks = {(name, at): dataset[f"g/{name}"].read_chunk(at) for name in ARRAYS for at in product(range(4), repeat=2)}
    return {chunk_path(*place): data for place, data in chunks.items() if data is not None}


@dataclass(eq=False)
class Draft:
    """What is written to a chunk or a document by one who has it open."""

    path: str | None
    """Its name, None if that stands for something else now."""
    content: bytearray
    is_dirty: bool = False
    is_fresh: bool = False
    is_new: bool = False
    """Whether there was no file when it was begun, and none was published since."""
    is_moved: bool = False
    """Whether it, or its directory, was renamed: nobody can write to it any more."""
    is_lost: bool = False
    """Whether it was not published before that."""

    @property
    def is_unpublished(self) -> bool:
        return self.is_dirty or self.is_fresh


@dataclass(eq=False)
class Handle:
    """An open file: of the directory (*fd*), or a draft. Who writes to one that *became* a chunk is told."""

    flags: int
    fd: int = -1
    draft: Draft | None = None
    became: bool = False

    @property
    def is_writable(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class RefusedError(OSError):
    """What the mount refuses, and a plain directory does not."""

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))


@dataclass
class Model:
    """The plain directory *root*, and what is open in it."""

    root: Path
    drafts: dict[str, list[Draft]] = field(default_factory=dict)
    """Those of each name, in the order in which they were begun."""
    handles: list[Handle] = field(default_factory=list)
    _versions: int = 0

    # Open files

    def open(self, path: str, flags: int) -> Handle:
        where = place(path)
        if where.kind == "file" or flags == os.O_RDONLY:
            handle = Handle(flags, os.open(self._at(path), flags, 0o644))
        else:
            handle = Handle(flags, draft=self._open_draft(path, flags, is_within=where.is_within))
        self.handles.append(handle)
        return handle

    def _open_draft(self, path: str, flags: int, *, is_within: bool) -> Draft:
        exists, is_made = self._at(path).is_file(), self._is_made(path)
        if not (exists or is_made) and not (flags & os.O_CREAT and self._at(path).parent.is_dir()):
            raise RefusedError(errno.ENOENT)
        if not is_within:
            raise RefusedError(errno.EINVAL)
        if flags & os.O_EXCL and flags & os.O_CREAT and (exists or is_made):
            raise RefusedError(errno.EEXIST)
        content = self._at(path).read_bytes() if exists and not flags & os.O_TRUNC else b""
        is_fresh = bool(flags & os.O_TRUNC) or not (exists or is_made)
        draft = Draft(path, bytearray(content), is_fresh=is_fresh, is_new=not exists)
        self.drafts.setdefault(path, []).append(draft)
        return draft

    def _is_made(self, path: str) -> bool:
        """Whether *path* is the name of a file that is about to be published."""
        return any(draft.is_unpublished for draft in self.drafts.get(path, []))

    def read(self, handle: Handle, offset: int, nbytes: int) -> bytes:
        if handle.draft is None:
            return os.pread(handle.fd, nbytes, offset)
        return bytes(handle.draft.content[offset : offset + nbytes])

    def write(self, handle: Handle, offset: int, data: bytes) -> None:
        if handle.draft is None:
            os.pwrite(handle.fd, data, offset)
            _require_name(handle)
            return
        if not data:
            return  # the kernel sends no such write
        _require_place(handle.draft)
        content = handle.draft.content
        start = len(content) if handle.flags & os.O_APPEND else offset
        content.extend(bytes(max(0, start - len(content))))
        content[start : start + len(data)] = data
        handle.draft.is_dirty, handle.draft.is_fresh = True, False

    def ftruncate(self, handle: Handle, nbytes: int) -> None:
        if handle.draft is None:
            os.ftruncate(handle.fd, nbytes)
            _require_name(handle)
        else:
            _require_place(handle.draft)
            _cut(handle.draft, nbytes)

    def size(self, handle: Handle) -> int:
        return os.fstat(handle.fd).st_size if handle.draft is None else len(handle.draft.content)

    def sync(self, handle: Handle) -> None:
        if handle.draft is not None and handle.draft.is_lost:
            raise RefusedError(errno.ESTALE)
        if handle.draft is not None and handle.draft.is_dirty:
            self._publish(handle.draft)

    def abandon(self) -> None:
        """End as a process that is killed does, and the mount with it: what was not published is lost."""
        for handle in self.handles:
            if handle.fd >= 0:
                os.close(handle.fd)
        self.handles.clear()
        self.drafts.clear()

    def close(self, handle: Handle) -> None:
        self.handles.remove(handle)
        draft = handle.draft
        if draft is None:
            os.close(handle.fd)
            return
        is_still_empty = draft.is_fresh and draft.path is not None
        is_still_empty = is_still_empty and bool(handle.flags & (os.O_TRUNC | os.O_EXCL))
        try:
            if draft.is_lost:
                raise RefusedError(errno.ESTALE)
            if draft.is_dirty:
                self._publish(draft)
            elif is_still_empty and place(draft.path or "").kind == "document":
                raise RefusedError(errno.EINVAL)
        finally:
            if draft.is_fresh:  # published at release, whose errors nobody sees
                with suppress(OSError):
                    self._publish(draft)
            if draft.path is not None:
                self.drafts[draft.path].remove(draft)

    def truncate(self, path: str, nbytes: int) -> None:
        if place(path).kind == "file":
            os.truncate(self._at(path), nbytes)
            return
        handle = self.open(path, os.O_WRONLY)
        self.ftruncate(handle, nbytes)
        self.close(handle)

    # Names

    def rename(self, old: str, new: str) -> None:
        source, target = place(old), place(new)
        if not self._is_made(old):
            self._at(old).lstat()
        if not (source.is_within and target.is_within):
            raise RefusedError(errno.EINVAL)
        if old == new:
            return
        drafts = list(self.drafts.get(old, []))
        for draft in drafts:
            if draft.is_dirty or (draft.is_fresh and draft.is_new):
                self._publish(draft)
        if target.kind == "document":
            self._at(new).parent.lstat()
            if not self._at(old).is_dir():
                _require_document(self._at(old).read_bytes())
        if source.kind == "file" == target.kind:
            os.rename(self._at(old), self._at(new))
            self.move_drafts(old)
            return
        if self._at(old).is_dir() and not self._at(new).exists():
            raise RefusedError(errno.EISDIR)
        was = self._at(old).lstat()
        if source.kind == "file" and self._at(old).is_file() and not self._at(new).is_dir():
            self._replace(old, self._at(old).read_bytes())  # those who read the file do not see the chunk change
        os.rename(self._at(old), self._at(new))
        self._detach(new)
        self.move_drafts(old)
        for handle in self.handles:
            if handle.fd >= 0 and os.fstat(handle.fd).st_ino == was.st_ino and was.st_nlink == 1:
                handle.became = True

    def move_drafts(self, path: str) -> None:
        """Note that *path*, with all below it, was renamed."""
        for known in [known for known in self.drafts if f"{known}/".startswith(f"{path}/")]:
            for draft in self.drafts.pop(known):
                draft.path, draft.is_moved, draft.is_lost = None, True, draft.is_unpublished
                draft.is_dirty = draft.is_fresh = False

    def link(self, old: str, new: str) -> None:
        """Link a file; chunks and documents have one name."""
        where = place(new)
        if where.kind == "file":
            os.link(self._at(old), self._at(new))
            return
        self._at(old).lstat()
        if self._at(new).exists() or self._is_made(new):
            raise RefusedError(errno.EEXIST)
        if self._at(old).is_dir():
            raise RefusedError(errno.EPERM)
        if not where.is_within:
            raise RefusedError(errno.EINVAL)
        content = self._at(old).read_bytes()
        if where.kind == "document":
            self._at(new).parent.lstat()
            _require_document(content)
        self._detach(new)
        self._replace(new, content)

    def unlink(self, path: str) -> None:
        if not self._is_made(path) or self._at(path).exists():
            os.unlink(self._at(path))
        self._detach(path)

    def mkdir(self, path: str) -> None:
        if re.fullmatch(r"g/\w+/c/[4-9]", path):
            raise RefusedError(errno.EINVAL)
        os.mkdir(self._at(path))

    def set_time(self, path: str) -> None:
        if not self._is_made(path):
            os.utime(self._at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))
        if re.fullmatch(r"g/\w+/c(/[0-3])?", path):
            os.mkdir(self._at(path))  # it is there again, as it was before

    def unmount(self) -> None:
        """Lose the empty directories beside chunks, as they go with a mount that ends."""
        for name in filter(is_nested, ARRAYS):
            for directory, _, _ in os.walk(self.root / f"g/{name}/c", topdown=False):
                if not re.fullmatch(r".*/c(/[0-3])?", directory):
                    with suppress(OSError):
                        os.rmdir(directory)

    def make_directories(self) -> None:
        """Make the directories of chunks."""
        for name in filter(is_nested, ARRAYS):
            for n in range(GRID[0]):
                (self.root / f"g/{name}/c/{n}").mkdir(parents=True, exist_ok=True)

    # Inside

    def _at(self, path: str) -> Path:
        return self.root / path

    def _publish(self, draft: Draft) -> None:
        if draft.path is None:
            return
        if place(draft.path).kind == "document":
            draft.is_dirty, draft.is_fresh = True, False  # who closes it is told again
            _require_document(bytes(draft.content))
        self._replace(draft.path, bytes(draft.content))
        draft.is_dirty = draft.is_fresh = False
        for other in self.drafts[draft.path]:
            other.is_new = False

    def _replace(self, path: str, content: bytes) -> None:
        self._versions += 1
        version = self.root.parent / f"version-{self._versions}"
        version.write_bytes(content)
        version.rename(self._at(path))

    def _detach(self, path: str) -> None:
        for draft in self.drafts.pop(path, []):
            draft.path = None


def _require_place(draft: Draft) -> None:
    if draft.is_moved:
        raise RefusedError(errno.ESTALE)


def _require_name(handle: Handle) -> None:
    if handle.became:
        raise RefusedError(errno.ESTALE)


def _cut(draft: Draft, nbytes: int) -> None:
    del draft.content[nbytes:]
    draft.content.extend(bytes(nbytes - len(draft.content)))
    draft.is_dirty, draft.is_fresh = True, False


def _require_document(content: bytes) -> None:
    try:
        document = json.loads(content)
    except ValueError:
        raise RefusedError(errno.EINVAL) from None
    members = {**document, "attributes": {}} if isinstance(document, dict) else None
    if members != {**json.loads(GROUP), "attributes": {}}:
        raise RefusedError(errno.EINVAL)


def outcome(operation: Callable[[], Any]) -> Any:
    """Return what *operation* returns, or the name of its error."""
    try:
        return operation()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
