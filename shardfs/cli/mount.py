"""`shardfs mount`, in the background and, as the daemon, in the foreground."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from shardfs.cli.options import Integer, command, log_options, mountpoint_argument, tree_options, writing_options
from shardfs.cli.sources import cache_options, single_writer_option, source_options
from shardfs.dataset.source import resolve
from shardfs.errors import ShardfsError, printable
from shardfs.format.lens.unsharded import parse_chunks_per_shard
from shardfs.fuse import daemon
from shardfs.fuse.mountpoint import check_fuse, check_mount_point
from shardfs.fuse.options import MountOptions, parse_fuse_options
from shardfs.fuse.versions import check_installed, fuse_versions
from shardfs.service.log import log_to
from shardfs.stores.url import StoreOptions

_ID = Integer(0, 2**32 - 2)


def _octal(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is not None and not re.fullmatch("0?[0-7]{1,3}", value):
        raise click.BadParameter(f"{value!r} is not a umask; write three octal digits, such as 022.")
    return None if value is None else int(value, 8)


@command(
    examples="""
    shardfs mount data.zarr /mnt/x
    shardfs mount --view v2 data.zarr /mnt/x
    shardfs mount --view v2 --decode --dimension-separator / data.zarr /mnt/x
    shardfs mount --view npy data.zarr /mnt/x
    shardfs mount --metadata-ttl 60 /data/archive /mnt/archive
    shardfs mount -f --log-level debug file:///data/image.zarr /mnt/image
    shardfs mount --anonymous --region us-west-2 s3://bucket/data.zarr /mnt/x
    shardfs mount --write --cache ~/.cache/shardfs --cache-size 50G s3://bucket/data.zarr /mnt/x
    """
)
@source_options
@mountpoint_argument
@tree_options
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless something is wrong.")
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground and log to standard error.")
@click.option("--allow-other", is_flag=True, help="Let other users use the mount, as far as file modes permit.")
@click.option("--uid", type=_ID, metavar="N", help="Show this user as the owner of everything.")
@click.option("--gid", type=_ID, metavar="N", help="Show this group as the group of everything.")
@click.option(
    "--umask",
    callback=_octal,
    metavar="MODE",
    help="Show modes as if everything had this umask: with 022, all users can read and only the owner can write.",
)
@click.option("--write", is_flag=True, help="Let programs write chunks, metadata and other files.")
@writing_options
@click.option("--page-cache", is_flag=True, help="Let the kernel cache chunk files, and let programs map them shared.")
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve the metrics of `shardfs stats` to Prometheus at this address; a port alone means 127.0.0.1.",
)
@click.option("-o", "fuse_words", multiple=True, metavar="OPTIONS", help="FUSE options, separated by commas.")
@log_options
@cache_options
@single_writer_option
@click.option("--ready-fd", type=int, hidden=True)
def mount(
    source: str,
    mountpoint: str,
    store_options: StoreOptions,
    quiet: bool,
    foreground: bool,
    fuse_words: tuple[str, ...],
    log_level: str,
    log_format: str,
    log_file: Path | None,
    ready_fd: int | None,
    write: bool,
    allow_other: bool,
    shards: str | None,
    **chosen: Any,  # noqa: ANN401 - the other fields of `MountOptions`
) -> None:
    """Mount SOURCE at the empty directory MOUNTPOINT, read-only unless you give --write.

    SOURCE is a path, or a URL: file://, s3://, https://, http://, gs:// or az://. It can be one array, a group, or a
    directory with several datasets; other files are shown as they are. The command returns when the mount answers.
    `shardfs umount` ends the mount.

    The view v3 shows every array as unsharded Zarr v3, v2 as Zarr v2, and npy as one .npy file. `shardfs info --tools
    SOURCE` names the one that your program needs.

    An array that cannot be shown unsharded is shown as stored; one that --view v2, --view npy or --decode cannot show
    is skipped. `shardfs info SOURCE ARRAY` gives the reason. Without --log-file, the log goes to a file below
    ~/.local/state/shardfs, which the command names.

    Credentials for s3:// come from the environment, the AWS configuration files, the container or the instance.
    """
    given = parse_fuse_options(fuse_words, write=write, allow_other=allow_other)
    options = MountOptions(shards=None if shards is None else parse_chunks_per_shard(shards), **chosen, **given)
    how = [*options.to_arguments(), *store_options.to_arguments()]
    is_committed = True

    def report(what_next: str, note: str | None) -> None:
        if note is not None:
            _note(url, note)
        if not quiet:
            _announce(url, mountpoint, options, what_next)

    def ready(note: str | None) -> None:
        if ready_fd is not None:
            daemon.notify_starter(ready_fd, note)
        else:
            with suppress(OSError):  # the mount is up, even if nobody is told
                report("end it with Ctrl-C", note)

    try:
        if ready_fd is not None:
            os.set_inheritable(ready_fd, False)  # with auto_unmount, fusermount3 lives as long as the mount
        if foreground:
            log_to(log_file, log_level, log_format)
        url, root = resolve(source)
        check_installed()
        check_fuse(allow_other=options.allow_other)
        checked = check_mount_point(mountpoint, root, store_options.cache)
        name = source if "://" in source else url
        if foreground:
            fuse_versions()  # or why pyfuse3 cannot be used
            from shardfs.fuse.serve import serve

            is_committed = serve(source, store_options, checked, options, ready, name=name, how=how)
        else:
            log_file = (log_file or daemon.default_log_file(checked)).absolute()
            arguments = [name, checked, *how, f"--log-level={log_level}", f"--log-format={log_format}"]
            note = daemon.start_daemon(arguments, log_file)
            report(f"log: {log_file}", note)
    except ShardfsError as error:
        if ready_fd is None:
            raise
        daemon.notify_starter(ready_fd, error)
        is_committed = False
    if not is_committed:
        sys.exit(1)  # the log says why


def _note(url: str, note: str) -> None:
    click.echo(printable(f"shardfs: note on {url}: {note}"), err=True)


def _announce(url: str, mountpoint: str, options: MountOptions, what_next: str) -> None:
    view = "" if options.view == MountOptions.view else f" as {options.view}"
    decoded = ", decoded" if options.decode else ""
    click.echo(printable(f"{url} is mounted at {mountpoint}, {options.access}{view}{decoded} ({what_next})"))
