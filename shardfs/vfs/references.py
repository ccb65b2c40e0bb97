"""kerchunk references: what a mount would show, as ranges of stored files, for machines that cannot mount.

Source: the reference file format of kerchunk and fsspec, version 1.
"""

import logging
from collections.abc import AsyncIterator

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import DOCUMENT
from shardfs.dataset.source import Source
from shardfs.dataset.walk import walk_files, walk_nodes
from shardfs.errors import CorruptionError, NotUnshardable
from shardfs.format.metadata import ArrayMetadata
from shardfs.stores.base import join_key
from shardfs.vfs.v3_view import ZarrV3

log = logging.getLogger(__name__)

Reference = str | list[str | int]
"""A text, or the URL of a file, with offset and length if only a range of it is meant."""


async def references(source: Source, view: ZarrV3, *, skip_encoded: bool) -> AsyncIterator[tuple[str, Reference]]:
    """Yield key and reference of every metadata document and every chunk.

    An array whose shards are encoded as a whole, so that no range of a file is a chunk, is left out with its document
    if *skip_encoded*; else it raises `NotUnshardable`.  A chunk that cannot be read raises `CorruptionError`: a reader
    would take a missing reference for fill values.
    """
    async for node in walk_nodes(source):
        array = node.array
        if array is not None and array.grid.is_encoded:
            message = f"{node.path or 'the array'} cannot be referenced: its shards are encoded as a whole"
            if not skip_encoded:
                raise NotUnshardable(f"{message}; mount it, or leave it out with --skip-encoded")
            log.warning("%s; it is left out", message)
            continue
        if node.metadata is None and node.reason is not None:
            log.warning("%s is left out: %s", node.path or "the source", node.reason)
            continue
        document = view.documents(node).get(DOCUMENT, node.document)
        if document is not None:
            yield join_key(node.path, DOCUMENT), document.decode()
        if array is not None:
            async for key, reference in _chunks(source, array):
                yield join_key(node.path, key), reference
        elif isinstance(node.metadata, ArrayMetadata):
            async for key in walk_files(source.store, node.path):
                if key != join_key(node.path, DOCUMENT):
                    yield key, [source.store.url_of(key)]


async def _chunks(source: Source, array: Array) -> AsyncIterator[tuple[str, Reference]]:
    arrangement = array.arrangement
    encode = arrangement.key_encoding.encode
    if array.grid.ndim == 0:
        extent = await array.extent(())
        if extent is not None:
            yield encode(()), [source.store.url_of(arrangement.shard_key(())), extent.offset, extent.nbytes]
        return
    async for prefix in array.rows((0,) * (array.grid.ndim - 1)):
        async for run in array.list_row(prefix, 0):
            numbers, sizes, damaged = run.chunks(0, run.length)
            if run.error is not None:
                raise run.error
            if run.shard is None or run.entries is None:
                continue
            if damaged is not None:
                raise CorruptionError(
                    f"{encode((*prefix, numbers[damaged.index(True)]))} is damaged; see shardfs verify"
                )
            shard = array.grid.locate((*prefix, run.first)).shard
            url = source.store.url_of(arrangement.shard_key(shard))
            offsets = run.entries.offsets[run.entries.sound].tolist()
            for number, offset, size in zip(numbers, offsets, sizes, strict=True):
                yield encode((*prefix, number)), [url, run.shard.offset + offset, size]
