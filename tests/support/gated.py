"""A local store whose reads fail or wait when a test says so: faults that a disk cannot be asked for."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shardfs.stores.local.reader import LocalSnapshot
from shardfs.stores.local.tree import LocalStore

Hook = Callable[[str, int, int], Awaitable[None]]


class GatedStore(LocalStore):
    """A store that awaits `hook(key, offset, nbytes)` before each read of a snapshot."""

    def __init__(self, root: Path, hook: Hook) -> None:
        super().__init__(str(root))
        self.hook = hook

    async def open(self, key: str, *, head_nbytes: int = 0, tail_nbytes: int = 0) -> Any:
        return _GatedSnapshot(await super().open(key), key, self)


class _GatedSnapshot:
    def __init__(self, inner: LocalSnapshot, key: str, store: GatedStore) -> None:
        self._inner = inner
        self._key = key
        self._store = store

    async def read(self, offset: int, nbytes: int, extent: tuple[int, int] | None = None) -> Any:
        await self._store.hook(self._key, offset, nbytes)
        return await self._inner.read(offset, nbytes, extent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
