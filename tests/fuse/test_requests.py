"""Requests and errors: every error becomes its errno, and no exception gets past the decorator."""

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

LOUD = (
    *(errno.EIO, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.EROFS, errno.EPERM, errno.EFBIG),
    *(errno.EBADF, errno.EMFILE),
)


def error_classes(base: type[ShardfsError] = ShardfsError) -> Iterator[type[ShardfsError]]:
    """The errors of the tree; a server has others, of its clients."""
    yield base
    for derived in base.__subclasses__():
        if derived.__module__ == errors.__name__:
            yield from error_classes(derived)


class Handlers:
    """Stands in for `Operations`: what the decorator needs of it are its counts."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.pending = 0
        self.fs = None  # looked at for a request that names an inode

    @request
    async def handler(self, outcome: BaseException) -> object:
        """Say what the handler does."""
        raise outcome


def test_every_error_becomes_its_errno_and_only_damage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for error in set(error_classes()):
        handlers = Handlers()
        with pytest.raises(pyfuse3.FUSEError) as caught:
            trio.run(handlers.handler, error("a reason"))
        assert caught.value.errno == error.errno
        assert handlers.statistics.errors == {errno.errorcode[error.errno]: 1}
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * (error.errno in LOUD)
        caplog.clear()
    # A reader takes ENOENT for fill values.
    assert [error for error in error_classes() if error.errno == errno.ENOENT] == [errors.NotFoundError]


@pytest.mark.parametrize(
    "unexpected",
    [KeyError("x"), MemoryError(), RecursionError(), OSError(errno.ENOENT, "x"), ExceptionGroup("x", [ValueError()])],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_exception_is_eio_counted_and_logged(
    unexpected: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    with pytest.raises(pyfuse3.FUSEError) as caught:
        trio.run(handlers.handler, unexpected)
    assert caught.value.errno == errno.EIO
    assert handlers.statistics.errors == {"EIO": 1}
    assert [bool(record.exc_info) for record in caplog.records] == [True]


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
