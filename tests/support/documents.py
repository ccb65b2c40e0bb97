"""Documents that tests replace."""

import json
from pathlib import Path
from typing import Any

GROUP = {"zarr_format": 3, "node_type": "group"}


def write(directory: Path, document: Any) -> None:
    """Replace the document of *directory* as careful writers do."""
    directory.mkdir(exist_ok=True)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / "temporary").write_bytes(text)
    (directory / "temporary").rename(directory / "zarr.json")
