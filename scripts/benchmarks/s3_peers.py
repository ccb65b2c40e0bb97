"""What reads and writes S3 side by side: shardfs, mounted afresh, and programs that need no mount."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .datasets import Coordinates, Dataset
from .native import versions
from .peers import SHARDFS, mounted_shardfs
from .placement import Placement
from .s3_service import BUCKET, Service

TRANSFERS = 16
"""How many files rclone copies at a time."""


@dataclass(frozen=True)
class S3Mount:
    """A mounted array in S3: its root and the process that serves it."""

    root: Path
    server: int

    def requests(self) -> dict[str, int]:
        """How many requests of each kind the daemon made until now."""
        command = [*SHARDFS, "stats", "--json", str(self.root)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, int] = json.loads(output)["store"]["requests"]
        return found


@contextmanager
def shardfs(service: Service, prefix: str, placement: Placement, arguments: Sequence[str] = ()) -> Iterator[S3Mount]:
    """The objects below `prefix`, mounted with further arguments."""
    source = f"s3://{BUCKET}/{prefix}"
    with mounted_shardfs([*arguments, source], placement, service.environment) as (root, server):
        yield S3Mount(root, server)


def library(
    name: str, service: Service, prefix: str, inner: Coordinates, chunks: Sequence[Coordinates], *, write: bool = False
) -> tuple[list[float], int]:
    """Read or write inner chunks by a version of zarr-python, or tensorstore; gives the seconds, and a checksum."""
    this, *_ = versions().values()
    task = {
        "library": "zarr-python" if name in versions() else name,
        "write": write,
        "endpoint": service.endpoint_url,
        "bucket": BUCKET,
        "prefix": prefix,
        "inner": inner,
        "chunks": chunks,
    }
    python = versions().get(name, this)
    client = ["-m", f"{__package__}.s3_client"]
    result: dict[str, Any] = json.loads(python.run(client, json.dumps(task), service.environment))
    return result["seconds"], result["checksum"]


def has_rclone() -> bool:
    """Whether rclone is installed."""
    return shutil.which("rclone") is not None


def rclone(service: Service, source: str | Path, to: str | Path) -> None:
    """Copy a directory to the objects below a prefix, or the other way: a string is a prefix.

    Times that only rclone itself would have stored are not asked for.
    """
    remote = f":s3,provider=Other,env_auth,endpoint='{service.endpoint_url}',force_path_style=true:{BUCKET}"
    places = [str(place) if isinstance(place, Path) else f"{remote}/{place}" for place in (source, to)]
    flags = ["--config=", f"--transfers={TRANSFERS}", "--use-server-modtime", "--ignore-checksum", "--quiet"]
    command = ["rclone", "copy", *flags, *places]
    result = subprocess.run(command, text=True, capture_output=True, env=service.environment)
    if result.returncode:
        raise RuntimeError(f"rclone failed: {result.stderr[-2000:]}")


def upload(service: Service, dataset: Dataset, *, unsharded: bool = False) -> str:
    """Store a dataset, sharded or as plain objects; gives its prefix."""
    directory = dataset.unsharded if unsharded else dataset.sharded
    prefix = f"{dataset.name}/{directory.name}"
    service.upload(directory, prefix)
    return prefix
