"""`shardfs pack`: every chunk as it was encoded, in shards that other libraries read, or named with what is wrong."""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import trio
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs

from tests.support.commands import FAILED, WRONG_USAGE, one_line_of, run
from tests.support.corpus import CASES, write_case
from tests.support.damage import edit, flip
from tests.support.datasets import files_below
from tests.support.opened import in_trio, open_source
from tests.support.readers import READERS, assert_same, read_zarr

RANDOM = np.random.default_rng(7)
IMAGE = RANDOM.integers(0, 60, (40, 50, 30)).astype("u2")
TABLE = RANDOM.integers(0, 9, (64, 63)).astype("i4")

NAMES = {"image", "below/table", "below/few", "point"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_v3(path: Path) -> None:
    """A group with arrays that are packed, one that is sharded already, some that are not worth it, and files."""
    group = zarr.open_group(path, mode="w", zarr_format=3, attributes={"title": "ä"})
    create = {"dimension_names": ["z", None, "x"], "attributes": {"unit": "µm"}}
    group.create_array("image", shape=IMAGE.shape, chunks=(8, 8, 8), dtype="u2", fill_value=7, **create)[...] = IMAGE
    table = group.create_array("below/table", shape=TABLE.shape, chunks=(4, 4), shards=(8, 16), dtype="i4")
    table[...] = TABLE
    finish(group, path)


def write_v2(path: Path) -> None:
    """The same in v2: big-endian, with codecs that only numcodecs has, and with both separators."""
    group = zarr.open_group(path, mode="w", zarr_format=2, attributes={"title": "ä"})
    codecs: dict[str, Any] = {"compressors": numcodecs.Blosc(), "filters": None}
    image = group.create_array("image", shape=IMAGE.shape, chunks=(8, 8, 8), dtype=">u2", fill_value=7, **codecs)
    image[...] = IMAGE
    image.attrs["unit"] = "µm"
    codecs = {"compressors": numcodecs.LZ4(), "filters": [numcodecs.Delta("<i4")]}
    keys = {"name": "v2", "separator": "/"}
    table = group.create_array(
        "below/table", shape=TABLE.shape, chunks=(8, 8), dtype="<i4", chunk_key_encoding=keys, **codecs
    )
    table[...] = TABLE
    finish(group, path)


def finish(group: zarr.Group, path: Path) -> None:
    group.create_array("below/few", shape=(30,), chunks=(10,), dtype="f8")[...] = np.arange(30)
    group.create_array("point", shape=(), dtype="i4")[...] = 5
    zarr.consolidate_metadata(group.store)
    (path / "README.txt").write_text("come along")
    (path / "notes").mkdir()
    (path / "notes/more.bin").write_bytes(bytes(100))


def pack(source: Path, destination: Path, *arguments: str, status: int = 0) -> str:
    done = run("pack", *(() if "--jobs" in arguments else ("--jobs", "1")), *arguments, source, destination)
    assert done.returncode == status, str(done)
    return done.stderr


def assert_same_values(source: Path, packed: Path) -> None:
    old, new = zarr.open_group(source, mode="r"), zarr.open_group(packed, mode="r", zarr_format=3)
    assert dict(old.attrs) == dict(new.attrs)
    assert {name for name, node in new.members(max_depth=None) if isinstance(node, zarr.Array)} == NAMES
    for name in NAMES:
        was, becomes = old[name], new[name]
        assert_same(np.asarray(becomes[...]).astype(was.dtype), np.asarray(was[...]))
        assert dict(was.attrs) == dict(becomes.attrs)
        assert was.fill_value == becomes.fill_value
    plainly = zarr.open_group(packed, mode="r", zarr_format=3, use_consolidated=False)
    for name in NAMES:  # copies say what the arrays say
        assert plainly[name].metadata == new[name].metadata


@pytest.mark.slow
@in_trio
async def test_every_array_of_the_corpus_has_the_same_chunks_in_the_shards_that_were_asked_for(tmp_path: Path) -> None:
    encoded = {case.name: write_case(case, tmp_path / "corpus" / case.name) for case in CASES}
    await trio.to_thread.run_sync(pack, tmp_path / "corpus", tmp_path / "packed", "--shards", "3")
    packed = open_source(tmp_path / "packed").hierarchy
    for case in CASES:
        node = await packed.node(case.name)
        if node.array is None or node.array.grid.is_encoded or node.metadata.document == case.document:
            assert files_below(tmp_path / "packed" / case.name) == files_below(tmp_path / "corpus" / case.name)
            continue
        for coordinates, chunk in encoded[case.name].inner.items():
            extent = await node.array.extent(coordinates)
            assert await extent.read(0, extent.nbytes) == chunk, case.name
        with suppress(ValueError):  # packed or not, zarr-python does not know it
            assert_same(read_zarr(tmp_path / "packed" / case.name), encoded[case.name].values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "options"), [(write_v2, ("--shards", "2,3,2")), (write_v3, ("--index-location", "start", "--jobs", "2"))]
)
def test_other_libraries_read_every_packed_array(tmp_path: Path, write: Any, options: tuple[str, ...]) -> None:
    write(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed", *options)
    assert_same_values(tmp_path / "source", tmp_path / "packed")
    if write is write_v3:  # zarrs knows no big-endian elements
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            assert_same_values(tmp_path / "source", tmp_path / "packed")
    for name, expected in {"image": IMAGE, "below/table": TABLE}.items():
        assert_same(READERS["tensorstore"](tmp_path / "packed" / name).astype(expected.dtype.str[1:]), expected)
    assert (tmp_path / "packed/README.txt").read_text() == "come along"
    assert (tmp_path / "packed/notes/more.bin").read_bytes() == bytes(100)
    assert not [name for name in files_below(tmp_path / "packed") if "/.z" in f"/{name}" or ".shardfs" in name]


@pytest.mark.slow
def test_documents_of_v2_beside_those_of_v3_are_skipped_and_named(tmp_path: Path) -> None:
    """Readers of v2 would take shards for chunks."""
    source, packed = tmp_path / "source", tmp_path / "packed"
    write_v3(source)
    for key in ("image/.zarray", "image/.zattrs", ".zgroup", "notes/.zattrs"):
        (source / key).write_text("{}")
    said = pack(source, packed, "--shards", "2")
    assert ".zgroup, image/.zarray and 1 more: skipped, of Zarr v2 beside zarr.json" in said
    assert [path for path in sorted(files_below(packed)) if "/.z" in f"/{path}"] == ["notes/.zattrs"]
    assert run("verify", source, packed).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("codecs", ["zstd", "none", '["bytes", {"name": "blosc"}]'])
def test_chunks_are_transcoded_where_other_codecs_are_asked_for_and_nowhere_else(tmp_path: Path, codecs: str) -> None:
    write_v3(tmp_path / "source")
    source = zarr.open_group(tmp_path / "source")
    zipped = source.create_array("gzip", shape=(64,), chunks=(4,), dtype="i4", compressors=zarr.codecs.GzipCodec())
    zipped[...] = np.arange(64)
    only_zarr = {"filters": [zarr_numcodecs.Delta(dtype="<i4")], "compressors": [zarr_numcodecs.LZ4()]}
    source.create_array("numcodecs", shape=(64,), chunks=(4,), dtype="i4", **only_zarr)[...] = np.arange(64)
    said = pack(tmp_path / "source", tmp_path / "packed", "--codecs", codecs)
    how = {line.partition(":")[0]: line.rpartition(", ")[2] for line in said.splitlines()}
    assert (how["image"] == "copied encoded") is (codecs == "zstd")
    assert how["gzip"] != "copied encoded"
    assert "transcoded from numcodecs.delta" in said
    packed = zarr.open_group(tmp_path / "packed", mode="r", use_consolidated=False)
    assert_same(np.asarray(packed["image"][...]), IMAGE)
    assert_same(np.asarray(packed["gzip"][...]), np.arange(64, dtype="i4"))
    assert_same(READERS["tensorstore"](tmp_path / "packed/image"), IMAGE)
    assert_same(READERS["tensorstore"](tmp_path / "packed/numcodecs"), np.arange(64, dtype="i4"))


@pytest.mark.slow
def test_a_damaged_shard_and_a_damaged_chunk_are_named_and_skipped(tmp_path: Path) -> None:
    write_v3(tmp_path / "source")
    source = zarr.open_group(tmp_path / "source")
    plain = source.create_array("plain", shape=(64,), chunks=(4,), dtype="i4", compressors=zarr.codecs.ZstdCodec())
    plain[...] = np.arange(1, 65)
    edit(tmp_path / "source/below/table/c/3/1", flip(-3))
    (tmp_path / "source/plain/c/5").write_bytes(b"no zstd")
    os.truncate(tmp_path / "source/plain/c/6", 5 * 2**30)
    done = run("pack", "--codecs", "gzip", tmp_path / "source", tmp_path / "packed")
    assert done.returncode == FAILED
    problems = [line for line in done.stderr.splitlines() if line.startswith("shardfs: ")]
    assert len(problems) == 3
    assert "skipped: below/table/c/3/1" in problems[0]
    assert "skipped: plain/c/5: " in problems[1]
    assert "skipped: plain/c/6: 5,368,709,120 bytes are too many to be decoded" in problems[2]
    expected = np.arange(1, 65, dtype="i4")
    expected[20:28] = 0
    packed = zarr.open_group(tmp_path / "packed", mode="r", use_consolidated=False)
    assert_same(np.asarray(packed["plain"][...]), expected)
    table = TABLE.copy()
    table[24:32, 16:32] = 0
    assert_same(np.asarray(packed["below/table"][...]), table)


@pytest.mark.slow
def test_a_folder_that_cannot_be_listed_is_named_and_all_others_are_packed(tmp_path: Path) -> None:
    source, packed, fresh, elsewhere = (tmp_path / name for name in ("source", "packed", "fresh", "elsewhere"))
    write_v3(source)
    pack(source, fresh, "--shards", "2")
    moved = source / "below/table/c/3"
    moved.rename(elsewhere)
    rest = np.asarray(zarr.open_array(source / "below/table", mode="r")[...])
    moved.symlink_to(elsewhere)
    os.mkfifo(source / "fifo")
    closed = [source / name for name in ("image/c", "notes", "below/few/c")]
    for folder in closed:
        folder.chmod(0)
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    try:
        done = run("pack", "--shards", "2", "--jobs", "1", source, packed, prefix=prefix)
        verified = run("verify", "--jobs", "1", source, packed, prefix=prefix)
    finally:
        for folder in closed:
            folder.chmod(0o755)
    assert sorted(line for line in done.stderr.splitlines() if line.startswith("shardfs: ")) == [
        "shardfs: skipped: below/few/c: Permission denied",
        "shardfs: skipped: below/table/c/3 is a link that leads out of the dataset",
        "shardfs: skipped: fifo: it is not a regular file",
        "shardfs: skipped: image/c: Permission denied",
        "shardfs: skipped: notes: Permission denied",
    ]
    assert (done.returncode, done.stdout.rpartition("; ")[2]) == (FAILED, "5 problems\n")
    denied = {f"{folder}: Permission denied" for folder in ("below/few/c", "image/c", "notes")}
    assert verified.returncode == FAILED
    assert denied < set(verified.stdout.splitlines())
    assert_same(np.asarray(zarr.open_array(packed / "below/table", mode="r")[...]), rest)
    moved.unlink()
    elsewhere.rename(moved)
    (source / "fifo").unlink()
    pack(source, packed, "--shards", "2", "--sync")
    assert files_below(packed) == files_below(fresh)


def refuse(tmp_path: Path, *arguments: str | Path) -> str:
    before = files_below(tmp_path)
    said = one_line_of(run("pack", *arguments), WRONG_USAGE)
    assert files_below(tmp_path) == before
    return said


@pytest.mark.slow
def test_what_cannot_be_packed_is_named_and_the_rest_is_packed(tmp_path: Path) -> None:
    source, packed = tmp_path / "source", tmp_path / "packed"
    group = zarr.open_group(source, mode="w")
    group.create_array("image", shape=(64,), chunks=(4,), dtype="i4")[...] = 1
    edges = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, 12] * 4]}}
    document = json.loads((source / "image/zarr.json").read_text()) | {"chunk_grid": edges}
    (source / "uneven").mkdir()
    (source / "uneven/zarr.json").write_text(json.dumps(document))
    (source / "a").mkdir()
    (source / "a/zarr.json").write_text("{")
    (source / "pickled").mkdir()
    zarray = {"zarr_format": 2, "shape": [8], "chunks": [1], "dtype": "|O", "order": "C", "fill_value": None}
    filters = {"compressor": None, "filters": [{"id": "pickle"}]}
    (source / "pickled/.zarray").write_text(json.dumps(zarray | filters))
    done = run("pack", "--shards", "4", source, packed)
    assert done.returncode == 1, str(done)
    assert "skipped: uneven: chunks have several lengths along axis 0" in done.stderr
    assert "skipped: a: the document is not valid JSON" in done.stderr
    assert "skipped: pickled: objects that the filter 'pickle' encodes have no Zarr v3 form" in done.stderr
    assert sorted(path.name for path in packed.iterdir() if not path.name.startswith(".")) == ["image", "zarr.json"]
    assert (zarr.open_array(packed / "image", mode="r")[...] == 1).all()
    refused = refuse(tmp_path, source / "uneven", tmp_path / "nothing")
    assert "nothing was written: (root): chunks have several lengths" in refused


@pytest.mark.slow
def test_a_destination_that_cannot_be_filled_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_v3(source)
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    assert "is not empty; choose another DEST, or add --sync" in refuse(tmp_path, source, tmp_path / "used")
    for inside, around in ((source, source / "packed"), (source / "below", source)):
        assert "overlap" in refuse(tmp_path, inside, around)
    assert "--shards has 2 numbers, and no array has as many axes" in refuse(
        tmp_path, "--shards", "2,2", source / "image", tmp_path / "packed"
    )
    assert "no codecs" in refuse(tmp_path, "--codecs", "[1]", source, tmp_path / "packed")
    huge = {"shape": (2**36,), "chunks": (2**33,), "dtype": "u1", "compressors": None}
    zarr.create_array(tmp_path / "huge", **huge)
    options = ("--shards", "2", "--codecs", "zstd")
    assert "8,589,934,592 bytes are too many" in refuse(tmp_path, *options, tmp_path / "huge", tmp_path / "packed")
