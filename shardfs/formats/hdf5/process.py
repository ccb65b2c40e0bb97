"""The end of a `library` process in shardfs: it gives that process bytes of one version of a file, and asks it.

Nothing that comes from there is trusted: a hostile file may have taken the process over.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from os.path import abspath, dirname
from typing import Any, Final, NamedTuple

import trio

from shardfs.errors import CorruptionError, ShardfsError, StoreError
from shardfs.format.document import Json
from shardfs.formats.hdf5.library.channel import HEAD
from shardfs.stores.base import Snapshot

MAX_SECONDS: Final = 20
"""How much processor time a question may take."""

MAX_INDEX_SECONDS: Final = 120
"""How much it may take to list names and chunks, of which there may be a hundred thousand, and millions."""

_MAX_FATAL: Final = 1000
_MAX_TEXT_NBYTES: Final = 64 * 2**20
_MAX_DATA_NBYTES: Final = 2**30
_MAX_NEED_NBYTES: Final = 2**30


Take = Callable[[Json, bytes], None]


_PROGRAM: Final = "import sys; sys.path.insert(0, sys.argv[1]); from library import main; sys.path.pop(0); main.run()"
"""Starts `library` as a package by itself, without those that it is in."""


class LibraryReply(NamedTuple):
    """What was asked for: a value, or parts, and bytes; *absent* says why there is nothing of that name."""

    value: Json = None
    data: bytes = b""
    absent: str | None = None


class LibraryProcess:
    """A process that reads the file *snapshot*; it is started when it is needed, and ends with this object.

    One question is asked at a time. A process that dies is started again for the next one; what it died of is not asked
    again.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._content = snapshot.content(0, snapshot.size)
        self._turn = trio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self._is_asked = False  # and has not answered yet
        self._fatal: dict[str, str] = {}  # questions of which it died, with what is said of them

    async def ask(self, what: str, take: Take | None = None, **arguments: Json) -> LibraryReply:
        """Return what the method *what* of `Hdf5File` does; *take* is called with each part that it yields.

        Raises `CorruptionError` if the file cannot be read, or the library crashes, and what reading bytes raises.
        """
        question = json.dumps([what, arguments])
        if question in self._fatal:
            raise CorruptionError(self._fatal[question])
        async with self._turn:
            try:
                return await trio.to_thread.run_sync(
                    partial(self._ask, what, arguments, take or _refuse), abandon_on_cancel=True
                )
            finally:
                if self._is_asked:  # it died, or nobody wants the reply any more: that must not be for the next one
                    self._stop()

    def _ask(self, what: str, arguments: dict[str, Json], take: Take) -> LibraryReply:
        if self._process is None:
            self._start()
            self._exchange("begin", {"size": self._content.nbytes}, _refuse)
        return self._exchange(what, arguments, take)

    def _start(self) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                [sys.executable, "-P", "-c", _PROGRAM, dirname(abspath(__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where libhdf5 and malloc say what they make of a hostile file
                cwd="/",
                env={
                    **os.environ,
                    "OPENBLAS_NUM_THREADS": "1",
                    "HDF5_PLUGIN_PRELOAD": "::",  # no plugins
                    "HDF5_USE_FILE_LOCKING": "FALSE",
                },
                start_new_session=True,  # Ctrl-C is for the mount
            )
        except OSError as error:
            raise StoreError(f"no process can be started to read HDF5: {error}") from None
        self._process = process
        self._end = weakref.finalize(self, _end, process)

    def _stop(self) -> None:
        self._process, self._is_asked = None, False
        self._end()

    def _exchange(self, what: str, arguments: dict[str, Json], take: Take) -> LibraryReply:
        assert self._process is not None
        self._is_asked = True
        try:
            seconds = MAX_INDEX_SECONDS if what in ("chunks", "listing") else MAX_SECONDS
            self._send({"ask": what, "with": arguments, "seconds": seconds})
            while True:
                message, data = self._receive()
                match message:
                    case {"need": [int(offset), int(nbytes)]}:
                        self._send({}, self._bytes(offset, nbytes))
                    case {"part": part}:
                        take(part, data)
                    case {"done": value}:
                        self._is_asked = False
                        return LibraryReply(value, data)
                    case {"error": "absent", "text": str(text)}:
                        self._is_asked = False
                        return LibraryReply(absent=text)
                    case {"error": "damaged", "text": str(text)}:
                        self._is_asked = False
                        raise CorruptionError(f"libhdf5 cannot read it: {text}")
                    case _:
                        break
        except ShardfsError:
            raise
        except (OSError, EOFError, ValueError, RecursionError):
            pass
        reason = f"the file is damaged: libhdf5 {self._how_it_ended()}"
        if len(self._fatal) < _MAX_FATAL:
            self._fatal[json.dumps([what, arguments])] = reason
        raise CorruptionError(reason)

    def _bytes(self, offset: int, nbytes: int) -> bytes:
        if not 0 <= offset <= offset + nbytes <= self._content.nbytes or nbytes > _MAX_NEED_NBYTES:
            raise ValueError("beyond the end of the file")
        return bytes(self._content.read(offset, nbytes))

    def _send(self, message: Json, data: bytes = b"") -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        text = json.dumps(message).encode()
        self._process.stdin.write(HEAD.pack(len(text), len(data)) + text)
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _receive(self) -> tuple[Any, bytes]:
        ntext, ndata = HEAD.unpack(self._exactly(HEAD.size))
        if ntext > _MAX_TEXT_NBYTES or ndata > _MAX_DATA_NBYTES:
            raise ValueError("too long a message")
        return json.loads(self._exactly(ntext)), self._exactly(ndata)

    def _exactly(self, nbytes: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        data = self._process.stdout.read(nbytes)
        if len(data) < nbytes:
            raise EOFError
        return data

    def _how_it_ended(self) -> str:
        """Say what became of the process, which has closed its side, or said what it may not."""
        process = self._process
        assert process is not None
        try:
            status = process.wait(1)
        except subprocess.TimeoutExpired:
            return "answered what it may not"
        if -status in (signal.SIGXCPU, signal.SIGKILL):
            return "took too much time, or memory, to read it"
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"crashed ({name}) while it read it"


def _refuse(part: Json, data: bytes) -> None:
    raise ValueError("no parts were asked for")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not sent cannot be
            if pipe is not None:
                pipe.close()
