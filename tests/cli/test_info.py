"""`shardfs info`: what it says of every array, what each view shows of it, and the line to type for each tool."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardfs.bulk.info import VIEW_OPTIONS, ViewOptions
from shardfs.cli import cli
from shardfs.cli.clients import TOOLS
from shardfs.stores.url import StoreOptions
from tests.support.commands import SOURCE, one_line_of, run, run_json
from tests.support.corpus import BIG, CRC32C, GZIP, LITTLE, array, rectilinear, sharding, transpose
from tests.support.datasets import store

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
    "named": array((4, 6), (4, 6), sharding((2, 3)), dimension_names=["y", "x"]),
    "point": array((), (), sharding(())),
}
"""An array whose axes have names, and one without axes."""
V3, V3_DECODED, V2, V2_DECODED, NPY = (options.text for options in VIEW_OPTIONS)
ALL = {V3, V3_DECODED, V2, V2_DECODED, NPY}
SHOWN = {
    "small": {V3, V3_DECODED},
    "text": {V3, V2},
    "turned": ALL - {V2},
    "cycled": ALL - {V2},
    "unknown": set(),
    "broken": set(),
}
"""What views show arrays that not all of them do."""


def info(*arguments: str | Path) -> str:
    """What `shardfs info` prints."""
    done = CliRunner().invoke(cli, ["info", *map(str, arguments)], prog_name="shardfs")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def write(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "zarr.json").write_text(json.dumps((DOCUMENTS | NAMED)[name]))
    return directory


def test_each_array_is_shown_or_skipped_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, *DOCUMENTS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/zarr.json").write_text("{")
    described = {item["path"]: item for item in json.loads(info("--json", tmp_path))["arrays"]}
    assert described.keys() == DOCUMENTS.keys() | {"broken"}
    for name, item in described.items():
        shown = SHOWN.get(name, ALL)
        assert set(item["views"]) == shown, name
        for options in VIEW_OPTIONS:
            if options.text in shown:
                assert options.text not in item["left_out"]
            else:
                assert item["left_out"].get(options.text) or item["reason"]
        lines = info(tmp_path, name).splitlines()
        for options, reason in item["left_out"].items():
            assert f"  {options:<20}{reason}" in lines


TOOL_VIEWS = [
    # a dataset of some arrays; a tool; the view that shows it most of them; those that it misses
    ("image plain", "GDAL 3.6 (Debian 12)", V2, ""),
    ("checked", "GDAL 3.6 (Debian 12)", V2_DECODED, ""),
    ("checked image", "tensorstore, driver zarr", V2_DECODED, ""),
    ("checked", "zarr-python 2.18", V2, ""),
    ("turned image", "zarr-python 2.18", V2_DECODED, ""),
    ("turned text image", "zarr-python 2.18", V2, "turned"),
    ("complex image", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "complex"),
    ("complex", "netCDF-C 4.9 (Debian 12)", None, "complex"),
    ("image point", "netCDF-C 4.9 (Debian 12)", V2_DECODED, "point"),
    ("volume", "cloud-volume 12", V3_DECODED, ""),
    ("volume big", "cloud-volume 12", V3_DECODED, "big"),
    ("named", "rasterio 1.5 (GDAL 3.12)", V2, ""),
    ("cycled turned", "rasterio 1.5 (GDAL 3.12)", V3_DECODED, ""),
    ("turned", "rasterio 1.5 (GDAL 3.12)", V3, ""),
    ("ragged", "zarr-python 3.1", V3_DECODED, ""),
    ("small", "tensorstore, driver zarr3", V3, ""),
    ("small image", "numpy, Julia, MATLAB, C", NPY, "small"),
    ("unknown image", "cp, rsync, sha256sum", V3, "unknown"),
]


@pytest.mark.parametrize(("names", "tool", "view", "missed"), TOOL_VIEWS)
def test_a_tool_gets_the_view_in_which_it_reads_most(
    tmp_path: Path, names: str, tool: str, view: str | None, missed: str
) -> None:
    advice = json.loads(info("--tools", "--json", write(tmp_path, *names.split())))["tools"]
    (found,) = [each for each in advice if each["tool"] == tool]
    assert sorted(found["missing"]) == missed.split()
    assert found["mount"] == (None if view is None else f"shardfs mount {tmp_path} MNT {view}")
    text = info("--tools", tmp_path)
    for name in missed.split():
        assert f"not {name}: {found['missing'][name]}\n" in text
    if view is None:
        assert re.search(rf"^{re.escape(tool)} +no view: it reads none of the arrays$", text, re.MULTILINE)


def test_the_table_in_the_docs_is_that_of_info() -> None:
    text = (TOP / "docs/views.md").read_text(encoding="utf-8")
    table = re.search(r"^\| your program \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    rows = [[cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]
    usual = StoreOptions()
    assert rows == [
        [
            tool.name,
            tool.says,
            "—" if tool.is_remote else best.text,
            tool.opens,
            tool.without_mount("data.zarr", best, usual),
        ]
        for tool in TOOLS
        for best in tool.views[:1]
        if tool.opens
    ]


def test_a_viewer_in_a_browser_is_told_to_serve(tmp_path: Path) -> None:
    advice = {
        found["tool"]: found for found in json.loads(info("--tools", "--json", write(tmp_path, "image")))["tools"]
    }
    serve = f"shardfs serve {tmp_path}"
    assert (advice["neuroglancer"]["mount"], advice["neuroglancer"]["without_mount"]) == (None, serve)
    napari = advice["napari 0.9 with napari-ome-zarr 0.10"]
    assert (napari["mount"], napari["without_mount"]) == (f"shardfs mount {tmp_path} MNT --view v3", serve)
    assert re.search(rf"^neuroglancer +{re.escape(serve)}$", info("--tools", tmp_path), re.MULTILINE)


def test_without_a_mount_a_tool_is_told_the_options_that_reach_the_source() -> None:
    tools = {tool.name: tool for tool in TOOLS}
    options, source = StoreOptions(profile="lab"), "s3://bucket/it's.zarr"
    assert tools["zarr-python 3.1"].without_mount(source, ViewOptions("v3", decode=True), options) == (
        """zarr.open(shardfs.open("s3://bucket/it's.zarr", decode=True, """
        """store_options=shardfs.StoreOptions(profile="lab")).store())"""
    )
    assert tools["GDAL 3.6 (Debian 12)"].without_mount(source, ViewOptions("v2"), options) == (
        """shardfs unpack --profile=lab --view v2 's3://bucket/it'"'"'s.zarr' DIR"""
    )


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A group of arrays that are stored in different ways, one of them not as a whole."""
    store(tmp_path / "wrapped", array((7, 11), (4, 6), sharding((2, 3), LITTLE), GZIP))
    store(tmp_path / "group/nested", array((20, 13), (16, 12), sharding((8, 6), sharding((2, 3), LITTLE, GZIP))))
    (tmp_path / "group/nested/c/1/1").unlink()
    store(tmp_path / "group/plain", array((4, 4), (2, 2), LITTLE))
    (tmp_path / "group/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_one_array_is_described_on_demand(several: Path) -> None:
    done = run("info", several, "group/nested/")
    assert (done.returncode, done.stderr) == (0, "")
    path, *lines = done.stdout.splitlines()
    told = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in lines)
    assert (path, told["inner chunks"], told["nesting"], told["stored shards"]) == ("group/nested", "50", "2", "3")
    assert (told["inner codecs"], told["decoded"]) == ("bytes, gzip", "1.0 KiB (1,024 bytes)")
    way_out = f"`shardfs info {several}` lists all arrays"
    assert one_line_of(run("info", several, "group"), 1) == f"group is not a Zarr v3 array; {way_out}"
    for name in ("nothing", "../nothing"):
        said = one_line_of(run("info", several, name), SOURCE)
        assert said == f"there is no array {name} in {several}; {way_out}"
    said = one_line_of(run("map", several, "group/plan"), SOURCE)
    assert said == f"there is no array group/plan in {several}; did you mean group/plain?"


def test_absurd_shapes_have_no_decoded_size(tmp_path: Path) -> None:
    shape = (2**60,) * 20
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge/zarr.json").write_text(json.dumps(array(shape, shape, sharding(shape))))
    shard = tmp_path / "huge/c" / "/".join("0" * 20)
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"1234")
    (item,) = run_json("info", "--json", tmp_path)["arrays"]
    assert (item["stored_shards"], item["stored_nbytes"], item["decoded_nbytes"]) == (1, 4, None)
    for arguments in (["info", tmp_path], ["info", tmp_path, "huge"], ["map", tmp_path]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
