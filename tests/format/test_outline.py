"""What documents say of the names below a node, whoever wrote them."""

import json
from typing import Any

import pytest

from shardfs.dataset.foreign import outline_of as outline_of_all
from shardfs.format.outline import Outline
from tests.support.corpus import CASES
from tests.support.precomputed import KEY, info, scale, sharding

DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}
ARRAY = next(case.document for case in CASES if case.document["chunk_key_encoding"] == DEFAULT_KEYS)


def outline_of(document: bytes, name: str = "zarr.json") -> Outline:
    outline = outline_of_all("", (name,), document)
    assert outline is not None
    return outline


def group(attributes: Any = None, **members: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes or {}, **members}).encode()


def below(document: bytes) -> dict[str, set[str]]:
    return {directory: set(names) for directory, names in outline_of(document).below.items()}


def test_consolidated_metadata_and_ome_attributes_name_nodes() -> None:
    images = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "s/1"}]}]}
    for attributes in ({"ome": images}, images):
        assert below(group(attributes)) == {"": {"0", "s"}, "s": {"1"}}
        assert outline_of(group(attributes)).may_have == {"labels"}
    plate = {"ome": {"plate": {"wells": [{"path": "A/1"}, {"path": "A/2"}]}}}
    assert below(group(plate)) == {"": {"A"}, "A": {"1", "2"}}
    assert below(group({"ome": {"well": {"images": [{"path": "0"}]}}})) == {"": {"0"}}
    assert below(group({"ome": {"labels": ["cells"]}})) == {"": {"cells"}}
    assert below(group({"ome": {"series": ["0", "1"]}})) == {"": {"0", "1"}}
    consolidated = group(consolidated_metadata={"kind": "inline", "metadata": {"a/b": {}, "c": {}}})
    assert below(consolidated) == {"": {"a", "c"}, "a": {"b"}}


@pytest.mark.slow
def test_hostile_documents_name_nothing() -> None:
    paths = ["../x", "/x", "", "a//b", "a/./b", "x" * 5000, "a/" * 100 + "b", "nul\0", 7, None, ["x"]]
    assert below(group({"ome": {"labels": paths}})) == {}
    assert below(group({"ome": {"multiscales": [{"datasets": [{"path": path} for path in paths]}, 7, None]}})) == {}
    assert below(group({"ome": [], "multiscales": {"datasets": 7}, "plate": [1], "well": "x"})) == {}
    for document in (b"", b"[]", b"null", b"{", b"[" * 100_000, group(consolidated_metadata=[1])):
        assert below(document) == {}
    many = outline_of(group({"ome": {"labels": [f"a/{number}" for number in range(300_000)]}}))
    assert sum(map(len, many.below.values())) < 200_000


@pytest.mark.parametrize(
    ("encoding", "paths"),
    [
        (("default", "/"), {"c": True, "c/0": True, "c/0/0": False, "c/9": None, "0": None, "c/00": None, "x": None}),
        (("default", "."), {"c": None, "c.0.0": False, "c.0.9": None, "0.0": None, "c/0/0": None}),
        (("v2", "/"), {"0": True, "0/0": False, "c/0/0": None, "9": None}),
        (("v2", "."), {"0.0": False, "0": None, "9.0": None}),
    ],
)
def test_the_grid_of_an_array_says_what_may_be_a_shard(
    encoding: tuple[str, str], paths: dict[str, bool | None]
) -> None:
    name, separator = encoding
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [5, 7],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 3]}},
        "chunk_key_encoding": {"name": name, "configuration": {"separator": separator}},
        "fill_value": 0,
        "codecs": ["bytes"],
    }
    outline = outline_of(json.dumps(document).encode())
    assert outline.is_closed("")
    assert {path: outline.is_directory(path) for path in paths} == paths
    found, pending = set(), ["c" if encoding == ("default", "/") else ""]
    while pending:
        directory = pending.pop()
        names = dict(outline.shard_names(directory))
        assert len(names) == outline.count(directory)
        for below_it, is_directory in names.items():
            path = f"{directory}/{below_it}".strip("/")
            assert outline.is_directory(path) is is_directory
            if is_directory:
                pending.append(path)
            else:
                found.add(path)
    assert len(found) == 2 * 3


def test_an_array_whose_document_cannot_be_used_has_no_known_names() -> None:
    outline = outline_of(json.dumps(ARRAY | {"codecs": "none"}).encode())
    assert outline.is_closed("c")
    assert outline.count("") is None
    assert outline.is_directory("c") is None


ZARRAY = {"shape": [5, 7], "chunks": [3, 3], "zarr_format": 2, "dtype": "<u2"}


def test_documents_of_zarr_v2_name_nodes_and_chunks() -> None:
    outline = outline_of(json.dumps(ZARRAY).encode(), ".zarray")
    assert dict(outline.shard_names("")) == {f"{x}.{y}": False for x in range(2) for y in range(3)}
    nested = outline_of(json.dumps(ZARRAY | {"dimension_separator": "/"}).encode(), ".zarray")
    assert (nested.is_directory("1"), nested.is_directory("1/2"), nested.is_directory("2")) == (True, False, None)
    assert dict(nested.shard_names("1")) == {"0": False, "1": False, "2": False}
    copies = {".zgroup": {}, ".zattrs": {}, "a/.zgroup": {}, "a/b/.zarray": ZARRAY, "../.zarray": ZARRAY, "x": 7}
    consolidated = outline_of(json.dumps({"metadata": copies}).encode(), ".zmetadata")
    assert consolidated.below == {"": {"a"}, "a": {"b"}}
    assert consolidated.documents == {
        "": {".zmetadata", ".zgroup", ".zattrs"},
        "a": {".zgroup"},
        "a/b": {".zarray"},
    }
    assert consolidated.is_closed("a/b/0")
    assert not consolidated.is_closed("a")
    assert consolidated.count("a/b") == 6
    ome = {"multiscales": [{"datasets": [{"path": "0"}]}]}
    named = outline_of_all("", (".zgroup", ".zattrs"), b"{}", json.dumps(ome).encode())
    assert named is not None
    assert (named.below, named.may_have) == ({"": {"0"}}, {"labels"})


def test_an_info_names_scales_and_their_shards() -> None:
    document = info(
        scale((64, 64, 64), (16, 16, 16), sharding(0, "identity", 1, 5)),
        scale((32, 32, 32), (16, 16, 16), None, key="unsharded"),
        scale((8, 8, 8), (4, 4, 4), sharding(), key="../outside"),
        mesh="m",
        skeletons="../outside",
    )
    outline = outline_of(json.dumps(document).encode(), "info")
    assert outline.below == {"": {KEY, "unsharded", "m"}}
    assert dict(outline.shard_names(KEY)) == {f"{number:02x}.shard": False for number in range(32)}
    assert outline.count("unsharded") is None
    assert [outline.is_closed(path) for path in ("", "m", "unsharded", KEY)] == [False, False, True, True]
    for kind in ("neuroglancer_skeletons", "neuroglancer_multilod_draco"):
        sharded = outline_of(json.dumps({"@type": kind, "sharding": sharding(shard_bits=1)}).encode(), "info")
        assert dict(sharded.shard_names("")) == {"0.shard": False, "1.shard": False}
        assert outline_of(json.dumps({"@type": kind}).encode(), "info").count("") is None
    by_id = {"key": "by_id", "sharding": sharding(shard_bits=0)}
    related = [{"key": "a/b"}, {"key": "../c"}, 7]
    annotations = {"@type": "neuroglancer_annotations_v1", "by_id": by_id, "relationships": related}
    named = outline_of(json.dumps(annotations).encode(), "info")
    assert named.below == {"": {"by_id", "a"}, "a": {"b"}}
    assert [named.count(path) for path in ("by_id", "a/b", "a")] == [1, None, 0]
    for other in (b"{}", b"[1]", b"7", b"{", b'{"scales": 7}', b'{"@type": "other"}'):
        assert outline_of_all("", ("info",), other) is None
