"""`shardfs serve`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from shardfs.cli.options import Integer, command, log_options, tree_options, writing_options
from shardfs.cli.sources import cache_options, single_writer_option, source_options
from shardfs.dataset.source import resolve
from shardfs.errors import UsageError, printable
from shardfs.format.lens.unsharded import parse_chunks_per_shard
from shardfs.service.log import log_to
from shardfs.stores.url import StoreOptions


@command(
    examples="""
    shardfs serve data.zarr
    shardfs serve --listen 0.0.0.0:8080 --token-file token --view v2 /data/archive
    shardfs serve --write --shards 4 data.zarr
    shardfs serve --anonymous --region us-west-2 s3://bucket/data.zarr
    """
)
@source_options
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help="Listen at this address; a port alone means 127.0.0.1, and port 0 any port.  [default: 127.0.0.1:8000]",
)
@click.option("--host", metavar="ADDRESS", help="Listen at this address, with the port of --port.")
@click.option("--port", type=Integer(0, 65535), metavar="N", help="Listen at this port, with the address of --host.")
@click.option(
    "--cors",
    multiple=True,
    default=("*",),
    metavar="ORIGIN",
    help="Let pages of this origin read, and with --write write; may be given several times. [default: *, to read]",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Answer only requests with the token in this file: Authorization: Bearer TOKEN.",
)
@tree_options
@click.option("--write", is_flag=True, help="Let clients write and remove files, by PUT and DELETE.")
@writing_options
@log_options
@cache_options
@single_writer_option
def serve(
    source: str,
    store_options: StoreOptions,
    listen: str | None,
    host: str | None,
    port: int | None,
    token_file: str | None,
    shards: str | None,
    log_level: str,
    log_format: str,
    log_file: Path | None,
    **chosen: Any,  # noqa: ANN401 - the other fields of `ServeOptions`
) -> None:
    """Serve SOURCE over HTTP, for browsers and everything that reads URLs, read-only unless you give --write.

    The files are those of a mount, in every view: / has those of --view, and below /-/ are all, as /-/v3/, /-/v2/,
    /-/decoded/v3/ and /-/npy/. The command serves in the foreground, and logs to standard error, until Ctrl-C or
    SIGTERM ends it: then requests under way are answered, and what was written is committed.
    """
    if find_spec("h11") is None:
        raise UsageError("shardfs serve needs h11: pip install 'shardfs[serve]', or pipx inject shardfs h11")
    from shardfs.serve.options import ServeOptions, read_token
    from shardfs.serve.run import serve as run

    if host is not None or port is not None:
        if listen is not None:
            raise UsageError("--listen has address and port: give it alone, or --host and --port")
        usual_host, _, usual_port = ServeOptions.listen.rpartition(":")
        host = f"[{host}]" if host is not None and ":" in host else host
        listen = f"{usual_host if host is None else host}:{usual_port if port is None else port}"
    token = read_token(token_file) if token_file is not None else None
    parsed = parse_chunks_per_shard(shards) if shards is not None else None
    options = ServeOptions(token=token, shards=parsed, listen=listen or ServeOptions.listen, **chosen)
    url, _ = resolve(source)
    log_to(log_file, log_level, log_format)

    def ready(address: str, note: str | None) -> None:
        if note is not None:
            click.echo(printable(f"shardfs: note on {url}: {note}"), err=True)
        click.echo(printable(f"{url} is served at {address}, {options.access} (end it with Ctrl-C)"))

    run(source, store_options, options, ready)
