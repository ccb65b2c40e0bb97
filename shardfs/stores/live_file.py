"""What every store offers for files that pass through: `LiveFile`."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shardfs.stores.base import Buffer, Stat


class LiveFile(Protocol):
    """An open file that passes through: no version of it is kept, and what is written is seen at once.

    A remote store has what was written after `flush`, or `sync`.
    """

    def stat(self) -> "Stat":
        """Return the present state."""

    async def read(self, offset: int, nbytes: int) -> "Buffer":
        """Return up to *nbytes* bytes from *offset*."""

    async def write(self, offset: int, data: "Buffer") -> int:
        """Write all of *data* at *offset*, and return how much that is."""

    async def truncate(self, nbytes: int) -> None:
        """Give the file the size *nbytes*."""

    async def flush(self) -> None:
        """Store what was written and is not stored yet, as is done whenever a descriptor of the file is closed.

        Raises `StaleError` if another host has replaced the file since this one showed it, `StoreError`.
        """

    async def sync(self) -> None:
        """Store what was written, durably; raises as `flush` does."""

    async def close(self) -> None:
        """Let go of the file; what is not stored then is kept on this machine, as the log says."""

    def set_attributes(
        self,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
    ) -> "Stat":
        """Change what is given, and return the state after it."""
