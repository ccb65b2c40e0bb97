"""Names in several directories, as one list."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shardfs.errors import NotADirectoryHereError, NotFoundError
from shardfs.stores.base import Kind, ListedName, Reader, join_key
from shardfs.stores.parallel import for_each

_AT_ONCE: Final = 16


async def keys_below(store: Reader, directory: str, leads: Callable[[str], bool], below: str = "") -> list[ListedName]:
    """Return what is in *directory*, and in those directories below that *leads* is true of, by relative keys."""
    keys: list[ListedName] = []
    directories: list[str] = []
    for entry in await store.list(join_key(directory, below) if below else directory):
        key = join_key(below, entry.name)
        if entry.kind is Kind.DIRECTORY and leads(key):
            directories.append(key)
        else:
            keys.append(ListedName(key, entry.kind))

    async def look(key: str) -> None:
        with suppress(NotFoundError, NotADirectoryHereError):  # it was removed meanwhile
            keys.extend(await keys_below(store, directory, leads, key))

    await for_each(directories, look, _AT_ONCE)
    return keys
