"""Pages of directories: what they say, that names cannot harm them, and who gets them."""

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np
import pytest
import zarr

import shardfs.serve.pages.page as page_module
from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import age, store
from tests.support.images import image, put, write_group
from tests.support.s3_proxy import S3Proxy
from tests.support.serving import Reply, Served, served

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    write_group(directory)
    image(directory / "cells", 64, 32)
    put(directory / "volume", np.zeros((4, 8, 8), "float32"), (4, 8, 8), (2, 4, 4), attributes={"unit": "µm <b>"})
    (directory / "notes.txt").write_text("some notes")
    (directory / "broken").mkdir()
    (directory / "broken/zarr.json").write_text("{")
    age(directory)
    return directory


def page(site: Served, target: str) -> str:
    """The HTML of a page."""
    reply = site.ask(target, Accept=HTML)
    assert (reply.status, reply["Content-Type"]) == (200, "text/html; charset=utf-8"), reply.body
    return reply.body.decode()


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Kinds and sizes in the table of names."""
    found = re.findall(r'<tr><td><a href="[^"]*">([^<]*)</a></td><td>([^<]*)</td><td[^>]*>([^<]*)</td>', text)
    return {name: (kind, size) for name, kind, size in found}


def test_a_directory_is_a_page_for_people_and_json_for_programs(site: Served) -> None:
    for accept, kind in (
        (HTML, "text/html; charset=utf-8"),
        ("text/html", "text/html; charset=utf-8"),
        ("TEXT/HTML;q=0.5, application/json;q=0.4", "text/html; charset=utf-8"),
        ("application/json", "application/json"),
        ("text/html;q=0.4, application/json", "application/json"),
        ("text/html;q=0", "application/json"),
        ("text/html;q=many", "application/json"),
        ("*/*", "application/json"),
        (";;,", "application/json"),
    ):
        reply = site.ask("/", Accept=accept)
        assert (reply.status, reply["Content-Type"]) == (200, kind), accept
        assert "Accept" in reply["Vary"]
    assert site.ask("/")["Content-Type"] == "application/json"
    assert site.ask("/zarr.json", Accept=HTML)["Content-Type"] == "application/json"
    assert site.ask("/notes.txt", Accept=HTML)["Content-Type"] == "text/plain; charset=utf-8"
    head = site.ask("/", "HEAD", Accept=HTML)
    assert (head.status, head.body, head["Content-Type"]) == (200, b"", "text/html; charset=utf-8")


def test_a_page_lists_names_sizes_and_kinds(site: Served) -> None:
    assert rows(page(site, "/")) == {
        "cells/": ("image, OME-Zarr", ""),
        "volume/": ("array, float32, 4 × 8 × 8", ""),
        "broken/": ("broken", ""),
        "notes.txt": ("file", "10 B"),
        "zarr.json": ("file", rows(page(site, "/"))["zarr.json"][1]),
    }
    assert rows(page(site, "/cells/"))["1/"] == ("array, uint16, 32 × 32", "")
    assert rows(page(site, "/volume/c/0/"))["../"[:2]] == ("directory", "")
    assert "image.npy" not in rows(page(site, "/-/npy/"))
    assert rows(page(site, "/-/npy/"))["volume.npy"][0] == "file"


def test_the_page_of_an_array_says_what_info_says_and_has_its_map(site: Served, source: Path) -> None:
    text = page(site, "/volume/")
    for name, value in (
        ("shape", "4 × 8 × 8"), ("data type", "float32"), ("chunk shape", "2 × 4 × 4"), ("shard shape", "4 × 8 × 8"),
        ("unit", "µm &lt;b&gt;"), ("plain size", "1.0 KiB"), ("codecs", "bytes, zstd"), ("shards", "1 of 1"),
        ("plain, of what is stored", "1.0 KiB"),
    ):  # fmt: skip
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in text
    nbytes = (source / "volume/c/0/0/0").stat().st_size
    assert f'<tr><th scope="row">ratio</th><td>{1024 / nbytes:.2f}</td></tr>' in text
    assert "--" not in re.sub(r"<section id=.viewers.*?</section>", "", text, flags=re.DOTALL)
    assert "1 of 1 shard stored, 1 full" in text
    assert '<rect class="full"' in text
    assert 'data-source="../-/plane/volume"' in text
    assert page(site, "/-/decoded/v3/volume/").count('data-source="../../../../-/plane/volume"') == 1
    broken = page(site, "/broken/")
    assert '<p class="problem">' in broken


def test_a_dataset_with_the_name_of_a_view_is_at_its_own_url(site: Served, source: Path) -> None:
    for name in ("v2", "v3", "npy", "decoded", "-"):
        image(source / name, 16)
    age(source)
    links = dict(re.findall(r'<td><a href="(\./[^"]*)">([^<]*)</a></td>', page(site, "/")))
    for name in ("v2", "v3", "npy", "decoded"):
        assert links[f"./{name}/"] == f"{name}/"
        assert '<p class="kind">image, OME-Zarr · ' in page(site, f"/{name}/")
        assert site.ask(f"/{name}/0/zarr.json").body == site.ask(f"/-/v3/{name}/0/zarr.json").body != b""
    assert links["./-/v3/-/"] == "-/"
    assert site.ask("/-/v3/-/0/zarr.json").status == 200


def test_links_between_views_lead_to_what_they_show(site: Served, source: Path) -> None:
    zarr.create_array(source / "words", shape=(4,), chunks=(2,), shards=(4,), dtype=str)
    age(source)
    views = {
        "/": {"v3", "v2", "decoded/v3", "npy"},
        "/-/v2/cells/": {"v3", "v2", "decoded/v3", "npy"},
        "/volume/": {"v3", "v2", "decoded/v3", "npy"},
        "/volume/c/0/": {"v3", "decoded/v3"},
        "/-/decoded/v3/volume/": {"v3", "v2", "decoded/v3", "npy"},
        "/words/": {"v3", "v2"},
    }
    for target, shown in views.items():
        foot = page(site, target).partition("<footer>")[2]
        links = {name: url for url, name in re.findall(r'<a href="([^"]*)">([^<]*)</a>', foot)}
        assert links.keys() == shown, target
        for name, url in links.items():
            assert site.ask(urljoin(target, url)).status == 200, (target, name)
    assert "../-/npy/volume.npy" in page(site, "/volume/")


def test_a_page_says_why_there_is_no_picture(site: Served, source: Path) -> None:
    (source / "cells/0/zarr.json").write_text(json.dumps(array((0,), (1,), sharding((1,)))))
    age(source)
    assert "No picture: the array has no elements" in page(site, "/cells/0/")


def test_an_image_is_opened_by_viewers_with_its_labels(site: Served, source: Path) -> None:
    image(source / "cells/labels/nuclei", 64)
    write_group(source / "cells/labels", {"ome": {"version": "0.5", "labels": ["nuclei", "../../x", 7]}})
    age(source)
    text = page(site, "/cells/")
    found = dict(re.findall(r'<li><a href="([^"]*)"[^>]*>([^<]*)</a></li>', text))
    links = {name: html.unescape(url) for url, name in found.items()}
    assert set(links) == {"neuroglancer", "vizarr", "OME-NGFF validator"}
    state = json.loads(unquote(urlsplit(links["neuroglancer"]).fragment.removeprefix("!")))
    assert [(layer["type"], layer["source"]) for layer in state["layers"]] == [
        ("image", "zarr3://http://localhost/-/v3/cells"),
        ("segmentation", "zarr3://http://localhost/-/v3/cells/labels/nuclei"),
    ]
    assert unquote(urlsplit(links["vizarr"]).query) == "source=http://localhost/-/v2/cells"
    behind = site.ask("/cells/", Accept=HTML, Host="127.0.0.1:99", X_Forwarded_Proto="https").body.decode()
    assert "https%3A%2F%2F127.0.0.1%3A99%2F-%2Fv3%2Fcells" in behind


def test_an_address_without_a_slash_leads_to_the_one_that_links_are_relative_to(site: Served) -> None:
    for target, there in (
        ("/cells", "/cells/"), ("/-/v3", "/-/v3/"), ("/-/v2/cells?i0=3", "/-/v2/cells/?i0=3"),
        ("/cells/0?x=%22", "/cells/0/?x=%22"),
    ):  # fmt: skip
        reply = site.ask(target, Accept=HTML)
        assert reply.status == 308
        assert urljoin(f"http://localhost{target}", reply["Location"]) == f"http://localhost{there}"
        assert site.ask(target)["Content-Type"] == "application/json"


TAGS = "html head meta title link script body nav a main h1 p section h2 details summary div table thead tr th tbody"
TAGS += " td footer"

NAMES = [
    "<script>document.title=1<∕script>", '"onmouseover="alert(1)', "a'b", "a&amp;b", "a?b#c", "100%41",
    "javascript:alert(1)",    "a b\tc", "line\nfeed", "-", "v3", "\u202egpj",
    "\\\\host", "é", os.fsdecode(b"\xff\xfe"), "{{7*7}}", "..x",
]  # fmt: skip


def test_every_name_is_escaped_and_every_link_leads_to_its_file(tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_text(f"file {number}")
    (tmp_path / "dir").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / "dir" / name).mkdir()
        (tmp_path / "dir" / name / "file").write_text(f"below {number}")
    age(tmp_path)
    with served(tmp_path) as site:
        for base, what in (("/-/v3/", "file {}"), ("/-/v3/dir/", "below {}")):
            text = page(site, base)
            assert set(re.findall(r"<(\w+)", text)) <= set(TAGS.split())
            assert text.count("<script") == 1
            assert not re.search(r"<[^>]*\son\w+=", text)
            links = [html.unescape(href) for href in re.findall(r'<tr><td><a href="([^"]*)"', text)]
            links = [href for href in links if href not in ("../", "./dir/")]
            bodies = set()
            for href in links:
                target = urlsplit(urljoin(f"http://localhost{base}", href))
                assert target.netloc == "localhost"
                path = target.path if base == "/-/v3/" else f"{target.path}file"
                bodies.add(site.ask(path).body.decode())
            assert bodies == {what.format(number) for number in range(len(NAMES))}


def test_names_inside_documents_are_escaped(tmp_path: Path) -> None:
    evil = '</pre></script><script>document.title="evil"</script>"\'><img src=x onerror=alert(1)>\x1b\u202e'
    directory = tmp_path / "image"
    document = array(
        (4, 4, 4), (4, 4, 4), sharding((2, 2, 2)), dimension_names=[evil, evil, None], attributes={evil: evil}
    )
    store(directory, document)
    with served(tmp_path) as site:
        text = page(site, f"/image/?i0=0&top=1&x={'%22%3E%3Cscript%3E'}")
        assert text.count("<script") == 1
        assert "<img src=x" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.count(html.escape("</pre></script><script>")) >= 4


def policy(reply: Reply) -> dict[str, str]:
    """The rules of a page, by what they are for."""
    rules = (rule.strip().partition(" ") for rule in reply["Content-Security-Policy"].split(";"))
    return {name: value for name, _, value in rules}


def test_a_page_may_load_what_is_ours_and_nothing_else(site: Served) -> None:
    first, second = (site.ask("/volume/", Accept=HTML) for _ in range(2))
    rules = policy(first)
    nonce = rules.pop("script-src")
    assert rules.pop("style-src") == nonce != policy(second)["script-src"]
    assert re.fullmatch(r"'nonce-[\w-]{20,}'", nonce)
    assert rules == {
        "default-src": "'none'", "img-src": "'self' blob:", "connect-src": "'self'", "form-action": "'self'",
        "base-uri": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    text = first.body.decode()
    assert text.count(f'nonce="{nonce[7:-1]}"') == text.count("<script") + text.count('rel="stylesheet"') == 2
    loaded = re.findall(r'(?:src|<link[^>]* href)="([^"]*)"', text)
    assert all(not urlsplit(url).netloc and url.startswith("../-/") for url in loaded)
    for name in ("page.css", "page.js", "icon.svg"):
        reply = site.ask(f"/-/{name}")
        assert (reply.status, reply["X-Content-Type-Options"]) == (200, "nosniff")
        assert b"//" not in reply.body.replace(b"http://www.w3.org/2000/svg", b"") or name == "page.js"
        assert site.ask(f"/-/{name}", If_None_Match=reply["ETag"]).status == 304


@pytest.mark.slow
def test_a_directory_of_very_many_names_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(2100):
        (tmp_path / "many" / f"{number}.txt").touch()
    with served(tmp_path) as site:
        text = page(site, "/many/")
        assert text.count(".txt</a>") == 2000
        assert "There are more than 2,000 names" in text
        assert text.endswith("</html>\n")


def test_a_map_of_very_many_shards_is_left_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardfs.serve.pages.page._LOCAL", page_module._Most(directories=3, shards=3, pictures=3))
    store(tmp_path / "image", array((8, 8), (4, 4), sharding((2, 2), LITTLE)))
    with served(tmp_path) as site:
        assert "too many shards to look at now" in page(site, "/image/")


@pytest.mark.slow
def test_a_page_of_a_bucket_asks_for_little(
    tmp_path: Path, in_bucket: Callable[[Path], str], s3_proxy: S3Proxy
) -> None:
    """Of a group of 60 arrays, as many plain directories and as many labels, and of an array of 64 shards."""
    document = json.dumps(array((16, 16), (2, 2), sharding((1, 1), LITTLE), data_type="uint8"))
    for number in range(60):
        for directory in (tmp_path / f"array{number}", tmp_path / f"plain{number}/below"):
            directory.mkdir(parents=True)
            (directory / "zarr.json").write_text(document)
    write_group(tmp_path)
    put(tmp_path / "large", np.ones((16, 16), "uint8"), (2, 2), (1, 1))
    put(tmp_path / "small", np.ones((8, 8), "uint8"), (2, 2), (1, 1))
    url = in_bucket(tmp_path)

    def requests(target: str) -> int:
        s3_proxy.log.clear()
        page(site, target)
        return len(s3_proxy.log)

    with served(url) as site:
        assert requests("/") <= 100
        assert requests("/") <= 40
        assert requests("/large/") <= 20
        assert requests("/small/") <= 40
        assert requests("/small/") <= 4


def test_a_token_is_needed_for_pages_and_pictures_too(source: Path) -> None:
    with served(source, token="secret" * 4) as site:
        for target in ("/", "/-/page.css", "/-/page.js", "/-/plane/volume", "/volume/"):
            assert site.ask(target, Accept=HTML).status == 401, target
        assert site.ask("/volume/", Accept=HTML, Authorization=f"Bearer {'secret' * 4}").status == 200
