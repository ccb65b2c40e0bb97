"""The npy view on real mounts: every array one file that NumPy reads and maps, read-only."""

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.corpus import CASES, GZIP, LITTLE, ZSTD, array, extension, sharding
from tests.support.damage import edit, flip
from tests.support.datasets import Corpus, files_below, store
from tests.support.mounting import Mounter, metrics, refuses

NPY = ["--view=npy"]
SHAPE = (12, 40, 300)
VALUES = np.arange(math.prod(SHAPE), dtype="<i4").reshape(SHAPE)
NOT_SHOWN = {"opaque-codec", "opaque-serializer", "type-string", "zero-bytes"}
"""Cases whose chunks nobody knows how to decode, or whose elements vary in size."""


def saved(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values, order="C"))
    return file.getvalue()


def group(path: Path, **attributes: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}))


def no_such_file(path: Path) -> bool:
    with pytest.raises(FileNotFoundError):
        path.stat()
    return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A group with one array of 3 × 2 × 3 chunks in shards, and everything that may stand beside it."""
    path = tmp_path / "data.zarr"
    group(path)
    document = array(SHAPE, (8, 40, 300), sharding((4, 20, 100), LITTLE, ZSTD), fill_value=7)
    store(path / "image", document, VALUES, absent=[(2, 1, 2)])
    return path


def shown_values() -> np.ndarray:
    values = VALUES.copy()
    values[8:, 20:, 200:] = 7
    return values


def test_every_array_of_the_corpus_is_what_numpy_saves(corpus: Corpus, mount: Mounter) -> None:
    names = {case.name for case in CASES} - NOT_SHOWN
    mounted = mount(corpus.mount.source, arguments=NPY)
    root = mounted.path
    for _ in range(2):
        assert {name for name in os.listdir(root) if name.endswith(".npy")} == {f"{name}.npy" for name in names}
    for name in sorted(names):
        path, values = root / f"{name}.npy", corpus.encoded[name].values
        expected = saved(values)
        assert path.stat().st_size == len(expected), name
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(expected).digest(), name
        if values.size:
            assert np.load(path, mmap_mode="r").tobytes() == values.tobytes(), name
        assert no_such_file(root / name)
    for name in NOT_SHOWN:
        assert len(re.findall(f"{name} is skipped in the npy view: ", mounted.log)) == 1
        assert no_such_file(root / f"{name}.npy")
        assert no_such_file(root / name)


def test_groups_are_directories_and_attributes_are_files(source: Path, mount: Mounter) -> None:
    group(source, root=[1, None])
    group(source / "group", scale=float("nan"), name="µ")
    group(source / "group/empty")
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    attributes = {"unit": "m", "_FillValue": "AAAAAICHw8A="}  # -9999.0, as xarray writes it
    members = {"data_type": "float32", "dimension_names": ["y", "x"], "attributes": attributes}
    document = array((2, 3), (2, 3), sharding((1, 3)), fill_value=0, **members)
    for name in ("group/a", "plain/b"):
        store(source / name, document, values)
    (source / "README").write_text("read me")
    zarr.create_array(source / "whole", data=VALUES[:3], chunks=(2, 16, 50), dimension_names=["z", "y", "x"])
    zarr.create_array(source / "old", data=values, zarr_format=2)
    root = mount(source, arguments=NPY).path
    listings = {
        "": ["README", "data.zarr.json", "group", "group.json", "image.npy", "old", "plain", "whole.npy"],
        "group": ["a.json", "a.npy", "empty"],
        "group/empty": [],
        "plain": ["b.json", "b.npy"],
    }
    assert {name: sorted(os.listdir(root / name)) for name in listings} == listings
    shown = [json.loads((root / f"{name}.json").read_text()) for name in ("data.zarr", "group", "plain/b")]
    assert math.isnan(shown[1].pop("scale"))
    of_array = {"unit": "m", "_FillValue": -9999.0, "_ARRAY_DIMENSIONS": ["y", "x"]}
    assert shown == [{"root": [1, None]}, {"name": "µ"}, of_array]
    assert (root / "README").read_text() == "read me"
    for name in ("group/a", "plain/b"):
        assert np.array_equal(np.load(root / f"{name}.npy"), values)
    assert np.array_equal(np.load(root / "whole.npy"), VALUES[:3])
    assert np.array_equal(zarr.open_array(root / "old", mode="r")[:], values)
    for name in ("zarr.json", "group/zarr.json", "image", "image.json", "old.npy", "README.npy", "plain.json"):
        assert no_such_file(root / name)
    for name in (".npy", "..npy", "...npy", ".json", "group.npy", ".shardfs.npy"):
        assert no_such_file(root / name)
    status, document_status = (root / "group/a.npy").stat(), (source / "group/a/zarr.json").stat()
    for field in ("st_mtime_ns", "st_mode", "st_uid"):
        assert getattr(status, field) == getattr(document_status, field)
    assert (root / "group/a.npy").stat().st_ino == status.st_ino != (root / "group/a.json").stat().st_ino
    for change in (
        lambda: (root / "image.npy").open("r+b"),
        lambda: (root / "new").touch(),
        lambda: os.remove(root / "image.npy"),
    ):
        with refuses(errno.EROFS):
            change()


@pytest.mark.parametrize("separator", ["/", "."])
def test_an_array_that_is_the_source_is_a_file_of_its_name(separator: str, tmp_path: Path, mount: Mounter) -> None:
    encoding = extension("default", separator=separator)
    document = array((4, 6), (4, 6), sharding((2, 3)), chunk_key_encoding=encoding, attributes={"a": 1})
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    store(tmp_path / "cells.zarr", document, values)
    (tmp_path / "cells.zarr/notes.txt").write_text("notes")
    root = mount(tmp_path / "cells.zarr", arguments=NPY).path
    assert files_below(root) == {
        "cells.zarr.npy": saved(values),
        "cells.zarr.json": b'{\n  "a": 1\n}\n',
        "notes.txt": b"notes",
    }
    assert no_such_file(root / ("c" if separator == "/" else "c.0.0"))
    assert no_such_file(root / "zarr.json")


def test_generated_files_win_over_stored_names_and_too_long_names_are_hidden(source: Path, mount: Mounter) -> None:
    (source / "image.npy").write_text("stored")
    group(source / "twice.npy")
    odd, longest = os.fsdecode(b"\xff\xfe"), "n" * 251
    for name in ("twice", "data.zarr", odd, longest, "n" * 252):
        store(source / name, array((2,), (2,), sharding((1,)), attributes={"of": name} if len(name) < 20 else {}))
    (source / "broken\n").mkdir()
    (source / "broken\n/zarr.json").write_text("{")
    group(source, of="the root")
    mounted = mount(source, arguments=NPY)
    shown = ["data.zarr.json", "data.zarr.npy", "image.npy", "twice.json", "twice.npy", f"{odd}.json", f"{odd}.npy"]
    for _ in range(2):
        assert sorted(os.listdir(mounted.path)) == sorted([*shown, "broken\n", f"{longest}.npy"])
    assert np.array_equal(np.load(mounted.path / "image.npy"), shown_values())
    for name in ("twice", odd):
        assert np.load(mounted.path / f"{name}.npy").tolist() == [1, 2]
    assert json.loads((mounted.path / "data.zarr.json").read_text()) == {"of": "data.zarr"}
    assert r"broken\n is shown as stored: " in mounted.log


def test_random_access_touches_only_the_chunks_that_it_needs(source: Path, mount: Mounter) -> None:
    mounted = mount(source, arguments=NPY)
    values = shown_values()
    with open(mounted.path / "image.npy", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for coords in [(9, 5, 150), (9, 5, 151), (8, 19, 199), (0, 0, 0), (10, 30, 250)]:
            offset = 128 + 4 * int(np.ravel_multi_index(coords, SHAPE))
            assert os.pread(file.fileno(), 4, offset) == values[coords].tobytes()
    found = metrics(mounted.path)
    # A page has 1024 elements: rows of 300 go through all chunks along the last axis, of which one is absent.
    assert found["decoded_chunks"] == 3 + 2 + 3
    mapped = np.load(mounted.path / "image.npy", mmap_mode="r")
    assert mapped[9, 5, 150] == values[9, 5, 150]
    assert np.array_equal(mapped[::5, ::7, ::11], values[::5, ::7, ::11])


@pytest.mark.parametrize(
    ("cache", "decoded"), [("512K", 17), ("100K", None)], ids=["a-slab-fits", "a-slab-does-not-fit"]
)
def test_reading_in_order_decodes_each_chunk_once_where_a_slab_fits(
    cache: str, decoded: int | None, source: Path, mount: Mounter
) -> None:
    mounted = mount(source, arguments=[*NPY, f"--decode-cache={cache}"])
    with open(mounted.path / "image.npy", "rb", buffering=0) as file:
        data = b"".join(iter(lambda: file.read(10_000), b""))
    assert data == saved(shown_values())
    found = metrics(mounted.path)
    if decoded is not None:
        assert (found["decoded_chunks"], found["decoded_bytes"]) == (decoded, decoded * 4 * 20 * 100 * 4)
    else:
        assert found["decoded_chunks"] >= 17
        assert (mounted.path / "image.npy").read_bytes() == data


def test_a_damaged_chunk_is_an_error_for_what_it_touches_only(source: Path, mount: Mounter) -> None:
    shard = source / "image/c/0/0/0"
    edit(shard, flip(20))  # in the first chunk
    mounted = mount(source, arguments=NPY, expect=(r"c/0/0/0 of image does not decode",))
    with open(mounted.path / "image.npy", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        with refuses(errno.EIO):
            os.pread(file.fileno(), 4, 128)
        offset = 128 + 4 * int(np.ravel_multi_index((9, 0, 0), SHAPE))
        assert os.pread(file.fileno(), 4, offset) == VALUES[9, 0, 0].tobytes()
    with pytest.raises(OSError, match="Input/output error"):
        shutil.copyfile(mounted.path / "image.npy", source.parent / "copy")


def test_a_file_that_is_opened_after_a_change_has_no_older_values(tmp_path: Path, mount: Mounter) -> None:
    nbytes = 2**20
    document = array((nbytes,), (nbytes,), sharding((nbytes // 2,), LITTLE, GZIP), data_type="uint8")
    for name, value in {"a": 1, "b": 2}.items():
        store(tmp_path / "source" / name, document, np.full(nbytes, value, np.uint8))
    path = mount(tmp_path / "source", arguments=NPY, metadata_ttl=0).path / "a.npy"
    with open(path, "rb", buffering=0) as before:
        os.posix_fadvise(before.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(before.fileno(), 1, 128) == b"\1"
        os.replace(tmp_path / "source/b/c/0", tmp_path / "source/a/c/0")
        with open(path, "rb", buffering=0) as after:
            assert os.pread(before.fileno(), 1, nbytes // 4) == b"\2"  # which the kernel keeps, for both
            assert after.read() == path.read_bytes() == saved(np.full(nbytes, 2, np.uint8))
    with open(path.with_name("b.npy"), "rb") as file:
        (tmp_path / "source/b/zarr.json").write_text(json.dumps(document | {"data_type": "int8"}))
        with refuses(errno.ESTALE):
            file.read()
    assert np.load(path.with_name("b.npy")).dtype == np.int8


def test_an_array_of_terabytes_costs_what_is_read_of_it(tmp_path: Path, mount: Mounter) -> None:
    shape = (2**22, 2**11, 2**11)
    document = array(shape, (256, 256, 256), sharding((64, 64, 64), LITTLE, ZSTD), data_type="uint16", fill_value=7)
    group(tmp_path / "source/huge")
    (tmp_path / "source/huge/zarr.json").write_text(json.dumps(document))
    zarr.open_array(tmp_path / "source/huge", mode="r+")[-1, -1, -1] = 99
    mounted = mount(tmp_path / "source", arguments=NPY, address_space=2**32)
    path = mounted.path / "huge.npy"
    assert path.stat().st_size == 128 + 2 * math.prod(shape)
    with path.open("rb") as file:
        file.seek(-4, os.SEEK_END)
        assert file.read() == b"\7\0\x63\0"
    mapped = np.load(path, mmap_mode="r")
    assert [mapped[at] for at in [(0, 0, 0), (-1, -1, -1), (2**21, 1000, 5)]] == [7, 99, 7]
    assert (mapped[:: 2**20, 3, 9] == 7).all()
    assert metrics(mounted.path)["decoded_chunks"] == 1
    assert mounted.peak_memory() < 250 * 2**20
    del mapped
