"""Codecs of the extension registry that change elements, or write them in their own way: decoding them.

Each takes the output of the codec behind it, and returns elements, little-endian and in C order. They are only read:
what a program writes decoded is refused.

Libraries for single codecs are imported where they are needed, because they need not be installed.

Sources: the Zarr extension registry in July 2026, codecs `bitround`, `cast_value`, `n5_default`, `packbits`, `reshape`
and `scale_offset`; zarr-python 3.4 for `cast_value`, zarrs 0.23 for `zarrs.squeeze`, and numcodecs 0.16 for `pcodec`.
"""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from shardfs.errors import CorruptionError, MetadataError, NotShownError
from shardfs.format.document import Extension, Json, brief
from shardfs.format.dtype import DataType, fill_element
from shardfs.format.members import Buffer, check_size

Array = npt.NDArray[Any]
Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
OutOfRange = Literal["clamp", "wrap"]

FILTERS: Final = frozenset({"scale_offset", "cast_value", "bitround"})
"""Codecs that change elements one by one."""
RESHAPES: Final = frozenset({"reshape", "zarrs.squeeze"})
"""Codecs that change the shape, and so neither elements nor their order."""
PCODEC: Final = "numcodecs.pcodec"
SERIALIZERS: Final = frozenset({"packbits", "n5_default", PCODEC})
"""Array → bytes codecs other than `bytes`."""

_AT_ONCE: Final = 2**18
"""How many elements are worked on at a time, so that what is made on the way takes little memory."""
_PACKED_BITS: Final = {"bool": 1, "int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4} | dict.fromkeys(
    ("float6_e2m3fn", "float6_e3m2fn"), 6
)
_ROUNDINGS: Final = get_args(Rounding)


class ElementCodec(ABC):
    """A codec that decodes to elements; *name* is that in documents."""

    name: str

    @abstractmethod
    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Undo the codec; raises `CorruptionError` if *data* is damaged, or decodes to more than *limit* bytes."""


@dataclass(frozen=True)
class Swapped(ElementCodec):
    """Elements of *dtype* that are written big-endian."""

    dtype: np.dtype[Any]
    name = "bytes"

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return the elements little-endian."""
        return _bytes(_elements(self, data, self.dtype).byteswap())


@dataclass(frozen=True)
class BitRound(ElementCodec):
    """Elements that were rounded when they were encoded, which nobody can undo."""

    name = "bitround"

    @classmethod
    def parse(cls, codec: Extension) -> "BitRound":
        """Parse the codec."""
        codec.expect("keepbits")
        codec.integer("keepbits", 1, 1, 64)
        return cls()

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return *data*."""
        return data


@dataclass(frozen=True)
class ScaleOffset(ElementCodec):
    """Numbers of *dtype* that were encoded as (x - *offset*) * *scale*."""

    dtype: np.dtype[Any]
    scale: Any
    offset: Any
    name = "scale_offset"

    @classmethod
    def parse(cls, codec: Extension, data_type: DataType) -> "ScaleOffset":
        """Parse the codec, for elements of *data_type*."""
        _require_number(codec, data_type)
        codec.expect("scale", "offset")
        scale, offset = (
            _scalar(data_type, codec.configuration.get(member, usual))
            for member, usual in (("scale", 1), ("offset", 0))
        )
        if not scale:
            raise MetadataError("the scale of scale_offset is 0")
        return cls(data_type.dtype, scale, offset)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return x / scale + offset; of integers, both must be exact."""
        encoded = _elements(self, data, self.dtype)
        if self.dtype.kind == "f":
            with np.errstate(all="ignore"):
                return _bytes((encoded / self.scale + self.offset).astype(self.dtype, copy=False))
        decoded = np.empty_like(encoded)
        least, most = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        # On the way, elements of 8 bytes may not fit into any integer of NumPy; Python's are slower.
        wide = np.dtype(object if self.dtype.itemsize == 8 else np.int64)
        for part in _parts(len(encoded)):
            elements = encoded[part].astype(wide)
            sums = elements // int(self.scale) + int(self.offset)
            if (elements % int(self.scale)).any() or (sums < least).any() or (sums > most).any():
                raise CorruptionError(f"scale_offset data is damaged: an element is no {self.dtype.name}")
            decoded[part] = sums.astype(self.dtype)
        return _bytes(decoded)


@dataclass(frozen=True)
class CastValue(ElementCodec):
    """Numbers that are stored as *stored*, and are those of *dtype*."""

    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    rounding: Rounding
    out_of_range: OutOfRange | None
    scalars: tuple[tuple[Any, Any], ...]
    name = "cast_value"

    @classmethod
    def parse(cls, codec: Extension, data_type: DataType) -> tuple["CastValue", DataType]:
        """Parse the codec, for elements of *data_type*; returns it, and the data type of what it writes."""
        codec.expect("data_type", "rounding", "out_of_range", "scalar_map")
        stored = DataType.of_fixed_size(codec.configuration.get("data_type"))
        for known in (data_type, stored):
            _require_number(codec, known)
        out_of_range = codec.configuration.get("out_of_range")
        if out_of_range not in (None, "clamp", "wrap"):
            raise MetadataError(f"the out_of_range of cast_value must be clamp or wrap, not {brief(out_of_range)}")
        if out_of_range == "wrap" and stored.dtype.kind == "f":
            raise MetadataError("cast_value wraps integers only")
        try:
            import cast_value_rs  # noqa: F401
        except ImportError:
            raise NotShownError(
                "the codec cast_value needs the package cast-value-rs; install shardfs[codecs]"
            ) from None
        rounding = cast(Rounding, codec.choice("rounding", _ROUNDINGS[0], _ROUNDINGS))
        scalars = _scalar_map(codec.configuration.get("scalar_map"), stored, data_type)
        # Decoding wraps to the data type of the array, which may have floats; then nothing is out of range.
        decodes = None if out_of_range == "wrap" and data_type.dtype.kind == "f" else out_of_range
        return cls(stored.dtype, data_type.dtype, rounding, decodes, scalars), stored

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return the numbers as those of another type; raises `CorruptionError` for one that it does not have."""
        from cast_value_rs import cast_array

        elements = _elements(self, data, self.stored)
        check_size(len(elements) * self.dtype.itemsize, limit)
        try:
            return _bytes(
                cast_array(
                    elements,
                    target_dtype=self.dtype,
                    rounding_mode=self.rounding,
                    out_of_range_mode=self.out_of_range,
                    scalar_map_entries=dict(self.scalars) or None,
                )
            )
        except (ValueError, TypeError, OverflowError) as error:
            raise CorruptionError(f"cast_value data is damaged: {error}") from None


@dataclass(frozen=True)
class PackBits(ElementCodec):
    """*count* elements of *dtype*, of which the bits *first* to *last* are stored.

    *padding* says where a byte has the number of bits that fill the last byte, if one has.
    """

    dtype: np.dtype[Any]
    count: int
    first: int
    last: int
    padding: str
    name = "packbits"

    @classmethod
    def parse(cls, codec: Extension, data_type: DataType, count: int) -> "PackBits":
        """Parse the codec, for chunks of *count* elements of *data_type*."""
        codec.expect("padding_encoding", "first_bit", "last_bit")
        nbits = _PACKED_BITS.get(data_type.name, 8 * data_type.nbytes)
        if data_type.dtype.kind not in "biuf":
            raise NotShownError(f"the codec packbits of {data_type.name} cannot be decoded here")
        padding = codec.choice("padding_encoding", "none", ("none", "first_byte", "last_byte"))
        given = {member: value for member, value in codec.configuration.items() if value is not None}
        stated = Extension(codec.name, given)
        first = stated.integer("first_bit", 0, 0, nbits - 1)
        last = stated.integer("last_bit", nbits - 1, first, nbits - 1)
        if data_type.dtype.kind == "i" and last < nbits - 1:
            raise NotShownError("libraries disagree on packbits of signed integers without their highest bits")
        return cls(data_type.dtype, count, first, last, padding)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return the elements, with zeros in place of bits that are not stored; small integers get their sign."""
        width, nbits = self.last + 1 - self.first, 8 * self.dtype.itemsize
        nbytes = -(-self.count * width // 8)
        packed = np.frombuffer(data, np.uint8)
        if len(packed) != nbytes + (self.padding != "none"):
            raise CorruptionError(f"packbits data has {len(packed)} bytes instead of {nbytes}")
        if self.padding != "none":
            at = 0 if self.padding == "first_byte" else nbytes
            if packed[at] != 8 * nbytes - self.count * width:
                raise CorruptionError(f"packbits data says that {packed[at]} bits fill the last byte")
            packed = np.delete(packed, at)
        decoded = np.empty(self.count, self.dtype)
        for part in _parts(self.count):  # which begins at a byte, as all but the last have a multiple of 8 elements
            begin, length = part.start * width // 8, part.stop - part.start
            bits = np.unpackbits(
                packed[begin : begin + -(-length * width // 8)], count=length * width, bitorder="little"
            )
            whole = np.zeros((length, nbits), np.uint8)
            whole[:, self.first : self.last + 1] = bits.reshape(length, width)
            if self.dtype.kind == "i":
                whole[:, self.last + 1 :] = whole[:, self.last : self.last + 1]
            decoded[part] = np.packbits(whole, axis=1, bitorder="little").reshape(-1).view(self.dtype)
        return _bytes(decoded)


@dataclass(frozen=True)
class N5Block(ElementCodec):
    """Blocks of N5 in the mode "default", which have their shape in front.

    A block may be shorter than *chunk_shape*, at the edge of the array, or longer. *undo* decodes what follows the
    shape.
    """

    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    undo: Callable[[Buffer, int], Buffer]
    name = "n5_default"

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return the elements of a whole chunk: N5 has no other fill value than 0."""
        ndim = len(self.chunk_shape)
        header = struct.Struct(f">HH{ndim}I")
        if len(data) < header.size:
            raise CorruptionError("the N5 block is cut short")
        mode, stated, *lengths = header.unpack_from(data)
        if (mode, stated) != (0, ndim):
            raise CorruptionError(f"the N5 block has mode {mode} and {stated} axes instead of 0 and {ndim}")
        count = math.prod(lengths)
        if count * self.dtype.itemsize > limit:
            raise CorruptionError(f"the N5 block has {count} elements, more than can belong to a chunk")
        elements = self.undo(memoryview(data)[header.size :], count * self.dtype.itemsize)
        if len(elements) != count * self.dtype.itemsize:
            raise CorruptionError(f"the N5 block has {len(elements)} bytes, not those of {count} elements")
        block = np.frombuffer(elements, self.dtype.newbyteorder(">")).reshape(lengths[::-1]).T
        chunk = np.zeros(self.chunk_shape, self.dtype)
        common = tuple(map(slice, map(min, lengths, self.chunk_shape)))
        chunk[common] = block[common]
        return _bytes(chunk)


@dataclass(frozen=True)
class Pcodec(ElementCodec):
    """*count* numbers of *dtype*, compressed by pcodec."""

    dtype: np.dtype[Any]
    count: int
    name = PCODEC

    @classmethod
    def parse(cls, codec: Extension, data_type: DataType, count: int) -> "Pcodec":
        """Check that pcodec is installed and has *data_type*; all members of the codec are for its encoder."""
        try:
            import pcodec  # noqa: F401
        except ImportError:
            raise NotShownError(f"the codec {PCODEC} needs the package pcodec; install shardfs[codecs]") from None
        _require_number(codec, data_type)
        return cls(data_type.dtype, count)

    def decode(self, data: Buffer, limit: int) -> Buffer:
        """Return the numbers; no more than these are decoded."""
        from pcodec import standalone

        decoded = np.empty(self.count, self.dtype)
        try:
            progress = standalone.simple_decompress_into(bytes(data), decoded)
        except (RuntimeError, TypeError, ValueError) as error:
            raise CorruptionError(f"pcodec data is damaged: {error}") from None
        if not progress.finished or progress.n_processed != self.count:
            raise CorruptionError(f"pcodec data has not the {self.count} elements of a chunk")
        return _bytes(decoded)


def reshaped(codec: Extension, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a codec among `RESHAPES` gives chunks of *shape*; raises `MetadataError` if it cannot."""
    if codec.name != "reshape":
        codec.expect()
        return tuple(length for length in shape if length > 1)
    codec.expect("shape")
    wanted = codec.configuration.get("shape")
    if not isinstance(wanted, list):
        raise MetadataError(f"the shape of reshape must be a list, not {brief(wanted)}")
    axes = [axis for part in wanted if isinstance(part, list) for axis in part]
    if not all(type(axis) is int and 0 <= axis < len(shape) for axis in axes) or axes != sorted(set(axes)):
        raise MetadataError(f"the axes in the shape of reshape are not in order: {brief(wanted)}")
    lengths = [math.prod(shape[axis] for axis in part) if isinstance(part, list) else part for part in wanted]
    unknown = lengths.count(-1)
    if any(type(length) is not int or length < 1 for length in lengths if length != -1) or unknown > 1:
        raise MetadataError(f"the shape of reshape is not valid: {brief(wanted)}")
    known = math.prod(length for length in lengths if length != -1)
    if math.prod(shape) % known or (not unknown and known != math.prod(shape)):
        raise MetadataError(f"chunks of {brief(list(shape))} cannot be reshaped to {brief(wanted)}")
    return tuple(math.prod(shape) // known if length == -1 else length for length in lengths)


def _require_number(codec: Extension, data_type: DataType) -> None:
    if not data_type.is_native or data_type.dtype.kind not in "iuf":
        raise NotShownError(f"the codec {codec.name} of {data_type.name} cannot be decoded here")


def _scalar(data_type: DataType, value: Json) -> Any:  # noqa: ANN401 - a number of NumPy
    """Return an element in a document, which is written as a fill value is."""
    return np.frombuffer(fill_element(data_type.name, value), data_type.dtype)[0]


def _scalar_map(value: Json, stored: DataType, data_type: DataType) -> tuple[tuple[Any, Any], ...]:
    """Return which elements a `scalar_map` decodes to which; of several entries for one, the first counts."""
    if value is None:
        return ()
    pairs = value.get("decode") if isinstance(value, dict) else value
    if pairs is None:
        return ()
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise MetadataError(f"the scalar_map of cast_value must have lists of pairs, not {brief(value)}")
    found: dict[Any, Any] = {}
    for old, new in pairs:
        found.setdefault(_scalar(stored, old).item(), _scalar(data_type, new).item())
    return tuple(found.items())


def _elements(codec: ElementCodec, data: Buffer, dtype: np.dtype[Any]) -> Array:
    if len(data) % dtype.itemsize:
        raise CorruptionError(f"{codec.name} data has {len(data)} bytes, not those of elements of {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def _bytes(elements: Array) -> memoryview:
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data


def _parts(count: int) -> Iterator[slice]:
    for start in range(0, count, _AT_ONCE):
        yield slice(start, min(start + _AT_ONCE, count))
