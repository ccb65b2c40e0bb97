"""An edited unsharded document goes back into the stored one, or is refused with the reason."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, RefusedError
from shardfs.format.grid import ChunkGrid
from shardfs.format.lens.unsharded import check_resized, describe, reshard
from shardfs.format.metadata import ArrayMetadata, fingerprint, parse_array, parse_node
from shardfs.format.sharding import POSITION_BITS
from tests.support.corpus import (
    BASE,
    BIG,
    BLOSC,
    CASES,
    GZIP,
    LITTLE,
    ZSTD,
    Case,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.json_values import json_values, places, replaced
from tests.support.parametrize import each, every_case

ZARR_REFUSES = {"opaque-codec", "zero-bytes", "opaque-serializer"}
TENSORSTORE_REFUSES = ZARR_REFUSES | {"type-datetime64", "type-string", "dimension-names-repeated"}


def shown(stored: dict[str, Any]) -> dict[str, Any]:
    return describe(parse_array(stored)).document


def resharded(stored: dict[str, Any], **members: Any) -> dict[str, Any]:
    document = reshard(parse_array(stored), parse_array(shown(stored) | members))
    check_resized(parse_array(stored), document)
    return document


def refusal(stored: dict[str, Any], **members: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        resharded(stored, **members)
    return str(caught.value)


@every_case
def test_edited_members_are_taken_and_nothing_else_changes(case: Case) -> None:
    members: dict[str, Any] = {
        "attributes": {"edited": [2**70, None]},
        "fill_value": "edited",
        "dimension_names": [None] * len(case.document["shape"]),
        "example.added": {"must_understand": False},
    }
    assert resharded(case.document, **members) == case.document | members


# What libraries write when they have opened the unsharded array.


def edit_with_zarr(path: Path, shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = zarr.open_array(str(path), mode="r+")
        opened.attrs["edited"] = True
        if opened.shape != shape:
            opened.resize(shape)


def edit_with_tensorstore(path: Path, shape: tuple[int, ...]) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    opened = tensorstore.open(spec, open=True).result()
    if opened.shape != shape:
        opened.resize(exclusive_max=shape).result()


Editor = Callable[[Path, tuple[int, ...]], None]
EDITS = [
    (case, editor)
    for editor, refuses in ((edit_with_zarr, ZARR_REFUSES), (edit_with_tensorstore, TENSORSTORE_REFUSES))
    for case in CASES
    if case.name not in refuses
]


@pytest.mark.slow
@each("edit", EDITS, lambda edit: f"{edit[0].name}-{edit[1].__name__}")
def test_what_a_library_writes_again_is_taken(edit: tuple[Case, Editor], tmp_path: Path) -> None:
    """Also growing each axis, but for arrays whose last shard would have to grow with it."""
    case, editor = edit
    shape = tuple(case.document["shape"])
    if not case.name.startswith("bounded"):
        shape = tuple(n + 7 for n in shape)
    (tmp_path / "zarr.json").write_text(json.dumps(shown(case.document)))
    editor(tmp_path, shape)
    written = parse_array(json.loads((tmp_path / "zarr.json").read_bytes()))
    result = reshard(parse_array(case.document), written)
    assert result["shape"] == list(shape)
    for member in ("codecs", "chunk_key_encoding"):
        assert result[member] == case.document[member]
    if case.document["chunk_grid"]["name"] != "rectilinear":
        assert result["chunk_grid"] == case.document["chunk_grid"]
    if editor is edit_with_zarr:
        assert result["attributes"] == case.document.get("attributes", {}) | {"edited": True}
    assert describe(parse_array(result)).grid.chunk_shape == describe(parse_array(case.document)).grid.chunk_shape


@pytest.mark.parametrize(
    ("stored", "edited", "data_type"),
    [
        (["bytes"], [LITTLE], "uint8"),
        ([LITTLE], [{"name": "bytes", "configuration": {}}], "int8"),
        ([BIG], [LITTLE], "r24"),
        ([BIG], ["bytes"], extension("null_terminated_bytes", length_bytes=5)),
        ([transpose(1, 0), BIG], [transpose(1, 0), "bytes"], "uint8"),
        ([LITTLE], [extension("endian", endian="little")], "int32"),
        (["bytes"], [LITTLE], "int32"),
        ([LITTLE], [LITTLE | {"must_understand": True}], "int32"),
        ([LITTLE, GZIP], [LITTLE, GZIP | {"must_understand": False}], "int32"),
        ([LITTLE, "crc32c"], [LITTLE, {"name": "crc32c", "configuration": {}}], "int32"),
        ([LITTLE, ZSTD], [LITTLE, extension("zstd", level=3)], "int32"),
        ([LITTLE, extension("gzip", level=6)], [LITTLE, "gzip"], "int32"),
        ([LITTLE, extension("blosc", cname="zstd")], [LITTLE, BLOSC], "int32"),
        (
            [LITTLE, extension("blosc", cname="lz4", clevel=1, shuffle="noshuffle", typesize=1)],
            [LITTLE, extension("blosc", cname="lz4", clevel=1, shuffle="noshuffle", typesize=4, blocksize=0)],
            "int32",
        ),
        ([extension("example.raw", a=1, b=2)], [extension("example.raw", b=2, a=1)], "int32"),
    ],
    ids=lambda value: json.dumps(value)[:70],
)
def test_other_spellings_of_the_codecs_are_the_same_codecs(
    stored: list[Any], edited: list[Any], data_type: Any
) -> None:
    document = array((7, 11), (4, 6), sharding((2, 3), *stored), data_type=data_type)
    assert resharded(document, codecs=edited) == document


@pytest.mark.parametrize(
    ("stored", "edited"),
    [
        ("default", extension("default", separator="/")),
        (extension("default", separator="/"), {"name": "default", "configuration": {}, "must_understand": True}),
        ("v2", extension("v2", separator=".")),
        (extension("v2", separator="."), "v2"),
    ],
)
def test_other_spellings_of_the_key_encoding_are_the_same_encoding(stored: Any, edited: Any) -> None:
    document = array((7, 11), (4, 6), sharding((2, 3)), chunk_key_encoding=stored)
    assert resharded(document, chunk_key_encoding=edited) == document


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {"chunk_grid": extension("regular", chunk_shape=[4, 3])},
            '{"chunk_shape":[4,3]},"name":"regular"} instead of',
        ),
        ({"chunk_grid": rectilinear([2, 8], 3)}, '"name":"rectilinear"} instead of'),
        ({"chunk_grid": regular_bounded(2, 3)}, '"name":"zarrs.regular_bounded"} instead of'),
        ({"chunk_grid": extension("regular", chunk_shape=[2])}, "chunk_shape"),
        ({"data_type": "uint32"}, 'data type {"configuration":{},"name":"uint32"} instead of'),
        ({"shape": [4], "chunk_grid": extension("regular", chunk_shape=[2])}, "1 axes instead of 2"),
        ({"chunk_key_encoding": "v2"}, "chunk key encoding"),
        ({"chunk_key_encoding": extension("default", separator=".")}, "chunk key encoding"),
        ({"chunk_key_encoding": "example.hash"}, "chunk key encoding"),
        ({"codecs": [LITTLE, GZIP]}, '"name":"gzip"}] instead of'),
        ({"codecs": [BIG]}, "codecs"),
        ({"codecs": [transpose(1, 0), LITTLE]}, '"name":"transpose"}'),
        ({"codecs": [LITTLE, extension("example.hint") | {"must_understand": False}]}, "example.hint"),
        ({"codecs": [sharding((1, 1))]}, "sharded"),
        ({"codecs": [sharding((2, 3))], "chunk_grid": extension("regular", chunk_shape=[4, 6])}, "sharded"),
    ],
    ids=lambda value: json.dumps(value)[:70],
)
def test_what_would_change_the_meaning_of_stored_bytes_is_refused(members: dict[str, Any], message: str) -> None:
    assert message in refusal(array((7, 11), (4, 6), sharding((2, 3))), **members)


@pytest.mark.parametrize(
    ("stored", "edited"),
    [
        ([LITTLE, GZIP], [LITTLE, extension("gzip", level=9)]),
        ([LITTLE, ZSTD], [LITTLE, ZSTD | {"configuration": {"level": 3, "checksum": True}}]),
        ([LITTLE, extension("zstd", level=3)], [LITTLE, extension("zstd", level=3, checksum=True)]),
        ([LITTLE, BLOSC], [LITTLE, BLOSC | {"configuration": BLOSC["configuration"] | {"cname": "lz4"}}]),
        ([LITTLE, BLOSC], [LITTLE, BLOSC | {"configuration": BLOSC["configuration"] | {"blocksize": 8192}}]),
        ([LITTLE, extension("blosc", cname="zstd")], [LITTLE, extension("blosc", cname="zstd", blocksize=8192)]),
        (["bytes"], [BIG]),
        ([extension("example.cast"), "bytes"], [extension("example.cast"), BIG]),
        ([extension("example.raw", a=1)], [extension("example.raw", a=True)]),
        ([LITTLE, extension("example.invert")], [LITTLE, extension("example.invert") | {"must_understand": False}]),
    ],
    ids=lambda value: json.dumps(value)[-70:],
)
def test_other_codecs_are_refused(stored: list[Any], edited: list[Any]) -> None:
    data_type = "uint8" if stored[0] == extension("example.cast") else "int32"
    document = array((7, 11), (4, 6), sharding((2, 3), *stored), data_type=data_type)
    assert "codecs" in refusal(document, codecs=edited)


# A new shape.


@pytest.mark.parametrize(
    ("axis", "extent", "expected"),
    [
        (4, 100, 4),
        ([2, 4], 6, [2, 4]),
        ([2, 4], 7, [2, 4, 4]),
        ([2, 4], 11, [2, 4, [4, 2]]),
        ([2, 4], 0, [2, 4]),
        ([[2, 3]], 7, [[2, 4]]),
        ([4, [2, 1]], 12, [4, [2, 4]]),
        ([[4, 1], 2], 12, [[4, 1], 2, [2, 3]]),
        ([2], 2**35, [2, [2, 2**34 - 1]]),
    ],
)
def test_edges_follow_the_extent(axis: Any, extent: int, expected: Any) -> None:
    stored = array((2,), rectilinear(axis), sharding((2,)))
    result = resharded(stored, shape=[extent])
    assert result == stored | {"shape": [extent], "chunk_grid": rectilinear(expected)}


axes_of_edges = st.lists(
    st.one_of(st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 3)).map(list)), min_size=1, max_size=4
)


def total(axis: list[Any]) -> int:
    return sum(run[0] * run[1] if isinstance(run, list) else run for run in axis)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100)
def test_no_shard_of_a_rectilinear_grid_moves(data: st.DataObject) -> None:
    axes = data.draw(st.lists(axes_of_edges, min_size=1, max_size=2))
    old_shape = tuple(data.draw(st.integers(0, total(axis))) for axis in axes)
    new_shape = tuple(data.draw(st.integers(0, 30)) for _ in axes)
    stored = array(old_shape, rectilinear(*axes), sharding((1,) * len(axes)))
    result = parse_array(resharded(stored, shape=list(new_shape)))
    assert result.shape == new_shape
    old = ChunkGrid.parse(parse_array(stored).chunk_grid, old_shape)
    new = ChunkGrid.parse(result.chunk_grid, new_shape)
    for was, will, axis, spelled in zip(
        old.dimensions, new.dimensions, axes, result.chunk_grid.configuration["chunk_shapes"], strict=True
    ):
        common = min(was.nchunks, will.nchunks)
        assert [was.span(i) for i in range(common)] == [will.span(i) for i in range(common)]
        assert spelled[: len(axis) - 1] == axis[:-1], "the spelling of what is there is kept"
        assert will.nchunks == 0 or set(will.edges) == set(was.edges)


@pytest.mark.parametrize(
    ("old", "new", "is_taken"),
    [
        ((10, 9), (10, 9), True),
        ((8, 12), (8, 12), True),
        ((8, 12), (10, 15), True),
        ((8, 12), (4, 6), True),
        ((10, 9), (8, 6), True),
        ((0, 0), (10, 9), True),
        ((10, 9), (12, 9), False),
        ((10, 9), (10, 12), False),
        ((10, 9), (6, 9), False),
        ((8, 12), (6, 12), False),
        ((8, 12), (9, 12), False),
    ],
)
def test_a_bounded_grid_takes_a_shape_that_leaves_all_shards_as_long_as_they_are(
    old: tuple[int, ...], new: tuple[int, ...], is_taken: bool
) -> None:
    stored = array(old, regular_bounded(4, 6), sharding((2, 3)))
    if is_taken:
        assert resharded(stored, shape=list(new)) == stored | {"shape": list(new)}
    else:
        refusal(stored, shape=list(new))


@pytest.mark.parametrize("shape", [[10**12, 10**12], [2**63 - 1, 2**63 - 1]])
def test_more_chunks_than_can_be_shown_are_refused(shape: list[int]) -> None:
    assert "more than shardfs can count" in refusal(BASE, shape=shape)
    assert "more than shardfs can count" in refusal(
        array((2,), rectilinear([2]), sharding((1,))), shape=[2**POSITION_BITS]
    )


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_no_edit_changes_what_stored_bytes_mean(data: st.DataObject) -> None:
    stored = data.draw(st.sampled_from(CASES)).document
    edited: Any = shown(stored)
    for _ in range(data.draw(st.integers(1, 2))):
        edited = replaced(edited, data.draw(st.sampled_from(places(edited))), data.draw(json_values))
    try:
        node = parse_node(edited)
        if not isinstance(node, ArrayMetadata):
            return
        result = reshard(parse_array(stored), node)
    except (MetadataError, RefusedError):
        return
    before, after = describe(parse_array(stored)), describe(parse_array(result))
    assert result["codecs"] == stored["codecs"]
    assert (after.codecs, after.key_encoding) == (before.codecs, before.key_encoding)
    assert list(parse_array(result).shape) == edited["shape"]
    assert fingerprint(parse_array(after.document)) == fingerprint(node)
    common = tuple(min(a, b) for a, b in zip(before.grid.grid_shape, after.grid.grid_shape, strict=True))
    if all(common):
        for coords in ((0,) * len(common), tuple(n - 1 for n in common)):
            assert after.grid.locate(coords) == before.grid.locate(coords)
