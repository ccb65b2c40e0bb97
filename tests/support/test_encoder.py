"""The encoder against native readers, worked examples and the corpus against itself."""

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import CASES, LITTLE, array, extension, sharding, write_case
from tests.support.encoder import EMPTY, Layout, encode
from tests.support.readers import READERS, assert_same


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "at_least"), [("zarr", 125), ("tensorstore", 115)])
def test_a_native_reader_sees_the_values_of_all_but_a_few_that_it_refuses(
    tmp_path: Path, reader: str, at_least: int
) -> None:
    refused = []
    for case in CASES:
        encoded = write_case(case, tmp_path / case.name)
        try:
            found = READERS[reader](tmp_path / case.name)
        except (ValueError, TypeError, KeyError):
            refused.append(case.name)
        else:
            assert_same(found, encoded.values)
    assert len(CASES) - len(refused) >= at_least, refused


def entries(*pairs: tuple[int, int]) -> bytes:
    return struct.pack(f"<{2 * len(pairs)}Q", *(number for pair in pairs for number in pair))


EMPTY_ENTRY = (EMPTY, EMPTY)


@pytest.mark.parametrize(
    ("values", "absent", "layout", "location", "shard"),
    [
        ([1, 2, 3, 4], [], Layout(), "end", b"\1\2\3\4" + entries((0, 2), (2, 2))),
        ([1, 2, 3, 4], [], Layout(), "start", entries((32, 2), (34, 2)) + b"\1\2\3\4"),
        ([1, 2, 3, 4], [(0,)], Layout(), "end", b"\3\4" + entries(EMPTY_ENTRY, (0, 2))),
        ([1, 2, 3, 4], [], Layout("reversed"), "end", b"\3\4\1\2" + entries((2, 2), (0, 2))),
        ([1, 2, 3, 4], [], Layout("reversed"), "start", entries((34, 2), (32, 2)) + b"\3\4\1\2"),
        ([1, 2, 1, 2], [], Layout(shared=True), "end", b"\1\2" + entries((0, 2), (0, 2))),
        ([1, 2, 1, 2], [], Layout(), "end", b"\1\2\1\2" + entries((0, 2), (2, 2))),
        ([1, 2, 3], [], Layout(), "end", b"\1\2\3\7" + entries((0, 2), (2, 2))),
        ([1, 2], [], Layout(), "end", b"\1\2" + entries((0, 2), EMPTY_ENTRY)),
        ([1, 2], [], Layout(store_beyond=True), "end", b"\1\2\7\7" + entries((0, 2), (2, 2))),
        ([1, 2], [(0,)], Layout(keep_empty_shards=True), "end", b"\xff" * 32),
        ([1, 2], [(0,)], Layout(keep_empty_shards=True), "start", b"\xff" * 32),
        ([1, 2], [(0,)], Layout(), "end", None),
    ],
)
def test_a_shard_byte_for_byte(
    values: list[int], absent: list[tuple[int]], layout: Layout, location: str, shard: bytes | None
) -> None:
    codec = sharding((2,), extension("bytes"), index_codecs=[LITTLE], index_location=location)
    document = array((len(values),), (4,), codec, data_type="uint8", fill_value=7)
    encoded = encode(document, np.array(values, np.uint8), frozenset(absent), layout)
    assert encoded.files.get("c/0") == shard
