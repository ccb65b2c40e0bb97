"""Documents that libraries read though the specification spells them otherwise: every view has what they read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.commands import run
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_zarr

VIEWS = {
    "v3": [],
    "decoded": ["--decode"],
    "v2": ["--view=v2"],
    "decoded v2": ["--view=v2", "--decode"],
    "npy": ["--view=npy"],
}
Edit = Callable[[dict[str, Any]], bytes]


def spelled(**members: Any) -> Edit:
    return lambda document: json.dumps(document | members).encode()


def encoded(encoding: str) -> Edit:
    return lambda document: json.dumps(document | {"attributes": {"unit": "µm"}}, ensure_ascii=False).encode(encoding)


PLAIN = "plain"
"""The array that no spelling changes: all of `DOCUMENTS` have its values."""
DOCUMENTS: dict[str, Edit] = {
    PLAIN: spelled(),
    **{encoding: encoded(encoding) for encoding in ("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le")},
    "attributes": spelled(attributes=None),
    "transformers": spelled(storage_transformers=None),
    "names": spelled(dimension_names=None),
    "version": spelled(zarr_format=3.0),
    "everything": spelled(attributes=None, storage_transformers=None, dimension_names=None, zarr_format=3.0),
}
OF_SOME_RELEASES = {"version", "everything"}
"""zarr-python read `3.0` until it checked types, in 3.4."""
FILLS: dict[str, tuple[str, Any]] = {
    "bool-0": ("bool", 0),
    "bool-1": ("bool", 1),
    "int-true": ("int32", True),
    "int-text": ("int32", "7"),
    "float-text": ("float32", "0.0"),
    "float-nan": ("float32", "nan"),
    "float-true": ("float64", True),
    "complex-true": ("complex64", [True, 0]),
}


@pytest.fixture
def spellings(tmp_path: Path) -> Path:
    """A source with half of the chunks of each array; the group has a byte order mark too."""
    source = tmp_path / "source"
    group = zarr.create_group(source)
    for name, edit in DOCUMENTS.items():
        array = group.create_array(name, shape=(8,), chunks=(2,), shards=(4,), dtype="int32")
        array[:4] = np.arange(4)
        path = source / name / "zarr.json"
        path.write_bytes(edit(json.loads(path.read_bytes())))
    for name, (data_type, fill_value) in FILLS.items():
        array = group.create_array(name, shape=(8,), chunks=(2,), shards=(4,), dtype=data_type)
        array[:4] = np.array([0, 1, 0, 1])
        path = source / name / "zarr.json"
        path.write_bytes(spelled(fill_value=fill_value)(json.loads(path.read_bytes())))
    document = source / "zarr.json"
    document.write_bytes(encoded("utf-16")(json.loads(document.read_bytes())))
    return source


def natively(source: Path, name: str) -> np.ndarray:
    """What zarr-python reads of an array; of one that this release refuses, what it read before it was respelled."""
    try:
        return read_zarr(source / name)
    except ValueError:
        assert name in OF_SOME_RELEASES
        return read_zarr(source / PLAIN)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_the_values_that_zarr_python_reads_natively(spellings: Path, mount: Mounter, view: str) -> None:
    root = mount(spellings, arguments=VIEWS[view]).path
    for name in (*DOCUMENTS, *FILLS):
        read = np.load(root / f"{name}.npy") if view == "npy" else read_zarr(root / name)
        assert_same(read, natively(spellings, name))


def test_a_version_with_a_fraction_is_shown_as_every_release_reads_it(spellings: Path, mount: Mounter) -> None:
    shown = json.loads((mount(spellings).path / "version" / "zarr.json").read_bytes())
    assert type(shown["zarr_format"]) is int


@pytest.mark.parametrize("view", ["v3", "v2"])
def test_unpacked_arrays_have_the_same_values(spellings: Path, tmp_path: Path, view: str) -> None:
    done = run("unpack", "--view", view, spellings, tmp_path / "unpacked")
    assert done.returncode == 0, str(done)
    for name in (*DOCUMENTS, *FILLS):
        assert_same(read_zarr(tmp_path / "unpacked" / name), natively(spellings, name))


def test_references_are_texts_without_a_byte_order_mark(spellings: Path) -> None:
    done = run("refs", spellings)
    assert done.returncode == 0, str(done)
    references = json.loads(done.stdout)["refs"]
    for name in DOCUMENTS:
        assert json.loads(references[f"{name}/zarr.json"])["shape"] == [8]
    assert json.loads(references["zarr.json"])["attributes"] == {"unit": "µm"}


def test_what_is_not_edited_stays_as_it_is_stored(spellings: Path, mount: Mounter) -> None:
    stored = json.loads((spellings / "bool-1" / "zarr.json").read_bytes())
    with_null = json.loads((spellings / "names" / "zarr.json").read_bytes())
    mounted = mount(spellings, write=True, arguments=["--view=v2"])
    with_version = json.loads((spellings / "version" / "zarr.json").read_bytes())
    for name in ("bool-1", "names", "attributes", "version"):
        zarr.open_array(mounted.path / name, mode="r+").attrs["edited"] = 1
    mounted.unmount()
    assert json.loads((spellings / "bool-1" / "zarr.json").read_bytes()) == stored | {"attributes": {"edited": 1}}
    assert json.loads((spellings / "names" / "zarr.json").read_bytes()) == with_null | {"attributes": {"edited": 1}}
    assert json.loads((spellings / "attributes" / "zarr.json").read_bytes())["attributes"] == {"edited": 1}
    version = json.loads((spellings / "version" / "zarr.json").read_bytes())
    assert version == with_version | {"attributes": {"edited": 1}}
    assert type(version["zarr_format"]) is float
    for name in ("bool-1", "names", "attributes"):
        assert zarr.open_array(spellings / name, mode="r").attrs["edited"] == 1
