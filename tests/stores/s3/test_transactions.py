"""A change is known again by its id in the object's user metadata, for as long as there is room for it."""

from __future__ import annotations

import pytest

from shardfs.stores.s3.requests import ObjectStat, Properties
from shardfs.stores.s3.transactions import (
    TRANSACTIONS,
    Found,
    Made,
    is_made,
    new_transaction,
    transactions,
    with_transaction,
)

STAT = ObjectStat(5, '"etag"', 0)
MAX_METADATA = 2048


def nbytes(properties: Properties) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in properties.metadata.items())


def changed(properties: Properties, count: int) -> tuple[Properties, list[str]]:
    """Properties after *count* changes, and their ids."""
    ids = [new_transaction() for _ in range(count)]
    for one in ids:
        properties = with_transaction(properties, one)
    return properties, ids


def test_the_last_sixteen_are_kept_in_order() -> None:
    properties, ids = changed(Properties(), 20)
    assert transactions(properties) == ids[-16:]


def test_what_a_user_says_of_an_object_stays() -> None:
    old = Properties({"ContentType": "x/y"}, {"owner": "me"})
    properties, _ = changed(old, 3)
    assert properties.headers == old.headers
    assert properties.metadata["owner"] == "me"


@pytest.mark.parametrize("used", [*range(1700, 2060, 7), 2048])
def test_no_more_is_said_than_s3_takes(used: int) -> None:
    old = Properties({}, {"x": "y" * (used - 1)})
    properties, ids = changed(old, 16)
    assert nbytes(properties) <= max(MAX_METADATA, nbytes(old))
    kept = transactions(properties)
    assert kept == ids[len(ids) - len(kept) :]
    assert len(kept) == 16 or nbytes(properties) + 17 + (0 if kept else len(TRANSACTIONS) - 1) > MAX_METADATA


def test_what_else_is_in_its_place_is_dropped() -> None:
    properties = with_transaction(Properties({}, {TRANSACTIONS: "nonsense, 12"}), "0123456789abcdef")
    assert properties.metadata == {TRANSACTIONS: "0123456789abcdef"}


def test_a_change_is_made_if_its_id_is_there() -> None:
    properties, ids = changed(Properties(), 3)
    found = Found(STAT, properties)
    assert is_made(ids[2], found) == Made(STAT)
    assert is_made(ids[1], found) == Made(None)
    assert is_made(new_transaction(), found) is None
    assert is_made(ids[2], None) is None
