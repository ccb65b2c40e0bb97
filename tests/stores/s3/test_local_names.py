"""Names that only this mount knows make a tree."""

from __future__ import annotations

import pytest

from shardfs.errors import ExistsError, NotADirectoryHereError
from shardfs.stores.base import Kind
from shardfs.stores.s3.local_names import LocalNames


@pytest.fixture
def names() -> LocalNames:
    names = LocalNames()
    names.add("a/b/f", Kind.FILE)
    names.add("a/made", Kind.DIRECTORY)
    return names


def test_above_a_name_there_are_directories(names: LocalNames) -> None:
    assert dict(names.children("")) == {"a": Kind.DIRECTORY}
    assert dict(names.children("a")) == {"b": Kind.DIRECTORY, "made": Kind.DIRECTORY}
    assert names.kind("a/b/f") is Kind.FILE
    assert names.kind("") is names.kind("x/y") is None


def test_a_file_is_no_directory_and_a_directory_no_file(names: LocalNames) -> None:
    with pytest.raises(NotADirectoryHereError):
        names.add("a/b/f/g", Kind.FILE)
    with pytest.raises(ExistsError):
        names.add("a/b", Kind.FILE)


def test_directories_stay_when_their_names_are_removed(names: LocalNames) -> None:
    names.remove("a/b/f")
    assert names.kind("a/b") is Kind.DIRECTORY
    names.remove("a")
    assert dict(names.children("")) == {}
    assert names.kind("a/made") is None


def test_what_is_stored_stands_for_the_directories_above_it(names: LocalNames) -> None:
    names.remove("a/b/f")
    names.settle("a/b")
    assert names.kind("a/b") is None
    assert names.kind("a/made") is Kind.DIRECTORY
    names.settle("a/made")
    assert names.kind("a") is None


def test_a_directory_moves_with_all_below_it(names: LocalNames) -> None:
    names.move("a", "x/y")
    assert names.kind("a") is None
    assert names.kind("x/y/b/f") is Kind.FILE
    assert names.kind("x/y/made") is Kind.DIRECTORY
