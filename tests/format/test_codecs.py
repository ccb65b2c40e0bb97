"""Codec chains and the chunks that they encode: what every library makes of them, in bounded memory."""

import gzip
import json
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import CorruptionError, MetadataError, NotShownError, OversizedDataError, RefusedError
from shardfs.format.codecs import MAX_CHUNK_NBYTES, ChunkCodec, checksum_in, decode, encode, parse_chain
from shardfs.format.document import Extension, parse_codecs
from shardfs.format.dtype import DataType
from shardfs.format.elements import CastValue
from shardfs.format.numcodec import decode_numcodec
from tests.support.corpus import BIG, BLOSC, CRC32C, GZIP, IGNORED, LITTLE, ZSTD, array, extension, sharding, transpose
from tests.support.encoder import apply, encode_array

CHECKED = extension("zstd", level=1, checksum=True)
LZ4 = extension("blosc", cname="lz4", clevel=1, shuffle="bitshuffle", typesize=2, blocksize=0)
CHAINS = [[GZIP], [ZSTD], [CHECKED], [BLOSC], [LZ4], [CRC32C], [CRC32C, CRC32C], [GZIP, CRC32C], [CRC32C, ZSTD, GZIP]]
PLAIN = bytes(range(256)) * 4

every_chain = pytest.mark.parametrize("codecs", CHAINS, ids=lambda codecs: "-".join(codec["name"] for codec in codecs))


def parsed(codecs: list[Any]) -> tuple[Extension, ...]:
    return parse_codecs(codecs, "codecs")


def encoded(codecs: list[Any], data: bytes) -> bytes:
    for codec in codecs:
        data = apply(codec, data)
    return data


@every_chain
def test_what_is_cut_short_is_corrupt(codecs: list[Any]) -> None:
    data = encoded(codecs, PLAIN)
    for size in range(0, len(data), 1 + len(data) // 40):
        with pytest.raises(CorruptionError):
            decode(parsed(codecs), data[:size], len(PLAIN) - 8)


WITH_CHECKSUM = [
    GZIP,
    CHECKED,
    CRC32C,
    *(extension(f"numcodecs.{name}") for name in ("gzip", "zlib", "bz2", "lzma", "crc32", "crc32c", "adler32")),
    *(extension(f"numcodecs.{name}") for name in ("fletcher32", "jenkins_lookup3")),
    extension("numcodecs.zstd", level=1, checksum=True),
]


@pytest.mark.parametrize("codec", WITH_CHECKSUM, ids=lambda codec: codec["name"])
def test_every_flipped_bit_behind_a_checksum_is_noticed(codec: Any) -> None:
    assert checksum_in(parsed([LITTLE, codec])) == codec["name"]
    text = b"some text, some text, some more text"
    if codec["name"].startswith("numcodecs."):
        identified = {"id": codec["name"].removeprefix("numcodecs."), **codec.get("configuration", {})}
        data = bytes(numcodecs.get_codec(identified).encode(text))
    else:
        data = encoded([codec], text)
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        try:
            assert decode(parsed([codec]), bytes(flipped), 100) == b"some text, some text, some more text"
        except CorruptionError:
            continue
        assert codec is not CRC32C  # gzip and zstd have header bits that say nothing


@pytest.mark.parametrize("name", ["zstd", "blosc", "numcodecs.lz4", "numcodecs.zstd", "example.codec"])
def test_a_codec_without_a_checksum_is_not_taken_for_one(name: str) -> None:
    assert checksum_in(parsed([LITTLE, extension(name)])) is None
    assert checksum_in(parsed([LITTLE, extension("numcodecs.lzma", format=2)])) is None


_TEXT = st.one_of(st.binary(max_size=300), st.text("ab", max_size=9).map(lambda text: text.encode() * 400))
_FIELDS = {4: b"\5\0extra", 8: b"name\0", 16: b"comment\0"}


@st.composite
def gzip_members(draw: st.DrawFn) -> bytes:
    """One member as any program may write it: its head, its deflate blocks, its end."""
    flags, data = draw(st.integers(0, 31)), draw(_TEXT)
    head = b"\x1f\x8b\x08" + bytes([flags]) + draw(st.binary(min_size=6, max_size=6))
    head += b"".join(field for flag, field in _FIELDS.items() if flags & flag)
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    options = draw(st.integers(0, 9)), zlib.DEFLATED, -draw(st.integers(9, 15)), draw(st.integers(1, 9))
    packer = zlib.compressobj(*options, draw(st.integers(0, 4)))
    half = len(data) // 2
    flush = draw(st.sampled_from([zlib.Z_NO_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]))
    body = packer.compress(data[:half]) + packer.flush(flush) + packer.compress(data[half:]) + packer.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


@given(members=st.lists(gzip_members(), min_size=1, max_size=3), padding=st.integers(0, 20), as_view=st.booleans())
@settings(max_examples=60)
def test_gzip_of_every_program_decodes_as_python_decodes_it(members: list[bytes], padding: int, as_view: bool) -> None:
    data = b"".join(members) + bytes(padding)
    plain = gzip.decompress(data)
    assert decode(parsed([GZIP]), memoryview(data) if as_view else data, len(plain)) == plain
    if plain:
        with pytest.raises(CorruptionError):
            decode(parsed([GZIP]), data, len(plain) - 1)


@pytest.mark.slow
@every_chain
@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), size=st.integers(0, 400))
@settings(max_examples=60)
def test_damaged_data_decodes_or_is_corrupt(codecs: list[Any], edits: list[tuple[int, int]], size: int) -> None:
    data = bytearray(encoded(codecs, PLAIN[:300]))
    for place, value in edits:
        data[place % len(data)] = value
    for damaged in (bytes(data), bytes(data[: min(size, len(data))])):
        try:
            assert len(decode(parsed(codecs), damaged, 300)) <= 300
        except CorruptionError:
            continue


def names(codecs: list[Any]) -> list[str]:
    return [codec.name for codec in parse_chain(parsed(codecs), "codecs")]


def test_codecs_that_may_be_ignored_are_dropped_and_old_names_replaced() -> None:
    optional = GZIP | {"must_understand": False}
    assert names([IGNORED, extension("endian", endian="big"), IGNORED, optional]) == ["bytes", "gzip"]
    assert names([extension("example.raw"), GZIP]) == ["example.raw", "gzip"]
    assert names([transpose(0), extension("example.shift"), LITTLE, extension("example.invert")]) == [
        *("transpose", "example.shift", "bytes", "example.invert")
    ]


def encoded_here(codecs: list[Any], data: bytes) -> bytes:
    return encode(parse_codecs(codecs, "codecs"), data)


MEANINGLESS: list[Any] = [
    *(extension("gzip", level=level) for level in (10, -1, "5", True)),
    *(extension("zstd", level=level) for level in (23, -131073)),
    *(extension("blosc", typesize=typesize) for typesize in (0, 256)),
    *(extension("blosc", blocksize=blocksize) for blocksize in (-1, 2**40)),
    *(extension("blosc", shuffle=shuffle) for shuffle in (1, "autoshuffle")),
    *(extension("blosc", cname=cname) for cname in ("brotli", "snappy", ["lz4"])),
    *(extension("gzip", level=5, mtime=1), extension("zstd", level=1, checksum=1)),
    *(extension("zstd", level=1, dictionary="x"), extension("blosc", clevel=10)),
    *(extension("blosc", threads=2), extension("crc32c", location="start")),
]


@pytest.mark.parametrize("codec", MEANINGLESS, ids=repr)
def test_a_configuration_without_meaning_is_refused_whatever_the_data(codec: Any) -> None:
    for data in (b"", b"some data"):
        with pytest.raises(MetadataError):
            encoded_here([codec], data)


TYPES: dict[str, Any] = {
    **{name: name for name in ("bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64")},
    **{name: name for name in ("complex64", "complex128", "bfloat16", "int4", "float8_e5m2", "complex_bfloat16")},
    "date": extension("numpy.datetime64", unit="s", scale_factor=10),
    "text": extension("fixed_length_utf32", length_bytes=12),
    "bytes": extension("null_terminated_bytes", length_bytes=3),
    "raw": extension("raw_bytes", length_bytes=5),
    "struct": extension(
        "struct",
        fields=[
            {"name": "a", "data_type": "uint16"},
            {"name": "b", "data_type": extension("fixed_length_utf32", length_bytes=8)},
            {"name": "c", "data_type": "bfloat16"},
        ],
    ),
}
COMPRESSION = [[], [GZIP], [ZSTD], [BLOSC], [CRC32C], [ZSTD, CRC32C], [GZIP, ZSTD], ["gzip"], ["crc32c", "zstd"]]


def codec_of(data_type: Any, chunk_shape: tuple[int, ...], *codecs: Any) -> ChunkCodec:
    return ChunkCodec.parse(data_type, chunk_shape, parse_codecs(list(codecs), "codecs"))


def codec_stored_in(directory: Path) -> ChunkCodec:
    document = json.loads((directory / "zarr.json").read_bytes())
    return codec_of(document["data_type"], tuple(document["shape"]), *document["codecs"])


@st.composite
def chains(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], list[Any]]:
    """A data type, a chunk shape, and a chain without compression."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    orders = draw(st.lists(st.permutations(range(len(shape))), max_size=3))
    data_type = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    return data_type, shape, [*(transpose(*order) for order in orders), draw(st.sampled_from([LITTLE, BIG]))]


@pytest.mark.slow
@given(chains(), st.sampled_from(COMPRESSION), st.sampled_from([bytes, bytearray, memoryview]), st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_encoded_decodes_to_the_same_bytes(
    chain: tuple[Any, tuple[int, ...], list[Any]], compression: list[Any], kind: type, data: st.DataObject
) -> None:
    data_type, shape, codecs = chain
    codec = codec_of(data_type, shape, *codecs, *compression)
    seed = data.draw(st.integers(0, 2**32))
    plain = np.random.default_rng(seed).bytes(codec.nbytes)
    encoded = codec.encode(kind(plain))
    assert type(encoded) is bytes
    assert codec.encode(plain) == encoded
    decoded = codec.decode(kind(encoded))
    assert (bytes(decoded), decoded.format, decoded.ndim, decoded.readonly) == (plain, "B", 1, True)
    assert not codec.is_identity or encoded == plain
    # What the specification says of the chain, word by word.
    elements = np.frombuffer(plain, codec.data_type.dtype).reshape(shape)
    if codec.data_type.dtype.kind != "f":  # a change of NaN into another one is none
        assert codec_of(data_type, shape, *codecs).encode(plain) == encode_array(codecs, elements)


@pytest.mark.parametrize("dtype", ["?", "<u2", "<f2", "<c8", "<M8[10s]", "<m8[D]", "<U3", "S3", "V5"])
def test_zarr_python_writes_and_reads_elements_of_every_kind(tmp_path: Path, dtype: str) -> None:
    values = np.frombuffer(bytes(range(120)), "u1")[: 12 * np.dtype(dtype).itemsize].copy()
    if dtype == "?":
        values %= 2
    if dtype == "<U3":
        values = np.arange(36, dtype="<u4") + 1000
    values = values.view(dtype).reshape(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        stored = zarr.create_array(
            str(tmp_path),
            shape=(3, 4),
            chunks=(3, 4),
            dtype=dtype,
            filters=[zarr.codecs.TransposeCodec(order=(1, 0))],
            serializer=zarr.codecs.BytesCodec(endian="big"),
            compressors=[zarr.codecs.BloscCodec(typesize=1, cname="lz4", shuffle="shuffle")],
        )
        stored[...] = values
        codec = codec_stored_in(tmp_path)
        chunk = tmp_path / "c" / "0" / "0"
        assert bytes(codec.decode(chunk.read_bytes())) == values.tobytes()
        chunk.write_bytes(codec.encode(values[::-1].tobytes()))
        assert zarr.open_array(str(tmp_path), mode="r")[...].tobytes() == values[::-1].tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "complex128", "int4"])
def test_tensorstore_writes_the_same_chunk(name: str) -> None:
    document = array((4, 3), (4, 3), transpose(1, 0), BIG, GZIP, data_type=name, fill_value=0)
    document["fill_value"] = [0, 0] if name == "complex128" else 0
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": document}
    store = tensorstore.open(spec, create=True).result()
    values = np.arange(12).reshape(4, 3).astype(store.dtype.numpy_dtype)
    store.write(values).result()
    codec = codec_of(name, (4, 3), *document["codecs"])
    if name == "int4":  # the upper half of the byte says nothing
        assert [byte & 15 for byte in codec.decode(store.kvstore[b"c/0/0"])] == [*range(12)]
    else:
        assert bytes(codec.decode(store.kvstore[b"c/0/0"])) == values.tobytes()
    store.kvstore[b"c/0/0"] = codec.encode(values[::-1].tobytes())
    assert np.array_equal(store.read().result(), values[::-1])


@pytest.mark.parametrize(
    ("data_type", "shape", "codecs", "expected"),
    [
        ("int32", (2, 3), [LITTLE], True),
        ("int32", (2, 3), [BIG], False),
        ("int8", (2, 3), [BIG], True),
        ("int8", (2, 3), ["bytes"], True),
        ("int32", (2, 3), ["bytes"], True),
        ("int32", (2, 3), [extension("endian", endian="little"), IGNORED], True),
        ("int32", (2, 3), [LITTLE, CRC32C], False),
        ("int32", (2, 3), [transpose(1, 0), LITTLE], False),
        ("int32", (2, 3), [transpose(1, 0), transpose(1, 0), LITTLE], True),
        ("int32", (1, 3), [transpose(1, 0), LITTLE], True),
        ("int32", (2, 1, 3), [transpose(1, 0, 2), LITTLE], True),
        ("int32", (2, 1, 3), [transpose(2, 1, 0), LITTLE], False),
        ("int32", (), [transpose(), LITTLE], True),
        (TYPES["raw"], (2, 3), [BIG], True),
        (TYPES["text"], (2, 3), [BIG], False),
    ],
    ids=str,
)
def test_chunks_are_plain_where_nothing_moves_them(
    data_type: Any, shape: tuple[int, ...], codecs: list[Any], expected: bool
) -> None:
    codec = codec_of(data_type, shape, *codecs)
    assert codec.is_identity == expected
    plain = bytes(i % 251 for i in range(codec.nbytes))
    assert (codec.encode(plain) == plain) == expected


@pytest.mark.parametrize(
    ("data_type", "codecs", "reason"),
    [
        ("int32", [LITTLE, extension("numcodecs.lzma", format=9)], "numcodecs.lzma"),
        ("int32", [extension("numcodecs.delta"), LITTLE], "delta"),
        ("int32", [transpose(1, 0), extension("numcodecs.delta", dtype="<i4"), LITTLE], "libraries disagree"),
        ("int32", [extension("numcodecs.delta", dtype="<i4"), BIG], "libraries disagree"),
        ("int32", [LITTLE, extension("example.zip")], "the codec 'example.zip' cannot be decoded"),
        ("int32", [extension("example.raw"), GZIP], "the codec 'example.raw' cannot be decoded"),
        ("int32", [extension("packbits", last_bit=6)], "packbits"),
        ("int32", [extension("bitround", keepbits=0), LITTLE], "keepbits"),
        ("int32", [extension("scale_offset", scale=0), LITTLE], "scale"),
        ("complex64", [extension("scale_offset"), LITTLE], "complex64"),
        ("int32", [extension("cast_value", data_type="int8", rounding="up"), LITTLE], "rounding"),
        ("int32", [extension("cast_value", data_type="float32", out_of_range="wrap"), LITTLE], "wraps integers only"),
        ("int32", [extension("cast_value"), LITTLE], "data_type"),
        ("int32", [extension("reshape", shape=[[1], [0]]), LITTLE], "not in order"),
        ("int32", [extension("reshape", shape=[7, -1]), LITTLE], "cannot be reshaped"),
        ("int32", [extension("reshape", shape=[-1, -1]), LITTLE], "not valid"),
        ("int32", [extension("n5_default", codecs=[LITTLE])], "n5_default"),
        ("int32", [extension("zfp")], "zfp"),
        ("int32", [sharding((1, 1))], "sharding_indexed"),
        ("string", [extension("vlen-utf8")], "string vary in size"),
        ("example.type", [LITTLE], "example.type"),
        ("int32", [transpose(0, 0), LITTLE], "permutation"),
        ("int32", [transpose(0), LITTLE], "order"),
        ("int32", [extension("bytes", endian="middle")], "middle"),
        ("int32", [extension("bytes", endian="little", colour="blue")], "colour"),
        (extension("structured", fields=[["a", "int16"]]), [BIG], "libraries disagree"),
        ("int32", [LITTLE, LITTLE], "2 array → bytes"),
        ("int32", [GZIP, LITTLE], "wrong side"),
        ("int32", [], "no array → bytes"),
    ],
    ids=str,
)
def test_the_reason_why_chunks_cannot_be_decoded_is_named(data_type: Any, codecs: list[Any], reason: str) -> None:
    with pytest.raises(NotShownError, match=reason):
        codec_of(data_type, (2, 3), *codecs)


def test_chunks_that_memory_does_not_hold_are_not_decoded() -> None:
    shape = (MAX_CHUNK_NBYTES + 1,)
    for codecs in ([LITTLE, ZSTD], [BIG, CRC32C]):
        with pytest.raises(NotShownError, match="larger than"):
            codec_of("int16", shape, *codecs)
    assert codec_of("int16", (2**61,), LITTLE).nbytes == 2**62
    assert codec_of("int8", (MAX_CHUNK_NBYTES,), LITTLE, ZSTD).nbytes == MAX_CHUNK_NBYTES


@pytest.mark.parametrize("compression", COMPRESSION, ids=str)
@pytest.mark.parametrize("nbytes", [0, 1, 47, 49, 96, 5000])
def test_a_chunk_of_the_wrong_size_is_neither_read_nor_written(compression: list[Any], nbytes: int) -> None:
    codec = codec_of("int16", (4, 6), transpose(1, 0), LITTLE, *compression)
    if nbytes or not any(each == BLOSC for each in compression):
        stored = codec_of("int8", (nbytes,), "bytes", *compression).encode(bytes(nbytes)) if nbytes else b""
        with pytest.raises(CorruptionError):
            codec.decode(stored)
    with pytest.raises(RefusedError, match=f"{nbytes} bytes instead of 48"):
        codec.encode(bytes(nbytes))


ROOT = Path(__file__).parents[2]
ZEROS = 1 << 26
CHUNK_BOMBS = {
    "gzip": ([GZIP], lambda: gzip.compress(bytes(ZEROS))),
    "zstd": ([ZSTD], lambda: numcodecs.Zstd(3).encode(bytes(ZEROS))),
    "zstd behind a frame of the right size": (
        [ZSTD],
        lambda: numcodecs.Zstd(3).encode(bytes(1 << 20)) + numcodecs.Zstd(3).encode(bytes(ZEROS)),
    ),
    "zstd that states a terabyte": ([ZSTD], lambda: b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\1\0\0"),
    "blosc": ([BLOSC], lambda: numcodecs.Blosc("zstd", 9).encode(bytes(ZEROS))),
    "blosc that states 4 gigabytes": ([BLOSC], lambda: struct.pack("<BBBBIII", 2, 1, 0x12, 1, 2**32 - 1, 2**20, 16)),
    "gzip in gzip": ([GZIP, GZIP], lambda: gzip.compress(gzip.compress(bytes(ZEROS)))),
    "gzip members": ([GZIP], lambda: gzip.compress(bytes(1 << 20)) * 64),
    "gzip without a checksum": ([GZIP, CRC32C], lambda: gzip.compress(bytes(ZEROS))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHUNK_BOMBS)
def test_bombs_are_stopped_at_the_size_of_the_chunk(name: str) -> None:
    compression, make = CHUNK_BOMBS[name]
    codec = codec_of("int16", (1 << 19,), BIG, *compression)
    data = make()
    tracemalloc.start()
    with pytest.raises(CorruptionError):
        codec.decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (6 << 20) + 2 * len(data)


@pytest.mark.slow
def test_a_bomb_costs_no_memory_that_only_the_kernel_sees() -> None:
    """Codecs allocate behind Python's back, so a process of its own tells."""
    script = """
import resource
from tests.format.test_codecs import CHUNK_BOMBS, CorruptionError, LITTLE, codec_of
bombs = [(codec_of("int16", (1 << 19,), LITTLE, *codecs), make()) for codecs, make in CHUNK_BOMBS.values()]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hog = bytearray(b"x") * (before << 10)  # at least as much as making the bombs took, so that the peak moves with use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, data in bombs * 3:
    try:
        codec.decode(data)
    except CorruptionError:
        continue
    raise SystemExit("a bomb was decoded")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 24 << 10  # KiB


FILTERS_THAT_GROW = [
    {"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<c16"},
    {"id": "delta", "dtype": "<f8", "astype": "|u1"},
    {"id": "fixedscaleoffset", "scale": 2, "offset": 1, "dtype": "<f8", "astype": "|u1"},
    {"id": "quantize", "digits": 3, "dtype": "<f8", "astype": "<f2"},
    {"id": "packbits"},
]


@pytest.mark.parametrize("codec", FILTERS_THAT_GROW, ids=lambda codec: str(codec["id"]))
def test_a_filter_that_makes_more_than_the_limit_makes_nothing(codec: dict[str, Any]) -> None:
    data = bytes(2**22)
    decode_numcodec(codec, data[:8], 2**10)
    tracemalloc.start()
    with pytest.raises(OversizedDataError):
        decode_numcodec(codec, data, 2**23)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_elements_of_one_byte_are_scaled_in_little_more_memory_than_they_have() -> None:
    codec = {"id": "fixedscaleoffset", "scale": 2, "offset": 1, "dtype": "|u1", "astype": "|u1"}
    values = np.random.default_rng(1).integers(0, 200, 3_000_001).astype("u1")
    expected = numcodecs.get_codec(dict(codec)).decode(values)
    tracemalloc.start()
    found = decode_numcodec(codec, values.tobytes(), 2**23)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bytes(found) == expected.tobytes()
    assert peak < 16 * 2**20


def test_a_cast_to_more_than_the_limit_makes_nothing() -> None:
    codec = Extension("cast_value", {"data_type": "uint8"})
    cast, _ = CastValue.parse(codec, DataType.parse("float64"))
    data = bytes(2**22)
    cast.decode(data[:8], 64)
    tracemalloc.start()
    with pytest.raises(OversizedDataError):
        cast.decode(data, 2**23)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
