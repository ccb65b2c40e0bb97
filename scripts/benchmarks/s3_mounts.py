"""Reading an array in S3 through mounts: of its shards, and of the same chunks as objects of their own.

Cold random chunks by 1, 8 and 32 programs at the same time, `cp -r` of everything, and `find`. zarr-python reads the
sharded array without a mount, its programs as many as those that read files.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from .datasets import Coordinates, Dataset, chunk_path
from .listing import find
from .native import latest
from .peers import foreground, mountpoint
from .placement import Placement
from .report import number, print_table, ratio
from .rounds import interleave
from .s3_peers import shardfs, upload
from .s3_service import BUCKET, Service

CLIENTS = (1, 8, 32)
CHUNKS = 256
"""How many chunks are read at random, by all programs together."""

S3Root = Callable[[Service, Dataset, Placement], AbstractContextManager[Path]]


@contextmanager
def shards(service: Service, dataset: Dataset, placement: Placement) -> Iterator[Path]:
    """The sharded array, by shardfs."""
    with shardfs(service, upload(service, dataset), placement) as mounted:
        yield mounted.root


@contextmanager
def rclone(service: Service, dataset: Dataset, placement: Placement) -> Iterator[Path]:
    """The unsharded array, by rclone."""
    remote = f":s3,provider=Other,env_auth,endpoint='{service.endpoint_url}',force_path_style=true:{BUCKET}"
    command = ["rclone", "mount", "--config=", "--read-only", "--use-server-modtime"]
    with mountpoint() as root:
        source = f"{remote}/{upload(service, dataset, unsharded=True)}"
        with foreground([*command, source, str(root)], root, placement, service.environment):
            yield root


@contextmanager
def s3fs(service: Service, dataset: Dataset, placement: Placement) -> Iterator[Path]:
    """The unsharded array, by s3fs-fuse."""
    prefix = upload(service, dataset, unsharded=True)
    options = f"url={service.endpoint_url},use_path_request_style,sigv4,ro,complement_stat"
    with mountpoint() as root:
        command = ["s3fs", f"{BUCKET}:/{prefix}", str(root), "-f", "-o", options]
        with foreground(command, root, placement, service.environment):
            yield root


MOUNTS: dict[str, S3Root] = {"shardfs": shards, "rclone": rclone, "s3fs": s3fs}


def run(service: Service, dataset: Dataset, placement: Placement, rounds: int) -> None:
    """Measure all that are installed, and print a table for each task."""
    placement.apply()
    for source in (False, True):
        upload(service, dataset, unsharded=source)
    mounts = [name for name in MOUNTS if name == "shardfs" or shutil.which(name)]
    for nclients in CLIENTS:

        def read(subject: str, order: random.Random, nclients: int = nclients) -> tuple[float, int]:
            return _random(service, dataset, placement, subject, nclients, order)

        what = f"{CHUNKS} random chunks of {dataset.chunk_bytes // 1024} KiB by {nclients} programs, cold"
        _print(what, [*mounts, latest().name], read, rounds)
    _print("cp -r", mounts, lambda subject, _: _copy(service, dataset, placement, subject), rounds)
    _print("find -type f -size +0", mounts, lambda subject, _: _find(service, dataset, placement, subject), rounds)


def _print(
    what: str, subjects: Sequence[str], measure: Callable[[str, random.Random], tuple[float, int]], rounds: int
) -> None:
    results = interleave(subjects, rounds, measure)
    rows = []
    for subject, turns in results.items():
        seconds = [turn[0] for turn in turns]
        times = ratio(seconds, [turn[0] for turn in results["shardfs"]])
        rows.append(
            [subject, f"{median(seconds):.2f}", number(times, ".2f"), f"{median(turn[1] for turn in turns):.0f}"]
        )
    print_table(f"{what}, median of {rounds} rounds", ["by", "seconds", "of shardfs", "requests"], rows)


def _random(
    service: Service, dataset: Dataset, placement: Placement, subject: str, nclients: int, order: random.Random
) -> tuple[float, int]:
    chunks = order.sample(dataset.coordinates(), CHUNKS)
    shares = [chunks[place::nclients] for place in range(nclients)]
    if subject == latest().name:
        prefix = upload(service, dataset)
        command = [latest().python, "-m", f"{__package__}.s3_client"]
        texts = [json.dumps(_task(service, prefix, dataset, share)) for share in shares]
        before = service.requests()
        found = _together(command, texts, service.environment | latest().settings)
        return max(sum(json.loads(text)["seconds"]) for text in found), service.requests() - before
    with MOUNTS[subject](service, dataset, placement) as root:
        before = service.requests()
        command = [sys.executable, str(Path(__file__).with_name("file_client.py"))]
        found = _together(
            command,
            ["\n".join(str(chunk_path(root, chunk)) for chunk in share) for share in shares],
            service.environment,
        )
        return max(map(float, found)), service.requests() - before


def _task(service: Service, prefix: str, dataset: Dataset, chunks: Sequence[Coordinates]) -> dict[str, object]:
    return {
        "library": "zarr-python",
        "write": False,
        "endpoint": service.endpoint_url,
        "bucket": BUCKET,
        "prefix": prefix,
        "inner": dataset.inner,
        "chunks": chunks,
    }


def _together(command: Sequence[str], texts: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Run the program once for each text, all at the same time; gives what they print."""
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
            for _ in texts
        ]
        for program, text in zip(programs, texts, strict=True):
            assert program.stdin is not None
            program.stdin.write(text)
        for program in programs:  # they begin when their input ends
            assert program.stdin is not None
            program.stdin.close()
        output = []
        for program in programs:
            assert program.stdout is not None
            output.append(program.stdout.read())
        return output


def _copy(service: Service, dataset: Dataset, placement: Placement, subject: str) -> tuple[float, int]:
    with (
        MOUNTS[subject](service, dataset, placement) as root,
        tempfile.TemporaryDirectory(dir=dataset.directory) as parent,
    ):
        before, start = service.requests(), perf_counter()
        subprocess.run(["cp", "-r", str(root), f"{parent}/copy"], check=True)
        seconds = perf_counter() - start
        copied = sum(file.stat().st_size for file in Path(parent, "copy", "c").rglob("*") if file.is_file())
        if copied != dataset.chunk_count * dataset.chunk_bytes:
            raise RuntimeError(f"{subject} copies {copied:,} bytes")
        return seconds, service.requests() - before


def _find(service: Service, dataset: Dataset, placement: Placement, subject: str) -> tuple[float, int]:
    with MOUNTS[subject](service, dataset, placement) as root:
        before = service.requests()
        count, seconds = find(root / "c")
        if count != dataset.chunk_count:
            raise RuntimeError(f"{subject} lists {count:,} files")
        return seconds, service.requests() - before
