"""Datasets in a bucket, mounted through a proxy that writes down every request."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.corpus import array, extension, sharding
from tests.support.datasets import store
from tests.support.encoder import Coordinates
from tests.support.mounting import Mount, Mounter
from tests.support.s3_log import Request
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

PREFIX = "path/data.zarr"
PAGE = 1000
"""How many names a page of a listing has at most."""

BYTES = extension("bytes")
CHUNK = 64 * 2**10

DOCUMENT_HEAD = "0-262143"
"""The range with which documents are fetched: all but very large ones come whole."""


@dataclass(frozen=True)
class Remote:
    """A bucket with a dataset below `PREFIX`, of which *local* is a copy; mounts reach it through *proxy*."""

    bucket: Bucket
    proxy: S3Proxy
    mounter: Mounter
    local: Path
    mounts: list[Mount] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.bucket.url(PREFIX)

    def key(self, name: str) -> str:
        return f"{PREFIX}/{name}"

    def put(self, name: str, data: bytes) -> None:
        """Store a file, in the bucket and in the copy: what another host may do at any time."""
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.bucket.put(self.key(name), data)

    def store(
        self, name: str, document: dict[str, Any], absent: Iterable[Coordinates] = (), **options: Any
    ) -> dict[str, bytes]:
        """Store a sharded array; returns its inner chunks by their keys."""
        chunks = store(self.local / name, document, absent=absent, **options)
        self.upload(name)
        return chunks

    def upload(self, name: str) -> None:
        """Store what is in the copy below *name*."""
        paths = [path for path in (self.local / name).rglob("*") if path.is_file()]
        with ThreadPoolExecutor(8) as pool:
            put = self.bucket.put
            list(pool.map(lambda path: put(self.key(str(path.relative_to(self.local))), path.read_bytes()), paths))

    def mount(self, **options: Any) -> Path:
        """Mount the dataset, and forget what that took."""
        mounted = self.mounter(self.url, env=self.bucket.through(self.proxy.url).environment, **options)
        self.mounts.append(mounted)
        self.proxy.log.clear()
        return mounted.path

    def taken(self) -> list[Request]:
        """The requests since this was asked last, in order."""
        requests = self.proxy.log.of()
        self.proxy.log.clear()
        return requests

    def asked(self) -> list[str]:
        """The same in words, one for each: what was asked, of which name, and which bytes."""
        return [_words(request) for request in self.taken()]


def _words(request: Request) -> str:
    if request.operation == "ListObjectsV2":
        return f"LIST {_name(request.query['prefix'])}"
    if request.operation == "HeadBucket":  # to tell a missing object from a missing bucket
        return "HEAD bucket"
    verb = {"GetObject": "GET", "HeadObject": "HEAD"}[request.operation]
    part = (request.range or "").removeprefix("bytes=")
    return " ".join(filter(None, [verb, _name(request.key), part, "" if request.status in (200, 206) else "404"]))


def _name(key: str) -> str:
    assert key.startswith(f"{PREFIX}/") or key == PREFIX
    return key[len(PREFIX) + 1 :] or "/"


def bytes_of(nchunks: int, nbytes: int = CHUNK, nshards: int = 1, **codec: Any) -> dict[str, Any]:
    """An array of one axis, in shards of *nchunks* chunks of *nbytes* bytes, stored as they are."""
    n = nchunks * nbytes
    return array((n * nshards,), (n,), sharding((nbytes,), BYTES, **codec), data_type="uint8")


def fill(remote: Remote, name: str, document: dict[str, Any]) -> dict[str, bytes]:
    """Store an array of bytes that no two chunks have in common."""
    values = np.random.default_rng(0).integers(0, 256, document["shape"], np.uint8)
    return remote.store(name, document, values=values)


def index_nbytes(nchunks: int) -> int:
    """Size of the index of a shard, with its checksum."""
    return 16 * nchunks + 4
