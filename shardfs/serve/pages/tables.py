"""The first rows of arrays that have no picture: texts, bytes and structs, read as any client could.

Texts of varying size are decoded here: `vlen-utf8` and `vlen-bytes` write the number of elements, and then each with
its size, as 32-bit little-endian integers (zarr-extensions, "vlen-utf8").
"""

import math
import struct
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from shardfs.dataset.node import Node
from shardfs.errors import CorruptionError, NotFoundError, NotShownError, SourceError
from shardfs.format.codecs import decode, is_decodable, split_chain
from shardfs.format.dtype import VLEN_SERIALIZERS, DataType, type_name
from shardfs.format.metadata import ArrayMetadata
from shardfs.serve.pages.plane import TEXTS, Cut, Samples, open_decoded, read_plane
from shardfs.serve.pages.query import Query, default_index
from shardfs.serve.pages.units import shortened
from shardfs.stores.base import Buffer, join_key
from shardfs.vfs.paths import Paths

ROWS: Final = 50
"""How many rows a page has."""

_COLUMNS: Final = 12
_MAX_TEXT: Final = 200
_MAX_CHUNK_NBYTES: Final = 64 * 2**20
_MAX_CHUNK_ELEMENTS: Final = 2**20
_MAX_CHUNKS: Final = 64
_MAX_NBYTES: Final = 16 * 2**20
_SIZE_NBYTES: Final = 4


class Table(NamedTuple):
    """Rows of texts from *first* of *total* on, below the names of *columns*; *note* says what is skipped."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    first: int
    total: int
    note: str = ""


class _TableWindow(NamedTuple):
    """What is shown of an array: spans of one or two *axes*, at the indices *at* of the others."""

    axes: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    at: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], names: Sequence[str | None], query: Query) -> "_TableWindow":
        at = [query.indices.get(axis, default_index(length, names[axis])) for axis, length in enumerate(shape)]
        if any(index >= length for index, length in zip(at, shape, strict=True)):
            raise NotShownError("there is no element of that index")
        if not shape:
            return cls((), (), ())
        axes = (0,) if len(shape) == 1 else (len(shape) - 2, len(shape) - 1)
        first = min(query.first, shape[axes[0]] - 1)
        spans = [(first, min(first + ROWS, shape[axes[0]]))]
        spans += [(0, min(_COLUMNS, shape[axes[1]]))] if len(axes) == 2 else []
        return cls(axes, tuple(spans), tuple(at))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.spans)


def has_table(node: Node) -> bool:
    """Whether an array has no picture because of its data type, and rows instead."""
    if not isinstance(node.metadata, ArrayMetadata):
        return False
    found = DataType.find(node.metadata.document["data_type"])
    return found is not None and found.is_native and (found.varies or found.dtype.kind in TEXTS)


async def read_table(decoded: Paths | SourceError, encoded: Paths | SourceError, node: Node, query: Query) -> Table:
    """Read the first rows of the array *node*, from *decoded* chunks, or *encoded* ones if its elements vary in size.

    Raises `NotShownError` if they cannot be read, and the errors of the tree.
    """
    metadata = node.metadata
    assert isinstance(metadata, ArrayMetadata)
    if 0 in metadata.shape:
        raise NotShownError("the array has no elements")
    names = tuple(metadata.document.get("dimension_names") or [None] * metadata.ndim)
    window = _TableWindow.of(metadata.shape, names, query)
    varies = type_name(metadata.document["data_type"]) in VLEN_SERIALIZERS
    paths = encoded if varies else decoded
    if isinstance(paths, SourceError):
        raise NotShownError(str(paths))
    if varies:
        elements, note = await _read_varying(paths, node, window)
    else:
        elements, note = await _read_fixed(paths, node.path, window)
    return _table(elements, window, metadata.shape, names, note)


async def _read_fixed(paths: Paths, path: str, window: _TableWindow) -> tuple[npt.NDArray[Any], str]:
    array = await open_decoded(paths, path, TEXTS)
    cut = Cut(array, window.axes, tuple(Samples(*span, 1) for span in window.spans), window.at)
    if math.prod(window.shape) * array.dtype.itemsize > _MAX_NBYTES:
        raise NotShownError(f"an element has {array.dtype.itemsize:,} bytes")
    if cut.nchunks > _MAX_CHUNKS:
        raise NotShownError(f"its first rows are in {cut.nchunks:,} chunks")
    plane = await read_plane(paths, cut)
    note = f"{plane.ndamaged} chunks are damaged: {plane.damage}" if plane.damage is not None else ""
    elements = plane.elements
    if plane.damage is not None:
        elements = elements.astype(object)
        elements[~plane.are_known] = "damaged"
    return elements, note


async def _read_varying(paths: Paths, node: Node, window: _TableWindow) -> tuple[npt.NDArray[Any], str]:
    current = await paths.source.hierarchy.node(node.path)
    view, array = paths.fs.view.chunk_view(current), current.any_array
    if array is None or (view is None and current.array is not None):
        raise NotShownError("its chunks are shown as they are stored")
    encoding = view.key_encoding if view is not None else array.layout.key_encoding
    chain = split_chain(array.codecs, "codecs")
    if (
        chain.before
        or chain.serializer.name not in VLEN_SERIALIZERS.values()
        or not all(map(is_decodable, chain.after))
    ):
        raise NotShownError(f"the codecs {', '.join(codec.name for codec in array.codecs)} are not decoded here")
    edges = array.grid.chunk_shape
    count = math.prod(edges)
    if count > _MAX_CHUNK_ELEMENTS:
        raise NotShownError(f"a chunk has {count:,} elements")
    fill = node.metadata.document.get("fill_value") if isinstance(node.metadata, ArrayMetadata) else ""
    elements = np.full(window.shape, fill if isinstance(fill, str) else "", object)
    problems: list[str] = []
    pieces = _in_chunks(window, edges)
    if len(pieces) > _MAX_CHUNKS:
        raise NotShownError(f"its first rows are in {len(pieces):,} chunks")
    for coords, target, source in pieces:
        key = join_key(node.path, encoding.encode(coords))
        try:
            async with paths.open(key) as handle:
                if handle.attributes.size > _MAX_CHUNK_NBYTES:
                    raise NotShownError(f"the chunk {key} is too large to be read here")
                data = await handle.read(0, handle.attributes.size)
            wanted = frozenset(np.arange(count).reshape(edges)[source].ravel().tolist())
            decoded = decode(chain.after, data, _MAX_CHUNK_NBYTES)
            texts = await trio.to_thread.run_sync(_texts, decoded, count, wanted)
            elements[target] = texts.reshape(edges)[source]
        except NotFoundError:
            continue
        except CorruptionError as error:
            problems.append(str(error))
            elements[target] = "damaged"
    return elements, f"{len(problems)} chunks are damaged: {problems[0]}" if problems else ""


def _in_chunks(
    window: _TableWindow, edges: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[slice, ...], tuple[Any, ...]]]:
    """Return the chunks of a window: coordinates, where their elements go, and which of them."""
    found: list[tuple[dict[int, int], tuple[slice, ...], dict[int, slice]]] = [({}, (), {})]
    for axis, (start, stop) in zip(window.axes, window.spans, strict=True):
        parts = Samples(start, stop, 1).in_chunks(edges[axis])
        found = [
            (
                {**coords, axis: number},
                (*target, slice(before, before + inside.length)),
                {**source, axis: slice(inside.start, inside.stop)},
            )
            for coords, target, source in found
            for number, before, inside in parts
        ]
    return [
        (
            tuple(
                coords.get(axis, index // edge) for axis, (index, edge) in enumerate(zip(window.at, edges, strict=True))
            ),
            target,
            tuple(
                source.get(axis, index % edge) for axis, (index, edge) in enumerate(zip(window.at, edges, strict=True))
            ),
        )
        for coords, target, source in found
    ]


def _texts(data: Buffer, count: int, wanted: Collection[int]) -> npt.NDArray[Any]:
    """Return the *wanted* elements of a decoded chunk; raises `CorruptionError` if it is none of *count* elements."""
    view, at = memoryview(data), _SIZE_NBYTES
    if len(view) < at or struct.unpack_from("<I", view)[0] != count:
        raise CorruptionError(f"a chunk of texts has not its {count:,} elements")
    found = np.empty(count, object)
    for number in range(count):
        if at + _SIZE_NBYTES > len(view):
            raise CorruptionError("a chunk of texts is cut short")
        (nbytes,) = struct.unpack_from("<I", view, at)
        at += _SIZE_NBYTES
        if at + nbytes > len(view):
            raise CorruptionError("a chunk of texts is cut short")
        if number in wanted:
            found[number] = bytes(view[at : at + min(nbytes, 4 * _MAX_TEXT)]).decode("utf-8", "backslashreplace")
        at += nbytes
    return found


def _table(
    elements: npt.NDArray[Any], window: _TableWindow, shape: Sequence[int], names: Sequence[str | None], note: str
) -> Table:
    first = window.spans[0][0] if window.spans else 0
    total = shape[window.axes[0]] if window.axes else 1
    head = shortened(names[window.axes[0]] or "index", 40) if window.axes else ""
    is_struct = elements.dtype.names is not None
    if elements.ndim < 2:
        flat = elements.reshape(-1)
        fields = [shortened(name, 60) for name in (elements.dtype.names or ("value",))][: 4 * _COLUMNS]
        rows = [
            [
                str(first + number),
                *(
                    (_text(element[field]) for field in (elements.dtype.names or ())[: 4 * _COLUMNS])
                    if is_struct
                    else [_text(element)]
                ),
            ]
            for number, element in enumerate(flat)
        ]
        return Table([head, *fields], rows, first, total, note)
    width = shape[window.axes[1]]
    note = f"the first {elements.shape[1]} of {width:,} columns. {note}".strip() if width > elements.shape[1] else note
    columns = [
        head,
        *(f"{shortened(names[window.axes[1]] or 'column', 40)} {number}" for number in range(elements.shape[1])),
    ]
    return Table(
        columns, [[str(first + number), *map(_text, row)] for number, row in enumerate(elements)], first, total, note
    )


def _text(element: Any) -> str:  # noqa: ANN401 - of any dtype
    if isinstance(element, bytes):
        return shortened(element.decode("utf-8", "backslashreplace"), _MAX_TEXT)
    if isinstance(element, np.void) and element.dtype.names is None:
        return shortened(bytes(element).hex(), _MAX_TEXT)
    if isinstance(element, float | np.floating):
        return f"{float(element):.6g}"
    return shortened(str(element), _MAX_TEXT)
