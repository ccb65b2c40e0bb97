"""How one session asks another to commit what is pending: by a file in its slot, `asked/TOKEN`.

The file has a slash and the path below which all is to be committed, or is empty for all there is. Whoever has the slot
renames it to `TOKEN.seen`, commits, and removes it; if it cannot, it leaves `TOKEN.failed`, which says why. It looks at
the directory a few times a second while anything is pending, so nothing else is needed where hosts share no more than a
file system.
"""

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from shardfs.dataset.state.directory import StateDirectory
from shardfs.dataset.state.slots import Slot, is_locked
from shardfs.errors import StoreError, printable
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import DIRECTORY, NO_SPACE, READ

_TOKEN: Final = re.compile(r"[0-9a-f]{16}")
_NEW, _SEEN, _FAILED = ".new", ".seen", ".failed"
_TEXT_NBYTES: Final = 4096
_KEPT_SECONDS: Final = 600.0


class Answer(Enum):
    """What is known of a request."""

    NONE = auto()
    SEEN = auto()
    DONE = auto()
    """What was pending when it was made is committed."""
    DEAD = auto()
    """Nobody has the slot any more."""


class Asked:
    """The requests of other sessions in a slot of our own; all methods block."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state

    def take(self, most: int) -> Mapping[str, str | None]:
        """Return the requests that came since the last look, which are seen now, with the path that each is for.

        Those for more than *most* paths stay for a later look.
        """
        directory = self._state.asked
        asked: dict[str, str | None] = {}
        with suppress(OSError):
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                with suppress(OSError):
                    if _TOKEN.fullmatch(name):
                        below, paths = _path_in(path), {*asked.values()}
                        if below in paths or len(paths) < most:
                            os.rename(path, path + _SEEN)
                            asked[name] = below
                    elif name.endswith(_FAILED) and os.stat(path).st_mtime < time.time() - _KEPT_SECONDS:
                        os.unlink(path)  # whoever asked has read it, or has ended
        return asked

    def answer(self, tokens: Sequence[str], reason: str | None) -> None:
        """Answer requests: what was pending is committed, unless there is a *reason* why not."""
        for token in tokens:
            with suppress(OSError):
                directory = Descriptor(os.open(self._state.asked, DIRECTORY))
                if reason is not None:
                    _put(directory.fd, token, token + _FAILED, reason.encode(errors="replace")[:_TEXT_NBYTES])
                os.unlink(token + _SEEN, dir_fd=directory.fd)


class Question:
    """A request to the session that has *slot* to commit all, or what is at and below a path; all methods block.

    *progress* changes while it commits.
    """

    progress: object = None

    def __init__(self, slot: Slot, below: str | None) -> None:
        self._state, self._owner = slot.state, slot.owner
        self._text = b"" if below is None else f"/{below}".encode("utf-8", "surrogateescape")
        self._token = secrets.token_hex(8)
        self._directory: Descriptor | None = None

    def ask(self) -> None:
        """Make the request; raises `OSError` if that is not possible."""
        self._directory = Descriptor(os.open(self._state.asked, DIRECTORY))
        text = self._text if len(self._text) <= _TEXT_NBYTES else b""  # which is for all
        _put(self._directory.fd, self._token, self._token, text)

    def look(self) -> Answer:
        """Return what is known by now; raises `StoreError` if the session could not commit, with its reason."""
        directory = self._directory
        if directory is None or not self._state.has_pending():
            return Answer.DONE
        self.progress = _sizes(self._state.journal)
        names = set(os.listdir(directory.path))
        if self._token + _FAILED in names:
            with open(os.open(self._token + _FAILED, READ, dir_fd=directory.fd), "rb") as file:
                if os.fstat(file.fileno()).st_uid == self._owner:
                    reason = printable(file.read(_TEXT_NBYTES).decode(errors="replace"))
                    raise StoreError(reason or "it has no space on its disk to say why it does not commit")
        if self._token + _SEEN in names:
            answer = Answer.SEEN
        elif self._token in names:
            answer = Answer.NONE
        else:
            answer = Answer.DONE
        return answer if is_locked(self._state) is not False else Answer.DEAD

    def end(self) -> None:
        """Take the request back, if it is still there."""
        if self._directory is not None:
            for name in (self._token + end for end in ("", _NEW, _SEEN, _FAILED)):
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._directory.fd)


def _put(directory: int, token: str, name: str, text: bytes) -> None:
    """Give a new file with *text* the *name* when it is whole, for all hosts; it is empty if the disk is full."""
    new, flags = token + _NEW, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(new, flags, 0o644, dir_fd=directory), "wb") as file:
            file.write(text)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        os.close(os.open(new, flags, 0o644, dir_fd=directory))
    os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)


def _path_in(request: str) -> str | None:
    """Return the path that a request is for; None if it is for all, or cannot be read."""
    text = ""
    with suppress(OSError), open(os.open(request, READ), "rb") as file:
        text = file.read(_TEXT_NBYTES).decode("utf-8", "surrogateescape")
    return text[1:] if text.startswith("/") else None


def _sizes(directory: str) -> object:
    """Return the names and sizes of the files in a directory, which change while a session writes or commits."""
    with suppress(OSError), os.scandir(directory) as entries:
        return sorted((entry.name, entry.stat(follow_symlinks=False).st_size) for entry in entries)
    return None
