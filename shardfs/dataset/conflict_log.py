"""Changes that do not fit what is stored now: kept in a journal of their own, for `shardfs recover`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from shardfs.dataset.hierarchy import Hierarchy
from shardfs.dataset.layout import ArrayLayout
from shardfs.dataset.wal.log import WriteAheadLog
from shardfs.dataset.wal.records import Change, Shrink
from shardfs.errors import counted
from shardfs.format.sharding import Coords

log = logging.getLogger(__name__)

_MAX_TOLD: Final = 10


class ConflictLog:
    """The journal *wal*, and which pending changes belong there; *count* is of those that it took."""

    def __init__(self, hierarchy: Hierarchy, wal: WriteAheadLog, log: WriteAheadLog) -> None:
        self.count = 0
        self._hierarchy = hierarchy
        self.wal = wal
        self._log = log

    async def keep(self, conflicts: Sequence[Change | Shrink]) -> None:
        """Keep changes durably, and finish their records in the journal that they come from."""
        if not conflicts:
            return

        def write() -> None:
            for change in conflicts:
                self.wal.copy(change)
            self.wal.sync()

        async with self._log.appending:
            await trio.to_thread.run_sync(write)
        self.count += len(conflicts)
        await self._log.release_soon([change.sequence for change in conflicts])

    async def sort_out(
        self, layout: ArrayLayout, changes: Mapping[Coords, Change]
    ) -> tuple[Sequence[Change], Sequence[Change]]:
        """Return the changes of a shard that still fit their array, and those that do not, which are kept here."""
        array = await self._hierarchy.array(layout.path, fresh=True)
        fitting: list[Change] = []
        conflicts: list[Change] = []
        for change in changes.values():
            fits = array is not None and change.fingerprint == array.fingerprint
            if fits and array is not None and array.layout is not layout:
                coords = change.coords
                fits = array.grid.contains(coords) and array.grid.locate(coords) == layout.grid.locate(coords)
            (fitting if fits else conflicts).append(change)
        if conflicts:
            log.error(
                "kept %s of %s, published for metadata that another program has changed or removed; `shardfs recover` "
                "shows them: %s%s",
                counted(len(conflicts), "chunk"),
                layout.path or "the array",
                ", ".join("/".join(map(str, change.coords)) for change in conflicts[:_MAX_TOLD]),
                ", …" if len(conflicts) > _MAX_TOLD else "",
            )
            await self.keep(conflicts)
        return fitting, conflicts
