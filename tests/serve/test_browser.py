"""Pages in a browser: sizes, colours, keyboard, and that nothing but ours is loaded or run."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.browser import Page, browsing, needs_chromium
from tests.support.corpus import array, sharding
from tests.support.datasets import age, store
from tests.support.images import image, put, write_group
from tests.support.serving import Served, served

pytestmark = [needs_chromium, pytest.mark.client]

EVIL = '</title></pre></script><script>document.title="evil"</script><img src=x onerror=\'document.title="evil"\'>"\''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("pages") / "data.zarr"
    write_group(directory)
    image(directory / "cells", 64, 32)
    names = ["channel", "z", "y", "x"]
    values = np.random.default_rng(3).integers(0, 99, (2, 6, 40, 50)).astype("uint16")
    put(directory / "volume", values, (2, 6, 40, 50), (1, 1, 8, 10), dimension_names=names)
    put(directory / "wide", np.arange(600.0).reshape(2, 300), (2, 30), (1, 10), fill_value=0.0)
    evil = EVIL.replace("/", "\u2215")
    (directory / evil).mkdir()
    (directory / evil / f"{evil}.txt").touch()
    document = array((4, 4, 4), (4, 4, 4), sharding((2, 2, 2)), dimension_names=[EVIL] * 3, attributes={EVIL: EVIL})
    store(directory / "evil" / evil, document)
    (directory / "text").mkdir()
    (directory / "text/zarr.json").write_text(json.dumps(array((4,), (4,), sharding((2,)), data_type="string")))
    age(directory)
    with served(directory, metadata_ttl=60.0) as site:
        yield site


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


def open_page(browser: Page, site: Served, path: str) -> None:
    """Open a page, and wait for its picture, if it has one."""
    browser.problems.clear()
    browser.open(site.url + path)
    browser.until(
        "document.querySelector('#status')?.textContent !== '' && document.querySelector('.is-waiting') === null"
    )


def status(browser: Page) -> str:
    """What is said of the picture."""
    text: str = browser.run("document.querySelector('#status').textContent")
    return text


PAGES = ("/", "/cells/", "/volume/", "/wide/", "/text/", "/volume/c/0/", "/-/npy/")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1600])
def test_pages_fit_the_window_in_light_and_in_dark(browser: Page, site: Served, width: int, dark: bool) -> None:
    browser.show(width, dark=dark)
    for path in PAGES:
        open_page(browser, site, path)
        assert browser.run("document.documentElement.scrollWidth") == width, path
        color = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, color.strip("rgb()").split(","))) < 150) is dark
        cut = browser.run(
            "[...document.querySelectorAll('button, input, select, output, a, h1, td, figcaption, img')]"
            ".filter(e => e.getClientRects().length && e.closest('.scroll') === null)"
            ".filter(e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth; })"
            ".map(e => e.outerHTML)"
        )
        assert not cut, path
        assert not browser.problems, path


def contrast(one: str, other: str) -> float:
    """The ratio of contrast of two colours, as WCAG defines it."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.strip("rgb()").split(",")]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_legible(browser: Page, site: Served, dark: bool) -> None:
    browser.show(1600, dark=dark)
    open_page(browser, site, "/volume/")
    page = browser.run("getComputedStyle(document.body).backgroundColor")
    for selector in ("h1", ".kind", "figcaption", "#facts th", "#facts td", "#names a", "footer"):
        color = browser.run(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert contrast(color, page) >= 4.5, selector


def test_a_picture_is_chosen_by_keyboard_alone(browser: Page, site: Served) -> None:
    browser.show(1600)
    open_page(browser, site, "/volume/")
    order = []
    for _ in range(60):
        browser.press("Tab")
        name = browser.run(
            "(e => e.id || e.dataset.do || (e.className === 'view' ? 'view' : e.tagName))(document.activeElement)"
        )
        style = browser.run(
            "(s => [s.outlineStyle, parseFloat(s.outlineWidth)])(getComputedStyle(document.activeElement))"
        )
        if name == "BODY":
            break
        assert style[0] != "none", name
        assert style[1] >= 2, name
        order.append(name)
    expected = [
        "view",
        "in",
        "out",
        "all",
        "left",
        "right",
        "up",
        "down",
        "i0",
        "i1",
        "rows",
        "columns",
        "colors",
        "low",
    ]
    assert [name for name in order if name in expected] == expected
    unlabelled = browser.run(
        "[...document.querySelectorAll('input:not([type=hidden]), select, button, [tabindex]')]"
        ".filter(e => !e.labels?.length && !e.ariaLabel && !e.textContent.trim() && e.closest('noscript') === null)"
        ".map(e => e.outerHTML)"
    )
    assert unlabelled == []

    browser.run("document.querySelector('#i1').focus()")
    before = browser.run("document.querySelector('.view img').src")
    browser.press("ArrowRight")
    browser.until(f"document.querySelector('.view img').src !== {json.dumps(before)}")
    assert browser.run("document.querySelector('#i1').value") == "4"
    assert browser.run("document.querySelector('output[for=i1]').value") == "4"
    assert browser.run("new URLSearchParams(location.search).get('i1')") == "4"

    browser.run("document.querySelector('.view').focus()")
    browser.press("+")
    browser.until("document.querySelector('#status').textContent.startsWith('20 × 25 of volume')")
    browser.press("ArrowDown", "ArrowRight")
    browser.until("location.search.includes('top=15') && location.search.includes('left=19')")
    browser.press("-")
    browser.until("document.querySelector('#status').textContent.startsWith('40 × 50 of volume')")
    browser.press("+", "+", "0")
    browser.until("document.querySelector('#status').textContent.startsWith('40 × 50 of volume')")
    assert not browser.problems


def test_other_axes_can_be_chosen(browser: Page, site: Served) -> None:
    browser.show(1600)
    open_page(browser, site, "/volume/?i0=1")
    browser.run("document.querySelector('#rows').focus()")
    browser.press("ArrowUp")
    browser.until("document.querySelector('#i2') !== null && document.querySelector('#status').textContent !== ''")
    assert status(browser).startswith("6 × 50 of volume")
    assert browser.run("document.querySelector('#i0').value") == "1"
    assert browser.run("document.querySelector('#i1')") is None


def test_an_address_shows_the_same_picture_again(browser: Page, site: Served) -> None:
    browser.show(1600)
    open_page(browser, site, "/volume/?i0=1&i1=5&top=8&bottom=16&left=10&right=30&low=5&high=50")
    assert status(browser).startswith("8 × 20 of volume")
    assert browser.run("document.querySelector('#i1').value") == "5"
    assert browser.run("document.querySelector('#high').value") == "50"
    open_page(browser, site, "/volume/?i0=7")
    assert status(browser).startswith("40 × 50 of volume")


def test_a_picture_that_is_refused_says_why(browser: Page, site: Served) -> None:
    browser.show(1600)
    open_page(browser, site, "/volume/")
    browser.run("document.querySelector('#low').value = 99.5")
    browser.run("document.querySelector('#low').dispatchEvent(new Event('input', {bubbles: true}))")
    browser.until("document.querySelector('#status').textContent === 'low is more than high\\n'")
    assert browser.run("document.querySelector('.view img').hidden")


def test_without_scripts_a_form_shows_the_picture(browser: Page, site: Served) -> None:
    browser.show(360)
    browser.problems.clear()
    browser.open(f"{site.url}/volume/?i1=2", scripts=False)
    assert browser.run("document.querySelector('noscript img').naturalWidth") == 50
    assert browser.run("document.querySelector('noscript button').textContent") == "Show"
    assert browser.run("document.documentElement.scrollWidth") == 360
    assert not browser.problems


def test_hostile_names_neither_run_nor_load_anything(browser: Page, site: Served) -> None:
    browser.show(1600)
    for path in ("/", "/evil/"):
        open_page(browser, site, path)
        link = browser.run("[...document.querySelectorAll('#names a')].find(a => a.textContent.startsWith('<')).href")
        open_page(browser, site, link.removeprefix(site.url))
        assert browser.run("document.querySelector('h1').textContent").endswith("\"'")
        assert "evil" in browser.run("document.title")
        assert browser.run("document.title") != "evil"
        assert browser.run("document.scripts.length") == 1
        assert browser.run("document.querySelector('img[src=x]')") is None
        assert not browser.problems
    hosts = browser.run("performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)")
    assert hosts
    assert {host for host in hosts if host} == {site.url.removeprefix("http://")}


def test_a_browser_asks_its_user_for_the_token_once(site: Served, tmp_path: Path) -> None:
    directory = Path(site.views.main.fs.store.root or "")
    with served(directory, token="a-token-of-some-length") as closed, browsing(tmp_path / "profile") as page:
        page.type_when_asked("a-token-of-some-length")
        open_page(page, closed, "/volume/")
        assert status(page).startswith("40 × 50 of volume")
        assert page.run("document.querySelector('.view img').naturalWidth") == 50
        assert page.run("getComputedStyle(document.querySelector('.view')).position") == "relative"
        open_page(page, closed, "/cells/?i0=1")
        assert status(page).startswith("64 × 64 of cells")
        assert page.nasked == 1
        assert not [problem for problem in page.problems if "401" not in problem]


def test_screenshots(browser: Page, site: Served, tmp_path: Path) -> None:
    browser.show(360)
    open_page(browser, site, "/cells/")
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"
