"""numpy, which knows no Zarr at all, reads the npy view."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounter
from tests.support.viewed import ATTRIBUTES, DOCUMENTS, Viewed, write_source
from tests.support.writers import tool


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    return Viewed(module_mount(source, arguments=["--view=npy"]), source, values)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_is_what_numpy_would_have_saved_and_may_be_mapped(viewed: Viewed, name: str, tmp_path: Path) -> None:
    path, expected = viewed.root / f"{name}.npy", viewed.values[name]
    mapped = np.load(path, mmap_mode="r")
    assert (mapped.shape, mapped.dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(mapped[-1, ::3], expected[-1, ::3])
    assert np.array_equal(mapped, expected)
    saved = io.BytesIO()
    np.save(saved, expected)
    assert path.stat().st_size == len(saved.getvalue())
    assert tool("sha256sum", path).split()[0].decode() == hashlib.sha256(saved.getvalue()).hexdigest()


def test_attributes_are_json_beside_the_arrays(viewed: Viewed) -> None:
    names = sorted(path.name for path in viewed.root.iterdir())
    assert names == sorted(["data.zarr.json", "image.json", *(f"{name}.npy" for name in DOCUMENTS)])
    assert json.loads((viewed.root / "image.json").read_text()) == {
        **ATTRIBUTES,
        "_ARRAY_DIMENSIONS": ["z", "y", "x"],
    }
    assert json.loads((viewed.root / "data.zarr.json").read_text()) == {"made by": "a test"}
