"""`shardfs map`: where chunks are, in the grid of shards and in a shard, in numbers and in pictures."""

import html
import math
import re
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from shardfs.dataset.hierarchy import open_source
from shardfs.dataset.maintenance.verify import Use as Kind
from shardfs.dataset.maintenance.verify import lay_out
from tests.support.browser import browsing
from tests.support.changing import ChangingArray
from tests.support.clients import output_of
from tests.support.commands import run, run_json
from tests.support.corpus import CASES, array, sharding, write_case
from tests.support.datasets import store
from tests.support.encoder import EMPTY, SHARDING

BY_NAME = {case.name: case for case in CASES}


@dataclass
class Use:
    """What the bytes of one shard are used for, byte by byte, from a plain reading of its indexes."""

    document: dict[str, Any]
    data: bytes
    chunks: int = 0

    def __post_init__(self) -> None:
        self.live = bytearray(len(self.data))
        self.inner: Sequence[int] = ()
        shape = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        self.read(self.document["codecs"][0], shape, 0, len(self.data))

    def read(self, codec: dict[str, Any], shape: Sequence[int], start: int, stop: int) -> None:
        configuration = codec["configuration"]
        self.inner = configuration["chunk_shape"]
        count = math.prod(length // inner for length, inner in zip(shape, self.inner, strict=True))
        index_size = 16 * count + 4 * len(configuration["index_codecs"][1:])
        at = start if configuration.get("index_location") == "start" else stop - index_size
        self.mark(at, index_size, 2)
        (within, *_), inner_shape = configuration["codecs"], self.inner
        for offset, nbytes in struct.iter_unpack("<QQ", self.data[at : at + 16 * count]):
            if (offset, nbytes) == (EMPTY, EMPTY):
                continue
            if within["name"] == SHARDING:
                self.read(within, inner_shape, start + offset, start + offset + nbytes)
            else:
                self.chunks += 1
                self.mark(start + offset, nbytes)

    def mark(self, at: int, nbytes: int, what: int = 1) -> None:
        self.live[at : at + nbytes] = bytes([what]) * nbytes

    def described(self, path: str, key: str) -> dict[str, Any]:
        """What `map` says of the shard."""
        shape, edges = self.document["shape"], self.document["chunk_grid"]["configuration"]["chunk_shape"]
        rest = (min(n, m - int(i) * n) for n, m, i in zip(edges, shape, key.split("/")[1:], strict=True))
        dead = self.live.count(0)
        return {
            "key": f"{path}/{key}",
            "size": len(self.data),
            "chunks": self.chunks,
            "capacity": math.prod(-(-each // step) for each, step in zip(rest, self.inner, strict=True)),
            "live": len(self.data) - dead,
            "dead": dead,
            "error": None,
        }


LAYOUTS = ["reversed", "gaps", "gaps-start", "gaps-nested", "foreign-prefix", "foreign-prefix-nested", "shared"]
LAYOUTS += ["shared-nested", "everything-at-once", "stored-beyond", "empty-index", "absent-enclosed-shard", "nested-3"]


def uses(*arguments: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What `map` says of every shard, by the path of its array."""
    return {item["path"]: item["shards"] for item in run_json("map", "--json", *arguments)["arrays"]}


def test_sizes_chunks_live_and_dead_bytes_are_counted_exactly(tmp_path: Path) -> None:
    expected = {}
    for name in LAYOUTS:
        encoded = write_case(BY_NAME[name], tmp_path / name)
        document = BY_NAME[name].document
        expected[name] = [Use(document, data).described(name, key) for key, data in sorted(encoded.files.items())]
    appended = ChangingArray(tmp_path / "appended")
    appended.append("c/0/0", 1, b"a new payload")
    appended.append("c/0/0", 1, b"and yet another one")
    expected["appended"] = [
        Use(appended.document, (appended.directory / key).read_bytes()).described("appended", key)
        for key in ("c/0/0", "c/1/0")
    ]
    assert [use["dead"] > 0 for use in expected["appended"]] == [True, False]
    assert uses(tmp_path) == expected
    assert uses(tmp_path, "appended") == {"appended": expected["appended"]}


async def layout_of(directory: Path, coords: tuple[int, ...]) -> list[Kind]:
    """What each byte of a shard is."""
    async with open_source(str(directory)) as source:
        found = (await source.hierarchy.node("")).array
        assert found is not None
        layout = await lay_out(found, coords)
    assert layout is not None
    return [Kind(use) for use in np.repeat(layout.uses, np.diff(layout.edges))]


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_byte_of_a_shard_is_what_the_map_says(tmp_path: Path, name: str) -> None:
    document = BY_NAME[name].document
    for key, data in write_case(BY_NAME[name], tmp_path).files.items():
        use = Use(document, data)
        shown = trio.run(layout_of, tmp_path, tuple(map(int, key.split("/")[1:])))
        assert [kind if kind in (Kind.LIVE, Kind.INDEX) else 0 for kind in shown] == list(use.live)
        prefix = next(number for number, live in enumerate(use.live) if live)
        if name.startswith("foreign-prefix"):
            assert shown[:prefix] == [Kind.FOREIGN] * prefix
        assert Kind.FOREIGN not in shown[prefix:]


def test_replaced_bytes_are_dead_and_zeros_are_a_gap(tmp_path: Path) -> None:
    changing = ChangingArray(tmp_path)
    path = tmp_path / "c/0/0"
    before = path.read_bytes()
    (first,) = struct.unpack("<Q", before[-4 * 16 - 4 + 8 :][:8])
    changing.append("c/0/0", 0, b"a new payload")
    data = path.read_bytes()
    shown = trio.run(layout_of, tmp_path, (0, 0))
    assert shown[:first] == [Kind.DEAD] * first  # an older index names it: it is no other format's
    start = data.index(b"a new payload")
    assert shown[start:] == [Kind.LIVE] * 13 + [Kind.INDEX] * (len(data) - start - 13)
    assert shown[first:start].count(Kind.DEAD) > 0
    path.write_bytes(bytes(first) + data[first:])
    assert trio.run(layout_of, tmp_path, (0, 0))[:first] == [Kind.GAP] * first


HOSTILE = "</title></style><script>document.title=1</script><img src=x onerror=document.title=2>\"'&\x1b[2J\u202e"

ELEMENTS = "html head meta title style body main section h1 h2 p a ul li code div table thead tbody tr th td svg rect"


def browse(page: Path, directory: Path, *arguments: str) -> str:
    """What Chromium makes of a page."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={directory}"]
    return output_of("chromium", *options, *arguments, page.as_uri())


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium here, as scripts/test said")
def test_the_page_loads_nothing_and_escapes_names(tmp_path: Path) -> None:
    source = tmp_path / "source"
    store(source / HOSTILE.replace("/", "∕"), array((4, 6), (4, 6), sharding((2, 3))))
    for name in ("foreign-prefix", "everything-at-once"):
        write_case(BY_NAME[name], source / name)
    (source / "broken").mkdir()
    (source / "broken/zarr.json").write_text("{")
    page = tmp_path / "map.html"
    done = run("map", "--html", page, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{page} written\n", "")
    text = page.read_text(encoding="utf-8")
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    assert set(re.findall(r"<(\w+)", dom)) == set(ELEMENTS.split())
    assert f"<title>Map of {html.escape(str(source), quote=False)}</title>" in dom
    assert dom.count('<section id="array') == 3
    for kind in ("live", "dead", "index", "foreign prefix"):
        assert f"<title>{kind}</title>" in dom
        assert f'<rect class="{kind.split()[0]}" x=' in dom
    assert dom.count("<title>1 shard from ") == 9
    assert "<li>no map: broken: " in dom
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium here, as scripts/test said")
def test_the_page_names_problems_first_and_draws_only_the_shards_that_have_some(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("damaged", "sound"):
        store(source / name, array((40, 6), (4, 6), sharding((2, 3))))
    (source / "damaged/c/3/0").write_bytes(b"no shard")
    appended = ChangingArray(source / "appended")
    for _ in range(20):
        appended.append("c/0/0", 1, b"a new payload" * 20)
    page = tmp_path / "map.html"
    assert run("map", "--html", page, source).returncode == 0
    text = page.read_text(encoding="utf-8")
    problems = text[text.index('id="problems"') : text.index('id="overview"')]
    assert "damaged/c/3/0: " in problems
    assert re.search(r"appended</a>: .* are dead bytes", problems)
    assert ">sound</a>" not in problems
    for name, count in (("appended", 1), ("damaged", 1), ("sound", 1)):  # of ten shards, which are alike otherwise
        own = text[text.index(f"<h2>{name}</h2>") :].partition("</section>")[0]
        assert len(re.findall(r"<p[^>]*>[^<]*/c/", own)) == count, name
    with browsing(tmp_path / "profile") as browser:
        for width in (390, 1280):
            browser.show(width)
            browser.open(page.as_uri())
            assert browser.run("document.documentElement.scrollWidth") == width
            assert not browser.problems
