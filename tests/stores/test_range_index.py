"""The index of the cache of ranges against a set of ranges that is searched from end to end."""

from __future__ import annotations

import tracemalloc
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shardfs.stores.disk_cache import RangeIndex, Version, drawer_of, name_of, parse_file_name, prefix_of, range_of

VERSIONS = [
    Version(bytes([0, 0, name]) + bytes(29), bytes([etag]) + bytes(31)) for name, etag in product(range(2), (0, 1, 255))
]
DRAWER = drawer_of(VERSIONS[0].prefix)
keys = st.builds(Version.key, st.sampled_from(VERSIONS), st.integers(0, 30), st.integers(1, 12))


def is_within(key: bytes, other: bytes) -> bool:
    (begin, nbytes), (first, length) = range_of(key), range_of(other)
    return prefix_of(key) == prefix_of(other) and first <= begin and begin + nbytes <= first + length


def outermost(known: set[bytes]) -> set[bytes]:
    return {key for key in known if not any(key != other and is_within(key, other) for other in known)}


def made_of(known: set[bytes]) -> RangeIndex:
    index = RangeIndex()
    index.replace(DRAWER, known)
    return index


@given(st.sets(keys, max_size=25))
def test_a_drawer_keeps_what_lies_within_nothing_else(known: set[bytes]) -> None:
    index = RangeIndex()
    within = index.replace(DRAWER, known)
    assert list(index.keys(DRAWER)) == sorted(outermost(known))
    assert sorted(within) == sorted(known - outermost(known))


@given(st.sets(keys, max_size=25), keys)
def test_a_range_is_found_if_any_entry_holds_it(known: set[bytes], wanted: bytes) -> None:
    found = made_of(known).find(wanted)
    if found is None:
        assert not any(is_within(wanted, key) for key in known)
    else:
        assert found in known
        assert is_within(wanted, found)


@given(st.lists(keys, max_size=25))
def test_adding_one_by_one_is_adding_all(added: list[bytes]) -> None:
    index = RangeIndex()
    known: set[bytes] = set()
    for key in added:
        useless = index.add(key)
        assert set(useless) == (known | {key}) - outermost(known | {key})
        known = outermost(known | {key})
        assert list(index.keys(DRAWER)) == sorted(known)


@given(st.sets(keys, max_size=25), keys)
def test_other_versions_of_the_same_object_are_told_from_others(known: set[bytes], key: bytes) -> None:
    index = made_of(known)
    before = set(index.keys(DRAWER))
    removed = index.discard_other_versions(key)
    assert set(removed) == {
        other for other in before if name_of(other) == name_of(key) and prefix_of(other) != prefix_of(key)
    }
    assert set(index.keys(DRAWER)) == before - set(removed)


@given(st.sets(keys, max_size=25), keys)
def test_only_what_is_discarded_goes(known: set[bytes], key: bytes) -> None:
    index = made_of(known)
    before = set(index.keys(DRAWER))
    index.discard(key)
    assert set(index.keys(DRAWER)) == before - {key}


@given(keys)
def test_file_names_are_read_as_they_are_written(key: bytes) -> None:
    name = key.hex()
    assert parse_file_name(name) == key
    for other in (
        name[:-1],
        name[:-2],
        name + "00",
        " " + name[1:],
        "é" + name[1:],
        "A" + name[1:],
        "",
        "CACHEDIR.TAG",
    ):
        assert parse_file_name(other) is None


def test_an_entry_takes_little_memory() -> None:
    index = RangeIndex()
    tracemalloc.start()
    try:
        for i in range(20_000):
            index.add(Version.of(f"{i // 2}", "etag").key(i * 10, 5))
        assert tracemalloc.get_traced_memory()[0] / 20_000 <= 200
    finally:
        tracemalloc.stop()
