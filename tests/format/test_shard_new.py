"""A new unsharded array becomes a sharded one that shows as it was written, or the reason says why not."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from shardfs.errors import MetadataError, NotUnshardable, UsageError
from shardfs.format.metadata import ArrayMetadata, parse_node
from shardfs.format.shard_new import parse_chunks_per_shard, shard_new
from shardfs.format.unshard import unshard
from tests.support.corpus import (
    BIG,
    BLOSC,
    CRC32C,
    GZIP,
    LITTLE,
    ZSTD,
    array,
    extension,
    rectilinear,
    regular_bounded,
    sharding,
    transpose,
)
from tests.support.json_values import json_values, places, replaced
from tests.support.readers import assert_same, read_tensorstore, read_zarr


def parsed(document: Any) -> ArrayMetadata:
    node = parse_node(document)
    assert isinstance(node, ArrayMetadata)
    return node


def reason(document: dict[str, Any], *chunks_per_shard: int) -> str:
    with pytest.raises(NotUnshardable) as caught:
        shard_new(parsed(document), chunks_per_shard or (2,))
    return str(caught.value)


def test_chunks_become_inner_chunks() -> None:
    written = array((7, 11), (2, 3), LITTLE, "crc32c", attributes={"kept": 2**70}, dimension_names=["y", None])
    assert shard_new(parsed(written), (4, 8)) == written | {
        "chunk_grid": extension("regular", chunk_shape=[8, 24]),
        "codecs": [sharding((2, 3), LITTLE, CRC32C, index_location="end")],
    }


def test_one_number_stands_for_all_axes() -> None:
    written = parsed(array((7, 11, 5), (2, 3, 1), LITTLE))
    assert shard_new(written, (4,)) == shard_new(written, (4, 4, 4))


@pytest.mark.parametrize(
    "written",
    [
        array((7, 11), (2, 3), transpose(1, 0), LITTLE, ZSTD),
        array((7, 11), (2, 3), extension("example.shift"), BIG, extension("example.invert")),
        array((7, 11), (2, 3), "bytes", data_type="uint8"),
        array((0, 11), (2, 3), LITTLE),
        array((7, 11), (2, 3), LITTLE, chunk_key_encoding=extension("v2", separator="/")),
        array((7, 11), (2, 3), "vlen-utf8", data_type="string", fill_value=""),
    ],
    ids=lambda document: json.dumps(document["codecs"])[:60],
)
def test_it_shows_as_it_was_written(written: dict[str, Any]) -> None:
    node = parsed(written)
    shown = parsed(unshard(parsed(shard_new(node, (4, 2)))).document)
    assert [codec.to_json() for codec in shown.codecs] == [codec.to_json() for codec in node.codecs]
    assert shown.chunk_grid == node.chunk_grid
    replaced_members = {"codecs", "chunk_key_encoding"}
    assert {k: v for k, v in shown.document.items() if k not in replaced_members} == {
        k: v for k, v in written.items() if k not in replaced_members
    }


def test_an_empty_configuration_is_kept() -> None:
    """zarr-python refuses the codec without it."""
    bz2 = {"name": "numcodecs.bz2", "configuration": {}}
    document = shard_new(parsed(array((7, 11), (2, 3), LITTLE, bz2)), (4,))
    assert document["codecs"][0]["configuration"]["codecs"] == [LITTLE, bz2]


@pytest.mark.parametrize(
    "codecs",
    [[LITTLE], [LITTLE, GZIP], [BIG, ZSTD], [LITTLE, BLOSC], [transpose(1, 0), LITTLE, CRC32C]],
    ids=lambda codecs: json.dumps(codecs)[:60],
)
def test_both_libraries_write_and_read_it(codecs: list[Any], tmp_path: Path) -> None:
    values = np.arange(7 * 11, dtype="i4").reshape(7, 11)
    document = shard_new(parsed(array(values.shape, (2, 3), *codecs)), (2, 3))
    for name in ("zarr", "tensorstore"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "zarr.json").write_text(json.dumps(document))
    zarr.open_array(str(tmp_path / "zarr"), mode="r+")[...] = values
    kvstore = {"driver": "file", "path": f"{tmp_path / 'tensorstore'}/"}
    tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True).result()[...] = values
    for name in ("zarr", "tensorstore"):
        files = {path.name for path in (tmp_path / name / "c").rglob("*") if path.is_file()}
        assert files == {"0", "1"}
        assert_same(read_zarr(tmp_path / name), values)
        assert_same(read_tensorstore(tmp_path / name), values)


@pytest.mark.parametrize("dtype", ["u1", "f8", "c8", "M8[s]", "U4", str])
def test_what_zarr_python_creates_becomes_sharded(dtype: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(str(tmp_path), shape=(7, 11), chunks=(2, 3), dtype=dtype)
        written = json.loads((tmp_path / "zarr.json").read_bytes())
        (tmp_path / "zarr.json").write_text(json.dumps(shard_new(parsed(written), (8,))))
        opened = zarr.open_array(str(tmp_path), mode="r")
        assert (opened.shards, opened.chunks, opened.shape) == ((16, 24), (2, 3), (7, 11))
        assert opened.dtype == zarr.create_array({}, shape=(1,), dtype=dtype).dtype


@pytest.mark.parametrize(
    ("document", "chunks_per_shard", "message"),
    [
        (array((7, 11), (4, 6), sharding((2, 3))), (2, 2), "sharded already"),
        (array((), (), LITTLE), (2,), "without axes"),
        (array((7, 11), (2, 3), LITTLE), (2, 2, 2), "3 axes, the array has 2"),
        (array((7, 11), rectilinear(2, 3), LITTLE), (2,), "rectilinear"),
        (array((7, 11), regular_bounded(2, 3), LITTLE), (2,), "regular_bounded"),
        (array((7, 11), extension("example.spiral"), LITTLE), (2,), "example.spiral"),
        (array((7, 11), (2, 0), LITTLE), (2,), "chunk_shape"),
        (array((7, 11), (2,), LITTLE), (2,), "chunk_shape"),
        (array((7, 11), (2, 3), GZIP), (2,), "array → bytes"),
        (array((7, 11), (2, 3), extension("example.raw")), (2,), "array → bytes"),
        (array((7, 11), (2, 3), LITTLE, BIG), (2,), "array → bytes"),
        (array((7, 11), (2, 3), GZIP, LITTLE), (2,), "wrong side"),
        (array((7, 11), (2, 3), LITTLE, extension("example.a") | {"must_understand": False}), (2,), "lose"),
        (array((7, 11), (2, 3), LITTLE, chunk_key_encoding="example.hash"), (2,), "key encoding"),
        (array((7, 11), (2, 3), LITTLE), (4096, 4096), "index"),
        (array((7, 11), (2**62, 3), LITTLE), (2,), "63"),
        (array((10**12, 10**12), (2, 3), LITTLE), (2,), "inode"),
    ],
    ids=lambda value: json.dumps(value)[-60:],
)
def test_the_reason_says_why_it_is_stored_as_written(
    document: dict[str, Any], chunks_per_shard: tuple[int, ...], message: str
) -> None:
    text = reason(document, *chunks_per_shard)
    assert message in text
    assert len(text) < 600
    assert text.isprintable()


@given(st.data())
@settings(max_examples=400)
def test_any_document_becomes_sharded_or_has_a_reason(data: st.DataObject) -> None:
    document: Any = array((7, 11), (2, 3), transpose(1, 0), LITTLE, GZIP)
    for _ in range(data.draw(st.integers(0, 2))):
        document = replaced(document, data.draw(st.sampled_from(places(document))), data.draw(json_values))
    try:
        node = parse_node(document)
        if not isinstance(node, ArrayMetadata):
            return
        sharded = shard_new(node, data.draw(st.sampled_from([(1,), (2,), (3, 5)])))
    except (MetadataError, NotUnshardable):
        return
    shown = unshard(parsed(sharded))
    assert list(shown.grid.chunk_shape) == node.chunk_grid.configuration["chunk_shape"]
    assert [codec.configuration for codec in shown.codecs] == [codec.configuration for codec in node.codecs]


@pytest.mark.parametrize(("text", "expected"), [("8", (8,)), ("8,8,8", (8, 8, 8)), ("1,64", (1, 64)), ("1", (1,))])
def test_chunks_per_shard_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert parse_chunks_per_shard(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "8,0", "-1", "8,", ",8", "8,,8", "a", "8x8", "1.5", "+8", " 8", "8, 8", "²", "٣", "1_0"),
        *("9" * 5000, "4096,4096", str(2**23 + 1), ",".join(["1"] * 33), "\x1b[31m"),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_other_texts_are_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_chunks_per_shard(text)
    assert "inner chunks" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
