"""The very text of documents that were written."""

import json
from typing import Any

import pytest

from shardfs.format.lens.v2 import V2
from shardfs.format.lens.v3 import V3
from shardfs.vfs import texts
from shardfs.vfs.texts import DocumentText, TextCache
from tests.support.corpus import GZIP, LITTLE, array

SHOWN = b'{\n  "a": [1, 2.0]\n}\n'
COMPACT = b'{"a":[1,2.0]}'


def written(
    path: str = "zarr.json", text: bytes = COMPACT, known: TextCache | None = None, shown: bytes = SHOWN
) -> TextCache:
    known = known or TextCache()
    name = path.rpartition("/")[2]
    is_same = (V3() if name == "zarr.json" else V2()).means_the_same(name, shown, text)
    known.keep(path, DocumentText(text), shown, is_same=is_same)
    return known


def text_of(known: TextCache, path: str = "zarr.json", shown: bytes = SHOWN) -> bytes:
    text = known.text(path, shown)
    assert text is not None
    return text.text


def test_the_texts_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3 * (len(COMPACT) + texts._OVERHEAD_NBYTES)
    monkeypatch.setattr(texts, "_MAX_TEXTS_NBYTES", most)
    known = TextCache()
    for number in range(5):
        written(f"{number}/zarr.json", known=known)
    written("4/zarr.json", known=known)
    assert [text_of(known, f"{number}/zarr.json") == COMPACT for number in range(5)] == [False, False, True, True, True]
    larger = COMPACT + b" " * most
    written("2/zarr.json", larger, known=known)
    assert [text_of(known, f"{number}/zarr.json") for number in range(5)] == [SHOWN, SHOWN, larger, SHOWN, SHOWN]


ZARRAY = {
    "zarr_format": 2,
    "shape": [6, 4],
    "chunks": [2, 2],
    "dtype": "<f4",
    "compressor": {"id": "zlib", "level": 1},
    "fill_value": 0.0,
    "order": "C",
    "filters": None,
    "dimension_separator": ".",
}


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"fill_value": 0, "filters": []}, True),
        ({"dimension_separator": None}, True),
        ({"dimension_separator": "/"}, False),
        ({"fill_value": None}, False),
        ({"fill_value": 1}, False),
        ({"shape": [6, 5]}, False),
        ({"chunks": [2, 1]}, False),
        ({"order": "F"}, False),
        ({"dtype": "<i4"}, False),
        ({"compressor": None}, False),
        ({"zarr_format": 3}, False),
    ],
    ids=str,
)
def test_a_zarray_is_shown_as_it_was_written_only_if_readers_take_it_for_the_same(
    changes: dict[str, Any], is_same: bool
) -> None:
    shown, text = (json.dumps(document).encode() for document in (ZARRAY, ZARRAY | changes))
    copies = [
        json.dumps({"zarr_consolidated_format": 1, "metadata": {"a/.zarray": document, **others}}).encode()
        for document, others in ((ZARRAY, {}), (ZARRAY | changes, {"a/.zattrs": {}}))
    ]
    assert (text_of(written("a/.zarray", text, shown=shown), "a/.zarray", shown) == text) == is_same
    assert (text_of(written(".zmetadata", copies[1], shown=copies[0]), ".zmetadata", copies[0]) == copies[1]) == is_same
    elsewhere = copies[1].replace(b"a/", b"b/")
    assert text_of(written(".zmetadata", copies[1], shown=elsewhere), ".zmetadata", elsewhere) != copies[1]


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"codecs": ["bytes", {"name": "gzip", "configuration": {"level": 1}}]}, True),
        ({"chunk_key_encoding": "default", "data_type": {"name": "uint8"}}, True),
        ({"codecs": ["bytes"]}, False),
        ({"shape": [5]}, False),
        ({"fill_value": 1}, False),
        ({"attributes": {"a": 1}}, False),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}}}, False),
    ],
    ids=str,
)
def test_copies_are_shown_as_they_were_written_only_if_they_say_the_same(
    changes: dict[str, Any], is_same: bool
) -> None:
    copy = array((4,), (2,), LITTLE, GZIP, data_type="uint8")

    def group(copy: dict[str, Any]) -> bytes:
        inner = {"zarr_format": 3, "node_type": "group"}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": {"a": copy}}
        inner["consolidated_metadata"] = consolidated
        return json.dumps(inner | {"consolidated_metadata": {**consolidated, "metadata": {"g": inner}}}).encode()

    shown, text = group(copy), group(copy | changes)
    assert (text_of(written(text=text, shown=shown), shown=shown) == text) == is_same
