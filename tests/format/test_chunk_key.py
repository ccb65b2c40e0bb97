"""Chunk keys: coordinates to names and back, one to one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardfs.errors import MetadataError
from shardfs.format.chunk_key import ChunkKeyEncoding, parse_coordinate
from shardfs.format.metadata import Extension
from tests.support.corpus import Case, extension
from tests.support.encoder import chunk_key, shards
from tests.support.parametrize import every_case

ENCODINGS = [ChunkKeyEncoding(name, separator) for name in ("default", "v2") for separator in "/."]
encodings = st.sampled_from(ENCODINGS)
coordinates = st.integers(0, 2**63 - 1)


def parsed(value: Any) -> ChunkKeyEncoding:
    return ChunkKeyEncoding.parse(Extension.parse(value, "chunk_key_encoding"))


@given(encodings, st.lists(coordinates, max_size=6).map(tuple))
def test_decoding_undoes_encoding(encoding: ChunkKeyEncoding, coords: tuple[int, ...]) -> None:
    assert encoding.decode(encoding.encode(coords), len(coords)) == coords


@given(
    encodings,
    st.one_of(st.text("0123456789c./+- ", max_size=8), st.text(max_size=6)),
    st.integers(0, 4),
)
@example(ENCODINGS[0], "c/0/", 1)
@example(ENCODINGS[1], "c", 0)
@example(ENCODINGS[2], "0/01", 2)
def test_a_key_has_one_spelling(encoding: ChunkKeyEncoding, key: str, ndim: int) -> None:
    coords = encoding.decode(key, ndim)
    if coords is not None:
        assert len(coords) == ndim
        assert encoding.encode(coords) == key


@every_case
def test_shards_have_the_keys_of_the_specification(case: Case) -> None:
    encoding = parsed(case.document["chunk_key_encoding"])
    ndim = len(case.document["shape"])
    for coords, _, _ in shards(case.document):
        key = chunk_key(case.document, coords)
        assert encoding.encode(coords) == key
        assert encoding.decode(key, ndim) == coords
        root = encoding.root(ndim)
        assert not root or key.startswith(root + "/")
        assert encoding.is_nested(ndim) or "/" not in key


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "00",
            "01",
            "-0",
            "-1",
            "+1",
            " 1",
            "1 ",
            "1\n",
            "1_0",
            "1.0",
            "1e3",
            "0x1",
            "١",
            "１",
            "²",
            "c",
            "9" * 20,
        ),
        *("9" * 10_000_000, "\udc80", "1\0"),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_other_spellings_of_numbers_are_no_coordinates(text: str) -> None:
    assert parse_coordinate(text) is None


@pytest.mark.parametrize("number", [0, 1, 9, 10, 2**53, 2**63 - 1])
def test_canonical_decimals_are_coordinates(number: int) -> None:
    assert parse_coordinate(str(number)) == number


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
@pytest.mark.parametrize(
    "key", ["", "c", "c/", "c.", "/0", "c//0", "c/0.0", "C/0", "zarr.json", "c0", ".0", "0.", "c/c/0"]
)
def test_names_that_are_no_keys_are_told_apart(encoding: ChunkKeyEncoding, key: str) -> None:
    assert encoding.decode(key, 1) is None


def test_an_array_without_axes_has_one_key() -> None:
    assert {str(e): (e.encode(()), e.root(0), e.is_nested(0)) for e in ENCODINGS} == {
        str(e): ("c" if e.name == "default" else "0", "", False) for e in ENCODINGS
    }
    for encoding in ENCODINGS:
        for key in ("", "c/", "c/0", "0/0", "1", "c.0"):
            assert encoding.decode(key, 0) is None


@pytest.mark.parametrize(
    ("value", "separator"),
    [("default", "/"), ("v2", "."), (extension("default"), "/"), (extension("v2", separator="/"), "/")],
)
def test_each_encoding_has_its_default_separator(value: Any, separator: str) -> None:
    encoding = parsed(value)
    assert encoding.separator == separator
    assert parsed(encoding.to_json()) == encoding
    assert encoding.to_json()["configuration"] == {"separator": separator}


@pytest.mark.parametrize(
    "value",
    [
        "example.hash",
        extension("default", separator=None),
        extension("default", separator=["/"]),
        extension("default", separator=""),
        extension("v2", separator="//"),
        extension("v2", separator=".", prefix="x"),
    ],
)
def test_unknown_encodings_are_refused(value: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(value)
