"""A terminal for commands, which behave otherwise than in a pipe."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.mounting import PATIENCE, command, environment


class Terminal:
    """What a command shows on a terminal of 24 lines with *columns* characters."""

    def __init__(self, *arguments: str | Path, columns: int = 200) -> None:
        self._fd, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # Who runs tests in the background of a shell ignores Ctrl-C, and so would all that they start.
        prefix = ["env", "--default-signal=INT", "setsid", "--ctty", "--wait"]
        self.process = subprocess.Popen(
            [*prefix, *command(*arguments)], env=environment(), stdin=end, stdout=end, stderr=end
        )
        os.close(end)
        self.shown = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end within a character

    def read_until(self, text: str) -> str:
        """Return all that was shown by the time *text* is there."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert select.select([self._fd], [], [], deadline - time.monotonic())[0], self.shown
            try:
                self.shown += self._decode(os.read(self._fd, 65536))
            except OSError:  # nobody has the other end any more
                raise AssertionError(self.shown) from None
        return self.shown

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._fd, key.encode())

    def end(self) -> int:
        """Return the status with which the command ends, when all is read that it shows."""
        with suppress(OSError):
            while select.select([self._fd], [], [], PATIENCE)[0] and (data := os.read(self._fd, 65536)):
                self.shown += self._decode(data)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        os.close(self._fd)


@contextmanager
def on_terminal(*arguments: str | Path, columns: int = 200) -> Iterator[Terminal]:
    """Run a command of shardfs on a terminal."""
    terminal = Terminal(*arguments, columns=columns)
    try:
        yield terminal
    finally:
        terminal.close()
