"""What pictures, plots and values say to scientists: coordinates, units, ranges, profiles, channels and labels."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardfs.serve.pages import colors, units
from tests.support.corpus import LITTLE, array, extension, sharding
from tests.support.datasets import age, store
from tests.support.images import put, write_group
from tests.support.looked_at import LATITUDES, LONGITUDES, NTIMES, cells, climate, tables
from tests.support.png import pixels_of
from tests.support.s3_proxy import S3Proxy
from tests.support.serving import Served, served

RNG = np.random.default_rng(5)


def picture(site: Served, target: str) -> tuple[np.ndarray, dict[str, Any]]:
    """The pixels of a picture, and what is said of it."""
    reply = site.ask(f"/-/plane/{target}")
    assert reply.status == 200, reply.body
    assert len(reply["Shardfs-Picture"]) < 3072
    return pixels_of(reply.body), json.loads(reply["Shardfs-Picture"])


def values_at(site: Served, target: str) -> dict[str, Any]:
    """The marked element."""
    reply = site.ask(f"/-/values/{target}")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)
    return found


def plot(site: Served, target: str) -> tuple[str, dict[str, Any]]:
    """A plot, and what is said of it."""
    reply = site.ask(f"/-/plot/{target}")
    assert (reply.status, reply["Content-Type"]) == (200, "image/svg+xml; charset=utf-8"), reply.body
    return reply.body.decode(), json.loads(reply["Shardfs-Picture"])


def test_coordinates_of_a_group_label_a_picture_and_a_latitude_that_grows_is_drawn_north_up(tmp_path: Path) -> None:
    values = climate(tmp_path / "up")
    climate(tmp_path / "down", LATITUDES[::-1])
    with served(tmp_path) as site:
        pixels, about = picture(site, "up/tas?colors=gray&i0=2&low=0&high=100")
        assert about["where"] == [[0, "time", "2020-03-01", 2]]
        assert about["flipped"] is True
        assert "north is up: the last row is drawn first" in about["notes"]
        assert pixels[0, 0, 0] > 200 > 60 > pixels[-1, -1, 0]  # north is warm here
        north = {label: place for place, label in about["rows"]}
        assert north["60°N"] == pytest.approx(2.5 / 17, abs=1e-4)
        assert north["60°S"] == pytest.approx(14.5 / 17, abs=1e-4)
        east = {label: place for place, label in about["columns"]}
        assert east["180°E"] == pytest.approx(12.5 / 24, abs=1e-4)
        assert about["ratio"] == pytest.approx(24 * 15 / (17 * 10), rel=1e-3)

        other, about = picture(site, "down/tas?colors=gray&i0=2&low=0&high=100")
        assert (other == pixels).all()
        assert about["flipped"] is False
        assert not about["notes"]
        assert {label: place for place, label in about["rows"]} == north

        found = values_at(site, "up/tas?i0=2&row=1&column=3&size=256")
        assert found["where"] == [[0, "time", "2020-03-01", 2], [1, "lat", "70°S", 1], [2, "lon", "45°E", 3]]
        assert found["values"] == [["", f"{values[2, 1, 3]:.6g} K"]]


def test_times_are_decoded_in_the_calendars_of_people_and_named_in_others(tmp_path: Path) -> None:
    climate(tmp_path / "noleap", calendar="noleap")
    climate(tmp_path / "hours", units="hours since 1900-01-01 00:00:0.0")
    climate(tmp_path / "julian", units="days since 1-1-1 00:00:00")
    climate(tmp_path / "odd", units="furlongs since breakfast")
    with served(tmp_path) as site:
        expected = {
            "noleap": "2 days since 2020-02-28 (noleap)", "hours": "1900-01-01 02:00",
            "odd": "2 furlongs since breakfast (standard)",
            "julian": "2 days since 1-1-1 00:00:00 (standard)",
        }  # fmt: skip
        for name, label in expected.items():
            assert picture(site, f"{name}/tas?i0=2")[1]["where"] == [[0, "time", label, 2]], name


@pytest.mark.parametrize(
    ("given", "calendar", "value", "expected"),
    [
        ("days since 2000-01-01", None, 59, "2000-02-29"),
        ("days since 1-1-1", "standard", 730121, "2000-01-01"),  # of the calendar of history: Julian at first
        ("days since 0001-01-01", "proleptic_gregorian", 730119, "2000-01-01"),
        ("seconds since 1970-01-01T00:00:00Z", "gregorian", 1.5, "1970-01-01 00:00:01.500"),
        ("Minutes since 1999-12-31 23:58", None, 3, "2000-01-01 00:01"),
        ("days since 1970-01-01 00:00 +02:00", None, 0, None),
        ("months since 2000-01-01", None, 1, None),
        ("days since 2000-13-01", None, 1, None),
        ("days since 2000-01-01", "360_day", 1, None),
        ("days since 2000-01-01", None, 1e300, None),
    ],
)
def test_a_time_is_what_cf_says(given: str, calendar: str | None, value: float, expected: str | None) -> None:
    found = units.decoded_times(np.array([value]), given, calendar)
    assert (None if found is None else units.time_labels(found)[0]) == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("2024-03-03T07:00", ["2024-03-03 06:00", "2024-03-03 06:30", "2024-03-03 07:00"]),
        ("2024-03-04T02:00", ["2024-03-03 06:00", "2024-03-03 12:00", "2024-03-03 18:00", "2024-03-04 00:00"]),
        ("2024-03-06T02:00", ["2024-03-04", "2024-03-05", "2024-03-06"]),
    ],
)
def test_ticks_of_times_are_round_and_hours_have_minutes(last: str, expected: list[str]) -> None:
    ticks = units.nice_times(np.datetime64("2024-03-03T05:50", "ms"), np.datetime64(last, "ms"), 4)
    assert [label for _, label in ticks] == expected


EXTREMES = (5e-324, 1e-323, 1e-310, 2.2e-308, 1.0, 1e300, 1.7976931348623157e308)


@pytest.mark.parametrize("low", [*EXTREMES, *(-each for each in EXTREMES), 0.0])
def test_ticks_of_numbers_of_any_size_are_few(low: float) -> None:
    for high in (*EXTREMES, 0.0):
        assert len(units.nice_numbers(low, high, 5)) <= 11
        assert len(units.log_numbers(low, high, 5)) <= 11


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "as"])
def test_times_of_any_unit_are_times_or_too_far_away(unit: str) -> None:
    for ticks in ([-(2**63) + 1, 2**63 - 1], [-(2**40), 2**40], [0, 1], [2**62, 2**62 + 1]):
        stored = np.array(ticks).view(f"datetime64[{unit}]")
        times = units.in_milliseconds(stored)
        assert units.exact_time(stored[1:])
        assert times is not None or abs(ticks[1]) >= 2**40
        if times is not None:
            assert len(units.nice_times(times[0], times[1], 5)) <= 11


def test_times_of_less_than_a_millisecond_are_exact_and_have_a_tick(tmp_path: Path) -> None:
    of = {"unit": "ns", "scale_factor": 1}
    begin = np.datetime64("2020-02-29T23:59:59.999999900", "ns")
    put(tmp_path / "near", np.arange(100).reshape(10, 10).view("M8[ns]"), (10, 10), (10, 10),
        extension("numpy.datetime64", **of), fill_value=-1)  # fmt: skip
    put(tmp_path / "exact", (begin + np.arange(100)).reshape(10, 10), (10, 10), (10, 10),
        extension("numpy.datetime64", **of), fill_value=0)  # fmt: skip
    put(tmp_path / "far", np.array([[-(2**62) + 1, 2**62 - 1]]).view("M8[ms]"), (1, 2), (1, 2),
        extension("numpy.datetime64", unit="ms", scale_factor=1), fill_value=0)  # fmt: skip
    put(tmp_path / "least", np.full(10, 5e-324), (10,), (10,), fill_value=0.0)
    put(tmp_path / "most", np.full(10, 1.7976931348623157e308), (10,), (10,), fill_value=0.0)
    with served(tmp_path) as site:
        for low in ("", "?low=0&high=100"):
            assert picture(site, f"near{low}")[1]["bar"]["ticks"] == [[0.5, "1970-01-01"]]
        assert values_at(site, "exact?row=0&column=1")["values"] == [["", "2020-02-29 23:59:59.999999901"]]
        assert values_at(site, "near?row=0&column=0")["values"] == [["", "1970-01-01"]]
        assert len(picture(site, "far")[1]["bar"]["ticks"]) <= 11
        for name in ("least", "most"):
            for scale in ("log", "linear"):
                assert "<svg" in plot(site, f"{name}?scale={scale}")[0]


def test_packed_and_missing_values_are_numbers_with_a_unit(tmp_path: Path) -> None:
    stored = np.array([[100, 200], [-32767, 300]], "int16")
    packing = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -32767, "units": "degC"}
    put(tmp_path / "packed", stored, (2, 2), (2, 2), attributes=packing)
    floats = np.array([[1.0, 2.0], [-9999.0, np.nan]])
    put(tmp_path / "floats", floats, (2, 2), (2, 2), fill_value=0.0,
        attributes={"_FillValue": "AAAAAICHw8A=", "units": "1"})  # fmt: skip
    age(tmp_path)
    with served(tmp_path) as site:
        pixels, about = picture(site, "packed?low=0&high=100")
        assert (about["black"], about["white"], about["bar"]["unit"]) == ("60", "160", "°C")
        assert pixels[..., 3].tolist() == [[255, 255], [0, 255]]
        assert "1 of 4 elements NaN or missing, shown as nothing" in about["notes"]
        assert values_at(site, "packed?row=0&column=1")["values"] == [["", "110 °C"]]
        assert values_at(site, "packed?row=1&column=0")["values"] == [["", "missing (-32767)"]]
        pixels, about = picture(site, "floats")
        assert pixels[..., 3].tolist() == [[255, 255], [0, 0]]
        assert values_at(site, "floats?row=1&column=0")["values"] == [["", "missing (-9999)"]]
        assert values_at(site, "floats?row=1&column=1")["values"] == [["", "NaN"]]


def test_the_value_is_that_of_the_nearest_element_and_of_the_finest_level_if_it_is_marked(tmp_path: Path) -> None:
    values = cells(tmp_path / "cells")
    with served(tmp_path) as site:
        for row, column in ((0, 0), (17, 40), (63, 63)):
            shown = values_at(site, f"cells?row={row}&column={column}&i0=1&i2=3&size=32")
            assert shown["level"] == "cells/1"
            exact = values_at(site, f"cells?row={row}&column={column}&i0=1&i2=3")
            assert exact["level"] is None
            for found, at in ((shown, (row // 2 * 2, column // 2 * 2)), (exact, (row, column))):
                expected = [[f"stain {number}", f"{int(values[1, number, 3, *at]):,}"] for number in range(2)]
                assert found["values"] == expected
            assert exact["where"][2:] == [
                [3, "y", f"{row / 2:g} µm", row], [4, "x", f"{column / 2:g} µm", column],
            ]  # fmt: skip
        assert site.ask("/-/values/cells?row=64").status == 400


def test_colour_tables_are_perceptual_and_balance_has_zero_in_the_middle(tmp_path: Path) -> None:
    for name in ("gray", "viridis", "magma", "cividis"):
        linear = (colors.table(name, 252) / 255.0) ** 2.2
        lightness = linear @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(lightness) > -1e-3).all(), name
        assert lightness[-1] > lightness[0] + 0.5, name
    values = np.linspace(-2, 8, 101).reshape(1, 101)
    put(tmp_path / "both", values, (1, 101), (1, 101), fill_value=99.0, attributes={"units": "m"})
    with served(tmp_path) as site:
        pixels, about = picture(site, "both?colors=balance&low=0&high=100")
        assert (about["black"], about["white"]) == ("-8", "8")
        assert pixels[0, 20, :3].min() > 240  # 0 is white
        assert pixels[0, 0, 2] > pixels[0, 0, 0]
        assert pixels[0, -1, 0] > pixels[0, -1, 2]
        assert picture(site, "both")[1]["bar"]["colors"] == "viridis"  # it has a unit
        for name in colors.TABLES:
            bar = site.ask(f"/-/bar/{name}.png")
            assert (bar.status, bar["Content-Type"]) == (200, "image/png")
            shown = picture(site, f"both?colors={name}&min=-2&max=8")[0][0]
            assert np.abs(pixels_of(bar.body)[0, [0, -1], :3].astype(int) - shown[[0, -1], :3]).max() <= 2
        assert site.ask("/-/bar/jet.png").status == 404


def test_a_range_is_in_values_or_percentiles_and_a_scale_may_be_logarithmic(tmp_path: Path) -> None:
    values = 10.0 ** np.arange(-2, 4).reshape(1, 6)
    values[0, 0] = -1
    put(tmp_path / "wide", values, (1, 6), (1, 6), fill_value=5.0)
    with served(tmp_path) as site:
        pixels, about = picture(site, "wide?scale=log&low=0&high=100")
        assert (about["black"], about["white"]) == ("0.1", "1000")
        assert pixels[0, :, 0].tolist() == [0, 0, 64, 128, 191, 255]
        assert about["bar"]["ticks"] == [[0.0, "0.1"], [0.25, "1"], [0.5, "10"], [0.75, "100"], [1.0, "1000"]]
        assert any("1 not positive" in note for note in about["notes"])
        pixels, about = picture(site, "wide?min=0&max=100")
        assert (about["black"], about["white"]) == ("0", "100")
        assert pixels[0, :, 0].tolist() == [0, 0, 3, 25, 255, 255]
        assert picture(site, "wide?max=100&low=0")[1]["black"] == "-1"
        for query in ("min=nan", "min=2&max=1", "max=inf", "scale=cube", "mark=all", "channels=a", "channels=1,,2"):
            assert site.ask(f"/-/plane/wide?{query}").status == 400, query


def test_the_histogram_counts_numbers_and_leaves_out_fill_values_which_are_counted_apart(tmp_path: Path) -> None:
    values = np.repeat([0.0, 1.0, 2.0, np.nan], [50, 10, 20, 20]).reshape(10, 10)
    put(tmp_path / "image", values, (10, 10), (5, 5), fill_value=0.0)
    with served(tmp_path) as site:
        about = picture(site, "image?low=0&high=100")[1]
        histogram = about["bar"]["histogram"]
        assert len(histogram) == 48
        assert {at: count for at, count in enumerate(histogram) if count} == {24: 500, 47: 1000}
        assert "20 of 100 elements NaN or missing, shown as nothing" in about["notes"][0]
        assert "50 (50 %) have the fill value 0, not in the histogram" in about["notes"][0]


def test_missing_chunks_are_dotted_on_demand_and_damaged_ones_always_hatched(tmp_path: Path) -> None:
    document = array((64, 64), (64, 64), sharding((32, 32), LITTLE), data_type="uint8", fill_value=7)
    store(tmp_path / "image", document, RNG.integers(8, 99, (64, 64)).astype("uint8"), absent=[(0, 1)])
    with served(tmp_path) as site:
        plain, _ = picture(site, "image")
        assert plain.shape == (64, 64, 4)
        marked, _ = picture(site, "image?mark=missing")
        assert marked.shape == (256, 256, 4)
        dots = (marked == (120, 130, 140, 255)).all(axis=-1)
        assert dots[:128, 128:].mean() == pytest.approx(1 / 16)
        assert not dots[128:].any()
        assert not dots[:, :128].any()
        assert values_at(site, "image?row=3&column=40")["values"] == [["", "7 (not stored)"]]


def chunks_decoded(site: Served) -> int:
    return site.views.main.source.statistics.decoded_chunks


def test_a_profile_takes_the_chunks_along_its_axis_and_no_other(tmp_path: Path) -> None:
    values = climate(tmp_path)
    with served(tmp_path) as site:
        svg, about = plot(site, "tas?axis=0&row=4&column=20&i0=2")
        assert about["text"] == f"{NTIMES} values in K along time, from 3 chunks"
        assert chunks_decoded(site) == 3 + 3  # and three of coordinates
        ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", re.search(r'class="curve" d="([^"]*)"', svg)[1])]  # type: ignore[index]
        profile = values[:, 4, 20]
        assert len(ys) == NTIMES
        assert np.allclose(np.interp(ys, [ys[-1], ys[0]], [profile[-1], profile[0]]), profile, atol=0.02)
        assert "2020-03-01" in svg
        found = values_at(site, "tas?row=4&column=20")
        assert [(each["name"], each["chunks"], each["plane"]) for each in found["plots"]] == [
            ("time", 3, False), ("lat", 1, True), ("lon", 2, True),
        ]  # fmt: skip
        assert "plots" not in found or values_at(site, "tas?row=4&column=20&size=99")["plots"] == []


def test_an_array_of_one_axis_is_a_plot_with_gaps_and_of_many_elements_every_nth_is_shown(tmp_path: Path) -> None:
    values = np.sin(np.arange(5000) / 100)
    values[2000:2100] = np.nan
    put(tmp_path / "line", values, (5000,), (500,), fill_value=0.0)
    with served(tmp_path) as site:
        svg, about = plot(site, "line")
        assert about["text"] == "1,667 of 5,000 values along axis 0, from 10 chunks"
        curve = re.search(r'class="curve" d="([^"]*)"', svg)
        assert curve is not None
        assert curve[1].count("M") == 2
        _, about = plot(site, "line?left=100&right=200")
        assert about["text"] == "100 values along axis 0, from 1 chunk"
        assert values_at(site, "line?column=150")["values"] == [["", f"{values[150]:.6g}"]]


def test_a_plot_is_text_alone_whatever_names_and_units_contain(tmp_path: Path) -> None:
    evil = "</title></svg><script>alert(1)</script>\"'\x1b\u202e"
    put(tmp_path / "line", np.arange(5.0), (5,), (5,), fill_value=0.0, dimension_names=[evil],
        attributes={"units": evil, "long_name": evil})  # fmt: skip
    with served(tmp_path) as site:
        reply = site.ask("/-/plot/line")
        svg = reply.body.decode()
        assert set(re.findall(r"<(\w+)", svg)) <= {"svg", "title", "path", "text", "g", "circle"}
        assert "\x1b" not in svg
        assert "\u202e" not in svg
        assert reply["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert reply["X-Content-Type-Options"] == "nosniff"


def test_channels_are_added_in_their_colours_and_windows(tmp_path: Path) -> None:
    values = cells(tmp_path / "cells").astype(float)
    with served(tmp_path) as site:
        pixels, about = picture(site, "cells?size=64&i2=1")
        shares = np.clip(values[0, :2, 1] / 640, 0, 1)
        expected = np.zeros((64, 64, 3))
        expected[..., 0], expected[..., 1] = 255 * shares[0], 255 * shares[1]
        assert np.abs(pixels[..., :3] - expected).max() <= 1
        assert about["channels"] == [[0, "stain 0", "#ff0000", "0", "640"], [1, "stain 1", "#00ff00", "0", "640"]]
        pixels, about = picture(site, "cells?size=64&i2=1&channels=2,0")
        assert [channel[0] for channel in about["channels"]] == [2, 0]
        assert np.abs(pixels[..., 2] - 255 * np.clip(values[0, 2, 1] / 640, 0, 1)).max() <= 1
        about = picture(site, "cells?size=64&channels=0&low=0&high=50")[1]
        assert about["channels"][0][3:] == ["2", f"{np.percentile(values[0, 0, 2], 50):.6g}"]
        _, about = picture(site, "cells?size=64&channels=none&i1=1")
        assert "channels" not in about
        assert about["bar"]["colors"] == "gray"
        assert about["where"][1] == [1, "c", "stain 1", 1]
        assert (about["black"], about["white"]) == ("0", "640")  # its window
        assert picture(site, "cells?size=64&channels=none&low=0&high=100")[1]["black"] == "2"


def test_damage_is_said_to_be_in_the_channel_that_has_it(tmp_path: Path) -> None:
    cells(tmp_path / "cells")
    (tmp_path / "cells/0/c/0/1/0/0/0").write_bytes(b"no shard")
    age(tmp_path)
    with served(tmp_path) as site:
        about = picture(site, "cells?size=64")[1]
        assert about["damage"].startswith("stain 1: 16 chunks damaged, hatched: cells/0/c/0/1/")
        assert about["damage"].count("damaged") == 1
        assert picture(site, "cells?size=64&channels=0")[1]["damage"] == ""


def test_labels_are_shown_over_their_image_and_said_under_the_pointer(tmp_path: Path) -> None:
    cells(tmp_path / "cells")
    with served(tmp_path) as site:
        plain, _ = picture(site, "cells?size=64")
        over, about = picture(site, "cells?size=64&labels=nuclei")
        differs = (plain != over).any(axis=-1)
        assert differs[8:24, 8:24].all()
        assert differs[40:56, 40:56].all()
        assert differs.sum() == 2 * 16 * 16
        assert not about["notes"]
        half, _ = picture(site, "cells?size=32&labels=nuclei&channels=none")
        assert half.shape == (32, 32, 4)
        found = values_at(site, "cells?row=10&column=10&labels=nuclei")
        assert found["labels"] == [["nuclei", "1"]]
        about = picture(site, "cells?labels=../../x,nothing")[1]
        assert len(about["notes"]) == 2
        alone, _ = picture(site, "cells/labels/nuclei?size=64")
        assert (alone[..., 3] == np.where(differs, 255, 0)).all()


def test_an_axis_of_red_green_and_blue_makes_a_picture_in_colours(tmp_path: Path) -> None:
    tables(tmp_path)
    down, across = np.indices((32, 32))
    with served(tmp_path) as site:
        pixels, about = picture(site, "photo")
        assert (pixels[..., :3] == np.stack([down * 8, across * 8, 255 - down * 8], axis=-1)).all()
        assert [channel[1] for channel in about["channels"]] == ["red", "green", "blue"]
        assert about["notes"] == []  # above all no word on a histogram, which there is not
        assert site.views.main.source.statistics.decoded_chunks == 4  # each is read once


def test_times_have_round_ticks_on_a_colour_bar_and_a_plot(tmp_path: Path) -> None:
    days = np.arange(0, 800, 8.0).reshape(10, 10)
    since = {"units": "days since 2001-01-01"}
    put(tmp_path / "cf", days, (10, 10), (10, 10), fill_value=-1.0, attributes=since)
    put(tmp_path / "line", days.ravel(), (100,), (100,), fill_value=-1.0, attributes=since)
    stored = np.datetime64("2001-01-01", "s") + (days * 86400).astype("timedelta64[s]")
    put(tmp_path / "native", stored, (10, 10), (10, 10), extension("numpy.datetime64", unit="s", scale_factor=1),
        fill_value=0)  # fmt: skip
    with served(tmp_path) as site:
        for name in ("cf", "native"):
            about = picture(site, f"{name}?low=0&high=100")[1]
            assert [label for _, label in about["bar"]["ticks"]] == [
                "2001-01",
                "2001-07",
                "2002-01",
                "2002-07",
                "2003-01",
            ]
            assert about["bar"]["ticks"][1][0] == pytest.approx(181 / 792, abs=1e-3)
            assert values_at(site, f"{name}?row=1&column=0")["values"] == [["", "2001-03-22"]]
        assert "2002-01" in plot(site, "line")[0]


def test_a_plane_of_nan_says_so(tmp_path: Path) -> None:
    tables(tmp_path)
    with served(tmp_path) as site:
        pixels, about = picture(site, "nothing")
        assert not pixels[..., 3].any()
        assert (about["black"], about["white"]) == (None, None)
        assert about["notes"] == ["all of 64 elements NaN or missing, shown as nothing"]


def test_an_image_has_a_scale_bar_in_its_unit(tmp_path: Path) -> None:
    cells(tmp_path / "cells")
    with served(tmp_path) as site:
        about = picture(site, "cells?size=64")[1]
        assert about["scale"] == [pytest.approx(10 / 32), "10 µm"]
        assert [label for _, label in about["columns"]] == ["0 µm", "10 µm", "20 µm", "30 µm"]
        assert about["where"] == [[0, "t", "0 s", 0], [2, "z", "4 µm", 2]]
        about = picture(site, "cells?size=64&left=0&right=8&top=0&bottom=8")[1]
        assert about["scale"] == [0.5, "2 µm"] or about["scale"] == [0.25, "1 µm"]
        assert picture(site, "cells/1?size=32")[1]["where"][1] == [2, "z", "4 µm", 2]


HOSTILE: dict[str, dict[str, Any]] = {
    "attributes": {"units": ["x"], "calendar": 7, "scale_factor": "NaN", "add_offset": 1e999, "_FillValue": {"a": 1},
                   "missing_value": [None, 1e400, "?"], "long_name": 5, "standard_name": None},
    "long": {"units": "x" * 100_000, "long_name": "<b>" * 10_000},
    "integers": {"_FillValue": 10**401, "missing_value": [-(10**401), 10**200], "scale_factor": 10**401,
                 "add_offset": -(10**401)},
}  # fmt: skip


def test_attributes_that_mean_nothing_change_nothing(tmp_path: Path) -> None:
    values = RNG.integers(0, 99, (8, 8)).astype("int32")
    put(tmp_path / "plain", values, (8, 8), (4, 4))
    for name, attributes in HOSTILE.items():
        attributes = json.loads(json.dumps(attributes))
        put(tmp_path / name, values, (8, 8), (4, 4), attributes=attributes, dimension_names=["y", "x"])
        put(tmp_path / f"{name} of floats", values.astype("f8"), (8, 8), (4, 4), fill_value=0.0, attributes=attributes)
    put(
        tmp_path / "x",
        np.arange(8.0),
        (8,),
        (8,),
        fill_value=-1.0,
        attributes=HOSTILE["integers"],
        dimension_names=["x"],
    )
    bad = {"multiscales": [{"axes": "xy", "datasets": [{"path": "0", "coordinateTransformations": [
        {"type": "scale", "scale": ["a"]}, {"type": "scale", "scale": [0, 0]}, 7]}, {"path": 3}]}],
        "omero": {"channels": [{"label": 5, "color": "red", "window": {"start": "a"}}, None] * 100}}  # fmt: skip
    write_group(tmp_path / "image", {"ome": bad})
    put(tmp_path / "image/0", values, (8, 8), (4, 4), dimension_names=["y", "x"])
    age(tmp_path)
    with served(tmp_path) as site:
        expected, _ = picture(site, "plain?colors=gray")
        for name in (*HOSTILE, *(f"{name}%20of%20floats" for name in HOSTILE), "image"):
            pixels, _ = picture(site, f"{name}?colors=gray&channels=none")
            assert (pixels == expected).all(), name
            assert values_at(site, f"{name}?row=1&column=1")["values"][0][1].startswith(f"{values[1, 1]}")


def test_coordinates_that_cannot_be_used_leave_indices_and_say_why(tmp_path: Path) -> None:
    climate(tmp_path)
    (tmp_path / "lat/c/0").write_bytes(b"no shard")
    put(tmp_path / "lon", np.arange(7.0), (7,), (7,), fill_value=0.0, dimension_names=["lon"])  # not as long
    long = 2**18 + 1
    document = array(
        (long, 2), (long, 2), sharding((long, 2), LITTLE), data_type="uint8", dimension_names=["far", None]
    )
    store(tmp_path / "wide", document, absent=[(0, 0)])
    store(tmp_path / "far", array((long,), (long,), sharding((long,), LITTLE), data_type="uint8"), absent=[(0,)])
    age(tmp_path)
    with served(tmp_path) as site:
        about = picture(site, "tas")[1]
        assert [label for _, label in about["rows"]] == ["0", "5", "10", "15"]
        assert [label for _, label in about["columns"]] == ["0", "5", "10", "15", "20"]
        assert "no coordinates of lat: " in about["notes"][-1]
        about = picture(site, "wide?top=0&bottom=10")[1]
        assert "no coordinates of far: 262,145 of them" in about["notes"][-1]


def test_a_picture_changes_its_version_with_its_coordinates(tmp_path: Path) -> None:
    climate(tmp_path)

    def version() -> str | None:
        with served(tmp_path) as site:
            tag = site.ask("/-/plane/tas")["ETag"]
            assert site.ask("/-/plane/tas", If_None_Match=tag).status == 304
            return tag

    first = version()
    put(tmp_path / "lat", -LATITUDES, (100,), (100,), dimension_names=["lat"], fill_value=0.0)
    age(tmp_path)
    second = version()
    (tmp_path / "lat/zarr.json").unlink()
    age(tmp_path)
    assert len({first, second, version()}) == 3


def test_coordinates_may_be_texts_which_are_not_obeyed(tmp_path: Path) -> None:
    names = np.array(["Zürich", "\x1b[2J\u202eevil", "Oslo"], "U20")
    zarr.create_array(tmp_path / "station", data=names, chunks=(3,), shards=(3,), dimension_names=["station"])
    put(tmp_path / "wind", np.arange(12.0).reshape(3, 4), (3, 4), (3, 4), fill_value=-1.0,
        dimension_names=["station", None])  # fmt: skip
    large = extension("fixed_length_utf32", length_bytes=2**20)
    put(tmp_path / "big", np.zeros((20, 2)), (20, 2), (20, 2), fill_value=-1.0, dimension_names=["far", None])
    (tmp_path / "far").mkdir()
    (tmp_path / "far/zarr.json").write_text(
        json.dumps(array((20,), (1,), sharding((1,), LITTLE), data_type=large, fill_value="", dimension_names=["far"]))
    )
    age(tmp_path)
    with served(tmp_path) as site:
        about = picture(site, "wind")[1]
        assert [label for _, label in about["rows"]] == ["Zürich", "\\x1b[2J\\u202eevil", "Oslo"]
        assert values_at(site, "wind?row=2&column=1")["where"][0] == [0, "station", "Oslo", 2]
        assert "no coordinates of far" in picture(site, "big")[1]["notes"][-1]
        reply = site.ask("/far/", Accept="text/html")
        assert "No rows: an element has 1,048,576 bytes" in reply.body.decode()


@pytest.mark.slow
def test_the_first_picture_of_a_variable_in_a_bucket_takes_few_requests_and_waits_for_no_coordinates(
    climate_site: Served, s3_proxy: S3Proxy
) -> None:
    s3_proxy.latency = 0.05
    assert climate_site.ask("/-/plane/tas").status == 200
    keys = sorted(key.removeprefix("data.zarr/") for key in s3_proxy.log.keys("GetObject"))
    axes = [f"{name}/{part}" for name in ("time", "lat", "lon") for part in ("zarr.json", "c/0", "c/0")]
    assert keys == sorted(["tas/zarr.json", "tas/c/0/0/0", "tas/c/0/0/0", *axes])
    assert s3_proxy.log.max_in_flight("GetObject") > 2
    s3_proxy.log.clear()
    for query in ("i0=1", "i0=2&colors=magma"):
        assert climate_site.ask(f"/-/plane/tas?{query}").status == 200
    assert climate_site.ask("/-/values/tas?row=1&column=2&size=256").status == 200
    assert not s3_proxy.log.keys("GetObject")  # of the same chunks, which are decoded already
    assert climate_site.ask("/-/plot/tas?axis=0&row=1&column=2").status == 200
    assert len(s3_proxy.log.keys("GetObject")) == 4  # index and chunk of two shards more


@pytest.mark.slow
def test_a_picture_of_a_variable_deep_in_a_bucket_waits_for_five_replies_one_after_the_other(
    tmp_path: Path, in_bucket: Callable[[Path], str], s3_proxy: S3Proxy
) -> None:
    """They are names, documents, indexes, chunks, and the chunks of coordinates, whose documents come with indexes."""
    climate(tmp_path / "a/b")
    write_group(tmp_path)
    write_group(tmp_path / "a")
    age(tmp_path)
    with served(in_bucket(tmp_path), metadata_ttl=60.0) as site:
        s3_proxy.latency = 0.1
        s3_proxy.log.clear()
        _, about = picture(site, "a/b/tas")
        assert about["where"] == [[0, "time", "2020-02-28", 0]]
        assert len(s3_proxy.log.longest_row()) == 5, s3_proxy.log


@pytest.mark.slow
def test_a_page_in_a_bucket_reads_the_documents_that_its_picture_needs(climate_site: Served, s3_proxy: S3Proxy) -> None:
    """The picture then takes an index and a chunk of its array and of each coordinate, all at the same time."""
    assert climate_site.ask("/tas/", Accept="text/html").status == 200
    s3_proxy.log.clear()
    s3_proxy.latency = 0.05
    assert climate_site.ask("/-/plane/tas").status == 200
    keys = sorted(key.removeprefix("data.zarr/") for key in s3_proxy.log.keys("GetObject"))
    chunks = [f"{name}/c/0" for name in ("time", "lat", "lon")] * 2
    assert set(keys) <= {*chunks, "tas/c/0/0/0"}  # the map of the page may have read an index
    assert len(keys) <= 8
    assert s3_proxy.log.max_in_flight("GetObject") >= 3


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_longitudes_and_others_are_read_as_such(tmp_path: Path, axis: int) -> None:
    climate(tmp_path)
    with served(tmp_path) as site:
        names = ["time", "lat", "lon"]
        svg, about = plot(site, f"tas?axis={axis}")
        assert f"along {names[axis]}" in about["text"]
        assert {0: "2020-03-", 1: "°N", 2: "°E"}[axis] in svg
    assert LONGITUDES[0] == 0
