"""Committing what was written to a mount, and waiting for that."""

import errno
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shardfs.errors import StoreError, UnfinishedError
from shardfs.fuse import control
from shardfs.fuse.control import find_mount
from shardfs.fuse.mountpoint import mounted_path

_NOT_LOGGED: Final = {errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED}
"""Errors that come from the kernel, not from a daemon."""
_OF_FLUSH: Final = "setxattr: "
"""How the log begins a line about a flush that failed."""


def flush_mount(
    mountpoint: str, timeout: float = control.TIMEOUT, report: Callable[[str], None] = lambda _: None
) -> None:
    """Commit everything that was written to *mountpoint*, and return when it is in the shards.

    *report* is called with the progress. It may take as long as the daemon answers, which must be within *timeout*
    seconds. Raises `StoreError` if something cannot be committed, and `MountPointError` if nothing is mounted there.
    """
    path = mounted_path(mountpoint)
    mount, begun = find_mount(path), time.time()
    try:
        if mount is not None and not mount.is_writable:
            control.ask(path, timeout)  # or the reason why it does not answer
        else:
            control.flush(path, timeout, report)
    except OSError as error:
        why = control.explain(mountpoint, error)
        if error.errno not in _NOT_LOGGED and (mount is None or why != mount.privacy):
            why = _logged(path, begun, timeout) or why
            why += f"; its log says more: `shardfs stats {shlex.quote(mountpoint)}` names it"
        raise StoreError(f"{mountpoint} could not be flushed: {why}") from None


def _logged(path: str, begun: float, timeout: float) -> str | None:
    """Return why the daemon could not commit, as it has logged that since the flush was *begun*; None if that is gone.

    The kernel passes on a number alone.
    """
    with suppress(OSError, UnfinishedError):
        counts = control.ask(path, timeout).counts
        error, at = counts.get("last_error"), counts.get("last_error_timestamp_seconds")
        if isinstance(error, str) and isinstance(at, float) and at >= begun and error.startswith(_OF_FLUSH):
            return error.removeprefix(_OF_FLUSH)
    return None
