"""One array that is not as it should be keeps no command, and no mount, from showing the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run, run_json
from tests.support.corpus import GZIP, LITTLE, array, extension, sharding
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter

VIEWS = [["--view=v3", "--decode"], ["--view=v2"], ["--view=npy"]]
SOUND = array((8, 12), (4, 6), sharding((2, 3)), dimension_names=["y", "x"])
FROM_FORTRAN = extension("transpose", order="F")
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "order-F": (array((8, 12), (4, 6), FROM_FORTRAN, LITTLE), "order must be a list"),
    "order-F-in-shards": (array((8, 12), (4, 6), sharding((2, 3), FROM_FORTRAN, LITTLE)), ""),
    "order-F-before-shards": (array((8, 12), (4, 6), FROM_FORTRAN, sharding((2, 3))), "transpose: order"),
    "chunk_shape-2": (
        array((8, 12), (4, 6), LITTLE) | {"chunk_grid": extension("regular", chunk_shape=2)},
        "chunk_shape must be a list of integers, not 2",
    ),
    "grid-without-chunks": (array((8, 12), (4, 6), LITTLE) | {"chunk_grid": "regular"}, "chunk_shape must be a list"),
    "grid-unknown": (array((8, 12), (4, 6), LITTLE) | {"chunk_grid": "example.spiral"}, "unknown chunk grid"),
    "keys-unknown": (array((8, 12), (4, 6), LITTLE) | {"chunk_key_encoding": "example.hash"}, "chunk key encoding"),
    "no-serializer": (array((8, 12), (4, 6), GZIP), "no array → bytes codec"),
    "type-with-a-member": (array((8, 12), (4, 6), LITTLE) | {"data_type": extension("int32", of=1)}, ""),
    "transformers": (array((8, 12), (4, 6), LITTLE, storage_transformers=["example.cache"]), "not supported"),
}
"""Documents, and what `info` gives as the reason why nothing but what is stored is shown."""


def deep(nesting: int) -> str:
    """A document with a data type that is nested as deep."""
    document = json.dumps(SOUND | {"data_type": extension("example.deep", inside="@")})
    return document.replace('"@"', "[" * nesting + "]" * nesting)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    store(root / "sound", SOUND)
    for name, (document, _) in BAD.items():
        (root / name).mkdir()
        (root / name / "zarr.json").write_text(json.dumps(document))
    for nesting in (100, 900, 990):
        (root / f"deep-{nesting}").mkdir()
        (root / f"deep-{nesting}/zarr.json").write_text(deep(nesting))
    return root


def test_verify_and_refs_go_on_with_the_others(source: Path) -> None:
    report = run_json("verify", "--data", "--json", source, status=1)
    assert {problem["document"] for problem in report["problems"]} == {"deep-990"}  # too deep to be read
    assert {item["array"] for item in report["unchecked"]} >= BAD.keys() - {"order-F-in-shards"}
    for view in ("v3", "v2"):
        done = run("refs", "--view", view, source)
        refs = json.loads(done.stdout)["refs"]
        assert len([key for key in refs if key.startswith("sound/")]) == 16 + (1 if view == "v3" else 2)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_a_mount_shows_the_others(mount: Mounter, source: Path, view: list[str]) -> None:
    mounted = mount(source, arguments=view)
    mounted.expect(r"(is left out of the|is shown as stored)")
    files_below(mounted.path)
    assert (mounted.path / ("sound.npy" if "--view=npy" in view else "sound")).exists()
