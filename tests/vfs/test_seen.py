"""A program replaces the version of a document that it can know, and no other."""

import pytest

from shardfs.stores.base import ABSENT, Expected, Kind, Stat
from shardfs.vfs import seen
from shardfs.vfs.seen import SeenArrays, SeenVersions

KEY = "a/zarr.json"
_STAT = Stat(Kind.FILE, 1, "", "", 0o644, 0, 0, 1, 0, 0, 0, 0)


def version(name: str) -> Stat:
    return _STAT._replace(version=name)


def test_who_has_read_nothing_replaces_what_is_there() -> None:
    versions = SeenVersions()
    assert versions.expected(KEY, version("1")) == version("1")
    assert versions.expected(KEY, None) is ABSENT


@pytest.mark.parametrize("now", [version("2"), None])
def test_a_version_that_was_not_read_is_not_replaced(now: Stat | None) -> None:
    versions = SeenVersions()
    versions.read(KEY, version("1"))
    assert versions.expected(KEY, now) == version("1")
    versions.read(KEY, now or ABSENT)
    assert versions.expected(KEY, now) == (now or ABSENT)


def test_a_name_that_was_absent_is_only_created() -> None:
    versions = SeenVersions()
    versions.read(KEY, ABSENT)
    assert versions.expected(KEY, version("of another host")) is ABSENT


def test_own_changes_are_known_however_late_the_version_before_is_read() -> None:
    versions = SeenVersions()
    versions.read(KEY, version("1"))
    versions.stored(KEY, version("1"), version("2"))
    versions.read(KEY, version("1"))  # it was opened before
    assert versions.expected(KEY, version("2")) == version("2")
    versions.stored(KEY, version("2"), version("3"))
    assert versions.expected(KEY, version("3")) == version("3")
    assert versions.expected(KEY, version("of another host")) == version("1")


def test_what_was_made_of_a_version_that_nobody_read_is_not_known() -> None:
    versions = SeenVersions()
    versions.read(KEY, version("1"))
    versions.stored(KEY, version("of another host"), version("made of it"))
    assert versions.expected(KEY, version("made of it")) == version("1")


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("now", [version("1"), None])
def test_a_removed_document_may_be_stored_still_or_not(now: Stat | None, is_read: bool) -> None:
    versions = SeenVersions()
    if is_read:
        versions.read(KEY, version("1"))
    versions.removed(KEY, version("1"))
    expected: Expected = now or ABSENT
    assert versions.expected(KEY, now) == expected
    assert versions.expected(KEY, version("of another host")) != version("of another host")
    versions.stored(KEY, expected, version("anew"))
    assert versions.expected(KEY, None) is not ABSENT


def test_an_array_is_known_as_its_last_description_said_and_few_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MAX_KEYS", 3)
    arrays = SeenArrays()
    assert "a" not in arrays
    arrays.described("a", b"old")
    assert not arrays.is_known("a", b"new")
    arrays.described("a", b"new")
    assert arrays.is_known("a", b"new")
    assert not arrays.is_known("a", b"old")
    arrays.forget("a")
    assert "a" not in arrays
    arrays.described("a", b"old")
    for number in range(10):
        arrays.described(str(number), b"old")
        assert not arrays.is_known("a", b"new")  # asking keeps it
    assert "0" not in arrays
    assert len(arrays._fingerprints) == 3


def test_other_documents_do_not_count_and_few_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MAX_KEYS", 3)
    versions = SeenVersions()
    for number in range(10):
        versions.read(str(number), version("1"))
    assert versions.expected("9", version("2")) == version("1")
    assert versions.expected("0", version("2")) == version("2")
    assert len(versions._seen) == 3
