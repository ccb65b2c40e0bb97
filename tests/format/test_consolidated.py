"""Consolidated metadata: copies of sharded arrays are rewritten, everything else is kept."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from shardfs.format.consolidated import unshard_consolidated
from shardfs.format.metadata import ArrayMetadata, parse_document
from shardfs.format.unshard import unshard
from tests.support.corpus import BASE, BROKEN, LITTLE, array, edited, sharding
from tests.support.parametrize import every_case

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


def shown(document: dict[str, Any]) -> dict[str, Any]:
    parsed = parse_document(json.dumps(document).encode())
    assert isinstance(parsed, ArrayMetadata)
    return unshard(parsed).document


@every_case
def test_each_copy_is_rewritten_from_itself(case: Any) -> None:
    assert unshard_consolidated(group({case.name: case.document})) == group({case.name: shown(case.document)})


def test_everything_else_is_kept_in_its_order() -> None:
    copies = {"z": PLAIN, "a": BASE, "g": group(), "broken": BROKEN_ARRAY, "g/b": BASE, "odd": 5, "none": None}
    document = group(copies, example={"must_understand": False})
    before = deepcopy(document)
    rewritten = unshard_consolidated(document)
    assert document == before, "the stored document is not touched"
    expected = group(copies | {"a": shown(BASE), "g/b": shown(BASE)}, example={"must_understand": False})
    assert json.dumps(rewritten) == json.dumps(expected)


def test_copies_of_groups_may_hold_copies_themselves() -> None:
    inner = group({"x": BASE, "y": PLAIN})
    assert unshard_consolidated(group({"g": inner, "h": group({"y": PLAIN})})) == group(
        {"g": group({"x": shown(BASE), "y": PLAIN}), "h": group({"y": PLAIN})}
    )


def test_a_kind_need_not_be_written() -> None:
    document = group({"a": BASE})
    del document["consolidated_metadata"]["kind"]
    rewritten = unshard_consolidated(document)
    assert rewritten is not None
    assert rewritten["consolidated_metadata"]["metadata"] == {"a": shown(BASE)}


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
    assert unshard_consolidated(document) is None


def test_a_deeply_nested_copy_does_no_harm() -> None:
    document = group({"a": BASE})
    for _ in range(5000):
        document = group({"g": document, "a": BASE})
    rewritten = unshard_consolidated(document)
    assert rewritten is not None
    assert rewritten["consolidated_metadata"]["metadata"]["a"] == shown(BASE)
    while "g" in document["consolidated_metadata"]["metadata"]:  # a deep tree is taken apart without recursion
        document = document["consolidated_metadata"]["metadata"].pop("g")


def test_broken_copies_do_not_keep_sound_ones_from_being_rewritten() -> None:
    copies = {broken.name: broken.document for broken in BROKEN}
    assert unshard_consolidated(group(copies | {"sound": BASE, "other": array((4,), (2,), sharding((1,)))})) == group(
        copies | {"sound": shown(BASE), "other": shown(array((4,), (2,), sharding((1,))))}
    )
