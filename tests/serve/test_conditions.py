"""Conditions of requests: lists of tags as RFC 9110 spells them, and the order in which conditions are evaluated."""

import pytest

from shardfs.serve.conditions import PreconditionFailedError, RequestConditions

TAG = "version"
LISTS = {
    '"version"': True, 'W/"version"': True, '"a","version"': True, '"a" , "version"': True, ', ,"version"': True,
    ' \t,"a",,\t"version" ,, ': True, '"a,b", "version"': True, '"a", W/"version"': True,
    '"a"': False, "": False, ", ,": False, '"versio"': False, '"a, "version"': False, 'w/"version"': False,
    '"a" "version"': False, "version": False, '*, "version"': False, '"version': False, '""': False,
    '"a"x, "version"': False,
}  # fmt: skip
"""Lists of entity tags, and whether they name the version; what is no list of tags names none."""


def holds(method: str, version: str | None = TAG, *, exists: bool = True, **fields: str) -> bool | None:
    """Whether a request is carried out; None if its reader has the version already."""
    try:
        return None if RequestConditions(method, **fields).is_known(version, exists) else True
    except PreconditionFailedError:
        return False


@pytest.mark.parametrize(("field", "is_named"), LISTS.items())
def test_lists_of_tags_are_read_as_they_are_written(field: str, is_named: bool) -> None:
    is_weak = 'W/"version"' in field
    for method in ("GET", "PUT"):
        assert holds(method, if_match=field) is (is_named and not is_weak)
    assert holds("GET", if_none_match=field) is (None if is_named else True)
    if is_named:
        assert holds("PUT", if_none_match=field) is False


def test_a_condition_that_nobody_understands_lets_nothing_change_and_everything_be_read() -> None:
    for field in ('"a" "b"', "version", '*, "a"', '"a', 'w/"a"'):
        assert holds("GET", if_none_match=field)
        for method in ("PUT", "DELETE"):
            assert holds(method, if_none_match=field) is False
            assert holds(method, if_match=field) is False


def test_what_has_no_version_is_changed_only_by_who_asks_for_anything_or_nothing() -> None:
    for fields in ({"if_match": '"a"'}, {"if_none_match": '"a"'}, {"if_none_match": "*"}):
        assert holds("PUT", None, **fields) is False
    assert holds("PUT", None, if_match="*")
    assert holds("PUT", None, exists=False, if_none_match="*")
    assert holds("PUT", None, exists=False, if_none_match='"a"')
    assert holds("PUT", None, exists=False, if_match="*") is False
    assert holds("GET", None, if_none_match='"a"')
    assert holds("GET", None, if_none_match="*") is None


def test_conditions_are_evaluated_in_their_order() -> None:
    """RFC 9110, 13.2.2: what must match comes first, and a date counts only where no tag is given."""
    assert holds("GET", if_match='"other"', if_none_match=f'"{TAG}"') is False
    assert holds("GET", if_match=f'"{TAG}"', if_none_match=f'"{TAG}"') is None
    assert holds("GET", if_match="*", if_none_match='"other"')
    assert holds("PUT", if_match=f'"{TAG}"', if_none_match=f'"{TAG}"') is False
    date = "Sat, 01 Jan 2022 00:00:00 GMT"
    assert holds("PUT", if_unmodified_since=date) is False
    assert holds("PUT", if_match=f'"{TAG}"', if_unmodified_since=date)
    assert holds("GET", if_unmodified_since=date)


def test_the_version_is_looked_at_only_for_conditions_that_name_one() -> None:
    date = "Sat, 01 Jan 2022 00:00:00 GMT"
    assert not RequestConditions("PUT", range="bytes=0-1", if_range='"a"').name_versions
    assert not RequestConditions("GET", if_unmodified_since=date).name_versions
    assert RequestConditions("PUT", if_unmodified_since=date).name_versions
    assert RequestConditions("GET", if_match="*").name_versions
