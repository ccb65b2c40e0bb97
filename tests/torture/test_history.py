"""What the model of the torture allows, and what it refuses."""

import random

import pytest

from tests.torture.geometry import ABSENT, BROKEN, GEOMETRIES, PRESENT, Geometry, View
from tests.torture.history import History, WrongError


@pytest.fixture
def history() -> History:
    """Two names, of which one is not there."""
    history = History()
    history.start({"a": "old", "b": ABSENT})
    return history


def change(history: History, path: str, token: str, *, durable: bool = False) -> None:
    history.begin("w", f"write {path}", {path: token})
    history.end("w", durable=durable)


def read(history: History, path: str, token: str) -> None:
    history.begin("r", f"read {path}", {})
    history.has_read("r", {path: token})


def test_a_reader_finds_the_latest_content_or_one_that_is_being_written(history: History) -> None:
    change(history, "a", "new")
    read(history, "a", "new")
    read(history, "a", PRESENT)
    with pytest.raises(WrongError, match="r, read a found a old, not one of new"):
        read(history, "a", "old")
    history.begin("w", "write a", {"a": "newer"})
    read(history, "a", "new")
    read(history, "a", "newer")
    with pytest.raises(WrongError):
        read(history, "a", ABSENT)


def test_a_reader_finds_what_was_there_when_it_began(history: History) -> None:
    history.begin("r", "read a", {})
    change(history, "a", "new")
    history.has_read("r", {"a": "old"})
    with pytest.raises(WrongError):
        read(history, "a", "old")


def test_of_two_that_write_at_the_same_time_one_wins(history: History) -> None:
    history.begin("w1", "write a", {"a": "one"})
    history.begin("w2", "write a", {"a": "two"})
    history.end("w1")
    history.end("w2")
    history.stop("killed")
    assert history.survived("a") == {"one", "two"}


def test_what_was_done_survives_a_kill_and_what_was_begun_may(history: History) -> None:
    change(history, "a", "new")
    history.begin("w", "unlink a", {"a": ABSENT})
    history.stop("killed")
    assert history.survived("a") == {"new", ABSENT}
    history.settle({"a": "new"}, cut=False)
    with pytest.raises(WrongError):
        read(history, "a", ABSENT)


def test_what_was_synced_survives_a_power_cut_and_all_that_came_later_may(history: History) -> None:
    change(history, "a", "new")
    history.begin("s", "sync", {}, syncs=True)
    change(history, "b", "late")
    history.end("s")
    change(history, "a", "newer")
    history.stop("the power is cut", cut=True)
    assert history.survived("a") == {"new", "newer"}
    assert history.survived("b") == {ABSENT, "late"}
    with pytest.raises(WrongError, match="a is old, not one of new"):
        history.settle({"a": "old"}, cut=True)


def test_a_kill_makes_nothing_durable(history: History) -> None:
    change(history, "a", "new")
    history.stop("killed")
    history.settle({"a": "new"}, cut=False)
    history.stop("the power is cut", cut=True)
    assert history.survived("a") == {"old", "new"}
    history.settle({"a": "old"}, cut=True)
    history.stop("the power is cut", cut=True)
    assert history.survived("a") == {"old"}


def test_a_sync_brings_nothing_back_that_a_power_cut_may_have_lost(history: History) -> None:
    change(history, "a", "new")
    history.stop("the power is cut", cut=True)
    history.begin("s", "sync", {}, syncs=True)
    history.end("s")
    history.stop("killed")
    assert history.survived("a") == {"old", "new"}


def test_a_name_is_created_once_until_it_is_removed(history: History) -> None:
    history.begin("w1", "write with O_EXCL", {"b": "one"})
    history.begin("w2", "write with O_EXCL", {"b": "two"})
    history.end("w1")
    history.check_exclusive("b")
    history.end("w2")
    with pytest.raises(WrongError, match="created twice"):
        history.check_exclusive("b")
    history.start({"b": ABSENT})
    for token in ("one", "two"):
        history.begin("w1", "write with O_EXCL", {"b": token})
        history.end("w1")
        change(history, "b", ABSENT)
    history.check_exclusive("b")


def test_a_name_that_is_removed_while_it_is_being_created_may_be_created_again(history: History) -> None:
    """The creation that began first may end last."""
    history.begin("w1", "write with O_EXCL: b", {"b": "one"})
    history.begin("w2", "unlink: b", {"b": ABSENT})
    history.end("w2")
    history.begin("w3", "write with O_EXCL: b", {"b": "two"})
    history.end("w3")
    history.end("w1")
    history.check_exclusive("b")


def test_what_is_written_in_place_may_be_torn_until_it_is_done(history: History) -> None:
    history.begin("w", "write a", {"a": "new"}, whole=False)
    read(history, "a", "torn")
    history.stop("killed")
    assert history.survived("a") is None
    history.settle({"a": "torn"}, cut=False)
    assert history.survived("a") == {"torn"}


def test_a_story_tells_only_of_names_that_matter(history: History) -> None:
    change(history, "b", "new")
    change(history, "a", "first", durable=True)
    change(history, "a", "second", durable=True)
    with pytest.raises(WrongError) as caught:
        read(history, "a", "old")
    assert "write a" in str(caught.value)
    assert "write b" not in str(caught.value)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.name)
def test_a_token_is_that_of_the_values_in_every_view(geometry: Geometry) -> None:
    values, stored, decoded = geometry.values(random.Random(1)), View(), View("v3", True)
    assert geometry.decoded(geometry.content(values, stored), stored) == values
    assert geometry.token(geometry.content(values, stored), stored) == geometry.token(values, decoded)
    assert geometry.token(values[:-1], decoded).startswith(BROKEN)


def test_a_chunk_is_one_with_zeros_behind_its_gzip_and_none_with_other_bytes_or_cut_off() -> None:
    geometry = next(geometry for geometry in GEOMETRIES if geometry.is_compressed)
    values = geometry.values(random.Random(1))
    content = geometry.content(values, View())
    token = geometry.token(content, View())
    assert geometry.token(content + bytes(4), View()) == token == geometry.token(values, View(decodes=True))
    for other in (content + b"x", content[:-1]):
        assert geometry.token(other, View()).startswith(BROKEN)
