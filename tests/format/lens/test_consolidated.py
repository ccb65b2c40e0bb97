"""Consolidated metadata: copies of sharded arrays are rewritten and rewritten back, everything else is kept."""

import json
import tracemalloc
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.document import MAX_DOCUMENT_NBYTES
from shardfs.format.lens import NodeContext
from shardfs.format.lens.show import read_broken, read_document
from shardfs.format.lens.unsharded import describe
from shardfs.format.lens.v3 import V3, Consolidated, every_copy
from shardfs.format.metadata import parse_array
from tests.support.corpus import (
    BASE,
    BROKEN,
    CASES,
    LITTLE,
    array,
    edited,
    extension,
    sharding,
)

PLAIN = array((4,), (2,), LITTLE)
BROKEN_ARRAY = edited(("codecs", 0, "configuration", "chunk_shape"), [2, 4])


def group(metadata: Any = None, **members: Any) -> dict[str, Any]:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"kept": 2**70}}
    if metadata is not None:
        document["consolidated_metadata"] = {
            "kind": "inline",
            "must_understand": False,
            "metadata": metadata,
            **members,
        }
    return document


UNSHARDED = Consolidated(V3())
DECODED = Consolidated(V3(decodes=True))


def resharded(document: Any, nodes: Any, stored: dict[str, Any] | None = None) -> Any:
    return UNSHARDED.put(stored, document, nodes)


def shown(document: dict[str, Any]) -> dict[str, Any]:
    return describe(parse_array(document)).document


def test_everything_else_is_kept_in_its_order() -> None:
    copies = {"z": PLAIN, "a": BASE, "g": group(), "broken": BROKEN_ARRAY, "g/b": BASE, "odd": 5, "none": None}
    document = group(copies, example={"must_understand": False})
    before = deepcopy(document)
    rewritten = UNSHARDED.get(document)
    assert document == before, "the stored document is not touched"
    expected = group(copies | {"a": shown(BASE), "g/b": shown(BASE)}, example={"must_understand": False})
    assert json.dumps(rewritten) == json.dumps(expected)


@pytest.mark.parametrize(
    "document",
    [
        group(),
        group({}),
        group({"a": PLAIN, "b": BROKEN_ARRAY}),
        group({"a": BASE}, kind="separate"),
        group({"a": BASE}, kind=None),
        group({"a": BASE}, kind=["inline"]),
        group([BASE]),
        group("a"),
        group() | {"consolidated_metadata": None},
        group() | {"consolidated_metadata": []},
        group() | {"consolidated_metadata": {}},
        group() | {"consolidated_metadata": {"metadata": None}},
    ],
    ids=lambda document: json.dumps(document.get("consolidated_metadata"))[:60],
)
def test_where_nothing_is_rewritten_the_stored_document_is_shown(document: dict[str, Any]) -> None:
    assert UNSHARDED.get(document) is document


# The way back.


def there_and_back(document: dict[str, Any]) -> dict[str, Any]:
    return resharded(UNSHARDED.get(document), dict(every_copy(document)))


def refusal(copy: Any, stored: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        resharded(group({"a/b": copy}), {"a/b": stored})
    return str(caught.value)


LEAVES = [*(case.document for case in CASES), *(broken.document for broken in BROKEN), PLAIN, None, 5, group()]
leaves = st.integers(0, len(LEAVES) - 1).map(lambda i: LEAVES[i])
paths = st.sampled_from(["a", "b", "a/b", "a/b/c", "ä"])
groups = st.recursive(
    st.dictionaries(paths, leaves, max_size=4).map(group),
    lambda inner: st.dictionaries(paths, st.one_of(leaves, inner), max_size=4).map(group),
    max_leaves=8,
)


@pytest.mark.slow
@given(groups)
def test_what_is_not_edited_is_stored_as_it_was(document: dict[str, Any]) -> None:
    by_path = dict(every_copy(document))
    if len(by_path) == count_copies(document):  # else two copies claim one path
        assert json.dumps(there_and_back(document)) == json.dumps(document)


@pytest.mark.parametrize("node", [None, edited(("codecs", 0, "configuration", "chunk_shape"), [1, 1])])
def test_a_copy_that_is_out_of_date_stays_as_it_is_unless_it_is_edited(node: Any) -> None:
    stored, nodes = group({"a": BASE}), {} if node is None else {"a": node}
    changed = {**UNSHARDED.get(stored), "attributes": {"new": 1}}
    assert resharded(changed, nodes, stored) == {**stored, "attributes": {"new": 1}}
    if node is not None:
        changed = group({"a": {**shown(BASE), "attributes": {"new": 1}}})
        with pytest.raises(RefusedError, match="the copy of 'a'"):
            resharded(changed, nodes, stored)


def count_copies(document: Any) -> int:
    copies = document.get("consolidated_metadata", {}).get("metadata", {}) if isinstance(document, dict) else {}
    return len(copies) + sum(map(count_copies, copies.values()))


OPAQUE = array((4,), (2,), extension("example.raw"))
COPIES = {"hidden": OPAQUE, "a": BASE, "g": group({"x": PLAIN, "deep": OPAQUE}), "last": OPAQUE}


def test_what_is_not_shown_survives_an_edit_of_the_group() -> None:
    shown = DECODED.get(group(COPIES))
    assert shown is not None
    nodes = dict(every_copy(group(COPIES)))

    def back(edited: dict[str, Any], stored: dict[str, Any] | None) -> dict[str, Any]:
        return dict(DECODED.put(stored, edited, nodes))

    assert json.dumps(back(shown | {"attributes": {}}, group(COPIES))) == json.dumps(group(COPIES) | {"attributes": {}})
    copies = shown["consolidated_metadata"]["metadata"]
    without = {path: copy for path, copy in copies.items() if path != "a"} | {"new": group()}
    expected = {path: copy for path, copy in COPIES.items() if path != "a"} | {"new": group()}
    assert back(group(without), group(COPIES)) == group(expected)
    assert back(group({"hidden": group()}), group(COPIES)) == group({"hidden": group(), "last": OPAQUE})
    assert back(group(), group(COPIES)) == group()
    assert back(shown, None) == group({"a": BASE, "g": group({"x": PLAIN})})


def test_an_edited_copy_of_decoded_chunks_is_stored_with_the_codecs_of_the_array() -> None:
    compressed = array((4,), (2,), LITTLE, extension("gzip", level=1))
    for stored in (BASE, compressed, PLAIN):
        copy = {**V3(decodes=True).get(parse_array(stored)), "attributes": {"edited": 1}}
        result = DECODED.put(group({"a": stored}), group({"a": copy}), {"a": stored})
        assert result == group({"a": stored | {"attributes": {"edited": 1}}})
    encoded = group({"a": compressed | {"attributes": {"old": 1}}})
    assert DECODED.put(None, encoded, {"a": compressed}) == encoded
    copy = describe(parse_array(BASE)).document
    with pytest.raises(RefusedError, match="the copy of 'a': codecs"):
        DECODED.put(None, group({"a": copy}), {"a": BASE})


def test_a_copy_that_is_as_it_was_stored_stays_even_if_it_is_out_of_date() -> None:
    old = array((8, 12), (2, 6), sharding((2, 2)))
    assert resharded(group({"a": old}), {"a": BASE}, group({"a": old})) == group({"a": old})
    with pytest.raises(RefusedError):
        resharded(group({"a": old}), {"a": BASE})


def test_copies_of_arrays_that_are_not_sharded_or_not_there_are_kept() -> None:
    copies = {
        "plain": PLAIN,
        "gone": PLAIN,
        "group": group(),
        "replaced": PLAIN,
        "broken": PLAIN,
        "odd": 5,
        "now": BASE,
    }
    stored = {"plain": PLAIN, "group": group(), "replaced": group(), "broken": BROKEN_ARRAY, "odd": BASE, "now": PLAIN}
    assert resharded(group(copies), stored) == group(copies)


def test_a_copy_that_describes_other_bytes_is_refused_by_path() -> None:
    other = shown(BASE) | {"chunk_grid": extension("regular", chunk_shape=[1, 1])}
    assert "'a/b': chunk grid" in refusal(other, BASE)
    assert "'a/b'" in refusal(shown(BASE) | {"data_type": "float64"}, BASE)
    assert refusal(PLAIN, BASE).startswith("the copy of 'a/b'")


def test_a_copy_of_the_stored_document_itself_is_kept_if_it_says_the_same() -> None:
    codec = sharding((2, 3), "bytes", index_codecs=[LITTLE, "crc32c"])
    stored = array((8, 12), (4, 6), codec, data_type="uint8")
    copy = array((8, 12), (4, 6), sharding((2, 3)), data_type="uint8", attributes={"a": 1})
    assert resharded(group({"a": copy}), {"a": stored}) == group({"a": copy})
    assert "'a/b'" in refusal(copy | {"data_type": "int8"}, stored)
    assert "'a/b'" in refusal(array((8, 12), (4, 6), sharding((2, 2)), data_type="uint8"), stored)


@pytest.mark.slow
def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    document = group({"a": shown(BASE)})
    for _ in range(5000):
        document = group({"g": document})
    with pytest.raises(RefusedError, match="deeply"):
        resharded(document, {})
    while "g" in document["consolidated_metadata"]["metadata"]:
        document = document["consolidated_metadata"]["metadata"].pop("g")


def test_paths_that_are_much_longer_than_the_document_are_not_made_and_no_copy_is_ignored() -> None:
    names = {f"{number:05}": 0 for number in range(22_000)}
    text = json.dumps(group({"n" * 4000: group(names)})).encode()
    tracemalloc.start()
    with pytest.raises(MetadataError, match="paths of copies within copies"):
        read_document(text, None, NodeContext())
    rest = read_broken(text, None, "why")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (rest.copies, rest.has_unknown_copies) == ({}, True)
    assert peak < 3 * MAX_DOCUMENT_NBYTES
    assert len(read_document(json.dumps(group({"g": group(names)})).encode(), None, NodeContext()).copies) == 22_001
