"""Arrays sharded by the storage transformer of ZEP 2's first draft: read, written, compacted and verified as others."""

import gzip
import json
import math
import warnings
from itertools import product
from pathlib import Path
from typing import Any

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


def made_values() -> np.ndarray:
    values = np.arange(1, 1 + 21 * 17, dtype="u2").reshape(SHAPE)
    values[4:8, 3:6] = values[16:, :9] = 9
    return values


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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Such an array in a consolidated group."""
    path = tmp_path / "data.zarr"
    store(path / "image", DOCUMENT, made_values(), ABSENT)
    consolidated = {"kind": "inline", "must_understand": False, "metadata": {"image": DOCUMENT}}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated}
    (path / "zarr.json").write_text(json.dumps(group))
    return path


def opened(path: Path, **options: Any) -> zarr.Array[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = zarr.open_group(str(path), **options)["image"]
    assert isinstance(found, zarr.Array)
    return found


@pytest.mark.parametrize("options", [[], ["--decode"], ["--view=v2"]], ids=" ".join)
def test_what_is_written_and_resized_is_stored_in_such_shards(mount: Mounter, source: Path, options: list[str]) -> None:
    mounted = mount(source, write=True, arguments=options)
    image = opened(mounted.path, mode="r+", zarr_format=2 if "--view=v2" in options else 3)
    expected = made_values()
    image[3:9, 2:8] = expected[3:9, 2:8] = 7
    image[16:20, 0:3] = expected[16:20, 0:3] = 5  # a shard that was not there
    image.attrs["b"] = 2
    image.resize((8, 20))
    image.resize((23, 20))
    mounted.unmount()
    grown = np.full((23, 20), 9, "u2")
    grown[:8, :17] = expected[:8]
    assert np.array_equal(read(source / "image"), grown)
    document = json.loads((source / "image/zarr.json").read_text())
    assert document == {**DOCUMENT, "shape": [23, 20], "attributes": {"a": 1, "b": 2}}
    shown = zarr.open_array(str(mount(source).path / "image"), mode="r")
    assert np.array_equal(np.asarray(shown[...]), grown)


def test_it_is_named_verified_and_compacted(mount: Mounter, source: Path) -> None:
    (item,) = [item for item in run_json("info", "--json", source)["arrays"] if item["path"] == "image"]
    assert (item["storage_transformer"], item["sharded"]) == ("indexed", True)
    assert "  storage transformer indexed\n" in run("info", source, "image").stdout
    mounted = mount(source, write=True)
    opened(mounted.path, mode="r+")[:4, 6:9] = 3
    mounted.unmount()
    before = (source / "image/c/0/0").stat().st_size
    assert run("compact", source).returncode == 0
    assert (source / "image/c/0/0").stat().st_size < before
    expected = made_values()
    expected[:4, 6:9] = 3
    assert np.array_equal(read(source / "image"), expected)
    assert run("verify", "--data", source).returncode == 0
    (source / "image/c/0/0").write_bytes(b"x" * 100)
    done = run("verify", source)
    assert (done.returncode, "image/c/0/0" in done.stdout) == (1, True)
