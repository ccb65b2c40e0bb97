"""Inner chunks over HTTP: `shardfs serve` beside nginx and rclone over a mount, nginx and zarr-http-server over plain
chunk files, and Hypercorn answering constant bytes.

16 clients with a connection each fetch every chunk once, in random order; bytes are compared between the peers.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from .datasets import Dataset, chunk_path
from .peers import PATIENCE, SHARDFS, mounted_shardfs
from .placement import Placement
from .report import number, print_table, ratio, size, verdict
from .rounds import interleave

SERVE, CEILING, RCLONE = "shardfs serve", "constant (Hypercorn)", "rclone, of a mount"
NGINX, PLAIN, ZARR = "nginx, of a mount", "nginx, plain files", "zarr-http-server, plain files"
CONNECTIONS = 16
OF_CEILING, OF_RCLONE = 0.7, 1.0


def run(dataset: Dataset, placement: Placement, rounds: int) -> None:
    """Measure the servers that are installed, and print the table."""
    subjects = [subject for subject, program in PROGRAMS.items() if program is None or _which(program)]

    def measure(subject: str, order: random.Random) -> tuple[float, int]:
        chunks = dataset.coordinates()
        order.shuffle(chunks)
        with _serving(subject, dataset, placement) as port:
            found = (_fetch(port, [_path(dataset, chunk) for chunk in chunks]) for _ in range(2))
            (_, checksum), (seconds, again) = found  # the second time, all files are known
            if checksum != again:
                raise RuntimeError(f"{subject} sent other bytes the second time")
        return len(chunks) / seconds, checksum

    placement.apply()
    results = interleave(subjects, rounds, measure)
    checksums = {checksum for subject, turns in results.items() if subject != CEILING for _, checksum in turns}
    if len(checksums) > 1:
        raise RuntimeError("the servers sent different bytes")
    rates = {subject: [rate for rate, _ in turns] for subject, turns in results.items()}
    rows = []
    for subject, values in rates.items():
        of_ceiling, of_rclone = (ratio(values, rates.get(other, [])) for other in (CEILING, RCLONE))
        met = [
            found >= wanted
            for found, wanted in ((of_ceiling, OF_CEILING), (of_rclone, OF_RCLONE))
            if found is not None and subject == SERVE
        ]
        rows.append(
            [subject, f"{median(values):,.0f}", number(of_ceiling, ".2f"), number(of_rclone, ".2f"), verdict(*met)]
        )
    print_table(
        f"{dataset.chunk_count:,} inner chunks of {size(dataset.chunk_bytes)} over HTTP, {CONNECTIONS} connections, "
        f"median of {rounds} rounds, {placement.name}",
        ["server", "chunks/s", "of constant", "of rclone", "met"],
        rows,
    )


PROGRAMS: dict[str, str | None] = {
    SERVE: None, CEILING: None, RCLONE: "rclone", NGINX: "nginx", PLAIN: "nginx", ZARR: "clients/zarrhttp/bin/python",
}  # fmt: skip
"""The program that each server needs."""


def _which(program: str) -> str | None:
    if "/" in program:
        found = Path(sys.prefix, program)
        return str(found) if found.exists() else None
    beside = Path(sys.executable).with_name(program)
    return str(beside) if beside.exists() else shutil.which(program) or shutil.which(program, path="/usr/sbin")


def _path(dataset: Dataset, chunk: tuple[int, ...]) -> str:
    return f"/{chunk_path(dataset.unsharded, chunk).relative_to(dataset.unsharded)}"


def _fetch(port: int, paths: Sequence[str]) -> tuple[float, int]:
    program = Path(__file__).with_name("serve_client.py")
    line = [sys.executable, str(program), str(port), str(CONNECTIONS)]
    done = subprocess.run(line, input="\n".join(paths), check=True, capture_output=True, text=True)
    seconds, checksum = done.stdout.split()
    return float(seconds), int(checksum)


@contextmanager
def _serving(subject: str, dataset: Dataset, placement: Placement) -> Iterator[int]:
    """Start a server for the root of the array; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = f"127.0.0.1:{port}"
    match subject:
        case _ if subject == SERVE:
            with _started([*SHARDFS, "serve", "--listen", here, str(dataset.sharded)], port, placement):
                yield port
        case _ if subject == CEILING:
            program = str(Path(__file__).with_name("serve_constant.py"))
            with _started([sys.executable, program, str(port), str(dataset.chunk_bytes)], port, placement):
                yield port
        case _ if subject == ZARR:
            program = str(Path(__file__).with_name("serve_zarr.py"))
            line = [_which(PROGRAMS[ZARR] or "") or "", program, str(port), str(dataset.unsharded)]
            with _started(line, port, placement):
                yield port
        case _ if subject == PLAIN:
            with _nginx(dataset.unsharded, port, placement):
                yield port
        case _:
            with mounted_shardfs([str(dataset.sharded)], placement) as (root, _):
                if subject == NGINX:
                    with _nginx(root, port, placement):
                        yield port
                else:
                    rclone = _which("rclone") or "rclone"
                    with _started([rclone, "serve", "http", "--addr", here, str(root)], port, placement):
                        yield port


@contextmanager
def _nginx(root: Path, port: int, placement: Placement) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="shardfs-bench-") as directory:
        temporary = " ".join(
            f"{name}_temp_path {directory}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        server = f"server {{ listen 127.0.0.1:{port}; root {root}; keepalive_requests 1000000; }}"
        configuration = Path(directory, "conf")
        configuration.write_text(
            f"user root; error_log {directory}/log; pid {directory}/pid; daemon off; master_process off; "
            f"events {{}} http {{ access_log off; sendfile on; tcp_nopush on; {temporary} {server} }}"
        )
        with _started([_which("nginx") or "nginx", "-p", directory, "-c", str(configuration)], port, placement):
            yield


@contextmanager
def _started(line: list[str], port: int, placement: Placement) -> Iterator[None]:
    silent = subprocess.DEVNULL
    with placement.starting_server():
        process = subprocess.Popen(line, stdin=silent, stdout=silent, stderr=silent)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{line[0]} does not serve")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)
