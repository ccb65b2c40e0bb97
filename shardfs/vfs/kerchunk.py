"""kerchunk references: what a mount would show, as ranges of stored files, for machines that cannot mount.

A reader takes a missing reference for fill values.  So an array is referenced with all its chunks, or not at all.
Those that a view shows though they are not stored are in the references themselves.

Source: the reference file format of kerchunk and fsspec, version 1.
"""

import base64
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import DOCUMENT, Node, Source
from shardfs.dataset.maintenance.walk import walk_files
from shardfs.errors import CorruptionError, NotShownError, NotUnshardable
from shardfs.format.document import encode_json, parse_json
from shardfs.format.index import are_sound
from shardfs.format.lens.consolidated import without_copies
from shardfs.format.lens.v2 import ZMETADATA
from shardfs.format.sharding import Coords
from shardfs.stores.base import join_key
from shardfs.vfs.chunk_cache import ChunkView
from shardfs.vfs.inodes import ChunkNumbering
from shardfs.vfs.views import View

Reference = str | list[str | int]
"""A text, bytes as `base64:` and their text, or the URL of a file, with offset and length if a range of it is meant."""

_MAX_INLINE_NBYTES: Final = 32 * 2**20
"""Of keys and texts of chunks of one array that are in the references themselves."""


async def array_references(source: Source, view: View, node: Node) -> AsyncIterator[tuple[str, Reference]]:
    """Yield key and reference of every chunk and every document of an array as *view* shows it, without decoding.

    Raises `NotShownError` if the view does not show it, or shows more chunks that are not stored than references can
    hold, `NotUnshardable` if its shards are encoded as a whole, so that no range of a file is a chunk, and what keeps a
    chunk or a shard from being read.
    """
    reason = view.left_out(node)
    if reason is not None:
        raise NotShownError(reason)
    chunk_view = view.chunk_view(node)
    if chunk_view is not None:
        if chunk_view.array.grid.is_encoded:
            raise NotUnshardable("its shards are encoded as a whole, so no range of a file is a chunk")
        async for coords, reference in _with_missing(chunk_view, _chunks(source, chunk_view.array)):
            yield join_key(node.path, chunk_view.key_encoding.encode(coords)), reference
    else:
        async for key in walk_files(source.store, node.path):
            if key != join_key(node.path, DOCUMENT):
                yield key, [source.store.url_of(key)]
    for key, reference in document_references(view, node, ()):
        yield key, reference


def document_references(view: View, node: Node, left_out: Collection[str]) -> Iterator[tuple[str, Reference]]:
    """Yield key and text of every document of *node*, without the copies of arrays that are *left_out*, by path."""
    documents = {} if node.document is None or view.hides(node, DOCUMENT) else {DOCUMENT: node.document}
    documents.update(view.documents(node))
    for name, text in documents.items():
        yield join_key(node.path, name), _without(left_out, node.path, name, text).decode()


def _without(left_out: Collection[str], path: str, name: str, text: bytes) -> bytes:
    """Return the text of a document without consolidated metadata of arrays that are *left_out*.

    Who opens one by its copy would find no chunk, and no error.
    """
    if not left_out or name not in (DOCUMENT, ZMETADATA):
        return text
    document = parse_json(text)
    if name == ZMETADATA:
        copies = document["metadata"].items()
        kept = {key: copy for key, copy in copies if join_key(path, key.rpartition("/")[0]) not in left_out}
        return encode_json({**document, "metadata": kept})
    return encode_json(without_copies(document, lambda copy: join_key(path, copy) in left_out))


async def _with_missing(
    chunk_view: ChunkView, stored: AsyncIterator[tuple[Coords, Reference]]
) -> AsyncIterator[tuple[Coords, Reference]]:
    """Yield the *stored* chunks, which come in C order, and with them the others, if the view shows those too."""
    missing = chunk_view.listed_missing
    if missing is None:
        async for chunk in stored:
            yield chunk
        return
    numbering = ChunkNumbering.of(chunk_view.array.grid.grid_shape, nested=False)  # one axis may have more than fit
    every = (numbering.coords(position) for position in range(numbering.bases[-1], numbering.count))
    room, text = _MAX_INLINE_NBYTES, ""

    async def inline(coords: Coords) -> str:
        nonlocal room, text
        if not text:
            chunk = await missing.chunk()
            if 4 * chunk.nbytes <= 3 * room:
                text = "base64:" + base64.b64encode(await chunk.read(0, chunk.nbytes)).decode()
        room -= len(chunk_view.key_encoding.encode(coords)) + len(text)
        if not text or room < 0:
            raise NotShownError(
                "its chunks that are not stored, which would be read as another value, take more than the "
                f"{_MAX_INLINE_NBYTES // 2**20} MiB that references hold; mount it, or use --view v3"
            )
        return text

    async for found, reference in stored:
        for coords in every:
            if coords == found:
                break
            yield coords, await inline(coords)
        yield found, reference
    for coords in every:
        yield coords, await inline(coords)


async def _chunks(source: Source, array: Array) -> AsyncIterator[tuple[Coords, Reference]]:
    """Yield the stored chunks of an array in C order."""
    layout = array.layout
    if array.grid.ndim == 0:
        extent = await array.extent(())
        if extent is not None:
            yield (), [source.store.url_of(layout.shard_key(())), extent.offset, extent.nbytes]
        return
    async for prefix in array.rows((0,) * (array.grid.ndim - 1)):
        async for run in array.list_row(prefix, 0):
            numbers, sizes, damaged = run.chunks(0, run.length)
            if run.error is not None:
                raise run.error
            if damaged is not None:
                key = layout.key_encoding.encode((*prefix, numbers[damaged.index(True)]))
                raise CorruptionError(f"{join_key(layout.path, key)} is damaged; see shardfs verify")
            url = source.store.url_of(layout.shard_key(array.grid.locate((*prefix, run.first)).shard))
            if array.grid.is_unsharded:  # a chunk is a file
                for number in numbers:
                    yield (*prefix, number), [url]
            elif run.shard is not None and run.entries is not None:
                offsets = run.entries[are_sound(run.entries, run.shard.index.shard_nbytes), 0].tolist()
                for number, offset, size in zip(numbers, offsets, sizes, strict=True):
                    yield (*prefix, number), [url, run.shard.offset + offset, size]
