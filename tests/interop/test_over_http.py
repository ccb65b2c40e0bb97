"""Programs of others read through `shardfs serve`, and see the values that are stored."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from obstore.store import HTTPStore
from zarr.storage import ObjectStore

from tests.support.clients import SETUP, output_of, read_gdal
from tests.support.mounting import PATIENCE
from tests.support.serving import Served, served

SHAPE = (40, 50)
VALUES = np.arange(np.prod(SHAPE), dtype="<u2").reshape(SHAPE)
WRITTEN = VALUES.copy()
WRITTEN[16:24, 16:32] = 0  # inner chunks that are never written


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    source = tmp_path_factory.mktemp("served") / "data.zarr"
    group = zarr.open_group(source, mode="w")
    image = group.create_array("image", shape=SHAPE, chunks=(8, 16), shards=(16, 32), dtype="u2")
    image[:] = WRITTEN
    zarr.consolidate_metadata(source)
    assert "sharding_indexed" in (source / "image/zarr.json").read_text()
    with served(source) as site:
        yield site


def by_fsspec(url: str) -> np.ndarray:
    return np.asarray(zarr.open_array(f"{url}/image", mode="r")[...])


def by_fsspec_in_a_consolidated_group(url: str) -> np.ndarray:
    group = zarr.open_consolidated(url)
    assert list(group.array_keys()) == ["image"]
    return np.asarray(group["image"][...])


def by_obstore(url: str) -> np.ndarray:
    store = ObjectStore(HTTPStore.from_url(url, client_options={"allow_http": True}), read_only=True)
    return np.asarray(zarr.open_array(store, path="image", mode="r")[...])


def by_tensorstore(url: str) -> np.ndarray:
    driver = "zarr" if url.endswith("v2") else "zarr3"
    kvstore = {"driver": "http", "base_url": f"{url}/image/"}
    return np.asarray(tensorstore.open({"driver": driver, "kvstore": kvstore}).result().read().result())


ZARRITA = """
import * as zarr from "zarrita";
const array = await zarr.open(new zarr.FetchStore(process.argv[2]), { kind: "array" });
const chunk = await zarr.get(array);
console.log(JSON.stringify({ shape: chunk.shape, values: Array.from(chunk.data) }));
"""


def by_zarrita(url: str) -> np.ndarray:
    directory = Path(sys.prefix, "clients", "zarrita")
    if shutil.which("node") is None or not (directory / "node_modules/zarrita").exists():
        pytest.skip(f"no zarrita in {directory}: {SETUP}")
    program = directory / "read.mjs"
    program.write_text(ZARRITA)
    told = json.loads(output_of("node", str(program), f"{url}/image"))
    return np.array(told["values"], "u2").reshape(told["shape"])


@pytest.mark.parametrize("view", ["v3", "v2", "decoded/v3"])
@pytest.mark.parametrize("read", [by_fsspec, by_obstore, by_tensorstore, by_zarrita])
def test_a_client_reads_the_values_of_a_sharded_array(
    site: Served, read: Callable[[str], np.ndarray], view: str
) -> None:
    assert np.array_equal(read(f"{site.url}/-/{view}"), WRITTEN)


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_a_client_finds_the_arrays_of_a_consolidated_group(site: Served, view: str) -> None:
    assert np.array_equal(by_fsspec_in_a_consolidated_group(f"{site.url}/-/{view}"), WRITTEN)


def test_gdal_reads_the_view_v2(site: Served) -> None:
    assert np.array_equal(read_gdal(f'ZARR:"/vsicurl/{site.url}/-/v2/image"', "image"), WRITTEN)


def test_numpy_and_curl_read_an_npy_file_in_parts(site: Served, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.npy", tmp_path / "resumed.npy"
    for path in (whole, resumed):
        subprocess.run(["curl", "-sf", "-o", path, f"{site.url}/-/npy/image.npy"], check=True, timeout=PATIENCE)
    with open(resumed, "r+b") as file:
        file.truncate(1000)
    subprocess.run(
        ["curl", "-sf", "-C", "-", "-o", resumed, f"{site.url}/-/npy/image.npy"], check=True, timeout=PATIENCE
    )
    assert np.array_equal(np.load(whole), WRITTEN)
    assert np.array_equal(np.load(resumed), WRITTEN)
