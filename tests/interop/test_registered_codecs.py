"""Codecs of the extension registry that change elements: decoded views show what a library that has them reads."""

import gzip
import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrista
from zarrista.store import FilesystemStore

import shardfs
from tests.support.clients import ZARR34
from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding, transpose
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_zarr

SHAPE, CHUNK = (8, 6), (4, 3)
NUMBERS = np.arange(1, 49).reshape(SHAPE)
PCODEC = extension(
    "numcodecs.pcodec",
    level=8,
    mode_spec="auto",
    delta_spec="auto",
    paging_spec="equal_pages_up_to",
    delta_encoding_order=None,
    equal_pages_up_to=262144,
)
NAN_AS_0 = {"encode": [["NaN", 0]], "decode": [[0, "NaN"]]}
N5 = extension("n5_default", codecs=[transpose(1, 0), extension("bytes", endian="big"), extension("gzip", level=1)])
BIG = extension("bytes", endian="big")
BYTES = extension("bytes")

ZARRISTA: dict[str, tuple[str, np.ndarray, list[Any]]] = {
    "bitround": ("float32", NUMBERS.astype("f4") / 7, [extension("bitround", keepbits=5), LITTLE]),
    "bitround-integers": ("uint16", NUMBERS.astype("u2"), [extension("bitround", keepbits=3), LITTLE]),
    "reshape": ("int32", NUMBERS.astype("i4"), [extension("reshape", shape=[-1]), LITTLE, GZIP]),
    "reshape-axes": ("int32", NUMBERS.astype("i4"), [extension("reshape", shape=[[0, 1], 1]), LITTLE]),
    "reshape-turned": (
        "int16",
        NUMBERS.astype("i2"),
        [transpose(1, 0), extension("reshape", shape=[2, -1]), BIG],
    ),
    "squeeze": ("int32", NUMBERS.astype("i4"), [extension("zarrs.squeeze"), LITTLE]),
    "packbits-bool": ("bool", NUMBERS % 3 == 0, [extension("packbits")]),
    "packbits-first-byte": ("bool", NUMBERS % 5 == 0, [extension("packbits", padding_encoding="first_byte"), GZIP]),
    "packbits-last-byte": (
        "uint8",
        NUMBERS.astype("u1"),
        [extension("packbits", padding_encoding="last_byte", last_bit=6)],
    ),
    "packbits-sign": ("int16", NUMBERS.astype("i2") * 8 - 192, [extension("packbits", first_bit=3)]),
    "packbits-middle": ("uint16", NUMBERS.astype("u2") * 8, [extension("packbits", first_bit=3, last_bit=12)]),
    "packbits-turned": ("uint16", NUMBERS.astype("u2"), [transpose(1, 0), extension("packbits", last_bit=9)]),
}
"""Written and read by zarrs, through zarrista: data type, values, codecs."""
ZARR: dict[str, tuple[str, np.ndarray, list[Any]]] = {
    "scale": ("float32", NUMBERS.astype("f4"), [extension("scale_offset", offset=5, scale=0.1), LITTLE]),
    "scale-half": ("float16", NUMBERS.astype("f2"), [extension("scale_offset", scale=0.5), LITTLE]),
    "scale-integers": ("int16", NUMBERS.astype("i2"), [extension("scale_offset", offset=-3, scale=7), BIG, GZIP]),
    "scale-large": ("uint64", NUMBERS.astype("u8") + 2**63, [extension("scale_offset", offset=1, scale=1), LITTLE]),
    "cast": ("float64", NUMBERS.astype("f8"), [extension("cast_value", data_type="int16"), LITTLE]),
    "cast-big": ("float64", NUMBERS.astype("f8"), [extension("cast_value", data_type="int16"), BIG]),
    "cast-down": ("float32", NUMBERS.astype("f4"), [extension("cast_value", data_type="float64"), LITTLE]),
    "cast-turned": (
        "uint32",
        NUMBERS.astype("u4"),
        [transpose(1, 0), extension("cast_value", data_type="uint8"), BYTES],
    ),
    "cast-nan": (
        "float64",
        np.where(NUMBERS % 4 == 0, np.nan, NUMBERS * 2.0 - 10),
        [
            extension("scale_offset", offset=-10, scale=0.5),
            extension("cast_value", data_type="uint8", rounding="nearest-even", scalar_map=NAN_AS_0),
            BYTES,
        ],
    ),
    "cast-wrap": (
        "int32",
        NUMBERS.astype("i4") * 9,
        [extension("cast_value", data_type="uint8", rounding="towards-zero", out_of_range="wrap"), BYTES],
    ),
}
"""The same by zarr-python 3.4."""


def document(data_type: str, codecs: list[Any]) -> dict[str, Any]:
    fill = False if data_type == "bool" else 1  # one that every codec here can encode
    return array(SHAPE, CHUNK, *codecs, data_type=data_type, fill_value=fill, attributes={})


def write_document(path: Path, data_type: str, codecs: list[Any]) -> None:
    path.mkdir(parents=True)
    (path / "zarr.json").write_text(json.dumps(document(data_type, codecs)))


def read_zarrs(path: Path) -> np.ndarray:
    found = zarrista.Array.open(FilesystemStore(path))[...]
    assert isinstance(found, zarrista.FixedLengthTensor)
    return np.asarray(found.to_numpy())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A sharded source with all these codecs, and what their libraries read of it before it was sharded."""
    directory = tmp_path_factory.mktemp("registered")
    plain, values = directory / "plain", dict[str, np.ndarray]()
    zarr.create_group(plain)
    for name, (data_type, written, codecs) in ZARRISTA.items():
        write_document(plain / name, data_type, codecs)
        zarrista.Array.open(FilesystemStore(plain / name))[...] = np.ascontiguousarray(written)
        values[name] = read_zarrs(plain / name)
    np.savez(directory / "written.npz", **{name: written for name, (_, written, _) in ZARR.items()})
    for name, (data_type, _, codecs) in ZARR.items():
        write_document(plain / name, data_type, codecs)
    write_n5(plain / "n5")
    values |= ZARR34.arrays(WRITE, directory, plain, directory / "written.npz", "n5")
    write_document(plain / "pcodec", "int32", [PCODEC])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a codec without a specification
        zarr.open_array(plain / "pcodec", mode="r+")[...] = NUMBERS
    values["pcodec"] = read_zarr(plain / "pcodec")
    done = run("pack", "--shards", "2,2", plain, directory / "source")
    assert done.returncode == 0, str(done)
    return directory / "source", values


WRITE = """
import sys, numpy, zarr
found, root, written, *others = sys.argv[1:]
values = {}
for name, array in numpy.load(written).items():
    stored = zarr.open_array(f"{root}/{name}", mode="r+")
    stored[...] = array
    values[name] = stored[...]
numpy.savez(found, **values, **{name: zarr.open_array(f"{root}/{name}", mode="r")[...] for name in others})
"""


def write_n5(path: Path) -> None:
    """Write blocks as N5 does, of which those at the edge are cut off."""
    write_document(path, "uint16", [N5])
    stored = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**stored, "shape": [7, 5], "fill_value": 0}))
    values = NUMBERS.astype(">u2")[:7, :5]
    for i, j in np.ndindex(2, 2):
        block = values[4 * i : 4 * i + 4, 3 * j : 3 * j + 3]
        header = struct.pack(">HHII", 0, 2, *block.shape)
        (path / f"c/{i}").mkdir(parents=True, exist_ok=True)
        (path / f"c/{i}/{j}").write_bytes(header + gzip.compress(block.T.tobytes()))


@pytest.mark.parametrize("arguments", [["--decode"], ["--view=v2", "--decode"], ["--view=npy"]], ids=" ".join)
def test_decoded_views_have_the_values_that_libraries_read(
    mount: Mounter, expected: tuple[Path, dict[str, np.ndarray]], arguments: list[str]
) -> None:
    source, values = expected
    root = mount(source, arguments=arguments).path
    assert len(values) == len(ZARRISTA) + len(ZARR) + 2
    for name, read in values.items():
        shown = np.load(root / f"{name}.npy") if "--view=npy" in arguments else read_zarr(root / name)
        assert_same(shown, read)


def test_verify_decodes_them_and_finds_damage(expected: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    source, values = expected
    done = run("verify", "--data", source)
    assert done.returncode == 0, str(done)
    damaged = tmp_path / "damaged"
    done = run("unpack", source, tmp_path / "unpacked")
    assert done.returncode == 0, str(done)
    damage: dict[str, Callable[[bytes], bytes]] = {
        "n5": lambda data: data[:4] + b"\xff" * 8 + data[12:],
        "pcodec": lambda data: data[:-9],
        "packbits-sign": lambda data: data + b"\0",
        "scale-integers": lambda data: gzip.compress(b"\0\1" + gzip.decompress(data)[2:]),
        "cast-big": lambda data: data[:-1],
    }
    for name, change in damage.items():
        chunk = tmp_path / "unpacked" / name / "c/0/0"
        chunk.write_bytes(change(chunk.read_bytes()))
    done = run("pack", "--shards", "2,2", tmp_path / "unpacked", damaged)
    assert done.returncode == 0, str(done)
    done = run("verify", "--data", damaged)
    assert done.returncode == 1, str(done)
    for name in values:
        assert (f"damaged: {name}/" in done.stdout) == (name in damage), str(done)


def test_what_is_written_decoded_is_refused_and_nothing_is_lost(
    mount: Mounter, expected: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    source, _ = expected
    done = run("pack", "--shards", "2,2", source, tmp_path / "copy")
    assert done.returncode == 0, str(done)
    mounted = mount(tmp_path / "copy", write=True, arguments=["--decode"])
    mounted.expect("cast: |only read")
    chunk = mounted.path / "cast/c/0/0"
    before = chunk.read_bytes()
    with pytest.raises(OSError, match="Invalid argument"):
        chunk.write_bytes(bytes(len(before)))
    assert chunk.read_bytes() == before
    assert "cast_value" in mounted.log
    mounted.unmount()
    with shardfs.open(tmp_path / "copy", decode=True) as dataset:
        assert dataset["cast"].read_chunk((0, 0)) == before


def test_pack_exchanges_the_compressor_behind_them(
    expected: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    source, values = expected
    done = run("pack", "--shards", "2,2", "--codecs", '["zstd"]', source, tmp_path / "packed")
    assert done.returncode == 0, str(done)
    with shardfs.open(tmp_path / "packed", view="npy") as dataset:
        for name, read in values.items():
            document = json.loads((tmp_path / "packed" / name / "zarr.json").read_text())
            assert "zstd" in [codec["name"] for codec in document["codecs"][0]["configuration"]["codecs"]]
            with dataset.filesystem().open(f"{name}.npy") as file:
                assert_same(np.load(file), read)


def test_a_codec_that_cannot_be_decoded_is_named_with_the_way_out(mount: Mounter, tmp_path: Path) -> None:
    for name, codecs in {
        "zfp": [extension("zfp", mode="reversible")],
        "conditional": [LITTLE, extension("conditional", codecs=[GZIP])],
        "zarrs.gdeflate": [LITTLE, extension("zarrs.gdeflate", level=5)],
        "transpose": [extension("reshape", shape=[-1, 2]), transpose(1, 0), LITTLE],
        "packbits": [extension("packbits", last_bit=6)],
    }.items():
        (tmp_path / "source" / name).mkdir(parents=True)
        (tmp_path / "source" / name / "zarr.json").write_text(json.dumps(array(SHAPE, SHAPE, sharding(CHUNK, *codecs))))
        (item,) = run_json("info", "--json", tmp_path / "source", name)["arrays"]
        (reason,) = {text for view, text in item["left_out"].items() if view == "--view v3 --decode"}
        assert name in reason
        assert "without --decode" in reason or name in ("transpose", "packbits")
    mounted = mount(tmp_path / "source", arguments=["--decode"])
    assert not list(mounted.path.iterdir())
