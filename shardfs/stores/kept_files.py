"""What programs wrote to a remote store and could not be stored: local files, each with a note of its key.

A note is made when a file cannot be stored, with the reason, and removed if it, or a later version of it, can be stored
later. Until somebody asks to store what is left then, it stays.
"""

import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import trio

from shardfs.errors import NoSpaceError, ShardfsError
from shardfs.stores.base import Buffer, Descriptor
from shardfs.stores.local.syscalls import READ, SYSCALLS, changing, read_at

log = logging.getLogger(__name__)

_MAX_NBYTES: Final = 2**30
"""From this size of kept files on, which nobody has stored or removed, nothing more is written."""

_NOTE_NBYTES: Final = 4096
"""What a note counts, so that the number of files is limited too: a block on disk."""

_SUFFIX: Final = ".json"
_NEW: Final = ".new"
_MAX_NOTE_NBYTES: Final = 64 * 2**10


@dataclass(frozen=True, slots=True)
class KeptFile:
    """*nbytes* bytes at *path*, written to the file *key*, last at *mtime_ns*.

    *reason* says why they are not stored. *is_superseded*: a later version of the file was stored since, which storing
    this one would undo.
    """

    key: str
    path: str
    nbytes: int
    mtime_ns: int
    reason: str
    is_superseded: bool = False

    def __str__(self) -> str:
        later = "; a later version was stored from here since" if self.is_superseded else ""
        return f"{self.key}, {self.nbytes:,} bytes in {self.path}: {self.reason}{later}"

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return *nbytes* bytes from *offset*."""
        with changing(self.path), open(os.open(self.path, READ), "rb") as file:
            return read_at(file.fileno(), nbytes, offset)

    def remove(self) -> None:
        """Remove it."""
        remove_kept(self.path)


class KeptFiles:
    """The files and notes in *directory*; a name there is used only once."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._nbytes = 0
        """How many bytes are kept, with the notes; some may have been stored or removed since by another process."""
        self._by_key: dict[str, set[str]] = {}
        """The names of the files that are kept of each key, and not superseded: as many as there is room for."""
        self._earlier: set[str] = set()
        """The names of those that an earlier mount has kept: programs of this one know nothing about them."""

    def resume(self) -> None:
        """Log what earlier processes have kept, which is left alone. Remove files without a note.

        Those were stored, or open when their mount was killed.
        """
        names = set(self._names())
        for name in names:
            if not name.endswith(_SUFFIX) and name + _SUFFIX not in names:
                remove_kept(self.path(name))
        for file in self.find():
            self._nbytes += file.nbytes + _NOTE_NBYTES
            if not file.is_superseded:
                name = os.path.basename(file.path)
                self._by_key.setdefault(file.key, set()).add(name)
                self._earlier.add(name)
            log.warning("kept of an earlier mount: %s; `shardfs recover` shows it", file)

    def require_room(self) -> None:
        """Raise `NoSpaceError` if too much is kept for anything more to be written."""
        if self._nbytes >= _MAX_NBYTES:
            self._nbytes = sum(file.nbytes + _NOTE_NBYTES for file in self.find())
        if self._nbytes >= _MAX_NBYTES:
            raise NoSpaceError(
                f"{self.directory} keeps {self._nbytes:,} bytes that are not stored; see `shardfs recover`"
            )

    async def keep(self, name: str, key: str, reason: str, content: Buffer | None = None) -> None:
        """Keep the file *name*, which was written to *key* and not stored; with *content*, create it.

        The same content of a key is kept only once: the kernel sends a rename again that failed with `ESTALE`.
        """
        path, earlier = self.path(name), tuple(self._by_key.get(key, ()))

        def keep() -> int | None:
            if content is not None and any(self._renew(other, content) for other in earlier):
                return None
            with changing(path):
                if content is not None:
                    with open(path, "xb") as file:
                        file.write(content)
                kept = Descriptor(os.open(path, READ))
                os.fsync(kept.fd)
                write_note(path + _SUFFIX, {"key": key, "reason": reason, "superseded": False})
                return os.fstat(kept.fd).st_size

        self._by_key.setdefault(key, set()).add(name)
        with trio.CancelScope(shield=True):
            nbytes = await trio.to_thread.run_sync(keep)
        if nbytes is None:
            self._by_key.get(key, set()).discard(name)
            return
        self._nbytes += nbytes + _NOTE_NBYTES
        log.error("what was written to %s is kept in %s: %s; `shardfs recover --apply` stores it", key, path, reason)

    def stored(self, key: str, name: str | None) -> None:
        """Note that *key* was stored, from the file *name* if there is one.

        What this mount has kept of it is removed: its program was told, and a program has written the file again since.
        What an earlier mount has kept stays, superseded. The note of a file goes only now: if its mount is killed while
        it is stored again, it is kept.
        """
        if name is not None:
            with suppress(OSError):
                os.unlink(self.path(name) + _SUFFIX)
        for older in self._by_key.pop(key, set()) - {name}:
            if older in self._earlier:
                self._supersede(key, older)
                continue
            with suppress(OSError):
                self._nbytes -= os.stat(self.path(older)).st_size + _NOTE_NBYTES
            remove_kept(self.path(older))
            log.info("what was kept of %s is removed: it is stored as it was written since", key)

    def _supersede(self, key: str, name: str) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # without a note, it is not kept any more
            file = self._read(name)
            write_note(file.path + _SUFFIX, {"key": key, "reason": file.reason, "superseded": True})
            what = f"what was written to {key} and is kept in {file.path} is older than what is stored"
            log.warning("%s: `recover` leaves it alone", what)

    def find(self) -> Sequence[KeptFile]:
        """Return the files that have a note, oldest first."""
        files = []
        for name in self._names():
            if name.endswith(_SUFFIX):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    files.append(self._read(name.removesuffix(_SUFFIX)))
        return sorted(files, key=lambda file: (file.mtime_ns, file.path))

    def path(self, name: str) -> str:
        """Return the path of the file *name*."""
        return os.path.join(self.directory, name)

    def _renew(self, name: str, content: Buffer) -> bool:
        """If *content* is what the file *name* keeps, make that the latest of its key."""
        with suppress(OSError, ValueError, KeyError, TypeError, ShardfsError):
            file = self._read(name)
            if file.nbytes == len(content) and file.read(0, file.nbytes) == content:
                os.utime(file.path)
                return True
        return False

    def _read(self, name: str) -> KeptFile:
        path = self.path(name)
        status = os.stat(path, follow_symlinks=False)
        note = read_note(path + _SUFFIX)
        return KeptFile(
            str(note["key"]), path, status.st_size, status.st_mtime_ns, str(note["reason"]), bool(note["superseded"])
        )

    def _names(self) -> Sequence[str]:
        try:
            return os.listdir(self.directory)
        except OSError:
            return []


def write_note(path: str, note: Mapping[str, object]) -> None:
    """Write a small file for `read_note`, durably, replacing what has its name, also if another process does so now."""
    new = f"{path}.{new_name()}{_NEW}"
    with open(new, "wb") as file:
        file.write(json.dumps(note).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = Descriptor(os.open(os.path.dirname(path), READ))
    SYSCALLS.sync_directory(directory.fd)


def read_note(path: str) -> Any:  # noqa: ANN401 - whatever is there
    """Return the content of a note; raises `OSError`, and `ValueError` if it is invalid."""
    with open(os.open(path, READ), "rb") as file:
        return json.loads(file.read(_MAX_NOTE_NBYTES))


def remove_kept(path: str) -> None:
    """Remove the file at *path* and its note."""
    for file in (path, path + _SUFFIX):
        with suppress(OSError):
            os.unlink(file)


def new_name() -> str:
    """Return a name that no file has, in this directory or in that of another mount."""
    return secrets.token_hex(8)
