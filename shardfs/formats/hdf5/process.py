"""The end of a `library` process in shardfs: it gives that process bytes of one version of a file, and asks it.

Nothing that comes from there is trusted: a hostile file may have taken the process over. And what becomes of a process
says nothing of the file, unless it is new, and died of the one question that it was asked.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from os.path import abspath, dirname
from time import monotonic
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import trio

from shardfs.errors import CorruptionError, StoreError
from shardfs.format.document import Json
from shardfs.formats.hdf5.library.channel import HEAD, MAX_MEMORY
from shardfs.formats.virtual import parse
from shardfs.stores.base import Buffer, Snapshot

MAX_SECONDS: Final = 20
"""How much processor time a question may take."""

MAX_INDEX_SECONDS: Final = 600
"""How much it may take at most to list names and chunks: of a small file, which has few of them, it is less."""

_INDEX_SECONDS: Final = 60
_NBYTES_A_SECOND: Final = 2**19
"""How much of a file with nothing but names is listed in a second, on a slow machine."""

PATIENCE: Final = 6
"""How many times as long an answer is waited for, on a machine that does much else, or by a process that sleeps."""

_MAX_FATAL: Final = 1000
_MAX_TEXT_NBYTES: Final = 16 * 2**20
_MAX_DATA_NBYTES: Final = 2**30
_MAX_NEED_NBYTES: Final = 2**30
_RECEIVED_NBYTES: Final = 2**20
_SET_PIPE_SIZE: Final = 1031  # F_SETPIPE_SZ of Linux

_PROGRAM: Final = "import sys; sys.path.insert(0, sys.argv[1]); from library import main; sys.path.pop(0); main.run()"
"""Starts `library`, which is in `_HERE`, as a package by itself, without those that it is in."""

_HERE: Final = dirname(abspath(__file__))

_PASSED_ON: Final = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "SYSTEMROOT", "TMPDIR"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH", "PYTHONPYCACHEPREFIX"),
    "PYTHONUSERBASE",
)
"""What a process needs of the environment to find Python and h5py. Keys of S3 are nothing that a file should see."""

_CRASHES: Final = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"})
"""What a process dies of by what it does, and not by what others do to it."""


class LibraryReply(NamedTuple):
    """What was asked for: a value, and bytes; *absent* says why there is nothing of that name."""

    value: Json = None
    data: Buffer = b""
    absent: str | None = None


class PartsTaken(Protocol):
    """What keeps the parts of an answer. It is called in a thread."""

    def take(self, part: Json, data: Buffer) -> None:
        """Keep one part; raises `ValueError`, `TypeError` and others of the kind for what was not asked for."""


P = TypeVar("P", bound=PartsTaken)
T = TypeVar("T")


class LibraryProcess:
    """A process that reads the file *snapshot*; it is started when it is needed.

    It ends with this object, and at the latest with *session*. One question is asked at a time. A process that dies, or
    whose answer nobody waits for any more, is replaced for the next one; a question of which a new one died is not
    asked again.
    """

    def __init__(self, snapshot: Snapshot, session: trio.Nursery) -> None:
        self._snapshot = snapshot
        self._session = session
        self._turn = trio.Lock()
        self._child: _Child | None = None
        self._end: weakref.finalize[..., LibraryProcess] | None = None
        self._fatal: dict[str, str] = {}  # questions of which it died, with what is said of them

    async def ask(self, what: str, **arguments: Json) -> LibraryReply:
        """Return what the method *what* of `Hdf5File` returns.

        Raises `CorruptionError` if the file cannot be read, or the library crashes, `StoreError` if no process can
        answer, and what reading bytes raises.
        """
        return (await self._ask(_NoParts, what, arguments))[1]

    async def collect(self, parts: Callable[[], P], what: str, **arguments: Json) -> tuple[P, LibraryReply]:
        """Return what the method *what* yields, kept in what *parts* makes, which is called for each attempt.

        Raises the errors of `ask`.
        """
        return await self._ask(parts, what, arguments)

    async def _ask(self, parts: Callable[[], P], what: str, arguments: dict[str, Json]) -> tuple[P, LibraryReply]:
        question = json.dumps([what, arguments])
        if question in self._fatal:
            raise CorruptionError(self._fatal[question])
        async with self._turn:
            try:
                try:
                    return await self._attempt(parts, what, arguments)
                except _DiedError:  # of whatever it was; this question shares no process with another one now
                    return await self._attempt(parts, what, arguments)
            except _DiedError as error:
                raise StoreError(f"a process that reads HDF5 {error}") from None
            except _DamagedError as error:
                if len(self._fatal) < _MAX_FATAL:
                    self._fatal[question] = str(error)
                raise CorruptionError(str(error)) from None

    async def _attempt(self, parts: Callable[[], P], what: str, arguments: dict[str, Json]) -> tuple[P, LibraryReply]:
        taken, is_whole = parts(), False
        try:
            child = self._child or await self._start()
            reply = await child.ask(what, arguments, taken)
            is_whole = True
        except _RefusedError as error:
            is_whole = True
            raise CorruptionError(f"libhdf5 cannot read it: {error}") from None
        finally:
            if not is_whole:  # nobody wants the rest of the answer, and it must not be that to another question
                self._stop()
        return taken, reply

    async def _start(self) -> "_Child":
        child = await _Child.start(self._snapshot, self._session)
        try:
            await child.ask("begin", {"size": self._snapshot.size}, _NoParts())
        except BaseException:
            child.kill()
            raise
        child.is_new = True
        # An object may be dropped in any thread.
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        self._child, self._end = child, weakref.finalize(self, _end, soon, child.kill)
        return child

    def _stop(self) -> None:
        if self._child is not None and self._end is not None:
            self._end.detach()
            self._child.kill()
            self._child = None


def _end(soon: Callable[[Callable[[], None]], None], kill: Callable[[], None]) -> None:
    with suppress(trio.RunFinishedError):  # and the session with it
        soon(kill)


class _NoParts:
    """Takes none."""

    def take(self, part: Json, data: Buffer) -> None:
        raise ValueError


class _DiedError(Exception):
    """A process cannot answer any more, which says nothing of the question: ask a new one."""


class _DamagedError(Exception):
    """libhdf5 died of this very question; the message says how."""


class _NonsenseError(Exception):
    """A process says what it may not."""


class _RefusedError(Exception):
    """libhdf5 says what it cannot read; the process goes on."""


class _Child:
    """One process, which is asked one question at a time. What is not answered is followed by no other question.

    *is_new*: it has answered no question, so that what happens to it has to do with the one that it is asked.
    """

    def __init__(self, process: trio.Process, snapshot: Snapshot) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.is_new = True
        self._process = process
        self._requests, self._replies = process.stdin, process.stdout
        self._snapshot = snapshot
        self._received = bytearray()

    @classmethod
    async def start(cls, snapshot: Snapshot, session: trio.Nursery) -> "_Child":
        """Start a process, which *session* attends to; raises `StoreError` if that is not possible."""
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-c", _PROGRAM, _HERE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # where libhdf5 and malloc say what they make of a hostile file
                cwd=os.path.sep,
                env={
                    **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    "OPENBLAS_NUM_THREADS": "1",
                    "HDF5_PLUGIN_PRELOAD": "::",  # no plugins
                    "HDF5_USE_FILE_LOCKING": "FALSE",
                },
                start_new_session=True,  # Ctrl-C is for the mount
            )
        except OSError as error:
            raise StoreError(f"no process can be started to read HDF5: {error}") from None
        child = cls(process, snapshot)
        child._widen()
        try:
            session.start_soon(child._attend)
        except RuntimeError:
            process.kill()
            raise StoreError("the source is closed, and no process is started to read it") from None
        return child

    def _widen(self) -> None:
        """Let pipes have as much as is read ahead at once; where that is not allowed, they have less."""
        with suppress(ImportError, OSError, AttributeError):
            import fcntl

            for pipe in (self._requests, self._replies):
                if isinstance(pipe, trio.lowlevel.FdStream):
                    fcntl.fcntl(pipe.fileno(), _SET_PIPE_SIZE, _RECEIVED_NBYTES)

    async def _attend(self) -> None:
        """Wait for the end of the process, whatever ends it."""
        try:
            await self._process.wait()
        finally:
            self.kill()
            with trio.CancelScope(shield=True):
                await self._process.wait()
                for pipe in (self._requests, self._replies):
                    await trio.aclose_forcefully(pipe)

    def kill(self) -> None:
        """Kill the process, with what it may have started, and do not wait for that."""
        if self._process.returncode is None:
            with suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(self._process.pid, signal.SIGKILL)
                else:
                    self._process.kill()

    async def ask(self, what: str, arguments: dict[str, Json], parts: PartsTaken) -> LibraryReply:
        """Ask a question, and return the answer.

        Raises `_RefusedError`, and then the process can be asked the next question; after all other errors it cannot.
        """
        try:
            return await self._answer(what, arguments, parts)
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            raise await self._death() from None
        except _NonsenseError:
            raise self._error("answered what it may not") from None

    async def _answer(self, what: str, arguments: dict[str, Json], parts: PartsTaken) -> LibraryReply:
        seconds = MAX_SECONDS
        if what in ("chunks", "listing"):
            seconds = min(_INDEX_SECONDS + self._snapshot.size // _NBYTES_A_SECOND, MAX_INDEX_SECONDS)
        clock = _Clock(PATIENCE * seconds)
        await self._send({"ask": what, "with": arguments, "seconds": seconds})
        while True:
            message, data = await self._receive(clock)
            match message:
                case {"need": [int(offset), int(nbytes)]}:
                    await self._send({}, await self._bytes(offset, nbytes))
                case {"part": part}:
                    await trio.to_thread.run_sync(_taken, parts, part, data)
                case {"done": value}:
                    self.is_new = False
                    return LibraryReply(value, data)
                case {"error": "absent", "text": str(text)}:
                    self.is_new = False
                    return LibraryReply(absent=text)
                case {"error": "damaged", "text": str(text)}:
                    self.is_new = False
                    raise _RefusedError(text)
                case {"error": "memory"}:
                    raise self._error(f"takes more than {MAX_MEMORY // 2**30} GiB of memory to read it")
                case {"error": "unusable", "text": str(text)}:
                    raise StoreError(f"h5py cannot be used: {text[:300]}")
                case _:
                    raise _NonsenseError

    def _error(self, how: str) -> Exception:
        """Return the error for what the process did by itself: of the only question that it was asked, or of any."""
        return _DamagedError(f"the file is damaged: libhdf5 {how}") if self.is_new else _DiedError(how)

    async def _death(self) -> Exception:
        """Return the error for the end of the process, which has closed its side."""
        status: int | None = None
        with trio.move_on_after(1):
            status = await self._process.wait()
        if status is None:
            return self._error("answered what it may not")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
        if name == "SIGXCPU":  # the time is that of one question
            return _DamagedError("the file is damaged: libhdf5 took too much time to read it")
        if name in _CRASHES or status >= 0:
            return self._error(f"crashed ({name}) while it read it")
        return _DiedError(f"was killed ({name}): is there enough memory?")

    async def _bytes(self, offset: int, nbytes: int) -> Buffer:
        if not 0 <= offset <= offset + nbytes <= self._snapshot.size or nbytes > _MAX_NEED_NBYTES:
            raise _NonsenseError  # beyond the end of the file
        return await self._snapshot.read(offset, nbytes)

    async def _send(self, message: Json, data: Buffer = b"") -> None:
        text = json.dumps(message).encode()
        await self._requests.send_all(HEAD.pack(len(text), len(data)) + text)
        if data:
            await self._requests.send_all(data)

    async def _receive(self, clock: "_Clock") -> tuple[Json, Buffer]:
        ntext, ndata = HEAD.unpack(await self._exactly(HEAD.size, clock))
        if ntext > _MAX_TEXT_NBYTES or ndata > _MAX_DATA_NBYTES:
            raise _NonsenseError
        text = await self._exactly(ntext, clock)
        return await parse(_decoded, text), await self._exactly(ndata, clock)

    async def _exactly(self, nbytes: int, clock: "_Clock") -> Buffer:
        while len(self._received) < nbytes:
            data = await clock.limit(partial(self._replies.receive_some, _RECEIVED_NBYTES))
            if not data:
                raise EOFError
            self._received += data
        if len(self._received) == nbytes:
            taken, self._received = self._received, bytearray()
        else:
            taken = self._received[:nbytes]
            del self._received[:nbytes]
        return taken


def _decoded(text: Buffer) -> Any:  # noqa: ANN401
    try:
        return json.loads(bytes(text))
    except (ValueError, RecursionError):
        raise _NonsenseError from None


def _taken(parts: PartsTaken, part: Json, data: Buffer) -> None:
    try:
        parts.take(part, data)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise _NonsenseError from None


class _Clock:
    """Allows *seconds* in all to wait for a process; what is done meanwhile to serve it is not counted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0

    async def limit(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Return what *wait* does; raises `StoreError` if no time is left."""
        while self._spent < self._seconds:
            begun = monotonic()
            try:
                with trio.move_on_after(self._seconds - self._spent):
                    return await wait()
            finally:
                self._spent += monotonic() - begun  # the clock of the event loop is another one in tests
        raise StoreError(f"a process that reads HDF5 did not answer in {self._seconds:,.0f} seconds")
