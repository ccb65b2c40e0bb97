"""Kerchunk references, for machines that cannot mount.

They describe what a mount would show as ranges of stored files. A reader takes a missing reference for the fill value,
so an array is referenced with all its chunks, or not at all.

Source: the reference file format of kerchunk and fsspec, version 1.
"""

import json
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from tempfile import TemporaryFile
from typing import ClassVar, Final, Protocol, TextIO

from shardfs.dataset.array import Array
from shardfs.dataset.hierarchy import Source
from shardfs.dataset.journal.recovery import find_unstored
from shardfs.dataset.maintenance.walk import (
    Progress,
    among_shards,
    no_progress,
    nodes_among_shards,
    walk_files,
    walk_nodes,
    what_else,
)
from shardfs.dataset.node import DOCUMENT, Node
from shardfs.errors import (
    CorruptionError,
    MetadataError,
    NotShownError,
    NotUnshardable,
    RefusedError,
    ShardfsError,
    UsageError,
)
from shardfs.format.document import decode_text, encode_json, parse_json
from shardfs.format.index import are_sound
from shardfs.format.lens.v2 import ZMETADATA
from shardfs.format.metadata import ArrayMetadata, GroupMetadata
from shardfs.format.sharding import Coords
from shardfs.formats import VirtualStore
from shardfs.stores.base import Reader, join_key
from shardfs.vfs.chunk_cache import ChunkView
from shardfs.vfs.views import View, make_view

Reference = str | list[str | int]
"""A text, or the URL of a file, with offset and length for a range."""
Add = Callable[[str, Reference], None]
"""Adds a key with its reference."""


class References(Protocol):
    """Where references are written; if it *has_sizes*, to a whole file too with its size, and to no file but chunks."""

    has_sizes: ClassVar[bool] = False

    def array(self, node: Node, chunks: ChunkView | None) -> AbstractContextManager[Add]:
        """Begin the references of an array, in C order; they are kept if the block ends without an error.

        *chunks* is how the chunks are shown, None if the files of the array are. Raises `RefusedError` for an array
        that cannot be referenced in this form.
        """

    def add(self, key: str, text: str) -> None:
        """Add a document of a group."""

    def finish(self) -> None:
        """Write what comes after all references."""


_HEAD: Final = '{"version": 1, "refs": {'


class JsonReferences(References):
    """References as JSON in *file*, one line each; nothing is written before there is one, or their end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._separator = f"{_HEAD}\n"

    @contextmanager
    def array(self, node: Node, chunks: ChunkView | None) -> Iterator[Add]:
        """Begin the references of an array, which are aside until they are complete."""
        with TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="") as aside:
            separator = self._separator

            def add(key: str, reference: Reference) -> None:
                nonlocal separator
                aside.write(f"{separator}{_line(key, reference)}")
                separator = ",\n"

            yield add
            aside.seek(0)
            shutil.copyfileobj(aside, self._file)
            self._separator = separator

    def add(self, key: str, text: str) -> None:
        """Add a document."""
        self._file.write(f"{self._separator}{_line(key, text)}")
        self._separator = ",\n"

    def finish(self) -> None:
        """End the file."""
        head = _HEAD if self._separator.startswith(_HEAD) else ""
        self._file.write(f"{head}\n}}}}\n")


async def array_references(
    source: Source, view: View, node: Node, *, has_sizes: bool = False
) -> AsyncIterator[tuple[str, Reference]]:
    """Yield key and reference of every chunk and document of an array as *view* shows it, without decoding.

    *has_sizes* is that of `References`.

    Raises `NotShownError` if the view does not show it, or shows chunks that are not stored; `NotUnshardable` if its
    shards are encoded as a whole, so that no range of a file is a chunk; and the error that prevents reading a chunk or
    a shard.
    """
    require_shown(view, node)
    chunk_view = view.chunk_view(node)
    if chunk_view is not None:
        if chunk_view.array.grid.is_encoded:
            raise NotUnshardable("its shards are encoded as a whole, so no range of a file is a chunk")
        count = 0
        async for coords, reference in _chunks(source, chunk_view.array):
            yield join_key(node.path, chunk_view.key_encoding.encode(coords)), reference
            count += 1
        if chunk_view.listed_missing is not None and count < chunk_view.array.grid.nchunks:
            raise NotShownError("chunks that are not stored would be read as another value: mount it, or use --view v3")
    elif has_sizes and node.any_array is not None:
        async for coords, reference in _chunks(source, node.any_array, has_sizes=True):
            yield join_key(node.path, node.any_array.layout.key_encoding.encode(coords)), reference
    else:
        async for key in walk_files(source.store, node.path, opens_links=True):
            if key != join_key(node.path, DOCUMENT):
                yield key, await _reference(source.store, key)
    for key, reference in document_references(view, node):
        yield key, reference


_ONLY_ZARR: Final = (
    "shardfs writes references only to arrays that are stored as Zarr; mount it, or refer to what `shardfs pack` makes "
    "of it"
)


def require_shown(view: View, node: Node) -> None:
    """Raise `NotShownError` if *view* does not show an array, or nothing can refer to its chunks."""
    reason = (node.reason or _ONLY_ZARR) if node.is_read_only else view.skipped(node)
    if reason is not None:
        raise NotShownError(reason)


def document_references(view: View, node: Node, *, has_copies: bool = True) -> Iterator[tuple[str, str]]:
    """Yield key and text of every document of *node*, and those copies of other documents that it may have.

    Whoever opened a skipped array by its copy would find no chunks, and no error.
    """
    documents = {} if node.document is None or view.hides(node, DOCUMENT) else {DOCUMENT: node.document}
    documents.update(view.documents(node))
    if not has_copies:
        documents.pop(ZMETADATA, None)
        if DOCUMENT in documents:
            document = parse_json(documents[DOCUMENT])
            document.pop("consolidated_metadata", None)
            documents[DOCUMENT] = encode_json(document)
    for name, text in documents.items():
        yield join_key(node.path, name), decode_text(text)


async def _chunks(source: Source, array: Array, *, has_sizes: bool = False) -> AsyncIterator[tuple[Coords, Reference]]:
    """Yield the stored chunks of an array in C order."""
    layout = array.layout
    if array.grid.ndim == 0:
        extent = await array.extent(())
        if extent is not None:
            url, start = await _file_and_offset(source.store, layout.shard_key(()))
            yield (), [url, start + extent.offset, extent.nbytes]
        return
    async for prefix in array.rows((0,) * (array.grid.ndim - 1)):
        async for run in array.list_row(prefix, 0):
            if run.error is not None:
                raise run.error
            if run.damaged is not None:
                key = layout.key_encoding.encode((*prefix, run.numbers[run.damaged.index(True)]))
                raise CorruptionError(f"{join_key(layout.path, key)} is damaged; see shardfs verify")
            if array.grid.is_unsharded:  # each chunk is a file, and a run
                key = layout.shard_key((*prefix, run.first))
                for number, size in zip(run.numbers, run.sizes, strict=True):
                    yield (*prefix, number), await _reference(source.store, key, size if has_sizes else None)
            elif run.shard is not None and run.entries is not None:
                key = layout.shard_key(array.grid.locate((*prefix, run.first)).shard)
                offsets = run.entries[are_sound(run.entries, run.shard.index.shard_nbytes), 0].tolist()
                url, start = await _file_and_offset(source.store, key)
                for number, offset, size in zip(run.numbers, offsets, run.sizes, strict=True):
                    yield (*prefix, number), [url, start + run.shard.offset + offset, size]


_MADE: Final = "its chunks are not stored as they are shown, so no range of a file is a chunk"


async def _reference(store: Reader, key: str, nbytes: int | None = None) -> Reference:
    """Return the reference to the file *key*, with its size if that is given.

    Raises `NotUnshardable` if it is a part of another file that no range of that has.
    """
    if not isinstance(store, VirtualStore):
        return [store.url_of(key)] if nbytes is None else [store.url_of(key), 0, nbytes]
    origin = await store.origin(key)
    if origin is None:
        raise NotUnshardable(_MADE)
    return f"base64:{b64encode(origin).decode()}" if isinstance(origin, bytes) else [*origin]


async def _file_and_offset(store: Reader, key: str) -> tuple[str, int]:
    """Return the URL of the file that has the shard *key*, and where in it that begins; raises `NotUnshardable`."""
    if not isinstance(store, VirtualStore):
        return store.url_of(key), 0
    origin = await store.origin(key)
    if origin is None or isinstance(origin, bytes):
        raise NotUnshardable(_MADE)
    return origin[0], origin[1]


async def write_references(
    source: Source,
    references: References,
    view_name: str = "v3",
    *,
    skip_encoded: bool = False,
    warn: Callable[[str], None] = lambda line: None,
    progress: Progress = no_progress,
) -> int:
    """Write kerchunk references to what the view *view_name* shows.

    Returns how many arrays are skipped because they could not be read or referenced; *warn* is called with a line
    about each. Arrays that the view does not show are not counted, nor, if *skip_encoded*, those whose shards are
    encoded as a whole. Raises `UsageError` if nothing can refer to what is in the source, and `RefusedError` if it
    is of another format as a whole; then nothing is written.
    """
    if isinstance(source.store, VirtualStore) and source.store.no_references is not None:
        raise UsageError(source.store.no_references)
    view = make_view(view_name, source.store, drafts=source.hierarchy.drafts)
    source.hierarchy.look_above(looks=view.lens.looks_above)
    arrays: list[Node] = []
    groups, skipped, failed = [], 0, 0
    if (unstored := find_unstored(source.store)) is not None:
        failed += 1
        warn(
            f"{source.store.url} has {unstored.what}, which nothing refers to: {unstored.way_out}, then write it again"
        )
    async for node in walk_nodes(source):
        if isinstance(node.metadata, GroupMetadata):
            groups.append(node.path)
        elif isinstance(node.metadata, ArrayMetadata) or not node.is_read_only:
            arrays.append(node)
    nchunks = {node.path: node.any_array.grid.nchunks for node in arrays if node.any_array is not None}
    with progress("referencing", sum(nchunks.values()), "chunk") as advance:
        for node in arrays:
            count = 0
            try:
                if node.metadata is None:
                    raise MetadataError(str(node.reason))
                require_shown(view, node)
                with references.array(node, view.chunk_view(node)) as add:
                    async for key, reference in array_references(source, view, node, has_sizes=references.has_sizes):
                        add(key, reference)
                        count += 1
                        advance(1)
                if node.any_array is not None:
                    async for key in nodes_among_shards(node.any_array):
                        failed, skipped = failed + 1, skipped + 1
                        warn(f"{key} cannot be referenced: {among_shards(node.path)}")
                continue
            except NotShownError as error:
                reason = str(error)
            except NotUnshardable as error:
                failed += not skip_encoded
                reason = str(error) if skip_encoded else f"{error}; mount it, or skip it with --skip-encoded"
            except ShardfsError as error:
                failed += 1
                reason = str(error)
            finally:
                advance(nchunks.get(node.path, count) - count)
            skipped += 1
            warn(f"{node.path or source.store.url} cannot be referenced: {reason}")
    if skipped == len(arrays) and (top := await source.hierarchy.node("")).is_read_only:
        why = "" if skipped else f": {top.reason or _ONLY_ZARR}"
        raise RefusedError(f"nothing is written, as nothing in {source.store.url} can be referenced{why}")
    if not arrays:
        warn(f"there are no Zarr v3 arrays here: {await what_else(source)}")
    for path in groups:  # last, when it is known whether any array is skipped
        node = await source.hierarchy.copies.consolidated(await source.hierarchy.node(path))
        for key, text in document_references(view, node, has_copies=not skipped):
            references.add(key, text)
    references.finish()
    return failed


def _line(key: str, reference: Reference) -> str:
    return f"{json.dumps(key)}: {json.dumps(reference)}"
