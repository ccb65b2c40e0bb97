"""The encoder against native readers, worked examples and the corpus against itself."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

from tests.support.corpus import (
    BASE,
    BROKEN,
    CASES,
    LITTLE,
    Case,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
    write_case,
)
from tests.support.encoder import (
    EMPTY,
    SHARDING,
    Layout,
    chunk_edges,
    chunk_key,
    element,
    encode,
    encode_array,
    named,
    numpy_dtype,
    shards,
    window,
)
from tests.support.parametrize import each_case, every_case


def read_zarr(path: Path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(zarr.open_array(str(path), mode="r")[...])


def read_tensorstore(path: Path) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


READERS: dict[str, Callable[[Path], np.ndarray]] = {"zarr": read_zarr, "tensorstore": read_tensorstore}

UNKNOWN_GRIDS = {case.name for case in CASES if named(case.document["chunk_grid"])[0] != "regular"}
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
    "zarr": UNKNOWN_GRIDS | UNKNOWN_SPELLINGS | ZARR_CHECKS_THE_INNER_SHAPE_BEFORE_THE_TRANSPOSE,
    "tensorstore": UNKNOWN_GRIDS
    | UNKNOWN_SPELLINGS
    | TENSORSTORE_TAKES_NO_CODEC_AFTER_SHARDING
    | TENSORSTORE_TAKES_NO_MUST_UNDERSTAND_IN_EXTENSIONS
    | {"type-datetime64", "type-string", "dimension-names-repeated"},
}
OPAQUE = {"opaque-codec", "zero-bytes"}


def assert_same(read: np.ndarray, expected: np.ndarray) -> None:
    assert (read.shape, read.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "T":
        assert read.tolist() == expected.tolist()
    else:
        assert read.tobytes() == expected.tobytes()


def named_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


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


def peeled(codecs: Sequence[Any], axes: Sequence[int]) -> tuple[list[int], list[Any]]:
    """What the transposes at the head of a chain leave: permuted axes, and the rest of the chain."""
    axes, rest = list(axes), list(codecs)
    while rest and named(rest[0])[0] == "transpose":
        axes = [axes[axis] for axis in named(rest.pop(0))[1]["order"]]
    return axes, rest


def read_by_any(directory: Path, document: Mapping[str, Any], files: Mapping[str, bytes]) -> list[np.ndarray]:
    """What every reader that takes the document makes of it."""
    for key, data in files.items() | {("zarr.json", json.dumps(document).encode())}:
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(data)
    results = []
    for read in READERS.values():
        try:
            results.append(read(directory))
        except (ValueError, TypeError):
            continue
    return results


@each_case(case for case in CASES if case.name not in OPAQUE)
def test_each_shard_alone_is_a_regular_array(case: Case, tmp_path: Path) -> None:
    """Covers what no native reader opens as a whole: each shard is read as an array of one chunk."""
    encoded = case.encode()
    document = case.document
    axes, codecs = peeled(respelled(document["codecs"]), range(case.values.ndim))
    fill_value = element(document["fill_value"], numpy_dtype(document["data_type"]))
    keys = set()
    for coordinates, origin, shape in shards(document):
        key = chunk_key(document, coordinates)
        if key not in encoded.files:
            continue
        keys.add(key)
        expected = np.full(shape, fill_value, fill_value.dtype)
        part = encoded.values[window(origin, shape)]
        expected[window((0,) * part.ndim, part.shape)] = part
        expected = np.ascontiguousarray(expected.transpose(axes)) if axes else expected
        alone = array(
            expected.shape,
            expected.shape,
            *codecs,
            data_type=document["data_type"],
            fill_value=document["fill_value"],
        )
        stored = {"/".join(["c", *"0" * len(shape)]): encoded.files[key]}
        results = read_by_any(tmp_path / key, alone, stored)
        assert results
        for result in results:
            assert_same(result, expected)
    assert keys == set(encoded.files)


@each_case(case for case in CASES if case.name not in OPAQUE)
def test_inner_chunks_are_the_chunks_of_an_unsharded_array(case: Case, tmp_path: Path) -> None:
    encoded = case.encode()
    axes, codecs = list(range(case.values.ndim)), respelled(case.document["codecs"])
    while SHARDING in (codec["name"] for codec in codecs):
        axes, (codec, *_) = peeled(codecs, axes)
        inner_shape, codecs = codec["configuration"]["chunk_shape"], codec["configuration"]["codecs"]
    chunk_shape = [inner_shape[axes.index(axis)] for axis in range(len(axes))]
    document = array(
        case.values.shape,
        chunk_shape,
        *([transpose(*axes)] if axes else []),
        *codecs,
        data_type=case.document["data_type"],
        fill_value=case.document["fill_value"],
    )
    stored = {"/".join(["c", *map(str, coordinates)]): data for coordinates, data in encoded.inner.items()}
    results = read_by_any(tmp_path, document, stored)
    assert results
    for result in results:
        assert_same(result, encoded.values)


def test_an_opaque_codec_is_applied_to_every_inner_chunk() -> None:
    opaque = named_case("opaque-codec")
    plain = array((7, 11), (4, 6), sharding((2, 3)))
    inverted = {place: bytes(255 - byte for byte in data) for place, data in opaque.encode().inner.items()}
    assert inverted == encode(plain, opaque.values).inner
    nothing = named_case("zero-bytes")
    assert nothing.encode().inner == dict.fromkeys(inverted.keys() - nothing.absent, b"")


@every_case
def test_inner_chunks_lie_in_their_shards_unless_wrapped(case: Case) -> None:
    encoded = case.encode()
    codecs = respelled(case.document["codecs"])
    wrapped = False
    while SHARDING in (names := [codec["name"] for codec in codecs]):
        at = names.index(SHARDING)
        wrapped = wrapped or any(name != "crc32c" for name in names[at + 1 :])
        codecs = codecs[at]["configuration"]["codecs"]
    if not wrapped:
        for data in encoded.inner.values():
            assert any(data in shard for shard in encoded.files.values())


@every_case
def test_a_case_is_well_formed_and_encodes_the_same_twice(case: Case) -> None:
    first, second = case.encode(), case.encode()
    assert (first.files, first.inner) == (second.files, second.inner)
    assert not case.absent & first.inner.keys()
    everything = encode(case.document, case.values, layout=case.layout).inner.keys()
    assert case.absent <= everything
    assert first.inner.keys() == everything - case.absent
    assert json.loads(json.dumps(case.document)) == case.document
    assert case.why


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


def test_offsets_in_an_enclosed_shard_count_from_its_own_beginning() -> None:
    bare = [LITTLE]
    codec = sharding((2,), sharding((1,), extension("bytes"), index_codecs=bare), index_codecs=bare)
    document = array((4,), (4,), codec, data_type="uint8")
    first = b"\1\2" + entries((0, 1), (1, 1))
    second = b"\3\4" + entries((0, 1), (1, 1))
    stored = encode(document, np.array([1, 2, 3, 4], np.uint8)).files["c/0"]
    assert stored == first + second + entries((0, 34), (34, 34))


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


@pytest.mark.parametrize(
    ("extent", "grid", "edges"),
    [
        (10, extension("regular", chunk_shape=[4]), [4, 4, 4]),
        (0, extension("regular", chunk_shape=[4]), []),
        (10, regular_bounded(4), [4, 4, 2]),
        (8, regular_bounded(4), [4, 4]),
        (3, regular_bounded(4), [3]),
        (0, regular_bounded(4), []),
        (10, rectilinear(3), [3, 3, 3, 3]),
        (6, rectilinear(4), [4, 4]),
        (6, rectilinear([1, 2, 3]), [1, 2, 3]),
        (6, rectilinear([[4, 2]]), [4, 4]),
        (6, rectilinear([[1, 3], 3]), [1, 1, 1, 3]),
        (6, rectilinear([4, 4, 4]), [4, 4, 4]),
        (6, rectilinear([1, [2, 1], 3]), [1, 2, 3]),
        (0, rectilinear([4, 2]), [4, 2]),
    ],
)
def test_chunk_edges(extent: int, grid: dict[str, Any], edges: list[int]) -> None:
    assert chunk_edges(array((extent,), grid)) == [edges]


@pytest.mark.parametrize(
    ("encoding", "coordinates", "key"),
    [
        ("default", (1, 23, 45), "c/1/23/45"),
        (extension("default", separator="."), (1, 23, 45), "c.1.23.45"),
        (extension("default", separator="."), (), "c"),
        ("default", (), "c"),
        ("v2", (1, 23, 45), "1.23.45"),
        (extension("v2", separator="/"), (1, 23, 45), "1/23/45"),
        (extension("v2", separator="/"), (), "0"),
        ("v2", (7,), "7"),
    ],
)
def test_chunk_keys(encoding: Any, coordinates: tuple[int, ...], key: str) -> None:
    assert chunk_key({"chunk_key_encoding": encoding}, coordinates) == key


def test_names_are_unique_and_every_broken_document_differs_from_the_sound_one() -> None:
    for names in ([case.name for case in CASES], [broken.name for broken in BROKEN]):
        assert len(set(names)) == len(names)
    for broken in BROKEN:
        stored = json.dumps(broken.document)
        assert stored != json.dumps(BASE)
        assert json.dumps(json.loads(stored)) == stored
        assert broken.why


def test_the_sound_document_is_sound(tmp_path: Path) -> None:
    values = np.arange(77, dtype=np.int32).reshape(7, 11)
    encoded = encode(BASE, values)
    results = read_by_any(tmp_path, BASE, encoded.files)
    assert len(results) == len(READERS)
    for result in results:
        assert_same(result, values)


def test_gzip_carries_no_time() -> None:
    encoded = encode_array([LITTLE, extension("gzip", level=5)], np.arange(4))
    assert encoded[4:8] == bytes(4)
