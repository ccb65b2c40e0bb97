"""Whatever a document says, the answer is a description, a reason, or a refusal; quick, and in bounded memory."""

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, NotUnshardable
from shardfs.format.document import encode_json
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v3 import V3, Consolidated
from shardfs.format.metadata import ArrayMetadata, parse_document
from tests.support.corpus import BASE, CASES, GZIP, LITTLE, array, edited, extension, rectilinear, sharding
from tests.support.encoder import chunk_edges
from tests.support.json_values import mutated_documents


def outcome(data: bytes) -> dict[str, Any] | str:
    """What would be shown, or the reason why nothing else than what is stored is."""
    try:
        node = parse_document(data)
        if not isinstance(node, ArrayMetadata):
            encode_json(Consolidated(V3()).get(node.document))
            return node.document
        unsharded = describe(node)
        encode_json(unsharded.document)
    except (MetadataError, NotUnshardable) as error:
        return str(error)
    grid = unsharded.grid
    assert grid.nchunks == math.prod(grid.grid_shape)
    if grid.nchunks:
        for coords in ((0,) * grid.ndim, tuple(n - 1 for n in grid.grid_shape)):
            place = grid.locate(coords)
            assert grid.coords(place) == coords
            assert all(0 <= i < math.prod(shape) for i, shape in zip(place.entries, place.shapes, strict=True))
    return unsharded.document


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_texts_with_a_part_replaced_are_judged(data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(st.sampled_from(CASES)).document).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    outcome(bytes(text))


@pytest.mark.slow
@given(mutated_documents())
@settings(max_examples=100)
def test_copies_with_a_part_replaced_are_judged(document: Any) -> None:
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"metadata": {"a": document, "b": BASE}}}
    shown = outcome(json.dumps(group).encode())
    assert isinstance(shown, dict)


@pytest.mark.slow
@given(mutated_documents())
@settings(max_examples=200)
def test_what_is_shown_is_a_valid_document_with_the_same_extent(document: Any) -> None:
    shown = outcome(json.dumps(document).encode())
    if isinstance(shown, dict) and shown.get("node_type") == "array":
        array = parse_document(encode_json(shown))
        assert isinstance(array, ArrayMetadata)
        assert not array.is_sharded
        assert list(array.shape) == document["shape"]
        assert len(chunk_edges(shown) if math.prod(array.shape) < 10**5 else array.shape) == array.ndim


DEEP: Any = sharding((1, 1))
for _ in range(300):
    DEEP = sharding((1, 1), DEEP, GZIP)


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [
        edited(("shape",), [10**18, 10**18]),
        edited(("shape",), [0, 10**400]),
        edited(("shape",), [1] * 20_000),
        edited(("chunk_grid",), rectilinear([[4, 10**12]], [[6, 10**300]])),
        edited(("chunk_grid",), rectilinear([[4, 1]] * 10_000, [12])),
        edited(("chunk_grid",), rectilinear(list(range(2, 5_000, 2)), [12])),
        array((10**9,), (10**9,), sharding((1,))),
        array((1,) * 32, (10**9,) * 32, sharding((1,) * 32)),
        edited(("codecs",), [DEEP]),
        edited(("codecs",), [sharding((2, 3), *[GZIP] * 5_000)]),
        edited(("codecs",), [sharding((2, 3)), *[GZIP] * 5_000]),
        edited(("codecs",), [sharding((2, 3), index_codecs=[LITTLE, *[extension("crc32c")] * 5_000])]),
        edited(("codecs",), [*[extension("transpose", order=[1, 0])] * 5_000, sharding((2, 3))]),
        edited(("attributes",), {"many": [[]] * 20_000}),
        edited(("dimension_names",), ["x"] * 20_000),
    ],
    ids=lambda document: json.dumps(document)[:30],
)
def test_a_hostile_document_costs_little_more_than_its_size(document: Any) -> None:
    data = json.dumps(document).encode()
    tracemalloc.start()
    outcome(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (4 << 20) + 60 * len(data)
