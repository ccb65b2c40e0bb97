"""What others call sharded or partitioned: a mount passes it through, and it works there as elsewhere."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.dataset
import pytest

from tests.support.clients import ZARR2
from tests.support.corpus import GZIP, LITTLE, array, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter

VALUES = np.arange(96, dtype="i4").reshape(8, 12)

WRITE = """
import sys, numpy, zarr
from shardedstore import ShardedStore, array_shard_directory_store
root, = sys.argv[1:]
base = zarr.DirectoryStore(f"{root}/base.zarr", dimension_separator="/")
shards = {"simulation/first": zarr.DirectoryStore(f"{root}/first.zarr", dimension_separator="/")}
arrays = {"simulation/wide": (1, array_shard_directory_store(f"{root}/wide", dimension_separator="/"))}
store = ShardedStore(base, shards, arrays, dimension_separator="/")
group = zarr.group(store)
for name, rows in (("simulation/first/image", 4), ("simulation/wide", 1), ("rest", 4)):
    group.create(name, shape=(8, 12), chunks=(rows, 6), dtype="i4")[...] = numpy.arange(96).reshape(8, 12)
"""
READ = """
import sys, numpy, zarr
from shardedstore import ShardedStore
found, root, sharded = sys.argv[1:]
directory = lambda name: zarr.DirectoryStore(f"{root}/{name}", dimension_separator="/")
shards = {"simulation/first": directory("first.zarr"), "ours": zarr.DirectoryStore(sharded)}
store = ShardedStore(directory("base.zarr"), shards, dimension_separator="/")
store.array_shards["simulation/wide"] = {str(i): directory(f"wide/{i}.zarr") for i in range(8)}
store.array_shard_dims["simulation/wide"] = 1
store._update_internal_state()
group = zarr.open_group(store, mode="r")
names = ("simulation/first/image", "simulation/wide", "rest", "ours/image")
numpy.savez(found, **{name.replace("/", "_"): group[name][...] for name in names})
"""


def test_a_sharded_store_of_zarr_python_2_takes_directories_and_views_of_a_mount(
    mount: Mounter, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    ZARR2.run(WRITE, source)
    store(tmp_path / "ours/image", array((8, 12), (8, 12), sharding((4, 6), LITTLE, GZIP)), VALUES)
    mounted, ours = mount(source), mount(tmp_path / "ours", arguments=["--view=v2"])
    assert files_below(mounted.path) == files_below(source)
    found = ZARR2.arrays(READ, tmp_path, mounted.path, ours.path)
    assert len(found) == 4
    for name, values in found.items():
        np.testing.assert_array_equal(values, VALUES, name)


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_a_partitioned_dataset_of_arrow_is_read_on_a_mount_beside_arrays(
    mount: Mounter, tmp_path: Path, view: str
) -> None:
    store(tmp_path / "source/image", array((8, 12), (8, 12), sharding((4, 6))), VALUES)
    table = pyarrow.table({"year": [2024, 2025, 2025], "plate": ["a", "a", "b"], "count": [1, 2, 3]})
    pyarrow.dataset.write_dataset(
        table,
        tmp_path / "source/wells",
        format="parquet",
        partitioning=pyarrow.dataset.partitioning(
            pyarrow.schema([("year", pyarrow.int64()), ("plate", pyarrow.string())]), flavor="hive"
        ),
    )
    mounted = mount(tmp_path / "source", arguments=[f"--view={view}"])
    wells = pyarrow.dataset.dataset(mounted.path / "wells", format="parquet", partitioning="hive")
    found = wells.to_table(filter=pyarrow.dataset.field("year") == 2025).sort_by("count")
    assert found.select(["plate", "count"]).to_pydict() == {"plate": ["a", "b"], "count": [2, 3]}
