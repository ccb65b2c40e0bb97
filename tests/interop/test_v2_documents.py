"""Chunks of Zarr v3 under the documents of Zarr v2 that describe them, as zarr-python 2 reads and edits them."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardfs.format.lens import NO_CONTEXT
from shardfs.format.lens.show import shown_by
from shardfs.format.lens.v2 import V2, array_documents, edit_array
from shardfs.format.metadata import parse_array
from tests.support.clients import ZARR2, read_zarr2
from tests.support.corpus import BIG, CRC32C, GZIP, LITTLE, array, extension, transpose

SHAPE, CHUNK_SHAPE, SEPARATOR = (7, 6), (4, 3), "."
REVERSED = transpose(1, 0)
ZSTD = extension("zstd", level=3, checksum=True)
BLOSC = extension("blosc", typesize=2, cname="lz4", clevel=5, shuffle="bitshuffle", blocksize=0)


def numcodec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": f"numcodecs.{name}", "configuration": configuration}


def fields(*types: tuple[str, Any]) -> dict[str, Any]:
    return extension("structured", fields=[list(field) for field in types])


COMPRESSORS: dict[str, dict[str, Any]] = {
    **{"zlib": {"level": 3}, "bz2": {"level": 3}, "lzma": {"preset": 1}, "lz4": {"acceleration": 2}},
    **{
        "zstd": {"level": 2},
        "gzip": {"level": 2},
        "blosc": {"cname": "zstd", "clevel": 3, "shuffle": 1, "blocksize": 0},
    },
    **{"crc32": {"location": "end"}, "adler32": {"location": "start"}, "fletcher32": {}, "jenkins_lookup3": {}},
}
CODECS: dict[str, list[dict[str, Any]]] = {
    "plain": [LITTLE],
    "big": [BIG],
    "gzip": [LITTLE, GZIP],
    "zstd": [BIG, ZSTD],
    "blosc": [LITTLE, BLOSC],
    "crc32c": [LITTLE, CRC32C],
    "two": [LITTLE, GZIP, CRC32C],
    "three": [REVERSED, BIG, BLOSC, ZSTD, CRC32C],
    "reversed": [REVERSED, LITTLE, ZSTD],
    "twice": [REVERSED, REVERSED, LITTLE],
    **{f"numcodecs.{name}": [LITTLE, numcodec(name, **options)] for name, options in COMPRESSORS.items()},
    "numcodecs.shuffle": [LITTLE, numcodec("shuffle"), numcodec("zlib", level=1)],
    "numcodecs.delta": [numcodec("delta", dtype="<i2"), LITTLE, GZIP],
    "numcodecs.astype": [numcodec("astype", encode_dtype="<i4", decode_dtype="<i2"), LITTLE],
    "numcodecs.fixedscaleoffset": [numcodec("fixedscaleoffset", offset=0, scale=1, dtype="<i2", astype="<i4"), LITTLE],
}
"""Codec chains of arrays of int16."""

FLOAT_CODECS: dict[str, list[dict[str, Any]]] = {
    "numcodecs.quantize": [numcodec("quantize", digits=3, dtype="<f4"), LITTLE, GZIP],
    "numcodecs.bitround": [numcodec("bitround", keepbits=8), LITTLE, ZSTD],
    "numcodecs.fixedscaleoffset": [numcodec("fixedscaleoffset", offset=0, scale=100, astype="<i2"), LITTLE],
}
"""Codec chains of arrays of float32."""


DATA_TYPES: dict[str, tuple[Any, Any]] = {
    **{f"{kind}int{bits}": (f"{kind}int{bits}", 7) for kind in ("", "u") for bits in (8, 16, 32)},
    "bool": ("bool", True),
    "int64": ("int64", -(2**63)),
    "uint64": ("uint64", 2**64 - 1),
    "float16": ("float16", 0.5),
    "float32": ("float32", 0.1),
    "float64": ("float64", "NaN"),
    "float64 as bits": ("float64", "0x7ff8000000000000"),
    "float32 as bits": ("float32", "0x3f800000"),
    "negative zero": ("float64", -0.0),
    "infinity": ("float32", "Infinity"),
    "negative infinity": ("float16", "-Infinity"),
    "complex64": ("complex64", [1.5, "NaN"]),
    "complex128": ("complex128", ["-Infinity", 0.25]),
    "datetime64": ({"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 10}}, 12345),
    "NaT": ({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}, -(2**63)),
    "timedelta64": ({"name": "numpy.timedelta64", "configuration": {"unit": "D", "scale_factor": 1}}, -3),
    "time without a unit": (
        {"name": "numpy.datetime64", "configuration": {"unit": "generic", "scale_factor": 1}},
        "NaT",
    ),
    "generic": ({"name": "numpy.timedelta64", "configuration": {"unit": "generic", "scale_factor": 1}}, 5),
    "text": ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 20}}, "füll"),
    "bytes": ({"name": "null_terminated_bytes", "configuration": {"length_bytes": 5}}, "YWJj"),
    "raw": ({"name": "raw_bytes", "configuration": {"length_bytes": 3}}, "AAEC"),
    "struct": (
        fields(("a", "int32"), ("b", {"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}})),
        "BwAAAGFiAA==",
    ),
    "nested struct": (fields(("a", "int8"), ("b", fields(("c", "float64")))), "BwAAAAAAAPC/"),
}

STRINGS = np.array(["", "a", "bb", "ünï", "x" * 40, "0"] * 7, object).reshape(SHAPE)


def document(data_type: Any, codecs: Any, fill_value: Any, **members: Any) -> dict[str, Any]:
    return array(SHAPE, CHUNK_SHAPE, *codecs, data_type=data_type, fill_value=fill_value, **members)


def documents() -> dict[str, dict[str, Any]]:
    found = {f"codecs {name}": document("int16", codecs, -3) for name, codecs in CODECS.items()}
    for name, codecs in FLOAT_CODECS.items():
        found[f"float codecs {name}"] = document("float32", codecs, 0.5)
    found["packed"] = document("bool", [numcodec("packbits"), LITTLE], True)
    for name, (data_type, fill_value) in DATA_TYPES.items():
        found[f"type {name}"] = document(data_type, [LITTLE, ZSTD], fill_value)
        if "struct" not in name:
            found[f"big {name}"] = document(data_type, [REVERSED, BIG, GZIP], fill_value)
    found["string"] = document("string", [{"name": "vlen-utf8"}, ZSTD], "füll")
    found["checked string"] = document("string", [{"name": "vlen-utf8"}, ZSTD, CRC32C], "")
    found["variable bytes"] = document("variable_length_bytes", [{"name": "vlen-bytes"}, GZIP], "")
    found["scalar"] = array((), (), LITTLE, ZSTD, data_type="int16", fill_value=5, dimension_names=[])
    names = {"attributes": {"units": "mm", "big": 2**70}, "dimension_names": ["y", "x"]}
    found["named"] = document("int16", [LITTLE], 5, **names)
    return found


def values_of(array: zarr.Array[Any]) -> Any:
    rng = np.random.default_rng(array.ndim)
    dtype = array.dtype
    match dtype.kind:
        case "T" | "O":
            data_type = array.metadata.data_type.to_json(zarr_format=3)
            if data_type == "string":
                return STRINGS
            return np.array([text.encode() for text in STRINGS.ravel()], object).reshape(SHAPE)
        case "b":
            return rng.integers(0, 2, array.shape).astype(bool)
        case "U":
            return STRINGS.astype("U4").astype(dtype)
        case "f" | "c":
            return rng.normal(size=array.shape).astype(dtype)
        case "S":
            return np.array([text.encode() for text in STRINGS.ravel()], dtype).reshape(SHAPE)
        case _:
            nbytes = int(np.prod(array.shape, dtype=int)) * dtype.itemsize
            return rng.integers(0, 100, nbytes, "u1").view(dtype.newbyteorder("<")).reshape(array.shape)


def write_both(root: Path) -> dict[str, Any]:
    """Write every array as v3 in `v3`, and its chunks with our documents in `v2`; the last chunk stays unwritten."""
    values = {}
    for name, written in documents().items():
        v3, v2 = root / "v3" / name, root / "v2" / name
        v3.mkdir(parents=True)
        v2.mkdir(parents=True)
        (v3 / "zarr.json").write_text(json.dumps(written))
        opened = zarr.open_array(v3, mode="r+")
        if opened.ndim:
            opened[...] = values_of(opened)
            (v3 / "c" / "1" / "1").unlink(missing_ok=True)
        else:
            opened[()] = 11
        values[name] = opened[...]
        for path in (each for each in v3.rglob("*") if each.is_file() and each.name != "zarr.json"):
            shutil.copy(path, v2 / (SEPARATOR.join(path.relative_to(v3).parts[1:]) or "0"))
        for key, made in array_documents(parse_array(written), SEPARATOR).items():
            (v2 / key).write_text(json.dumps(made))
    return values


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("converted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return root, write_both(root)


def same(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind in "fc":
        return np.array_equal(found, expected, equal_nan=True)
    if expected.dtype.kind in "Mm":
        return found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=") and np.array_equal(
            found.astype("i8"), expected.astype("i8")
        )
    # zarr-python 2 has None for bytes that were never written, if they vary in size.
    return found.shape == expected.shape and [v or "" for v in found.flat] == [v or "" for v in expected.flat]


def test_zarr_python_2_reads_every_codec_and_data_type(converted: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, values = converted
    found = read_zarr2(root / "v2", values, tmp_path)
    assert [name for name in values if not same(found[name], values[name])] == []


def test_varying_bytes_that_are_not_stored_are_none_in_zarr_python_2_which_is_said(
    converted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    (root, _), name = converted, "variable bytes"
    assert read_zarr2(root / "v2", [name], tmp_path)[name][-1, -1] is None
    assert zarr.open_array(root / "v2" / name, mode="r", zarr_format=2)[-1, -1] == b""
    caveat = shown_by(V2(), parse_array(documents()[name]), NO_CONTEXT).caveat
    assert caveat is not None
    assert "None instead of empty bytes" in caveat
    shutil.copytree(root / "v2" / name, tmp_path / "empty")
    shown = (tmp_path / "empty/.zarray").read_text()
    (tmp_path / "empty/.zarray").write_text(shown.replace('"fill_value": null', '"fill_value": ""'))
    program = """
import sys, zarr
array = zarr.open_array(sys.argv[1], mode="r+")
assert array[-1, -1] == ""
try:
    array[-1, -1] = b"written"
except TypeError as error:
    assert "expected byte string" in str(error)
else:
    raise AssertionError("an empty text as fill value could be shown instead")
"""
    ZARR2.run(program, tmp_path / "empty")


def assert_edited(directory: Path, shape: list[int], **attributes: Any) -> None:
    """Assert that the documents in *directory* are edits that change the shape and add *attributes*, and no more."""
    written = documents()[directory.name]
    edited = parse_array(written)
    for key in (".zarray", ".zattrs"):
        if (directory / key).exists():
            edited = edit_array(edited, key, (directory / key).read_bytes(), SEPARATOR)
    expected = {**written, "shape": shape if written["shape"] else []}
    if attributes:
        expected["attributes"] = {**written.get("attributes", {}), **attributes}
    assert edited.document == expected, directory.name


def test_a_document_that_zarr_python_2_rewrites_is_taken_as_an_edit(
    converted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, values = converted
    shutil.copytree(root / "v2", tmp_path / "v2")
    program = """
import sys, zarr
root, *names = sys.argv[1:]
for name in names:
    array = zarr.open_array(f"{root}/{name}", mode="r+")
    array.attrs["new"] = 2**70
    if array.ndim:
        array.resize(9, 2)
        array.append(array[:1])
"""
    ZARR2.run(program, tmp_path / "v2", *values)
    for name in values:
        assert_edited(tmp_path / "v2" / name, [10, 2], new=2**70)
