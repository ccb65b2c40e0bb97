"""From errors to errnos: one table, and the decorator that applies it to every request."""

import errno
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import pyfuse3

from shardfs import errors
from shardfs.stores.base import join_key
from shardfs.stores.ttl import one_request

if TYPE_CHECKING:
    from shardfs.fuse.operations import Operations

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound="Operations")  # noqa: E741

ERRNOS: Final[dict[type[errors.ShardfsError], int]] = {
    errors.ShardfsError: errno.EIO,
    errors.MetadataError: errno.EIO,
    errors.NotUnshardable: errno.EIO,
    errors.NotShownError: errno.EIO,
    errors.NotFoundError: errno.ENOENT,
    errors.NotADirectoryHereError: errno.ENOTDIR,
    errors.IsADirectoryHereError: errno.EISDIR,
    errors.AccessDeniedError: errno.EACCES,
    errors.StoreError: errno.EIO,
    errors.UnknownOutcomeError: errno.EIO,
    errors.UnreachableError: errno.EIO,
    errors.CorruptionError: errno.EIO,
    errors.OversizedDataError: errno.EIO,
    errors.OutsideSourceError: errno.EIO,
    errors.StaleError: errno.ESTALE,
    errors.ConflictError: errno.EIO,
    errors.LockedError: errno.EIO,
    errors.RefusedError: errno.EINVAL,
    errors.ExistsError: errno.EEXIST,
    errors.NotEmptyError: errno.ENOTEMPTY,
    errors.NoSpaceError: errno.ENOSPC,
    errors.ReadOnlyError: errno.EROFS,
    errors.NotPermittedError: errno.EPERM,
    errors.UnsupportedError: errno.EOPNOTSUPP,
    errors.CrossDeviceError: errno.EXDEV,
    errors.NameTooLongError: errno.ENAMETOOLONG,
    errors.TooLargeError: errno.EFBIG,
    errors.NoAttributeError: errno.ENODATA,
    errors.UsageError: errno.EINVAL,
    errors.SourceError: errno.EIO,
    errors.MountPointError: errno.EIO,
    errors.UnfinishedError: errno.EIO,
    errors.FuseUnavailableError: errno.EIO,
}

_QUIET: Final = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ESTALE,
        errno.ENODATA,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EXDEV,
        errno.EOPNOTSUPP,
    }
)


def request(
    handler: Callable[Concatenate[O, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[O, P], Coroutine[Any, Any, R]]:
    """Count a request, and answer every error of its handler with an errno.

    pyfuse3 ends the mount on any exception but its own; an unexpected one is logged with its traceback and answered
    with EIO.
    """
    name = handler.__name__
    parameters = handler.__code__.co_varnames[1 : handler.__code__.co_argcount]

    async def answered(self: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.statistics.requests[name] += 1
        self.pending += 1
        try:
            with one_request():
                return await handler(self, *args, **kwargs)
        except errors.ShardfsError as error:
            number = ERRNOS.get(type(error), errno.EIO)
            if number not in _QUIET:
                path = _path(self, dict(zip(parameters, args, strict=False)))
                said = f"{name}: {error}" if not path or path in str(error) else f"{name}: {error} ({path})"
                log.error("%s", said)  # noqa: TRY400 - a deliberate error needs no traceback
        except pyfuse3.FUSEError as error:
            number = error.errno
        except Exception:
            path = _path(self, dict(zip(parameters, args, strict=False)))
            log.exception("%s failed unexpectedly (%s)", name, path)
            number = errno.EIO
        finally:
            self.pending -= 1
        if number != errno.ENOSYS:  # which is how `flush` says that it need not be asked
            self.statistics.errors[errno.errorcode[number]] += 1
        raise pyfuse3.FUSEError(number)

    update_wrapper(answered, handler)
    return answered


def _path(operations: "Operations", arguments: Mapping[str, Any]) -> str:
    """Return what a request is about, by its arguments: a path on the mount, or two."""
    fs, paths, directory = operations.fs, [], ""
    is_in_directory = any("parent" in name for name in arguments)  # else the name is that of an attribute
    for name, value in arguments.items():
        if "parent" in name:
            directory = fs.path_of(value)
        elif name.startswith(("name", "new_name")) and is_in_directory:
            paths.append(join_key(directory, os.fsdecode(value)))
        elif name == "inode":
            paths.append(fs.path_of(value))
        elif name == "fh" and value is not None and not paths:
            paths.append(fs.path_of_handle(value))
    return ", ".join(path for path in paths if path)
