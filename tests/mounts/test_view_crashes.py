"""A mount is killed in one view, and the next one has another: the journal knows no views."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounter
from tests.support.readers import READERS, assert_same
from tests.support.viewed import write_source
from tests.support.writers import assert_sound

VIEWS = {"v2": ["--view=v2"], "v2 decoded": ["--view=v2", "--decode"], "v3": []}


@pytest.mark.parametrize(("killed", "next_view"), [("v2", "v2 decoded"), ("v2 decoded", "v3")])
def test_what_was_published_in_one_view_is_committed_in_another(
    mount: Mounter, tmp_path: Path, killed: str, next_view: str
) -> None:
    source = tmp_path / "data.zarr"
    expected = write_source(source)
    mounted = mount(source, write=True, shards="2", arguments=VIEWS[killed])
    root = mounted.path
    chunks = {"image": (8, 8, 4), "plane": (8, 4), "plain": (8, 14), "big": (4, 14)}
    for name, shape in chunks.items():
        first, second = (root / name / ".".join(["0"] * len(shape[:-1]) + [str(i)]) for i in (0, 1))
        first.write_bytes(second.read_bytes())
        start = (*(slice(0, n) for n in shape[:-1]),)
        expected[name][(*start, slice(0, shape[-1]))] = expected[name][(*start, slice(shape[-1], 2 * shape[-1]))]
    zarray = json.loads((root / "plain/.zarray").read_text()) | {"shape": [4], "chunks": [2], "compressor": None}
    for name in ("new", "late"):
        (root / name).mkdir()
        (root / name / "1").write_bytes(np.array([5, 6], "<i2").tobytes())
    (root / "new/.zarray").write_text(json.dumps(zarray))
    mounted.process.kill()
    mounted.process.wait()
    subprocess.run(["fusermount3", "-u", "-z", root], check=True)

    again = mount(source, write=True, shards="2", arguments=VIEWS[next_view])
    assert (again.path / "late/1").read_bytes() == np.array([5, 6], "<i2").tobytes()
    again.unmount()
    for name in chunks:
        assert_same(READERS["zarr"](source / name), expected[name])
    new = zarr.open_array(str(source / "new"), mode="r")
    assert (new.shards, list(new[...])) == ((4,), [0, 0, 5, 6])
    assert_sound(source)
