"""Commands that wait for a mount: `umount` and `flush`."""

import errno
from contextlib import suppress
from typing import Final

from shardfs import errors
from shardfs.cli.options import command, mounted_argument, timeout_option
from shardfs.cli.output import waiting
from shardfs.fuse import control
from shardfs.fuse.mountpoint import mounted_path
from shardfs.fuse.mounts import find_mount
from shardfs.fuse.unmount import unmount

_NOT_LOGGED: Final = {errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED}
"""What the kernel answers, and no daemon."""


@command(
    examples="""
    shardfs umount /mnt/x
    """
)
@mounted_argument
@timeout_option
def umount(mountpoint: str, timeout: float) -> None:
    """Commit what is pending, unmount MOUNTPOINT, and return when its daemon has ended.

    Standard error tells what the command waits for, and how fast it goes. Exit status 1 means that MOUNTPOINT is
    unmounted, but not everything could be committed: the rest stays in the journal, for the next mount with --write or
    for `shardfs recover`. Exit status 6 means that the daemon does not answer, or made no progress for --timeout
    seconds: it goes on, and nothing is lost.
    """
    with waiting(mountpoint) as say:
        unmount(mountpoint, timeout, say)


@command(
    examples="""
    shardfs flush /mnt/x
    """
)
@mounted_argument
@timeout_option
def flush(mountpoint: str, timeout: float) -> None:
    """Commit everything that was written to MOUNTPOINT, and return when it is in the shards.

    The command waits for as long as the daemon answers. Standard error tells what it waits for, and how fast it goes.
    With a read-only mount there is nothing to do.
    """
    path = mounted_path(mountpoint)
    mount = find_mount(path)
    try:
        if mount is not None and not mount.is_writable:
            control.ask(path, timeout)  # or why it does not answer
            return
        with waiting(mountpoint) as say:
            control.flush(path, timeout, say)
    except OSError as error:
        why, more = control.explain(mountpoint, error), ""
        if error.errno not in _NOT_LOGGED and (mount is None or why != mount.privacy):
            more = "; its log says more"
            with suppress(OSError, ValueError, errors.ShardfsError):
                log = control.ask(path, timeout).log
                more += f": {log}" if log is not None else ""
        raise errors.StoreError(f"{mountpoint} could not be flushed: {why}{more}") from None
