"""Committing what was written to a mount, and waiting for that."""

import errno
import shlex
from collections.abc import Callable
from typing import Final

from shardfs.errors import StoreError
from shardfs.fuse import control
from shardfs.fuse.control import find_mount
from shardfs.fuse.mountpoint import mounted_path

_NOT_LOGGED: Final = {errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED}
"""Errors that come from the kernel, not from a daemon."""


def flush_mount(
    mountpoint: str, timeout: float = control.TIMEOUT, report: Callable[[str], None] = lambda _: None
) -> None:
    """Commit everything that was written to *mountpoint*, and return when it is in the shards.

    *report* is called with the progress. It may take as long as the daemon answers, which must be within *timeout*
    seconds. Raises `StoreError` if something cannot be committed, and `MountPointError` if nothing is mounted there.
    """
    path = mounted_path(mountpoint)
    mount = find_mount(path)
    try:
        if mount is not None and not mount.is_writable:
            control.ask(path, timeout)  # or the reason why it does not answer
        else:
            control.flush(path, timeout, report)
    except OSError as error:
        why = control.explain(mountpoint, error)
        if error.errno not in _NOT_LOGGED and (mount is None or why != mount.privacy):
            why += f"; its log says more: `shardfs stats {shlex.quote(mountpoint)}` names it"
        raise StoreError(f"{mountpoint} could not be flushed: {why}") from None
