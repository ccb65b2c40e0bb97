"""What a group or a dataset of HDF5 is in Zarr v3: its document, and where the bytes of its chunks are; pure.

The structure comes from a `library` process, and is checked here: a hostile file may have taken that over.
"""

import base64
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from operator import lt
from typing import Any, Final

import numpy as np

from shardfs.errors import CorruptionError, MetadataError, NotShownError, NotUnshardable
from shardfs.format.document import MAX_LENGTH, MAX_NDIM, Json, encode_json
from shardfs.format.dtype import parse_v2_dtype, v3_data_type, v3_fill_value
from shardfs.format.members import Buffer
from shardfs.formats.hdf5.filters import Hdf5Filters

Coords = tuple[int, ...]

MAX_CHUNK_NBYTES: Final = 2**29
"""How large a chunk may be that is made, and not a range of the file: what undoes filters has it twice in memory."""

_ROWS_NBYTES: Final = 4 * 2**20
"""How large about the chunks are into which contiguous elements are cut."""
_TEXT_NBYTES: Final = 256  # about what a text of any length is taken for
_UNDEFINED: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ContiguousRow:
    """*nbytes* bytes from *offset* of the file are a chunk, with *npadding* zeros behind them."""

    offset: int
    nbytes: int
    npadding: int = 0


@dataclass(frozen=True)
class Hdf5Array:
    """A dataset as an array.

    *shape* and *chunk_shape* have the axes of elements that are arrays themselves, the last *ninner* ones. *extent* is
    the shape of the dataset, without these; in netCDF an array may be longer, with the fill value there. *dtype* is
    that of elements in chunks as they are shown, None for text of any length. *offset* is where contiguous elements
    begin, None if they are not stored or are not contiguous. *is_chunked*: chunks are found in an index.

    *is_exact*: elements are stored as they are shown. *has_lookup*: one chunk can be found without all of the index.
    """

    shape: tuple[int, ...]
    extent: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    ninner: int
    dtype: np.dtype[Any] | None
    filters: Hdf5Filters
    fill: str | None
    is_exact: bool
    is_chunked: bool
    has_elements: bool
    has_lookup: bool
    offset: int | None

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis."""
        return tuple(-(-length // chunk) for length, chunk in zip(self.shape, self.chunk_shape, strict=True))

    @cached_property
    def nchunks(self) -> int:
        """Number of places in the grid."""
        return math.prod(self.grid)

    @property
    def own_grid(self) -> tuple[int, ...]:
        """The same along the axes of the dataset."""
        return self.grid[: len(self.extent)]

    def is_at_edge(self, coords: Coords) -> bool:
        """Whether a chunk is not filled by elements of the dataset."""
        ends = ((at + 1) * length for at, length in zip(coords, self.chunk_shape, strict=True))
        return any(end > length for end, length in zip(ends, self.extent, strict=False))

    @property
    def varies(self) -> bool:
        """Whether chunks are of a size that only reading them tells."""
        return self.dtype is None

    @cached_property
    def chunk_nbytes(self) -> int:
        """Size of a chunk that is not encoded; of text, about that."""
        return math.prod(self.chunk_shape) * (_TEXT_NBYTES if self.dtype is None else self.dtype.itemsize)

    @cached_property
    def as_stored(self) -> bool:
        """Whether chunks are shown with the bytes that the file has."""
        return self.is_exact and not self.filters.is_decoded

    def position(self, coords: Coords) -> int:
        """Return the position of a chunk in the grid, in C order."""
        position = 0
        for at, length in zip(coords, self.grid, strict=True):
            position = position * length + at
        return position

    def contains(self, coords: Coords) -> bool:
        """Whether there is a place of these coordinates, none of which is negative, in the grid."""
        return len(coords) == len(self.grid) and all(map(lt, coords, self.grid))

    def bounds(self, coords: Coords) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where the elements of a chunk begin, and how many there are along each axis, within the shape."""
        start = tuple(at * length for at, length in zip(coords, self.chunk_shape, strict=True))
        counts = (min(n, length - at) for at, n, length in zip(start, self.chunk_shape, self.shape, strict=True))
        return start, tuple(counts)

    def row(self, coords: Coords) -> ContiguousRow:
        """Return where a chunk of contiguous elements is."""
        assert self.offset is not None
        assert self.dtype is not None
        start, counts = self.bounds(coords)
        at = 0
        for begin, length in zip(start, self.shape, strict=True):
            at = at * length + begin
        nbytes = math.prod(counts) * self.dtype.itemsize
        return ContiguousRow(self.offset + at * self.dtype.itemsize, nbytes, self.chunk_nbytes - nbytes)

    def padded(self, data: Buffer, counts: tuple[int, ...]) -> Buffer:
        """Return a whole chunk of the elements *data*, which are *counts* along each axis; zeros are behind them.

        Raises `ValueError` if they are more or fewer.
        """
        assert self.dtype is not None
        elements = np.frombuffer(data, self.dtype).reshape(counts)
        if counts == self.chunk_shape:
            return data
        chunk = np.zeros(self.chunk_shape, self.dtype)
        chunk[tuple(slice(n) for n in counts)] = elements
        return chunk.tobytes()

    def encoded_text(self, data: Buffer, counts: tuple[int, ...]) -> bytes:
        """Return a whole chunk of text in the codec `vlen-utf8`.

        *data* has the lengths of the texts and then the texts, *counts* along each axis; empty ones fill the chunk.
        Raises `ValueError` if they are more or fewer, or are no UTF-8.
        """
        count = math.prod(counts)
        lengths = np.frombuffer(data, "<u4", count).astype(np.int64)
        ends = 4 * count + np.cumsum(lengths)
        if (int(ends[-1]) if count else 0) != len(data):
            raise ValueError("text of another size than it says")
        texts = np.full(self.chunk_shape, b"", object)
        view = memoryview(data)
        found = np.empty(count, object)
        found[:] = [bytes(view[end - n : end]) for end, n in zip(ends.tolist(), lengths.tolist(), strict=True)]
        for text in found:
            text.decode()
        within: Any = (*map(slice, counts), ...)
        texts[within] = found.reshape(counts)
        items = texts.reshape(-1)
        return struct.pack("<I", len(items)) + b"".join(part for text in items for part in (_U32(len(text)), text))

    def document(self, attributes: dict[str, Json], dimensions: tuple[str | None, ...]) -> bytes:
        """Return the `zarr.json`; *dimensions* are those of the axes that the dataset has itself."""
        if self.dtype is None:
            data_type: Json = "string"
            codecs: list[Json] = [{"name": "vlen-utf8"}]
        else:
            data_type = v3_data_type(self.dtype)
            is_small = self.dtype.names is None and self.dtype.newbyteorder(">") == self.dtype.newbyteorder("<")
            endian = {} if is_small else {"endian": "big" if self.dtype.str[0] == ">" else "little"}
            codecs = [{"name": "bytes", "configuration": endian} if endian else {"name": "bytes"}]
        document: dict[str, Json] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self._fill_value(data_type),
            "codecs": [*codecs, *self.filters.codecs],
            "attributes": self._shown(attributes),
        }
        if any(name is not None for name in dimensions):
            document["dimension_names"] = [*dimensions, *[None] * self.ninner]
        return encode_json(document)

    def _fill_value(self, data_type: Json) -> Json:
        if self.dtype is None:
            return self.fill or ""
        element = bytes(self.dtype.itemsize) if self.fill is None else bytes.fromhex(self.fill)
        if self.dtype.kind == "f":
            number = np.frombuffer(element, self.dtype.newbyteorder("<"))[0]
            if np.isnan(number) and element != np.array(np.nan, self.dtype.newbyteorder("<")).tobytes():
                return f"0x{element[::-1].hex()}"
        return v3_fill_value(data_type, element)

    def _shown(self, attributes: dict[str, Json]) -> dict[str, Json]:
        """Return the attributes with `_FillValue` as xarray has it in Zarr v3: floats as base64 of a float64."""
        shown = dict(attributes)
        if _is_nan(shown.get("missing_value")):  # which is missing anyway, and many readers refuse the word in JSON
            del shown["missing_value"]
        value = shown.pop("_FillValue", None)
        kind = "" if self.dtype is None else self.dtype.kind
        if kind == "f" and isinstance(value, int | float):
            shown["_FillValue"] = _base64(value)
        elif kind == "c" and isinstance(value, list) and len(value) == 2:
            shown["_FillValue"] = [_base64(part) for part in value]
        elif kind in ("b", "i", "u") and isinstance(value, int | float):
            shown["_FillValue"] = value
        return shown  # xarray reads no other ones


_U32: Final = struct.Struct("<I").pack


def _is_nan(value: Json) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _base64(number: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


def group_document(attributes: dict[str, Json]) -> bytes:
    """Return the `zarr.json` of a group."""
    return encode_json({"zarr_format": 3, "node_type": "group", "attributes": attributes})


def parse_array(described: Json) -> Hdf5Array:
    """Return a dataset as an array, from what `library` says of it.

    Raises `MetadataError` with why it is skipped, and `CorruptionError` if it is damaged.
    """
    try:
        return _parse_array(described)
    except (NotUnshardable, NotShownError) as error:
        raise MetadataError(str(error)) from None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CorruptionError("it is damaged") from None


def _parse_array(described: Json) -> Hdf5Array:
    inner, chunks = _lengths(described["inner"], 1), described.get("chunks")
    shape, extent = _lengths(described["shape"], 0), _lengths(described["extent"], 0)
    is_text = described["type"] == "string"
    dtype = None if is_text else parse_v2_dtype(described["type"])
    is_exact = described["is_exact"] is True and dtype is not None
    if len(shape) + len(inner) > MAX_NDIM:
        raise MetadataError(f"it has more than {MAX_NDIM} axes")
    if is_text and inner:
        raise MetadataError("its elements are arrays of text of any length")
    data_type = "string" if dtype is None else v3_data_type(dtype)
    item_nbytes = 0 if dtype is None else dtype.itemsize * math.prod(inner)
    is_chunked, offset = described["layout"] == "chunked", None
    chunk_nbytes = math.prod(_lengths(chunks, 1)) * item_nbytes if is_chunked else 0
    filters = Hdf5Filters.parse(described["filters"], item_nbytes, chunk_nbytes)
    if is_chunked:
        chunk_shape = (*_lengths(chunks, 1), *inner)
        if dtype is None or not is_exact:
            # h5py reads the elements, and so undoes them.
            filters = Hdf5Filters(is_decoded=True, plugin=filters.plugin)
        if filters.is_decoded and filters.plugin is not None:
            raise MetadataError(
                f"its elements are not shown as they are stored, and h5py has no filter {filters.plugin}"
            )
    else:
        if filters.codecs or filters.is_decoded:
            raise MetadataError("it has filters and no chunks, which HDF5 does not know")
        if described["layout"] == "contiguous":
            offset = described["offset"]
            if offset is not None and not 0 <= _integer(offset) < _UNDEFINED:
                raise CorruptionError("it is damaged: nothing says where its elements are")
        whole = described["layout"] == "compact"
        chunk_shape = (*_rows(shape, item_nbytes or _TEXT_NBYTES, whole=whole), *inner)
    array = Hdf5Array(
        shape=(*shape, *inner),
        extent=extent,
        chunk_shape=chunk_shape,
        ninner=len(inner),
        dtype=dtype,
        filters=filters,
        fill=described["fill"] if described["fill"] is None else str(described["fill"]),
        is_exact=is_exact,
        is_chunked=is_chunked,
        has_elements=is_chunked or offset is not None or described["layout"] == "compact",
        has_lookup=described.get("has_lookup") is True,
        offset=offset,
    )
    if len(array.shape) != len(array.chunk_shape) or len(extent) != len(shape) or array.nchunks > MAX_LENGTH:
        raise CorruptionError("it is damaged: its chunks cannot be counted")
    if array.chunk_nbytes > MAX_LENGTH or math.prod(array.shape) > MAX_LENGTH:
        raise CorruptionError("it is damaged: it is larger than anything can be")
    if not array.as_stored and array.chunk_nbytes > MAX_CHUNK_NBYTES:
        raise MetadataError(
            f"its chunks would have {array.chunk_nbytes:,} bytes, more than the {MAX_CHUNK_NBYTES:,} that are made"
        )
    array._fill_value(data_type)  # so that what has none is skipped, and named
    return array


def _rows(shape: tuple[int, ...], item_nbytes: int, *, whole: bool) -> tuple[int, ...]:
    """Return the shape of chunks of contiguous elements, each of which is in one piece.

    They are of about `_ROWS_NBYTES`, and divide the axis that is cut if lengths allow that.
    """
    chunk = [max(1, length) for length in shape]
    if whole:
        return tuple(chunk)
    nbytes = math.prod(chunk) * item_nbytes
    for axis, length in enumerate(chunk):
        if nbytes <= _ROWS_NBYTES:
            break
        row_nbytes = nbytes // length
        most = max(1, _ROWS_NBYTES // row_nbytes)
        chunk[axis] = next((n for n in range(most, most // 2, -1) if length % n == 0), most)
        nbytes = row_nbytes * chunk[axis]
    return tuple(chunk)


def _lengths(value: Json, minimum: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MAX_NDIM:
        raise CorruptionError("it is damaged: its axes cannot be counted")
    if not all(minimum <= _integer(length) <= MAX_LENGTH for length in value):
        raise CorruptionError("it is damaged: the lengths of its axes are no lengths")
    return tuple(value)


def _integer(value: Json) -> int:
    if type(value) is not int:
        raise CorruptionError("it is damaged: a number is none")
    return value
