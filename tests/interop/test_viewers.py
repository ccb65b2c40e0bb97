"""Viewers of others show what `shardfs serve` serves, opened as the links of its pages open them."""

import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from tests.support.browser import browsing, needs_chromium
from tests.support.datasets import age
from tests.support.images import image, put, write_group
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
