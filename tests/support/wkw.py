"""Datasets of webKnossos, written by the library wkw: the oracle."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

wkw = pytest.importorskip("wkw")

RAW, LZ4 = "raw", "LZ4HC"


def write_wkw(directory: Path, values: np.ndarray, kind: str = RAW, *, block: int = 4, blocks: int = 4) -> None:
    """Write *values*, with the axes c, x, y and z, as an array whose files have so many blocks along each axis."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    raw = directory if kind == RAW else directory.with_name(f"{directory.name}.raw")
    header = wkw.Header(values.dtype.type, num_channels=len(values), block_len=block, file_len=blocks)
    with wkw.Dataset.create(str(raw), header) as dataset:
        dataset.write((0, 0, 0), values)
        if kind == LZ4:
            dataset.compress(str(directory), compress_files=True)
    if kind == LZ4:
        for file in sorted(raw.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        raw.rmdir()


def read_wkw(directory: Path, shape: Sequence[int]) -> np.ndarray:
    """The values of the first voxels, in this *shape* along x, y and z; zeros where no file is."""
    with wkw.Dataset.open(str(directory)) as dataset:
        return np.asarray(dataset.read((0, 0, 0), tuple(shape)))


def layer(name: str, box: Sequence[Sequence[int]], **members: Any) -> dict[str, Any]:
    """A layer of `datasource-properties.json`, with the corner and the size of its bounding box."""
    lengths = dict(zip(("width", "height", "depth"), box[1], strict=True))
    bounds = {"topLeft": list(box[0]), **lengths}
    return {"name": name, "category": "color", "boundingBox": bounds, "dataFormat": "wkw", **members}


def write_properties(directory: Path, *layers: Mapping[str, Any]) -> None:
    """Write the `datasource-properties.json` of a dataset."""
    scale = {"factor": [11.24, 11.24, 28], "unit": "nanometer"}
    document = {"id": {"name": "dataset", "team": ""}, "dataLayers": list(layers), "scale": scale}
    (directory / "datasource-properties.json").write_text(json.dumps(document))
