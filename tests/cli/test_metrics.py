"""`shardfs mount --metrics`: figures that a real Prometheus scrapes."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Background
from tests.support.commands import run
from tests.support.mounting import PATIENCE, Mounter
from tests.support.processes import end_with_parent


def free_port() -> int:
    """A port that nobody has, nor gets: the kernel gives away higher ones."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def url_in(log: str) -> str:
    found = re.search(r"figures are at (http://\S+/metrics)", log)
    assert found, log
    return found[1]


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Any]:
    """A Prometheus that scrapes *target* every second; yields what asks it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    (directory / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [{"job_name": "shardfs", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    arguments = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb"]
    with (
        open(directory / "prometheus.log", "wb") as log,
        subprocess.Popen(
            [program, *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log, preexec_fn=end_with_parent
        ) as process,
    ):

        def ask(query: str, wanted: float) -> dict[str, str]:
            """Return the labels of what *query* finds, when its value is the one that is *wanted*."""
            deadline = time.monotonic() + 2 * PATIENCE
            found: Any = None
            while time.monotonic() < deadline:
                try:
                    asked = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                    with urllib.request.urlopen(asked, timeout=PATIENCE) as reply:
                        found = json.load(reply)["data"]["result"]
                except OSError:  # it begins
                    found = None
                if found and float(found[0]["value"][1]) == wanted:
                    return dict(found[0]["metric"])
                time.sleep(0.2)
            raise AssertionError(f"{query}: {found}\n" + (directory / "prometheus.log").read_text())

        try:
            yield ask
        finally:
            process.terminate()


def test_a_real_prometheus_scrapes_it(mount: Mounter, source: Path, tmp_path: Path) -> None:
    port = free_port()
    mounted = mount(source, write=True, arguments=[f"--metrics={port}"])
    assert url_in(mounted.log) == f"http://127.0.0.1:{port}/metrics"
    with prometheus(tmp_path, f"127.0.0.1:{port}") as ask:
        ask("up", 1)
        info = ask("shardfs_mount_info", 1)
        assert (info["source"], info["mountpoint"]) == (str(source), str(mounted.path))
        (mounted.path / "c/0/0").write_bytes(b"n" * 24)
        ask("shardfs_published_total", 1)
        assert run("flush", mounted.path).returncode == 0
        ask("shardfs_committed_chunks_total", 1)
        ask("shardfs_pending_chunks", 0)
        ask("time() - shardfs_last_commit_timestamp_seconds < bool 60", 1)
        ask('shardfs_requests_total{request="setxattr"}', 1)


def test_a_taken_port_is_said_and_does_not_stop_the_mount(background: Background, source: Path, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = background(f"--metrics={port}", source, place)
    assert done.returncode == 0
    line = f"no figures at 127.0.0.1:{port}: Address already in use"
    assert line in done.stderr
    (log,) = background.logs.glob("*.log")
    assert line in log.read_text()
    assert (place / "c/0/0").stat().st_size == 24
