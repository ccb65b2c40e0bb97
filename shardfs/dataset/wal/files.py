"""The directory of a journal that is written: making, changing and removing its segments.

Failures are told apart here.  What left the files as they were, a full disk for one, is raised and that is all.  After
a failed sync nothing is known of what was written, and a file that somebody removed keeps nothing: the journal takes
nothing any more then.
"""

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Sequence
from typing import Final

from shardfs.dataset.wal.segments import HEADER_NBYTES, SALT_NBYTES, Segment, damaged_name, pack_header, segment_name
from shardfs.errors import NoSpaceError, ReadOnlyError, ShardfsError, StoreError
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.syscalls import Syscalls, translate

log = logging.getLogger(__name__)

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogFiles:
    """The segments in one directory.  *failed* says why nothing is taken any more, "" as long as it is.

    *has_vanished*: somebody removed the files, so that nobody will ever read what is in them but this process.
    """

    def __init__(self, directory: Descriptor, disk: Syscalls) -> None:
        try:
            self._directory = Descriptor(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd))
        except OSError as error:
            raise translate(error, "the journal") from None
        self._disk = disk
        self.failed = ""
        self.has_vanished = False

    @property
    def where(self) -> str:
        """Where the directory is now: its source may have been renamed."""
        return os.readlink(self._directory.path).removesuffix(" (deleted)")

    def check(self) -> None:
        """Raise `ReadOnlyError` if nothing is taken any more."""
        if self.failed:
            raise ReadOnlyError(f"{self.failed}; nothing can be published any more")

    def fail(self, reason: str) -> StoreError:
        """Take nothing any more, for good; return the error to raise."""
        self.failed = f"the journal in {self.where} {reason}"
        return StoreError(self.failed)

    def room(self) -> int:
        """Return how many bytes the disk has room for."""
        status = os.fstatvfs(self._directory.fd)
        return status.f_bavail * status.f_frsize

    def look(self, segment: Segment, end: int) -> None:
        """Notice that somebody else removed a segment, or cut it before *end*."""
        status = os.fstat(segment.descriptor.fd)
        if (status.st_nlink == 0 or status.st_size < end) and not segment.is_removed:
            raise self._lost("was cut short by another program") if status.st_nlink else self._vanished()

    def create(self, number: int) -> Segment:
        """Make an empty segment."""
        name, salt = segment_name(number), secrets.token_bytes(SALT_NBYTES)
        try:
            fd = self._disk.create(name, os.O_RDWR | os.O_EXCL, 0o600, self._directory.fd)
        except FileNotFoundError:
            raise self._vanished() from None
        except OSError as error:
            raise self._explained(error) from None
        segment = Segment(number, Descriptor(fd), salt, HEADER_NBYTES)
        try:
            self._disk.pwrite(fd, [pack_header(salt)], 0)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.unlink(name, self._directory.fd)
            raise self._explained(error) from None
        return segment

    def write(self, segment: Segment, buffers: Sequence[Buffer], offset: int) -> None:
        """Write *buffers* behind each other, from *offset* on, which is not before the end of *segment*.

        What a failed call leaves behind that end is for `undo` to remove.
        """
        try:
            self._disk.pwrite(segment.descriptor.fd, buffers, offset)
        except OSError as error:
            raise self._explained(error) from None

    def undo(self, segment: Segment) -> None:
        """Remove what lies behind the end of *segment*."""
        # If that fails, the next record goes over it, and readers find the rest damaged or out of order.
        with contextlib.suppress(OSError):
            self._disk.truncate(segment.descriptor.fd, segment.end)

    def remove(self, segment: Segment) -> None:
        """Remove a segment durably; one that was found damaged is kept under another name."""
        name, directory = segment_name(segment.number), self._directory.fd
        segment.is_removed = True  # first: `look` runs in other threads
        try:
            if segment.is_damaged:
                self._disk.rename(name, damaged_name(segment.number), directory, directory)
            else:
                self._disk.unlink(name, directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            segment.is_removed = False
            raise self._explained(error) from None
        self.sync_names()

    def sync(self, segment: Segment) -> None:
        """Make the bytes of a segment durable."""
        try:
            self._disk.sync(segment.descriptor.fd)
        except OSError as error:
            raise self._not_durable(error) from None

    def sync_names(self) -> None:
        """Make the names of the segments durable."""
        try:
            self._disk.sync_directory(self._directory.fd)
        except OSError as error:
            raise self._not_durable(error) from None

    def _vanished(self) -> StoreError:
        self.has_vanished = True
        return self._lost("has vanished")

    def _not_durable(self, error: OSError) -> StoreError:
        return self._lost(f"could not be made durable: {error.strerror}")

    def _lost(self, reason: str) -> StoreError:
        error = self.fail(reason)
        log.error("the mount is read-only from now on: %s", error)
        return error

    def _explained(self, error: OSError) -> ShardfsError:
        if error.errno in _NO_SPACE:
            return NoSpaceError(f"no room for the journal in {self.where}: {error.strerror}")
        return translate(error, f"the journal in {self.where}")
