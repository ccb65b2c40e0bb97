"""Slots: each session that writes to a source has one, so any number of sessions write at the same time.

The slots of a source are in its directory `.shardfs`, by number; `roots` says where that is for a remote one. A slot is
alive while its lock is held: an open file description lock, which ends with the process, however that ends. What a
killed session left in its slot is for any later session of the same user to take over (`holding`).

On a file system that several hosts may share, locks may not reach from one host to the other. A slot of another host
that is not locked is then not known to be dead, and nobody writes beside it, unless both hosts mount a file system that
keeps locks for all of them, or some other slot of another host is seen to be locked, which proves that they reach.

A slot gives nobody permissions. A session takes over only slots that belong to its user, in which others cannot write.
Those of other users are named, asked to commit, and never read.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import PurePath
from typing import Final

from shardfs.dataset.state.directory import NAMES, OTHERS_WRITE, StateDirectory, shown
from shardfs.dataset.state.holder import Holder, kernel_of, read_holder
from shardfs.dataset.state.roots import NUMBER, StateRoot, all_roots, names_in, root_of
from shardfs.errors import SourceError, UsageError
from shardfs.stores.base import Address, Descriptor, Reader
from shardfs.stores.local.syscalls import READ, is_local, is_ofd_locked, locks_reach_server, status_now

FORMER: Final = ("journal", "conflicts", "scratch", "staged", "drafts", "spools", "torn")
"""The directories in a slot; in `.shardfs` itself, those of versions that had a single one."""


class Life(Enum):
    """Whether the session of a slot is alive."""

    LIVE = auto()
    DEAD = auto()
    UNKNOWN = auto()
    """It is on another host, from which locks may not reach; or its lock cannot be asked for."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What a session has, or has left; *holder* is who has it, None if nobody has.

    *owner* is the number of its user. *is_ours*: this user may take it over when its session is dead. It *counts*
    unless it is another user's in a directory where everybody may create files, as in `/tmp`: anybody may have made it,
    so nobody is refused or waits because of it. Slots of root and of the owner of the directory count there, too.
    """

    address: Address | None
    state: StateDirectory
    life: Life
    holder: Holder | None
    owner: int
    is_ours: bool
    counts: bool

    @property
    def name(self) -> str:
        """Its name in `.shardfs`."""
        return self.state.key.rpartition("/")[2]

    @property
    def is_in_use(self) -> bool:
        """Whether a session is known to have it."""
        return self.life is Life.LIVE

    @property
    def can_be_taken(self) -> bool:
        """Whether a session of this user may take it over."""
        return self.life is Life.DEAD and self.is_ours

    def is_in_doubt(self) -> bool:
        """Whether a process of another host may have it, and nobody here can tell; raises `SourceError`.

        Nobody has one of which its session has noted that it ended, if nothing is left in it.
        """
        if self.life is not Life.UNKNOWN or not self.counts or self.holder is None or self.holder.host is None:
            return False
        return self.holder.pid is not None or self.state.has_journal()


def slots_of(store: Reader) -> Sequence[Slot]:
    """Return the slots of a source, by its path; of a remote one, those of this user on this machine."""
    return slots_in(replace(root_of(store), opened=None))


def all_slots() -> Sequence[Slot]:
    """Return the slots of all remote sources."""
    return [slot for root in all_roots() for slot in slots_in(root)]


def slots_in(root: StateRoot) -> Sequence[Slot]:
    """Return the slots in a directory, by number, and what versions with a single slot left there."""
    looks: list[tuple[StateDirectory, os.stat_result, bool | None, Holder]] = []
    for name in NAMES:
        home = StateDirectory(root.path, name, root.opened)
        if not os.path.lexists(home.path):  # as nearly all of these names
            continue
        numbers = sorted(int(name) for name in names_in(home.path) if NUMBER.fullmatch(name))
        states = [StateDirectory(root.path, f"{name}/{number}", root.opened) for number in numbers]
        if has_former(home):
            states.insert(0, home)
        for state in states:
            with suppress(OSError):
                status = os.lstat(state.path)
                if stat.S_ISDIR(status.st_mode):
                    looks.append((state, status, is_locked(state), read_holder(state.lock)))
    if not looks:
        return []
    try:
        me, around = os.geteuid(), os.stat(root.at)
    except OSError as error:
        raise SourceError(f"{root.path} cannot be read: {error.strerror}") from None
    trusted = {me, 0, around.st_uid}
    proofs = [_proves(holder, status.st_uid) for _, status, is_held, holder in looks if is_held]
    reach = Reach.of(root, proven=any(proofs))
    slots = []
    for state, status, is_held, holder in looks:
        life = Life.LIVE if is_held else Life.DEAD
        if is_held is None or (not is_held and not reach.has_ended(holder)):
            life = Life.UNKNOWN
        has_it = None if life is Life.DEAD else Holder() if is_held is None else holder
        is_former = state.key in NAMES
        is_ours = root.address is not None and not is_former and status.st_uid == me and is_private(state)
        counts = not _is_for_everybody(around) or status.st_uid in trusted
        slots.append(Slot(root.address, state, life, has_it, status.st_uid, is_ours, counts))
    return slots


@dataclass(frozen=True, slots=True)
class Reach:
    """Which hosts' locks are seen here. *kernel* is that of `Holder`; *is_local*: the file system is of one machine.

    *reaches*: locks are kept by all hosts, as far as it is known. *proven*: a lock of another host is seen.
    """

    kernel: str | None
    is_local: bool
    reaches: bool | None
    proven: bool

    @classmethod
    def of(cls, root: StateRoot, *, proven: bool) -> "Reach":
        """Find out about the directory *root*."""
        with suppress(OSError):
            file = Descriptor(os.open(root.at, READ & ~os.O_NOFOLLOW))
            return cls(kernel_of(file.fd), is_local(file.fd), locks_reach_server(file.fd), proven)
        return cls(None, is_local=False, reaches=None, proven=proven)

    def has_ended(self, holder: Holder) -> bool:
        """Whether a session that noted *holder*, whose lock is not seen here, is dead."""
        if holder.pid is None or not holder.is_elsewhere or self.is_local:  # the first says so itself
            return True
        if holder.kernel is not None and holder.kernel == self.kernel:
            return True
        if holder.locks_reach is False or self.reaches is False:
            return False
        return self.proven or bool(holder.locks_reach and self.reaches)


def _proves(holder: Holder, owner: int) -> bool:
    """Whether a lock that is seen to be held proves that those of other hosts reach: it is one of these."""
    return holder.is_elsewhere and owner in (os.geteuid(), 0)


def slot_with_changes(store: Reader) -> Slot | None:
    """Return the first slot of *store*, or of a directory above it, that may have published changes it does not have.

    Conflicts count if nobody has the slot: else only its holder can tell what they are. Of a remote source, only what
    processes of this user have on this machine is known. Raises `SourceError` for a directory that cannot be read.
    """
    candidates: list[Slot] = []
    with suppress(UsageError):  # there is no home directory, and nothing in it
        candidates += [slot for slot in slots_of(store) if slot.counts]
    if store.root is None:
        candidates = [slot for slot in candidates if slot.owner == os.geteuid() and slot.holder != Holder()]
    else:
        _require_found(store.root)
    for slot in candidates:
        if slot.state.has_pending() if slot.holder is not None else slot.state.has_journal():
            return slot
    above = slots_above(store.root) if store.root is not None else iter(())
    return next((slot for slot in above if slot.state.has_pending()), None)


def _require_found(path: str) -> None:
    """Raise `SourceError` if slots that count may be in *path*, or in a directory above it, where none can be found."""
    for parent in map(str, (PurePath(path), *PurePath(path).parents)):
        for name in NAMES:
            home = os.path.join(parent, name)
            if os.path.islink(home):  # it has no slots of ours, wherever it leads
                continue
            try:
                for number in filter(NUMBER.fullmatch, os.listdir(home)):
                    os.lstat(os.path.join(home, number))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                with suppress(OSError):
                    trusted = {os.geteuid(), 0, os.stat(parent).st_uid, os.stat(path).st_uid}
                    if _is_for_everybody(os.stat(parent)) and os.lstat(home).st_uid not in trusted:
                        continue
                raise SourceError(f"{shown(home)} cannot be read: {error.strerror}") from None


def slots_above(path: str) -> Iterator[Slot]:
    """Yield the slots in the directories above *path* that count, the nearest first.

    Where everybody may create files, as in `/tmp`, those of other users do not: they would keep everybody from working
    there. The owner of *path* is none of these.
    """
    for parent in map(str, PurePath(path).parents):
        for slot in slots_in(StateRoot(parent, Address(parent))):
            if slot.counts or slot.owner == os.stat(path).st_uid:
                yield slot


def has_former(home: StateDirectory) -> bool:
    """Whether a directory of slots has what versions with a single slot left in it."""
    return any(os.path.lexists(os.path.join(home.path, name)) for name in FORMER)


def is_current(state: StateDirectory, file: Descriptor) -> bool:
    """Whether *file* is still the lock file of a slot: nobody has removed that, and made it again."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fd), status_now(state.lock))
    return False


def is_locked(state: StateDirectory) -> bool | None:
    """Whether the lock of a slot is held; None if that cannot be determined."""
    try:
        file = Descriptor(os.open(state.lock, READ))
        return is_ofd_locked(file.fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        return False if error.errno == errno.ESTALE else None  # another host has removed it meanwhile


def is_private(state: StateDirectory) -> bool:
    """Whether all that is read of a slot belongs to this user, is what it should be, and others cannot write there."""
    me = os.geteuid()
    try:
        for path in (state.path, *(os.path.join(state.path, name) for name in FORMER)):
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != me or status.st_mode & OTHERS_WRITE:
                    return False
        with suppress(FileNotFoundError):
            status = os.lstat(state.lock)
            return stat.S_ISREG(status.st_mode) and status.st_uid == me
    except OSError:
        return False
    return True


def _is_for_everybody(status: os.stat_result) -> bool:
    """Whether everybody may create files in a directory, and nobody remove those of others, as in `/tmp`."""
    return bool(status.st_mode & stat.S_ISVTX and status.st_mode & stat.S_IWOTH)
