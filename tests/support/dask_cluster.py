"""A Dask cluster as its users have one: a scheduler and workers, each a process, over TCP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client

from tests.support.mounting import PATIENCE, environment
from tests.support.processes import end_with_parent


class Cluster:
    """A scheduler, and the workers that were started for it; files of both are below *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        scheduler = self._start("from distributed.cli.dask_scheduler import main", "--port", "0", "--host", "127.0.0.1")
        assert scheduler.stderr is not None
        found = next(found for line in scheduler.stderr if (found := re.search(r"Scheduler at: +(tcp://\S+)", line)))
        self.address = found[1]

    def start_workers(self, count: int, *, code: str = "", prefix: tuple[str | Path, ...] = ()) -> None:
        """Start workers of one thread each, which run *code* first, and wait until all are there."""
        for _ in range(count):
            arguments = (self.address, "--no-nanny", "--nthreads", "1", "--local-directory", self._directory)
            self._start(f"{code}\nfrom distributed.cli.dask_worker import main", *arguments, prefix=prefix)
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self._processes) - 1, timeout=PATIENCE)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, code: str, *arguments: str | Path, prefix: tuple[str | Path, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", f"{code}\nmain()", *arguments, "--no-dashboard"],
            env=environment(),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: end_with_parent(signal.SIGKILL),
        )
        self._processes.append(process)
        return process


@contextmanager
def dask_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a scheduler."""
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.end()
