"""Chunks that zarr-python decodes by numcodecs, or with bytes behind what was compressed: every view has its values."""

import bz2
import gzip
import json
import lzma
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.commands import run
from tests.support.corpus import BLOSC, GZIP, LITTLE, array
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_zarr


def numcodecs(name: str, **configuration: Any) -> dict[str, Any]:
    """A codec of numcodecs, whose configuration zarr-python requires even if it is empty."""
    return {"name": f"numcodecs.{name}", "configuration": configuration}


BYTES_CODECS: dict[str, list[Any]] = {
    **{name: [LITTLE, numcodecs(name)] for name in ("zlib", "bz2", "lzma", "lz4", "gzip", "zstd")},
    **{name: [LITTLE, numcodecs(name)] for name in ("crc32", "adler32", "fletcher32", "shuffle")},
    "blosc": [LITTLE, numcodecs("blosc", cname="lz4", clevel=5, shuffle=1)],
    "shuffle-zlib": [LITTLE, numcodecs("shuffle", elementsize=4), numcodecs("zlib", level=1)],
}
FILTERS: dict[str, list[Any]] = {
    "delta": [numcodecs("delta", dtype="<i4"), LITTLE, GZIP],
    "fixedscaleoffset": [numcodecs("fixedscaleoffset", offset=0, scale=1, dtype="<i4", astype="<i8"), LITTLE],
    "astype": [numcodecs("astype", encode_dtype="<i8", decode_dtype="<i4"), LITTLE],
}
CODECS = BYTES_CODECS | FILTERS
VALUES = np.arange(64, dtype="<i4").reshape(8, 8)
HALF = VALUES[:4, :4].tobytes()


def write(path: Path, codecs: list[Any]) -> None:
    """Write an array in 2 × 2 chunks, unsharded, by zarr-python."""
    path.mkdir(parents=True)
    (path / "zarr.json").write_text(json.dumps(array((8, 8), (4, 4), *codecs, attributes={})))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs without a specification
        zarr.open_array(path, mode="r+")[...] = VALUES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sharded source with every codec, and one with bytes behind its chunks."""
    plain = tmp_path / "plain"
    zarr.create_group(plain)
    for name, codecs in CODECS.items():
        write(plain / name, codecs)
    for name, codec, behind in (
        ("gzip-zeros", GZIP, bytes(8)),
        ("blosc-behind", BLOSC, b"behind"),
        ("zlib-behind", numcodecs("zlib"), zlib.compress(b"behind")),
        ("bz2-behind", numcodecs("bz2"), b"behind"),
        ("lzma-behind", numcodecs("lzma"), b"behind it is more"),
    ):
        write(plain / name, [LITTLE, codec])
        for chunk in (plain / name / "c").rglob("?"):
            if chunk.is_file():
                chunk.write_bytes(chunk.read_bytes() + behind)
    for name, codec, members in (
        ("gzip-members", GZIP, [gzip.compress(HALF[:32]) + bytes(4), gzip.compress(HALF[32:])]),
        ("bz2-members", numcodecs("bz2"), [bz2.compress(HALF[:32]), bz2.compress(HALF[32:])]),
        ("lzma-members", numcodecs("lzma"), [lzma.compress(HALF[:32]), lzma.compress(HALF[32:])]),
    ):
        write(plain / name, [LITTLE, codec])
        (plain / name / "c/0/0").write_bytes(b"".join(members))
    done = run("pack", "--shards", "2,2", plain, tmp_path / "source")
    assert done.returncode == 0, str(done)
    return tmp_path / "source"


def names(source: Path) -> list[str]:
    return sorted(path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))


@pytest.mark.parametrize("arguments", [["--decode"], ["--view=v2", "--decode"], ["--view=npy"]], ids=" ".join)
def test_decoded_views_have_the_values_that_zarr_python_reads(
    source: Path, mount: Mounter, arguments: list[str]
) -> None:
    root = mount(source, arguments=arguments).path
    for name in names(source):
        read = np.load(root / f"{name}.npy") if "--view=npy" in arguments else read_zarr(root / name)
        assert_same(read, read_zarr(source / name))


def test_verify_decodes_them_and_finds_damage(source: Path) -> None:
    done = run("verify", "--data", source)
    assert done.returncode == 0, str(done)
    for name in ("delta", "lzma"):
        shard = next((source / name / "c").rglob("?/?"))
        data = bytearray(shard.read_bytes())
        data[12:24] = bytes(12)
        shard.write_bytes(data)
        done = run("verify", "--data", source)
        assert (done.returncode, f"damaged: {name}/" in done.stdout) == (1, True), str(done)


def test_what_is_written_decoded_is_read_natively(source: Path, mount: Mounter) -> None:
    mounted = mount(source, write=True, arguments=["--decode"])
    for name in CODECS:
        zarr.open_array(mounted.path / name, mode="r+")[...] = VALUES[::-1]
    mounted.unmount()
    for name in CODECS:
        assert_same(read_zarr(source / name), VALUES[::-1])
