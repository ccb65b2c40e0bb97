"""Processes that tests start, and that do not outlive them."""

import ctypes
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Get a signal when the thread that started this process ends; to be called between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
