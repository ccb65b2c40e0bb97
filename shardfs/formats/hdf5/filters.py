"""The filters of HDF5 as codecs of Zarr, and chunks to which not all of them were applied.

A chunk of HDF5 may be stored without some of the filters of its dataset: a filter that would make it larger is left
out, and chunks at the edge may have none. Such a chunk is shown with all of them: made, of a size that is known before,
by what each of these formats has for bytes that are not compressed.

Sources: HDF5 file format specification 4.0, "Filter Pipeline Message"; registered filter plugins of HDF5; RFC 1950 and
1951; RFC 8878; the format of chunks of c-blosc 1.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardfs.errors import CorruptionError, MetadataError
from shardfs.format.codecs import COMPRESSORS, SHUFFLES
from shardfs.format.document import Json, brief
from shardfs.format.members import Buffer

_SHUFFLE: Final = 2
_FLETCHER32: Final = 3
_LZF: Final = 32000
_PLUGINS: Final = {307: "bzip2", 32001: "Blosc", 32015: "zstd"}
"""Filters that Zarr has codecs for, and libhdf5 only by plugins, which are not loaded."""
_REFUSED: Final = {
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    305: "lzo",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32017: "sz",
    32018: "fpzip",
    32024: "sz3",
    32026: "blosc2",
}
"""Filters for which Zarr has no codec that reads the same bytes."""

_MAX_BLOCK: Final = 65535  # of deflate
_MAX_ZSTD_BLOCK: Final = 2**17


@dataclass(frozen=True, slots=True)
class Hdf5Filters:
    """The filters of a dataset: its *codecs* after `bytes`, or *is_decoded* if h5py must undo them.

    *plugin* is the name of one that h5py cannot undo.
    """

    codecs: tuple[dict[str, Json], ...] = ()
    is_decoded: bool = False
    plugin: str | None = None

    @classmethod
    def parse(cls, filters: Json, item_nbytes: int, chunk_nbytes: int) -> "Hdf5Filters":
        """Translate filters, each with its number, its values and its name; raises `MetadataError` for those that
        Zarr has not, and `CorruptionError`.

        *item_nbytes* is the size of an element, and *chunk_nbytes* that of a chunk of them.
        """
        if not isinstance(filters, list) or len(filters) > 32:
            raise CorruptionError("it is damaged: its filters cannot be read")
        codecs: list[dict[str, Json]] = []
        is_decoded, plugin = False, None
        nbytes: int | None = chunk_nbytes  # at the filter, if it is the same for all chunks
        for each in filters:
            match each:
                case [int(code), list(values), str(name)] if all(type(value) is int for value in values):
                    pass
                case _:
                    raise CorruptionError("it is damaged: its filters cannot be read")
            plugin = _PLUGINS.get(code, plugin)
            if code == _LZF:
                is_decoded = True
            else:
                codecs.append(_codec(code, values, name, item_nbytes))
                # numcodecs shuffles only whole elements; the checksum of a chunk is none.
                is_decoded = is_decoded or not _is_whole(codecs[-1], nbytes)
            nbytes = nbytes if code == _SHUFFLE else nbytes + 4 if code == _FLETCHER32 and nbytes is not None else None
        return cls(() if is_decoded else tuple(codecs), is_decoded, plugin)

    def stored_nbytes(self, nbytes: int) -> int | None:
        """Return the size of what `store` makes of *nbytes* bytes; None if one of the codecs has no such form."""
        for codec in self.codecs:
            match codec["name"]:
                case "numcodecs.zlib":
                    nbytes += 2 + 5 * max(1, -(-nbytes // _MAX_BLOCK)) + 4
                case "numcodecs.fletcher32":
                    nbytes += 4
                case "blosc":
                    nbytes += 16
                case "zstd":
                    nbytes += 4 + 1 + 8 + 3 * max(1, -(-nbytes // _MAX_ZSTD_BLOCK))
                case "numcodecs.bz2":
                    return None
        return nbytes

    def has_encoded(self, head: bytes, nbytes: int) -> bool:
        """Whether a chunk of *nbytes* bytes that begins with *head*, 16 of them, was encoded by `plugin`."""
        match self.plugin:
            case "zstd":
                return head.startswith(b"\x28\xb5\x2f\xfd")
            case "bzip2":
                return head.startswith(b"BZh") and head[4:10] == b"\x31\x41\x59\x26\x53\x59"
            case "Blosc":
                # With a checksum behind it, a chunk is 4 bytes shorter.
                return len(head) == 16 and 0 <= nbytes - int.from_bytes(head[12:], "little") <= 4
        return False

    def store(self, data: Buffer) -> Buffer:
        """Encode *data* as the codecs do, without compressing it."""
        for codec in self.codecs:
            match codec["name"]:
                case "numcodecs.shuffle":
                    data = _shuffled(data, codec["configuration"]["elementsize"])
                case "numcodecs.zlib":
                    data = _in_zlib(data)
                case "numcodecs.fletcher32":
                    data = _with_fletcher32(data)
                case "blosc":
                    data = _in_blosc(data, codec["configuration"]["typesize"])
                case "zstd":
                    data = _in_zstd(data)
        return data


def _codec(code: int, values: list[int], name: str, item_nbytes: int) -> dict[str, Json]:
    """Return the codec for a filter, in the long form of Zarr v3; raises `MetadataError`."""

    def value(place: int, default: int, most: int) -> int:
        found = values[place] if place < len(values) else default
        return found if 0 <= found <= most else default

    match code:
        case 1:
            return {"name": "numcodecs.zlib", "configuration": {"level": value(0, 6, 9)}}
        case _ if code == _SHUFFLE:
            return {"name": "numcodecs.shuffle", "configuration": {"elementsize": value(0, 0, 2**20) or item_nbytes}}
        case _ if code == _FLETCHER32:
            return {"name": "numcodecs.fletcher32", "configuration": {}}
        case 307:
            return {"name": "numcodecs.bz2", "configuration": {"level": value(0, 9, 9) or 9}}
        case 32001:
            return {
                "name": "blosc",
                "configuration": {
                    "cname": COMPRESSORS[value(6, 0, len(COMPRESSORS) - 1)],
                    "clevel": value(4, 5, 9),
                    "shuffle": SHUFFLES[value(5, 1, 2)],
                    "typesize": value(2, 0, 255) or item_nbytes,
                    "blocksize": 0,
                },
            }
        case 32015:
            return {"name": "zstd", "configuration": {"level": value(0, 3, 22), "checksum": False}}
    known = _REFUSED.get(code) or brief(name)
    raise MetadataError(f"Zarr has no codec for the filter {known} ({code})")


def _is_whole(codec: dict[str, Json], nbytes: int | None) -> bool:
    """Whether *codec*, of *nbytes* bytes, shuffles none, or only whole elements."""
    if codec["name"] != "numcodecs.shuffle":
        return True
    item_nbytes = codec["configuration"]["elementsize"]
    return nbytes is not None and item_nbytes > 0 and nbytes % item_nbytes == 0


def _shuffled(data: Buffer, item_nbytes: int) -> Buffer:
    items = np.frombuffer(data, np.uint8)
    whole = len(items) // item_nbytes * item_nbytes
    shuffled = np.ascontiguousarray(items[:whole].reshape(-1, item_nbytes).T).reshape(-1)
    return np.concatenate([shuffled, items[whole:]]).tobytes()


def _in_zlib(data: Buffer) -> Buffer:
    """Return a zlib stream of blocks that are not compressed."""
    parts: list[Buffer] = [b"\x78\x01"]
    count = max(1, -(-len(data) // _MAX_BLOCK))
    for number in range(count):
        block = memoryview(data)[number * _MAX_BLOCK : (number + 1) * _MAX_BLOCK]
        parts += [struct.pack("<BHH", number == count - 1, len(block), len(block) ^ 0xFFFF), block]
    return b"".join([*parts, struct.pack(">I", zlib.adler32(data))])


def _with_fletcher32(data: Buffer) -> Buffer:
    from numcodecs import Fletcher32

    return bytes(Fletcher32().encode(bytes(data)))


def _in_blosc(data: Buffer, item_nbytes: int) -> Buffer:
    """Return a chunk of c-blosc 1 with the flag for bytes that are copied."""
    head = struct.pack("<BBBBIII", 2, 1, 2, min(item_nbytes, 255), len(data), len(data), len(data) + 16)
    return head + bytes(data)


def _in_zstd(data: Buffer) -> Buffer:
    """Return a frame of raw blocks, in one segment, which states its size."""
    parts: list[Buffer] = [b"\x28\xb5\x2f\xfd", b"\xe0", struct.pack("<Q", len(data))]
    count = max(1, math.ceil(len(data) / _MAX_ZSTD_BLOCK))
    for number in range(count):
        block = memoryview(data)[number * _MAX_ZSTD_BLOCK : (number + 1) * _MAX_ZSTD_BLOCK]
        head = (len(block) << 3) | (number == count - 1)
        parts += [head.to_bytes(3, "little"), block]
    return b"".join(parts)
