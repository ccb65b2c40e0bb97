"""Zarr v2 of every codec, data type and layout, as zarr-python 2 writes it: packed for all libraries, or refused."""

import base64
import bz2
import json
import lzma
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from shardfs.errors import CorruptionError
from shardfs.format.lens.v2_decoder import V2Decoder
from tests.bulk.test_pack import pack, refuse
from tests.support.clients import ZARR2
from tests.support.commands import run
from tests.support.readers import read_tensorstore

COMPRESSORS = [None, *({"id": name} for name in ("blosc", "zstd", "gzip", "lz4", "zlib", "bz2", "lzma"))]
RAW = {"id": "lzma", "format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 1}]}
FILTERS: dict[str, list[dict[str, Any]]] = {
    "<i4": [{"id": "delta", "dtype": "<i4"}, {"id": "shuffle", "elementsize": 4}],
    ">i4": [{"id": "delta", "dtype": ">i4"}],
    "|u1": [{"id": "delta", "dtype": "|u1", "astype": "<i2"}],
    "<f8": [{"id": "fixedscaleoffset", "scale": 10, "offset": 0, "dtype": "<f8", "astype": "<i4"}],
    ">f8": [
        {"id": "quantize", "digits": 3, "dtype": ">f8"},
        {"id": "astype", "encode_dtype": ">f4", "decode_dtype": ">f8"},
    ],
    "<f4": [{"id": "bitround", "keepbits": 10}],
    "|b1": [{"id": "packbits"}],
}
CHECKSUMS = ["crc32", "adler32", "crc32c", "fletcher32", "jenkins_lookup3"]
TYPES = ["|b1", "|i1", "<u2", ">i8", "<f2", ">f8", "<c8", ">c16"]
ZARR_TYPES = ["|S5", "<U4", ">U3", "<M8[ns]", ">M8[D]", "<m8[s]"]
"""Types that tensorstore does not know in v3."""
STRUCT = [["a", ">i4"], ["b", "<f8"]]

SMALL = {"shape": [9, 10], "chunks": [2, 5]}
ARRAYS: dict[str, dict[str, Any]] = {
    **{f"compressor-{c and c['id']}": {"dtype": "<f8", "compressor": c} for c in (*COMPRESSORS, RAW)},
    **{f"C-{dtype}": {"dtype": dtype, "filters": filters} for dtype, filters in FILTERS.items()},
    **{f"F-{dtype}": {"dtype": dtype, "filters": filters, "order": "F"} for dtype, filters in FILTERS.items()},
    **{name: {"dtype": "<f8", "filters": [{"id": name}], "compressor": {"id": "zstd"}} for name in CHECKSUMS},
    **{f"type-{dtype}": {"dtype": dtype} for dtype in (*TYPES, *ZARR_TYPES)},
    "order": {"dtype": ">f8", "order": "F", "compressor": {"id": "lz4"}},
    "nested": {"dtype": "<i4", "separator": "/"},
    "text": {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "lz4"}},
    "struct": {"dtype": STRUCT},
    "point": {"dtype": "<i4", "shape": [], "chunks": [], "compressor": {"id": "bz2"}},
    "empty": {"dtype": "<i4", "shape": [0, 10], "compressor": {"id": "lz4"}},
    "few": {"dtype": "<i4", "shape": [3, 3], "compressor": {"id": "zlib"}},
}  # fmt: skip
WRITE = """
import json, numcodecs, numpy, sys, zarr
found, root, arrays = sys.argv[1:]
group, values = zarr.open_group(root, mode="w"), {}
group.attrs["title"] = "ä"
get = lambda config: config and numcodecs.get_codec(dict(config))
for name, array in json.loads(arrays).items():
    dtype = [tuple(field) for field in array["dtype"]] if isinstance(array["dtype"], list) else array["dtype"]
    made = group.create(
        name, shape=array["shape"], chunks=array["chunks"], dtype=dtype, order=array.get("order", "C"),
        compressor=get(array.get("compressor")), filters=[get(f) for f in array.get("filters", ())] or None,
        dimension_separator=array.get("separator", "."), fill_value="" if dtype == "|O" else 0,
    )
    made.attrs["name"] = name
    data = numpy.random.default_rng(1).integers(0, 100, array["shape"])
    if dtype == "|b1":
        data = data % 2
    if isinstance(dtype, list):
        data = numpy.array([(n, n / 2) for n in data.ravel()], dtype).reshape(data.shape)
    made[...] = data.astype(str).astype(object) if dtype == "|O" else data.astype(dtype)
    values[name] = made[...]
zarr.consolidate_metadata(group.store)
numpy.savez(found, **values)
"""


@pytest.mark.slow
@pytest.mark.client
def test_every_codec_and_data_type_of_v2_is_packed_for_every_library(tmp_path: Path) -> None:
    arrays = json.dumps({name: SMALL | array for name, array in ARRAYS.items()})
    values = ZARR2.arrays(WRITE, tmp_path, tmp_path / "source", arrays)
    assert values.keys() == ARRAYS.keys()
    said = pack(tmp_path / "source", tmp_path / "packed")
    one = "10 chunks in 1 shard of 5 × 2"
    assert f"adler32: {one}, 800 bytes without compression, transcoded from adler32, zstd to bytes, zstd\n" in said
    assert f"text: {one}, about 1,600 bytes without compression, transcoded from lz4 to vlen-utf8, zstd\n" in said
    assert f"type-<U4, type->c16: {one}, 1,600 bytes without compression, copied encoded\n" in said
    packed = zarr.open_group(tmp_path / "packed", mode="r", zarr_format=3)
    assert dict(packed.attrs) == {"title": "ä"}
    for name, expected in values.items():
        path = tmp_path / "packed" / name
        if name == "struct":  # zarr-python cannot read those of its own in shards
            for field in expected.dtype.names:
                assert np.array_equal(read_tensorstore(path, field=field), expected[field])
            continue
        read = np.asarray(packed[name][...])
        others = []
        if name != "type->c16":  # of which zarrs swaps the parts
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                others.append(np.asarray(zarr.open_array(path, mode="r")[...]))
        if ARRAYS[name]["dtype"] not in (*ZARR_TYPES, "|O"):
            others.append(read_tensorstore(path))
        for found in (read, *others):
            assert found.tolist() == expected.tolist(), name
        assert dict(packed[name].attrs) == {"name": name}
    pack(tmp_path / "source", tmp_path / "transcoded", "--shards", "2", "--codecs", "gzip")
    for made in ("packed", "transcoded"):
        done = run("verify", "--jobs", "1", tmp_path / "source", tmp_path / made)
        assert done.returncode == 0, str(done)


UNKNOWN = [
    {"id": "pickle"},
    {"id": "foreign"},
    {"id": "delta", "dtype": "|O"},
    {"id": "lzma", "format": 9},
    RAW | {"filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 2**40}]},
]


def test_a_codec_that_cannot_be_decoded_is_refused_with_the_array_that_has_it(tmp_path: Path) -> None:
    zarray = {"zarr_format": 2, "shape": [8], "chunks": [1], "dtype": "<i4", "order": "C", "fill_value": 0}
    (tmp_path / "source/array").mkdir(parents=True)
    for codec in UNKNOWN:
        (tmp_path / "source/array/.zarray").write_text(json.dumps(zarray | {"compressor": codec, "filters": None}))
        said = refuse(tmp_path, tmp_path / "source", tmp_path / "packed")
        assert said.startswith(f"nothing was written: array: the codec '{codec['id']}' ")
        assert said.endswith("; change what cannot be packed, or move it out of SOURCE")


def test_chunks_in_directories_that_the_document_does_not_tell_of_are_refused_with_the_way_out(tmp_path: Path) -> None:
    zarray = {"zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "|u1", "order": "C", "fill_value": 0}
    document = tmp_path / "source/array/.zarray"
    (document.parent / "0").mkdir(parents=True)
    (document.parent / "0/1").write_bytes(bytes([5, 6, 7, 8]))
    document.write_text(json.dumps(zarray | {"compressor": None, "filters": None}))
    said = refuse(tmp_path, tmp_path / "source", tmp_path / "packed")
    assert 'does not say that chunk keys have slashes: add "dimension_separator": "/" to it' in said
    document.write_text(json.dumps(zarray | {"compressor": None, "filters": None, "dimension_separator": "/"}))
    pack(tmp_path / "source", tmp_path / "packed")
    assert zarr.open_array(tmp_path / "packed/array")[:2, 2:].tolist() == [[5, 6], [7, 8]]


BOMB = bytes(2**24)


@pytest.mark.parametrize(
    ("codec", "bombs"),
    [
        ({"id": "zlib"}, lambda: [zlib.compress(BOMB)]),
        ({"id": "bz2"}, lambda: [bz2.compress(BOMB)]),
        ({"id": "lzma"}, lambda: [lzma.compress(BOMB)]),
        ({"id": "lz4"}, lambda: [struct.pack("<I", 2**31 - 1) + bytes(8), struct.pack("<i", -1) + bytes(8), b"abc"]),
        ({"id": "packbits"}, lambda: [BOMB, b""]),
        ({"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<c16"}, lambda: [BOMB]),
        *(({"id": name}, lambda: [b"abc", b""]) for name in CHECKSUMS),
        ({"id": "shuffle", "elementsize": 4}, lambda: [b"abc"]),
    ],
    ids=lambda value: value["id"] if isinstance(value, dict) else "",
)
def test_a_damaged_chunk_is_damage_however_much_it_says_it_has(
    codec: dict[str, Any], bombs: Callable[[], list[bytes]]
) -> None:
    zarray = {"dtype": "<i4", "chunks": [64], "order": "C", "filters": None, "compressor": codec}
    decode = V2Decoder.of(zarray)
    damaged = bombs()
    if codec["id"] not in ("packbits", "astype"):
        values = np.arange(64, dtype="<i4").tobytes()
        sound = bytes(numcodecs.get_codec(dict(codec)).encode(values))
        assert bytes(decode(sound)) == values
        damaged += [sound[: len(sound) // 2], sound[:-1]]
    for data in damaged:
        with pytest.raises(CorruptionError):
            decode(data)


def test_a_node_with_a_name_that_v3_forbids_is_named_with_the_way_out(tmp_path: Path) -> None:
    root = tmp_path / "source"
    for name in ("", "sound", "group", "group/zarr.json", "group/zarr.json/deeper"):
        (root / name).mkdir()
        (root / name / ".zgroup").write_text('{"zarr_format": 2}')
    done = run("pack", root, tmp_path / "packed")
    assert done.returncode == 1, str(done)
    assert "group/zarr.json" in done.stderr
    assert "rename it" in done.stderr
    assert not (tmp_path / "packed/group/zarr.json").is_dir()
    assert (tmp_path / "packed/sound/zarr.json").is_file()


def test_missing_elements_of_a_struct_of_any_byte_order_are_packed_as_the_fill_value_that_they_have(
    tmp_path: Path,
) -> None:
    dtype = np.dtype([("a", ">i4"), ("b", "<i2"), ("c", ">f8")])
    fill = np.array([(7, 3, 0.5)], dtype)
    zarray = {
        "zarr_format": 2, "shape": [8], "chunks": [1], "dtype": [["a", ">i4"], ["b", "<i2"], ["c", ">f8"]],
        "order": "C", "fill_value": base64.b64encode(fill.tobytes()).decode(), "compressor": None, "filters": None,
    }  # fmt: skip
    source = tmp_path / "source/array"
    source.mkdir(parents=True)
    (source / ".zarray").write_text(json.dumps(zarray))
    values = np.array([(n, -n, n / 4) for n in range(8)], dtype)
    values[3] = fill[0]
    for n in (0, 1, 2, 4, 5, 6, 7):
        (source / str(n)).write_bytes(values[n : n + 1].tobytes())
    pack(source.parent, tmp_path / "packed")
    for field in ("a", "b", "c"):
        assert read_tensorstore(tmp_path / "packed/array", field=field).tolist() == values[field].tolist()


@pytest.mark.parametrize("order", ["<", ">"])
def test_fields_of_several_elements_are_no_raw_bytes_but_refused_by_name(tmp_path: Path, order: str) -> None:
    zarray = {
        "zarr_format": 2, "shape": [8], "chunks": [1], "dtype": [["p", f"{order}f4", [2]], ["q", ">i2"]],
        "order": "C", "fill_value": None, "compressor": None, "filters": None,
    }  # fmt: skip
    (tmp_path / "source/array").mkdir(parents=True)
    (tmp_path / "source/array/.zarray").write_text(json.dumps(zarray))
    assert "the field 'p' of the dtype has no Zarr v3 form" in refuse(
        tmp_path, tmp_path / "source", tmp_path / "packed"
    )
