"""`shardfs doctor --shared DIR`: whether hosts that share a directory may write to it at the same time.

It runs on two hosts at once. They find each other in the directory, as files are all that they share, and play the same
steps: locks, what is seen under them, exclusive creation, renames, and how long a name that was not there is not seen.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from shardfs.cli.findings import DoctorFinding
from shardfs.errors import ShardfsError, SourceError, UsageError
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import is_local, ofd_lock, ofd_unlock, require_linux

_DIRECTORY: Final = "shardfs-doctor"
_WAITS: Final = 600.0
_PATIENCE: Final = 120.0
_PAUSE: Final = 0.02
"""Seconds to wait for the other host at first, and for its next step, and between two looks."""

_NLINES: Final = 100
_NNAMES: Final = 200
_NRENAMES: Final = 200
_NBYTES: Final = 16384
_CLOCKS: Final = 10.0
_SOON: Final = 1.0

_ONE_HOST: Final = "let one host write at a time; that of the others shardfs refuses where locks do not reach"


class _SilentError(ShardfsError):
    """The other host did not do its part in time."""


@dataclass(frozen=True)
class _Meeting:
    """The directory in which two hosts try what they share; they have the numbers 0 and 1."""

    path: str
    number: int
    host: str
    other: str

    def file(self, name: str) -> str:
        """The path of a file of that name."""
        return os.path.join(self.path, name)

    def send(self, step: str, value: object = None) -> None:
        """Write down something for the other host."""
        _write(self.path, f"{step}.{self.number}", value)

    def receive(self, step: str) -> Any:  # noqa: ANN401 - whatever the other said
        """Wait for what the other host says at this step; raises `_SilentError` if it cannot go on."""
        return _receive(self.path, f"{step}.{1 - self.number}", self.other, f"failed.{1 - self.number}")

    def both(self, step: str, value: object = None) -> Any:  # noqa: ANN401 - whatever the other said
        """Send and receive: both hosts are at this step then."""
        self.send(step, value)
        return self.receive(step)


def try_sharing(directory: str, waiting: Callable[[str], None]) -> Sequence[DoctorFinding]:
    """Try a directory together with the other host; *waiting* gets a line if that is not there yet.

    Raises `SourceError` if the directory cannot be written, and if nobody comes.
    """
    require_linux(directory)
    path = os.path.abspath(directory)
    try:
        with _met(path, waiting) as meeting:
            return list(_findings(path, meeting))
    except _SilentError as error:
        return [DoctorFinding("problem", str(error), "see what it prints, and whether both have the same directory")]
    except OSError as error:
        raise SourceError(f"{path} cannot be tried: {error.strerror}") from None


def _findings(path: str, meeting: _Meeting) -> Iterator[DoctorFinding]:
    if meeting.host == meeting.other:
        what = f"both of these ran on {meeting.host}, which says nothing about other hosts"
        yield DoctorFinding("note", what, "run it on two hosts at the same time")
    else:
        yield DoctorFinding("ok", f"{meeting.host} and {meeting.other} both have {path}")
    directory = Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    if is_local(directory.fd) and meeting.host != meeting.other:
        what = f"{path} is on a file system of one host, so how do two hosts have it?"
        yield DoctorFinding("problem", what, "shardfs relies on it that such a file system is not shared")
    locks = _try_locks(meeting)
    yield locks
    if locks.kind == "ok":
        yield _try_appends(meeting)
    yield _try_exclusive(meeting)
    for number in range(2):
        yield _try_renames(meeting, number)
    yield _try_new_name(meeting)
    yield _try_clocks(meeting)


def _try_locks(meeting: _Meeting) -> DoctorFinding:
    own = _opened(meeting.file(f"own-lock-{meeting.number}"), os.O_CREAT)
    try:
        ofd_lock(own.fd)
        failed = None
    except OSError as error:
        failed = error.strerror
    failed = meeting.both("locks-begin", failed) or failed
    if failed is not None:
        return DoctorFinding(
            "problem", f"files cannot be locked: {failed}", "mount it with locks; without, nothing is written"
        )
    seen = [_try_lock(meeting, holder) for holder in range(2)]
    if all(seen):
        return DoctorFinding("ok", "a lock of one host keeps the other away, until it is released")
    what = "a lock of one host does not keep the other away"
    return DoctorFinding("problem", what, f"mount it so that locks reach the server, or {_ONE_HOST}")


def _try_lock(meeting: _Meeting, holder: int) -> bool:
    """Let one host hold a lock, and the other one look whether it is kept away, and only then."""
    file = _opened(meeting.file(f"lock-{holder}"), os.O_CREAT)
    if meeting.number == holder:
        is_taken = ofd_lock(file.fd)
        _opened(meeting.file(f"lock-{holder}"))  # and closed: locks of processes would end
        meeting.both(f"lock-{holder}-taken")
        meeting.both(f"lock-{holder}-tried")
        ofd_unlock(file.fd)
        meeting.both(f"lock-{holder}-free")
        return bool(meeting.both(f"lock-{holder}-done")) and is_taken
    meeting.both(f"lock-{holder}-taken")
    is_refused = not ofd_lock(file.fd)
    meeting.both(f"lock-{holder}-tried")
    meeting.both(f"lock-{holder}-free")
    is_right = is_refused and ofd_lock(file.fd)
    meeting.both(f"lock-{holder}-done", is_right)
    return is_right


def _try_appends(meeting: _Meeting) -> DoctorFinding:
    """Append lines at the same time, as commits append to a shard: lock, open, read, write, sync, unlock."""
    data, lock = meeting.file("data"), _opened(meeting.file("data.lock"), os.O_CREAT)
    _opened(data, os.O_CREAT)
    meeting.both("appends-begin")
    wrong, deadline = 0, time.monotonic() + _PATIENCE
    for _ in range(_NLINES):
        while not ofd_lock(lock.fd):
            if time.monotonic() > deadline:
                raise _SilentError(f"{meeting.other} keeps a lock for more than {_PATIENCE:.0f} s")
            time.sleep(secrets.randbelow(5) / 1000)
        try:
            file = _opened(data)
            found = os.pread(file.fd, 2**20, 0)
            lines = found.split()
            wrong += [int(line) for line in lines if line.isdigit()] != list(range(len(lines)))
            os.pwrite(file.fd, b"%d\n" % len(lines), len(found))
            os.fsync(file.fd)
            del file
        finally:
            ofd_unlock(lock.fd)
    wrong += meeting.both("appends-done", wrong)
    found = _read(data)
    expected = b"".join(b"%d\n" % number for number in range(2 * _NLINES))
    if found == expected and not wrong:
        return DoctorFinding("ok", f"{2 * _NLINES} lines that both appended under the lock are all there")
    nlost = len({*expected.split()} - {*found.split()})
    what = f"of {2 * _NLINES} lines that both appended under the lock, {nlost} are lost"
    return DoctorFinding("problem", what, f"what one host syncs must be seen under the lock of the other; {_ONE_HOST}")


def _try_exclusive(meeting: _Meeting) -> DoctorFinding:
    meeting.both("exclusive-begin")
    won, names = [], [f"name-{number}" for number in range(_NNAMES)]
    for name in names:
        with suppress(FileExistsError):
            _opened(meeting.file(name), os.O_CREAT | os.O_EXCL)
            won.append(name)
    others = meeting.both("exclusive-done", won)
    twice = {*won} & {*others}
    if twice or {*won} | {*others} != {*names}:
        what = f"of {_NNAMES} files, each created exclusively by both hosts, {len(twice)} were created twice"
        return DoctorFinding("problem", what, _ONE_HOST)
    return DoctorFinding("ok", f"each of {_NNAMES} files was created exclusively by one of the hosts")


def _try_renames(meeting: _Meeting, writer: int) -> DoctorFinding:
    """Let one host replace a file that the other reads."""
    name = meeting.file(f"replaced-{writer}")
    names = [meeting.host, meeting.other]
    who, reader = names if meeting.number == writer else names[::-1]
    step = f"renames-{writer}"
    if meeting.number == writer:
        _replace(name, 0)
        meeting.both(f"{step}-begin")
        for number in range(1, _NRENAMES):
            _replace(name, number % 256)
        missing, torn = meeting.both(f"{step}-done")
    else:
        meeting.both(f"{step}-begin")
        missing = torn = 0
        done = f"{step}-done.{writer}"
        while True:
            is_last = done in os.listdir(meeting.path)
            try:
                data = _read(name)
                torn += len(data) != _NBYTES or len({*data}) != 1
            except FileNotFoundError:
                missing += 1
            except OSError:  # it was replaced meanwhile: who reads looks again
                pass
            if is_last:
                break
        meeting.both(f"{step}-done", [missing, torn])
    if torn:
        what = f"{reader} read a mixture of two versions of a file that {who} replaced, {torn} times"
        return DoctorFinding("problem", what, "programs that read here may read what nobody wrote")
    if missing:
        what = f"{reader} found no file {missing} times, while {who} replaced it {_NRENAMES} times"
        return DoctorFinding("problem", what, "programs that read while others write may find no shard for a moment")
    return DoctorFinding("ok", f"a file that {who} replaced {_NRENAMES} times was always whole for {reader}")


def _try_new_name(meeting: _Meeting) -> DoctorFinding:
    """Look how long a host does not see a file of the other, if it has looked for it before.

    Each is in a directory that only one host changes: what a host changes itself, it looks at again.
    """
    made, watched = (meeting.file(f"made-{number}") for number in (meeting.number, 1 - meeting.number))
    os.mkdir(made)
    meeting.both("new-directories")
    name = os.path.join(watched, "new")
    os.path.exists(name)
    meeting.both("new-begin")
    begun = time.monotonic()
    _opened(os.path.join(made, "new"), os.O_CREAT)
    meeting.both("new-made")
    while not os.path.exists(name):
        if time.monotonic() > begun + _PATIENCE:
            break
        time.sleep(_PAUSE)
    seconds = max(time.monotonic() - begun, meeting.both("new-done", time.monotonic() - begun))
    os.unlink(os.path.join(made, "new"))
    os.rmdir(made)
    what = f"a new file of the other host was seen after {seconds:.1f} s"
    if seconds > _PATIENCE:
        return DoctorFinding("problem", f"a new file of the other host was not seen for {_PATIENCE:.0f} s", _ONE_HOST)
    if seconds > _SOON:
        return DoctorFinding(
            "note", what, "so long it may take, beside --metadata-ttl, to see what another host created"
        )
    return DoctorFinding("ok", what)


def _try_clocks(meeting: _Meeting) -> DoctorFinding:
    file = _opened(meeting.file(f"clock-{meeting.number}"), os.O_CREAT)
    before = time.time()
    os.pwrite(file.fd, b"now", 0)
    os.fsync(file.fd)
    here = os.fstat(file.fd).st_mtime - before
    seconds = max(abs(here), abs(meeting.both("clocks", here)))
    if seconds > _CLOCKS:
        what = f"the clocks of the hosts and of the file server differ by {seconds:.0f} s"
        return DoctorFinding("problem", what, "set them by NTP: the age of a lock file says whether somebody uses it")
    return DoctorFinding("ok", f"the clocks differ by less than {_CLOCKS:.0f} s")


@contextmanager
def _met(directory: str, waiting: Callable[[str], None]) -> Iterator[_Meeting]:
    """Find the other host; at the end both have said that they need nothing any more, and nothing is left."""
    if not os.path.isdir(directory):
        raise UsageError(f"{directory} is not a directory")
    common = os.path.join(directory, _DIRECTORY)
    with suppress(FileExistsError):
        os.mkdir(common)
        os.chmod(common, os.stat(directory).st_mode & 0o777)
    token, host = secrets.token_hex(8), socket.gethostname()
    written = [f"{token}.here"]
    try:
        _write(common, written[0], host)
        waiting(f"waiting for the other host: run `shardfs doctor --shared` on the same directory there ({directory})")
        other = _find(common, token, written)
        pair = sorted((token, other))
        path = os.path.join(common, "-".join(pair))
        with suppress(FileExistsError):
            os.mkdir(path)
        meeting = _Meeting(path, pair.index(token), host, str(_receive(common, f"{other}.here", "the other")))
        try:
            yield meeting
        except OSError as error:
            meeting.send("failed", error.strerror)
            raise
        else:
            with suppress(_SilentError):  # then the files of both may be removed
                meeting.both("end")
                meeting.send("left")
                if meeting.number == 0:
                    meeting.receive("left")
                    for name in os.listdir(path):
                        os.unlink(os.path.join(path, name))
                    os.rmdir(path)
    finally:
        with suppress(OSError):
            for name in written:
                os.unlink(os.path.join(common, name))
            os.rmdir(common)


def _find(common: str, token: str, written: list[str]) -> str:
    """Return the token of another process that has seen this one; what is left of killed ones answers nobody."""
    deadline = time.monotonic() + _WAITS
    while time.monotonic() < deadline:
        names = os.listdir(common)
        others = [name.removesuffix(".here") for name in names if name.endswith(".here") and name != f"{token}.here"]
        for other in others:
            answer = f"{token}-{other}.seen"
            if answer not in names:
                written.append(answer)
                _write(common, answer, None)
            if f"{other}-{token}.seen" in names:
                return other
        time.sleep(_PAUSE)
    raise SourceError(f"nobody else came to {common}; run the same command on another host at the same time")


def _receive(directory: str, name: str, who: str, failed: str = "") -> Any:  # noqa: ANN401 - whatever was said
    deadline = time.monotonic() + _PATIENCE
    while name not in (names := os.listdir(directory)):  # which is not cached; that a name is missing may be
        if failed in names:
            raise _SilentError(f"{who} cannot go on: {json.loads(_read(os.path.join(directory, failed)))}")
        if time.monotonic() > deadline:
            raise _SilentError(f"{who} did not answer within {_PATIENCE:.0f} s, at {name}")
        time.sleep(_PAUSE)
    return json.loads(_read(os.path.join(directory, name)))


def _write(directory: str, name: str, value: object) -> None:
    new = os.path.join(directory, f".{name}")
    file = _opened(new, os.O_CREAT)
    os.pwrite(file.fd, json.dumps(value).encode(), 0)
    os.fsync(file.fd)
    os.rename(new, os.path.join(directory, name))


def _replace(path: str, byte: int) -> None:
    file = _opened(f"{path}.new", os.O_CREAT | os.O_EXCL)
    os.pwrite(file.fd, bytes([byte]) * _NBYTES, 0)
    os.fsync(file.fd)
    del file
    os.rename(f"{path}.new", path)


def _opened(path: str, flags: int = 0) -> Descriptor:
    return Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666))


def _read(path: str) -> bytes:
    file = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    return os.pread(file.fd, 2**20, 0)
