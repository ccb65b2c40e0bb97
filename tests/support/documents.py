"""Documents that tests replace."""

import json
from pathlib import Path
from typing import Any

from shardfs.dataset.state.directory import StateDirectory
from shardfs.format.lens.unsharded import describe
from shardfs.format.metadata import fingerprint, parse_array

GROUP = {"zarr_format": 3, "node_type": "group"}


def write(directory: Path, document: Any) -> None:
    """Replace the document of *directory* as careful writers do."""
    directory.mkdir(exist_ok=True)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / "temporary").write_bytes(text)
    (directory / "temporary").rename(directory / "zarr.json")


def aside_of(source: Path, path: str, document: Any) -> Path:
    """Where a session of *source* that was killed has chunk files of the array with this *document*."""
    described = parse_array(describe(parse_array(document)).document)
    return source / StateDirectory(str(source)).staged_key / path / f".chunks-{fingerprint(described).hex()}"
