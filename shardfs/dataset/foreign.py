"""Looking for arrays of other formats: the files that describe them, and how far their shards reach."""

from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Final, NamedTuple

import trio

from shardfs.dataset.cache import while_it_changes
from shardfs.dataset.worker import LARGE_NBYTES
from shardfs.errors import CorruptionError, IsADirectoryHereError, MetadataError, NotADirectoryHereError, NotFoundError
from shardfs.format import b2nd, wkw
from shardfs.format.document import Json, parse_json
from shardfs.format.foreign import ForeignArray
from shardfs.format.grid import ChunkKeyEncoding
from shardfs.format.sharding import Coords
from shardfs.stores.base import Kind, ListedName, Reader, Snapshot, Stat, join_key
from shardfs.stores.parallel import for_each
from shardfs.stores.url import how_to_install

_AT_ONCE: Final = 16
_FIRST_NBYTES: Final = 4096
_MAX_PROPERTIES_NBYTES: Final = 4 * 2**20
_ABSENT: Final = (NotFoundError, NotADirectoryHereError, IsADirectoryHereError)


class Described(NamedTuple):
    """An array, and the status of the file that describes it; *stamp* differs if anything has changed that matters."""

    array: ForeignArray
    origin: Stat
    stamp: object


async def keys_below(store: Reader, directory: str, names: ChunkKeyEncoding, below: str = "") -> list[ListedName]:
    """Return what is in *directory*, and in the directories below that lead to shards with these *names*.

    The names are keys relative to *directory*.
    """
    keys: list[ListedName] = []
    directories: list[str] = []
    for entry in await store.list(join_key(directory, below) if below else directory):
        key = join_key(below, entry.name)
        if entry.kind is Kind.DIRECTORY and names.leads(key):
            directories.append(key)
        else:
            keys.append(ListedName(key, entry.kind))

    async def look(key: str) -> None:
        with suppress(NotFoundError, NotADirectoryHereError):  # it was removed meanwhile
            keys.extend(await keys_below(store, directory, names, key))

    await for_each(directories, look, _AT_ONCE)
    return keys


async def find_array(store: Reader, directory: Stat, path: str, known: Described | None) -> Described | None:
    """Return the array of another format in the *directory* at *path*, None if there is none.

    It may be as it was *known*. The chunks of a sparse frame are files that only a listing tells of.
    """
    for find in (_find_wkw, _find_b2nd) if store.lists else (_find_wkw,):
        with suppress(*_ABSENT):
            described = await while_it_changes(partial(find, store, directory, path, known))
            if described is not None:
                return described
    return None


async def _find_wkw(store: Reader, directory: Stat, path: str, known: Described | None) -> Described | None:
    key, (root, layer, _) = join_key(path, wkw.HEADER), wkw.places_of(path)
    described = join_key(root, wkw.PROPERTIES) if layer else None
    if known is not None:
        stamp = directory.version, (await store.stat(key)).version, await _version(store, described)
        if stamp == known.stamp:
            return known
    snapshot = await store.open(key, head_nbytes=wkw.HEADER_NBYTES)
    data = bytes(await snapshot.read(0, min(snapshot.size, wkw.HEADER_NBYTES)))
    if not data.startswith(wkw.MAGIC):
        return None
    properties, version = await _properties(store, described)
    layer_of = wkw.find_layer(properties, path)
    files: list[Coords] | None = None
    if layer_of is None and store.lists:
        keys = await keys_below(store, path, wkw.NAMES)
        files = [coords for entry in keys if (coords := wkw.NAMES.decode(entry.name, 4)) is not None]
    array = wkw.parse_array(data, layer_of, files)
    assert array is not None
    return Described(array, snapshot.stat, (directory.version, snapshot.stat.version, version))


async def _version(store: Reader, key: str | None) -> object:
    if key is not None:
        with suppress(*_ABSENT):
            return (await store.stat(key)).version
    return None


async def _properties(store: Reader, key: str | None) -> tuple[Json, object]:
    """Return what is in `datasource-properties.json`, and its version; None if it cannot be used, or is not there."""
    if key is None:
        return None, None
    with suppress(*_ABSENT):
        snapshot = await store.open(key)
        version = snapshot.stat.version
        if snapshot.size > _MAX_PROPERTIES_NBYTES:
            return None, version
        with suppress(MetadataError, CorruptionError):
            text = bytes(await snapshot.read(0, snapshot.size))
            is_large = len(text) > LARGE_NBYTES
            return await trio.to_thread.run_sync(parse_json, text) if is_large else parse_json(text), version
        return None, version
    return None, None


async def _find_b2nd(store: Reader, directory: Stat, path: str, known: Described | None) -> Described | None:
    """Return the array of Blosc2 b2nd whose frame is in the *directory* at *path*; None if there is none."""
    key = join_key(path, b2nd.FRAME)
    if known is not None and (directory.version, (await store.stat(key)).version) == known.stamp:
        return known
    snapshot = await store.open(key, head_nbytes=_FIRST_NBYTES)
    head = bytes(await snapshot.read(0, min(snapshot.size, _FIRST_NBYTES)))
    if not head.startswith(b2nd.MAGIC):
        return None
    try:
        array = await _read_frame(snapshot, head)
    except (MetadataError, CorruptionError) as error:
        array = b2nd.unreadable(error)
    return Described(array, snapshot.stat, (directory.version, snapshot.stat.version))


async def _read_frame(snapshot: Snapshot, head: bytes) -> ForeignArray:
    """Return the array of the frame in *snapshot*, which begins with *head*; raises the reason why it is not read."""
    if find_spec("blosc2") is None:
        raise MetadataError(f"Blosc2 needs blosc2; install it with: {how_to_install('b2nd')}")
    nbytes = b2nd.header_nbytes(head)
    if nbytes > len(head):
        head = bytes(await snapshot.read(0, min(snapshot.size, nbytes)))
    frame = b2nd.parse_frame(head, snapshot.size)
    if not frame.is_sparse:
        return b2nd.contiguous_array(frame)
    tail = await snapshot.read(frame.offsets_at, snapshot.size - frame.offsets_at)
    return await trio.to_thread.run_sync(b2nd.sparse_array, frame, tail)
