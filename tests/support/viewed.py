"""A dataset for programs of many kinds: one group, whose dimensions go together, of arrays stored in many ways."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import BIG, GZIP, LITTLE, ZSTD, array, extension, rectilinear, sharding, transpose
from tests.support.datasets import age
from tests.support.encoder import encode, numpy_dtype
from tests.support.mounting import Mount

CUBE, PLANE = (20, 24, 28), (24, 28)
ATTRIBUTES = {"title": "cells", "spacing": [2.5, 1, 1]}
_BLOSC = extension("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4, blocksize=0)


def _cube(data_type: str, grid: Any, *codecs: Any, **members: Any) -> dict[str, Any]:
    return array(CUBE, grid, *codecs, data_type=data_type, dimension_names=["z", "y", "x"], **members)


def _plane(data_type: str, grid: Any, *codecs: Any, **members: Any) -> dict[str, Any]:
    return array(PLANE, grid, *codecs, data_type=data_type, dimension_names=["y", "x"], **members)


DOCUMENTS: dict[str, dict[str, Any]] = {
    "image": _cube("uint16", (16, 16, 16), sharding((8, 8, 4), LITTLE, ZSTD), attributes=ATTRIBUTES),
    "plane": _plane("uint8", (16, 16), sharding((8, 4), LITTLE, GZIP), fill_value=9),
    "plain": _plane("int16", (8, 14), LITTLE, GZIP),  # not sharded
    "big": _plane("float64", (8, 28), sharding((4, 14), BIG, ZSTD), fill_value="NaN"),
    "nested": _cube("int32", (16, 16, 16), sharding((8, 16, 8), sharding((4, 8, 8), LITTLE, GZIP))),
    "reversed": _cube(
        "float32", (20, 12, 28), transpose(2, 1, 0), sharding((14, 6, 10), LITTLE, _BLOSC), fill_value=1.5
    ),
    "rectilinear": _cube(
        "int16", rectilinear([8, 12], [[8, 3]], 14), sharding((4, 4, 14), LITTLE, ZSTD), fill_value=-1
    ),
    "turned": _cube("uint16", (20, 12, 28), transpose(2, 0, 1), sharding((14, 10, 6), LITTLE, GZIP)),
}
ABSENT = {"image": [(1, 1, 1), (2, 0, 3)], "plane": [(0, 0), (2, 5)], "reversed": [(1, 2, 1)], "turned": [(0, 3, 1)]}
WITH_V2_FORM = [name for name in DOCUMENTS if name != "turned"]
"""Neither order C nor F is that of `turned`."""
CONSOLIDATED = {
    "zarr_format": 3,
    "node_type": "group",
    "attributes": {"made by": "a test"},
    "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": DOCUMENTS},
}


def values_of(name: str) -> np.ndarray:
    """Values that say where they belong, and that every kind of program prints without loss."""
    document = DOCUMENTS[name]
    dtype = numpy_dtype(document["data_type"])
    count = np.arange(1, 1 + np.prod(document["shape"])).reshape(document["shape"])
    return (count * 7 % (251 if dtype.itemsize == 1 else 30011)).astype(dtype)


def write_source(source: Path) -> dict[str, np.ndarray]:
    """Write the dataset, aged; returns what a reader must see in each array."""
    seen = {}
    for name, document in DOCUMENTS.items():
        encoded = encode(document, values_of(name), frozenset(ABSENT.get(name, ())))
        for key, data in encoded.files.items():
            path = source / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (source / name / "zarr.json").write_text(json.dumps(document))
        seen[name] = encoded.values
    (source / "zarr.json").write_text(json.dumps(CONSOLIDATED))
    age(source)
    return seen


class Viewed:
    """The dataset, mounted, and the *values* that must be seen."""

    def __init__(self, mount: Mount, source: Path, values: dict[str, np.ndarray]) -> None:
        self.mount = mount
        self.root = mount.path
        self.source = source
        self.values = values
