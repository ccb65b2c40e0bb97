"""Commands that talk to a mount: `umount`, `flush`, `stats`."""

import errno
import json
from contextlib import suppress
from typing import Any, Final

import click

from shardfs import errors
from shardfs.cli.options import command, complain, json_option, mountpoint_argument, timeout_option
from shardfs.fuse import control
from shardfs.fuse.mountpoint import mounted_path
from shardfs.fuse.unmount import unmount

_NOT_LOGGED: Final = {errno.EROFS, errno.ENOTCONN, errno.ECONNABORTED}
"""What the kernel answers, and no daemon."""


@command(
    examples="""
    shardfs umount /mnt/x
    """
)
@mountpoint_argument
@timeout_option
def umount(mountpoint: str, timeout: float) -> None:
    """Unmount MOUNTPOINT, and return when everything that was written is in the shards and its daemon is gone.

    What it waits for is said on standard error. Exit status 1 if it is unmounted, but not everything could be brought
    into the shards: that stays in the journal, for the next mount with --write or `shardfs recover`. Exit status 6 if
    the daemon does not answer, or gets nothing done for --timeout seconds: it goes on then, and nothing is lost.
    """
    unmount(mountpoint, timeout, complain)


@command(
    examples="""
    shardfs flush /mnt/x
    """
)
@mountpoint_argument
@timeout_option
def flush(mountpoint: str, timeout: float) -> None:
    """Bring everything that was written to the mount at MOUNTPOINT into its shards, and return when it is there.

    For as long as the daemon answers it is waited for; what for is said on standard error.
    """
    path = mounted_path(mountpoint)
    try:
        control.flush(path, timeout, complain)
    except OSError as error:
        why, more = control.explain(mountpoint, error), ""
        if error.errno not in _NOT_LOGGED:
            more = "; its log says more"
            with suppress(OSError, ValueError, errors.ShardfsError):
                log = control.Daemon.of(path, timeout).log
                more += f": {log}" if log is not None else ""
        raise errors.StoreError(f"{mountpoint} could not be flushed: {why}{more}") from None


@command(
    examples="""
    shardfs stats /mnt/x
    """
)
@mountpoint_argument
@timeout_option
@json_option
def stats(mountpoint: str, timeout: float, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT did: requests, bytes, cache hits, index loads, errors."""
    path = mounted_path(mountpoint)
    try:
        text = control.ask(path, control.STATISTICS, timeout).decode()
    except OSError as error:
        raise errors.MountPointError(f"{mountpoint} does not answer: {control.explain(mountpoint, error)}") from None
    click.echo(text if as_json else render_statistics(json.loads(text)))


def render_statistics(counts: dict[str, Any], indent: str = "") -> str:
    """Return the counts of a mount as text for people."""
    lines = []
    for name, value in counts.items():
        label = f"{indent}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            lines.append(f"{label}:" + ("" if value else " none"))
            lines += [render_statistics(value, indent + "  ")] if value else []
        else:
            lines.append(f"{label:<28}{value:>14,}")
    return "\n".join(lines)
