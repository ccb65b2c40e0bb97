"""The fingerprint changes with what stored bytes mean, and with nothing else."""

from typing import Any

import pytest
from hypothesis import given, settings

from shardfs.errors import MetadataError
from shardfs.format.metadata import FINGERPRINT_NBYTES, ArrayMetadata, fingerprint, parse_array, parse_node
from shardfs.format.sharding import MAX_LEVELS
from tests.support.corpus import (
    BIG,
    CRC32C,
    GZIP,
    LITTLE,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.json_values import mutated_documents


def of(document: Any) -> bytes:
    return fingerprint(parse_array(document))


def stored(*codecs: Any, grid: Any = (4, 6), **members: Any) -> dict[str, Any]:
    return array((7, 11), grid, *(codecs or (sharding((2, 3)),)), **members)


def test_it_is_the_same_in_every_version() -> None:
    """Journals hold it."""
    assert of(stored()).hex() == "061a360cff35b24f23805d580da78bdd"


SAME = [
    stored(),
    stored(sharding((2, 3), index_location="end")),
    stored(sharding((2, 3), extension("endian", endian="little"), index_codecs=[LITTLE, "crc32c"])),
    stored(
        sharding((2, 3), index_codecs=[LITTLE, {"name": "crc32c", "configuration": {}}]) | {"must_understand": True}
    ),
    stored(chunk_key_encoding="default"),
    stored(chunk_key_encoding={"name": "default", "configuration": {}}),
    stored(data_type={"name": "int32", "configuration": {}}),
]


@pytest.mark.parametrize("document", SAME)
def test_spelling_does_not_count(document: dict[str, Any]) -> None:
    assert of(document) == of(SAME[0])


def test_what_only_steers_the_encoder_does_not_count() -> None:
    other = [LITTLE, extension("gzip", level=9)]
    assert of(stored(sharding((2, 3), LITTLE, GZIP))) == of(stored(sharding((2, 3), *other)))
    assert of(stored(sharding((2, 3)), GZIP)) == of(stored(sharding((2, 3)), extension("gzip", level=1)))


def test_byte_order_counts_where_there_is_one() -> None:
    little, big = sharding((2, 3), LITTLE), sharding((2, 3), BIG)
    assert of(stored(little)) != of(stored(big))
    assert of(stored(little, data_type="uint8")) == of(stored(big, data_type="uint8"))
    index = sharding((2, 3), LITTLE, index_codecs=[BIG, CRC32C])
    assert of(stored(little, data_type="uint8")) != of(stored(index, data_type="uint8"))


DIFFERENT = [
    stored(),
    stored(LITTLE),
    stored(grid=(4, 12)),
    stored(grid=rectilinear(4, 6)),
    stored(grid=regular_bounded(4, 6)),
    stored(sharding((2, 2))),
    stored(sharding((2, 3), LITTLE, GZIP)),
    stored(sharding((2, 3), LITTLE, CRC32C)),
    stored(sharding((2, 3)), CRC32C),
    stored(transpose(0, 1), sharding((2, 3))),
    stored(sharding((2, 3), index_location="start")),
    stored(sharding((2, 3), index_codecs=[LITTLE])),
    stored(sharding((2, 3), sharding((2, 3)))),
    stored(sharding((2, 3), sharding((1, 3)))),
    stored(data_type="uint32"),
    stored(data_type=extension("int32", bits=31)),
    stored(chunk_key_encoding="v2"),
    stored(chunk_key_encoding=extension("default", separator=".")),
    stored(chunk_key_encoding="example.hash"),
    stored(sharding((2, 3), extension("example.raw", a=1))),
    stored(sharding((2, 3), extension("example.raw", a=True))),
]


def test_everything_else_tells_arrays_apart() -> None:
    assert len({of(document) for document in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.slow
def test_deep_nesting_does_no_harm() -> None:
    def nested(depth: int, codec: Any) -> dict[str, Any]:
        for _ in range(depth):
            codec = sharding((2, 3), codec)
        return stored(codec)

    assert of(nested(MAX_LEVELS, LITTLE)) != of(nested(MAX_LEVELS, BIG))
    codecs = [LITTLE]
    for _ in range(5000):
        codec = [sharding((2, 3), LITTLE)]
        codec[0]["configuration"]["codecs"], codecs = codecs, codec
    with pytest.raises(MetadataError):
        of(stored(*codecs))
    while codecs[0]["name"] == "sharding_indexed":  # a deep tree is taken apart without recursion
        codecs = codecs[0]["configuration"].pop("codecs")
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(MetadataError):
        of(stored(extension("example.raw", a=deep)))
    while deep:
        deep = deep.pop()


@pytest.mark.slow
@given(mutated_documents())
@settings(max_examples=133)
def test_every_valid_document_has_one(document: Any) -> None:
    try:
        node = parse_node(document)
    except MetadataError:
        return
    if isinstance(node, ArrayMetadata):
        assert len(fingerprint(node)) == FINGERPRINT_NBYTES
