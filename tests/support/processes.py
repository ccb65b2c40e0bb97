"""Processes that tests start, and that do not outlive them."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_CLONE_NEWUTS = 0x04000000
_PATIENCE = 20.0


def tied(*command: str | Path, end: signal.Signals = signal.SIGTERM, without: Sequence[str] = ()) -> list[str]:
    """The command line of a program that gets a signal when the thread that starts it ends.

    It is *without* some capabilities, also as root. A function between fork and exec could do all that, too, but for
    one subprocess copies the memory of this process, and that takes 40 ms of a process with all the tests.
    """
    bounds = [f"--bounding-set=-{',-'.join(without)}"] if without else []
    return [shutil.which("setpriv") or "setpriv", f"--pdeathsig={end.name}", *bounds, *map(str, command)]


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Let this process get a signal when the thread that started it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def move_to_host(name: str) -> None:
    """Let this process be on a host of this name, as one with `TEST_HOST` in its environment is."""
    if _LIBC.unshare(_CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)


@contextmanager
def running(
    command: Sequence[str | Path], *, end: signal.Signals = signal.SIGKILL, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Run a program for the length of a block, at whose end it is ended, also if the block fails or skips the test.

    `with subprocess.Popen` waits for it instead, for ever if nothing else ends it. With another signal as *end* it may
    tidy up first; if it does not end soon it is killed. The *options* are those of subprocess.Popen.
    """
    process = subprocess.Popen(tied(*command, end=end), **options)
    try:
        yield process
    finally:
        process.send_signal(end)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_PATIENCE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def interrupted(wait: Callable[[], object]) -> Iterator[None]:
    """Interrupt what the block does, by a signal, as soon as *wait* returns in another thread."""

    def interrupt() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()
