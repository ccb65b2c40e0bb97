"""Blosc2 b2nd: a file, or a directory with a `chunks.b2frame`, is an array, shown as one of Zarr."""

from importlib.util import find_spec
from typing import Final

import trio

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.foreign import Foreign
from shardfs.formats import FileSource, Format, FoundNode, SourceDirectory
from shardfs.formats.b2nd.frame import (
    FRAME,
    MAGIC,
    contiguous_array,
    header_nbytes,
    parse_frame,
    sparse_array,
    unreadable,
)
from shardfs.formats.single import SingleFile
from shardfs.stores.base import Reader, Snapshot
from shardfs.stores.url import how_to_install

_FIRST_NBYTES: Final = 4096


class B2nd(Format):
    """Arrays of python-blosc2, in contiguous and sparse frames."""

    name = "b2nd"
    documents = frozenset({FRAME})
    suffixes = (".b2nd",)
    signatures = (MAGIC,)

    def open(self, source: FileSource) -> Reader:
        """Return a directory with the file as its frame."""
        return SingleFile(source.url, source.files, source.name, FRAME, ttl=source.ttl)

    async def find(self, directory: SourceDirectory, known: FoundNode | None) -> FoundNode | None:
        """Return the array of the frame in *directory*; nothing where the files of its chunks cannot be listed."""
        if not directory.store.lists:
            return None
        if known is not None and (directory.stat.version, await directory.version(FRAME)) == known.stamp:
            return known
        snapshot = await directory.store.open(directory.key(FRAME), head_nbytes=_FIRST_NBYTES)
        head = bytes(await snapshot.read(0, min(snapshot.size, _FIRST_NBYTES)))
        if not head.startswith(MAGIC):
            return None
        try:
            array = await _read_frame(snapshot, head)
        except (MetadataError, CorruptionError) as error:
            array = unreadable(error)
        return FoundNode(array, snapshot.stat, (directory.stat.version, snapshot.stat.version))


FORMAT: Final = B2nd()


async def _read_frame(snapshot: Snapshot, head: bytes) -> Foreign:
    """Return the array of the frame in *snapshot*, which begins with *head*; raises the reason why it is not read."""
    if find_spec("blosc2") is None:
        raise MetadataError(f"Blosc2 needs blosc2; install it with: {how_to_install('b2nd')}")
    nbytes = header_nbytes(head)
    if nbytes > len(head):
        head = bytes(await snapshot.read(0, min(snapshot.size, nbytes)))
    frame = parse_frame(head, snapshot.size)
    if not frame.is_sparse:
        return contiguous_array(frame)
    tail = await snapshot.read(frame.offsets_at, snapshot.size - frame.offsets_at)
    return await trio.to_thread.run_sync(sparse_array, frame, tail)
