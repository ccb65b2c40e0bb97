"""Requests and errors: every error becomes its errno, and no exception gets past the decorator."""

from __future__ import annotations

import errno
import inspect
import logging
from collections.abc import Iterator

import pyfuse3
import pytest
import trio

from shardfs import errors
from shardfs.dataset.statistics import Statistics
from shardfs.errors import ShardfsError
from shardfs.fuse.operations import Operations, WritingOperations, request


def error_classes(base: type[ShardfsError] = ShardfsError) -> Iterator[type[ShardfsError]]:
    yield base
    for each in base.__subclasses__():
        yield from error_classes(each)


every_error = pytest.mark.parametrize("error", sorted(set(error_classes()), key=lambda each: each.__name__))


class Handlers:
    """Stands in for `Operations`: what the decorator needs of it are its counts."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.pending = 0
        self.fs = None  # looked at for a request that names an inode

    @request
    async def handler(self, outcome: object) -> object:
        """Say what the handler does."""
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def errno_of(handlers: Handlers, outcome: BaseException) -> int:
    with pytest.raises(pyfuse3.FUSEError) as caught:
        trio.run(handlers.handler, outcome)
    number: int = caught.value.errno
    return number


def test_all_errors_are_defined_in_one_place() -> None:
    assert {each for _, each in inspect.getmembers(errors, inspect.isclass)} == set(error_classes())


@every_error
def test_every_error_becomes_its_errno_and_is_counted(error: type[ShardfsError]) -> None:
    handlers = Handlers()
    assert errno_of(handlers, error("a reason")) == error.errno
    assert handlers.statistics.requests == {"handler": 1}
    assert handlers.statistics.errors == {errno.errorcode[error.errno]: 1}


def test_absence_and_nothing_else_is_enoent() -> None:
    """A reader takes ENOENT for fill values."""
    assert [error for error in error_classes() if error.errno == errno.ENOENT] == [errors.NotFoundError]


@pytest.mark.parametrize(
    "unexpected",
    [
        *(ValueError("x"), KeyError("x"), MemoryError(), RecursionError(), OSError(errno.ENOENT, "x")),
        *(AssertionError(), ExceptionGroup("x", [ValueError()]), UnicodeEncodeError("utf-8", "x", 0, 1, "x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_exception_is_eio_counted_and_logged(
    unexpected: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    for _ in range(3):
        assert errno_of(handlers, unexpected) == errno.EIO
    assert handlers.statistics.errors == {"EIO": 3}
    assert all(record.exc_info for record in caplog.records)
    assert len(caplog.records) == 3


def test_an_errno_that_a_handler_chose_is_kept() -> None:
    handlers = Handlers()
    assert errno_of(handlers, pyfuse3.FUSEError(errno.ENOSYS)) == errno.ENOSYS


def test_results_pass() -> None:
    handlers = Handlers()
    assert trio.run(handlers.handler, 42) == 42
    assert handlers.statistics.requests == {"handler": 1}
    assert not handlers.statistics.errors


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_is_not_held_up(stop: type[BaseException]) -> None:
    with pytest.raises(stop):
        trio.run(Handlers().handler, stop())


@every_error
def test_damage_is_logged_and_everyday_errors_are_not(
    error: type[ShardfsError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    errno_of(Handlers(), error("a reason"))
    codes = (errno.EIO, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.EROFS, errno.EPERM, errno.EFBIG)
    loud = error.errno in codes
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * loud


@pytest.mark.parametrize("operations", [Operations, WritingOperations])
def test_every_request_is_decorated(operations: type[Operations]) -> None:
    """An exception from a handler that is not would end the mount."""
    handlers = {
        name: method
        for name, method in vars(operations).items()
        if inspect.isfunction(method) and hasattr(pyfuse3.Operations, name) and not name.startswith("_")
    }
    assert "open" in handlers
    undecorated = {name for name, method in handlers.items() if not hasattr(method, "__wrapped__")}
    assert undecorated <= {"forget"}
