"""Hosts that write to one bucket, each with its own state directory, and mounts of theirs that are killed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import shardfs
from shardfs.stores.url import StoreOptions
from tests.support.commands import FAILED, run, run_json
from tests.support.corpus import CRC32C, LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.mounting import PATIENCE, Mount, Mounter
from tests.support.s3_server import Bucket

PREFIX = "path/data.zarr"
NEW, OTHER = b"n" * 24, b"o" * 24
"""What tests write as chunks; their bytes are nobody's business but the reader's."""

DOCUMENT = array((8, 12), (4, 6), sharding((2, 3), index_codecs=(LITTLE, CRC32C)))
"""An array of four shards of four chunks, which have 24 bytes each."""


@dataclass(frozen=True)
class Host:
    """One machine with its state directory, and a bucket that it reaches, with an array below `PREFIX`."""

    bucket: Bucket
    state: Path
    mounter: Mounter

    @property
    def url(self) -> str:
        return self.bucket.url(PREFIX)

    @property
    def variables(self) -> dict[str, Any]:
        return self.bucket.environment | {"XDG_STATE_HOME": str(self.state)}

    def mount(self, *, write: bool = True, expect: tuple[str, ...] = ()) -> Mount:
        return self.mounter(self.url, write=write, state=self.state, env=self.bucket.environment, expect=expect)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(*arguments, **self.variables)

    def recover(self, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
        """The findings of `shardfs recover`."""
        report = run_json("recover", "--json", *arguments, status=status, **self.variables)
        assert report["left"] == (status == FAILED)
        found: list[dict[str, Any]] = report["findings"]
        return found

    def elsewhere(self) -> Host:
        """Another machine."""
        return replace(self, state=self.state.with_name("elsewhere"))

    def behind(self, endpoint_url: str) -> Host:
        """The same machine, which reaches the bucket at another endpoint."""
        return replace(self, bucket=self.bucket.through(endpoint_url))

    def chunk(self, *coords: int) -> bytes | None:
        """A chunk as it is in its shard."""
        options = StoreOptions(endpoint_url=self.bucket.endpoint_url)
        return shardfs.open(self.url, store_options=options)[""].read_chunk(coords)

    def commit(self, name: str, data: bytes) -> None:
        """Write a chunk, and bring it into its shard."""
        mounted = self.mount()
        (mounted.path / name).write_bytes(data)
        mounted.unmount()

    def leave(self, **chunks: bytes) -> None:
        """Let a mount be killed that has published chunks and committed none."""
        mounted = self.mount()
        publish(mounted, **chunks)
        kill(mounted)


def make_host(bucket: Bucket, directory: Path, mounter: Mounter) -> Host:
    """Store the array in an empty bucket."""
    store(directory / "source", DOCUMENT)
    bucket.upload(directory / "source", PREFIX)
    return Host(bucket, directory / "state", mounter)


def publish(mounted: Mount, **chunks: bytes) -> None:
    """Write chunks, by the last part of their names, with a `_` before it."""
    for name, data in chunks.items():
        (mounted.path / "c/0" / name.removeprefix("_")).write_bytes(data)


def kill(*mounts: Mount) -> None:
    """Let daemons crash at the same time."""
    for mounted in mounts:
        mounted.process.kill()
    for mounted in mounts:
        mounted.process.wait(PATIENCE)
