"""`shardfs refs`: references that stand for the same bytes as a mount would show, or an error."""

import json
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray
import zarr
from fsspec.implementations.reference import LazyReferenceMapper

from tests.support.clients import KERCHUNK, ZARR2
from tests.support.commands import FAILED, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import CASES, GZIP, LITTLE, array, write_case
from tests.support.damage import ENTRY_FAULTS, SHARD, SHARD_FAULTS, document, edit
from tests.support.datasets import age, by_key, store
from tests.support.encoder import SHARDING, named
from tests.support.mounting import Mounter
from tests.support.readers import assert_same
from tests.support.science import write_dataset

References = Mapping[str, Any]


def references(*arguments: str | Path) -> References:
    done = run("refs", *arguments)
    assert done.returncode == 0, str(done)
    content = json.loads(done.stdout)
    assert content.keys() == {"version", "refs"}
    assert content["version"] == 1
    refs: References = content["refs"]
    return refs


def resolve(reference: Any) -> bytes:
    """The bytes that a reference stands for, read with nothing but `open`."""
    if isinstance(reference, str):
        return reference.encode()
    url, *byte_range = reference
    with open(url.removeprefix("file://"), "rb") as file:
        if not byte_range:
            return file.read()
        offset, nbytes = byte_range
        file.seek(offset)
        data = file.read(nbytes)
        assert len(data) == nbytes
        return data


def read(refs: References, path: str) -> np.ndarray:
    """The values that zarr-python reads through fsspec, which knows files and nothing of us."""
    filesystem = fsspec.filesystem("reference", fo={"version": 1, "refs": dict(refs)}, asynchronous=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        stored = zarr.storage.FsspecStore(filesystem, path=path, read_only=True)
        return np.asarray(zarr.open_array(stored, mode="r")[...])


def is_encoded_as_a_whole(codecs: list[Any]) -> bool:
    """Whether codecs that change bytes follow a sharding codec."""
    known = [named(codec) for codec in codecs if named(codec)[0] != "example.hint"]
    names = [name for name, _ in known]
    if SHARDING not in names:
        return False
    at = names.index(SHARDING)
    return at + 1 < len(known) or is_encoded_as_a_whole(known[at][1]["codecs"])


def test_references_are_exactly_the_inner_chunks(tmp_path: Path) -> None:
    encoded = {case.name: write_case(case, tmp_path / case.name) for case in CASES}
    refs = references("--skip-encoded", tmp_path)
    expected = {}
    for case in CASES:
        if not is_encoded_as_a_whole(case.document["codecs"]):
            chunks = by_key(case.document, encoded[case.name])
            expected |= {f"{case.name}/{key}": data for key, data in chunks.items()}
            document = json.loads(refs[f"{case.name}/zarr.json"])
            assert SHARDING not in json.dumps(document["codecs"])
    chunks = {key: resolve(reference) for key, reference in refs.items() if not key.endswith("/zarr.json")}
    assert chunks == expected
    assert len(expected) > 1000
    for name in ("2d", "nested-2", "transpose-201", "rectilinear-mixed"):  # all bytes are compared
        assert_same(read(refs, name), encoded[name].values)


def error_of(done: Any) -> str:
    """The line in which a command says why it failed, though it may have printed something before."""
    assert done.returncode == FAILED
    assert "Traceback" not in done.stderr
    last = str(done.stderr.splitlines()[-1])
    assert last.startswith("shardfs: ")
    return last


def write_group(directory: Path, **documents: dict[str, Any]) -> None:
    """Consolidated arrays, and a group within theirs that has a copy of its own array."""
    group = {"zarr_format": 3, "node_type": "group"}
    below = group | consolidated({"damaged": document()})
    for name, stored in {**documents, "inner/damaged": document()}.items():
        store(directory / name, stored)
    copies = documents | {"inner": below, "inner/damaged": document()}
    (directory / "zarr.json").write_text(json.dumps(group | consolidated(copies)))
    (directory / "inner/zarr.json").write_text(json.dumps(below))


def consolidated(copies: dict[str, Any]) -> dict[str, Any]:
    return {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": copies}}


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_a_damaged_array_is_named_and_skipped_and_others_are_referenced(tmp_path: Path, view: str) -> None:
    """A reader that opened it by its consolidated copy would find fill values."""
    write_group(tmp_path, image=document(), whole=document(after=(GZIP,)), plain=array((4, 6), (2, 3), LITTLE))
    edit(tmp_path / "inner/damaged" / SHARD, ENTRY_FAULTS["beyond-the-end"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/zarr.json").write_text("{")
    done = run("refs", "--view", view, "--skip-encoded", tmp_path)
    assert done.returncode == FAILED
    said = done.stderr.splitlines()
    assert [line.partition(" cannot be referenced: ")[0] for line in said] == [
        "shardfs: broken",
        "shardfs: inner/damaged",
        "shardfs: whole",
    ]
    assert "inner/damaged/c/0/" in said[1]
    refs = json.loads(done.stdout)["refs"]
    document_name = {"v3": "zarr.json", "v2": ".zarray"}[view]
    assert {key.rpartition("/")[0] for key in refs if key.endswith(document_name)} >= {"image", "plain"}
    assert not [key for key in refs if key.startswith(("inner/damaged", "broken", "whole"))]
    texts = [text for text in refs.values() if isinstance(text, str)]
    assert not [text for text in texts if "damaged" in text or "whole" in text]
    written = tmp_path / "references.json"
    done = run("refs", "-o", written, tmp_path)
    assert f"{written} is left as it was" in error_of(done)
    assert "--skip-encoded" in done.stderr
    assert not written.exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_xarray_reads_the_references_of_the_v2_view(tmp_path: Path) -> None:
    """By zarr-python 3 and 2, and with kerchunk's own engine, which knows no Zarr v3."""
    values = np.arange(20 * 24 * 28, dtype="f4").reshape(20, 24, 28) + 0.5
    written = xarray.Dataset({"t": (("z", "y", "x"), values)}, coords={"x": np.arange(28) * 0.5 + 1})
    encoding = {"t": {"chunks": (5, 6, 7), "shards": (10, 12, 14)}}
    written.to_zarr(tmp_path / "data.zarr", zarr_format=3, consolidated=True, encoding=encoding)
    file = tmp_path / "references.json"
    done = run("refs", "--view", "v2", "-o", file, tmp_path / "data.zarr")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    filesystem = fsspec.filesystem("reference", fo=str(file), asynchronous=True)
    stored = zarr.storage.FsspecStore(filesystem, read_only=True)
    for consolidated in (True, False):
        read = xarray.open_dataset(stored, engine="zarr", zarr_format=2, consolidated=consolidated)
        xarray.testing.assert_equal(read.load(), written)
    opened = {
        ZARR2: 'xarray.open_dataset(fsspec.get_mapper("reference://", fo=references), engine="zarr")',
        KERCHUNK: 'xarray.open_dataset(references, engine="kerchunk")',
    }
    for client, expression in opened.items():
        program = f"""
import sys, fsspec, numpy, xarray
found, references = sys.argv[1:]
read = {expression}
numpy.savez(found, t=read["t"].values, x=read["x"].values)
"""
        found = client.arrays(program, tmp_path, file)
        assert np.array_equal(found["t"], values)
        assert np.array_equal(found["x"], written["x"].values)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_array_with_missing_chunks_that_read_as_another_value_is_skipped(mount: Mounter, tmp_path: Path) -> None:
    """All else are the bytes that a mount shows, also documents that depend on the group above."""
    source = tmp_path / "data.zarr"
    write_dataset(source)
    group = zarr.open_group(str(source))
    other = {"fill_value": 0, "attributes": {"_FillValue": "AAAAAAAA8L8="}, "dimension_names": ["b", "a"]}
    for name, options in (("sparse", other), ("nameless", {})):
        shards = {"chunks": (10, 10), "shards": (40, 40), "compressors": None}
        group.create_array(name, shape=(60, 70), dtype="f4", **shards, **options)[:9, :9] = 7
    image = group.create_group("image", attributes={"ome": {"version": "0.5"}})
    scale = {"chunks": (4, 4), "shards": (8, 8), "dimension_names": ["y", "x"]}
    image.create_array("0", shape=(10, 12), dtype="u1", **scale)[:] = 1
    store(source / "image" / "point", array((), (), LITTLE))
    zarr.consolidate_metadata(str(source))
    done = run("refs", "--view", "v2", source)
    assert done.returncode == 0
    said = [line.partition(" cannot be referenced: ") for line in done.stderr.splitlines()]
    skipped = {name.removeprefix("shardfs: ") for name, _, _ in said}
    assert "sparse" in skipped
    assert not skipped & {"nameless", "image/0", "height"}
    assert all("--view v3" in why for _, _, why in said)
    refs = json.loads(done.stdout)["refs"]
    age(source)
    root = mount(source, arguments=["--view=v2"]).path
    for key, reference in refs.items():
        assert resolve(reference) == (root / key).read_bytes(), key
    assert {"image/0/0/2", "nameless/0.0", "height/.zattrs"} <= refs.keys()
    assert not [key for key in refs if key.split("/")[0] in skipped or key.endswith(".zmetadata")]
    assert json.loads(refs["height/.zattrs"])["_ARRAY_DIMENSIONS"] == []
    assert "image/point/.zattrs" not in refs


def arrays_by_parquet(directory: Path, engine: str) -> zarr.Group:
    """What zarr-python reads by fsspec's own reader of references as Parquet."""
    filesystem = fsspec.filesystem(
        "reference",
        fo=LazyReferenceMapper(str(directory), engine=engine),
        remote_protocol="file",
        asynchronous=True,
    )
    return zarr.open_group(zarr.storage.FsspecStore(filesystem, read_only=True), mode="r", zarr_format=2)


@pytest.mark.filterwarnings("ignore::Warning")  # of pandas about fastparquet, which fsspec uses
@pytest.mark.parametrize("engine", ["pyarrow", "fastparquet"])
def test_fsspec_reads_references_as_parquet(tmp_path: Path, engine: str) -> None:
    """Several records, of which one has no chunks; chunk files, a scalar, a nested group."""
    group = zarr.create_group(tmp_path / "data.zarr", attributes={"a": 1})
    values = np.arange(30 * 40, dtype="i4").reshape(30, 40)
    group.create_array("image", data=values, chunks=(4, 5), shards=(16, 20))
    group.create_array("below/plain", data=values, chunks=(16, 20), attributes={"unit": "nm"})
    group.create_array("point", data=np.array(7.5))
    long = group.create_array("long", shape=(30_000,), dtype="u1", chunks=(1,), shards=(10,))
    long[9_990:10_000], long[20_000:20_010] = 8, 9
    written = tmp_path / "references"
    done = run("refs", "--parquet", written, tmp_path / "data.zarr")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(os.listdir(written / "long")) == ["refs.0.parq", "refs.2.parq"]
    read = arrays_by_parquet(written, engine)
    assert read.attrs["a"] == 1
    assert (read["image"][...] == values).all()
    assert (read["below/plain"][...] == values).all()
    assert read["below/plain"].attrs["unit"] == "nm"
    assert read["point"][...] == 7.5
    assert (read["long"][9_990:10_010] == [8] * 10 + [0] * 10).all()
    assert (read["long"][19_990:20_010] == [0] * 10 + [9] * 10).all()


@pytest.mark.filterwarnings("ignore::Warning")
def test_a_missing_chunk_in_references_as_parquet_is_the_fill_value_or_an_error(tmp_path: Path) -> None:
    """pandas 3 reads a missing text from pyarrow as NaN, which fsspec takes for a name."""
    group = zarr.create_group(tmp_path / "data.zarr")
    group.create_array("sparse", shape=(8, 8), dtype="u1", chunks=(2, 2), shards=(4, 4), fill_value=3)[2:4, :2] = 1
    assert run("refs", "--parquet", tmp_path / "references", tmp_path / "data.zarr").returncode == 0
    expected = zarr.open_group(tmp_path / "data.zarr")["sparse"][...]
    assert (arrays_by_parquet(tmp_path / "references", "fastparquet")["sparse"][...] == expected).all()
    sparse = arrays_by_parquet(tmp_path / "references", "pyarrow")["sparse"]
    assert (sparse[2:4, :2] == 1).all()
    read = None
    with suppress(Exception):  # of whatever class: fsspec promises none
        read = sparse[...]
    assert read is None or (read == expected).all()


def test_what_references_as_parquet_cannot_hold_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "data.zarr")
    image = group.create_group("image", attributes={"ome": {"version": "0.5"}})
    sharded = {"shape": (8, 8), "dtype": "u1", "chunks": (2, 2), "shards": (4, 4)}
    for name, above in (("0", image), (".zoo", group), ("good", group), ("damaged", group)):
        above.create_array(name, **sharded)[:] = 1
    (tmp_path / "data.zarr/damaged/c/1/1").write_bytes(b"nothing")
    written = tmp_path / "references"
    done = run("refs", "--parquet", written, tmp_path / "data.zarr")
    assert done.returncode == FAILED
    named = {line.partition(" cannot be referenced: ")[0] for line in done.stderr.splitlines()}
    assert named == {"shardfs: image/0", "shardfs: .zoo", "shardfs: damaged"}
    assert "write JSON, or mount it" in done.stderr
    assert sorted(os.listdir(written)) == [".zmetadata", "good"]
    documents = json.loads((written / ".zmetadata").read_text())["metadata"]
    assert {key.rpartition("/")[0] for key in documents} == {"", "image", "good"}
    assert (arrays_by_parquet(written, "pyarrow")["good"][...] == 1).all()
    before = (written / ".zmetadata").read_bytes()
    again = run("refs", "--parquet", written, tmp_path / "data.zarr")
    assert "exists: name a new directory" in one_line_of(again, WRONG_USAGE)
    assert (written / ".zmetadata").read_bytes() == before
    done = run("refs", "--parquet", tmp_path / "root", tmp_path / "data.zarr/good")
    assert "no array at the root" in done.stderr
    assert done.returncode == FAILED
    assert "--view v3" in run("refs", "--view", "v3", "--parquet", tmp_path / "v3", tmp_path / "data.zarr").stderr
    assert sorted(os.listdir(tmp_path)) == ["data.zarr", "references", "root"]


def test_the_output_file_is_replaced_as_a_whole_or_untouched(tmp_path: Path) -> None:
    store(tmp_path / "array", document())
    file = tmp_path / "out/references.json"
    file.parent.mkdir()
    done = run("refs", "-o", "out/references.json", "array", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(file.parent) == [file.name]
    first = file.read_bytes()
    assert json.loads(first)["refs"].keys() == references(tmp_path / "array").keys()
    edit(tmp_path / "array/c/0/1", SHARD_FAULTS["cut-by-one"])
    error_of(run("refs", "--output", file, tmp_path / "array"))
    assert file.read_bytes() == first
    assert os.listdir(file.parent) == [file.name]
    assert "does not exist" in one_line_of(run("refs", "-o", file, tmp_path / "nowhere"), SOURCE)
    assert file.read_bytes() == first


def test_commands_that_write_the_same_file_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    store(tmp_path / "array", document())
    file = tmp_path / "references.json"
    with ThreadPoolExecutor(8) as threads:
        for done in threads.map(lambda _: run("refs", "-o", file, tmp_path / "array"), range(24)):
            assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(file.read_text())["refs"].keys() == references(tmp_path / "array").keys()
    assert sorted(os.listdir(tmp_path)) == ["array", "references.json"]


def test_an_output_that_is_a_device_or_a_link_stays_one(tmp_path: Path) -> None:
    store(tmp_path / "array", document())
    links = {"null": Path("/dev/null"), "link": tmp_path / "references.json"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
        done = run("refs", "-o", tmp_path / name, tmp_path / "array")
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / name).readlink() == target
    assert json.loads((tmp_path / "link").read_text())["refs"]


def test_a_chunk_that_is_a_link_is_no_hole(tmp_path: Path) -> None:
    """As in every dataset that git-annex keeps."""
    store(tmp_path / "array", array((4, 6), (2, 3), LITTLE))
    stored = (tmp_path / "array/c/0/1").rename(tmp_path / "kept elsewhere")
    (tmp_path / "array/c/0/1").symlink_to("../../../kept elsewhere")
    done = run("refs", tmp_path)
    if done.returncode == 0:
        assert resolve(json.loads(done.stdout)["refs"]["array/c/0/1"]) == stored.read_bytes()
    else:
        assert "array/c/0/1" in error_of(done)
