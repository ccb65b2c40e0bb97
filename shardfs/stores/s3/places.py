"""Where copies lie on this machine: a tree of files under their keys, with no more directories than they need."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from shardfs.errors import ExistsError, NotEmptyError, NotFoundError
from shardfs.stores.base import Entry, Kind, Snapshot, join_key
from shardfs.stores.local import LocalStore
from shardfs.stores.local_live import LocalFile

PLAIN: Final = ".shardfs/plain"
"""The directory of copies, in that of the mount."""

_FETCHED: Final = ".shardfs/fetched"
_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o700
_PIECE_NBYTES: Final = 8 * 2**20


def local_key(key: str) -> str:
    """Return where the copy of *key* lies on the side."""
    return join_key(PLAIN, key) if key else PLAIN


class Places:
    """The places of copies below `PLAIN` in the local store *side*.

    What is not said to wait for a disk lets nothing else run meanwhile, so that directories do not vanish under a file
    that is being made.
    """

    def __init__(self, side: LocalStore) -> None:
        self.side = side

    async def clean(self) -> None:
        """Make the directories, and remove what an earlier process fetched and did not put in its place."""
        for directory in (PLAIN, _FETCHED):
            await self.side.make_directories(directory)
        for entry in await self.side.list(_FETCHED):
            await self.side.unlink(join_key(_FETCHED, entry.name))

    async def create(self, key: str) -> LocalFile:
        """Make an empty file in the place of *key*, where nothing is."""
        await self._make_directories(key)
        return await self.side.create(local_key(key), _MODE, exclusive=True)

    async def fetch(self, snapshot: Snapshot, nbytes: int | None = None) -> tuple[str, LocalFile]:
        """Return a new file with the first *nbytes* bytes of an object, or all, and its name on the side; waits."""
        nbytes = snapshot.size if nbytes is None else min(nbytes, snapshot.size)
        temporary = join_key(_FETCHED, secrets.token_hex(8))
        file = await self.side.create(temporary, _MODE, exclusive=True)
        try:
            snapshot.expect(0, nbytes)
            for start in range(0, nbytes, _PIECE_NBYTES):
                await file.write(start, await snapshot.read(start, min(_PIECE_NBYTES, nbytes - start)))
            file.set_attributes(mtime_ns=snapshot.stat.mtime_ns)
        except BaseException:
            await self.side.unlink(temporary)
            raise
        return temporary, file

    async def put(self, local: str, key: str) -> None:
        """Move what is *local* on the side to the place of *key*, instead of a file that is there."""
        await self._make_directories(key)
        await self.side.rename(local, local_key(key), exclusive=False)
        if local.startswith(f"{PLAIN}/"):
            await self._prune(local.removeprefix(f"{PLAIN}/"))

    async def admit(self, key: str) -> bool:
        """Give the file in the place of *key* the mode of objects; return False if it is none."""
        if (await self.side.stat(local_key(key))).kind is not Kind.FILE:
            return False
        await self.side.set_attributes(local_key(key), mode=_MODE)
        return True

    async def take(self, key: str, to: str, *, exclusive: bool) -> None:
        """Move what lies in the place of *key* to the name *to* of the side."""
        await self.side.rename(local_key(key), to, exclusive=exclusive)
        await self._prune(key)

    async def remove(self, key: str) -> None:
        """Remove the file in the place of *key*."""
        await self.side.unlink(local_key(key))
        await self._prune(key)

    async def make_directory(self, key: str) -> None:
        """Make a directory in the place of *key*, which is to be taken."""
        await self._make_directories(join_key(key, ""))

    async def list(self, key: str) -> Sequence[Entry]:
        """Return what lies in the directory in the place of *key*."""
        return await self.side.list(local_key(key))

    async def sync_names(self, key: str) -> None:
        """Make the names in the directory of *key* durable, and its own, as far as there is one; waits."""
        place = local_key(key)
        while place != PLAIN:
            with suppress(NotFoundError):
                await self.side.sync_directory(place)
            place = place.rpartition("/")[0]
        await self.side.sync_directory(PLAIN)

    async def sync_removal(self, key: str) -> None:
        """Let a power cut not bring back what was removed from the place of *key*; waits."""
        place = local_key(key)
        while place != PLAIN:
            place = place.rpartition("/")[0]
            with suppress(NotFoundError):
                await self.side.sync_directory(place)
                return

    async def _make_directories(self, key: str) -> None:
        place = PLAIN
        for part in key.split("/")[:-1]:
            place = join_key(place, part)
            with suppress(ExistsError):
                await self.side.mkdir(place, _DIRECTORY_MODE)

    async def _prune(self, key: str) -> None:
        """Remove the directories above the place of *key* that are empty."""
        while key := key.rpartition("/")[0]:
            try:
                await self.side.rmdir(local_key(key))
            except NotEmptyError:
                return
            except NotFoundError:
                pass
