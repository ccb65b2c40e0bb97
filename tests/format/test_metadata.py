"""Documents: what is accepted, what is refused, and that nothing is lost on the way."""

import json
import math
from typing import Any

import pytest

from shardfs.errors import MetadataError
from shardfs.format import document as document_module
from shardfs.format.document import Extension, encode_json, parse_json
from shardfs.format.metadata import ArrayMetadata, GroupMetadata, parse_document
from tests.support.corpus import edited

GROUP = {"zarr_format": 3, "node_type": "group"}


def parsed(document: Any) -> ArrayMetadata | GroupMetadata:
    return parse_document(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("fill_value", "NaN"),
        ("fill_value", -0.0),
        ("fill_value", 2**64 - 1),
        ("fill_value", ["0x7ff8000000000001", "-Infinity"]),
        ("dimension_names", [None, "x"]),
        ("dimension_names", [None, None]),
        ("attributes", {"huge": 10**4000, "negative": -(10**4000), "exact": 2**53 + 1}),
        ("attributes", {"bare": [math.nan, math.inf, -math.inf]}),
        ("attributes", {"half a pair": "\ud800", "µ": "\U0001f52c \u0000"}),
        ("attributes", {"one": 1, "point": 1.0, "minus": -0.0, "tiny": 5e-324}),
        ("attributes", {"": {"": [[], {}, None, True]}}),
        ("data_type", {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}}),
        ("data_type", "example.unknown"),
        ("example.note", {"must_understand": False, "codecs": ["sharding_indexed"]}),
        ("storage_transformers", []),
    ],
)
def test_members_that_mean_nothing_here_are_kept_as_they_are(member: str, value: Any) -> None:
    array = parsed(edited((member,), value))
    shown = encode_json(array.document).decode()
    assert json.dumps(json.loads(shown)[member]) == json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{}{}",
        b"{} x",
        b"[1,]",
        b"'a'",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\xff{}",
        b'"\xff"',
        "{}".encode("utf-16")[:-1],
        b'{"a": 1e400}',
        b'{"a": -1e400}',
        b'{"a": [1E+309]}',
        b'{"a": 1%s}' % (b"0" * 5000),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_or_cannot_be_written_again_is_refused(text: bytes) -> None:
    with pytest.raises(MetadataError):
        parse_json(text)


def test_a_document_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "MAX_DOCUMENT_NBYTES", 8)
    assert parse_json(b"[1, 2] \n") == [1, 2]
    with pytest.raises(MetadataError, match="9 bytes"):
        parse_json(b"[1, 2, ]x")


@pytest.mark.slow
def test_a_document_that_is_nested_too_deeply_to_be_written_is_refused() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(MetadataError):
        encode_json(nested)
    while nested:
        nested = nested.pop()


@pytest.mark.parametrize("depth", [100, 800, 940, 960, 980, 990, 1000])
def test_what_can_be_read_can_be_written(depth: int) -> None:
    """Else a document would be accepted, and then no file of its directory could be shown."""
    text = b'{"a": %s}' % (b"[" * depth + b"]" * depth)
    try:
        document = parse_json(text)
    except MetadataError:
        return
    encode_json(document)


@pytest.mark.parametrize(
    "value",
    [None, 1, [], {}, {"name": 1}, {"name": "x", "extra": 1}, {"name": "x", "configuration": None}]
    + [{"name": "x", "must_understand": value} for value in (None, 0, "false")],
)
def test_what_is_no_extension_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(MetadataError, match="some place"):
        Extension.parse(value, "some place")


def test_a_document_is_utf_8_and_half_a_pair_of_surrogates_stays_an_escape() -> None:
    attributes = {"units": "°C", "rain": "🌧", "odd": "\udcff x \ud800", "controls": "\x00\x7f\u2028\\u00b0"}
    for document in (attributes, {**attributes, "deep": [[[[[1]]]]] * 99}):
        encoded = encode_json(document)
        assert json.loads(encoded.decode()) == document
        assert "°C" in encoded.decode()
        assert b"\\udcff x \\ud800" in encoded


def test_a_large_document_is_written_no_longer_than_it_was() -> None:
    text = json.dumps({**GROUP, "attributes": {"many": [1] * 200_000}}, separators=(",", ":"))
    assert encode_json(parse_json(text.encode())).decode() == text + "\n"
