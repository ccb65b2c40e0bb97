"""What tests with real writers share: their own mounts, and what lies in the source afterwards."""

import json
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zarr

from tests.support.commands import run, run_json
from tests.support.mounting import PATIENCE, Mount


def write_zarr(path: Path, values: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data types without a specification
        zarr.open_array(str(path), mode="r+")[...] = values


def write_tensorstore(path: Path, values: np.ndarray) -> None:
    open_tensorstore(path)[...] = values


def write_zarrs(path: Path, values: np.ndarray) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        write_zarr(path, values)


WRITERS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "zarr": write_zarr,
    "tensorstore": write_tensorstore,
    "zarrs": write_zarrs,
}


def open_tensorstore(path: Path, **members: Any) -> tensorstore.TensorStore:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, **members}
    return tensorstore.open(spec, read=True, write=True).result()


def tool(*arguments: str | Path, cwd: Path | None = None) -> bytes:
    """Run a tool of the system; it must succeed and say nothing on stderr."""
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, check=False, timeout=4 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, b""), str(done)
    return done.stdout


def flush(mount: Mount) -> None:
    """Bring everything into the shards."""
    done = run("flush", mount.path)
    assert done.returncode == 0, str(done)


def shards_of(source: Path) -> dict[str, list[dict[str, Any]]]:
    """What `shardfs map` says of every shard, by the path of the array."""
    return {item["path"]: item["shards"] for item in run_json("map", "--json", source)["arrays"] if item["shards"]}


def assert_packed(source: Path, nchunks: int) -> None:
    """The shards of *source* hold *nchunks* inner chunks in all, and nothing is dead weight as far as can be told."""
    shards = [shard for rows in shards_of(source).values() for shard in rows]
    for shard in shards:
        assert shard["error"] is None, shard
        assert not shard["dead"], shard
    assert sum(shard["chunks"] for shard in shards) == nchunks


def assert_sound(source: Path) -> None:
    """`shardfs verify` finds nothing wrong, down to the decoded chunks, and the mount left nothing behind."""
    done = run("verify", "--data", source)
    assert done.returncode == 0, str(done)
    assert not (source / ".shardfs").exists(), sorted(map(str, (source / ".shardfs").rglob("*")))


def document_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "zarr.json").read_text())
    return document
