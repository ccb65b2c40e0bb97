"""`shardfs info` and views: what each shows, why not, and the line to type for each tool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shardfs.cli import cli
from shardfs.cli.clients import TOOLS, VIEW_OPTIONS
from tests.support.corpus import BIG, CRC32C, GZIP, LITTLE, array, rectilinear, sharding, transpose

TOP = Path(__file__).parent.parent.parent
STRINGS = {"name": "vlen-utf8"}
DOCUMENTS = {
    "big": array((4, 6), (4, 6), sharding((2, 3), BIG, GZIP), data_type="uint16"),
    "checked": array((4, 6), (4, 6), sharding((2, 3), LITTLE, GZIP, CRC32C)),
    "complex": array((4, 6), (4, 6), sharding((2, 3)), data_type="complex64", fill_value=[0, 0]),
    "image": array((4, 6), (4, 6), sharding((2, 3), LITTLE, GZIP)),
    "plain": array((4, 6), (2, 3), LITTLE),
    "ragged": array((4, 6), rectilinear([4], [3, 3]), LITTLE),
    "small": array((4, 6), (4, 6), sharding((2, 3)), data_type="bfloat16"),
    "solid": array((4, 6, 2), (4, 6, 2), sharding((2, 3, 2), LITTLE, GZIP)),
    "text": array((4, 6), (4, 6), sharding((2, 3), STRINGS), data_type="string", fill_value=""),
    "turned": array((4, 6, 2), (4, 6, 2), transpose(1, 0, 2), sharding((3, 2, 2), LITTLE, GZIP)),
    "cycled": array((4, 6, 2), (4, 6, 2), transpose(1, 2, 0), sharding((3, 2, 2), LITTLE, GZIP)),
    "volume": array((4, 6, 2), (4, 6, 2), sharding((2, 3, 2), BIG, GZIP), data_type="uint16"),
    "unknown": array((4, 6), (4, 6), {"name": "numcodecs.delta"}, sharding((2, 3))),
}
NAMED = {
    "half": array((2, 3), (2, 3), sharding((2, 3)), dimension_names=["y", "x"]),
    "named": array((4, 6), (4, 6), sharding((2, 3)), dimension_names=["y", "x"]),
    "nameless": array((4, 6), (4, 6), sharding((2, 3)), dimension_names=["", "x"]),
    "point": array((), (), sharding(())),
    "same": array((6, 4), (6, 4), sharding((3, 2)), attributes={"_ARRAY_DIMENSIONS": ["x", "y"]}),
    "square": array((4, 6), (4, 6), sharding((2, 3)), dimension_names=["z", "z"]),
}
"""Arrays whose axes have names, and one without axes."""
V3, V3_DECODED, V2, V2_DECODED, NPY = (options.text for options in VIEW_OPTIONS)
SHOWN = {
    "big": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "checked": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "complex": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "image": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "plain": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "ragged": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "small": {V3, V3_DECODED},
    "solid": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "text": {V3, V2},
    "turned": {V3, V3_DECODED, V2_DECODED, NPY},
    "cycled": {V3, V3_DECODED, V2_DECODED, NPY},
    "volume": {V3, V3_DECODED, V2, V2_DECODED, NPY},
    "unknown": set(),
}


def info(*arguments: str | Path) -> str:
    """What `shardfs info` prints."""
    done = CliRunner().invoke(cli, ["info", *map(str, arguments)], prog_name="shardfs")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def info_json(*arguments: str | Path) -> list[dict[str, Any]]:
    """The items that `shardfs info --json` prints."""
    items: list[dict[str, Any]] = json.loads(info("--json", *arguments))["arrays"]
    return items


def write(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "zarr.json").write_text(json.dumps((DOCUMENTS | NAMED)[name]))
    return directory


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, and a document that is broken."""
    root = write(tmp_path_factory.mktemp("stored"), *DOCUMENTS)
    (root / "broken").mkdir()
    (root / "broken/zarr.json").write_text("{")
    return root


def test_each_array_is_shown_or_left_out_with_the_reason(stored: Path) -> None:
    described = {item["path"]: item for item in info_json(stored)}
    assert described.keys() == DOCUMENTS.keys() | {"broken"}
    for name, item in described.items():
        assert set(item["views"]) == SHOWN.get(name, set())
        for options in VIEW_OPTIONS:
            if options.text in SHOWN.get(name, set()):
                assert options.text not in item["left_out"]
            else:
                assert item["left_out"].get(options.text) or item["reason"]
        lines = info(stored, name).splitlines()
        for options, reason in item["left_out"].items():
            assert f"  {options:<20}{reason}" in lines


TOOL_VIEWS = {
    # a dataset of some arrays; a tool; the view that shows it most of them; those that it misses
    "what it has": ("image plain", "GDAL 3.6 (Debian 12)", V2, ""),
    "a second codec": ("checked", "GDAL 3.6 (Debian 12)", V2_DECODED, ""),
    "a second codec that is a filter": ("checked image", "tensorstore, driver zarr", V2_DECODED, ""),
    "a codec that zarr-python has": ("checked", "zarr-python 2.18", V2, ""),
    "a transpose that has no v2 form": ("turned image", "zarr-python 2.18", V2_DECODED, ""),
    "text or a transpose": ("turned text image", "zarr-python 2.18", V2, "turned"),
    "a data type that it has not": ("complex image", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "complex"),
    "no array that it reads": ("complex", "netCDF-C 4.9 (Debian 12)", None, "complex"),
    "axes of one name and length": ("named same", "netCDF-C 4.9 (Debian 12)", V2_DECODED, ""),
    "axes of one name and two lengths": ("half named same", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "named same"),
    "two axes of one name": ("image square", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "square"),
    "an axis with no name": ("image nameless", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "nameless"),
    "an array without axes": ("image point", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "point"),
    "axes that do not matter": ("half named nameless point square", "zarr-python 2.18", V2, ""),
    "a byte order that it ignores": ("volume", "cloud-volume 12", V3_DECODED, ""),
    "fewer axes than it takes": ("volume big", "cloud-volume 12", V3_DECODED, "big"),
    "fill values that it masks": ("named", "rasterio 1.5 (GDAL 3.12)", V2, ""),
    "a transpose that it inverts": ("cycled turned", "rasterio 1.5 (GDAL 3.12)", V3_DECODED, ""),
    "a transpose that is its own inverse": ("turned", "rasterio 1.5 (GDAL 3.12)", V3, ""),
    "a grid that is not regular": ("ragged", "zarr-python 3.1", V3_DECODED, ""),
    "a data type of one tool": ("small", "tensorstore, driver zarr3", V3, ""),
    "no npy form": ("small image", "numpy, Julia, MATLAB, C", NPY, "small"),
    "what cannot be unsharded": ("unknown image", "cp, rsync, sha256sum", V3, "unknown"),
}


@pytest.mark.parametrize("names_tool_view_missed", TOOL_VIEWS.values(), ids=TOOL_VIEWS)
def test_a_tool_gets_the_view_in_which_it_reads_most(
    tmp_path: Path, names_tool_view_missed: tuple[str, str, str | None, str]
) -> None:
    names, tool, view, missed = names_tool_view_missed
    advice = json.loads(info("--tools", "--json", write(tmp_path, *names.split())))["tools"]
    (found,) = [each for each in advice if each["tool"] == tool]
    assert sorted(found["missing"]) == missed.split()
    assert found["mount"] == (None if view is None else f"shardfs mount {tmp_path} MNT {view}")
    text = info("--tools", tmp_path)
    for name in missed.split():
        assert f"not {name}: {found['missing'][name]}\n" in text
    if view is None:
        assert re.search(rf"^{re.escape(tool)} +no view: it reads none of the arrays$", text, re.MULTILINE)


def test_the_table_in_the_docs_is_what_info_knows() -> None:
    text = (TOP / "docs/views.md").read_text(encoding="utf-8")
    table = re.search(r"^\| your program \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    rows = [[cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]
    assert rows == [[tool.name, tool.says, tool.views[0].text, tool.opens] for tool in TOOLS]
