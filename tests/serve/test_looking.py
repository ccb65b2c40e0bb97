"""Pages as scientists use them, in a browser: pointer, finger and keyboard, links to the same picture, and axe-core."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.browser import Page, browsing, needs_chromium
from tests.support.datasets import age
from tests.support.images import put, write_group
from tests.support.looked_at import LATITUDES, cells, climate, tables
from tests.support.serving import Served, served

pytestmark = [needs_chromium, pytest.mark.client]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("looking") / "data.zarr"
    write_group(directory, {"title": "All of it"})
    climate(directory / "climate")
    cells(directory / "cells")
    tables(directory / "tables")
    put(directory / "line", np.sin(np.arange(300) / 20), (300,), (100,), fill_value=0.0)
    damaged = directory / "damaged"
    put(damaged, np.arange(64 * 64).reshape(64, 64).astype("uint16"), (32, 32), (16, 16))
    (damaged / "c/1/0").write_bytes(b"no shard")
    (damaged / "c/1/1").unlink()
    age(directory)
    with served(directory, metadata_ttl=60.0) as site:
        yield site


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


READY = (
    "(document.querySelector('#status')?.textContent ?? '') !== '' && document.querySelector('.is-waiting') === null"
)


def open_page(browser: Page, site: Served, path: str, width: int = 1280, *, dark: bool = False) -> None:
    """Open a page, and wait for its picture, if it has one."""
    browser.show(width, dark=dark)
    browser.problems.clear()
    browser.open(site.url + path)
    browser.until(f"document.querySelector('#picture form[aria-label]') === null || ({READY})")


def text(browser: Page, selector: str) -> str:
    found: str = browser.run(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


def ticks(browser: Page, side: str) -> list[str]:
    """The labels at an edge of the picture."""
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('.frame > .ticks.{side} span')].map(e => e.textContent)"
    )
    return found


def readout(browser: Page, part: str) -> str:
    """What is said of an element, as soon as that contains *part*."""
    browser.until(f"document.querySelector('#readout').textContent.includes({json.dumps(part)})")
    return text(browser, "#readout")


def test_a_picture_has_ticks_a_colour_bar_and_coordinates_on_its_sliders(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/?i0=2")
    assert text(browser, "output[for=i0]") == "2020-03-01 (2)"
    assert browser.run("document.querySelector('#i0').getAttribute('aria-valuetext')") == "2020-03-01 (2)"
    assert "60°N" in ticks(browser, "down")
    assert "180°E" in ticks(browser, "across")
    assert text(browser, ".legend .title") == "Air temperature [K]"
    browser.until("document.querySelector('.legend img.bar').naturalWidth > 0")
    assert browser.run("document.querySelectorAll('.legend .histogram rect').length") == 48
    assert "north is up" in text(browser, "#status")
    places = browser.run(
        "(([a, b]) => [a.getBoundingClientRect().top, b.getBoundingClientRect().top])"
        "([...document.querySelectorAll('.ticks.down span')].filter(e => ['60°N', '60°S'].includes(e.textContent))"
        ".sort((a, b) => a.textContent < b.textContent ? -1 : 1))"
    )
    assert places[0] < places[1]  # north is above south
    assert not browser.problems


def test_an_index_may_be_typed(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/")
    browser.run(
        "(e => { e.value = '2'; e.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('.index'))"
    )
    browser.until("document.querySelector('output[for=i0]').value === '2020-03-01 (2)'")
    assert browser.run("[document.querySelector('#i0').value, location.search]") == ["2", "?i0=2"]
    browser.run("document.querySelector('#i0').focus()")
    browser.press("ArrowRight")
    browser.until("document.querySelector('output[for=i0]').value === '2020-03-02 (3)'")
    assert browser.run("document.querySelector('.index').value") == "3"
    assert not browser.problems


def test_the_value_under_the_pointer_is_said_with_its_coordinates(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/")
    values = {row: 280 + LATITUDES[row] / 10 + np.cos(np.deg2rad(180)) for row in (16, 1)}
    browser.point(".view", 12.5 / 24, 0.5 / 17)
    assert readout(browser, "80°N").startswith(f"{np.float32(values[16]):.6g} K  at  time 2020-02-28")
    browser.point(".view", 12.5 / 24, 15.5 / 17)
    assert readout(browser, "70°S").startswith(f"{np.float32(values[1]):.6g} K")
    browser.point("h1", 0.5, 0.5)
    browser.until("document.querySelector('#readout').textContent.startsWith('Point at it')")
    assert not browser.problems


def plots(browser: Page) -> list[str]:
    found: list[str] = browser.run("[...document.querySelectorAll('#plots figcaption')].map(e => e.textContent)")
    return found


def test_a_click_marks_an_element_and_draws_the_values_along_other_axes(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/")
    browser.click(".view", 20.5 / 24, 3.5 / 17)
    assert "lat 50°N (13), lon 300°E (20)" in readout(browser, "lon 300°E")
    browser.until("document.querySelector('#plots svg.plot') !== null")
    assert plots(browser) == [
        "30 values in K along time, from 3 chunks",
        "Draw the values along lat (1 chunk)",
        "Draw the values along lon (2 chunks)",
    ]
    assert browser.run("location.search") == "?row=13&column=20"
    assert browser.run("document.querySelector('#plots .plot .mark') !== null")
    browser.click("#plots figure:nth-of-type(3) button")
    browser.until("document.querySelectorAll('#plots svg.plot').length === 2")
    assert plots(browser)[2] == "24 values in K along lon, from 2 chunks"
    browser.point(".view", 0.1, 0.9)
    assert "lon 300°E" not in readout(browser, "lat 70°S")
    asked = browser.run("performance.getEntriesByType('resource').length")
    browser.point("h1", 0.5, 0.5)  # what was marked is known already
    readout(browser, "lat 50°N (13), lon 300°E (20)")
    assert browser.run("performance.getEntriesByType('resource').length") == asked

    open_page(browser, site, "/climate/tas/?row=13&column=20")  # as a colleague sees it
    readout(browser, "lon 300°E")
    browser.until("document.querySelector('#plots svg.plot') !== null")
    assert not browser.run("document.querySelector('.mark').hidden")
    assert not browser.problems


def test_a_finger_marks_an_element_too(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/", 390)
    browser.tap(".view", 0.5 / 24, 16.5 / 17)
    assert "lat 80°S (0), lon 0° (0)" in readout(browser, "lon 0°")
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert not browser.problems


def test_an_element_is_marked_and_a_part_chosen_by_keyboard_alone(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/")
    browser.run("document.querySelector('.view').focus()")
    browser.press("m")
    readout(browser, "lat 0° (8), lon 180°E (12)")
    browser.press("ArrowUp", "ArrowRight", shift=True)
    readout(browser, "lat 10°N (9), lon 195°E (13)")
    browser.press("+")
    browser.until(f"document.querySelector('#status').textContent.startsWith('9 × 12 ') && {READY}")
    browser.press("ArrowUp")  # to the north
    browser.until("location.search.includes('top=7') && location.search.includes('bottom=16')")
    browser.press("Escape")
    browser.until("!location.search.includes('column=')")
    assert plots(browser) == []
    browser.press("0")
    browser.until("location.search === ''")
    assert not browser.problems


def test_a_double_click_zooms_in_there(browser: Page, site: Served) -> None:
    open_page(browser, site, "/cells/")
    browser.click(".view", 0.26, 0.26, count=2)
    browser.until("location.search.includes('top=1') && location.search.includes('bottom=33')")
    browser.until(f"document.querySelector('#status').textContent.startsWith('32 × 32 ') && {READY}")
    assert not browser.problems


def test_colours_range_and_scale_are_chosen_and_kept_in_the_address_alone_if_they_are_not_usual(
    browser: Page, site: Served
) -> None:
    open_page(browser, site, "/climate/tas/")
    assert browser.run("location.search") == ""
    for selector, value in (("#colors", "magma"), ("#min", "270"), ("#scale", "log")):
        before = browser.run("document.querySelector('.view img').src")
        browser.run(
            f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
            f"(document.querySelector('{selector}'))"
        )
        browser.until(f"document.querySelector('.view img').src !== '{before}' && {READY}")
    assert browser.run("location.search") == "?colors=magma&scale=log&min=270"
    assert browser.run("document.querySelector('.legend img.bar').src").endswith("/-/bar/magma.png")
    assert browser.run("document.querySelector('.legend img.bar').alt").startswith("Colours from 270 to ")
    href = browser.run("document.querySelector('#file').href")
    assert site.ask(href.removeprefix(site.url)).status == 200
    before = browser.run("document.querySelector('.view img').src")
    open_page(browser, site, "/climate/tas/?colors=magma&scale=log&min=270")
    shown = browser.run("['colors', 'scale', 'min', 'low'].map(name => document.querySelector('form')[name].value)")
    assert shown == ["magma", "log", "270", ""]
    browser.click("#reset")
    browser.until(f"location.search === '' && {READY}")
    assert not browser.problems


def boxes(browser: Page, name: str) -> list[Any]:
    found: list[Any] = browser.run(
        f"[...document.querySelectorAll('input[type=checkbox][name={name}]')]"
        ".map(e => [e.parentElement.textContent, e.checked])"
    )
    return found


def test_channels_and_labels_are_switched_on_and_off(browser: Page, site: Served) -> None:
    open_page(browser, site, "/cells/")
    assert boxes(browser, "channels") == [["stain 0", True], ["stain 1", True], ["stain 2", False]]
    assert boxes(browser, "labels") == [["nuclei", False]]
    legend = "[...document.querySelectorAll('.legend .channel')].map(e => e.textContent)"
    assert browser.run(legend) == ["stain 0: 0 to 640", "stain 1: 0 to 640"]
    assert browser.run("document.querySelector('#i1').closest('.field').hidden")
    browser.click("input[name=channels][value='2']")
    browser.until(f"{legend}.length === 3")
    assert browser.run("location.search") == "?channels=0%2C1%2C2"
    browser.click("input[name=labels]")
    browser.until(f"location.search.includes('labels=nuclei') && {READY}")
    browser.point(".view", 10.5 / 64, 9.5 / 64)
    assert "stain 2: 192, nuclei: 1  at  " in readout(browser, "nuclei")
    for number in range(3):
        browser.click(f"input[name=channels][value='{number}']")
    browser.until("document.querySelector('.legend img.bar') !== null")
    assert browser.run("location.search") == "?channels=none&labels=nuclei"
    assert not browser.run("document.querySelector('#i1').closest('.field').hidden")
    assert text(browser, ".scale") == "10 µm"
    assert not browser.problems


def test_an_array_of_one_axis_is_a_plot_with_values_under_the_pointer(browser: Page, site: Served) -> None:
    open_page(browser, site, "/line/")
    assert text(browser, "#status") == "300 values along axis 0, from 3 chunks"
    left, right = 86 / 760, 1 - 14 / 760
    width = browser.run("Number(document.querySelector('.view svg').getAttribute('viewBox').split(' ')[2])")
    left, right = 86 / width, 1 - 14 / width
    browser.point(".view svg", left + (right - left) * 120.5 / 300, 0.5)
    assert readout(browser, "axis 0 120").startswith(f"{np.sin(6):.6g}")
    browser.run("document.querySelector('.view').focus()")
    browser.press("+")
    browser.until(f"document.querySelector('#status').textContent.startsWith('150 values') && {READY}")
    assert browser.run("location.search") == "?left=75&right=225"
    assert not browser.problems


def test_damage_is_hatched_and_missing_chunks_are_marked_by_a_box(browser: Page, site: Served) -> None:
    open_page(browser, site, "/damaged/")
    assert "4 chunks damaged, hatched: damaged/c/1/0" in text(browser, "#status")
    assert "damaged" in text(browser, "#status .problem")
    assert not browser.run("document.querySelector('.view img').hidden")
    before = browser.run("document.querySelector('.view img').src")
    browser.click("input[name=mark]")
    browser.until(f"document.querySelector('.view img').src !== '{before}' && {READY}")
    assert browser.run("location.search") == "?mark=missing"
    browser.point(".view", 0.1, 0.9)
    readout(browser, "damaged  at  ")
    assert not browser.problems


def test_the_page_of_a_dataset_fills_in_what_is_stored(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/")
    browser.until("document.querySelector('[data-child=tas] [data-fact=shards]').textContent === '3 of 3'")
    assert text(browser, "[data-child=time] [data-fact=range]") == "2020-02-28 … 2020-03-28"
    browser.until("document.querySelector('img.thumbnail').naturalWidth > 0")
    browser.click("a[href='./tas/']")
    browser.until("location.pathname === '/climate/tas/'")
    assert not browser.problems


def test_a_line_for_a_program_is_copied_by_a_button(browser: Page, site: Served) -> None:
    open_page(browser, site, "/climate/tas/")
    assert not browser.run("document.querySelector('#viewers details').open")
    browser.click(".kind a")  # which is in sight at once
    assert browser.run("document.querySelector('#viewers details').open")
    line = browser.run("document.querySelector('#viewers dd code').textContent")
    assert browser.run("document.querySelectorAll('#viewers button.copy:not([hidden])').length") == browser.run(
        "document.querySelectorAll('#viewers dd').length"
    )
    browser.run(
        "globalThis.copied = ''; document.addEventListener('copy', () => { copied = getSelection().toString(); });"
        "navigator.clipboard.writeText = async (text) => { copied = text; }"
    )
    browser.click("#viewers dd button.copy")
    browser.until(f"copied === {json.dumps(line)}")
    browser.until("document.querySelector('#viewers dd button.copy').textContent === 'Copied'")
    assert not browser.problems


def test_a_page_of_an_error_leads_back(browser: Page, site: Served) -> None:
    browser.show(390)
    browser.open(f"{site.url}/climate/nowhere")
    assert text(browser, "h1") == "404 Not Found"
    browser.click("#ways a")
    browser.until("document.querySelector('h1')?.textContent === 'climate'")


@pytest.mark.parametrize("path", ["/tables/names/", "/climate/tas/?i0=2"])
def test_pages_work_without_scripts(browser: Page, site: Served, path: str) -> None:
    browser.show(390)
    browser.problems.clear()
    browser.open(site.url + path, scripts=False)
    assert browser.run("document.documentElement.scrollWidth") == 390
    if "tas" in path:
        assert browser.run("document.querySelector('noscript img').naturalWidth") == 24
        assert browser.run("document.querySelector('#i0').value") == "2"
    else:
        assert browser.run("document.querySelectorAll('.rows tbody tr').length") == 50
    assert not browser.problems


PATHS = (
    "/", "/climate/", "/climate/tas/?row=3&column=4", "/cells/?labels=nuclei", "/tables/names/", "/tables/answer/",
    "/line/",    "/damaged/", "/climate/nowhere", "/tables/photo/", "/tables/nothing/",
)  # fmt: skip
AXE = Path(sys.prefix, "clients/axe/package/axe.min.js")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_axe_finds_nothing_on_pages_that_fit_the_window(browser: Page, site: Served, width: int, dark: bool) -> None:
    if not AXE.exists():
        pytest.skip(f"no axe-core in {AXE}: scripts/test installs it")
    script = AXE.read_text(encoding="utf-8")
    for path in PATHS:
        open_page(browser, site, path, width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") == width, path
        for details in ("viewers", "attributes", "picture"):
            browser.run(f"document.querySelectorAll('#{details} details').forEach(e => {{ e.open = true; }})")
        if "row=" in path:
            browser.until("document.querySelector('#plots svg.plot') !== null")
        browser.run(script)
        found = browser.run(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(each =>"
            " `${each.id}: ${each.nodes.map(node => node.html + ' ' + node.failureSummary).join(' | ')}`))"
        )
        assert found == [], path
