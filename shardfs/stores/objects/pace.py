"""How long a server is waited for: `Timeouts`, how fast a body must come, and how long a server serves nothing."""

import threading
import time
from dataclasses import dataclass
from typing import Final

from shardfs.stores.objects.failures import Cause, Failure

_WORKS_ALONE: Final = frozenset({"CompleteMultipartUpload", "CopyObject", "UploadPartCopy"})
"""Operations for which a server moves bytes by itself, without sending anything meanwhile."""

READS: Final = frozenset({"GetObject", "HeadBucket", "HeadObject", "ListMultipartUploads", "ListObjectsV2"})
"""Operations that change nothing."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, of silence, of silence while the server moves bytes by itself, and for a whole GET.

    A reader does not wait longer than *reading* for a silent server, and *doubtful* if it was silent before. *grace*
    seconds after a body began, *rate* is how many bytes of it must have come per second.
    """

    connect: float = 5.0
    silence: float = 30.0
    work: float = 300.0
    whole: float = 3600.0
    reading: float = 15.0
    doubtful: float = 5.0
    grace: float = 15.0
    rate: float = 1024.0

    def of(self, operation: str, *, is_doubtful: bool) -> float:
        """Return for how many seconds the server may be silent."""
        if operation in _WORKS_ALONE:
            return self.work
        if operation not in READS:
            return self.silence
        return min(self.doubtful if is_doubtful else self.reading, self.silence)

    def is_too_slow(self, nbytes: int, seconds: float) -> bool:
        """Whether *nbytes* bytes of a body in so many *seconds* are too few."""
        return seconds > self.grace and nbytes < self.rate * seconds


TIMEOUTS: Final = Timeouts()
PATIENCE: Final = 30.0
"""Seconds for which a server is waited for that asks for fewer requests."""


class Trouble:
    """Since when a server has served no request, so that the waits of requests, one after the other, do not add up.

    It began with the first attempt that failed because the server is silent or asks for fewer requests, and ends with
    any other reply, or if nothing has failed for *patience* seconds after the last one. For any thread.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._began: float | None = None
        self._last = 0.0
        self._reason = ""
        self._lock = threading.Lock()

    @property
    def reason(self) -> str:
        """Why the server serves no requests at the moment, as far as is known; else ""."""
        return self._reason if self._began is not None else ""

    def note(self, failure: Failure | None, began: float, now: float) -> None:
        """Note how an attempt ended that *began* then; None stands for success."""
        if failure is None and self._began is None:
            return
        with self._lock:
            if failure is not None and (failure.is_silent or failure.is_throttling):
                if not self._lasts(now):
                    self._began = began
                self._last, self._reason = now, failure.reason
            elif failure is None or failure.cause is Cause.REPLY:
                self._began = None

    def is_old(self) -> bool:
        """Whether it lasts for so long that nobody should wait as long for the server as usual."""
        if self._began is None:
            return False
        now = time.monotonic()
        with self._lock:
            return self._lasts(now) and now - (self._began or 0.0) >= self._patience

    def _lasts(self, now: float) -> bool:
        return self._began is not None and now - self._last < self._patience
