"""Named arrays for every corner of the format, and documents that must not be shown unsharded."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.encoder import Coordinates, Encoded, Layout, encode, numpy_dtype


@dataclass(frozen=True)
class Case:
    """An array to be stored, and why it is here."""

    name: str
    document: dict[str, Any]
    values: np.ndarray
    absent: frozenset[Coordinates]
    layout: Layout
    why: str

    def encode(self) -> Encoded:
        return encode(self.document, self.values, self.absent, self.layout)


@dataclass(frozen=True)
class Broken:
    """A document that is shown as stored.

    `legal` tells the two reasons apart: the specification allows it, but it has no unsharded form that is known
    here (an unknown extension, a codec that cannot be hoisted). Everything else breaks a rule.
    """

    name: str
    document: Any
    legal: bool
    why: str


def write_case(case: Case, directory: Path) -> Encoded:
    """Write `zarr.json` and the shards of a case as files."""
    encoded = case.encode()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "zarr.json").write_text(json.dumps(case.document, indent=2))
    for key, data in encoded.files.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return encoded


def extension(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


C_ORDER = Layout()
LITTLE = extension("bytes", endian="little")
BIG = extension("bytes", endian="big")
CRC32C = extension("crc32c")
GZIP = extension("gzip", level=5)
ZSTD = extension("zstd", level=3, checksum=False)
BLOSC = extension("blosc", cname="zstd", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)
IGNORED = {"name": "example.hint", "configuration": {"colour": "blue"}, "must_understand": False}


def transpose(*order: int) -> dict[str, Any]:
    return extension("transpose", order=list(order))


def sharding(
    chunk_shape: Sequence[int], *codecs: Any, index_codecs: Sequence[Any] = (LITTLE, CRC32C), **members: Any
) -> dict[str, Any]:
    """A sharding codec; inner chunks are plain little-endian bytes if no codecs are given."""
    inner = {"chunk_shape": list(chunk_shape), "codecs": list(codecs or (LITTLE,))}
    return extension("sharding_indexed", **inner, index_codecs=list(index_codecs), **members)


def array(shape: Sequence[int], grid: Any, *codecs: Any, **members: Any) -> dict[str, Any]:
    """An array document; `grid` is a shard shape, or a whole chunk grid."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "int32",
        "chunk_grid": grid if isinstance(grid, dict) else extension("regular", chunk_shape=list(grid)),
        "chunk_key_encoding": extension("default", separator="/"),
        "fill_value": 0,
        "codecs": list(codecs),
        **members,
    }


def rectilinear(*chunk_shapes: Any) -> dict[str, Any]:
    return extension("rectilinear", kind="inline", chunk_shapes=list(chunk_shapes))


def regular_bounded(*chunk_shape: int) -> dict[str, Any]:
    return extension("zarrs.regular_bounded", chunk_shape=list(chunk_shape))


def ramp(shape: Sequence[int], data_type: Any) -> np.ndarray:
    """Values that differ from element to element, as far as the data type can tell them apart."""
    dtype = numpy_dtype(data_type)
    count = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    if dtype.kind == "b":
        return count * 5 % 7 < 3
    if dtype.kind == "c":
        return (count - 0.25j * count).astype(dtype)
    if dtype.kind == "T":
        return np.array([f"µ{number}" * (number % 4) for number in count.flat], dtype).reshape(shape)
    if dtype.kind == "i":
        count = count * np.where(count % 3, 1, -1)
    return count.astype(dtype)


def case(
    name: str,
    why: str,
    document: dict[str, Any],
    absent: Iterable[Coordinates] = (),
    layout: Layout = C_ORDER,
    values: np.ndarray | None = None,
) -> Case:
    if values is None:
        values = ramp(document["shape"], document["data_type"])
    return Case(name, document, values, frozenset(absent), layout, why)


def dimensions() -> Iterator[Case]:
    yield case("0d", "no axes: key `c`, one entry", array((), (), sharding(())))
    yield case(
        "0d-v2", "no axes: key `0`", array((), (), sharding(()), chunk_key_encoding=extension("v2", separator="."))
    )
    yield case(
        "0d-nested",
        "no axes, two levels",
        array((), (), sharding((), sharding((), LITTLE, GZIP), ZSTD, index_location="start")),
    )
    yield case("1d", "even", array((12,), (6,), sharding((2,))))
    yield case("1d-ragged", "the last shard and the last inner chunk overhang", array((17,), (8,), sharding((4,))))
    yield case("1d-single-chunk", "one shard holds one inner chunk", array((10,), (5,), sharding((5,))))
    yield case("1d-small", "the shape is smaller than one inner chunk", array((3,), (8,), sharding((4,))))
    yield case("2d", "even", array((8, 6), (4, 6), sharding((2, 3), LITTLE, GZIP)))
    yield case("2d-ragged", "ragged along both axes", array((7, 11), (4, 6), sharding((2, 3), LITTLE, ZSTD)))
    yield case("2d-single-chunk", "shards of one inner chunk", array((5, 7), (4, 3), sharding((4, 3))))
    yield case(
        "2d-many-digits", "coordinates with two digits", array((3, 26), (2, 6), sharding((1, 2)), data_type="uint8")
    )
    yield case("3d", "no two lengths alike", array((4, 6, 10), (4, 6, 5), sharding((2, 3, 5), LITTLE, BLOSC)))
    yield case("3d-ragged", "ragged along all axes", array((5, 7, 9), (4, 4, 6), sharding((2, 4, 3))))
    yield case("4d-ragged", "ragged along some axes", array((3, 4, 5, 2), (2, 4, 4, 2), sharding((1, 2, 2, 1))))
    yield case("5d-ragged", "five axes", array((2, 3, 2, 5, 3), (2, 2, 2, 4, 2), sharding((1, 2, 1, 2, 2))))
    yield case("zero-length", "an axis of length 0 has no chunks", array((0,), (4,), sharding((2,))))
    yield case("zero-length-2d", "one of two axes has length 0", array((6, 0), (4, 4), sharding((2, 2))))


def shard_indexes() -> Iterator[Case]:
    for location, endian, checksums in product(("start", "end"), ("little", "big"), range(3)):
        index_codecs = [extension("bytes", endian=endian), *[CRC32C] * checksums]
        codec = sharding((2, 3), LITTLE, GZIP, index_codecs=index_codecs, index_location=location)
        yield case(
            f"index-{location}-{endian}-{checksums}-crc32c",
            "every place, byte order and number of checksums",
            array((7, 8), (4, 6), codec),
            absent=[(1, 1)],
        )
    for order, location in product(((2, 0, 1), (1, 0, 2), (2, 1, 0)), ("end", "start")):
        codec = sharding((2, 2), index_codecs=[transpose(*order), LITTLE, CRC32C], index_location=location)
        yield case(
            f"index-transpose-{''.join(map(str, order))}-{location}",
            "the index array itself is permuted; (2, 3) inner chunks tell the axes apart",
            array((7, 11), (4, 6), codec),
            absent=[(0, 1)],
        )
    codec = sharding((2, 2), index_codecs=[transpose(1, 2, 0), transpose(2, 1, 0), BIG, CRC32C, CRC32C])
    yield case("index-two-transposes", "permutations compose", array((8, 12), (4, 6), codec), absent=[(3, 5)])


def nested() -> Iterator[Case]:
    two = sharding((8, 6), sharding((2, 3), LITTLE, GZIP))
    yield case("nested-2", "offsets are relative to the enclosing shard", array((20, 13), (16, 12), two))
    yield case(
        "nested-2-absent",
        "an empty entry at either level",
        array((20, 13), (16, 12), two),
        absent=[(0, 0), (5, 3), *product(range(4, 8), (0, 1))],
    )
    three = sharding((8, 8), sharding((4, 4), sharding((2, 1), LITTLE, CRC32C)))
    yield case("nested-3", "three levels", array((18, 9), (16, 8), three))
    mixed = sharding(
        (8, 8),
        sharding(
            (4, 4),
            sharding((2, 1), BIG, index_codecs=[BIG, CRC32C, CRC32C], index_location="end"),
            index_codecs=[LITTLE],
            index_location="start",
        ),
        index_codecs=[transpose(2, 0, 1), BIG],
        index_location="start",
    )
    yield case("nested-3-mixed", "every level with an index of its own kind", array((18, 9), (16, 8), mixed))
    for name, between in {
        "gzip": [GZIP],
        "zstd": [ZSTD],
        "blosc": [extension("blosc", cname="lz4", clevel=1, shuffle="noshuffle", typesize=1, blocksize=0)],
        "crc32c": [CRC32C],
        "gzip-crc32c": [GZIP, CRC32C],
    }.items():
        codec = sharding((8, 6), sharding((2, 3), LITTLE, ZSTD), *between)
        yield case(
            f"nested-2-between-{name}",
            "the enclosed shard is decoded whole before its index is read",
            array((20, 13), (16, 12), codec),
            absent=[(1, 1)],
        )
    codec = sharding((8, 8), sharding((4, 4), sharding((2, 1), LITTLE), GZIP, CRC32C), ZSTD)
    yield case("nested-3-between", "codecs at both seams", array((18, 9), (16, 8), codec))
    start = sharding(
        (8, 6), sharding((2, 3), index_location="start"), GZIP, CRC32C, index_location="start", index_codecs=[BIG]
    )
    yield case("nested-2-start-between", "index at the start inside codecs", array((20, 13), (16, 12), start))
    same = sharding((4, 6), sharding((4, 6), sharding((2, 3))))
    yield case("nested-3-equal-shapes", "shards that hold a single shard", array((7, 11), (4, 6), same))


def transposes() -> Iterator[Case]:
    cube = (5, 9, 13)
    shard = (4, 6, 10)
    rolled = sharding((5, 2, 3), LITTLE, GZIP)
    why = "index and inner shape live in permuted axes; [2, 0, 1] is not its own inverse"
    yield case("transpose-201", why, array(cube, shard, transpose(2, 0, 1), rolled))
    yield case("transpose-120", why, array(cube, shard, transpose(1, 2, 0), sharding((3, 5, 2), LITTLE)))
    yield case("transpose-10", "two axes", array((7, 11), (4, 6), transpose(1, 0), sharding((3, 2))))
    yield case(
        "transpose-even",
        "the inner shape divides the shard either way, so a missing permutation goes unnoticed by its shape",
        array((13, 9, 17), (4, 6, 12), transpose(2, 0, 1), sharding((2, 2, 2), LITTLE, GZIP)),
        absent=[(0, 1, 2)],
    )
    yield case("transpose-identity", "nothing to hoist", array((7, 11), (4, 6), transpose(0, 1), sharding((2, 3))))
    yield case(
        "transpose-0d", "a permutation of nothing", array((), (), transpose(), sharding((), transpose(), LITTLE))
    )
    yield case(
        "transpose-twice",
        "two transposes in one chain compose, in their order",
        array(cube, shard, transpose(2, 0, 1), transpose(0, 2, 1), sharding((5, 3, 2))),
    )
    yield case(
        "transpose-cancels",
        "the composed permutation is the identity",
        array(cube, shard, transpose(2, 0, 1), transpose(1, 2, 0), sharding((2, 3, 5))),
    )
    yield case(
        "transpose-inner",
        "nothing hoisted: the transpose belongs to the innermost codecs",
        array(cube, shard, sharding((2, 3, 5), transpose(2, 0, 1), LITTLE)),
    )
    yield case(
        "transpose-hoisted-and-inner",
        "the hoisted transpose stands before the innermost one",
        array(cube, shard, transpose(2, 0, 1), sharding((5, 2, 3), transpose(0, 2, 1), BIG, ZSTD)),
    )
    yield case(
        "transpose-two-levels",
        "both levels permute; neither inverts the other",
        array(cube, (4, 6, 20), transpose(2, 0, 1), sharding((10, 4, 6), transpose(0, 2, 1), sharding((5, 3, 2)))),
        absent=[(0, 1, 1), (2, 2, 0)],
    )
    yield case(
        "transpose-three-levels",
        "permutations at three levels and in the innermost codecs, a codec between",
        array(
            cube,
            (4, 12, 20),
            transpose(2, 0, 1),
            sharding(
                (10, 4, 12),
                transpose(2, 0, 1),
                sharding((6, 5, 4), transpose(1, 0, 2), sharding((5, 3, 2), transpose(2, 1, 0), LITTLE), GZIP),
                index_codecs=[transpose(3, 0, 1, 2), LITTLE, CRC32C],
                index_location="start",
            ),
        ),
    )
    yield case(
        "transpose-between-only",
        "the outer shard is not permuted, the enclosed one is",
        array(cube, (8, 6, 10), sharding((4, 6, 10), transpose(1, 2, 0), sharding((3, 5, 2)), CRC32C)),
    )
    yield case(
        "transpose-4d",
        "four axes of four lengths",
        array((3, 4, 6, 5), (2, 4, 6, 5), transpose(3, 1, 0, 2), sharding((5, 2, 1, 3))),
    )


def around_the_shard() -> Iterator[Case]:
    plain = sharding((2, 3), LITTLE)
    why = "codecs after the sharding codec: the shard is decoded whole"
    yield case("after-gzip", why, array((7, 11), (4, 6), plain, GZIP), absent=[(1, 1)])
    yield case("after-crc32c", why, array((7, 11), (4, 6), plain, CRC32C))
    yield case("after-gzip-crc32c", why, array((7, 11), (4, 6), plain, GZIP, CRC32C))
    yield case("after-crc32c-zstd", why, array((7, 11), (4, 6), plain, CRC32C, ZSTD))
    yield case("after-blosc", why, array((7, 11), (4, 6), plain, BLOSC))
    yield case("after-gzip-index-start", why, array((7, 11), (4, 6), sharding((2, 3), index_location="start"), GZIP))
    yield case(
        "after-everything",
        "transpose before, codecs between and after",
        array((7, 11), (4, 6), transpose(1, 0), sharding((6, 4), sharding((3, 2)), GZIP), ZSTD, CRC32C),
        absent=[(0, 0)],
    )


def chunk_grids() -> Iterator[Case]:
    yield case("rectilinear-edges", "lists of edges", array((12, 9), rectilinear([2, 6, 4], [6, 3]), sharding((2, 3))))
    yield case("rectilinear-runs", "runs", array((12, 9), rectilinear([[4, 3]], [[3, 2], [3, 1]]), sharding((2, 3))))
    yield case(
        "rectilinear-mixed",
        "edges and runs in one list",
        array((14, 12), rectilinear([2, [4, 2], [2, 1], 2], [[3, 2], 6]), sharding((2, 3), LITTLE, GZIP)),
        absent=[(0, 0), (3, 2)],
    )
    yield case(
        "rectilinear-bare", "bare integers, one of them ragged", array((10, 9), rectilinear(4, 3), sharding((2, 3)))
    )
    yield case("rectilinear-bare-and-list", "either spelling", array((10, 9), rectilinear(4, [6, 3]), sharding((2, 3))))
    yield case(
        "rectilinear-overflow",
        "the last edge overhangs and is stored at full size",
        array((9, 7), rectilinear([2, 8], [6, 3]), sharding((2, 3))),
    )
    yield case(
        "rectilinear-trailing",
        "edges wholly beyond the extent, as a shrink leaves them",
        array((3, 7), rectilinear([2, 4, [2, 3]], [3, 3, 6, 3]), sharding((2, 3))),
    )
    yield case(
        "rectilinear-trailing-stored",
        "inner chunks and whole shards that a shrink left behind",
        array((3, 7), rectilinear([2, 4, [2, 2]], [3, 3, 6, 3]), sharding((2, 3))),
        layout=Layout(store_beyond=True),
    )
    yield case("rectilinear-1d", "no two edges alike", array((30,), rectilinear([3, 12, 6, 9]), sharding((3,))))
    yield case(
        "rectilinear-zero-length",
        "length 0 under edges, and under a bare integer",
        array((0, 0), rectilinear([4, 2], 4), sharding((2, 2))),
    )
    yield case("rectilinear-0d", "no axes", array((), rectilinear(), sharding(())))
    yield case(
        "rectilinear-transpose",
        "edges are in array axes, the inner shape is not",
        array((10, 9, 7), rectilinear([2, 8], [6, 3], [[5, 2]]), transpose(2, 0, 1), sharding((5, 2, 3))),
        absent=[(2, 1, 0)],
    )
    yield case(
        "rectilinear-nested",
        "every edge divides by both inner shapes",
        array((20, 13), rectilinear([8, 16], [[6, 2], 6]), sharding((8, 6), sharding((2, 3)), GZIP), CRC32C),
    )
    yield case(
        "rectilinear-v2-keys",
        "grid and keys are independent",
        array((12, 9), rectilinear([2, 6, 4], [6, 3]), sharding((2, 3)), chunk_key_encoding=extension("v2")),
    )
    yield case("bounded", "edges are clipped to the extent", array((10, 9), regular_bounded(4, 6), sharding((2, 3))))
    yield case("bounded-even", "nothing to clip", array((8, 12), regular_bounded(4, 6), sharding((2, 3))))
    yield case("bounded-small", "one clipped shard", array((2, 3), regular_bounded(8, 6), sharding((2, 3))))
    yield case("bounded-zero-length", "no shards", array((0, 3), regular_bounded(4, 6), sharding((2, 3))))
    yield case(
        "bounded-transpose",
        "clipped shards, permuted",
        array((10, 9), regular_bounded(4, 6), transpose(1, 0), sharding((3, 2), BIG), GZIP),
        absent=[(4, 2)],
    )


def chunk_keys() -> Iterator[Case]:
    codec = sharding((2, 3))
    for name, encoding in {
        "default-slash": extension("default", separator="/"),
        "default-dot": extension("default", separator="."),
        "default-plain": extension("default"),
        "default-short": "default",
        "v2-slash": extension("v2", separator="/"),
        "v2-dot": extension("v2", separator="."),
        "v2-plain": extension("v2"),
        "v2-short": "v2",
    }.items():
        yield case(
            f"keys-{name}",
            "separators, and their defaults `/` and `.`",
            array((7, 11), (4, 6), codec, chunk_key_encoding=encoding),
        )
    for name in ("default", "v2"):
        for separator in "/.":
            encoding = extension(name, separator=separator)
            yield case(
                f"keys-{name}{separator.replace('/', '-slash').replace('.', '-dot')}-1d",
                "one coordinate",
                array((22,), (8,), sharding((2,)), chunk_key_encoding=encoding),
            )
    yield case(
        "keys-default-dot-0d",
        "`c`, whatever the separator",
        array((), (), sharding(()), chunk_key_encoding=extension("default", separator=".")),
    )


def spellings() -> Iterator[Case]:
    short = sharding((2, 3), "bytes", "crc32c", index_codecs=[LITTLE, "crc32c"])
    yield case(
        "short-names", "names for objects, at every place", array((7, 11), (4, 6), short, "crc32c", data_type="uint8")
    )
    empty = {"name": "crc32c", "configuration": {}}
    yield case(
        "empty-configuration",
        "an object for a name",
        array((7, 11), (4, 6), sharding((2, 3), LITTLE, empty, index_codecs=[LITTLE, empty])),
    )
    endian = extension("endian", endian="little")
    yield case(
        "endian",
        "the accepted proposal's example",
        array((7, 11), (4, 6), sharding((2, 3), endian, GZIP, index_codecs=[endian, CRC32C])),
    )
    big = extension("endian", endian="big")
    yield case(
        "endian-big",
        "the old name, big endian, at two levels",
        array((20, 13), (16, 12), sharding((8, 6), sharding((2, 3), big, index_codecs=[big]), index_codecs=[big])),
    )
    ignored = sharding(
        (8, 6),
        sharding((2, 3), LITTLE, IGNORED, GZIP, index_codecs=[LITTLE, IGNORED, CRC32C]),
        IGNORED,
        index_codecs=[LITTLE, CRC32C, IGNORED],
    )
    yield case(
        "ignored-codecs",
        "unknown codecs that need not be understood: innermost, between, after and in an index",
        array((20, 13), (16, 12), ignored, IGNORED, CRC32C),
    )
    yield case(
        "ignored-codec-after",
        "an unknown codec after sharding leaves the shard as it is",
        array((7, 11), (4, 6), sharding((2, 3)), IGNORED),
    )
    optional = GZIP | {"must_understand": False}
    yield case(
        "known-need-not-be-understood",
        "a known codec is applied, whatever it says",
        array((7, 11), (4, 6), sharding((2, 3), LITTLE, optional), optional),
    )
    explicit = [codec | {"must_understand": True} for codec in (LITTLE, CRC32C)]
    yield case(
        "must-understand-true",
        "the default, written out in codecs, grid and key encoding",
        array(
            (7, 11),
            extension("regular", chunk_shape=[4, 6]) | {"must_understand": True},
            sharding((2, 3), *explicit, index_codecs=explicit) | {"must_understand": True},
            chunk_key_encoding=extension("default", separator="/") | {"must_understand": True},
        ),
    )
    yield case(
        "ignored-member",
        "unknown members that need not be understood are kept",
        array(
            (7, 11),
            (4, 6),
            sharding((2, 3)),
            **{"example.note": {"must_understand": False, "text": ["kept", 1.5, None]}},
        ),
    )
    yield case(
        "opaque-codec",
        "an unknown innermost bytes → bytes codec passes",
        array((7, 11), (4, 6), sharding((2, 3), LITTLE, extension("example.invert"))),
    )
    yield case(
        "zero-bytes",
        "an entry with nbytes 0 is a file of 0 bytes, not an absent one",
        array((7, 11), (4, 6), sharding((2, 3), LITTLE, extension("example.nothing"))),
        absent=[(1, 1)],
    )
    yield case(
        "opaque-serializer",
        "an unknown innermost array → bytes codec passes: no known one is needed",
        array((7, 11), (4, 6), sharding((2, 3), extension("example.raw", flavour="plain"), GZIP)),
    )


def data_types() -> Iterator[Case]:
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for data_type in ["bool", *integers, "float16", "float32", "float64", "complex64", "complex128"]:
        fill_value = {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(np.dtype(data_type).kind, 0)
        yield case(
            f"type-{data_type}",
            "big endian, so that the element size shows",
            array((5, 4), (4, 4), sharding((2, 2), BIG), data_type=data_type, fill_value=fill_value),
            absent=[(1, 1)],
        )
    yield case(
        "type-datetime64",
        "a data type that is an object, big endian",
        array(
            (5, 4),
            (4, 4),
            sharding((2, 2), BIG),
            data_type=extension("numpy.datetime64", unit="s", scale_factor=10),
            fill_value="NaT",
        ),
        absent=[(1, 1)],
    )
    yield case(
        "type-string",
        "elements of variable size, and a serializer that is opaque here",
        array((5, 4), (4, 4), sharding((2, 2), extension("vlen-utf8"), ZSTD), data_type="string", fill_value="-"),
        absent=[(1, 1)],
    )
    for name, data_type, fill_value in [
        ("nan", "float32", "NaN"),
        ("nan-float16", "float16", "NaN"),
        ("infinity", "float64", "Infinity"),
        ("minus-infinity", "float32", "-Infinity"),
        ("minus-zero", "float64", -0.0),
        ("hex-nan", "float32", "0x7fc01234"),
        ("hex-float64", "float64", "0x7ff8000000000001"),
        ("fraction", "float32", 0.1),
        ("complex-nan", "complex64", ["NaN", "-Infinity"]),
        ("complex-hex", "complex128", ["0x7ff8000000000001", 1.5]),
        ("true", "bool", True),
        ("uint64-max", "uint64", 2**64 - 1),
        ("int64-min", "int64", -(2**63)),
    ]:
        yield case(
            f"fill-{name}",
            "padding and absent inner chunks show it; the document keeps its spelling",
            array((5, 4), (4, 4), sharding((2, 2), LITTLE), data_type=data_type, fill_value=fill_value),
            absent=[(0, 1), (2, 0)],
        )


def layouts() -> Iterator[Case]:
    document = array((7, 11), (4, 6), sharding((2, 3), LITTLE, GZIP))
    start = array((7, 11), (4, 6), sharding((2, 3), LITTLE, GZIP, index_location="start"))
    two = array((20, 13), (16, 12), sharding((8, 6), sharding((2, 3), LITTLE, ZSTD)))
    three = array((18, 9), (16, 8), sharding((8, 8), sharding((4, 4), sharding((2, 1), index_location="start"))))
    constant = np.full((7, 11), 5, np.int32)
    yield case("reversed", "payloads against C order", document, layout=Layout(order="reversed"))
    yield case("reversed-start", "the same behind an index", start, layout=Layout(order="reversed"))
    yield case("gaps", "unused bytes between payloads", document, layout=Layout(gaps=True), absent=[(1, 1)])
    yield case("gaps-start", "unused bytes after the index too", start, layout=Layout(gaps=True))
    yield case("gaps-nested", "unused bytes at every level", three, layout=Layout("reversed", gaps=True))
    yield case("foreign-prefix", "another format's header", document, layout=Layout(foreign_prefix=64))
    yield case("foreign-prefix-nested", "it moves the outer offsets only", two, layout=Layout(foreign_prefix=13))
    yield case("shared", "two entries, one range", document, layout=Layout(shared=True), values=constant)
    yield case(
        "shared-nested",
        "equal enclosed shards are stored once",
        two,
        layout=Layout(shared=True, gaps=True),
        values=np.full((20, 13), 5, np.int32),
    )
    yield case(
        "everything-at-once",
        "prefix, gaps, reversed order and shared ranges",
        document,
        layout=Layout("reversed", gaps=True, foreign_prefix=32, shared=True, store_beyond=True),
        values=constant,
        absent=[(0, 2)],
    )
    yield case(
        "stored-beyond",
        "inner chunks wholly beyond the shape are tolerated, and have no file",
        array((5, 7), (4, 6), sharding((1, 2))),
        layout=Layout(store_beyond=True),
    )
    yield case(
        "stored-beyond-nested",
        "so are whole enclosed shards",
        array((5, 7), (16, 12), sharding((4, 6), sharding((2, 3)), GZIP)),
        layout=Layout(store_beyond=True),
    )


def absences() -> Iterator[Case]:
    document = array((7, 11), (4, 6), sharding((2, 3), LITTLE, GZIP), fill_value=-7)
    two = array((20, 13), (16, 12), sharding((8, 6), sharding((2, 3))), fill_value=-7)
    everything = list(product(range(4), range(4)))
    first_shard = list(product((0, 1), (0, 1)))
    yield case("absent-chunks", "an empty entry has no file", document, absent=[(0, 0), (1, 2), (3, 3)])
    yield case("absent-shard", "a shard without inner chunks is no object", document, absent=first_shard)
    yield case(
        "empty-index",
        "an object that holds nothing but an empty index",
        document,
        absent=first_shard,
        layout=Layout(keep_empty_shards=True),
    )
    start = array((7, 11), (4, 6), sharding((2, 3), index_location="start", index_codecs=[BIG]))
    yield case(
        "empty-index-start", "the same, all bytes 255", start, absent=first_shard, layout=Layout(keep_empty_shards=True)
    )
    yield case("absent-all", "not one shard", document, absent=everything)
    yield case("empty-indexes-only", "nothing but empty indexes", document, everything, Layout(keep_empty_shards=True))
    enclosed = list(product(range(4), range(2)))
    yield case("absent-enclosed-shard", "an empty entry for a whole enclosed shard", two, absent=enclosed)
    yield case(
        "empty-enclosed-index",
        "an enclosed shard that holds nothing but its index",
        two,
        absent=enclosed,
        layout=Layout(keep_empty_shards=True),
    )
    yield case(
        "stored-fill-value",
        "a stored inner chunk full of the fill value is a file like any other",
        document,
        values=np.full((7, 11), -7, np.int32),
        absent=[(0, 0)],
    )


def documents() -> Iterator[Case]:
    codec = sharding((2, 3), LITTLE, GZIP)
    attributes = {
        "big": 2**64,
        "bigger": -(10**40),
        "float": 1.0,
        "tiny": 1e-320,
        "text": "µm \u0000 \U0001f52c",
        "nested": {"codecs": [{"name": "sharding_indexed"}], "null": None},
    }
    yield case(
        "attributes", "large integers and odd strings survive", array((7, 11), (4, 6), codec, attributes=attributes)
    )
    for name, names in {"named": ["y", "x"], "null": [None, "x"], "repeated": ["x", "x"]}.items():
        yield case(f"dimension-names-{name}", "kept as they are", array((7, 11), (4, 6), codec, dimension_names=names))
    yield case(
        "dimension-names-transpose",
        "names follow the array's axes, not the shard's",
        array((7, 11), (4, 6), transpose(1, 0), sharding((3, 2)), dimension_names=["y", None]),
    )
    yield case("no-transformers", "an empty list is none", array((7, 11), (4, 6), codec, storage_transformers=[]))


def indexed(chunks_per_shard: Sequence[int], **members: Any) -> list[Any]:
    """`storage_transformers` of the first draft of ZEP 2."""
    return [{"configuration": {"chunks_per_shard": list(chunks_per_shard)}, **(members or {"type": "indexed"})}]


def storage_transformers() -> Iterator[Case]:
    draft = {"extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0", "type": "indexed"}
    yield case(
        "indexed",
        "as the draft has it; chunks and shards beyond the array",
        array((7, 11), (2, 3), LITTLE, GZIP, storage_transformers=indexed((2, 2), **draft)),
        absent=[(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)],
    )
    yield case(
        "indexed-name",
        "an extension as final v3 has them, flat keys, names of axes",
        array(
            (7, 11),
            (2, 3),
            BIG,
            chunk_key_encoding=extension("v2", separator="."),
            storage_transformers=indexed((1, 4), name="indexed"),
            dimension_names=["y", "x"],
        ),
        layout=Layout(order="reversed", gaps=True),
    )
    yield case("indexed-0d", "no axes", array((), (), LITTLE, storage_transformers=indexed(())))
    yield case(
        "indexed-nested",
        "what is packed are shards themselves, of transposed chunks",
        array((9, 14), (4, 6), transpose(1, 0), sharding((3, 2)), storage_transformers=indexed((2, 1))),
    )


CASES: tuple[Case, ...] = (
    *dimensions(),
    *shard_indexes(),
    *nested(),
    *transposes(),
    *around_the_shard(),
    *chunk_grids(),
    *chunk_keys(),
    *spellings(),
    *data_types(),
    *layouts(),
    *absences(),
    *documents(),
    *storage_transformers(),
)


BASE = array((7, 11), (4, 6), sharding((2, 3), LITTLE, GZIP))
SHARD = ("codecs", 0, "configuration")
"""Where the configuration of the base document's sharding codec stands."""
MISSING = object()


def edited(path: Sequence[str | int], value: Any, base: Mapping[str, Any] = BASE) -> dict[str, Any]:
    """A copy of the base document with one value replaced, added or removed."""
    document = deepcopy(dict(base))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def broken(name: str, why: str, path: Sequence[str | int], value: Any, legal: bool = False) -> Broken:
    return Broken(name, edited(path, value), legal, why)


def broken_shards() -> Iterator[Broken]:
    for name, why, value in [
        ("not-dividing", "the inner shape must divide the shard shape", [2, 4]),
        ("larger-than-shard", "an inner chunk larger than its shard", [8, 6]),
        ("rank-low", "one length too few", [2]),
        ("rank-high", "one length too many", [2, 3, 1]),
        ("rank-none", "no lengths at all", []),
        ("zero", "a length of 0", [2, 0]),
        ("negative", "a negative length", [2, -3]),
        ("float", "not integers", [2.0, 3.0]),
        ("bool", "true is not 1", [True, 3]),
        ("string", "not integers", ["2", "3"]),
        ("scalar", "not an array", 2),
        ("null", "not an array", None),
        ("missing", "required", MISSING),
    ]:
        yield broken(f"chunk_shape-{name}", why, (*SHARD, "chunk_shape"), value)
    for name, why, value in [
        ("missing", "required", MISSING),
        ("empty", "no array → bytes codec", []),
        ("two-serializers", "two array → bytes codecs", [LITTLE, LITTLE]),
        ("no-serializer", "no array → bytes codec, and nothing unknown that could be one", [GZIP]),
        ("sharding-and-bytes", "two array → bytes codecs", [sharding((2, 3)), LITTLE]),
        ("late-transpose", "array → array after array → bytes", [LITTLE, transpose(1, 0)]),
        ("early-gzip", "bytes → bytes before array → bytes", [GZIP, LITTLE]),
        ("object", "not a list", LITTLE),
        ("numbers", "not codecs", [1, 2]),
        ("null", "not a list", None),
        ("nameless", "a codec without a name", [{"configuration": {"endian": "little"}}]),
        ("name-number", "a name is a string", [{"name": 7}]),
        ("configuration-list", "a configuration is an object", [{"name": "bytes", "configuration": ["little"]}]),
    ]:
        yield broken(f"inner-codecs-{name}", why, (*SHARD, "codecs"), value)
    for name, why, value in [
        ("missing", "required", MISSING),
        ("empty", "no array → bytes codec", []),
        ("gzip", "variable size", [LITTLE, GZIP]),
        ("zstd", "variable size", [LITTLE, ZSTD, CRC32C]),
        ("blosc", "variable size", [LITTLE, BLOSC]),
        ("sharding", "variable size", [sharding((1, 1, 2))]),
        ("two-serializers", "two array → bytes codecs", [LITTLE, BIG]),
        ("no-serializer", "no array → bytes codec", [CRC32C]),
        ("early-crc32c", "bytes → bytes before array → bytes", [CRC32C, LITTLE]),
        ("endian-other", "neither little nor big", [extension("bytes", endian="middle")]),
        ("no-endian", "entries of 8 bytes need a byte order", ["bytes", "crc32c"]),
        ("transpose-rank", "the index has one axis more than the shard", [transpose(1, 0), LITTLE]),
        ("transpose-repeated", "not a permutation", [transpose(0, 0, 1), LITTLE]),
        ("object", "not a list", LITTLE),
        ("null", "not a list", None),
    ]:
        yield broken(f"index_codecs-{name}", why, (*SHARD, "index_codecs"), value)
    unknown = [LITTLE, extension("example.invert")]
    yield broken("index_codecs-unknown", "cannot be decoded", (*SHARD, "index_codecs"), unknown, legal=True)
    for name, value in {"middle": "middle", "upper-case": "End", "null": None, "number": 0}.items():
        yield broken(f"index_location-{name}", "neither start nor end", (*SHARD, "index_location"), value)
    yield broken("sharding-short", "a configuration is required", ("codecs", 0), "sharding_indexed")
    yield broken("sharding-unconfigured", "a configuration is required", ("codecs", 0, "configuration"), MISSING)
    yield broken("sharding-configuration-list", "not an object", ("codecs", 0, "configuration"), [])
    yield broken("sharding-configuration-null", "not an object", ("codecs", 0, "configuration"), None)


def broken_chains() -> Iterator[Broken]:
    codec = sharding((2, 3))
    for name, why, codecs in [
        ("missing", "required", MISSING),
        ("null", "not a list", None),
        ("object", "not a list", codec),
        ("string", "not a list", "sharding_indexed"),
        ("empty", "no array → bytes codec", []),
        ("numbers", "not codecs", [codec, 5]),
        ("nested-list", "not codecs", [[codec]]),
        ("two-serializers", "two array → bytes codecs", [codec, LITTLE]),
        ("serializer-first", "two array → bytes codecs", [LITTLE, codec]),
        ("sharding-twice", "two array → bytes codecs", [codec, sharding((1, 1))]),
        ("early-gzip", "bytes → bytes before array → bytes", [GZIP, codec]),
        ("late-transpose", "array → array after array → bytes", [codec, transpose(1, 0)]),
        ("transpose-repeated", "not a permutation", [transpose(0, 0), codec]),
        ("transpose-too-high", "not a permutation", [transpose(1, 2), codec]),
        ("transpose-negative", "not a permutation, though numpy takes it", [transpose(-1, 0), codec]),
        ("transpose-rank-low", "not a permutation of all axes", [transpose(0), codec]),
        ("transpose-rank-high", "more axes than there are", [transpose(0, 1, 2), codec]),
        ("transpose-strings", "not integers", [extension("transpose", order=["1", "0"]), codec]),
        ("transpose-bools", "true is not 1", [extension("transpose", order=[True, False]), codec]),
        ("transpose-floats", "not integers", [extension("transpose", order=[1.0, 0.0]), codec]),
        ("transpose-F", "no longer supported by the specification", [extension("transpose", order="F"), codec]),
        ("transpose-missing", "the order is required", [{"name": "transpose", "configuration": {}}, codec]),
        ("transpose-short", "the order is required", ["transpose", codec]),
        ("permuted-not-dividing", "divides the shard only before it is permuted", [transpose(1, 0), sharding((2, 3))]),
        ("nested-not-dividing", "at the second level", [sharding((4, 6), sharding((3, 3)))]),
        ("nested-rank", "at the second level", [sharding((4, 6), sharding((2, 3, 1)))]),
        ("nested-index-gzip", "at the second level", [sharding((4, 6), sharding((2, 3), index_codecs=[LITTLE, GZIP]))]),
        ("nested-index-location", "at the second level", [sharding((4, 6), sharding((2, 3), index_location="mid"))]),
        ("nested-missing-codecs", "at the second level", [sharding((4, 6), extension("sharding_indexed"))]),
        ("must_understand-string", "not a boolean", [codec, IGNORED | {"must_understand": "false"}]),
    ]:
        yield broken(f"codecs-{name}", why, ("codecs",), codecs)
    delta = extension("numcodecs.delta", dtype="<i4")
    cast = extension("cast_value", data_type="int16")
    unknown = extension("example.invert")
    for name, why, codecs in [
        ("delta-before", "cannot be hoisted", [delta, codec]),
        ("cast-before", "cannot be hoisted", [cast, codec]),
        ("delta-before-transpose", "cannot be hoisted", [delta, transpose(1, 0), sharding((3, 2))]),
        ("delta-between", "cannot be hoisted, at the second level", [sharding((4, 6), delta, codec)]),
        ("unknown-before", "cannot be hoisted", [extension("example.shift"), codec]),
        ("unknown-after", "the shard cannot be decoded", [codec, unknown]),
        ("unknown-after-short", "the shard cannot be decoded", [codec, "example.invert"]),
        ("unknown-between", "the enclosed shard cannot be decoded", [sharding((4, 6), codec, unknown)]),
        ("unknown-must-understand", "true is the default", [codec, unknown | {"must_understand": True}]),
    ]:
        yield broken(f"codecs-{name}", why, ("codecs",), codecs, legal=True)


def broken_grids() -> Iterator[Broken]:
    def regular(value: Any) -> dict[str, Any]:
        return {"name": "regular", "configuration": {"chunk_shape": value}}

    for name, why, grid in [
        ("missing", "required", MISSING),
        ("null", "not an extension", None),
        ("number", "not an extension", 4),
        ("short", "a configuration is required", "regular"),
        ("unconfigured", "a configuration is required", {"name": "regular"}),
        ("nameless", "a name is required", {"configuration": {"chunk_shape": [4, 6]}}),
        ("rank", "one length too few", regular([4])),
        ("zero", "a length of 0", regular([4, 0])),
        ("negative", "a negative length", regular([4, -6])),
        ("float", "not integers", regular([4.0, 6.0])),
        ("bool", "true is not 1", regular([True, 6])),
        ("scalar", "not an array", regular(4)),
        ("no-chunk_shape", "required", {"name": "regular", "configuration": {"shape": [4, 6]}}),
        ("rectilinear-no-kind", "required", extension("rectilinear", chunk_shapes=[[8], [12]])),
        ("rectilinear-kind", "not inline", extension("rectilinear", kind="external", chunk_shapes=[[8], [12]])),
        ("rectilinear-no-edges", "chunk_shapes is required", extension("rectilinear", kind="inline")),
        ("rectilinear-short", "a configuration is required", "rectilinear"),
        ("rectilinear-rank", "one axis too few", rectilinear([8])),
        ("rectilinear-edge-zero", "edges are at least 1", rectilinear([8, 0], [12])),
        ("rectilinear-edge-negative", "edges are at least 1", rectilinear([-4, 12], [12])),
        ("rectilinear-bare-zero", "edges are at least 1", rectilinear(0, 6)),
        ("rectilinear-edge-float", "not integers", rectilinear([4.0, 4.0], [12])),
        ("rectilinear-edge-bool", "true is not 1", rectilinear([True, 8], [12])),
        ("rectilinear-edge-string", "not integers", rectilinear(["8"], [12])),
        ("rectilinear-short-sum", "the edges must cover the extent", rectilinear([4, 2], [12])),
        ("rectilinear-empty-axis", "the edges must cover the extent", rectilinear([], [12])),
        ("rectilinear-run-short-sum", "the edges must cover the extent", rectilinear([[2, 3]], [12])),
        ("rectilinear-run-count-zero", "a run of nothing", rectilinear([8, [4, 0]], [12])),
        ("rectilinear-run-count-negative", "a run of less than nothing", rectilinear([8, [4, -1]], [12])),
        ("rectilinear-run-edge-zero", "edges are at least 1", rectilinear([8, [0, 2]], [12])),
        ("rectilinear-run-of-three", "a run is a pair", rectilinear([[4, 2, 1]], [12])),
        ("rectilinear-run-of-one", "a run is a pair", rectilinear([[8]], [12])),
        ("rectilinear-run-nested", "a run holds integers", rectilinear([[[4, 1], 2]], [12])),
        ("rectilinear-null-axis", "neither integer nor list", rectilinear(None, [12])),
        ("rectilinear-not-dividing", "every edge divides by the inner shape", rectilinear([4, 3], [12])),
        ("rectilinear-trailing-not-dividing", "one beyond the extent, too", rectilinear([8, 3], [12])),
        ("bounded-not-dividing", "the clipped edges 3 and 5 do not divide", regular_bounded(4, 6)),
        ("bounded-rank", "one length too few", regular_bounded(4)),
        ("bounded-zero", "a length of 0", regular_bounded(4, 0)),
        ("unknown-ignored", "a grid must always be understood", {"name": "example.spiral", "must_understand": False}),
    ]:
        yield broken(f"grid-{name}", why, ("chunk_grid",), grid)
    for name, grid in {"unknown": extension("example.spiral", turns=3), "unknown-short": "example.spiral"}.items():
        yield broken(f"grid-{name}", "no way to find a chunk", ("chunk_grid",), grid, legal=True)


def broken_documents() -> Iterator[Broken]:
    for name, why, shape in [
        ("missing", "required", MISSING),
        ("null", "not an array", None),
        ("scalar", "not an array", 7),
        ("string", "not an array", "7,11"),
        ("strings", "not integers", ["7", "11"]),
        ("negative", "a negative length", [7, -11]),
        ("bool", "true is not 1", [True, 11]),
        ("float", "not integers", [7.0, 11.0]),
        ("fraction", "not integers", [7.5, 11]),
        ("null-length", "not an integer", [7, None]),
        ("nested", "not integers", [[7, 11]]),
        ("rank", "the grid has two axes", [7, 11, 2]),
    ]:
        yield broken(f"shape-{name}", why, ("shape",), shape)
    for name, value in {"2": 2, "4": 4, "string": "3", "bool": True, "null": None, "missing": MISSING}.items():
        yield broken(f"zarr_format-{name}", "must be the integer 3", ("zarr_format",), value)
    for name, value in {"other": "table", "null": None, "missing": MISSING}.items():
        yield broken(f"node_type-{name}", "must be array or group", ("node_type",), value)
    for name, why, value in [
        ("missing", "required", MISSING),
        ("null", "not an extension", None),
        ("separator", "neither / nor .", extension("default", separator="-")),
        ("separator-empty", "neither / nor .", extension("v2", separator="")),
        ("separator-null", "neither / nor .", extension("default", separator=None)),
        (
            "unknown-ignored",
            "a key encoding must always be understood",
            {"name": "example.hash", "must_understand": False},
        ),
    ]:
        yield broken(f"keys-{name}", why, ("chunk_key_encoding",), value)
    unknown = extension("example.hash")
    yield broken("keys-unknown", "no way to name a chunk", ("chunk_key_encoding",), unknown, legal=True)
    yield broken("data_type-missing", "required", ("data_type",), MISSING)
    yield broken("fill_value-missing", "required", ("fill_value",), MISSING)
    for name, why, value in [
        ("rank", "one name too few", ["x"]),
        ("number", "names are strings or null", ["x", 1]),
        ("string", "not an array", "xy"),
    ]:
        yield broken(f"dimension_names-{name}", why, ("dimension_names",), value)
    for name, value in {"list": [], "string": "{}"}.items():
        yield broken(f"attributes-{name}", "must be an object", ("attributes",), value)
    yield broken("transformers-object", "not a list", ("storage_transformers",), {"name": "example.cache"})
    for name, why, value in [
        ("used", "keys and bytes may be altered", [extension("example.cache")]),
        ("short", "keys and bytes may be altered", ["example.cache"]),
    ]:
        yield broken(f"transformers-{name}", why, ("storage_transformers",), value, legal=True)
    plain = array((7, 11), (2, 3), LITTLE)
    for name, value in {
        "no-configuration": [{"type": "indexed"}],
        "text": [{"type": "indexed", "configuration": "text"}],
        "empty": [{"type": "indexed", "configuration": {}}],
        "rank": indexed((2,)),
        "zero": indexed((2, 0)),
        "fraction": [{"type": "indexed", "configuration": {"chunks_per_shard": [2.0, 2]}}],
        "large": indexed((2**40, 2**40)),
        "huge": indexed((2**62, 2**62)),
        "member": [{**indexed((2, 2))[0], "chunks": 3}],
        "option": [{"type": "indexed", "configuration": {"chunks_per_shard": [2, 2], "index": "start"}}],
        "twice": [*indexed((2, 2)), *indexed((2, 2))],
        "beside": ["example.cache", *indexed((2, 2))],
        "names": indexed((2, 2), type="indexed", name="other"),
        "extension": indexed((2, 2), type="indexed", extension="https://example.com/other"),
    }.items():
        yield Broken(f"indexed-{name}", {**plain, "storage_transformers": value}, False, "what is packed is not told")
    grid = {"chunk_grid": rectilinear([4, 3], 6), "storage_transformers": indexed((2, 2))}
    yield Broken("indexed-rectilinear", {**plain, **grid}, False, "shards of a varying grid are not told")
    for name, value in {
        "object": {"name": "example.note"},
        "true": {"must_understand": True},
        "not-a-boolean": {"must_understand": 0},
        "string": "text",
        "number": 3,
        "null": None,
        "list": [{"must_understand": False}],
    }.items():
        yield broken(f"member-{name}", "unknown, and must be understood", ("example.note",), value, legal=True)
    for name, value in {"list": [BASE], "string": "array", "null": None, "number": 3, "empty": {}}.items():
        yield Broken(f"document-{name}", value, False, "an array document is an object with mandatory members")


BROKEN: tuple[Broken, ...] = (*broken_shards(), *broken_chains(), *broken_grids(), *broken_documents())
