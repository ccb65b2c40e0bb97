"""A change is known again by its id in the object's user metadata, for as long as there is room for it."""

import secrets

import pytest

from shardfs.stores.objects.requests import Properties
from shardfs.stores.s3.change import COMMIT_IDS, commit_ids, with_commit_id

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
@pytest.mark.parametrize("cache_control", [None, "no-cache, max-age=0"])
def test_the_last_ids_are_known_however_much_a_user_says_and_s3_takes_all(used: int, cache_control: str | None) -> None:
    headers = {} if cache_control is None else {"CacheControl": cache_control}
    old = Properties(headers, {"x": "y" * (used - 1)})
    for count in (1, 3, 20):
        properties, ids = changed(old, count)
        assert commit_ids(properties) == ids[-16:]
        assert nbytes(properties) <= max(MAX_METADATA, nbytes(old))
        assert properties.metadata["x"] == old.metadata["x"]
        said = properties.headers.get("CacheControl", "")
        assert said.startswith(cache_control or "")
        assert (COMMIT_IDS in said) != (COMMIT_IDS in properties.metadata)
    smaller = Properties(properties.headers, {})
    again, (one,) = changed(smaller, 1)
    is_kept = COMMIT_IDS in properties.headers.get("CacheControl", "")
    assert commit_ids(again) == ([*ids[-15:], one] if is_kept else [one])
    assert again.headers == headers, "what there is room for in the metadata is there alone"
