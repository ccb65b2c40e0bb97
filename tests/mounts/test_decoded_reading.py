"""Decoded chunks through real mounts: every array of the corpus, reads of any kind, and data that lies."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.faults.test_hostile_sizes import BOMBS
from tests.support import damage
from tests.support.corpus import BLOSC, CASES, CRC32C, GZIP, LITTLE, ZSTD, Case, array, extension, sharding
from tests.support.datasets import Corpus, store
from tests.support.encoder import Coordinates, chunk_key, element, numpy_dtype, window
from tests.support.mounting import Mounter

MIB = 2**20
NOT_DECODED = {"opaque-codec", "zero-bytes", "opaque-serializer", "type-string"}
NAN_PAYLOADS = {"fill-hex-nan", "fill-hex-float64", "fill-complex-hex"}
"""Fill values without a form in v2."""


def read_error(path: Path) -> int | None:
    """The errno of reading a file, None if it is read."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def plain_chunk(case: Case, coords: Coordinates, chunk_shape: list[int]) -> bytes:
    """The elements of a chunk in C order, little-endian, and the fill value beyond the shape."""
    dtype = numpy_dtype(case.document["data_type"])
    plain = np.full(chunk_shape, element(case.document["fill_value"], dtype), dtype)
    part = case.values[window([at * length for at, length in zip(coords, chunk_shape, strict=True)], chunk_shape)]
    plain[window((0,) * plain.ndim, part.shape)] = part
    return plain.astype(dtype.newbyteorder("<")).tobytes()


def chunk_shape_of(path: Path, view: str) -> list[int]:
    document = json.loads((path / (".zarray" if view == "v2" else "zarr.json")).read_text())
    shape: list[int] = document["chunks"] if view == "v2" else document["chunk_grid"]["configuration"]["chunk_shape"]
    return shape


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_every_array_of_the_corpus_is_plain_bytes_of_the_size_that_is_told(
    corpus: Corpus, mount: Mounter, view: str
) -> None:
    root = mount(corpus.mount.source, arguments=[f"--view={view}", "--decode"]).path
    left_out = NOT_DECODED | (NAN_PAYLOADS if view == "v2" else set())
    shown = [case for case in CASES if case.name not in left_out]
    assert set(os.listdir(root)) == {case.name for case in shown}
    for case in shown if view == "v3" else shown[::4]:  # in v2 chunks have other names, and the same bytes
        chunk_shape = chunk_shape_of(root / case.name, view)
        for coords in corpus.encoded[case.name].inner:
            key = chunk_key(case.document, coords) if view == "v3" else ".".join(map(str, coords)) or "0"
            with open(root / case.name / key, "rb", buffering=0) as file:
                size, plain = os.fstat(file.fileno()).st_size, file.read()
            assert plain == plain_chunk(case, coords, chunk_shape), (case.name, key)
            assert size == len(plain)


def test_a_chunk_of_a_replaced_shard_is_decoded_anew_though_it_lies_in_the_same_place(
    mount: Mounter, tmp_path: Path
) -> None:
    document = damage.document(LITTLE, CRC32C)
    old, new = (store(tmp_path / name, document, np.full((8, 12), value)) for name, value in (("s", 1), ("new", 2)))
    shown = mount(tmp_path / "s", arguments=["--decode"], metadata_ttl=0).path / "c/0/0"
    before = shown.read_bytes()
    os.replace(tmp_path / "new" / damage.SHARD, tmp_path / "s" / damage.SHARD)
    assert len(old["c/0/0"]) == len(new["c/0/0"]) == len(before) + 4
    assert (before, shown.read_bytes()) == (old["c/0/0"][:-4], new["c/0/0"][:-4])


def test_damaged_chunks_are_eio_and_named_in_the_log_and_the_others_are_right(mount: Mounter, tmp_path: Path) -> None:
    found_out = {"none": False, "zstd": False, "gzip": True, "crc32c": True, "blosc": False}
    """Whether the codecs find out that a bit is another."""
    after = {"none": [], "zstd": [ZSTD], "gzip": [GZIP, CRC32C], "crc32c": [CRC32C], "blosc": [BLOSC]}
    for name, codecs in after.items():
        chunks = store(tmp_path / "s" / name, damage.document(LITTLE, *codecs))
        shard = tmp_path / "s" / name / damage.SHARD
        flipped = bytearray(chunks["c/1/0"])
        flipped[-6] ^= 1
        for number, encoded in enumerate((b"", chunks["c/0/1"][:-3], bytes(flipped), chunks["c/1/1"] + b"\0")):
            damage.edit(shard, damage.payload(number, encoded))
    mounted = mount(tmp_path / "s", arguments=["--decode"], expect=("does not decode", r"has \d+ bytes"))
    for name in after:
        for key in ("c/0/0", "c/0/1", "c/1/1"):
            assert read_error(mounted.path / name / key) == errno.EIO
            assert f"{key} of {name} " in mounted.log
        assert read_error(mounted.path / name / "c/1/0") == (errno.EIO if found_out[name] else None)
        assert {path.stat().st_size for path in (mounted.path / name / "c").glob("*/*")} == {48}
        assert [read_error(mounted.path / name / key) for key in ("c/0/2", "c/1/3")] == [None, None]


def test_bombs_and_many_large_chunks_take_no_more_memory_than_a_few_of_them(mount: Mounter, tmp_path: Path) -> None:
    nbytes, some = 4 * MIB, ("gzip-below-the-limit", "zstd-gzip", "blosc", "crc32c-gzip")
    for name in some:
        codecs, bomb = BOMBS[name]
        codec = sharding((nbytes,), extension("bytes"), *codecs)
        document = array((4 * nbytes,), (4 * nbytes,), codec, data_type="uint8")
        store(tmp_path / "s" / name, document, np.ones(4 * nbytes, "u1"), absent=[(1,), (2,)])
        damage.edit(tmp_path / "s" / name / "c/0", damage.payload(1, bomb()))
    mounted = mount(
        tmp_path / "s", arguments=["--decode", "--decode-cache=1M"], expect=("does not decode", r"has \d+ bytes")
    )
    with ThreadPoolExecutor(8) as readers:
        bombs = [mounted.path / name / "c/1" for name in some]
        assert set(readers.map(read_error, bombs)) == {errno.EIO}
        sound = [mounted.path / name / f"c/{key}" for name in some for key in (0, 3)]
        assert set(readers.map(read_error, sound)) == {None}
    assert all(f"c/1 of {name} " in mounted.log for name in some)
    assert mounted.peak_memory() < 200 * MIB
