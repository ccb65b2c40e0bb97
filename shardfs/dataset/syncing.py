"""Making durable what is stored under some keys, by whomever it was written."""

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from shardfs.errors import (
    AccessDeniedError,
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
    ShardfsError,
    TooDeepError,
)
from shardfs.stores.base import Store
from shardfs.stores.parallel import for_each

_SYNCS_AT_ONCE: Final = 16

_NO_FILE: Final = (
    CorruptionError,
    IsADirectoryHereError,
    NotADirectoryHereError,
    NotFoundError,
    RefusedError,
    TooDeepError,
)
"""The errors of a key that stands for no file, or for none within the source."""


async def make_durable(store: Store, key: str) -> None:
    """Make a shard durable, if there is one, with its name; raises the error that prevents it.

    In a remote store, what is visible is durable.
    """
    if store.rewrites:
        return
    with suppress(*_NO_FILE):
        await (await store.open_passthrough(key)).sync()
    await make_names_durable(store, key)


async def make_names_durable(store: Store, key: str) -> None:
    """Make the name of a shard durable, and those of the directories above it that this process can open."""
    while key:
        key = key.rpartition("/")[0]
        with suppress(AccessDeniedError, *_NO_FILE):
            await store.sync_directory(key)


async def try_to_make_durable(store: Store, keys: Collection[str]) -> None:
    """Make durable what is stored under some keys, or that nothing is, as far as that is possible."""

    async def sync(key: str) -> None:
        with suppress(ShardfsError):
            await (await store.open_passthrough(key)).sync()

    async def sync_directory(key: str) -> None:
        with suppress(ShardfsError):
            try:
                await store.sync_directory(key)
            except NotFoundError:
                await sync_directory(key.rpartition("/")[0])

    await for_each(keys, sync, _SYNCS_AT_ONCE)
    await for_each({key.rpartition("/")[0] for key in keys}, sync_directory, _SYNCS_AT_ONCE)
