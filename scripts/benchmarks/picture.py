"""What a person waits for: the page of an image, and then the first picture of a plane, from a server just started.

The image has 2,048 × 2,048 elements and three levels, in sharded OME-Zarr. Its group is drawn by the level that fits,
its finest array alone by all chunks of the plane.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np
import zarr
from zarr.core.common import JSON

from .peers import PATIENCE, SHARDFS
from .placement import Placement
from .report import print_table, verdict
from .rounds import interleave
from .s3_service import BUCKET, Service

SIDE, CHUNK, SHARD, LEVELS = 2048, 256, 1024, 3
LIMITS = {"disk": 1.0, "S3": 2.0}
TARGETS = {"image": ("/image/", "/-/plane/image"), "finest array": ("/alone/", "/-/plane/alone")}


def make(work: Path) -> Path:
    """Store the image, unless it is there."""
    directory = work / "picture.zarr"
    if directory.exists():
        return directory
    root = zarr.open_group(directory, mode="w")
    image = root.create_group("image")
    y, x = np.mgrid[:SIDE, :SIDE]
    noise = np.random.default_rng(1).integers(0, 400, (SIDE, SIDE))
    values = (2000 * (1 + np.sin(x / 97) * np.cos(y / 61)) + noise).astype("uint16")
    for level in range(LEVELS):
        _store(image, str(level), values[:: 2**level, :: 2**level])
    _store(root, "alone", values)
    axes: list[JSON] = [{"name": name, "type": "space"} for name in "yx"]
    datasets: list[JSON] = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": [2**level] * 2}]}
        for level in range(LEVELS)
    ]
    image.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return directory


def _store(group: zarr.Group, name: str, values: np.ndarray) -> None:
    shard = min(SHARD, *values.shape)
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(CHUNK,) * 2, shards=(shard,) * 2)
    array[:] = values


def run(source: Path, service: Service, placement: Placement, rounds: int) -> None:
    """Measure from the disk and from S3, and print the table."""
    service.upload(source, source.name)
    places = {"disk": (str(source), dict(os.environ)), "S3": (f"s3://{BUCKET}/{source.name}", service.environment)}
    subjects = {f"{place}, {target}": (place, target) for place in places for target in TARGETS}

    def measure(subject: str, _: random.Random) -> tuple[float, float]:
        place, target = subjects[subject]
        address, environment = places[place]
        with _serving(address, environment, placement) as port:
            page, picture = TARGETS[target]
            begun = time.perf_counter()
            _get(port, page, "text/html", b"</form>")
            shown = time.perf_counter()
            data = _get(port, picture, "image/png")
            ended = time.perf_counter()
        if data[:4] != b"\x89PNG":
            raise RuntimeError(f"{picture} is no picture")
        return shown - begun, ended - begun

    placement.apply()
    results = interleave(subjects, rounds, measure)
    rows = []
    for subject, turns in results.items():
        place, target = subjects[subject]
        pages, pictures = zip(*turns, strict=True)
        took = median(pictures)
        rows.append([place, target, f"{median(pages):.2f}", f"{took:.2f}", verdict(took < LIMITS[place])])
    print_table(
        f"first picture of a plane of {SIDE:,} × {SIDE:,}, cold, median of {rounds} rounds, {placement.name}",
        ["from", "of", "page, s", "picture, s", "met"],
        rows,
    )


def _get(port: int, target: str, accept: str, until: bytes | None = None) -> bytes:
    """Return a reply, or its beginning up to a mark."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{target}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        data = b""
        while piece := reply.read1():
            data += piece
            if until is not None and until in data:
                break
    return data


@contextmanager
def _serving(address: str, environment: Mapping[str, str], placement: Placement) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    line = [*SHARDFS, "serve", "--listen", f"127.0.0.1:{port}", address]
    with placement.starting_server():
        process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                _get(port, "/-/healthy", "*/*")
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("shardfs does not serve")
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)
