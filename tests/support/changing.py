"""An array whose shards and document other programs change behind the mount."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.support.corpus import GZIP, array, extension, sharding
from tests.support.datasets import age, by_key
from tests.support.encoder import encode

SHAPE = (64, 512)
SHARD = (32, 512)
INNER = (16, 256)


def document(*around: Any, inner: tuple[int, ...] = INNER, **members: Any) -> dict[str, Any]:
    """The array's document; *around* are codecs after the sharding codec."""
    codecs = (extension("bytes"), GZIP)
    return array(SHAPE, SHARD, sharding(inner, *codecs), *around, data_type="uint8", **members)


def version(number: int) -> np.ndarray:
    """Values that differ from version to version in every inner chunk, also in their encoded size."""
    random = np.random.default_rng(number)
    return np.where(np.arange(512) % 256 < 40 * number + 80, random.integers(1, 256, SHAPE), 0).astype(np.uint8)


@dataclass
class ChangingArray:
    """The stored array at *directory*, written as *version(1)*."""

    directory: Path
    document: dict[str, Any] = field(default_factory=document)

    def __post_init__(self) -> None:
        (self.directory / "c/0").mkdir(parents=True)
        (self.directory / "c/1").mkdir(parents=True)
        self.replace_document()
        for key in ("c/0/0", "c/1/0"):
            self.replace(key, 1)
        age(self.directory)

    def chunks(self, number: int) -> dict[str, bytes]:
        """Inner chunks of a version by their keys."""
        return by_key(self.document, encode(self.document, version(number)))

    def shard(self, key: str, number: int) -> bytes:
        return encode(self.document, version(number)).files[key]

    def replace(self, key: str, number: int) -> None:
        """Put a version of a shard in place by rename, as most writers do."""
        replace(self.directory / key, self.shard(key, number))

    def overwrite(self, key: str, number: int) -> None:
        """Write a version of a shard into the file that is there."""
        with open(self.directory / key, "r+b") as file:
            file.write(self.shard(key, number))
            file.truncate()

    def append(self, key: str, entry: int, payload: bytes) -> None:
        """Append an inner chunk and a new index; what stood in the shard stays."""
        appended = self.appended(key, entry, payload)
        with open(self.directory / key, "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(appended[file.tell() :])

    def appended(self, key: str, entry: int, payload: bytes) -> bytes:
        """The same, as what is in the shard then."""
        stored = (self.directory / key).read_bytes()
        index = np.frombuffer(stored[-4 * 16 - 4 : -4], "<u8").reshape(4, 2).copy()
        index[entry] = len(stored), len(payload)
        encoded = index.tobytes()
        return stored + payload + encoded + google_crc32c.value(encoded).to_bytes(4, "little")

    def replace_document(self) -> None:
        replace(self.directory / "zarr.json", json.dumps(self.document).encode())


def replace(path: Path, content: bytes) -> None:
    """Put content in place by rename."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)
