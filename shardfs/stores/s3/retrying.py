"""Requests, sent again where that does no harm, and counted."""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from shardfs.errors import ConflictError
from shardfs.stores.s3.counts import Counts
from shardfs.stores.s3.failures import FailedRequest, Request, error_of, may_repeat

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


def _pause(seconds: float) -> None:
    with suppress(RuntimeError):  # outside of trio's threads nobody can cancel
        trio.from_thread.check_cancelled()
    time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a request is sent, and how long to wait between.

    That is anything up to *first* seconds, then up to twice as many, and so on, and never more than *most*.  Whoever
    waits for a server that is silent has waited long already: such attempts are at most *silent_attempts*.
    """

    attempts: int = 6
    silent_attempts: int = 2
    first: float = 0.1
    most: float = 5.0
    pause: Callable[[float], None] = _pause
    jitter: Callable[[float, float], float] = random.uniform

    def wait(self, attempt: int) -> None:
        """Wait after the attempt number *attempt*, which is 1 for the first."""
        self.pause(self.jitter(0.0, min(self.most, self.first * 2 ** (attempt - 1))))


class Sender:
    """Sends requests, from any thread, and keeps count."""

    def __init__(self, backoff: Backoff, counts: Counts) -> None:
        self._backoff = backoff
        self._counts = counts
        self._lock = threading.Lock()

    def send(self, request: Request, attempt: Callable[[], T]) -> T:
        """Return what *attempt* returns, which sends the request once and raises `FailedRequest`; blocks.

        Raises `UnknownOutcomeError` if the request is not repeatable and may have been carried out, else what
        `error_of` says of the last failure.
        """
        number, nsilent = 1, 0
        while True:
            with self._lock:
                self._counts.requests[request.operation] += 1
            try:
                return attempt()
            except FailedRequest as error:
                failure = error.failure
            nsilent += failure.is_silent
            is_last = number == self._backoff.attempts or nsilent == self._backoff.silent_attempts
            if is_last or not may_repeat(request, failure):
                break
            _log.warning(
                "%s of %s: %s; trying again (%d of %d)",
                request.operation,
                request.target,
                failure.reason,
                number + 1,
                self._backoff.attempts,
            )
            self._backoff.wait(number)
            with self._lock:
                self._counts.retries += 1
            number += 1
        final = error_of(request, failure, number)
        if isinstance(final, ConflictError):
            with self._lock:
                self._counts.conflicts += 1
        raise final

    def count_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Count bytes of objects that came or went."""
        with self._lock:
            self._counts.bytes_received += received
            self._counts.bytes_sent += sent
