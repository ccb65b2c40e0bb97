"""Documents of Zarr v2 that are made of one `zarr.json`, as files: what may become one, and what is gone."""

import json
import os
from pathlib import Path

import pytest

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import Mounter

V2_ARRAY = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [2],
    "dtype": "|i1",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sharded array, and one without axes that is not sharded."""
    path = tmp_path / "data.zarr"
    store(path / "image", array((8, 6), (4, 6), sharding((2, 3), LITTLE), attributes={"a": 1}))
    (path / "scalar").mkdir()
    (path / "scalar/zarr.json").write_text(json.dumps(array((), (), LITTLE)))
    return path


def test_no_directory_takes_the_name_of_a_document_that_would_hide_it(mount: Mounter, source: Path) -> None:
    store(source / "silent", array((8, 6), (4, 6), sharding((2, 3), LITTLE)))
    root = mount(source, write=True, arguments=["--view=v2"], expect=("cannot be a directory",)).path
    with pytest.raises(PermissionError):
        (root / "silent/.zattrs").mkdir()
    assert not (source / "silent/.zattrs").exists()
    (root / "folder/.zattrs").mkdir(parents=True)
    assert os.listdir(root / "folder") == [".zattrs"]


def test_a_directory_that_holds_chunks_becomes_no_group(mount: Mounter, source: Path) -> None:
    root = mount(source, write=True, arguments=["--view=v2"], expect=("an array is stored there",)).path
    document = (root / "image/.zarray").read_bytes()
    os.remove(root / "image/.zarray")
    with pytest.raises(OSError, match="Invalid argument"):
        (root / "image/.zgroup").write_text('{"zarr_format": 2}')
    (root / "image/.zarray").write_bytes(document)
    assert (root / "image/.zarray").read_bytes() == document
    os.remove(root / "scalar/.zarray")
    (root / "scalar/.zgroup").write_text('{"zarr_format": 2}')
    assert sorted(os.listdir(root / "scalar")) == [".zattrs", ".zgroup"]


def test_documents_that_another_one_hid_do_not_come_back_when_that_goes(mount: Mounter, source: Path) -> None:
    (source / "image/.zarray").write_text(json.dumps(V2_ARRAY))
    (source / "image/.zattrs").write_text('{"hidden": 1}')
    image = mount(source, write=True, arguments=["--view=v2"]).path / "image"
    os.remove(image / ".zattrs")
    os.remove(image / ".zarray")
    assert not [name for name in os.listdir(image) if name.startswith(".z")]
    assert not list((source / "image").glob(".z*"))


def test_what_is_stored_as_v2_becomes_no_other_node(mount: Mounter, source: Path) -> None:
    documents = {".zarray": json.dumps(V2_ARRAY), ".zgroup": '{"zarr_format": 2}'}
    for name in documents:
        (source / name[1:]).mkdir()
        (source / name[1:] / name).write_text(documents[name])
    arguments = ["--view=v2", "--shards=2"]
    expected = ("an array is stored there", "a group is stored there")
    root = mount(source, write=True, arguments=arguments, expect=expected).path
    for name, other in (".zarray", ".zgroup"), (".zgroup", ".zarray"):
        with pytest.raises(OSError, match="Invalid argument"):
            (root / name[1:] / other).write_text(documents[other])
        assert os.listdir(source / name[1:]) == [name]
