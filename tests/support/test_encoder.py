"""The encoder against native readers, worked examples and the corpus against itself."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

from tests.support.corpus import (
    CASES,
    LITTLE,
    Case,
    array,
    extension,
    sharding,
    write_case,
)
from tests.support.encoder import (
    EMPTY,
    Layout,
    encode,
    encode_array,
    named,
)
from tests.support.parametrize import every_case


def read_zarr(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(zarr.open_array(str(path), mode="r")[...])


def read_tensorstore(path: Path) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


READERS: dict[str, Callable[[Path], np.ndarray]] = {"zarr": read_zarr, "tensorstore": read_tensorstore}

UNKNOWN_GRIDS = {case.name for case in CASES if named(case.document["chunk_grid"])[0] != "regular"}
TRANSFORMED = {case.name for case in CASES if case.document.get("storage_transformers")}
UNKNOWN_SPELLINGS = {
    "keys-default-short",
    "keys-v2-short",
    "short-names",
    "endian",
    "endian-big",
    "ignored-codecs",
    "ignored-codec-after",
    "opaque-codec",
    "zero-bytes",
    "opaque-serializer",
}
ZARR_CHECKS_THE_INNER_SHAPE_BEFORE_THE_TRANSPOSE = {
    "transpose-201",
    "transpose-120",
    "transpose-10",
    "transpose-twice",
    "transpose-hoisted-and-inner",
    "transpose-two-levels",
    "transpose-three-levels",
    "transpose-4d",
    "after-everything",
    "dimension-names-transpose",
}
TENSORSTORE_TAKES_NO_CODEC_AFTER_SHARDING = {
    "0d-nested",
    "nested-2-between-gzip",
    "nested-2-between-zstd",
    "nested-2-between-blosc",
    "nested-2-between-crc32c",
    "nested-2-between-gzip-crc32c",
    "nested-2-start-between",
    "nested-3-between",
    "transpose-three-levels",
    "transpose-between-only",
    "after-gzip",
    "after-crc32c",
    "after-gzip-crc32c",
    "after-crc32c-zstd",
    "after-blosc",
    "after-gzip-index-start",
    "after-everything",
    "stored-beyond-nested",
}
TENSORSTORE_TAKES_NO_MUST_UNDERSTAND_IN_EXTENSIONS = {"known-need-not-be-understood", "must-understand-true"}
REFUSED = {
    "zarr": UNKNOWN_GRIDS | TRANSFORMED | UNKNOWN_SPELLINGS | ZARR_CHECKS_THE_INNER_SHAPE_BEFORE_THE_TRANSPOSE,
    "tensorstore": UNKNOWN_GRIDS
    | TRANSFORMED
    | UNKNOWN_SPELLINGS
    | TENSORSTORE_TAKES_NO_CODEC_AFTER_SHARDING
    | TENSORSTORE_TAKES_NO_MUST_UNDERSTAND_IN_EXTENSIONS
    | {"type-datetime64", "type-string", "dimension-names-repeated"},
}


def assert_same(read: np.ndarray, expected: np.ndarray) -> None:
    assert (read.shape, read.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "T":
        assert read.tolist() == expected.tolist()
    else:
        assert read.tobytes() == expected.tobytes()


@every_case
@pytest.mark.parametrize("reader", READERS)
def test_a_native_reader_sees_the_values_or_is_known_to_refuse(case: Case, reader: str, tmp_path: Path) -> None:
    encoded = write_case(case, tmp_path)
    if case.name in REFUSED[reader]:
        with pytest.raises((ValueError, TypeError, KeyError)):
            READERS[reader](tmp_path)
    else:
        assert_same(READERS[reader](tmp_path), encoded.values)


def test_enough_is_read_natively() -> None:
    names = {case.name for case in CASES}
    for refused in REFUSED.values():
        assert refused <= names
    assert len(names - REFUSED["zarr"]) >= 125
    assert len(names - REFUSED["tensorstore"]) >= 115
    assert len(names - (REFUSED["zarr"] & REFUSED["tensorstore"])) >= 135


def respelled(codecs: Sequence[Any]) -> list[dict[str, Any]]:
    """The same codecs in words that native readers know."""
    plain = []
    for name, configuration in map(named, codecs):
        if name == "example.hint":
            continue
        if name == "example.raw":
            plain.append(LITTLE)
            continue
        lists = {key: respelled(configuration[key]) for key in ("codecs", "index_codecs") if key in configuration}
        plain.append(extension({"endian": "bytes"}.get(name, name), **configuration | lists))
    return plain


def entries(*pairs: tuple[int, int]) -> bytes:
    return struct.pack(f"<{2 * len(pairs)}Q", *(number for pair in pairs for number in pair))


EMPTY_ENTRY = (EMPTY, EMPTY)


@pytest.mark.parametrize(
    ("values", "absent", "layout", "location", "shard"),
    [
        ([1, 2, 3, 4], [], Layout(), "end", b"\1\2\3\4" + entries((0, 2), (2, 2))),
        ([1, 2, 3, 4], [], Layout(), "start", entries((32, 2), (34, 2)) + b"\1\2\3\4"),
        ([1, 2, 3, 4], [(0,)], Layout(), "end", b"\3\4" + entries(EMPTY_ENTRY, (0, 2))),
        ([1, 2, 3, 4], [], Layout("reversed"), "end", b"\3\4\1\2" + entries((2, 2), (0, 2))),
        ([1, 2, 3, 4], [], Layout("reversed"), "start", entries((34, 2), (32, 2)) + b"\3\4\1\2"),
        ([1, 2, 1, 2], [], Layout(shared=True), "end", b"\1\2" + entries((0, 2), (0, 2))),
        ([1, 2, 1, 2], [], Layout(), "end", b"\1\2\1\2" + entries((0, 2), (2, 2))),
        ([1, 2, 3], [], Layout(), "end", b"\1\2\3\7" + entries((0, 2), (2, 2))),
        ([1, 2], [], Layout(), "end", b"\1\2" + entries((0, 2), EMPTY_ENTRY)),
        ([1, 2], [], Layout(store_beyond=True), "end", b"\1\2\7\7" + entries((0, 2), (2, 2))),
        ([1, 2], [(0,)], Layout(keep_empty_shards=True), "end", b"\xff" * 32),
        ([1, 2], [(0,)], Layout(keep_empty_shards=True), "start", b"\xff" * 32),
        ([1, 2], [(0,)], Layout(), "end", None),
    ],
)
def test_a_shard_byte_for_byte(
    values: list[int], absent: list[tuple[int]], layout: Layout, location: str, shard: bytes | None
) -> None:
    codec = sharding((2,), extension("bytes"), index_codecs=[LITTLE], index_location=location)
    document = array((len(values),), (4,), codec, data_type="uint8", fill_value=7)
    encoded = encode(document, np.array(values, np.uint8), frozenset(absent), layout)
    assert encoded.files.get("c/0") == shard


@pytest.mark.parametrize("location", ["start", "end"])
def test_gaps_and_a_foreign_prefix_move_payloads_and_nothing_else(location: str) -> None:
    codec = sharding((2,), extension("bytes"), index_codecs=[LITTLE], index_location=location)
    document = array((4,), (4,), codec, data_type="uint8")
    layout = Layout(gaps=True, foreign_prefix=0 if location == "start" else 20)
    shard = encode(document, np.array([1, 2, 3, 4], np.uint8), layout=layout).files["c/0"]
    index = shard[:32] if location == "start" else shard[-32:]
    first, first_size, second, second_size = struct.unpack("<4Q", index)
    assert (first_size, second_size) == (2, 2)
    assert shard[first : first + 2] == b"\1\2"
    assert shard[second : second + 2] == b"\3\4"
    assert first > (32 if location == "start" else 20)
    assert second > first + 2


def test_the_specifications_own_sizes_and_the_checksums_check_value() -> None:
    document = array((64, 64), (64, 64), sharding((32, 32)), data_type="uint8")
    stored = encode(document, np.ones((64, 64), np.uint8)).files["c/0/0"]
    assert len(stored) == 64 * 64 + 68
    digits = np.frombuffer(b"123456789", np.uint8)
    assert encode_array(["bytes", "crc32c"], digits) == b"123456789" + bytes.fromhex("839206e3")
