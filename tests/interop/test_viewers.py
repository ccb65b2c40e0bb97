"""Viewers of others show what `shardfs serve` serves, opened as the links of its pages open them."""

import base64
import html
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from tests.support.browser import Page, browsing, needs_chromium
from tests.support.clients import SETUP
from tests.support.datasets import age
from tests.support.images import image, put, write_group
from tests.support.mounting import eventually
from tests.support.serving import served

neuroglancer = pytest.importorskip("neuroglancer")

SOFTWARE_GL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")


@pytest.fixture
def viewer() -> Iterator[Any]:
    """The client that the package brings, with the server that it needs."""
    neuroglancer.set_server_bind_address("127.0.0.1")
    yield neuroglancer.Viewer()
    neuroglancer.stop()


def linked(page: str) -> dict[str, Any]:
    """The state in which a page opens neuroglancer."""
    found = re.search(r'<a href="(https://neuroglancer[^"]*)"', page)
    assert found is not None
    state: dict[str, Any] = json.loads(unquote(urlsplit(html.unescape(found[1])).fragment.removeprefix("!")))
    return state


@needs_chromium
def test_neuroglancer_shows_a_sharded_image_and_its_labels(tmp_path: Path, viewer: Any) -> None:
    source = tmp_path / "cells"
    image(source, 256, 128, chunk=32)
    rows, columns = np.divmod(np.arange(256)[:, np.newaxis] // 64 * 4 + np.arange(256) // 64, 4)
    labels = (1 + 4 * rows + columns).astype("uint16")
    put(source / "labels/nuclei/0", labels, (256, 256), (32, 32), dimension_names=["y", "x"])
    axes = [{"name": name, "type": "space"} for name in "yx"]
    datasets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1]}]}]
    said = {"version": "0.5", "image-label": {}, "multiscales": [{"axes": axes, "datasets": datasets}]}
    write_group(source / "labels", {"ome": {"version": "0.5", "labels": ["nuclei"]}})
    write_group(source / "labels/nuclei", {"ome": said})
    age(tmp_path)

    with served(tmp_path) as site, browsing(tmp_path / "profile", *SOFTWARE_GL) as page:
        host = f"127.0.0.1:{site.port}"
        state = linked(site.ask("/cells/", Accept="text/html", Host=host).body.decode())
        assert [layer["type"] for layer in state["layers"]] == ["image", "segmentation"]
        page.show(500, 500)
        pixels = {}
        for number, kind in enumerate(["image", "segmentation"]):
            viewer.set_state({**state, "layers": [state["layers"][number]], "showAxisLines": False})
            page.open(str(viewer.get_viewer_url()))
            shots: list[Any] = []
            taking = threading.Thread(target=lambda taken=shots: taken.append(viewer.screenshot(size=(256, 256))))  # type: ignore[misc]
            taking.start()
            page.until("document.querySelector('canvas') !== null")
            while taking.is_alive():  # it ends when all that is in view has been fetched and drawn
                page.until("true")
            pixels[kind] = shots[0].screenshot.image_pixels
        lines = [line for line in page.problems if "127.0.0.1" in line and host in line]
        assert not lines
    drawn = pixels["image"][..., :3].astype(int)
    assert (drawn.max(axis=-1) == drawn.min(axis=-1)).mean() > 0.8  # gray
    colors = {tuple(color) for color in pixels["segmentation"][..., :3].reshape(-1, 3)}
    assert len(colors) >= 16


class Host(BaseHTTPRequestHandler):
    """Serves the page of vizarr in the way of Galaxy, which the package is made for: it says what to open."""

    source = ""

    def do_GET(self) -> None:
        script = Path(sys.prefix, "clients/vizarr/package/static/index.js").read_bytes()
        told = json.dumps({"visualization_config": {"dataset_id": "1"}, "root": "/"})
        kind, body = {
            "/index.js": ("text/javascript", script.replace(ELSEWHERE, b"/jpx.js")),
            "/jpx.js": ("text/javascript", b"export class JpxImage {}"),
            "/api/datasets/1": (
                "application/json",
                json.dumps({"state": "deferred", "name": "", "sources": [{"source_uri": self.source}]}).encode(),
            ),
        }.get(
            self.path,
            (
                "text/html",
                f"<!DOCTYPE html><div id=app style='width: 500px; height: 500px' data-incoming='{told}'></div>"
                "<script type=module src=index.js></script>".encode(),
            ),
        )
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


ELSEWHERE = b"https://cdn.jsdelivr.net/gh/mozilla/pdf.js@30bd5f0/src/core/jpx.js"
"""What the page loads from another host to decode JPEG 2000."""


@needs_chromium
@pytest.mark.parametrize("view", ["v2", "v3"])
def test_vizarr_shows_a_sharded_image(tmp_path: Path, view: str) -> None:
    if not Path(sys.prefix, "clients/vizarr/package").exists():
        pytest.skip(f"no vizarr in {Path(sys.prefix, 'clients/vizarr')}: {SETUP}")
    image(tmp_path / "cells", 256, 128, chunk=64)
    ome = json.loads((tmp_path / "cells/zarr.json").read_text())["attributes"]["ome"]
    window = {"start": 0, "end": 510, "min": 0, "max": 510}
    omero = {"channels": [{"label": "a", "color": "FFFFFF", "window": window, "active": True}]}
    write_group(tmp_path / "cells", {"ome": {**ome, "omero": omero}})
    age(tmp_path)
    with served(tmp_path) as site, browsing(tmp_path / "profile", *SOFTWARE_GL) as page, host() as url:
        Host.source = f"{site.url}/-/{view}/cells"
        page.show(500, 500)
        page.open(url)
        chunks = [f"{site.url}/-/{view}/cells/0/{'c/' if view == 'v3' else ''}{n // 4}/{n % 4}" for n in range(16)]
        page.until(
            f"{json.dumps(chunks)}.every(url => performance.getEntriesByName(url).some(e => e.responseStatus === 200))"
        )
        page.until("document.querySelector('canvas') !== null")
        eventually(lambda: colors_on(page, tmp_path) > 20)


def colors_on(page: Page, directory: Path) -> int:
    """How many bytes differ in the middle of what a page shows."""
    page.screenshot(directory / "page.png")
    data = base64.b64encode((directory / "page.png").read_bytes()).decode()
    found: int = page.run(
        f"(async () => {{ const image = new Image(); image.src = 'data:image/png;base64,{data}'; await image.decode();"
        "const canvas = new OffscreenCanvas(100, 100).getContext('2d'); canvas.drawImage(image, -200, -200);"
        "return new Set(canvas.getImageData(0, 0, 100, 100).data).size; })()"
    )
    return found


@contextmanager
def host() -> Iterator[str]:
    """Serve vizarr for the length of a block; gives its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
