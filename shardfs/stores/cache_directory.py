"""The directory of a cache on the local disk: whether it is ours, and how files come and go in it.

It holds `CACHEDIR.TAG`, by which backup programs know a cache too; the files on their way, `new-…`; and *drawers*,
directories with the entries.  Links in it are not followed.  Calls block, and raise `OSError` as it comes, which those
who use the cache never see.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from string import hexdigits
from typing import Final, NamedTuple

from shardfs.errors import UsageError
from shardfs.stores.base import Buffer
from shardfs.stores.beneath import READ, Descriptor
from shardfs.stores.durable import Disk
from shardfs.stores.range_entry import FORMAT

_TAG: Final = "CACHEDIR.TAG"
_TAG_CONTENT: Final = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    f"# Ranges of objects that shardfs fetched, format {FORMAT}.  Everything here may be deleted at any time.\n"
).encode()
_NEW: Final = "new-"
_DRAWER_NAME_LENGTH: Final = 3
_BLOCK_NBYTES: Final = 512  # what st_blocks counts, whatever the file system


class File(NamedTuple):
    """A name in a drawer; *nbytes* is what it takes on the disk, *used* when it was used, in seconds since 1970."""

    name: str
    size: int
    nbytes: int
    used: float
    is_regular: bool

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> "File":
        """Return what the operating system says of *name*."""
        nbytes = status.st_blocks * _BLOCK_NBYTES
        return cls(name, status.st_size, nbytes, status.st_mtime, stat.S_ISREG(status.st_mode))


class CacheDirectory:
    """The directory at *path*, made if it is missing; whatever becomes of its name, it stays the same directory.

    Raises `UsageError` if it cannot be made or written, if it belongs to somebody else or others may write it, or if
    something is in it that is not of a cache.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        self._disk = disk
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._root = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            _require_private(path, os.fstat(self._root.fd))
            self._take(path)
            self._try_to_write()
        except FileExistsError:
            raise UsageError(f"{path} is not a directory, and cannot be used as a cache") from None
        except OSError as error:
            raise UsageError(f"the directory {path} cannot be used as a cache: {error.strerror}") from None

    def drawers(self) -> Sequence[str]:
        """Return the names of all drawers."""
        with os.scandir(self._root.fd) as entries:
            return [entry.name for entry in entries if _is_drawer(entry)]

    def look(self, drawer: str, known: Collection[str] = ()) -> tuple[list[File], set[str]]:
        """Return what is in a drawer and not *known*, and what is *known* and gone; a missing drawer is empty."""
        new: list[File] = []
        gone = set(known)
        try:
            directory = self._drawer(drawer)
        except FileNotFoundError:
            return new, gone
        with os.scandir(directory.fd) as entries:
            for entry in entries:
                if entry.name in known:
                    gone.discard(entry.name)
                    continue
                with suppress(FileNotFoundError):
                    new.append(File.of(entry.name, entry.stat(follow_symlinks=False)))
        return new, gone

    def open(self, drawer: str, name: str) -> tuple[Descriptor, File]:
        """Open a file to read it."""
        directory = self._drawer(drawer)
        descriptor = Descriptor(os.open(name, READ, dir_fd=directory.fd))
        return descriptor, File.of(name, os.fstat(descriptor.fd))

    def mark_used(self, file: Descriptor, now: float) -> None:
        """Say that an open file was used *now*, in seconds since 1970."""
        now_ns = int(now * 1e9)
        self._disk.utime(file.fd, (now_ns, now_ns))

    def write(self, drawer: str, name: str, content: Sequence[Buffer], now: float) -> int:
        """Make a file, used *now*, which others see complete or not at all; return what it takes on the disk.

        After an error nothing is left of it.
        """
        with self._new_file() as (file, temporary):
            self._disk.pwrite(file.fd, content, 0)
            self.mark_used(file, now)
            nbytes = File.of(name, os.fstat(file.fd)).nbytes
            with suppress(FileExistsError):
                self._disk.mkdir(drawer, 0o700, self._root.fd)
            directory = self._drawer(drawer)
            self._disk.rename(temporary, name, self._root.fd, directory.fd)
        return nbytes

    def remove(self, drawer: str, name: str) -> None:
        """Remove a file; it is no error if another process did."""
        with suppress(FileNotFoundError):
            directory = self._drawer(drawer)
            self._disk.unlink(name, directory.fd)

    def remove_abandoned(self) -> None:
        """Remove the files that were on their way when their process ended: a living one holds a lock on its own."""
        for name in os.listdir(self._root.fd):
            if name.startswith(_NEW):
                with suppress(OSError):
                    file = Descriptor(os.open(name, READ, dir_fd=self._root.fd))
                    fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._disk.unlink(name, self._root.fd)

    def _try_to_write(self) -> None:
        with self._new_file() as (file, name):
            self._disk.pwrite(file.fd, [name.encode()], 0)
            self._disk.unlink(name, self._root.fd)

    @contextmanager
    def _new_file(self) -> Iterator[tuple[Descriptor, str]]:
        """Give a file that nobody else looks at, and its name; after an error nothing has that name."""
        while True:
            name = _NEW + secrets.token_hex(8)
            file = Descriptor(self._disk.create(name, os.O_RDWR | os.O_EXCL, 0o600, self._root.fd))
            fcntl.flock(file.fd, fcntl.LOCK_EX)
            if os.fstat(file.fd).st_nlink:  # else it was taken for abandoned before it was locked
                break
        try:
            yield file, name
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(name, self._root.fd)
            raise

    def _drawer(self, name: str) -> Descriptor:
        return Descriptor(os.open(name, READ | os.O_DIRECTORY, dir_fd=self._root.fd))

    def _take(self, path: str) -> None:
        # In this order: whoever tags the directory first, does so before anything else gets there.
        names = os.listdir(self._root.fd)
        tag = self._read_tag()
        if tag == _TAG_CONTENT:
            return
        if not set(names) <= {_TAG} or not _TAG_CONTENT.startswith(tag):
            raise UsageError(
                f"the directory {path} is not empty, and not a cache of this version of shardfs: "
                "name another one, or empty it first"
            )
        file = Descriptor(self._disk.create(_TAG, os.O_RDWR, 0o600, self._root.fd))
        self._disk.pwrite(file.fd, [_TAG_CONTENT], 0)

    def _read_tag(self) -> bytes:
        with suppress(FileNotFoundError):
            file = Descriptor(os.open(_TAG, READ, dir_fd=self._root.fd))
            return os.pread(file.fd, len(_TAG_CONTENT) + 1, 0)
        return b""


def _is_drawer(entry: os.DirEntry[str]) -> bool:
    is_named_so = len(entry.name) == _DRAWER_NAME_LENGTH and set(entry.name) <= set(hexdigits)
    return is_named_so and entry.is_dir(follow_symlinks=False)


def _require_private(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UsageError(f"the directory {path} belongs to somebody else, and cannot be used as a cache")
    if status.st_mode & 0o022:
        raise UsageError(f"others may write to the directory {path}; run `chmod 700 {path}` to use it as a cache")
