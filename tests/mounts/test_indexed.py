"""Arrays sharded by the storage transformer of ZEP 2's first draft: read, written, compacted and verified as others."""

import gzip
import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, indexed
from tests.support.datasets import store
from tests.support.encoder import EMPTY
from tests.support.mounting import Mounter

SHAPE, CHUNKS, PER_SHARD = (21, 17), (4, 3), (2, 3)
DRAFT = indexed(PER_SHARD, extension="https://purl.org/zarr/spec/storage_transformers/sharding/1.0", type="indexed")
MEMBERS = {"attributes": {"a": 1}, "dimension_names": ["y", "x"], "storage_transformers": DRAFT}
DOCUMENT = array(SHAPE, CHUNKS, LITTLE, GZIP, data_type="uint16", fill_value=9, **MEMBERS)
ABSENT = [(1, 1), *product((4, 5), range(3))]  # one chunk, and all of a shard


@pytest.fixture
def values() -> np.ndarray:
    values = np.arange(1, 1 + 21 * 17, dtype="u2").reshape(SHAPE)
    values[4:8, 3:6] = values[16:, :9] = 9
    return values


@pytest.fixture
def source(tmp_path: Path, values: np.ndarray) -> Path:
    store(tmp_path / "image", DOCUMENT, values, ABSENT)
    return tmp_path / "image"


def read(directory: Path) -> np.ndarray:
    """Read an array of such a document, by NumPy alone."""
    document = json.loads((directory / "zarr.json").read_bytes())
    assert document["storage_transformers"] == DRAFT
    grid = [-(-n // edge) for n, edge in zip(document["shape"], CHUNKS, strict=True)]
    values = np.full([n * edge for n, edge in zip(grid, CHUNKS, strict=True)], 9, "<u2")
    for coords in product(*map(range, grid)):
        shard, inner = zip(*map(divmod, coords, PER_SHARD), strict=True)
        path = directory / "/".join(["c", *map(str, shard)])
        if path.exists():
            index = np.frombuffer(path.read_bytes()[-16 * math.prod(PER_SHARD) :], "<u8").reshape(*PER_SHARD, 2)
            offset, nbytes = map(int, index[inner])
            if offset != EMPTY:
                chunk = np.frombuffer(gzip.decompress(path.read_bytes()[offset : offset + nbytes]), "<u2")
                place = tuple(slice(i * edge, (i + 1) * edge) for i, edge in zip(coords, CHUNKS, strict=True))
                values[place] = chunk.reshape(CHUNKS)
    return values[tuple(map(slice, document["shape"]))]


@pytest.mark.parametrize("options", [[], ["--decode"], ["--view=v2"]], ids=" ".join)
def test_writes_and_resizes_are_stored_in_such_shards(
    mount: Mounter, source: Path, values: np.ndarray, options: list[str]
) -> None:
    mounted = mount(source, write=True, arguments=options)
    image = zarr.open_array(str(mounted.path), mode="r+", zarr_format=2 if "--view=v2" in options else 3)
    image[3:9, 2:8] = values[3:9, 2:8] = 7
    image[16:20, 0:3] = values[16:20, 0:3] = 5  # a shard that was not there
    image.attrs["b"] = 2
    image.resize((8, 20))
    image.resize((23, 20))
    mounted.unmount()
    grown = np.full((23, 20), 9, "u2")
    grown[:8, :17] = values[:8]
    assert np.array_equal(read(source), grown)
    document = json.loads((source / "zarr.json").read_text())
    assert document == {**DOCUMENT, "shape": [23, 20], "attributes": {"a": 1, "b": 2}}
    shown = zarr.open_array(str(mount(source).path), mode="r")
    assert np.array_equal(np.asarray(shown[...]), grown)


def test_it_is_named_verified_and_compacted(mount: Mounter, source: Path, values: np.ndarray) -> None:
    (item,) = run_json("info", "--json", source)["arrays"]
    assert (item["storage_transformer"], item["sharded"]) == ("indexed", True)
    mounted = mount(source, write=True)
    zarr.open_array(str(mounted.path), mode="r+")[:4, 6:9] = values[:4, 6:9] = 3
    mounted.unmount()
    before = (source / "c/0/0").stat().st_size
    assert run("compact", source).returncode == 0
    assert (source / "c/0/0").stat().st_size < before
    assert np.array_equal(read(source), values)
    assert run("verify", "--data", source).returncode == 0
    (source / "c/0/0").write_bytes(b"x" * 100)
    done = run("verify", source)
    assert (done.returncode, "c/0/0" in done.stdout) == (1, True)
