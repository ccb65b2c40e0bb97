"""Every deliberate error of shardfs: one class per meaning, with the errno and the exit status that stand for it.

An error is raised where its cause is known, with a message that names the thing and, where there is one, the way out.
`shardfs.fuse.operations` answers requests with the errno, `shardfs.cli` ends commands with the exit status.
"""

import errno as _errno
import re
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

_MAX_MESSAGE = 500
_AFTER_HOST = re.compile(r"[/?#]")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_QUERY = re.compile(r"([?#]).*", re.DOTALL)


class ShardfsError(Exception):
    """Base class of all errors that shardfs raises on purpose.

    Its message is one printable line of bounded length, whatever names and values of a dataset it quotes.
    """

    errno: ClassVar[int] = _errno.EIO
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        if len(message) > _MAX_MESSAGE:
            message = message[:_MAX_MESSAGE] + "…"
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return *text* with what a terminal would obey, or cannot encode, as escape sequences of Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_secrets(url: str) -> str:
    """Return a URL, valid or not, for messages: without what may be a name and a password, a signature or a token.

    No source that is opened has such a part: what refuses it shows it like this.
    """
    before, separator, rest = url.partition("://") if "://" in url else url.partition(":/")
    if not separator:
        before, rest = "", url
    authority = _AFTER_HOST.split(rest, maxsplit=1)[0]
    if "@" in rest and ("@" in authority or _HOST.fullmatch(authority) is None):
        # Even if it is not valid: a password may hold what ends a host.
        rest = "…@" + rest.rpartition("@")[2]
    return before + separator + _QUERY.sub(r"\1…", rest, count=1)


def counted(count: int, what: str) -> str:
    """Return *count* and *what* is counted, a word whose plural ends in s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of *names* that somebody who typed *name* may have meant; None if there is none like it.

    What is behind the last dot does not count: all may end in `.zarr`.
    """
    from difflib import get_close_matches  # imported only here, where something is wrong

    stems = {each.rpartition(".")[0] or each: each for each in names}
    alike = get_close_matches(name.rpartition(".")[0] or name, stems, n=1, cutoff=0.7)
    return stems[alike[0]] if alike else None


def size(nbytes: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def shown_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first of *names*, up to *most*, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


class MetadataError(ShardfsError):
    """A metadata document is malformed, or says something that the specification does not allow."""


class NotUnshardable(ShardfsError):  # noqa: N818 - a verdict on a sound document, not a failure
    """A valid array cannot be described as an unsharded one; the message is the reason that users see."""


class NotShownError(ShardfsError):
    """A sound array has no form in the view that is mounted; the message is the reason that users are shown."""


class InternalError(ShardfsError):
    """Something that shardfs does wrong itself, and did not expect: please report it."""


class NotFoundError(ShardfsError):
    """Nothing is stored under this name."""

    errno = _errno.ENOENT


class NotADirectoryHereError(ShardfsError):
    """A name was used as a directory and is none."""

    errno = _errno.ENOTDIR


class IsADirectoryHereError(ShardfsError):
    """A name was used as a file and is a directory."""

    errno = _errno.EISDIR


class AccessDeniedError(ShardfsError):
    """The store refuses access to this name."""

    errno = _errno.EACCES


class StoreError(ShardfsError):
    """The store failed; it is not known whether the object exists."""


class UnknownOutcomeError(StoreError):
    """A change was sent and no valid reply came: it may have been made, or not."""


class UnreachableError(StoreError):
    """The store does not answer: the next request would fail as this one did."""


class CorruptionError(ShardfsError):
    """Stored bytes contradict the format, so the data they stand for cannot be returned."""


class OversizedDataError(CorruptionError):
    """Stored bytes decode to more than may be: too much for what they stand for, or for memory."""


class OutsideSourceError(CorruptionError):
    """A symbolic link would lead out of the source."""


class StaleError(ShardfsError):
    """The version that was asked for is no longer there, and no other may be served in its place."""

    errno = _errno.ESTALE


class ConflictError(StoreError):
    """An object of the store is not the one any more that a change was made for; nothing was changed."""


class LockedError(ConflictError):
    """Another program keeps an object locked at this moment; nothing was changed."""


class RefusedError(ShardfsError):
    """A change cannot be made as it was asked for; nothing was changed."""

    errno = _errno.EINVAL


class ExistsError(ShardfsError):
    """The name stands for something already."""

    errno = _errno.EEXIST


class NotEmptyError(ShardfsError):
    """A directory that should go is not empty."""

    errno = _errno.ENOTEMPTY


class NoSpaceError(ShardfsError):
    """There is no space left."""

    errno = _errno.ENOSPC


class FileLimitError(NoSpaceError):
    """This process may not make a file so large."""

    errno = _errno.EFBIG


class ReadOnlyError(ShardfsError):
    """Nothing may be changed here, or not any more."""

    errno = _errno.EROFS


class NotPermittedError(ShardfsError):
    """An operation that is not possible on what the name stands for."""

    errno = _errno.EPERM


class UnsupportedError(ShardfsError):
    """Something that nothing here has; programs then do without."""

    errno = _errno.EOPNOTSUPP


class CrossDeviceError(ShardfsError):
    """A name cannot be moved there; programs then copy and delete."""

    errno = _errno.EXDEV


class TooLargeError(ShardfsError):
    """A file cannot have this size, or be written so far from its beginning."""

    errno = _errno.EFBIG


class TooManyOpenFilesError(StoreError):
    """This process, or the machine, may open no more files: raise the limit, or close some."""

    errno = _errno.EMFILE


class NameTooLongError(NotFoundError):
    """The store has no such long names, so nothing is there."""

    errno = _errno.ENAMETOOLONG


class TooDeepError(StoreError):
    """A directory is nested deeper than shardfs looks."""

    errno = _errno.ENAMETOOLONG


class NoAttributeError(ShardfsError):
    """The extended attribute does not exist."""

    errno = _errno.ENODATA


class ClosedError(ShardfsError):
    """What is used was closed, or belongs to the process of which this one is a fork."""

    errno = _errno.EBADF


class UsageError(ShardfsError):
    """A command or its options are wrong."""

    errno = _errno.EINVAL
    exit_status = 2


class SourceError(ShardfsError):
    """SOURCE is missing, unreadable, not supported, or being written by another process."""

    exit_status = 3


class NoSourceError(SourceError):
    """Nothing is found below SOURCE, or nobody may look there; it may still be the name of a file."""


class MountPointError(ShardfsError):
    """MOUNTPOINT cannot be used."""

    exit_status = 4


class BusyError(MountPointError):
    """A mount is not unmounted, because programs use it."""


class UnfinishedError(ShardfsError):
    """A daemon does not answer or is not done yet; it may still succeed."""

    exit_status = 6


class FuseUnavailableError(ShardfsError):
    """This machine cannot mount: there is no `/dev/fuse`, no `fusermount3`, or no permission."""

    exit_status = 5
