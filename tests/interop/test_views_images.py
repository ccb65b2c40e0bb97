"""OME-Zarr 0.5 images in the v2 view are those of OME-Zarr 0.4, to its tools and to those who edit them."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.clients import OME_ZARR, ZARR2, read_zarr2
from tests.support.datasets import age
from tests.support.mounting import Mounter
from tests.support.writers import assert_sound, document_of

MULTISCALES = [
    {
        "name": "cells",
        "axes": [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}],
        "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1.0, 1.0]}]}],
    }
]
CHANNEL = {"color": "FFFFFF", "window": {"start": 0, "end": 999, "min": 0, "max": 65535}, "active": True}
ROWS = {
    "rows": [{"name": "A"}],
    "columns": [{"name": "1"}],
    "wells": [{"path": "A/1", "rowIndex": 0, "columnIndex": 0}],
}


def write_group(group: zarr.Group, **metadata: Any) -> None:
    group.attrs["ome"] = {"version": "0.5", **metadata}


def write_image(group: zarr.Group, values: np.ndarray, **metadata: Any) -> None:
    write_group(group, multiscales=MULTISCALES, **metadata)
    array = group.create_array(
        "0", shape=values.shape, dtype=values.dtype, chunks=(8, 8), shards=(16, 16), dimension_names=["y", "x"]
    )
    array[...] = values


@pytest.fixture
def values() -> np.ndarray:
    values = np.random.default_rng(0).integers(1, 1000, (32, 32)).astype("u2")
    values[:16, :16] = 0
    return values


@pytest.fixture
def source(tmp_path: Path, values: np.ndarray) -> Path:
    """An image with labels, one in an unnamed group, and a plate; and an array with named axes that is in none."""
    path = tmp_path / "data.zarr"
    root = zarr.create_group(str(path))
    image = root.create_group("image")
    write_image(image, values, omero={"channels": [CHANNEL]})
    image.attrs["title"] = "mine"
    labels = image.create_group("labels")
    write_group(labels, labels=["cells"])
    write_image(
        labels.create_group("cells"), (values > 500).astype("u1"), **{"image-label": {"source": {"image": "../../"}}}
    )
    plate = root.create_group("plate")
    write_group(plate, plate={**ROWS, "name": "test", "field_count": 1})
    well = plate.create_group("A/1")
    write_group(well, well={"images": [{"path": "0"}]})
    write_image(well.create_group("0"), values)
    series = root.create_group("series")
    write_group(series, **{"bioformats2raw.layout": 3, "series": ["0"]})
    root.create_array("beside", shape=(32, 32), dtype="u2", chunks=(8, 8), shards=(16, 16), dimension_names=["y", "x"])
    zarr.consolidate_metadata(str(path))
    age(path)
    return path


READ = """
import sys, numpy
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
found, root = sys.argv[1:]
nodes = list(Reader(parse_url(root))())
kinds = [sorted(type(spec).__name__ for spec in node.specs) for node in nodes]
numpy.savez(found, kinds=numpy.array([" ".join(kind) for kind in kinds]), **{
    str(i): numpy.asarray(node.data[0]) for i, node in enumerate(nodes) if node.data
})
"""


def test_ome_zarr_py_reads_images_labels_and_plates(
    mount: Mounter, source: Path, tmp_path: Path, values: np.ndarray
) -> None:
    root = mount(source, arguments=["--view=v2"]).path
    found = OME_ZARR.arrays(READ, tmp_path, root / "image")
    assert found["kinds"].tolist() == ["Multiscales OMERO", "Labels", "Label Multiscales"]
    assert np.array_equal(found["0"], values)
    assert np.array_equal(found["2"], values > 500)
    found = OME_ZARR.arrays(READ, tmp_path, root / "plate")
    assert found["kinds"].tolist() == ["Plate"]
    assert np.array_equal(found["0"], values)
    image = mount(source / "image", arguments=["--view=v2", "--decode", "--dimension-separator=."]).path
    assert np.array_equal(OME_ZARR.arrays(READ, tmp_path, image)["0"], values)


def attributes_of(path: Path) -> Any:
    return json.loads((path / ".zattrs").read_text())


def test_metadata_is_that_of_version_0_4_and_copies_say_the_same(mount: Mounter, source: Path) -> None:
    root = mount(source, arguments=["--view=v2"]).path
    multiscales = [{**MULTISCALES[0], "version": "0.4"}]
    image = {"multiscales": multiscales, "omero": {"channels": [CHANNEL]}, "title": "mine"}
    assert attributes_of(root / "image") == image
    assert attributes_of(root / "image" / "labels") == {"labels": ["cells"]}
    label = {"source": {"image": "../../"}, "version": "0.4"}
    assert attributes_of(root / "image" / "labels" / "cells") == {"multiscales": multiscales, "image-label": label}
    assert attributes_of(root / "plate")["plate"] == {**ROWS, "name": "test", "field_count": 1, "version": "0.4"}
    assert attributes_of(root / "plate" / "A" / "1") == {"well": {"images": [{"path": "0"}], "version": "0.4"}}
    assert attributes_of(root / "series") == {"bioformats2raw.layout": 3, "series": ["0"]}
    copies = json.loads((root / ".zmetadata").read_text())["metadata"]
    for key, copy in copies.items():
        assert json.loads((root / key).read_text()) == copy, key
    assert copies["image/0/.zarray"]["dimension_separator"] == "/"
    assert (copies["image/0/.zarray"]["fill_value"], copies["beside/.zarray"]["fill_value"]) == (0, None)
    assert copies["beside/.zarray"]["dimension_separator"] == "."
    assert sorted(path.name for path in (root / "image" / "0").iterdir() if path.is_dir()) == ["0", "1", "2", "3"]
    assert not (root / "image" / "0" / "0" / "0").exists(), "sparse images stay sparse"


EDIT = """
import sys, zarr
image = zarr.open_group(sys.argv[1] + "/image", mode="r+")
multiscales = image.attrs["multiscales"]
multiscales[0]["name"] = "renamed"
image.attrs["multiscales"] = multiscales
image.attrs["title"] = "yours"
image["0"][3, 4] = 77
zarr.open_group(sys.argv[1] + "/plain", mode="r+").attrs["multiscales"] = [{"version": "0.4"}]
"""


def test_edits_are_stored_as_version_0_5_only_where_that_was_stored(
    mount: Mounter, source: Path, tmp_path: Path, values: np.ndarray
) -> None:
    zarr.create_group(str(source / "plain"))
    before = document_of(source / "image")["attributes"]
    mounted = mount(source, write=True, shards="2", arguments=["--view=v2"])
    ZARR2.run(EDIT, mounted.path)
    values[3, 4] = 77
    assert np.array_equal(read_zarr2(mounted.path, ["image/0"], tmp_path)["image/0"], values)
    zarray = json.loads((mounted.path / "image" / "0" / ".zarray").read_text())
    (mounted.path / "image" / "new").mkdir()
    with pytest.raises(OSError, match="Invalid argument") as refused:
        (mounted.path / "image" / "new" / ".zarray").write_text(json.dumps({**zarray, "dimension_separator": "."}))
    assert refused.value.errno == errno.EINVAL
    assert "image/new/.zarray is refused: the dimension separator is '.'" in mounted.log.replace('"', "'")
    (mounted.path / "image" / "new" / ".zarray").write_text(json.dumps(zarray))
    (mounted.path / "image" / "new" / "0").mkdir()
    (mounted.path / "image" / "new" / "0" / "1").write_bytes((mounted.path / "image" / "0" / "3" / "3").read_bytes())
    mounted.expect("image/new/.zarray is refused")
    mounted.unmount()
    ome = {**before["ome"], "multiscales": [{**MULTISCALES[0], "name": "renamed"}]}
    assert document_of(source / "image")["attributes"] == {"title": "yours", "ome": ome}
    assert document_of(source / "plain")["attributes"] == {"multiscales": [{"version": "0.4"}]}
    assert np.array_equal(zarr.open_array(str(source / "image" / "0"))[...], values)
    assert np.array_equal(zarr.open_array(str(source / "image" / "new"))[:8, 8:16], values[24:, 24:])
    assert_sound(source)
