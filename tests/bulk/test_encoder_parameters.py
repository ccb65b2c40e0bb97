"""What only an encoder needs, in a form that it would refuse: arrays are packed and shown all the same."""

import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from tests.support.commands import run
from tests.support.mounting import Mounter
from tests.support.readers import assert_same, read_tensorstore, read_zarr

VALUES = np.arange(16, dtype="<i4")
NUMCODECS: dict[str, Any] = {"gzip": numcodecs.GZip(1), "zstd": numcodecs.Zstd(1), "blosc": numcodecs.Blosc()}
PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    *(("gzip", {"level": level}) for level in (-1, 10, 5.0, "5")),
    *(("zstd", {"level": level}) for level in (23, 3.0)),
    *(("blosc", {"clevel": clevel}) for clevel in (10, -1, 5.0)),
    *(("blosc", {"shuffle": shuffle}) for shuffle in (True, 5, -1, "shuffle")),
    ("blosc", {"blocksize": -1}),
]


def write(path: Path, codec: str, members: dict[str, Any]) -> None:
    """Write an array of Zarr v2 whose compressor has other *members*, which zarr-python reads."""
    created = zarr.create_array(
        path, shape=(16,), chunks=(2,), dtype="<i4", zarr_format=2, compressors=NUMCODECS[codec], fill_value=0
    )
    created[...] = VALUES
    document = json.loads((path / ".zarray").read_bytes())
    document["compressor"] |= members
    (path / ".zarray").write_text(json.dumps(document))
    assert_same(read_zarr(path), VALUES)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    zarr.create_group(tmp_path / "source", zarr_format=2)
    for number, (codec, members) in enumerate(PARAMETERS):
        write(tmp_path / "source" / str(number), codec, members)
    return tmp_path / "source"


@pytest.mark.slow
def test_packed_arrays_have_parameters_that_every_library_reads(source: Path, tmp_path: Path) -> None:
    done = run("pack", "--shards", "4", source, tmp_path / "packed")
    assert done.returncode == 0, str(done)
    for number in range(len(PARAMETERS)):
        for read in (read_zarr, read_tensorstore):
            assert_same(read(tmp_path / "packed" / str(number)), VALUES)
    assert "transcoded" not in done.stdout


@pytest.mark.slow
def test_arrays_copied_into_the_v2_view_are_stored_sharded(source: Path, tmp_path: Path, mount: Mounter) -> None:
    (tmp_path / "empty").mkdir()
    mounted = mount(tmp_path / "empty", write=True, shards="4", arguments=["--view=v2"])
    for number in range(len(PARAMETERS)):
        (mounted.path / str(number)).mkdir()
        for path in (source / str(number)).iterdir():
            (mounted.path / str(number) / path.name).write_bytes(path.read_bytes())
        assert_same(read_zarr(mounted.path / str(number)), VALUES)
    mounted.unmount()
    for number in range(len(PARAMETERS)):
        document = json.loads((tmp_path / "empty" / str(number) / "zarr.json").read_bytes())
        assert document["codecs"][0]["name"] == "sharding_indexed"
        assert_same(read_tensorstore(tmp_path / "empty" / str(number)), VALUES)


@pytest.mark.slow
def test_an_array_that_cannot_be_packed_is_named_and_the_rest_is_packed(source: Path, tmp_path: Path) -> None:
    document = json.loads((source / "0/.zarray").read_bytes())
    document["compressor"] = {"id": "foreign"}
    (source / "0/.zarray").write_text(json.dumps(document))
    (source / "1/.zarray").write_text("{")
    done = run("pack", "--shards", "4", source, tmp_path / "packed")
    assert done.returncode == 1, str(done)
    assert "skipped: 0: the codec 'foreign'" in done.stderr
    assert "skipped: 1: the document is not valid JSON" in done.stderr
    for number in range(2, len(PARAMETERS)):
        assert_same(read_zarr(tmp_path / "packed" / str(number)), VALUES)
    assert not (tmp_path / "packed/0").exists()


@pytest.mark.slow
def test_a_level_that_no_encoder_has_is_refused_where_chunks_are_encoded(source: Path, tmp_path: Path) -> None:
    codecs = '[{"name": "gzip", "configuration": {"level": 10}}]'
    done = run("pack", "--shards", "4", "--codecs", codecs, source, tmp_path / "packed")
    assert (done.returncode, "the level of gzip must be from 0 to 9, not 10" in done.stderr) == (2, True), str(done)
