"""Arrays and images of OME-Zarr to look at."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import LITTLE, ZSTD, array, sharding
from tests.support.datasets import age, store
from tests.support.documents import write


def write_group(directory: Path, attributes: dict[str, Any] | None = None) -> None:
    """Write the document of a group."""
    directory.mkdir(parents=True, exist_ok=True)
    write(directory, {"zarr_format": 3, "node_type": "group", "attributes": attributes or {}})


def put(directory: Path, values: np.ndarray, shard: Any, chunk: Any, data_type: Any = None, **members: Any) -> None:
    """Store *values* sharded, with inner chunks that are compressed."""
    chosen = data_type or values.dtype.name
    store(directory, array(values.shape, shard, sharding(chunk, LITTLE, ZSTD), data_type=chosen, **members), values)


def image(directory: Path, *levels: int, chunk: int = 16, shard: int | None = None) -> list[np.ndarray]:
    """Store an image of OME-Zarr with these sides; its values tell the levels apart.

    A level is one shard by default.
    """
    found = []
    for number, side in enumerate(levels):
        values = np.add.outer(np.arange(side), np.arange(side)).astype("uint16") * 2**number + number
        put(
            directory / str(number), values, (min(shard or side, side),) * 2, (chunk, chunk), dimension_names=["y", "x"]
        )
        found.append(values)
    axes = [{"name": name, "type": "space"} for name in "yx"]
    datasets = [
        {"path": str(number), "coordinateTransformations": [{"type": "scale", "scale": [2**number] * 2}]}
        for number in range(len(levels))
    ]
    write_group(directory, {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}})
    age(directory)
    return found
