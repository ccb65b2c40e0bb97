"""The journals of a state directory, opened to write, and those that killed processes left brought into the store."""

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from shardfs.dataset.committer import Committer
from shardfs.dataset.source import Source
from shardfs.dataset.state import StateDirectory, shown
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.reading import Damage, LogContents, read_log
from shardfs.dataset.wal.recovery import replay
from shardfs.dataset.wal.segments import kept_as
from shardfs.dataset.writer import Writer
from shardfs.errors import NotFoundError, ShardfsError
from shardfs.stores.base import Address, Store
from shardfs.stores.local.openat import open_directory
from shardfs.stores.local.syscalls import Syscalls

log = logging.getLogger(__name__)

_DISK: Final = Syscalls()


@dataclass(frozen=True, slots=True)
class Journals:
    """The journal and the changes that were put aside, with what they held, and a committer for the former."""

    contents: LogContents
    aside: LogContents
    journal: WriteAheadLog
    conflicts: WriteAheadLog
    committer: Committer


def read_left(directory: str) -> LogContents:
    """Read the journal in *directory*, which may not be there, without a lock; raises as `read_log` does."""
    with suppress(NotFoundError):
        return read_log(open_directory(directory))
    return LogContents([], [], [], 0, 0)


def recover_command(address: Address, *options: str) -> str:
    """Return the command line that shows what is left of the source at *address*."""
    endpoint = ["--endpoint-url", address.endpoint] if address.endpoint else []
    return shlex.join(["shardfs", "recover", *options, *endpoint, address.url])


def describe_damage(directory: str, damage: Damage) -> str:
    """Say in one line what is lost of the journal in *directory*, and what to do about its file."""
    path = shown(os.path.join(directory, damage.segment))
    kept = os.path.join(os.path.dirname(path), kept_as(damage.segment))
    end = "what was published there is lost, all else of it is not"
    end += f"; remove {kept} to hear no more of it" if kept == path else f"; it will be kept as {kept}"
    return f"{path} is damaged: {damage.nbytes} bytes at {damage.offset}: {damage.reason}; {end}"


def log_damage(directory: str, contents: LogContents) -> int:
    """Name in the log what is damaged in the journal in *directory*; return in how many places."""
    for damage in contents.damage:
        if damage.is_torn:
            path = shown(os.path.join(directory, damage.segment))
            log.info("%s ends with %d bytes of a write that did not finish", path, damage.nbytes)
        else:
            log.error("%s", describe_damage(directory, damage))
    return sum(not damage.is_torn for damage in contents.damage)


@contextmanager
def opened(source: Source, state: StateDirectory, disk: Syscalls = _DISK) -> Iterator[Journals]:
    """Open the journals in *state*, whose lock the caller holds, for the length of a block.

    Raises `StoreError` for one that cannot be read, or at the end cannot be let go of.
    """
    directory, directory_aside = open_directory(state.journal), open_directory(state.conflicts)
    contents, aside = read_log(directory), read_log(directory_aside)
    with (
        closing(WriteAheadLog(directory, disk, contents)) as journal,
        closing(WriteAheadLog(directory_aside, disk, aside)) as conflicts,
    ):
        yield Journals(contents, aside, journal, conflicts, Writer(source, journal, conflicts).committer)


async def bring_home(store: Store, left: Sequence[StateDirectory]) -> None:
    """Bring into *store* what the journals in *left* hold, whose locks the caller holds.

    One that cannot be brought there stays, as the log says, for the next mount.  To be called before anything is
    pending or cached of the store: each journal is replayed as if there were nothing else.
    """
    for state in left:
        try:
            source = Source.of(store)
            with opened(source, state) as journals:
                log_damage(state.journal, journals.contents)
                recovery = await replay(source, journals.contents, journals.committer)
                await journals.committer.flush()
        except ShardfsError as error:
            log.error("%s stays for the next mount: %s", shown(state.journal), error)  # noqa: TRY400
        else:
            where = shown(state.journal)
            log.info("%d chunks of another mount are in their shards, from %s", len(recovery.pending), where)
