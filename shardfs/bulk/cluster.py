"""A Dask cluster as the executor of tasks; its workers need the same shardfs, and paths that lead to the same files."""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from shardfs import __version__
from shardfs.bulk.engine import as_told
from shardfs.errors import ShardfsError, StoreError, UsageError
from shardfs.stores.url import StoreOptions, open_store

if TYPE_CHECKING:
    from distributed import Client

_TIMEOUT: Final = 10.0
_RETRIES: Final = 3


@dataclass(frozen=True)
class Place:
    """A source or target that workers are to reach as this process does; a target *is_written*."""

    url: str
    options: StoreOptions
    is_written: bool = False


@contextmanager
def connected(address: str, places: Sequence[Place]) -> Iterator[Executor]:
    """Yield an executor for the cluster whose scheduler is at *address*, while the block lasts.

    Raises `UsageError` if Dask is not installed, `StoreError` if the cluster does not answer, or a worker has another
    shardfs or does not find the *places* that are here.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise UsageError("--dask needs Dask: pip install 'shardfs[dask]'") from None
    try:
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
    with ExitStack() as marks:
        marked = [(place, marks.enter_context(_mark(place))) for place in places]
        _, expected = survey(marked)
        asked = [(worker, client.submit(survey, marked, workers=[worker], pure=False)) for worker in workers]
        for worker, future in asked:
            try:
                version, found = future.result(_TIMEOUT)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise StoreError(f"the Dask worker {worker} does not run shardfs {__version__}: {why}") from None
            if version != __version__:
                raise StoreError(f"the Dask worker {worker} has shardfs {version}, and this is {__version__}")
            for place, ours, theirs in zip(places, expected, found, strict=True):
                if isinstance(theirs, ShardfsError):
                    raise StoreError(f"the Dask worker {worker} does not reach {place.url}: {theirs}")
                if ours != theirs:
                    raise StoreError(
                        f"the Dask worker {worker} finds other files at {place.url} than this machine; "
                        "all need a file system that they share there"
                    )


@contextmanager
def _mark(place: Place) -> Iterator[str]:
    """Yield the path of a file that is in a directory to be written for as long as the block lasts, else ""."""
    root = open_store(place.url, place.options).root
    if root is None or not place.is_written:
        yield ""
        return
    with tempfile.NamedTemporaryFile(prefix=".shardfs-", suffix=".tmp", dir=root) as file:
        yield file.name


def survey(marked: Sequence[tuple[Place, str]]) -> tuple[str, list[str | ShardfsError]]:
    """Return the version of shardfs, and what is found at each place, as a text to be compared, or why nothing is."""
    return __version__, [_look(place, mark) for place, mark in marked]


def _look(place: Place, mark: str) -> str | ShardfsError:
    try:
        names = trio.run(open_store(place.url, place.options).check) or ()
    except Exception as error:
        return as_told(error)
    if mark:
        return str(os.path.exists(mark))
    return hashlib.sha256(repr(sorted((name, kind.name) for name, kind in names)).encode()).hexdigest()
