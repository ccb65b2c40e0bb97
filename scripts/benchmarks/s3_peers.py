"""What reads and writes S3 side by side: shardfs, mounted afresh, and programs that need no mount."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .datasets import Coordinates, Dataset
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
    """Read or write inner chunks, one by one; gives the seconds for each, and a checksum."""
    task = {
        "library": name,
        "write": write,
        "endpoint": service.endpoint_url,
        "bucket": BUCKET,
        "prefix": prefix,
        "inner": inner,
        "chunks": chunks,
    }
    result: dict[str, Any] = json.loads(
        _run([sys.executable, "-m", f"{__package__}.s3_client"], service, json.dumps(task))
    )
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
    _run(["rclone", "copy", *flags, *places], service)


def upload(service: Service, dataset: Dataset, *, unsharded: bool = False) -> str:
    """Store a dataset, sharded or as plain objects; gives its prefix."""
    directory = dataset.unsharded if unsharded else dataset.sharded
    prefix = f"{dataset.name}/{directory.name}"
    service.upload(directory, prefix)
    return prefix


def _run(command: Sequence[str], service: Service, text: str = "") -> str:
    """Run a program and return what it prints; what it complains of is shown if it fails."""
    result = subprocess.run(command, input=text, text=True, capture_output=True, env=service.environment)
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed: {result.stderr[-2000:]}")
    return result.stdout
