"""The reader of a volume in the format precomputed, a process of its own: read single chunks with one library.

Standard input holds a JSON object with the `library`, the `volume` and the `chunks`: for `files` their paths, else
begin and end along each axis. Standard output gets the seconds per chunk and a checksum of what was read.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any


def opened(library: str, volume: str) -> Callable[[Any], bytes]:
    """A function that reads one chunk."""
    if library == "files":
        return lambda path: Path(path).read_bytes()
    if library == "tensorstore":
        import tensorstore

        spec = {"driver": "neuroglancer_precomputed", "kvstore": {"driver": "file", "path": volume}}
        store = tensorstore.open(spec, read=True).result()
        return lambda box: store[tuple(slice(*each) for each in box)].read().result().tobytes(order="F")
    from cloudvolume import CloudVolume

    cloud = CloudVolume(f"precomputed://file://{volume}", progress=False)
    return lambda box: cloud[tuple(slice(*each) for each in box)].tobytes(order="F")


def main() -> None:
    """Open the volume and read one chunk first: neither belongs to the time."""
    task = json.load(sys.stdin)
    read, chunks = opened(task["library"], task["volume"]), task["chunks"]
    read(chunks.pop())
    start = perf_counter()
    data = [read(chunk) for chunk in chunks]
    seconds = (perf_counter() - start) / len(chunks)
    json.dump({"seconds": seconds, "checksum": zlib.crc32(b"".join(data))}, sys.stdout)


if __name__ == "__main__":
    main()
