"""The very text of documents that were written."""

from __future__ import annotations

import json

import pytest

from shardfs.vfs import as_written
from shardfs.vfs.as_written import AsWritten

SHOWN = b'{\n  "a": [1, 2.0]\n}\n'
COMPACT = b'{"a":[1,2.0]}'


def written(path: str = "zarr.json", text: bytes = COMPACT, known: AsWritten | None = None) -> AsWritten:
    known = known or AsWritten()
    with known.storing({path: text}):
        pass
    return known


def test_what_says_the_same_is_shown_as_it_was_written() -> None:
    known = written()
    assert known.text("zarr.json", SHOWN) == known.text("zarr.json", bytes(bytearray(SHOWN))) == COMPACT
    assert known.text("other/zarr.json", SHOWN) == SHOWN


@pytest.mark.parametrize(
    "text", [b'{"a":[1,2]}', b'{"a":[true,2.0]}', b'{"a":[1,2.0],"b":0}', b"", b"no JSON", b"\xff"]
)
def test_what_says_anything_else_is_shown_as_it_is_stored(text: bytes) -> None:
    assert written(text=text).text("zarr.json", SHOWN) == SHOWN


def test_a_change_by_others_is_shown_and_so_is_its_end() -> None:
    known = written()
    changed = b'{"a": []}'
    assert [known.text("zarr.json", shown) for shown in (SHOWN, changed, SHOWN)] == [COMPACT, changed, COMPACT]


def test_a_text_that_could_not_be_stored_is_not_known_and_the_one_before_is() -> None:
    known = written()
    with pytest.raises(OSError, match="full"), known.storing({"zarr.json": json.dumps({"a": [1, 2.0]}).encode()}):
        raise OSError("the disk is full")
    assert known.text("zarr.json", SHOWN) == COMPACT


def test_the_texts_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3 * (len(COMPACT) + as_written._OVERHEAD_NBYTES)
    monkeypatch.setattr(as_written, "_MAX_NBYTES", most)
    known = AsWritten()
    for number in range(5):
        written(str(number), known=known)
    written("4", known=known)
    assert [known.text(str(number), SHOWN) == COMPACT for number in range(5)] == [False, False, True, True, True]
    written("4", COMPACT + b" " * most, known=known)
    assert [known.text(str(number), SHOWN) == COMPACT for number in range(5)] == [False, False, True, True, False]


def test_texts_follow_a_directory_that_is_moved() -> None:
    known = AsWritten()
    for path in ("a/zarr.json", "ab/zarr.json", "b/c/zarr.json"):
        written(path, known=known)
    known.move("a", "b")
    shown = {path: known.text(path, SHOWN) for path in ("a/zarr.json", "ab/zarr.json", "b/zarr.json", "b/c/zarr.json")}
    assert [path for path, text in shown.items() if text == COMPACT] == ["ab/zarr.json", "b/zarr.json"]
