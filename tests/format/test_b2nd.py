"""Frames and chunks of Blosc2: what is said of an array, where its chunks are, and what is refused."""

import random
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from shardfs.errors import CorruptionError, ShardfsError
from shardfs.formats.b2nd.frame import (
    Frame,
    FrameIndex,
    contiguous_array,
    decode_chunk,
    decode_offsets,
    parse_frame,
    sparse_array,
)
from tests.support.b2nd import GEOMETRIES, Geometry, blosc2, write_b2nd

SMALL = GEOMETRIES["two axes"]
_HEADER_NBYTES = 32


def frame_of(path: Path, geometry: Geometry = SMALL) -> tuple[bytes, Frame]:
    """The bytes of a contiguous frame, and what its header says."""
    write_b2nd(path, geometry)
    data = path.read_bytes()
    return data, parse_frame(data, len(data))


def chunk_of(data: bytes, frame: Frame, number: int = -1) -> bytes:
    """The bytes of a stored chunk, by default the last one."""
    start = frame.header_nbytes + int(decode_offsets(frame, data[frame.offsets_at :])[number])
    return data[start : start + struct.unpack_from("<i", data, start + 12)[0]]


def index_of(data: bytes, frame: Frame) -> FrameIndex:
    assert len(data) == frame.size
    return FrameIndex("little", (), (), frame)


@pytest.mark.slow
def test_a_header_says_of_which_array_a_frame_is(tmp_path: Path) -> None:
    for geometry in GEOMETRIES.values():
        data, frame = frame_of(tmp_path / "a.b2nd", geometry)
        assert (frame.shape, frame.chunk_shape, frame.block_shape) == geometry[:3]
        assert frame.dtype == np.dtype(geometry.dtype)
        grid = contiguous_array(frame).chunks
        assert grid is not None
        assert grid.grid.chunk_shape == geometry.shown
        assert decode_chunk(chunk_of(data, frame), frame.chunk_nbytes).nbytes == frame.chunk_nbytes


def test_each_chunk_is_where_its_offset_says(tmp_path: Path) -> None:
    data, frame = frame_of(tmp_path / "a.b2nd")
    index = index_of(data, frame).decode(data[frame.offsets_at :], frame.grid_shape, len(data))
    stored = blosc2.open(str(tmp_path / "a.b2nd"))  # its chunks are only there as long as it is
    assert stored.schunk.nchunks == index.nentries == 9
    for number in range(index.nentries):
        chunk, found = stored.schunk.get_chunk(number), index.range(number)
        if found is None:
            assert not any(blosc2.decompress2(chunk))
        else:
            assert data[found[0] : sum(found)] == chunk == chunk_of(data, frame, number)
    assert index.range(0) is None


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data, _ = frame_of(tmp_path / "a.b2nd")
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            parse_frame(data[:length], length)


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_of_a_header_leads_beyond_what_is_read(tmp_path: Path, seed: int) -> None:
    """Whatever a header says, it is refused, or the index is read within the file, and is of the size that it says."""
    data, frame = frame_of(tmp_path / "a.b2nd")
    choose, before = random.Random(seed), peak()
    for _ in range(1000):
        changed = bytearray(data)
        for _ in range(choose.choice([1, 1, 2, 8])):
            changed[choose.randrange(10, frame.header_nbytes)] = choose.choice(
                [0, 0x7F, 0x80, 0xFF, choose.randrange(256)]
            )
        try:
            parsed = parse_frame(bytes(changed), len(changed))
            array = contiguous_array(parsed)
            assert array.chunks is not None
            assert 0 <= parsed.offsets_at <= len(data)
            index = array.chunks.grid.levels[0].index_codecs
            if array.chunks.grid.nchunks:
                index.decode(bytes(changed[parsed.offsets_at :]), parsed.grid_shape, len(changed))
        except ShardfsError:
            continue
    assert peak() < before + 200 * 2**20


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    "name", ["two axes", "one axis, partly filled", "bool", "raw", "delta", "bytedelta", "dictionary"]
)
def test_damaged_chunks_are_errors_or_have_their_size(tmp_path: Path, name: str) -> None:
    data, frame = frame_of(tmp_path / "a.b2nd", GEOMETRIES[name])
    chunk, choose, before = chunk_of(data, frame), random.Random(name), peak()
    for length in range(len(chunk)):
        with pytest.raises(CorruptionError):
            decode_chunk(chunk[:length], frame.chunk_nbytes)
    for _ in range(1000):
        changed = bytearray(chunk)
        for _ in range(choose.choice([1, 1, 2, 8])):
            changed[choose.randrange(len(chunk))] = choose.choice([0, 0x7F, 0x80, 0xFF, choose.randrange(256)])
        try:
            assert len(decode_chunk(bytes(changed), frame.chunk_nbytes)) == frame.chunk_nbytes
        except CorruptionError:
            continue
    assert peak() < before + 200 * 2**20


def test_a_bomb_is_refused_by_the_size_in_its_header() -> None:
    bomb = blosc2.compress2(np.zeros(2**26, np.uint8), typesize=1)
    assert len(bomb) < 1000
    with pytest.raises(CorruptionError, match="decodes to 67108864 bytes instead of 800"):
        decode_chunk(bomb, 800)


def test_what_is_not_initialised_is_zeros() -> None:
    """The library leaves what was in the memory of the process."""
    header = bytearray(blosc2.compress2(np.zeros(100, "<f8")))
    header[31] = 4 << 4
    assert bytes(decode_chunk(bytes(header[:_HEADER_NBYTES]), 800)) == bytes(800)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (2, 0x81, "no chunk of Blosc2"),
        (2, 5 | 6 << 5, "the codec 5 of Blosc2"),
        (21, 160, "the filter 160 of Blosc2"),
        (21, 32, "the filter ndcell of Blosc2"),
        (30, 1, "unknown kind"),
        (31, 0x08, "unknown kind"),
        (31, 0x50, "unknown kind"),
        (31, 0x80, "unknown kind"),
    ],
)
def test_what_the_library_cannot_decode_by_itself_is_named(at: int, value: int, message: str) -> None:
    chunk = bytearray(blosc2.compress2(np.arange(100, dtype="<f8")))
    chunk[at] = value
    with pytest.raises(CorruptionError, match=message):
        decode_chunk(bytes(chunk), 800)


def test_offsets_beyond_the_chunks_are_damage_of_one_chunk(tmp_path: Path) -> None:
    data, frame = frame_of(tmp_path / "a.b2nd")
    offsets = decode_offsets(frame, data[frame.offsets_at :]).copy()
    assert offsets[0] < 0
    offsets[1:5] = [frame.data_nbytes, 2**62, -(2**63), -(2**63) + (8 << 56)]
    encoded = blosc2.compress2(offsets, typesize=8)
    size = frame.offsets_at + len(encoded)
    hostile = Frame(**{**frame.__dict__, "size": size})
    index = FrameIndex("little", (), (), hostile).decode(encoded, frame.grid_shape, size)
    assert index.range(0) is None
    for number in (1, 2, 3, 4):
        with pytest.raises(CorruptionError, match="names bytes"):
            index.range(number)
    assert index.range(5) is not None
    with pytest.raises(CorruptionError, match="the file has"):
        FrameIndex("little", (), (), hostile).decode(encoded, frame.grid_shape, size + 1)


def test_the_files_that_a_sparse_frame_lists_are_required(tmp_path: Path) -> None:
    path = tmp_path / "a.b2nd"
    write_b2nd(path, SMALL, sparse=True)
    data, names = (path / "chunks.b2frame").read_bytes(), {file.name for file in path.iterdir()}
    frame = parse_frame(data, len(data))
    tail = data[frame.offsets_at :]
    array = sparse_array(frame, tail)
    assert array.chunks is not None
    shards = array.chunks.shard_names
    stored = {shards.decode(name, 2) for name in names} - {None}
    assert len(stored) == len(names) - 1
    assert all(shards.encode(coords) in names for coords in stored if coords is not None)
    assert shards.encode((0, 0)) not in names
    assert {*shards.required} == names - {"chunks.b2frame"}
    assert all(shards.requires(coords) for coords in stored if coords is not None)
    assert not shards.requires((0, 0))
