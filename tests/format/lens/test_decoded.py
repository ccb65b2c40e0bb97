"""Documents of decoded chunks: readers open them, edits find their way back, and no other chunk is taken for one."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shardfs.errors import NotShownError, RefusedError
from shardfs.format.lens.unsharded import (
    UnshardedArray,
    accept_decoded,
    codec_of,
    decoded_document,
    describe,
    require_decoded,
    reshard,
)
from shardfs.format.metadata import parse_array, parse_node
from tests.support.corpus import (
    BASE,
    BIG,
    CRC32C,
    GZIP,
    IGNORED,
    LITTLE,
    Case,
    array,
    extension,
    sharding,
    transpose,
)
from tests.support.parametrize import every_case
from tests.support.readers import READERS, assert_same

UNDECODABLE = ("vlen-utf8", "example.raw", "example.invert", "example.nothing")

UNKNOWN_TO_TENSORSTORE = ("type-datetime64", "dimension-names-repeated")


def shown(document: Any) -> UnshardedArray:
    return describe(parse_array(document))


@pytest.mark.slow
@every_case
def test_readers_see_the_array_in_decoded_chunks(case: Case, tmp_path: Path) -> None:
    encoded = case.encode()
    unsharded = shown(case.document)
    if any(name in json.dumps(case.document) for name in UNDECODABLE):
        with pytest.raises(NotShownError):
            decoded_document(unsharded)
        return
    document, codec = decoded_document(unsharded), codec_of(unsharded)
    assert math.prod(codec.chunk_shape) * codec.data_type.nbytes == codec.nbytes
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    for coords, payload in encoded.inner.items():
        path = tmp_path / unsharded.key_encoding.encode(coords)
        path.parent.mkdir(parents=True, exist_ok=True)
        decoded = codec.decode(payload)
        assert len(decoded) == codec.nbytes
        assert bytes(codec.decode(codec.encode(decoded))) == bytes(decoded)
        path.write_bytes(decoded)
    for name, read in READERS.items():
        if name == "zarr" or case.name not in UNKNOWN_TO_TENSORSTORE:
            assert_same(read(tmp_path), encoded.values)


STORED = [
    BASE,
    array((8, 6), (4, 6), transpose(1, 0), sharding((3, 2), BIG, GZIP, CRC32C)),
    array((8, 6), (4, 6), "bytes", "zstd", data_type="uint8"),
    array((8, 6), (4, 6), transpose(1, 0), BIG),
]


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: json.dumps(stored["codecs"])[:40])
def test_edits_of_a_decoded_document_are_edits_of_the_stored_one(stored: dict[str, Any]) -> None:
    changes = {"attributes": {"edited": 2**70}, "shape": [9, 3], "fill_value": 5, "dimension_names": ["y", None]}
    unsharded = shown(stored)
    document = decoded_document(unsharded)
    assert reshard(parse_array(stored), accept_decoded(unsharded, parse_array(document))) == stored
    accepted = accept_decoded(unsharded, parse_array(document | changes))
    assert accepted.document == unsharded.document | changes
    assert parse_node(accepted.document) == accepted
    assert reshard(parse_array(stored), accepted) == stored | changes
    for spelling in ("bytes", extension("endian", endian="little"), LITTLE | {"must_understand": True}):
        assert accept_decoded(unsharded, parse_array(document | {"codecs": [spelling]})).document == unsharded.document


NOT_PLAIN: list[list[Any]] = [
    [BIG],
    [LITTLE, GZIP],
    [LITTLE, CRC32C],
    [transpose(1, 0), LITTLE],
    [transpose(0, 1), LITTLE],
    [LITTLE, IGNORED],
    [IGNORED, LITTLE],
    [extension("bytes", endian="middle")],
    [extension("bytes", endian="little", colour="blue")],
    [extension("example.raw")],
    [sharding((1, 1))],
    [LITTLE, LITTLE],
    [],
]


@pytest.mark.parametrize("codecs", NOT_PLAIN, ids=lambda codecs: json.dumps(codecs)[:60])
def test_what_does_not_say_that_chunks_are_decoded_is_refused(codecs: list[Any]) -> None:
    unsharded = shown(BASE)
    written = parse_array(decoded_document(unsharded) | {"codecs": codecs})
    for refused in (lambda: accept_decoded(unsharded, written), lambda: require_decoded(written)):
        with pytest.raises(RefusedError):
            refused()
