"""Arrays of one writing mount, and arrays in a bucket with hosts that mount them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import LITTLE, array, sharding
from tests.support.datasets import store
from tests.support.hosts import Host, make_host
from tests.support.mounting import Mount, Mounter
from tests.support.s3_mounts import Remote
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket


@pytest.fixture(scope="module")
def mounted(module_mount: Mounter, tmp_path_factory: pytest.TempPathFactory) -> Mount:
    """A writing mount; with a TTL of an hour, nothing is seen because it was forgotten."""
    mount = module_mount(tmp_path_factory.mktemp("source"), write=True, metadata_ttl=3600)
    mount.expect(r" (create|mkdir|set(x)?attr|symlink|link|rename|write|flush|fsync|release): ")  # what they refuse
    return mount


@pytest.fixture
def new_array(mounted: Mount) -> Callable[..., Path]:
    """`new_array(**how)` stores an array of four shards of 2 × 2 inner chunks of 24 bytes; where it is on the mount."""

    def make(**how: Any) -> Path:
        name = f"array-{len(os.listdir(mounted.source))}"
        partial = mounted.source / f"partial-{name}"
        store(partial, array((8, 12), (4, 6), sharding((2, 3), LITTLE)), **how)
        partial.rename(mounted.source / name)
        return mounted.path / name

    return make


@pytest.fixture
def root(new_array: Callable[..., Path]) -> Path:
    return new_array()


@pytest.fixture
def host(s3_bucket: Bucket, tmp_path: Path, mount: Mounter) -> Host:
    """A machine that reaches a bucket with an array."""
    return make_host(s3_bucket, tmp_path, mount)


@pytest.fixture
def remote(s3_bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, tmp_path: Path) -> Remote:
    """An empty bucket behind a proxy that logs."""
    return Remote(s3_bucket, s3_proxy, mount, tmp_path / "local")
