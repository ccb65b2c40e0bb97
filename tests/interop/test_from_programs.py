"""The lines that pages of `serve` offer for programs: each is run against the node that it is offered for."""

import html
import io
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorstore
import xarray
import zarr

from tests.support.datasets import age
from tests.support.images import image
from tests.support.serving import served

HTML = "text/html"
VALUES = np.arange(24, dtype="f4").reshape(4, 6)
GROUP = {"zarr-python", "fsspec"}
ARRAY = GROUP | {"NumPy"}
NUMBERS = ARRAY | {"tensorstore", "R", "Julia"}
IMAGE = GROUP | {"ITK", "ngff-zarr", "napari"}
OFFERED = {
    "": GROUP,
    "climate": GROUP | {"xarray"},
    "climate/air": NUMBERS | {"xarray"},
    "apart": GROUP,
    "apart/air": NUMBERS,
    "unnamed": GROUP,
    "complex": ARRAY | {"tensorstore"},
    "flags": ARRAY | {"tensorstore", "Julia"},
    "scalar": NUMBERS,
    "words": GROUP,
    "times": ARRAY,
    "empty": GROUP,
    "cells": IMAGE,
    "cells/0": NUMBERS,
}
"""The programs that are offered for each kind of node."""
LINKS = {"climate/air": {"neuroglancer"}, "apart/air": {"neuroglancer"}, "cells/0": {"neuroglancer"}}
LINKS["cells"] = {"neuroglancer", "vizarr", "OME-NGFF validator"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    zarr.create_group(directory)
    for name, names in {"climate": ("lat", "lon"), "apart": ("lat", "lon"), "unnamed": None}.items():
        zarr.create_group(directory / name)
        options: dict[str, Any] = {"chunks": (2, 3), "shards": (4, 6), "dimension_names": names}
        zarr.create_array(directory / name / "air", data=VALUES, **options)
        if name != "apart":
            zarr.consolidate_metadata(directory / name)
    zarr.create_array(directory / "complex", data=VALUES.astype("c8"), chunks=(2, 3), shards=(4, 6))
    zarr.create_array(directory / "flags", data=VALUES > 7, chunks=(2, 3), shards=(4, 6))
    zarr.create_array(directory / "scalar", shape=(), dtype="i4", chunks=(), shards=())[...] = 7
    zarr.create_array(directory / "words", shape=(4,), dtype=str, chunks=(2,), shards=(4,))[:] = "word"
    zarr.create_array(directory / "times", shape=(4,), dtype="M8[s]", chunks=(2,), shards=(4,))[:] = 7
    zarr.create_group(directory / "empty")
    image(directory / "cells", 32, 16)
    age(directory)
    return directory


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_each_line_opens_the_node_that_it_is_offered_for(source: Path) -> None:
    programs = {"zarr": zarr, "xarray": xarray, "tensorstore": tensorstore, "numpy": np, "fsspec": fsspec}
    programs |= {"io": io, "urllib": urllib}
    with served(source) as site:
        for path, offered in OFFERED.items():
            text = site.ask(f"/{path}/" if path else "/", Accept=HTML, Host=site.url.partition("://")[2]).body.decode()
            found = re.findall(r"<dt>([^<]*)</dt><dd><code>([^<]*)</code>", text)
            lines = {name: html.unescape(line) for name, line in found}
            named = set(re.findall(r'<li><a href="[^"]*" rel[^>]*>([^<]*)</a></li>', text))
            own = offered - {"napari"} if ".zarr" not in site.url else offered
            assert (lines.keys(), named) == (own, LINKS.get(path, set())), path
            expected = zarr.open(source / path, mode="r")
            opened = eval(lines["zarr-python"], dict(programs))
            assert type(opened) is type(expected), path
            if isinstance(expected, zarr.Array):
                assert np.array_equal(opened[...], expected[...])
            assert json.loads(eval(lines["fsspec"], dict(programs))["zarr.json"])["zarr_format"] == 3
            if "NumPy" in lines:
                assert np.array_equal(eval(lines["NumPy"], dict(programs)), expected[...]), path
            if "tensorstore" in lines:
                opened = eval(lines["tensorstore"], dict(programs))
                assert np.array_equal(opened.read().result(), expected[...]), path
            if "xarray" in lines:
                opened = eval(lines["xarray"], dict(programs))
                assert np.array_equal(opened if path.endswith("air") else opened["air"], VALUES)
