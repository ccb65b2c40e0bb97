"""numpy, which knows no Zarr at all, reads the npy view."""

from __future__ import annotations

import json

import pytest

from tests.support.mounting import Mounter
from tests.support.viewed import ATTRIBUTES, DOCUMENTS, Viewed, write_source


@pytest.fixture(scope="module")
def viewed(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    source = tmp_path_factory.mktemp("viewed") / "data.zarr"
    values = write_source(source)
    return Viewed(module_mount(source, arguments=["--view=npy"]), source, values)


def test_attributes_are_json_beside_the_arrays(viewed: Viewed) -> None:
    names = sorted(path.name for path in viewed.root.iterdir())
    assert names == sorted(["data.zarr.json", "image.json", *(f"{name}.npy" for name in DOCUMENTS)])
    assert json.loads((viewed.root / "image.json").read_text()) == {
        **ATTRIBUTES,
        "_ARRAY_DIMENSIONS": ["z", "y", "x"],
    }
    assert json.loads((viewed.root / "data.zarr.json").read_text()) == {"made by": "a test"}
