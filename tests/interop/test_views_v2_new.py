"""Whole datasets of Zarr v2 that come into a mount with shards, file by file, and become v3 there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.support.clients import ZARR2
from tests.support.datasets import files_below
from tests.support.mounting import Mounter
from tests.support.writers import assert_sound, tool

MAKE = """
import sys, numpy, zarr
store = zarr.DirectoryStore(sys.argv[1])
group = zarr.open_group(store, mode="w")
group.attrs["title"] = "root"
values = numpy.arange(240).reshape(12, 20)
group.create_dataset("a", data=values, chunks=(3, 4)).attrs.update(unit="m", _ARRAY_DIMENSIONS=["y", "x"])
group.create_dataset("deep/b", data=values.astype("f8"), chunks=(5, 7), fill_value=None).attrs["z"] = [1]
group["deep"].attrs["is deep"] = True
group.create_dataset("scalar", data=numpy.float32(3.5))
group.create_dataset("text", data=numpy.array([b"ab", b"c"], "S3"), chunks=(1,))
zarr.consolidate_metadata(store)
"""
VALUES = np.arange(240).reshape(12, 20)


def is_document(key: str) -> bool:
    return key.rpartition("/")[2].startswith(".z")


ORDERS = {
    "documents last": lambda key: (is_document(key), key),
    "attributes first": lambda key: (not key.endswith(".zattrs"), key),
    "groups last": lambda key: (key.endswith(".zgroup"), key.endswith(".zmetadata"), key),
    "backwards": lambda key: [-ord(letter) for letter in key],
}


def content_of(root: Path) -> dict[str, Any]:
    """The files, documents as what they say, but for the separator, which a mount always tells."""

    def said(document: Any) -> Any:
        spelled = {"fill_value": "AAAA"} if document.get("dtype") == "|S3" else {}
        return {name: value for name, value in document.items() if name != "dimension_separator"} | spelled

    found: dict[str, Any] = dict(files_below(root))
    for key in filter(is_document, found):
        document = json.loads(found[key])
        copies = document.get("metadata")
        found[key] = {name: said(copy) for name, copy in copies.items()} if copies else said(document)
    return found


def test_a_consolidated_dataset_becomes_v3_in_whatever_order_its_files_come(mount: Mounter, tmp_path: Path) -> None:
    plain, source = tmp_path / "plain", tmp_path / "source"
    ZARR2.run(MAKE, plain)
    source.mkdir()
    mounted = mount(source, write=True, shards="2", arguments=["--view=v2"])
    root, expected = mounted.path, content_of(plain)
    for name, order in ORDERS.items():
        archive = tmp_path / "archive.tar"
        tool("tar", "cf", archive, "-C", plain, *sorted(expected, key=order))
        (root / name).mkdir()
        tool("tar", "xf", archive, "-C", root / name)
        assert content_of(root / name) == expected, name
    tool("cp", "-r", root / "backwards", root / "copy")
    tool("rsync", "-a", f"{plain}/", root / "synced")
    (root / "moved").mkdir()
    for key in sorted(expected, key=ORDERS["documents last"], reverse=True):
        (root / "moved" / key).parent.mkdir(parents=True, exist_ok=True)
        os.rename(root / "copy" / key, root / "moved" / key)
    tool("rm", "-r", root / "copy", root / "attributes first")
    assert content_of(root / "synced") == content_of(root / "moved") == expected
    mounted.unmount()
    assert not list(source.rglob(".z*"))
    assert not (source / "attributes first").exists()
    for name in ("documents last", "groups last", "moved"):
        group = zarr.open_consolidated(str(source / name), zarr_format=3)
        assert sorted(path for path, _ in group.members(max_depth=None)) == ["a", "deep", "deep/b", "scalar", "text"]
        arrays = {path: array for path, array in group.members(max_depth=None) if isinstance(array, zarr.Array)}
        assert np.array_equal(arrays["a"][...], VALUES)
        assert np.array_equal(arrays["deep/b"][...], VALUES)
        assert arrays["scalar"][...] == 3.5
        assert {path for path, array in arrays.items() if array.shards is None} == {"scalar"}
        assert dict(arrays["a"].attrs) == {"unit": "m", "_FillValue": 0}, "as xarray takes the fill value of v2"
    assert_sound(source)
