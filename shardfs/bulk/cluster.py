"""A Dask cluster as the executor of tasks; its workers need the same shardfs, and the same paths to the same files."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from shardfs.bulk.engine import as_told, open_context
from shardfs.dataset.source import is_remote, url_of
from shardfs.errors import SourceError, StoreError, counted
from shardfs.stores.url import StoreOptions, how_to_install
from shardfs.version import __version__

if TYPE_CHECKING:
    from distributed import Client

R = TypeVar("R")

_TIMEOUT: Final = 10.0
_RETRIES: Final = 3


@contextmanager
def connected(
    address: str, options: StoreOptions, sources: Sequence[str], destination: str | None = None
) -> Iterator[Executor]:
    """Yield an executor for the cluster whose scheduler is at *address*, for the length of the block.

    Raises `SourceError` if Dask is not installed, and `StoreError` if the cluster does not answer, or a worker has
    another version of shardfs or does not find the same *sources* and *destination* as this process.
    """
    try:
        from distributed import Client
        from distributed.comm import get_address_host_port
    except ModuleNotFoundError:
        raise SourceError(f"--dask needs Dask; install it with: {how_to_install('dask')}") from None
    try:
        get_address_host_port(address)  # else a client is created, and complains when it is closed
        client = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise StoreError(f"no Dask scheduler at {address}: {error}") from None
    with client, ExitStack() as marks:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise StoreError(f"the Dask cluster at {address} has no workers")
        # Not by our own functions: a worker that cannot unpickle its message ends.
        for worker, version in _ask(client, workers, resolve_name, "shardfs.version:__version__"):
            if version != __version__:
                raise StoreError(f"the Dask worker {worker} has shardfs {version}, and this is {__version__}")
        locations = {url_of(source): "" for source in sources}
        if destination is not None:
            locations[url_of(destination)] = marks.enter_context(_mark(url_of(destination)))
        look = partial(look_at_locations, options=options)
        expected = look(locations)
        for worker, found in _ask(client, workers, look, locations):
            for url, ours in expected.items():
                if found[url] != ours:
                    raise StoreError(
                        f"the Dask worker {worker} finds other files at {url} than this machine ({found[url]}, and not "
                        f"{ours}); all need a file system that they share there"
                    )
        yield client.get_executor(pure=False, retries=_RETRIES)


def _ask(
    client: "Client", workers: Sequence[str], function: Callable[[Any], R], argument: object
) -> Iterator[tuple[str, R]]:
    """Yield each worker and the result of *function* there."""
    asked = [(worker, client.submit(function, argument, workers=[worker], pure=False)) for worker in workers]
    for worker, future in asked:
        try:
            yield worker, future.result(_TIMEOUT)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise StoreError(f"the Dask worker {worker} does not run shardfs {__version__}: {why}") from None


@contextmanager
def _mark(url: str) -> Iterator[str]:
    """Yield the path of a file that exists during the block, in or above a directory to be written; "" in a bucket."""
    if is_remote(url):
        yield ""
        return
    while not os.path.isdir(url):
        url = os.path.dirname(url)
    with tempfile.NamedTemporaryFile(prefix=".shardfs-", suffix=".tmp", dir=url) as file:
        yield file.name


def look_at_locations(locations: Mapping[str, str], options: StoreOptions) -> dict[str, str]:
    """Return what is found at each URL, to be compared: names at the top, or whether its mark exists if it has one."""
    return {
        url: f"file {'found' if os.path.exists(mark) else 'missing'}" if mark else trio.run(_names, url, options)
        for url, mark in locations.items()
    }


async def _names(url: str, options: StoreOptions) -> str:
    try:
        async with open_context() as context:
            names = context.source(url, await context.checked(url, options)).names or ()
    except Exception as error:
        return str(as_told(error))
    digest = hashlib.sha256(repr(sorted((name, kind.name) for name, kind in names)).encode()).hexdigest()[:16]
    return f"{counted(len(names), 'name')}, {digest}"
