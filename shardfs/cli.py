"""The command line: what a user types, to calls of the rooms below."""

import io
import json
import logging
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import trio

from shardfs import errors, reports
from shardfs.commands import FOREVER, cli, command, json_option, mountpoint_argument, no_nan, source_argument
from shardfs.dataset.source import Source
from shardfs.format.shard_new import parse_chunks_per_shard
from shardfs.fuse import control, daemon
from shardfs.fuse.mountpoint import check_fuse, check_mount_point, is_shardfs, unmount
from shardfs.fuse.options import MountOptions
from shardfs.logs import log_to
from shardfs.maintenance import compact, flush, recover  # noqa: F401 - they are commands of the group
from shardfs.stores.local import LocalStore
from shardfs.stores.url import open_store


def _chunks_per_shard(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else parse_chunks_per_shard(value)
    except errors.UsageError as error:
        raise click.BadParameter(str(error)) from None


@command(
    examples="""
    shardfs mount data.zarr /mnt/x
    shardfs mount --metadata-ttl 60 /data/archive /mnt/archive
    shardfs mount -f --log-level debug file:///data/image.zarr /mnt/image
    """
)
@source_argument
@mountpoint_argument
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground and log to standard error.")
@click.option(
    "--metadata-ttl",
    type=click.FloatRange(min=0),
    callback=no_nan,
    default=MountOptions.metadata_ttl,
    show_default=True,
    metavar="SECONDS",
    help="For how long to believe what was seen of the source.",
)
@click.option("--allow-other", is_flag=True, help="Let other users read the mount, as far as file modes allow.")
@click.option("--write", is_flag=True, help="Let chunks, metadata and plain files be written.")
@click.option(
    "--shards",
    "chunks_per_shard",
    callback=_chunks_per_shard,
    metavar="N,N,…",
    help="Inner chunks per shard and axis (one number for all axes) of new arrays, which are stored sharded then.",
)
@click.option(
    "--auto-compact",
    type=click.FloatRange(min=0, max=1, min_open=True),
    callback=no_nan,
    metavar="RATIO",
    help="Rewrite shards that were appended to, when idle, from this share of dead bytes on.",
)
@click.option("--page-cache", is_flag=True, help="Let the kernel cache chunk files, and programs map them shared.")
@click.option("-o", "options", multiple=True, metavar="OPTIONS", help="FUSE options, separated by commas.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="How much to log.",
)
@click.option("--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Where to log.")
@click.option("--ready-fd", type=int, hidden=True)
def mount(
    source: str,
    mountpoint: str,
    foreground: bool,
    metadata_ttl: float,
    allow_other: bool,
    write: bool,
    chunks_per_shard: tuple[int, ...] | None,
    auto_compact: float | None,
    page_cache: bool,
    options: tuple[str, ...],
    log_level: str,
    log_file: Path | None,
    ready_fd: int | None,
) -> None:
    """Mount SOURCE, read-only unless --write is given, at the empty directory MOUNTPOINT.

    SOURCE is the path or file:// URL of a folder: one array, a group, or several datasets and plain files, which pass
    through. The command returns when the mount answers. Take it away with `shardfs umount`.

    An array that cannot be shown unsharded is shown as it is stored; `shardfs info` says why. Without --log-file the
    log goes to a file below ~/.local/state/shardfs, which the command names.
    """
    chosen = MountOptions(
        metadata_ttl=metadata_ttl, allow_other=allow_other, page_cache=page_cache, write=write
    ).with_fuse_options(options)
    chosen = replace(chosen, chunks_per_shard=chunks_per_shard, auto_compact=auto_compact)
    if foreground:
        _mount_in_foreground(source, mountpoint, chosen, log_level, log_file, ready_fd)
        return
    store, place = _prepare(source, mountpoint)
    log_file = (log_file or daemon.default_log_file(place)).absolute()
    arguments = [store.url, place, *chosen.to_arguments(), f"--log-level={log_level}"]
    daemon.start_daemon(arguments, log_file)
    click.echo(errors.printable(f"{store.url} is mounted at {mountpoint}, {_how(chosen)} (log: {log_file})"))


@command(
    examples="""
    shardfs umount /mnt/x
    """
)
@mountpoint_argument
def umount(mountpoint: str) -> None:
    """Unmount MOUNTPOINT, and return when its daemon is gone."""
    unmount(mountpoint)


@command(
    examples="""
    shardfs info data.zarr
    shardfs info --shards data.zarr
    shardfs info --json data.zarr | jq '.[].shape'
    """
)
@source_argument
@click.option("--shards", is_flag=True, help="Also list every shard: size, chunks, live and dead bytes.")
@json_option
def info(source: str, shards: bool, as_json: bool) -> None:
    """Describe every array of SOURCE, and whether it can be shown unsharded."""
    opened = Source.of(open_store(source), ttl=FOREVER)
    described = trio.run(reports.describe, opened, shards)
    click.echo(json.dumps(described, indent=2) if as_json else reports.render_info(described), nl=as_json)


@command(
    examples="""
    shardfs verify data.zarr
    shardfs verify --data --json data.zarr > report.json
    """
)
@source_argument
@click.option("--data", is_flag=True, help="Also read and decode every inner chunk whose codecs are known.")
@json_option
def verify(source: str, data: bool, as_json: bool) -> None:
    """Read every shard index of SOURCE and check every entry.

    Names each damaged document, shard and inner chunk; exit status 1 if there is one.
    """
    opened = Source.of(open_store(source), ttl=FOREVER)
    report = trio.run(reports.verify, opened, data, sys.stderr)
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else report.render(), nl=as_json)
    if report.problems:
        sys.exit(1)


@command(
    examples="""
    shardfs refs data.zarr > references.json
    shardfs refs --output references.json data.zarr
    """
)
@source_argument
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@click.option("--skip-encoded", is_flag=True, help="Leave out arrays whose shards are encoded as a whole.")
def refs(source: str, output: Path | None, skip_encoded: bool) -> None:
    """Print kerchunk references to every inner chunk of SOURCE, for machines that cannot mount.

    They say what a mount would show at this moment; write them again when the source has changed.
    """
    opened = Source.of(open_store(source), ttl=FOREVER)
    logging.getLogger("shardfs.vfs.references").addHandler(_Message())
    if output is None:
        trio.run(reports.write_references, opened, sys.stdout, skip_encoded)
        return
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogateescape") as file:
            trio.run(reports.write_references, opened, file, skip_encoded)
        partial.replace(output)
    except OSError as error:
        raise errors.UsageError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@command(
    examples="""
    shardfs stats /mnt/x
    """
)
@mountpoint_argument
@json_option
def stats(mountpoint: str, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT did: requests, bytes, cache hits, index loads, errors."""
    if not is_shardfs(os.path.realpath(mountpoint)):
        raise errors.MountPointError(f"{mountpoint} is not a mount of shardfs")
    try:
        text = os.getxattr(mountpoint, control.STATISTICS).decode()
    except OSError as error:
        raise errors.MountPointError(f"{mountpoint} does not answer: {error.strerror}") from None
    click.echo(text if as_json else reports.render_statistics(json.loads(text)))


def _how(options: MountOptions) -> str:
    return "to read and write" if options.write else "read-only"


def _prepare(source: str, mountpoint: str) -> tuple[LocalStore, str]:
    """Open the source and check that the mount can be made, before anything is started."""
    store = open_store(source)
    check_fuse()
    return store, check_mount_point(mountpoint, store.root)


def _mount_in_foreground(
    source: str, mountpoint: str, options: MountOptions, log_level: str, log_file: Path | None, ready_fd: int | None
) -> None:
    pipe = daemon.ReadyPipe(ready_fd) if ready_fd is not None else None
    try:
        log_to(log_file, log_level)
        store, place = _prepare(source, mountpoint)
        from shardfs.fuse.mount import serve

        def ready() -> None:
            if pipe is not None:
                pipe.succeed()
            else:
                with suppress(OSError):  # the mount is there, whether somebody hears of it or not
                    click.echo(
                        errors.printable(
                            f"{store.url} is mounted at {mountpoint}, {_how(options)} (end it with Ctrl-C)"
                        )
                    )

        is_committed = serve(store, place, options, ready)
    except errors.ShardfsError as error:
        if pipe is None:
            raise
        pipe.fail(error)
        sys.exit(1)
    if not is_committed:
        sys.exit(1)  # the log says why


class _Message(logging.Handler):
    """Says what is logged as a line like any other of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(errors.printable(f"shardfs: {record.getMessage()}"), err=True)


def main() -> None:
    """Run the command line."""
    # Reports say what is wrong with a source; only a mount logs it, where `log_to` says.
    logging.getLogger("shardfs").addHandler(logging.NullHandler())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names are bytes
    cli(prog_name="shardfs")
