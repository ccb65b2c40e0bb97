"""`shardfs refs --icechunk`: each inner chunk is a virtual chunk of a repository, which zarr-python reads."""

import os
import time
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr

from tests.support.commands import FAILED, SOURCE, WRONG_USAGE, one_line_of, run
from tests.support.corpus import GZIP, LITTLE, array
from tests.support.corpus import sharding as sharded
from tests.support.datasets import store
from tests.support.s3_server import Bucket


def opened(path: Path, prefix: str, credentials: object = None) -> zarr.Group:
    allowed = icechunk.containers_credentials({prefix: credentials})
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(path)), authorize_virtual_chunk_access=allowed
    )
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def write(path: Path) -> dict[str, np.ndarray]:
    """A group with arrays of several kinds, sharded and not, of which some chunks are not stored."""
    group, random = zarr.create_group(path, attributes={"a": 1}), np.random.default_rng(2)
    values = {}
    for name, shape, chunks, shards in (
        ("image", (20, 30), (5, 6), (10, 12)),
        ("below/line", (17,), (4,), (8,)),
        ("plain", (9, 9), (4, 5), None),
        ("scalar", (), (), None),
    ):
        made = group.create_array(name, shape=shape, chunks=chunks, shards=shards, dtype="i4", fill_value=7)
        stored = tuple(slice(0, length // 2) for length in shape)
        made[stored] = random.integers(0, 99, made[stored].shape)
        values[name] = made[...]
    return values


def test_a_repository_has_each_inner_chunk(tmp_path: Path) -> None:
    values = write(tmp_path / "data.zarr")
    done = run("refs", "--icechunk", tmp_path / "repository", tmp_path / "data.zarr")
    assert (done.returncode, done.stdout) == (0, ""), str(done)
    group = opened(tmp_path / "repository", f"file://{tmp_path}/data.zarr/")
    assert dict(group.attrs) == {"a": 1}
    for name, expected in values.items():
        np.testing.assert_array_equal(group[name][...], expected)
    assert group["image"].chunks == (5, 6)
    assert group["image"].shards is None
    again = run("refs", "--icechunk", tmp_path / "repository", tmp_path / "data.zarr")
    assert "exists" in one_line_of(again, WRONG_USAGE)


def test_a_shard_that_was_changed_since_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "data.zarr")
    run("refs", "--icechunk", tmp_path / "repository", tmp_path / "data.zarr")
    later = time.time() + 60
    os.utime(tmp_path / "data.zarr/image/c/0/0", (later, later))
    group = opened(tmp_path / "repository", f"file://{tmp_path}/data.zarr/")
    with pytest.raises(icechunk.IcechunkError, match="has changed"):
        group["image"][:5, :6]
    assert group["image"][:5, 12:].shape == (5, 18)


def test_shards_in_s3_are_read_from_there(s3_bucket: Bucket, tmp_path: Path) -> None:
    values = write(tmp_path / "data.zarr")
    s3_bucket.upload(tmp_path / "data.zarr", "part/data.zarr")
    url = s3_bucket.url("part/data.zarr")
    endpoint = f"--endpoint-url={s3_bucket.endpoint_url}"
    done = run("refs", endpoint, "--region=us-east-1", "--icechunk", tmp_path / "repository", url)
    assert done.returncode == 0, str(done)
    group = opened(tmp_path / "repository", f"{url}/", icechunk.s3_from_env_credentials())
    for name, expected in values.items():
        np.testing.assert_array_equal(group[name][...], expected)


def test_what_icechunk_cannot_hold_leaves_nothing_behind(tmp_path: Path) -> None:
    encoded = array((8, 12), (4, 6), sharded((2, 3), LITTLE), GZIP)
    store(tmp_path / "encoded.zarr", encoded)
    done = run("refs", "--icechunk", tmp_path / "repository", tmp_path / "encoded.zarr")
    assert done.returncode == FAILED
    assert "is not written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["encoded.zarr"]
    wrong = run("refs", "--view=v2", "--icechunk", tmp_path / "repository", tmp_path / "encoded.zarr")
    assert "--icechunk is for Zarr v3" in one_line_of(wrong, WRONG_USAGE)
    nothing = run("refs", "--icechunk", tmp_path / "repository", tmp_path / "nothing")
    assert "does not exist" in one_line_of(nothing, SOURCE)
