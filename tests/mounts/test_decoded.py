"""Decoded chunks through real mounts: what is read and written of arrays that are stored in many ways, and damage."""

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.faults.test_hostile_sizes import BOMBS
from tests.support import damage
from tests.support.corpus import (
    BIG,
    BLOSC,
    CASES,
    CRC32C,
    GZIP,
    LITTLE,
    ZSTD,
    Case,
    array,
    extension,
    rectilinear,
    sharding,
    transpose,
)
from tests.support.datasets import Corpus, store
from tests.support.encoder import Coordinates, chunk_key, element, numpy_dtype, window
from tests.support.mounting import Mounter, flush, refuses

MIB = 2**20
NOT_DECODED = {"opaque-codec", "zero-bytes", "opaque-serializer", "type-string"}
NAN_PAYLOADS = {"fill-hex-nan", "fill-hex-float64", "fill-complex-hex"}
"""Fill values without a form in v2."""
N = 40_000
"""Elements of a chunk that is decoded in a thread."""


def read_error(path: Path) -> int | None:
    """The errno of reading a file, None if it is read."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def chunk_shape_of(path: Path) -> list[int]:
    document = json.loads((path / (".zarray" if (path / ".zarray").exists() else "zarr.json")).read_text())
    shape: list[int] = document.get("chunks") or document["chunk_grid"]["configuration"]["chunk_shape"]
    return shape


# Reading


def decoded_chunk(case: Case, coords: Coordinates, chunk_shape: list[int]) -> bytes:
    """The elements of a chunk in C order, little-endian, and the fill value beyond the shape."""
    dtype = numpy_dtype(case.document["data_type"])
    values = np.full(chunk_shape, element(case.document["fill_value"], dtype), dtype)
    part = case.values[window([at * length for at, length in zip(coords, chunk_shape, strict=True)], chunk_shape)]
    values[window((0,) * values.ndim, part.shape)] = part
    return values.astype(dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_decoded_chunks_are_bytes_in_c_order_of_the_size_that_stat_shows(
    corpus: Corpus, mount: Mounter, view: str
) -> None:
    root = mount(corpus.mount.source, arguments=[f"--view={view}", "--decode"]).path
    skipped = NOT_DECODED | (NAN_PAYLOADS if view == "v2" else set())
    shown = [case for case in CASES if case.name not in skipped]
    assert set(os.listdir(root)) == {case.name for case in shown}
    for case in shown if view == "v3" else shown[::4]:  # in v2 chunks have other names, and the same bytes
        chunk_shape = chunk_shape_of(root / case.name) if case.document["shape"] else []
        for coords in corpus.encoded[case.name].inner:
            key = chunk_key(case.document, coords) if view == "v3" else ".".join(map(str, coords)) or "0"
            with open(root / case.name / key, "rb", buffering=0) as file:
                size, data = os.fstat(file.fileno()).st_size, file.read()
            assert data == decoded_chunk(case, coords, chunk_shape), (case.name, key)
            assert size == len(data)


def test_damaged_chunks_are_eio_and_others_are_right(mount: Mounter, tmp_path: Path) -> None:
    detects = {"none": False, "zstd": False, "gzip": True, "crc32c": True, "blosc": False}
    """Whether the codecs find out that a bit is another."""
    after = {"none": [], "zstd": [ZSTD], "gzip": [GZIP, CRC32C], "crc32c": [CRC32C], "blosc": [BLOSC]}
    for name, codecs in after.items():
        chunks = store(tmp_path / "s" / name, damage.document(LITTLE, *codecs))
        shard = tmp_path / "s" / name / damage.SHARD
        flipped = damage.flip(-6)(chunks["c/1/0"])
        for number, encoded in enumerate((b"", chunks["c/0/1"][:-3], flipped, chunks["c/1/1"] + b"\0")):
            damage.edit(shard, damage.payload(number, encoded))
    mounted = mount(tmp_path / "s", arguments=["--decode"], expect=("does not decode", r"has \d+ bytes"))
    for name in after:
        # What is behind blosc data is ignored, as by zarr-python.
        for key in ("c/0/0", "c/0/1", *(() if name == "blosc" else ("c/1/1",))):
            assert read_error(mounted.path / name / key) == errno.EIO
            assert f"{key} of {name} " in mounted.log
        assert name != "blosc" or read_error(mounted.path / name / "c/1/1") is None
        assert read_error(mounted.path / name / "c/1/0") == (errno.EIO if detects[name] else None)
        assert {path.stat().st_size for path in (mounted.path / name / "c").glob("*/*")} == {48}
        assert [read_error(mounted.path / name / key) for key in ("c/0/2", "c/1/3")] == [None, None]


def test_decompression_bombs_and_large_chunks_take_bounded_memory(mount: Mounter, tmp_path: Path) -> None:
    nbytes, some = 4 * MIB, ("gzip-below-the-limit", "zstd-gzip", "blosc", "crc32c-gzip")
    for name in some:
        codecs, bomb = BOMBS[name]
        codec = sharding((nbytes,), extension("bytes"), *codecs)
        document = array((4 * nbytes,), (4 * nbytes,), codec, data_type="uint8")
        store(tmp_path / "s" / name, document, np.ones(4 * nbytes, "u1"), absent=[(1,), (2,)])
        damage.edit(tmp_path / "s" / name / "c/0", damage.payload(1, bomb()))
    expected = ("does not decode", r"has \d+ bytes")
    mounted = mount(tmp_path / "s", arguments=["--decode", "--decode-cache=1M"], expect=expected)
    with ThreadPoolExecutor(8) as readers:
        bombs = [mounted.path / name / "c/1" for name in some]
        assert set(readers.map(read_error, bombs)) == {errno.EIO}
        sound = [mounted.path / name / f"c/{key}" for name in some for key in (0, 3)]
        assert set(readers.map(read_error, sound)) == {None}
    assert all(f"c/1 of {name} " in mounted.log for name in some)
    assert mounted.peak_memory() < 200 * MIB


# Writing

SHAPE = (8, 12)
DOCUMENTS = {
    "sharded": array(SHAPE, (8, 6), sharding((4, 3), BIG, ZSTD, CRC32C)),
    "nested": array(SHAPE, (8, 12), sharding((4, 6), sharding((2, 3), LITTLE, GZIP), GZIP)),
    "turned": array(SHAPE, (8, 6), transpose(1, 0), sharding((3, 4), LITTLE, GZIP)),
    "rectilinear": array(SHAPE, rectilinear([4, 8], [6, 6]), sharding((2, 3), LITTLE, BLOSC)),
    "wrapped": array(SHAPE, (8, 6), sharding((4, 3), LITTLE), GZIP),
}


def test_decoded_chunks_are_written_in_any_way_that_keeps_their_size(mount: Mounter, tmp_path: Path) -> None:
    values = np.arange(96, dtype="<i4").reshape(SHAPE)
    for name, document in DOCUMENTS.items():
        store(tmp_path / "s" / name, document, values)
    mounted = mount(tmp_path / "s", write=True, arguments=["--decode"], expect=(r"has \d+ bytes, not",))
    expected = {}
    for name in DOCUMENTS:
        root = mounted.path / name
        one, other, beside = root / "c/0/0", root / "c/1/1", root / "beside"
        height, width = chunk_shape_of(root)
        old, nbytes = one.read_bytes(), 4 * height * width
        for size in (0, 3, nbytes + 1):
            with refuses(errno.EINVAL):
                os.truncate(one, size)
            beside.write_bytes(bytes(size))
            for replace in (os.rename, shutil.copyfile):
                with refuses(errno.EINVAL):
                    replace(beside, one)
            assert (one.read_bytes(), one.stat().st_size) == (old, nbytes)
        assert f"{name}/c/0/0 is refused: a chunk of this array has " in mounted.log
        with one.open("r+b", buffering=0) as file:
            file.write(b"a" * (nbytes - 1))
            os.fsync(file.fileno())
            assert one.read_bytes() == b"a" * (nbytes - 1) + old[-1:]
            file.write(b"a")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT)
        os.pwrite(fd, b"b" * nbytes, 0)
        os.ftruncate(fd, nbytes)
        os.rename(beside, other)
        os.close(fd)
        expected[name] = values.copy()
        for start, letter in ((0, b"a"), (1, b"b")):
            rows, columns = (slice(start * edge, (start + 1) * edge) for edge in (height, width))
            expected[name][rows, columns] = np.frombuffer(letter * nbytes, "<i4").reshape(height, width)
        assert (one.read_bytes(), other.read_bytes()) == (b"a" * nbytes, b"b" * nbytes)
    mounted.unmount()
    root = mount(tmp_path / "s").path
    for name in DOCUMENTS:
        assert np.array_equal(zarr.open_array(str(root / name), mode="r")[...], expected[name]), name


def test_open_chunks_stay_while_their_shards_are_appended_to_and_replaced(mount: Mounter, tmp_path: Path) -> None:
    source = tmp_path / "a"
    values = np.arange(4 * N, dtype="<i4").reshape(4, N)
    store(source, array((4, N), (4, N), sharding((1, N), LITTLE, ZSTD)), values)
    expected = ("c/2/0", "shows them: 2/0", "another program has changed the array")
    mounted = mount(source, write=True, metadata_ttl=0, arguments=["--decode"], expect=expected)
    chunks = [mounted.path / f"c/{row}/0" for row in range(4)]
    with open(chunks[0], "rb", buffering=0) as begun, open(chunks[1], "rb", buffering=0) as unread:
        start = begun.read(100)
        chunks[0].write_bytes(bytes(4 * N))
        flush(mounted.path)
        assert chunks[0].read_bytes() == bytes(4 * N)
        chunks[2].write_bytes(bytes(4 * N))
        shutil.rmtree(source / "c")
        store(source, array((4, N), (4, N), sharding((1, N), BIG, ZSTD)), values + 1)
        assert start + begun.read() == values[0].tobytes()
        assert unread.read() == values[1].tobytes()
    for row in range(4):  # what is pending was encoded in the other byte order
        assert chunks[row].read_bytes() == (values[row] + 1).tobytes()
    with refuses(errno.EIO):
        flush(mounted.path)


@pytest.mark.parametrize(
    "codec",
    [
        extension("gzip", level=99),
        extension("zstd", level=3, dictionary="x"),
        extension("blosc", cname="none", clevel=5, shuffle="shuffle", typesize=4, blocksize=0),
    ],
    ids=["level", "dictionary", "compressor"],
)
def test_a_chunk_that_cannot_be_encoded_is_refused_and_named(mount: Mounter, tmp_path: Path, codec: object) -> None:
    store(tmp_path / "a", array((4, 4), (4, 4), sharding((2, 2), LITTLE)))
    shutil.rmtree(tmp_path / "a/c")
    (tmp_path / "a/zarr.json").write_text(json.dumps(array((4, 4), (4, 4), sharding((2, 2), LITTLE, codec))))
    mounted = mount(tmp_path / "a", write=True, arguments=["--decode"], expect=("is refused",))
    with refuses(errno.EINVAL):
        (mounted.path / "c/0/0").write_bytes(bytes(16))
    assert "c/0/0 is refused: " in mounted.log
    assert not (mounted.path / "c/0/0").exists()
