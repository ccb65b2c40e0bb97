"""What is raised by mistake ends nothing but what was asked for, whether by code of other packages or by our own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from shardfs.errors import InternalError, ShardfsError, StoreError

_OWN: Final = __name__.partition(".")[0]


def package_of(code: object) -> str:
    """Return the package that *code*, a function or an object of a class, is of."""
    while isinstance(code, partial):
        code = code.func
    return str(code.__module__).partition(".")[0]


def is_own(code: object) -> bool:
    """Whether *code* is of shardfs itself."""
    return package_of(code) == _OWN


@contextmanager
def fenced(code: object, of: str, error: type[ShardfsError] = StoreError) -> Iterator[None]:
    """Make of what *code* raises by mistake an *error* that names its package, and what it was asked *of*.

    Errors of shardfs are meant, and so pass; and so does everything from code of shardfs itself.
    """
    try:
        yield
    except ShardfsError:
        raise
    except Exception as fault:
        if is_own(code):
            raise
        raise error(f"{of} cannot be read: {fault_of(package_of(code), fault)}") from fault


@contextmanager
def contained(of: str) -> Iterator[None]:
    """Make of what shardfs raises by mistake, because of what a dataset says *of* something, an `InternalError`."""
    try:
        yield
    except ShardfsError:
        raise
    except Exception as fault:
        raise InternalError(f"{of} cannot be read, by a mistake of shardfs, please report it: {fault!r}") from fault


def fault_of(package: str, fault: BaseException) -> str:
    """Say that code of *package* has raised *fault*, and what to do."""
    return f"the package {package}, which is not of shardfs, fails with {fault!r}; tell its authors"
