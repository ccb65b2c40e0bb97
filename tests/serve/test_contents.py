"""Pages of datasets: what is in a group, tables of what has no picture, and errors with a way back."""

import html
import importlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
import zarr

from shardfs.format.document import parse_json
from shardfs.serve.pages import plane
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import age, store
from tests.support.documents import write
from tests.support.images import put, write_group
from tests.support.looked_at import NTIMES, cells, climate, tables
from tests.support.s3_proxy import S3Proxy
from tests.support.serving import Served, served

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"


def page(site: Served, target: str, status: int = 200) -> str:
    """The HTML of a page."""
    reply = site.ask(target, Accept=HTML)
    assert (reply.status, reply["Content-Type"]) == (status, "text/html; charset=utf-8"), reply.body
    return reply.body.decode()


def section(text: str, name: str) -> str:
    """A section of a page; "" if it has none such."""
    found = re.search(rf'<section id="{name}">.*?</section>', text, re.DOTALL)
    return found[0] if found else ""


def cells_of(text: str) -> list[list[str]]:
    """The cells of the rows of a table, as text."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL)
    plain = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<[^>]+>", " ", cell)).strip() for cell in row] for row in plain]


def test_the_page_of_a_group_says_what_xarray_says(tmp_path: Path) -> None:
    climate(tmp_path / "climate")
    write_group(tmp_path)
    put(tmp_path / "climate/crs", np.zeros((), "int32"), (), ())
    age(tmp_path)
    with served(tmp_path) as site:
        text = page(site, "/climate/")
        assert re.findall(r"<li>([^<]*)</li>", section(text, "dimensions")) == ["time: 30", "lat: 17", "lon: 24"]
        rows = [row[:3] for row in cells_of(section(text, "coordinates"))[1:]]
        assert rows == [["lat", "lat 17", "float64"], ["lon", "lon 24", "float64"], ["time", "time 30", "int64"]]
        rows = [row[:3] for row in cells_of(section(text, "variables"))[1:]]
        assert [row[0].split() for row in rows] == [["crs"], ["tas", "Air", "temperature", "[K]"]]
        assert rows[1][1:] == ["time 30 × lat 17 × lon 24", "float32"]
        assert re.findall(r'<img class="thumbnail" src="([^"]*)"', text) == [
            "../-/plane/climate/tas?size=128&amp;most=16"
        ]
        assert section(text, "attributes").count("A climate") == 1
        assert '<p class="kind">A climate · group · <a href="#viewers">' in text
        assert ["climate/ A climate", "group"] in [
            [" ".join(cell.split()) for cell in row] for row in cells_of(section(page(site, "/"), "groups"))
        ]
        assert text.index('id="variables"') < text.index('id="attributes"') < text.index('id="names"')

        reply = site.ask("/-/contents/climate")
        about = json.loads(reply.body)
        nbytes = sum(path.stat().st_size for path in (tmp_path / "climate/tas/c").rglob("*") if path.is_file())
        plain = 4 * NTIMES * 17 * 24
        assert about["children"]["tas"] == {
            "stored": f"{nbytes / 1024:.1f} KiB", "plain": f"{plain / 1024:.1f} KiB", "ratio": f"{plain / nbytes:.2f}",
            "shards": "3 of 3",
        }  # fmt: skip
        ranges = {name: child.get("range") for name, child in about["children"].items()}
        assert ranges == {
            "time": "2020-02-28 … 2020-03-28", "lat": "80°S … 80°N", "lon": "0° … 345°E", "tas": None, "crs": None,
        }  # fmt: skip
        assert site.ask("/-/contents/climate/tas").status == 400
        assert site.ask("/-/contents/nowhere").status == 404


def lines_of(text: str) -> dict[str, str]:
    """The lines of a page that open what it shows, by program."""
    found = re.findall(r"<dt>([^<]*)</dt><dd><code>([^<]*)</code>", section(text, "viewers"))
    return {name: html.unescape(line) for name, line in found}


@pytest.mark.client
def test_a_variable_is_opened_by_lines_for_python_r_and_julia(tmp_path: Path) -> None:
    values = climate(tmp_path / "climate")
    put(tmp_path / "wide", np.arange(4), (4,), (2,), dimension_names=["x"])
    turned = {"name": "transpose", "configuration": {"order": [1, 0]}}
    store(tmp_path / "turned", array((4, 2), (4, 2), sharding((2, 2), turned, LITTLE)), np.ones((4, 2), "uint16"))
    tables(tmp_path / "tables")
    age(tmp_path)
    with served(tmp_path) as site:
        assert "xarray" not in lines_of(page(site, "/climate/tas/"))  # it lists no directory of a web server
    zarr.consolidate_metadata(tmp_path / "climate")
    age(tmp_path)
    with served(tmp_path) as site:
        local = f"127.0.0.1:{site.port}"
        text = site.ask("/climate/tas/", Accept=HTML, Host=local).body.decode()
        assert '<p class="kind">Air temperature [K] · array, float32, ' in text
        assert ' · <a href="#viewers">Open in Python and others</a></p>' in text
        lines = lines_of(text)
        url = f"http://{local}/-/v3/climate"
        assert lines["R"] == f'zarr::open_zarr("{url}/tas")[["/"]][]'
        assert lines["Julia"] == f'Zarr.zopen("{url}/tas")'
        assert lines["xarray"] == f'xarray.open_zarr("{url}")["tas"]'
        assert lines_of(page(site, "/climate/"))["xarray"] == 'xarray.open_zarr("http://localhost/-/v3/climate")'
        opened = eval(lines["xarray"], {"xarray": importlib.import_module("xarray")})
        assert np.array_equal(opened.sel(lat=40.0).values, values[:, 12])
        for name in ("wide", "turned"):  # R has no integers of 64 bits, and its package transposes nothing
            assert {"R", "Julia"} & lines_of(page(site, f"/{name}/")).keys() == {"Julia"}
        assert not {"R", "Julia", "xarray"} & lines_of(page(site, "/tables/names/")).keys()


def test_a_small_picture_is_refused_if_it_takes_many_chunks_and_not_offered_either(tmp_path: Path) -> None:
    put(tmp_path / "fine", np.ones((128, 128), "uint8"), (128, 128), (8, 8))
    put(tmp_path / "line", np.ones(128, "uint8"), (128,), (8,))
    cells(tmp_path / "cells")
    write_group(tmp_path)
    age(tmp_path)
    with served(tmp_path) as site:
        shown = re.findall(r'<img class="thumbnail" src="\./-/plane/([^?]*)\?', page(site, "/"))
        assert shown == ["cells"]
        assert site.ask("/-/plane/cells?size=128&most=64").status == 200
        reply = site.ask("/-/plane/fine?size=128&most=16")
        assert (reply.status, reply.body) == (422, b"it takes 256 chunks, more than 16\n")
        assert site.views.main.source.statistics.decoded_chunks <= 64


def test_texts_and_structs_are_tables_by_pages(tmp_path: Path) -> None:
    tables(tmp_path)
    with served(tmp_path) as site:
        text = section(page(site, "/names/"), "picture")
        rows = cells_of(text)
        assert rows[0] == ["gene", "value"]
        assert rows[1:] == [[str(number), f"gene {number} <b>µ</b>"] for number in range(50)]
        assert "Rows 0 to 49 of 130." in text
        assert "<b>µ</b>" not in text
        following = re.search(r'<a rel="next" href="([^"]*)"', text)
        assert following is not None
        text = section(page(site, urljoin("/names/", html.unescape(following[1]))), "picture")
        assert cells_of(text)[1] == ["50", "gene 50 <b>µ</b>"]
        assert 'rel="prev" href="./?from=0"' in text
        assert cells_of(section(page(site, "/names/?from=100"), "picture"))[1:] == [
            [str(number), f"gene {number} <b>µ</b>"] for number in range(100, 130)
        ]
        assert len(cells_of(section(page(site, "/names/?from=999999"), "picture"))) == 2

        rows = cells_of(section(page(site, "/spots/"), "picture"))
        assert rows[0] == ["index", "id", "x", "name"]
        assert rows[6] == ["5", "5", "1.25", "spot"]
        rows = cells_of(section(page(site, "/fixed/"), "picture"))
        assert rows[0] == ["index", "column 0", "column 1", "column 2"]
        assert rows[3] == ["2", "r2c0", "r2c1", "r2c2"]


def test_only_the_chunks_of_the_rows_are_read_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    tables(tmp_path)
    data = bytearray((tmp_path / "names/c/0").read_bytes())
    data[4] ^= 0xFF  # of the first chunk
    (tmp_path / "names/c/0").write_bytes(data)
    age(tmp_path)
    with served(tmp_path) as site:
        text = section(page(site, "/names/"), "picture")
        rows = cells_of(text)
        assert {row[1] for row in rows[1:41]} == {"damaged"}
        assert rows[41] == ["40", "gene 40 <b>µ</b>"]
        assert "1 chunks are damaged: " in text


def test_a_number_without_axes_is_said(tmp_path: Path) -> None:
    tables(tmp_path)
    with served(tmp_path) as site:
        assert '<p id="value">42 m</p>' in page(site, "/answer/")


@pytest.mark.parametrize("data_type", ["string", "variable_length_bytes"])
def test_texts_that_claim_much_cost_nothing(tmp_path: Path, data_type: str) -> None:
    serializer = {"name": "vlen-utf8" if data_type == "string" else "vlen-bytes"}
    claims = [b"", b"\xff" * 4, b"\x04\0\0\0" + b"\xff\xff\xff\x7f" * 4, b"\x04\0\0\0\x01\0\0\0"]
    for number, claim in enumerate(claims):
        document = array((4,), (4,), serializer, data_type=data_type, fill_value="")
        write(tmp_path / f"claim{number}", document)
        (tmp_path / f"claim{number}/c").mkdir()
        (tmp_path / f"claim{number}/c/0").write_bytes(claim)
    write(tmp_path / "large", array((2**40,), (2**40,), serializer, data_type=data_type, fill_value=""))
    age(tmp_path)
    with served(tmp_path) as site:
        for number in range(len(claims)):
            rows = cells_of(section(page(site, f"/claim{number}/"), "picture"))
            assert {row[1] for row in rows[1:]} == {"damaged"}, number
        assert "a chunk has 1,099,511,627,776 elements" in page(site, "/large/")


@pytest.mark.slow
def test_very_many_attributes_are_parsed_beside_the_server_and_shown_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every other request would wait meanwhile."""
    document = array((8, 8), (8, 8), sharding((4, 4), LITTLE), data_type="uint8")
    document["attributes"] = {f"attribute {number}": number for number in range(10**5)} | {"units": "K"}
    write(tmp_path / "image", document)
    write_group(tmp_path / "group", {f"<{number}>": [number] for number in range(5_000)})
    age(tmp_path)
    here: list[int] = []
    monkeypatch.setattr(plane, "parse_json", lambda data: here.append(len(data)) or parse_json(data))
    with served(tmp_path, metadata_ttl=60.0) as site:
        text = page(site, "/image/")
        assert "The document is too large to show its attributes here" in text
        assert len(text) < 100_000
        assert site.ask("/-/plane/image").status == 200
        assert json.loads(site.ask("/-/values/image?row=1").body)["values"] == [["", "0 K (not stored)"]]
        assert not here
        text = page(site, "/group/")
        assert "5,000 attributes in all" in text
        assert len(text) < 200_000


def test_an_error_is_a_page_with_a_way_back_for_people_and_a_line_for_programs(tmp_path: Path) -> None:
    put(tmp_path / "group/image", np.ones((8, 8), "uint8"), (8, 8), (4, 4))
    write_group(tmp_path / "group")
    write_group(tmp_path)
    (tmp_path / "group/image/c/0/0").write_bytes(b"no shard")
    age(tmp_path)
    evil = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    with served(tmp_path) as site:
        for target, status, way in (
            ("/group/nowhere", 404, "/group/"), ("/group/image/c/0/0", 500, "/group/image/c/0/"),
            ("/group/%zz", 400, None), ("/-/nothing", 404, "/"), (f"/group/{evil}/deep/er/", 404, "/group/"),
            ("/group/image/no/", 404, "/group/image/"),
        ):  # fmt: skip
            plain = site.ask(target, Accept="*/*")
            assert (plain.status, plain["Content-Type"]) == (status, "text/plain; charset=utf-8"), target
            if way is None:
                continue
            text = page(site, target, status)
            assert f"<h1>{status} " in text
            assert html.escape(plain.body.decode().strip()) in text
            ways = {
                urljoin(f"http://localhost{target}", html.unescape(href))
                for href in re.findall(r'<li><a href="([^"]*)"', text)
            }
            assert f"http://localhost{way}" in ways
            assert site.ask(way, Accept=HTML).status == 200
            assert text.count("<script") == 1
            style = re.search(r'rel="stylesheet"[^>]*href="([^"]*)"', text)
            assert style is not None
            assert site.ask(urljoin(target, style[1])).status == 200, target
        reply = site.ask("/-/plane/group/nowhere", Accept=HTML)
        assert reply["Content-Type"] == "text/plain; charset=utf-8"
    with served(tmp_path, token="secret" * 4) as site:
        assert site.ask("/group/nowhere", Accept=HTML)["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.slow
def test_the_page_of_a_dataset_in_a_bucket_lists_shards_only_when_it_is_asked_to(
    climate_site: Served, s3_proxy: S3Proxy
) -> None:
    text = page(climate_site, "/")
    assert 'id="count"' in text
    keys = s3_proxy.log.keys("GetObject")
    assert sorted(keys) == [f"data.zarr/{name}" for name in sorted(
        [f"{name}/zarr.json" for name in ("lat", "lon", "tas", "time")])]  # fmt: skip
    s3_proxy.log.clear()
    found: dict[str, Any] = json.loads(climate_site.ask("/-/contents/").body)["children"]
    assert found["time"] == {"range": "2020-02-28 … 2020-03-28"}
    assert len(s3_proxy.log.keys("GetObject")) == 3 * 2  # index and chunk of each coordinate
    s3_proxy.log.clear()
    found = json.loads(climate_site.ask("/-/contents/?sizes=1").body)["children"]
    assert found["tas"]["shards"] == "3 of 3"
    assert not s3_proxy.log.keys("GetObject")
