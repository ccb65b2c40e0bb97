"""Documents that tests replace, and looking at them again a moment later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardfs.dataset.hierarchy import Node
from tests.support.opened import Opened

GROUP = {"zarr_format": 3, "node_type": "group"}


def write(directory: Path, document: Any) -> None:
    """Replace the document of *directory* as careful writers do."""
    directory.mkdir(exist_ok=True)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / "temporary").write_bytes(text)
    (directory / "temporary").rename(directory / "zarr.json")


async def later(source: Opened, path: str = "a") -> Node:
    source.clock.now += 1
    return await source.hierarchy.node(path)
