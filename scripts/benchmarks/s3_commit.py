"""Inner chunks of a shard in S3 are replaced: through the mount until the flush returns, and by libraries natively.

Natively the library downloads the shard and stores it anew. Through the mount the old payloads are copied within the
bucket, which takes the server of this benchmark, in Python, most of the time.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

from .datasets import Coordinates, Dataset, chunk_path
from .native import versions
from .placement import Placement
from .report import print_table, ratio, size
from .rounds import interleave
from .s3_peers import library, shardfs, upload
from .s3_service import BUCKET, Service
from .update_client import content
from .writing_peers import Writable

MANY = 64
"""Chunks that one flush brings into the shard; a library rewrites the shard for each."""


def run(service: Service, dataset: Dataset, peers: Sequence[str], placement: Placement, rounds: int) -> None:
    """Replace chunks of one shard, and print the table."""
    if "shardfs" not in peers:
        return
    stored = upload(service, dataset)
    requests: dict[str, int] = {}
    many = f"shardfs, {MANY} chunks"
    libraries = [*versions(), "tensorstore"]

    def measure(subject: str, order: random.Random) -> float:
        prefix = f"commit-{uuid.uuid4().hex[:8]}"
        _copy_objects(service, stored, prefix)
        count = MANY if subject == many else 1
        chunks = order.sample(dataset.coordinates(), count)
        try:
            if subject in libraries:
                (seconds,), _ = library(subject, service, prefix, dataset.inner, chunks, write=True)
            else:
                with shardfs(service, prefix, placement, ["--write"]) as mounted:
                    (mounted.root / "zarr.json").read_bytes()
                    before = sum(mounted.requests().values())
                    seconds = _replace(Writable(mounted.root, mounted.server), dataset, chunks)
                    requests[subject] = sum(mounted.requests().values()) - before
            _check(service, dataset, prefix, chunks)
        finally:
            service.delete(prefix)
        return seconds

    placement.apply()
    results = interleave(["shardfs", many, *libraries], rounds, measure)
    rows = []
    for subject, values in results.items():
        times = ratio(values, results["shardfs"]) or 0.0
        count = str(requests.get(subject, ""))
        rows.append([subject, f"{median(values):.3f}", f"{min(values):.3f}", count, f"{times:.2f}"])
    print_table(
        f"An inner chunk of {size(dataset.chunk_bytes)} replaced in a shard of "
        f"{size(dataset.chunk_bytes * dataset.chunk_count)} in S3, median of {rounds} rounds, {placement.name}",
        ["subject", "s", "least s", "requests", "of shardfs"],
        rows,
    )


def _replace(mounted: Writable, dataset: Dataset, chunks: Sequence[Coordinates]) -> float:
    elements = [content(dataset.inner, turn) for turn in range(len(chunks))]
    start = perf_counter()
    for chunk, new in zip(chunks, elements, strict=True):
        path = chunk_path(mounted.root, chunk)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(new.data)
        partial.rename(path)
    mounted.flush()
    return perf_counter() - start


def _copy_objects(service: Service, stored: str, prefix: str) -> None:
    """Give a subject a shard of its own."""
    listed = service.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{stored}/")["Contents"]
    for key in [entry["Key"] for entry in listed]:
        source = {"Bucket": BUCKET, "Key": key}
        service.client.copy_object(Bucket=BUCKET, Key=prefix + key.removeprefix(stored), CopySource=source)


def _check(service: Service, dataset: Dataset, prefix: str, chunks: Sequence[Coordinates]) -> None:
    """Look the new chunks up in the shard by its index, whose entries are little-endian and end before a checksum."""
    shard = memoryview(service.read(str(chunk_path(Path(prefix), (0,) * len(dataset.shape)))))
    index_bytes = 16 * dataset.chunk_count + 4
    entries = np.frombuffer(shard[-index_bytes:-4], "<u8").reshape(*dataset.chunks_per_shard, 2)
    for turn, chunk in enumerate(chunks):
        offset, nbytes = map(int, entries[chunk])
        found: npt.NDArray[np.uint16] = np.frombuffer(shard[offset : offset + nbytes], np.uint16)
        if not np.array_equal(found, content(dataset.inner, turn).ravel()):
            raise RuntimeError(f"the inner chunk {chunk} below {prefix} is not what was written")
