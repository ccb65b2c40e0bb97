"""Encoding by codecs: decoders that are not ours read it, and a configuration without meaning is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.codecs import decode
from shardfs.format.encoding import encode
from shardfs.format.metadata import parse_codecs
from tests.support.corpus import BLOSC, CRC32C, GZIP, LITTLE, ZSTD, array, extension
from tests.support.readers import READERS, assert_same

CHECKED = extension("zstd", level=-5, checksum=True)
LZ4 = extension("blosc", cname="lz4", clevel=1, shuffle="bitshuffle", typesize=2, blocksize=0)
ZLIB = extension("blosc", cname="zlib", clevel=9, shuffle="noshuffle", blocksize=256)
CHAINS = [[], [GZIP], [ZSTD], [CHECKED], [BLOSC], [LZ4], [ZLIB], [CRC32C], [CRC32C, CRC32C], [CRC32C, ZSTD, GZIP]]
SHORT = [["gzip"], ["zstd"], ["blosc"], ["crc32c"], [extension("blosc", typesize=8)]]

every_chain = pytest.mark.parametrize("codecs", CHAINS + SHORT, ids=repr)


def encoded(codecs: list[Any], data: bytes) -> bytes:
    return encode(parse_codecs(codecs, "codecs"), data)


@every_chain
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@given(data=st.one_of(st.binary(min_size=1), st.integers(1, 5000).map(lambda size: b"ab" * size)))
@settings(max_examples=20)
def test_what_is_encoded_from_any_buffer_decodes_to_the_same(codecs: list[Any], kind: type, data: bytes) -> None:
    result = encode(parse_codecs(codecs, "codecs"), kind(data))
    assert type(result) is bytes
    assert bytes(decode(parse_codecs(codecs, "codecs"), result, len(data))) == data


@pytest.mark.parametrize(
    "codecs", [codecs for codecs in CHAINS if codecs[:1] not in ([BLOSC], [LZ4], [ZLIB])], ids=repr
)
def test_nothing_encodes_and_decodes_to_nothing(codecs: list[Any]) -> None:
    assert bytes(decode(parse_codecs(codecs, "codecs"), encoded(codecs, b""), 0)) == b""


@pytest.mark.parametrize(
    ("codec", "decoder"),
    [
        (GZIP, gzip.decompress),
        (CHECKED, numcodecs.Zstd().decode),
        (LZ4, numcodecs.Blosc().decode),
        (CRC32C, lambda data: data[:-4]),
    ],
    ids=["gzip", "zstd", "blosc", "crc32c"],
)
def test_other_decoders_read_it(codec: Any, decoder: Any) -> None:
    data = bytes(range(256)) * 40
    assert bytes(decoder(encoded([codec], data))) == data


def test_a_crc32c_is_little_endian_behind_the_data() -> None:
    assert encoded([CRC32C], b"123456789") == b"123456789" + (0xE3069283).to_bytes(4, "little")
    twice = b"123456789" + (0xE3069283).to_bytes(4, "little")
    assert encoded([CRC32C, CRC32C], b"123456789") == twice + google_crc32c.value(twice).to_bytes(4, "little")


@pytest.mark.parametrize("codecs", [[GZIP], [CHECKED], [BLOSC], [ZLIB], [CRC32C], [ZSTD, CRC32C]], ids=repr)
@pytest.mark.parametrize("reader", READERS)
def test_readers_of_zarr_read_a_chunk_that_was_encoded(tmp_path: Path, reader: str, codecs: list[Any]) -> None:
    codecs = [
        extension("blosc", **{"typesize": 4, **codec["configuration"]}) if codec["name"] == "blosc" else codec
        for codec in codecs
    ]
    values = np.arange(600, dtype=np.int32).reshape(20, 30)
    (tmp_path / "zarr.json").write_text(json.dumps(array((20, 30), (20, 30), LITTLE, *codecs)))
    (tmp_path / "c" / "0").mkdir(parents=True)
    (tmp_path / "c" / "0" / "0").write_bytes(encoded(codecs, values.tobytes()))
    assert_same(READERS[reader](tmp_path), values)


def test_the_level_and_the_checksum_are_those_of_the_configuration() -> None:
    data = b"".join(str(i * i).encode() for i in range(20_000))
    assert len(encoded([extension("gzip", level=9)], data)) < len(encoded([extension("gzip", level=1)], data))
    low, high = (encoded([extension("zstd", level=level)], data) for level in (1, 19))
    assert (low, high) == (numcodecs.Zstd(1).encode(data), numcodecs.Zstd(19).encode(data))
    assert low != high
    plain, checked = (encoded([extension("zstd", level=1, checksum=value)], data) for value in (False, True))
    assert len(checked) == len(plain) + 4
    stored = encoded([extension("blosc", cname="lz4", clevel=0, shuffle="noshuffle", typesize=1)], data)
    assert stored[16:] == data


def test_the_same_data_gives_the_same_bytes() -> None:
    for codecs in CHAINS:
        assert encoded(codecs, b"some text" * 99) == encoded(codecs, b"some text" * 99)


@pytest.mark.parametrize(
    "codec",
    [
        extension("gzip", level=10),
        extension("gzip", level=-1),
        extension("gzip", level="5"),
        extension("gzip", level=True),
        extension("gzip", level=5, mtime=1),
        extension("zstd", level=23),
        extension("zstd", level=-131073),
        extension("zstd", level=1, checksum=1),
        extension("zstd", level=1, dictionary="x"),
        extension("blosc", cname="brotli"),
        extension("blosc", cname=["lz4"]),
        extension("blosc", clevel=10),
        extension("blosc", shuffle=1),
        extension("blosc", shuffle="autoshuffle"),
        extension("blosc", typesize=0),
        extension("blosc", typesize=256),
        extension("blosc", blocksize=-1),
        extension("blosc", blocksize=2**40),
        extension("blosc", threads=2),
        extension("crc32c", location="start"),
    ],
    ids=repr,
)
def test_a_configuration_without_meaning_is_refused_whatever_the_data(codec: Any) -> None:
    for data in (b"", b"some data"):
        with pytest.raises(MetadataError):
            encoded([codec], data)


def test_more_than_blosc_can_hold_is_refused() -> None:
    untouched = memoryview(np.empty(2**31, np.uint8))
    with pytest.raises(RefusedError, match="blosc"):
        encode(parse_codecs([BLOSC], "codecs"), untouched)
