"""Zarr libraries and everyday tools write through mounts; what is stored then is read natively."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.corpus import C_ORDER, CASES, Case, array, ramp, sharding, write_case
from tests.support.datasets import files_below
from tests.support.mounting import PATIENCE, Mounter
from tests.support.readers import READERS, assert_same
from tests.support.s3_server import Bucket
from tests.support.writers import WRITERS, assert_packed, assert_sound, flush, tool

BY_NAME = {case.name: case for case in CASES}
WRITTEN = [BY_NAME[name] for name in (
    "0d", "1d-ragged", "3d-ragged", "index-start-big-2-crc32c", "index-transpose-201-start", "nested-2",
    "nested-3-mixed", "nested-2-between-gzip-crc32c", "transpose-201", "transpose-three-levels", "after-gzip",
    "after-everything", "rectilinear-mixed", "rectilinear-nested", "bounded", "keys-v2-dot", "keys-v2-slash",
    "keys-default-dot", "zero-length-2d",
)]  # fmt: skip
"""Each is written by one of the libraries."""


def assert_natively(source: Path, case: Case, encoded: Path, expected: np.ndarray) -> None:
    """Every library that reads the array as the encoder wrote it to *encoded* reads it as it is stored in *source*."""
    for read in READERS.values():
        try:
            assert_same(read(encoded), case.encode().values)
        except Exception:
            continue
        assert_same(read(source), expected)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_whole_array_is_written_and_read_natively(mount: Mounter, tmp_path: Path, writer: str) -> None:
    cases = WRITTEN[list(WRITERS).index(writer) :: len(WRITERS)]
    for case in cases:
        (tmp_path / "source" / case.name).mkdir(parents=True)
        (tmp_path / "source" / case.name / "zarr.json").write_text(json.dumps(case.document))
        write_case(case, tmp_path / "encoded" / case.name)
    mounted = mount(tmp_path / "source", write=True)
    for case in cases:
        WRITERS[writer](mounted.path / case.name, case.values)
        assert_same(READERS["zarr"](mounted.path / case.name), case.values)
    mounted.unmount()
    assert_sound(tmp_path / "source")
    assert_packed(tmp_path / "source", sum(len(replace(case, absent=frozenset()).encode().inner) for case in cases))
    again = mount(tmp_path / "source")
    for case in cases:
        assert_same(READERS["zarr"](again.path / case.name), case.values)
        assert_natively(tmp_path / "source" / case.name, case, tmp_path / "encoded" / case.name, case.values)


TOOLS = {
    "cp": lambda new, chunk: tool("cp", new, chunk),
    "cat": lambda new, chunk: tool("sh", "-c", f"cat '{new}' > '{chunk}'"),
    "mv": lambda new, chunk: tool("mv", new, chunk),
    "dd": lambda new, chunk: tool("dd", f"if={new}", f"of={chunk}", "bs=7", "status=none"),
    "dd-notrunc": lambda new, chunk: tool("dd", f"if={new}", f"of={chunk}", "bs=16", "conv=notrunc", "status=none"),
    "rsync": lambda new, chunk: tool("rsync", "-aI", new, chunk),
    "tar": lambda new, chunk: tool("sh", "-c", f"tar cf - -C '{new.parent}' {new.name} | tar xf - -C '{chunk.parent}'"),
    "install": lambda new, chunk: tool("install", "-m", "600", new, chunk),
    "ln": lambda new, chunk: (os.unlink(chunk), shutil.copy(new, f"{chunk}.tmp"), os.link(f"{chunk}.tmp", chunk),
                              os.unlink(f"{chunk}.tmp")),
}  # fmt: skip


def test_every_tool_replaces_a_chunk(mount: Mounter, tmp_path: Path) -> None:
    document, values = array((8, 8), (8, 8), sharding((4, 4))), ramp((8, 8), "int32")
    for name in TOOLS:
        write_case(Case(name, document, values, frozenset(), C_ORDER, ""), tmp_path / "source" / name)
    mounted = mount(tmp_path / "source", write=True)
    for name, replace_by in TOOLS.items():
        (tmp_path / "1").write_bytes(bytes(range(64)))  # some move it away
        replace_by(tmp_path / "1", mounted.path / name / "c/0/1")
    for _ in range(2):
        for name in TOOLS:
            assert (mounted.path / name / "c/0/1").read_bytes() == bytes(range(64)), name
            assert sorted(files_below(mounted.path / name)) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]
        flush(mounted)
    mounted.unmount()
    expected = values.copy()
    expected[0:4, 4:8] = np.arange(64, dtype="u1").view("<i4").reshape(4, 4)
    for name in TOOLS:
        for read in READERS.values():
            assert_same(read(tmp_path / "source" / name), expected)
    assert_sound(tmp_path / "source")


SHAPE, CHUNKS = (32, 32), (4, 4)
DISJOINT = """
import multiprocessing, os, sys, tensorstore
path, barrier = sys.argv[1], multiprocessing.get_context("fork").Barrier(8)
children = []
for number in range(8):
    children.append(os.fork())
    if not children[-1]:
        break
else:
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}}
array = tensorstore.open(spec, read=True, write=True).result()
barrier.wait(60)
for turn in (1, 2):
    for i, j in [(i, j) for i in range(8) for j in range(8)][number::8]:
        array[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].write(1000 * turn + 8 * i + j).result()
"""


def one_shard(source: Path) -> None:
    zarr.create_array(str(source), shape=SHAPE, shards=SHAPE, chunks=CHUNKS, dtype="i4", fill_value=0)


def test_disjoint_chunks_of_one_shard(mount: Mounter, tmp_path: Path) -> None:
    one_shard(tmp_path / "source")
    zarr.open_array(str(tmp_path / "source"), mode="r+")[...] = -1
    mounted = mount(tmp_path / "source", write=True)
    line = [sys.executable, "-c", DISJOINT, mounted.path]
    subprocess.run(line, check=True, timeout=4 * PATIENCE)
    numbers = np.arange(64, dtype="i4").reshape(8, 8) + 2000
    expected = np.repeat(np.repeat(numbers, 4, axis=0), 4, axis=1)
    assert_same(READERS["zarr"](mounted.path), expected)
    mounted.unmount()
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), expected)
    assert_sound(tmp_path / "source")


def test_dask_stores_chunks_smaller_than_the_shard(mount: Mounter, tmp_path: Path) -> None:
    """The scenario of zarr-python issue 3682: each task writes a part of a shard that others write too."""
    dask = pytest.importorskip("dask.array")
    one_shard(tmp_path / "source")
    mounted = mount(tmp_path / "source", write=True)
    values = np.arange(1, 1 + 32 * 32, dtype="i4").reshape(SHAPE)
    target = zarr.open_array(str(mounted.path), mode="r+")
    assert (target.shards, target.chunks) == (None, CHUNKS)
    stored = dask.from_array(values, chunks=(8, 4)).store(target, lock=False, compute=False)
    stored.compute(scheduler="processes", num_workers=2)
    assert_same(READERS["zarr"](mounted.path), values)
    mounted.unmount()
    for read in READERS.values():
        assert_same(read(tmp_path / "source"), values)
    assert_sound(tmp_path / "source")


def test_libraries_write_to_a_bucket(mount: Mounter, tmp_path: Path, s3_bucket: Bucket) -> None:
    """Arrays that are sharded, and one that becomes so."""
    cases = dict(zip(WRITERS, ("keys-v2-dot", "index-start-big-2-crc32c", "nested-2"), strict=True))
    for name in cases.values():
        s3_bucket.put(f"data/{name}/zarr.json", json.dumps(BY_NAME[name].document).encode())
    mounted = mount(s3_bucket.url("data"), write=True, env=s3_bucket.environment, shards="4,3")
    for library, name in cases.items():
        WRITERS[library](mounted.path / name, BY_NAME[name].values)
        assert_same(READERS["zarr"](mounted.path / name), BY_NAME[name].values)
    values = np.arange(1, 1 + 16 * 24, dtype="u2").reshape(16, 24)
    zarr.create_array(str(tmp_path / "plain/image"), data=values, chunks=(2, 3))
    tool("rsync", "-a", tmp_path / "plain/image", f"{mounted.path}/")
    mounted.unmount()
    native = s3_bucket.download(tmp_path / "native", "data")
    stored = {name: BY_NAME[name].values for name in cases.values()} | {"image": values}
    for name, expected in stored.items():
        for read in READERS.values():
            assert_same(read(native / name), expected)
    assert_sound(native)
    shards = [f"image/c/{i}/{j}" for i in range(2) for j in range(3)]
    assert sorted(key for key in files_below(native) if "image" in key) == [*shards, "image/zarr.json"]
