"""A change is known again by its id in the object's user metadata, for as long as there is room for it."""

import secrets

import pytest

from shardfs.stores.s3.requests import Properties
from shardfs.stores.s3.shards import COMMIT_IDS, commit_ids, with_commit_id

MAX_METADATA = 2048


def nbytes(properties: Properties) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in properties.metadata.items())


def changed(properties: Properties, count: int) -> tuple[Properties, list[str]]:
    """Properties after *count* changes, and their ids."""
    ids = [secrets.token_hex(8) for _ in range(count)]
    for one in ids:
        properties = with_commit_id(properties, one)
    return properties, ids


def test_what_a_user_says_of_an_object_stays() -> None:
    old = Properties({"ContentType": "x/y"}, {"owner": "me"})
    properties, _ = changed(old, 3)
    assert properties.headers == old.headers
    assert properties.metadata["owner"] == "me"


@pytest.mark.parametrize("used", [*range(1700, 2060, 7), 2048])
def test_no_more_is_said_than_s3_takes(used: int) -> None:
    old = Properties({}, {"x": "y" * (used - 1)})
    properties, ids = changed(old, 20)
    assert nbytes(properties) <= max(MAX_METADATA, nbytes(old))
    kept = commit_ids(properties)
    assert kept == ids[len(ids) - len(kept) :]
    assert len(kept) <= 16
    assert len(kept) == 16 or nbytes(properties) + 17 + (0 if kept else len(COMMIT_IDS) - 1) > MAX_METADATA
