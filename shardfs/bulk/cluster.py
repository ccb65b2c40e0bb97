"""A Dask cluster as the executor of tasks; its workers need the same shardfs, and the same paths to the same files."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

import shardfs
from shardfs.bulk.engine import as_told
from shardfs.errors import NotFoundError, ShardfsError, SourceError, StoreError
from shardfs.stores.url import StoreOptions, how_to_install, is_remote, open_store, url_of

if TYPE_CHECKING:
    from distributed import Client

R = TypeVar("R")

_TIMEOUT: Final = 10.0
_RETRIES: Final = 3


@dataclass(frozen=True)
class Place:
    """A source or target that workers must reach as this process does, by an absolute path or a URL.

    One that *is_written* need not exist yet.
    """

    url: str
    options: StoreOptions
    is_written: bool = False

    @classmethod
    def of(cls, source: str, options: StoreOptions, *, is_written: bool = False) -> "Place":
        """Return the place of *source*, as the user typed it; *options* are for a remote one."""
        return cls(url_of(source), options if is_remote(source) else StoreOptions(), is_written)


@contextmanager
def connected(address: str, places: Sequence[Place]) -> Iterator[Executor]:
    """Yield an executor for the cluster whose scheduler is at *address*, for the length of the block.

    Raises `SourceError` if Dask is not installed, and `StoreError` if the cluster does not answer, or a worker has
    another version of shardfs or does not find the local *places*.
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
    with client:
        _check_workers(client, address, places)
        yield client.get_executor(pure=False, retries=_RETRIES)


def _check_workers(client: "Client", address: str, places: Sequence[Place]) -> None:
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    if not workers:
        raise StoreError(f"the Dask cluster at {address} has no workers")
    # Not by our own functions: a worker that cannot unpickle its message ends.
    for worker, version in _ask(client, workers, resolve_name, "shardfs:__version__"):
        if version != shardfs.__version__:
            raise StoreError(f"the Dask worker {worker} has shardfs {version}, and this is {shardfs.__version__}")
    with ExitStack() as marks:
        marked = [(place, marks.enter_context(_mark(place))) for place in places]
        expected = survey(marked)
        for worker, found in _ask(client, workers, survey, marked):
            for place, ours, theirs in zip(places, expected, found, strict=True):
                if isinstance(theirs, ShardfsError):
                    raise StoreError(f"the Dask worker {worker} does not reach {place.url}: {theirs}")
                if ours != theirs:
                    raise StoreError(
                        f"the Dask worker {worker} finds other files at {place.url} than this machine; "
                        "all need a file system that they share there"
                    )


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
            raise StoreError(f"the Dask worker {worker} does not run shardfs {shardfs.__version__}: {why}") from None


@contextmanager
def _mark(place: Place) -> Iterator[str]:
    """Yield the path of a file that exists during the block, in or above a directory to be written; else ""."""
    if not place.is_written or is_remote(place.url):
        yield ""
        return
    directory = place.url
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    with tempfile.NamedTemporaryFile(prefix=".shardfs-", suffix=".tmp", dir=directory) as file:
        yield file.name


def survey(marked: Sequence[tuple[Place, str]]) -> list[str | ShardfsError]:
    """Return what is found at each place, as text to be compared, or why nothing is."""
    return [str(os.path.exists(mark)) if mark else trio.run(_look, place) for place, mark in marked]


async def _look(place: Place) -> str | ShardfsError:
    try:
        store = open_store(place.url, place.options)
        if place.is_written:
            with suppress(NotFoundError):
                await store.list("")
            return ""
        names = await store.check() or ()
    except Exception as error:
        return as_told(error)
    return hashlib.sha256(repr(sorted((name, kind.name) for name, kind in names)).encode()).hexdigest()
