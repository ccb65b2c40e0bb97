"""JSON values for property tests: arbitrary ones, and documents of the corpus with a part replaced."""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from tests.support.corpus import BIG, BLOSC, CASES, CRC32C, GZIP, LITTLE, sharding, transpose

WORDS = [
    *("sharding_indexed", "bytes", "endian", "transpose", "crc32c", "gzip", "regular", "rectilinear", "inline"),
    *("zarrs.regular_bounded", "default", "v2", "/", ".", "start", "end", "little", "NaN", "array", "group", "", "F"),
]
_MEMBERS = [
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
    *("attributes", "storage_transformers", "dimension_names", "consolidated_metadata", "name", "configuration"),
    *("must_understand", "chunk_shape", "chunk_shapes", "kind", "index_codecs", "index_location", "order", "endian"),
]
_INTEGERS = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([2**31, 2**32, 2**36, 2**53 + 1, 2**63 - 1, 2**64 - 1, 2**64, 10**30, 10**400, -(2**63)]),
)
scalars = st.one_of(
    st.none(), st.booleans(), _INTEGERS, st.floats(width=32), st.sampled_from(WORDS), st.text(max_size=5)
)
_codecs = st.sampled_from([LITTLE, BIG, GZIP, BLOSC, CRC32C, transpose(1, 0), sharding((2, 3)), sharding((1, 1), GZIP)])
_keys = st.one_of(st.sampled_from(_MEMBERS), st.text(max_size=5))
json_values = st.recursive(
    st.one_of(scalars, _codecs),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=4)),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[str | int, ...]]:
    """Paths to all values within *value*, itself first."""
    found: list[tuple[str | int, ...]] = [()]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        found += [(key, *place) for place in places(child)]
    return found


def replaced(document: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy of *document* with *value* at *place*."""
    if not place:
        return value
    document = deepcopy(document)
    target = document
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    return document


@st.composite
def mutated_documents(draw: st.DrawFn) -> Any:
    """A document of the corpus with one to three values replaced by something else, or by one from elsewhere in it."""
    document: Any = draw(st.sampled_from(CASES)).document
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(document)))
        value: Any = draw(json_values)
        if draw(st.booleans()):
            value = document
            for step in draw(st.sampled_from(places(document))):
                value = value[step]
        document = replaced(document, place, deepcopy(value))
    return document
