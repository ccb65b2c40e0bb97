"""The documents of the arrays, and a source with them."""

import json
from pathlib import Path
from typing import Any

from tests.support.corpus import CRC32C, LITTLE, array, extension, sharding, transpose
from tests.torture.geometry import GEOMETRIES, Geometry

_BYTES, _GZIP = extension("bytes"), extension("gzip", level=1)
_CODECS: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "end": ((12_000,), [sharding((3_000,), _BYTES, _GZIP)]),
    "unchecked": ((3, 2_000), [sharding((1, 1_000), _BYTES, index_codecs=[LITTLE])]),
    "start": ((12_000,), [sharding((2_000,), _BYTES, index_location="start", index_codecs=[LITTLE, CRC32C])]),
    "nested": ((60, 100), [sharding((30, 100), sharding((30, 50), _BYTES))]),
    "encoded": ((4_500,), [sharding((1_500,), _BYTES), _GZIP]),
    "cube": ((24, 24, 24), [transpose(2, 0, 1), sharding((24, 6, 12), _BYTES, _GZIP)]),
    "unsharded": ((1_500,), [_BYTES, _GZIP]),
}
"""Shapes of shards, and codecs."""


def document_of(geometry: Geometry) -> dict[str, Any]:
    """The stored document of an array."""
    shard, codecs = _CODECS[geometry.name]
    encoding = "default" if geometry.prefix else "v2"
    keys = {"name": encoding, "configuration": {"separator": geometry.separator}}
    members = {"data_type": "uint8", "attributes": {}, "chunk_key_encoding": keys}
    return array(geometry.shape, shard, *codecs, **members)


def make_source(root: Path) -> None:
    """Write the arrays, without chunks, below a group."""
    root.mkdir()
    (root / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for geometry in GEOMETRIES:
        (root / geometry.name / "c").mkdir(parents=True)
        (root / geometry.name / "zarr.json").write_text(json.dumps(document_of(geometry)))
