"""The manifest of a destination: what each object stored there by bulk work was made from.

It is a small database in the user's state directory, which grows with the number of shards but takes no memory. A key
is recorded before anything is stored under it, so the manifest knows everything that was stored.
"""

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from shardfs.bulk.delivery import Delivered, Item
from shardfs.dataset.state.directory import needed, state_home
from shardfs.errors import SourceError, StoreError, UsageError
from shardfs.stores.base import Address, Descriptor
from shardfs.stores.local.syscalls import ofd_lock

_TABLES: Final = """
    create table if not exists about (what text primary key, said text);
    create table if not exists objects (
        key blob primary key, made_of text, state text, run integer not null, is_begun integer not null
    ) without rowid;
"""
_NROWS: Final = 1000


class Manifest:
    """What is known about the objects in a destination; those of this *run* are distinguished from earlier ones."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._database.text_factory = os.fsdecode
        self._database.executescript(_TABLES)
        self._run = 1 + (self._database.execute("select max(run) from objects").fetchone()[0] or 0)

    def clear(self) -> None:
        """Forget everything: the destination is empty."""
        with self._database:
            self._database.execute("delete from objects")
            self._database.execute("delete from about")

    def require(self, what: str, *, is_empty: bool) -> None:
        """Record the command that makes the destination, the first time, when it *is_empty*.

        Raises `UsageError` if it was made by another command, or by an unknown one.
        """
        found = self._database.execute("select said from about where what = 'made by'").fetchone()
        if found is None and not is_empty:
            raise UsageError(
                "DEST is not empty, and no run is known on this machine that made it: choose another DEST, or go on "
                "where that run was, as the same user"
            )
        if found is not None and found[0] != what:
            raise UsageError(f"DEST was made by another command: {found[0]}; with --sync give the same again")
        with self._database:
            stored = os.fsencode(what)  # which need not be UTF-8
            self._database.execute("insert or ignore into about values ('made by', cast(? as text))", (stored,))

    def items(self, keys: Iterable[str]) -> tuple[Item, ...]:
        """Record that objects are about to be stored under *keys*; return them with what `done` recorded before."""
        items: list[Item] = []
        with self._database:
            for key in keys:
                stored = os.fsencode(key)
                found = self._database.execute("select made_of, state from objects where key = ?", (stored,)).fetchone()
                items.append(Item(key, *found) if found is not None and found[0] is not None else Item(key))
                self._database.execute(
                    "insert into objects values (?, null, null, ?, 1) "
                    "on conflict (key) do update set run = excluded.run, is_begun = 1",
                    (stored, self._run),
                )
        return tuple(items)

    def done(self, delivered: Iterable[Delivered]) -> None:
        """Record what objects are made from, and their states in the store."""
        rows = [(item.made_of, item.state, os.fsencode(item.key)) for item in delivered]
        with self._database:
            self._database.executemany("update objects set made_of = ?, state = ?, is_begun = 0 where key = ?", rows)

    def unfinished(self) -> list[str]:
        """Return the keys that an earlier run began, and did not finish."""
        return [os.fsdecode(key) for (key,) in self._database.execute("select key from objects where is_begun")]

    def stale(self) -> Iterator[tuple[str, str | None]]:
        """Yield the keys of earlier runs that this one did not begin, and the states in which they were stored last.

        The state is missing if none of these runs finished the object.
        """
        last = b""
        while rows := self._database.execute(
            "select key, state from objects where run < ? and key > ? order by key limit ?",
            (self._run, last, _NROWS),
        ).fetchall():
            for last, state in rows:
                yield os.fsdecode(last), state

    def forget(self, key: str) -> None:
        """Forget an object."""
        with self._database:
            self._database.execute("delete from objects where key = ?", (os.fsencode(key),))


@contextmanager
def open_manifest(destination: Address) -> Iterator[Manifest]:
    """Open the manifest of *destination*, creating it if there is none; nobody else has it open meanwhile.

    Raises `SourceError` if another process has it open, and `StoreError` if its disk is full, or it is damaged.
    """
    digest = hashlib.sha256("\n".join(destination).encode(errors="surrogateescape")).hexdigest()[:32]
    directory = os.path.join(state_home(), "shardfs", "bulk")
    path = os.path.join(directory, f"{digest}.sqlite")
    with needed(path):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = Descriptor(os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        if not ofd_lock(lock.fd):
            raise SourceError(f"{destination} is being written by another process of this host")
    try:
        with closing(sqlite3.connect(path, isolation_level="IMMEDIATE")) as database:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = normal")
            yield Manifest(database)
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"{path} cannot be written: {error}; what is stored stays, and --sync goes on with it"
        ) from None
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"{path}, which knows what DEST is made of, is damaged: {error}; move it away, and begin again with an "
            "empty DEST"
        ) from None
